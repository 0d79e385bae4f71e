"""The Spark examples run as a person would run them, on a broker of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.spark import environment

pytestmark = [pytest.mark.spark, pytest.mark.process]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("spark_batch.py", "1000 rows in"),
        ("spark_stream.py", "12:00   60 orders    270.00"),
    ],
)
def test_example(program: str, expected: str, tmp_path: Path) -> None:
    with BrokerProcess() as broker:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / program), broker.bootstrap],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert expected in done.stdout
