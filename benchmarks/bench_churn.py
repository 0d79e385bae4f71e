"""One-row produces while the broker's disk is busy with the files of other topics.

A producer sends a row to its topic every few milliseconds, first in quiet, then while another
process creates topics of 2,000 partitions, fills them with rows that retention takes at once, and
deletes them. Quiet and busy rounds take turns. The bound: what the broker does for other topics
may not make the p99 of such a produce more than three times what it is in quiet.

The budget is for durability `flushed`, the default. `memory` is shown beside it: there the bare
figure is so small that the two processors' own scheduling shows.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
    return [
        Comparison(
            f"one row, {level}, while topics of {partitions:,} partitions come, expire and go: p99",
            "us",
            busy[level],
            quiet[level],
            budget=round(1 / P99_TIMES_MAX, 4) if level == "flushed" else None,
            bigger_is_better=False,
        )
        for level in LEVELS
    ]


@contextmanager
def churn(broker: BrokerProcess, partitions: int) -> Iterator[None]:
    """Run `benchmarks.churn` against the broker; it ends its cycle after the `with`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.churn", broker.bootstrap, str(partitions)],
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
        """Microseconds of each produce in a span of so many seconds."""
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


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]
