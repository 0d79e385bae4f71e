"""One topic that a query copies into another, whatever dies; and what readers of the copy must see.

Owns the topics, the drivers in processes of their own, their deaths, a reader beside them, and the
comparison with the source. `Door` is the way from drivers to the broker: it swallows answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa

import quiverlog
from quiverlog.core.controller.internal_topics import STAGED
from quiverlog.errors import QuiverlogError
from tests.chaos.proxy import Direction, LinkFault, Proxy
from tests.spark.sink_driver import Plan, start
from tests.support.broker import BrokerProcess
from tests.support.ports import free_port
from tests.support.sink_points import Points, Reached
from tests.support.spark import environment, unique
from tests.support.until import until

__all__ = [
    *("BATCHES", "DRIVER_POINTS", "LOCAL_CLUSTER", "ROWS_PER_BATCH"),
    *("Copy", "Door", "Driver", "Watch", "door_and_broker", "end", "finish", "read_all"),
]

LOCAL_CLUSTER: Final = "local-cluster[2,1,1024]"
"""Two executors of one core, each a process."""
SCHEMA: Final = pa.schema([("id", pa.int64()), ("twice", pa.int64())])
PARTITIONS: Final = 2
ROWS_PER_BATCH: Final = 200
BATCHES: Final = 4
DRIVER_POINTS: Final = {
    "before-open": 0,
    "staged-some": 0,
    "staged-all": 0,
    "before-commit": 0,
    "commit-unanswered": 1,
    "after-commit": 1,
    "after-commit-log": 1,
}
"""Of a micro-batch -> is it in the sink then? `after-commit`: before Spark's log."""
STARTS_S: Final = 240.0
"""Of a driver beside others, up to a point of its first micro-batches."""

Row = tuple[Any, ...]
Place = tuple[int, int]
"""Partition and offset."""


# --- the way to the broker ------------------------------------------------------------------------
class Door:
    """A proxy in front of one broker, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._proxy = Proxy()

    def open(self, target: tuple[str, int]) -> str:
        self._thread.start()
        front: str = asyncio.run_coroutine_threadsafe(
            self._proxy.open_front(1), self._loop
        ).result()
        self._proxy.set_target(1, target)
        return front

    def swallow_answers(self, name: str) -> None:
        """Of the clients of this name: what they ask passes, and nothing comes back."""
        self._set(name, LinkFault(held=frozenset((Direction.BACK,))))

    def cut(self, name: str) -> None:
        """What was swallowed is lost, and connections may be made again."""
        self._set(name, LinkFault(is_cut=True))
        self._set(name, LinkFault())

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _set(self, name: str, fault: LinkFault) -> None:
        done = threading.Event()

        def change() -> None:
            self._proxy.set_fault(name, 1, fault)
            done.set()

        self._loop.call_soon_threadsafe(change)
        assert done.wait(10)


@contextlib.contextmanager
def door_and_broker() -> Iterator[tuple[Door, BrokerProcess]]:
    """A broker that clients reach through the door alone."""
    door, port = Door(), free_port()
    front = door.open(("127.0.0.1", port))
    try:
        with BrokerProcess(config={"advertise": front}, listen=f"127.0.0.1:{port}") as broker:
            yield door, broker
    finally:
        door.close()


# --- drivers --------------------------------------------------------------------------------------
class Driver:
    """A driver in a process of its own, with all that it starts in one session of processes."""

    def __init__(self, plan: Plan, points: Points, log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.sink_driver", json.dumps(asdict(plan))],
                cwd=log.parent,
                env=environment() | points.environment,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, points: Points, point: str, batch: int, attempt: int = 0) -> Reached:
        """Return the process that is held there; fails if the driver ends before."""

        def look() -> Reached | None:
            assert self._process.poll() is None, self.log_text[-4000:]
            return points.reached(point, batch, attempt)

        found = until(look, f"{point} of micro-batch {batch}", timeout_s=STARTS_S)
        assert found is not None
        return found

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_for_end(self, timeout_s: float = STARTS_S) -> int:
        return self._process.wait(timeout_s)

    def wait(self, timeout_s: float = STARTS_S) -> None:
        """Wait for the end of the query; fails if it failed."""
        assert self.wait_for_end(timeout_s) == 0, self.log_text[-4000:]

    def executors(self) -> list[int]:
        """Processes of executors, of a driver with a local cluster."""
        found = []
        for pid in self._pids():
            with contextlib.suppress(OSError):
                if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def stop(self) -> None:
        """SIGSTOP for all of it: it looks dead, and may come back."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL for the program, its JVM, its executors and their workers."""
        until(lambda: not self._signal(signal.SIGKILL))
        self._process.wait()

    def _signal(self, number: int) -> int:
        found = self._pids()
        for pid in found:
            end(pid, number)
        return len(found)

    def _pids(self) -> list[int]:
        """Of all processes of its session that have not ended."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session, *_ = path.read_text().rpartition(")")[2].split()
                if int(session) == self._process.pid and state != "Z":
                    found.append(int(path.parent.name))
        return found


def end(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# --- a reader beside it ---------------------------------------------------------------------------
class Watch:
    """Follows a topic, and keeps each row with its place."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.rows: dict[Place, Row] = {}
        self._bootstrap, self._topic = bootstrap, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for(self, rows: int) -> None:
        """Wait until it has seen as many, for a minute at most."""
        with contextlib.suppress(AssertionError):
            until(lambda: len(self.rows) >= rows)

    def _run(self) -> None:
        with quiverlog.connect(self._bootstrap, client_id="client-watch") as client:
            while not self._stop.is_set():
                with contextlib.suppress(QuiverlogError):  # brokers may be killed: it goes on
                    self._follow(client)

    def _follow(self, client: Any) -> None:
        start: dict[int, int] = {}
        for partition, offset in self.rows:
            start[partition] = max(start.get(partition, 0), offset + 1)
        with client.consumer(self._topic, start=start or "earliest", follow=True) as consumer:
            while not self._stop.is_set():
                batch = consumer.poll(0.2)
                if batch is not None:
                    self.rows |= _placed(batch)


def read_all(client: Any, topic: str) -> dict[Place, Row]:
    """The rows of a topic, with their places."""
    found: dict[Place, Row] = {}
    for batch in client.consumer(topic, start="earliest"):
        found |= _placed(batch)
    return found


def _placed(batch: Any) -> dict[Place, Row]:
    rows = zip(*(column.to_pylist() for column in batch.data.columns), strict=True)
    return {(batch.partition, batch.base_offset + n): row for n, row in enumerate(rows)}


# --- a copy ---------------------------------------------------------------------------------------
@dataclass
class Copy:
    """A query from `plan.source` to `plan.sink`, over all of its runs."""

    client: Any
    plan: Plan
    place: Path
    points: Points
    watch: Watch

    @classmethod
    @contextlib.contextmanager
    def made(cls, bootstrap: str, place: Path, **plan: Any) -> Iterator[Copy]:
        """Topics with rows for some micro-batches, and a reader of the sink."""
        source, sink = unique("source"), unique("sink")
        with quiverlog.connect(bootstrap, client_id="client-test") as client:
            for name in (source, sink):
                client.create_topic(name, schema=SCHEMA, partitions=PARTITIONS)
            produce(client, source, 0, BATCHES * ROWS_PER_BATCH)
            place.mkdir(parents=True, exist_ok=True)
            checkpoint = str(place / "checkpoint")
            made = Plan(bootstrap, source, sink, checkpoint, rows_per_batch=ROWS_PER_BATCH, **plan)
            with Watch(bootstrap, sink) as watch:
                yield cls(client, made, place, Points(place / "points", PARTITIONS), watch)

    @contextlib.contextmanager
    def driver(self, **plan: Any) -> Iterator[Driver]:
        """Killed at the end, whatever has become of it."""
        driver = Driver(replace(self.plan, **plan), self.points, self.place / "driver.log")
        try:
            yield driver
        finally:
            driver.kill()

    def rows(self, topic: str = "") -> dict[Place, Row]:
        """All of the sink."""
        return read_all(self.client, topic or self.plan.sink)

    def has_logged(self, batch: int) -> bool:
        """Spark's own record that the micro-batch has committed."""
        return (Path(self.plan.checkpoint) / "commits" / str(batch)).exists()

    def arrived(self) -> int:
        """Grows with each batch of rows that drivers have brought to the broker."""
        ends: dict[int, int] = {}
        with contextlib.suppress(QuiverlogError):  # nothing was ever staged
            ends = self.client.list_offsets(STAGED, "latest")
        return sum(ends.values()) + len(self.rows())

    def bring(self, driver: Driver, point: str, batch: int, door: Door | None = None) -> Reached:
        """Have a driver come to a point of `DRIVER_POINTS`, which it does not leave."""
        points = self.points
        if point == "commit-unanswered":
            assert door is not None
            found = driver.wait_for(points, "before-commit", batch)
            door.swallow_answers(self.plan.client_id)
            points.release("before-commit", batch)
            wanted = (batch + 1) * ROWS_PER_BATCH
            until(lambda: len(self.rows()) >= wanted, "the commit takes effect")
            assert not self.has_logged(batch)
        elif point == "after-commit-log":
            found = driver.wait_for(points, "before-open", batch + 1)
            assert self.has_logged(batch)
        elif point == "staged-some":
            driver.wait_for(points, "before-open", batch)
            arrived = self.arrived()
            points.release("before-open", batch)
            found = driver.wait_for(points, point, batch)
            until(lambda: self.arrived() > arrived, "rows of the micro-batch are at the broker")
        else:
            found = driver.wait_for(points, point, batch)
        return found

    def hold(self, point: str, batch: int) -> None:
        """To be called before the driver is started that `bring` waits for."""
        first = {
            "commit-unanswered": ("before-commit", batch),
            "after-commit-log": ("before-open", batch + 1),
        }.get(point, (point, batch))
        self.points.hold(*first)
        if point == "staged-some":
            self.points.hold("before-open", batch)

    def kill_driver(
        self, driver: Driver, point: str, batch: int = 1, door: Door | None = None
    ) -> None:
        """Have it come to the point, which was held, kill it there, and look at the sink."""
        self.bring(driver, point, batch, door)
        driver.kill()
        if door is not None:
            door.cut(self.plan.client_id)
        self.check_whole(batch + DRIVER_POINTS[point])

    def kill_executor(self, driver: Driver, point: str, batch: int = 1) -> None:
        """The same with the executor that comes there; the query goes on to its end."""
        found = self.bring(driver, point, batch)
        end(found.jvm)
        end(found.worker)
        driver.wait()

    def check_whole(self, batches: int) -> None:
        """The first micro-batches are in the sink, each whole and once, and nothing of others."""
        rows = sorted(self.rows().values())
        assert len(rows) == batches * ROWS_PER_BATCH, _differences(rows)
        assert len({*rows}) == len(rows), _differences(rows)

    def check(self) -> None:
        """The sink holds the source, row for row, and the reader has seen nothing else."""
        rows = self.rows()
        wanted = sorted(expected(0, BATCHES * ROWS_PER_BATCH))
        assert sorted(rows.values()) == wanted, _differences(rows.values())
        self.watch.wait_for(len(rows))
        assert self.watch.rows == rows, "the reader has seen rows that are gone, or others there"


def finish(spark: Any, plan: Plan) -> None:
    """Run the query to its end in this process."""
    for query in start(spark, plan):
        try:
            assert query.awaitTermination(STARTS_S)
        finally:
            query.stop()


def produce(client: Any, topic: str, first: int, count: int) -> None:
    """Half of the rows to each partition, so that each micro-batch takes as many of each."""
    rows = expected(first, count)
    with client.producer(topic) as producer:
        for partition in range(PARTITIONS):
            ids, twice = zip(*rows[partition::PARTITIONS], strict=True)
            producer.send(pa.table([ids, twice], schema=SCHEMA), partition=partition)


def expected(first: int, count: int) -> list[Row]:
    return [(n, 2 * n) for n in range(first, first + count)]


def _differences(rows: Any) -> str:
    counts = Counter(rows)
    wanted = {*expected(0, BATCHES * ROWS_PER_BATCH)}
    twice = sorted(row for row, count in counts.items() if count > 1)
    return (
        f"{counts.total()} rows; {len(twice)} more than once, from {twice[:1]};"
        f" {len(wanted - {*counts})} missing; {len({*counts} - wanted)} of no row of the source"
    )
