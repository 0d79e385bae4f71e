"""The exactly-once sink: drivers and executors are killed at points of a micro-batch.

One point of each kind, and what only a second process can do; `python -m tests.chaos --sink` takes
all of them. What one session shows is in test_transactional_sink.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import produce, read_stream, stored_ids
from tests.support.broker import BrokerProcess
from tests.support.sink_runs import LOCAL_CLUSTER, Copy, Door, Driver, door_and_broker, finish
from tests.support.spark import run_once
from tests.support.until import until

pytestmark = [pytest.mark.spark, pytest.mark.process]
TEST_S = 600
"""A minute on a machine of one's own."""


@pytest.fixture(scope="module")
def way() -> Iterator[tuple[Door, BrokerProcess]]:
    with door_and_broker() as found:
        yield found


Points = dict[str, str]
"""Of a micro-batch -> what is killed there."""
POINTS: Points = {"before-commit": "driver", "staged-some": "executor"}
OTHERS: Points = {"commit-unanswered": "driver"}


@contextlib.contextmanager
def running_drivers(
    points: Points, broker: BrokerProcess, place: Path
) -> Iterator[dict[str, tuple[Copy, Driver]]]:
    """One for each point, all of them at once: starting a JVM is mostly waiting."""
    with contextlib.ExitStack() as stack:
        found = {}
        for point, kind in points.items():
            made = Copy.made(broker.bootstrap, place / point)
            copy = stack.enter_context(made)
            copy.hold(point, 1)
            master = LOCAL_CLUSTER if kind == "executor" else copy.plan.master
            found[point] = copy, stack.enter_context(copy.driver(master=master))
        yield found


@pytest.mark.first
@pytest.mark.timeout(TEST_S)
@pytest.mark.parametrize(
    "points", [POINTS, pytest.param(OTHERS, marks=pytest.mark.long)], ids="-".join
)
def test_whatever_is_killed_each_row_is_there_once(
    spark: Any,
    way: tuple[Door, BrokerProcess],
    tmp_path: Path,
    points: Points,
    subtests: pytest.Subtests,
) -> None:
    """Of a driver's micro-batch nothing is there, or all; started again it writes it, or skips it.
    Of an executor that dies half way nothing counts."""
    door, broker = way
    with running_drivers(points, broker, tmp_path) as drivers:
        for point, (copy, driver) in drivers.items():
            with subtests.test(point=point):
                if points[point] == "executor":
                    copy.kill_executor(driver, point)
                else:
                    copy.kill_driver(driver, point, door=door)
                    finish(spark, copy.plan)
                copy.check()


def waiting_after_rows(place: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What lets rows pass, and then waits as long as there is a file `wait`."""
    directory = str(place)

    def pass_and_wait(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path as P

        for rows in batches:
            yield rows
            P(directory, "passed").touch()
            while P(directory, "wait").exists():
                time.sleep(0.01)

    return pass_and_wait


@pytest.mark.timeout(TEST_S)
def test_a_query_that_is_stopped_in_a_micro_batch_writes_it_in_its_next_run(
    spark: Any, broker: Any, client: Any, topic: Any, tmp_path: Path
) -> None:
    source, sink = topic(), topic()
    options = {"bootstrap.servers": broker.bootstrap, "topic": sink}
    options["checkpointLocation"] = str(tmp_path / "checkpoint")
    stream = read_stream(spark, broker, source)
    rows = stream.mapInArrow(waiting_after_rows(tmp_path), stream.schema)
    produce(client, source, 0, 100)
    (tmp_path / "wait").touch()
    query = rows.writeStream.format("quiverlog").options(**options).start()
    try:
        until((tmp_path / "passed").exists, timeout_s=240)
    finally:
        query.stop()
    (tmp_path / "wait").unlink()
    assert stored_ids(client, sink) == []
    run_once(rows, fmt="quiverlog", timeout=240, **options)
    assert stored_ids(client, sink) == list(range(100))
