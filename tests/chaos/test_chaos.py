"""Seconds of real brokers under faults, from a fixed seed. `make chaos` runs longer ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEED = 2
MINUTES = 0.2
"""Of a death in a transaction and a kill."""
MINUTES_LONG = 0.35
"""Of these, and a broker that sends nothing."""
BOUND_S = 400
"""Start, healing, reading and checking come on top of it, each with a bound of its own."""


@pytest.mark.first
@pytest.mark.process
@pytest.mark.timeout(BOUND_S + 20)
@pytest.mark.parametrize("minutes", [MINUTES, pytest.param(MINUTES_LONG, marks=pytest.mark.long)])
def test_three_brokers_keep_their_promises_under_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], minutes: float
) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--seed", str(SEED), "--logs", str(tmp_path)]
    command += ["--minutes", str(minutes)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    with capsys.disabled():
        print("\n" + done.stdout, end="")
    assert done.returncode == 0, done.stderr
    assert "every promise was kept" in done.stdout
