"""The driver is killed (SIGKILL) at three points of a micro-batch and started again.

The start is `latest`, the one that an unlucky restart would move; rows are produced all the time,
also while no driver lives. Every row from the durable start on must come out exactly once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.spark.conftest import TRADES, produce, read_stream
from tests.spark.crash_driver import write_rows
from tests.support.spark import environment, unique
from tests.support.until import until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.first]
ROOT = Path(__file__).resolve().parents[2]


class Feed:
    """Appends ten rows at a time until it is stopped; ids count up without gaps."""

    def __init__(self, client: Any, topic: str) -> None:
        self.next_id = 0
        self._client, self._topic = client, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            produce(self._client, self._topic, self.next_id, 10)
            self.next_id += 10

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


Point = tuple[int, str]
"""The micro-batch, and where in it."""
POINT: Point = (1, "before-commit")
OTHERS: list[Point] = [(0, "before-write"), (1, "after-commit")]


class Driver(NamedTuple):
    """A driver that is about to kill itself, its topic and what it writes."""

    process: subprocess.Popen[str]
    topic: str
    checkpoint: Path
    rows: Path


@contextlib.contextmanager
def running_drivers(
    points: list[Point], broker: Any, client: Any, place: Path
) -> Iterator[list[Driver]]:
    """One for each point, all of them at once: starting a JVM is mostly waiting."""
    started: list[Driver] = []
    try:
        for batch, point in points:
            name = unique("crash")
            client.create_topic(name, schema=TRADES, partitions=1)
            checkpoint, rows = place / point / "checkpoint", place / point / "rows"
            arguments = (broker.bootstrap, name, str(checkpoint), str(rows), str(batch), point)
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.crash_driver", *arguments],
                cwd=ROOT,
                env=environment(),
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(Driver(process, name, checkpoint, rows))
        yield started
    finally:
        for driver in started:
            if driver.process.poll() is None:
                os.killpg(driver.process.pid, signal.SIGKILL)
            driver.process.communicate()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("points", [[POINT], pytest.param(OTHERS, marks=pytest.mark.long)], ids=str)
def test_no_row_is_lost_or_doubled(
    spark: Any,
    broker: Any,
    client: Any,
    tmp_path: Path,
    points: list[Point],
    subtests: pytest.Subtests,
) -> None:
    with running_drivers(points, broker, client, tmp_path) as drivers:
        for (batch, point), driver in zip(points, drivers, strict=True):
            with subtests.test(batch=batch, point=point):
                check_restart(spark, broker, client, driver, batch, point)


def check_restart(
    spark: Any, broker: Any, client: Any, driver: Driver, batch: int, point: str
) -> None:
    process, name, checkpoint, rows = driver
    with Feed(client, name) as feed:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == -signal.SIGKILL, errors[-2000:]
        assert (checkpoint / "offsets" / str(batch)).exists()
        is_committed = (checkpoint / "commits" / str(batch)).exists()
        assert is_committed is (point == "after-commit")
        fed = feed.next_id
        until(lambda: feed.next_id >= fed + 30)  # rows that come while no driver lives
    query = (
        read_stream(spark, broker, name, startingOffsets="latest")
        .writeStream.foreachBatch(lambda frame, batch_id: write_rows(frame, batch_id, rows))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    found = sorted(row.id for row in spark.read.parquet(str(rows)).select("id").collect())
    logged = (checkpoint / "offsets" / "0").read_text().splitlines()[2]
    start = json.loads(logged)["_first"][name]["partitions"]["0"][0]
    assert found == list(range(start, feed.next_id))
