"""One-row produces while the broker's disk is busy with the files of other topics.

A producer sends a row to its topic every few milliseconds, first in quiet, then while another
process creates topics of 2,000 partitions, fills them with rows that retention takes at once, and
deletes them. Quiet and busy rounds take turns. The bound: what the broker does for other topics
may not make the p99 of such a produce more than three times what it is in quiet, at either level.

Beside them a bare loop: a process of its own writes a row and flushes it, in quiet and while
another one makes as many files, flushes and removes them. What its p99 becomes is the disk's part,
and that of two processors.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from io import FileIO

from benchmarks.baselines.process import REPOSITORY
from benchmarks.harness import Comparison, Settings
from benchmarks.load import Load
from benchmarks.quiver import (
    BrokerProcess,
    Topic,
    largest_batch,
    open_load,
    produce_frame,
    produced,
    running,
    temporary_topic,
)

PARTITIONS = 2_000
ROUND_SECONDS = 20.0
ROUNDS_MAX = 3
PAUSE_SECONDS = 0.002
ROW_BYTES = 512
P99_TIMES_MAX = 3
CHURN_ENDS_SECONDS_MAX = 180
LEVELS = ("flushed", "memory")


def run(settings: Settings) -> list[Comparison]:
    partitions = settings.scaled(PARTITIONS)
    seconds = ROUND_SECONDS / 8 if settings.quick else ROUND_SECONDS
    quiet: dict[str, list[float]] = {level: [] for level in LEVELS}
    busy: dict[str, list[float]] = {level: [] for level in LEVELS}
    with running() as (broker, client):
        for level in LEVELS:
            with (
                temporary_topic(client, level, durability=level) as topic,
                open_load(broker) as load,
            ):
                producer = OneRow(topic, load)
                for _ in range(min(settings.rounds, ROUNDS_MAX)):
                    quiet[level].append(p99(producer.during(seconds / 2)))
                    with churn(broker, partitions):
                        busy[level].append(p99(producer.during(seconds)))
    bare_quiet, bare_busy = bare(settings, partitions, seconds)
    return [
        Comparison(
            f"one row, {level}, while topics of {partitions:,} partitions come, expire and go: p99",
            "us",
            busy[level],
            quiet[level],
            budget=round(1 / P99_TIMES_MAX, 4),
            bigger_is_better=False,
        )
        for level in LEVELS
    ] + [
        Comparison(
            f"bare loop of flushed rows while files of {partitions:,} partitions come and go: p99",
            "us",
            bare_busy,
            bare_quiet,
            budget=None,
            bigger_is_better=False,
        )
    ]


def bare(settings: Settings, partitions: int, seconds: float) -> tuple[list[float], list[float]]:
    """The p99 of each round of the bare loop: in quiet, and beside the bare process."""
    quiet: list[float] = []
    busy: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="quiverlog-churn-") as directory,
        open(f"{directory}/rows", "ab", buffering=0) as file,
    ):
        for _ in range(min(settings.rounds, ROUNDS_MAX)):
            quiet.append(p99(bare_rows(file, seconds / 2)))
            with file_churn(directory, partitions):
                busy.append(p99(bare_rows(file, seconds)))
    return quiet, busy


def churn(broker: BrokerProcess, partitions: int) -> AbstractContextManager[None]:
    """Run `benchmarks.churn` against the broker; it ends its cycle after the `with`."""
    return _beside("benchmarks.churn", broker.bootstrap, str(partitions))


def file_churn(directory: str, partitions: int) -> AbstractContextManager[None]:
    """Run the bare process in a directory."""
    return _beside("benchmarks.baselines.file_churn", directory, str(partitions))


@contextmanager
def _beside(module: str, *arguments: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "begun\n", "the churn has not begun"
        yield
        assert process.poll() is None, f"the churn ended early, status {process.returncode}"
    finally:
        process.stdin.close()
        try:
            status = process.wait(CHURN_ENDS_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        process.stdout.close()
    assert status == 0, f"the churn failed, status {status}"


class OneRow:
    """A producer that sends one row, waits for its acknowledgement, and rests for a moment."""

    def __init__(self, topic: Topic, load: Load) -> None:
        batch, rows = largest_batch(1, schema_id=topic.schema_id)
        assert rows == 1
        self._topic = topic
        self._load = load
        self._batch = bytes(batch)
        self._sent = 0

    def during(self, seconds: float) -> list[float]:
        """Microseconds of each produce in a span of `seconds`."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            time.sleep(PAUSE_SECONDS)
            self._sent += 1
            frame = produce_frame(self._topic, self._batch, self._sent)
            began = time.perf_counter()
            self._load.send(frame)
            reply = self._load.receive()
            times.append((time.perf_counter() - began) * 1e6)
            assert produced(reply).base_offset == self._sent - 1
        return times


def bare_rows(file: FileIO, seconds: float) -> list[float]:
    """Microseconds of each row that is appended and flushed, with the same rests between."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        time.sleep(PAUSE_SECONDS)
        began = time.perf_counter()
        file.write(bytes(ROW_BYTES))
        os.fdatasync(file.fileno())
        times.append((time.perf_counter() - began) * 1e6)
    return times


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]
