"""The demo on a part of the year, with a real broker and a real Spark (`make demo`: all of it)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiverlog.client.client import connect
from tests.support.spark import environment

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(300)]

FLIGHTS = 6_000


@contextlib.contextmanager
def kept_broker(talk: str) -> Iterator[tuple[str, int, Path]]:
    """The broker that `--keep` left, as its last words name it; stopped at the end."""
    address = re.search(r"--bootstrap-server (\S+)", talk)
    stop = re.search(r"kill (\d+) && rm -r (\S+)", talk)
    assert address is not None, talk
    assert stop is not None, talk
    pid, directory = int(stop[1]), Path(stop[2])
    try:
        yield address[1], pid, directory
    finally:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while _runs(pid):
            assert time.monotonic() < deadline, "the broker does not stop"
            time.sleep(0.05)
        subprocess.run(["rm", "-r", str(directory)], check=True)


def _runs(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.long
def test_a_part_of_the_year_comes_back_as_pyarrow_works_it_out(tmp_path: Path):
    plot = tmp_path / "delays.png"
    words = ["demo", "--flights", str(FLIGHTS), "--rows-per-batch", "2000", "--keep"]
    done = subprocess.run(
        [sys.executable, "-m", "quiverlog", *words, "--plot", str(plot), "--format", "json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    with kept_broker(done.stderr) as (address, _pid, directory):
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["ok"] is True
        assert result["differences"] == []
        assert result["totals"]["flights"] == FLIGHTS
        replay, spark, back = result["legs"]
        assert (replay["rows_in"], replay["rows_out"]) == (FLIGHTS, FLIGHTS)
        assert spark["rows_in"] == FLIGHTS
        assert spark["rows_out"] == back["rows_out"] == result["groups"]
        assert result["spark"]["rows_late"] == 0
        assert result["spark"]["batches"] >= FLIGHTS // 2000
        assert "Killed Spark in a micro-batch" in done.stderr
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert directory.is_dir()
        with connect(address) as client:
            assert client.list_topics() == ["airlines", "airports", "delays", "flights", "weather"]
            assert client.describe_topic("delays").rows == result["groups"]
            # The one row more is the closing one.
            assert client.describe_topic("flights").rows == FLIGHTS + 1
    assert not list(tmp_path.glob("spark-warehouse"))
    for noise in ("Warning", "pandas", "Traceback"):
        assert noise not in done.stderr


@pytest.mark.long
def test_three_brokers_lose_one_and_the_totals_still_agree(tmp_path: Path):
    words = ["demo", "--brokers", "3", "--flights", str(FLIGHTS), "--rows-per-batch", "2000"]
    done = subprocess.run(
        [sys.executable, "-m", "quiverlog", *words, "--format", "json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] is True
    assert result["killed_broker"] in (1, 2, 3)
    assert "reads flights from followers" in done.stderr
    replay, spark, back = result["legs"]
    assert (replay["rows_out"], spark["rows_in"]) == (FLIGHTS, FLIGHTS)
    assert spark["rows_out"] == back["rows_out"] == result["groups"]


def test_two_brokers_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quiverlog", "demo", "--brokers", "2"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "two brokers cannot lose one" in done.stderr
