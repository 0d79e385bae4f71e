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
EXPECTED = {"spark_batch.py": "1000 rows in", "spark_stream.py": "12:00   60 orders    270.00"}
KILLING = "spark_exactly_once.py"

# One program after the other in one interpreter: the second finds a warm JVM.
RUN = """
import runpy, sys
_, bootstrap, *programs = sys.argv
for program in programs:
    sys.argv = [program, bootstrap]
    runpy.run_path(program, run_name="__main__")
"""


def test_every_spark_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("spark_*.py")} == {*EXPECTED, KILLING}


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_examples_work_as_described(tmp_path: Path) -> None:
    programs = [str(EXAMPLES / name) for name in EXPECTED]
    with BrokerProcess() as broker:
        done = subprocess.run(
            [sys.executable, "-c", RUN, broker.bootstrap, *programs],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    for expected in EXPECTED.values():
        assert expected in done.stdout


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_example_that_kills_its_driver(tmp_path: Path) -> None:
    with BrokerProcess() as broker:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / KILLING), broker.bootstrap, "1"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=380,
            check=False,
        )
    assert "killed 1 times: 40000 rows, 0 lost, 0 there twice" in done.stdout, done.stderr[-3000:]
    assert done.returncode == 0
