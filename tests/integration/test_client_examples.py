"""The client's examples run as they are printed in the docs, with the printed output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as broker:
        yield broker


@pytest.mark.parametrize(
    ("script", "last_line"),
    [
        ("python_quickstart.py", "3 rows; the ends are {"),
        ("asyncio_quickstart.py", "20 rows seen"),
        ("transactions.py", "3 orders of 3 were counted once"),
    ],
)
def test_the_example_runs(broker: BrokerProcess, script: str, last_line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / script), broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(last_line)
    assert not done.stderr
