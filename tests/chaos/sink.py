"""The exactly-once sink of Spark under kills: `python -m tests.chaos --sink`.

Owns two things. `points`: a driver, or an executor, is killed at each point of a micro-batch, and
what else takes a driver of its own. `stateful`: queries with state over three brokers, while
drivers, executors, leaders of topics, coordinators and staging leaders are killed from a seed; then
their output is compared with that of a run without any fault, row for row.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import quiverlog
from quiverlog.core.controller.internal_topics import STAGED, TRANSACTIONS
from tests.spark.sink_driver import Plan, write_batch
from tests.support.broker import BrokerProcess
from tests.support.sink_points import Points
from tests.support.sink_runs import (
    BATCHES,
    DRIVER_POINTS,
    LOCAL_CLUSTER,
    ROWS_PER_BATCH,
    SCHEMA,
    Copy,
    Door,
    Driver,
    Watch,
    door_and_broker,
    end,
    finish,
    read_all,
)
from tests.support.spark import environment, new_session, unique
from tests.support.spark_cluster import running_cluster
from tests.support.until import until

from .brokers import Brokers
from .faults import look_at_metadata
from .nemesis import NODE_IDS

__all__ = ["STATEFUL", "points", "stateful"]

STATEFUL: Final = "stateful"
"""The case that `points` does not have."""

EXECUTOR_POINTS: Final = ("staged-some", "staged-all")
BROKERS_KILLED: Final = {"leader": 5, "coordinator": 5, "staging leader": 5}
KILLED: Final = {"driver": 2, "executor": 4} | BROKERS_KILLED
"""How often each, beside the others: a driver that is started again costs many seconds."""
PAUSE_S_MAX: Final = 4.0
STARTS_WITHIN_S: Final = 400.0
"""Of the first driver, on a machine with other work, up to a micro-batch."""
MOVES_WITHIN_S: Final = 30.0
ENDS_WITHIN_S: Final = 1_200.0
RUNS_MAX: Final = 6
FEED_EVERY_S: Final = 0.5
FEED_ROWS: Final = 10
NOON: Final = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
AT: Final = pa.timestamp("us", tz="UTC")
ORDERS: Final = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("at", AT)])
PAYMENTS: Final = pa.schema([("order_id", pa.int64()), ("paid_at", AT)])
SUMS: Final = pa.schema(
    [("at", AT), ("k", pa.int64()), ("orders", pa.int64()), ("total", pa.int64())]
)
PAIRS: Final = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("paid_at", AT)])

OnStep = Callable[[str], None]


# --- points ---------------------------------------------------------------------------------------
def points(on_step: OnStep, chosen: str = "", mode: str = "exactly_once") -> list[str]:
    """Run every case whose name has `chosen` in it. Returns what was wrong, by case.

    Args:
        mode: `at_least_once` has most of them fail, as it should.
    """
    cases: dict[str, Callable[[Case], None]] = {
        **{f"driver {point}": _driver_case(point) for point in DRIVER_POINTS},
        **{f"executor {point}": _executor_case(point) for point in EXECUTOR_POINTS},
        "speculation": _speculation,
        "zombie": _zombie,
        "two sinks": _two_sinks,
        **{f"batch {point}": _batch_case(point) for point in ("before-commit", "after-commit")},
    }
    problems = []
    place = Path(tempfile.mkdtemp(prefix="quiverlog-sink-"))
    spark = new_session()
    try:
        with door_and_broker() as (door, broker):
            for name, case in cases.items():
                if chosen not in name:
                    continue
                begin_s = time.monotonic()
                try:
                    case(Case(spark, door, broker, place / name.replace(" ", "-"), mode))
                    found = "right"
                except Exception as error:  # the other cases are still to be run
                    problems.append(f"{name}: {error!r}")
                    found = f"PROBLEM {error!r}"
                on_step(f"{name}: {found} ({time.monotonic() - begin_s:.0f} s)")
    finally:
        spark.stop()
        shutil.rmtree(place, ignore_errors=True)
    return problems


@dataclass
class Case:
    spark: Any
    door: Door
    broker: BrokerProcess
    place: Path
    mode: str

    def copy(self, **plan: Any) -> contextlib.AbstractContextManager[Copy]:
        plan["options"] = {"deliveryMode": self.mode, **plan.get("options", {})}
        return Copy.made(self.broker.bootstrap, self.place, **plan)


def _driver_case(point: str) -> Callable[[Case], None]:
    def case(at: Case) -> None:
        with at.copy() as copy:
            copy.hold(point, 1)
            with copy.driver() as driver:
                copy.kill_driver(driver, point, door=at.door)
            finish(at.spark, copy.plan)
            copy.check()

    return case


def _executor_case(point: str) -> Callable[[Case], None]:
    def case(at: Case) -> None:
        with at.copy(master=LOCAL_CLUSTER) as copy:
            copy.hold(point, 1)
            with copy.driver() as driver:
                copy.kill_executor(driver, point)
            copy.check()

    return case


def _zombie(at: Case) -> None:
    """A driver is paused before its commit, and goes on when another run has ended."""
    with at.copy() as copy:
        copy.points.hold("before-commit", 1)
        with copy.driver() as driver:
            driver.wait_for(copy.points, "before-commit", 1)
            driver.stop()
            finish(at.spark, copy.plan)
            driver.go_on()
            copy.points.release("before-commit", 1)
            assert driver.wait_for_end() != 0, "the query of the zombie did not fail"
            # The other run has later micro-batches by now.
            assert "SequenceTooOld" in driver.log_text, driver.log_text[-3000:]
        copy.check()


def _two_sinks(at: Case) -> None:
    """Each write of a `foreachBatch` is atomic; both together are not."""
    second = unique("second")
    with at.copy(kind="two", more=[second]) as copy:
        copy.client.create_topic(second, schema=SCHEMA, partitions=1)
        copy.points.hold("after-commit", 1)
        with copy.driver() as driver:
            driver.wait_for(copy.points, "after-commit", 1)
            driver.kill()
        copy.check_whole(2)
        assert len(copy.rows(second)) == ROWS_PER_BATCH, "the second write had not begun"
        finish(at.spark, copy.plan)
        copy.check()
        rows = sorted(copy.rows(second).values())
        assert rows == sorted(copy.rows().values()), "both sinks have all rows"


def _batch_case(point: str) -> Callable[[Case], None]:
    def case(at: Case) -> None:
        job = {"txnAppId": unique("job"), "txnVersion": "7"}
        with at.copy(kind="batch", options=job) as copy:
            copy.points.hold(point, -1)
            with copy.driver() as driver:
                driver.wait_for(copy.points, point, -1)
                driver.kill()
            copy.check_whole(BATCHES if point == "after-commit" else 0)
            for _ in range(2):
                write_batch(at.spark, copy.plan)
                copy.check()

    return case


def _speculation(at: Case) -> None:
    """Two attempts at a task have staged rows; the one that began later ends later."""
    speculative = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.5",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
    }
    at.place.mkdir(parents=True)
    with (
        running_cluster(at.place, hosts=("127.0.0.1", "127.0.0.2")) as master,
        at.copy(master=master) as copy,
    ):
        held = copy.points
        # Workers that run already have none of the driver's environment.
        given = {f"spark.executorEnv.{name}": text for name, text in held.environment.items()}
        held.hold("staged-some", 1)
        held.hold("staged-some", 1, attempt=1)
        with copy.driver(conf=speculative | given) as driver:
            driver.wait_for(held, "staged-some", 1)
            driver.wait_for(held, "staged-some", 1, attempt=1)
            held.release("staged-some", 1)
            until(lambda: copy.has_logged(1), "the first attempt counts", timeout_s=240)
            held.release("staged-some", 1, attempt=1)
            driver.wait()
        copy.check()


# --- queries with state ---------------------------------------------------------------------------
@dataclass
class Found:
    """What a long run did, and what was wrong."""

    seed: int
    killed: Counter[str] = field(default_factory=Counter)
    micro_batches: int = 0
    failed: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.killed.items()))
        rows = ", ".join(f"{count} {kind}" for kind, count in self.rows.items())
        lines = [
            f"seed {self.seed}: {self.killed.total()} kills ({kills}) in {self.micro_batches}"
            f" micro-batches; {self.failed} queries started again that had failed; rows: {rows}"
        ]
        lines += [f"PROBLEM {problem}" for problem in self.problems]
        if not self.problems:
            lines.append("the output equals a clean run's, row for row")
        return "\n".join(lines)


async def stateful(seed: int, duration_s: float, on_step: OnStep) -> Found:
    """Kill for a time, let the queries end, and compare."""
    place = Path(tempfile.mkdtemp(prefix="quiverlog-sink-"))
    try:
        async with Brokers(config={"leader.balance.period.ms": 5_000}) as brokers:
            long = _Long(seed, brokers, place, on_step)
            await long.run(duration_s)
            brokers.look()
            await brokers.stop_all()
            brokers.look_at_logs()
            long.found.problems += brokers.problems
            return long.found
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Long:
    def __init__(self, seed: int, brokers: Brokers, place: Path, on_step: OnStep) -> None:
        self.found = Found(seed)
        self._rng = random.Random(seed)
        self._brokers = brokers
        self._place = place
        self._on_step = on_step
        self._points = Points(place / "points")
        self._runs = 0
        self._plan = self._planned("run", is_endless=True)

    def _planned(self, name: str, *, is_endless: bool) -> Plan:
        return Plan(
            self._brokers.bootstrap,
            "orders",
            f"sums-{name}",
            str(self._place / f"checkpoint-{name}"),
            kind="state",
            more=["payments", f"pairs-{name}"],
            is_endless=is_endless,
            master=LOCAL_CLUSTER,
            rows_per_batch=400 if is_endless else 100_000,
            conf={
                "spark.sql.shuffle.partitions": "2",
                "spark.executor.extraJavaOptions": environment()["SPARK_SUBMIT_OPTS"],
            },
        )

    async def run(self, duration_s: float) -> None:
        clean = self._planned("clean", is_endless=False)
        with quiverlog.connect(self._brokers.bootstrap, client_id="client-feed") as client:
            await asyncio.to_thread(self._create, client, (self._plan, clean))
            sinks = (self._plan.sink, self._plan.more[1])
            with contextlib.ExitStack() as stack:
                watches = [
                    stack.enter_context(Watch(self._brokers.bootstrap, sink)) for sink in sinks
                ]
                with _feeding(client):
                    await self._kill_for(duration_s)
                await asyncio.to_thread(_close_windows, client)
                self._on_step("no more kills; the queries run to their end")
                last = replace(self._plan, is_endless=False, rows_per_batch=clean.rows_per_batch)
                await asyncio.to_thread(self._run_to_end, last)
                self._on_step("the clean run")
                await asyncio.to_thread(self._run_to_end, clean)
                await asyncio.to_thread(self._compare, client, clean, watches)

    @staticmethod
    def _create(client: Any, plans: tuple[Plan, ...]) -> None:
        schemas = {"orders": ORDERS, "payments": PAYMENTS}
        for plan in plans:
            schemas |= {plan.sink: SUMS, plan.more[1]: PAIRS}
        for name, schema in schemas.items():
            client.create_topic(name, schema, partitions=2, replication_factor=3)

    def _driver(self, plan: Plan) -> Driver:
        self._runs += 1
        return Driver(plan, self._points, self._place / f"driver-{self._runs}.log")

    # --- kills ---------------------------------------------------------------------------------
    async def _kill_for(self, duration_s: float) -> None:
        driver = await asyncio.to_thread(self._driver, self._plan)
        try:
            await self._moves(driver, 0, STARTS_WITHIN_S)
            end_s = time.monotonic() + duration_s
            disturbed_at = 0
            while time.monotonic() < end_s:
                await asyncio.sleep(self._rng.uniform(0, PAUSE_S_MAX))
                commits = self._commits()
                if driver.has_ended:
                    # A query may give up what no broker answers for long; its rows may not.
                    self._on_step(f"failed, and started again: {driver.log_text[-1500:]}")
                    self.found.failed += 1
                    driver = await self._next_driver(driver)
                    continue
                # A driver that has not begun to write, or waits for executors, is left alone.
                targets = KILLED if commits > disturbed_at else BROKERS_KILLED
                (target,) = self._rng.choices([*targets], [*targets.values()])
                if target == "driver":
                    driver = await self._next_driver(driver)
                elif target == "executor":
                    found = await asyncio.to_thread(driver.executors)
                    if not found:
                        continue
                    end(self._rng.choice(found))
                else:
                    await self._kill_broker(target)
                if target not in BROKERS_KILLED:
                    disturbed_at = self._commits()
                self.found.killed[target] += 1
                self._on_step(f"killed: {target} ({self._commits()} micro-batches)")
                await self._moves(driver, commits, MOVES_WITHIN_S)
            self.found.micro_batches = self._commits()
        finally:
            await asyncio.to_thread(driver.kill)

    async def _next_driver(self, driver: Driver) -> Driver:
        await asyncio.to_thread(driver.kill)
        return await asyncio.to_thread(self._driver, self._plan)

    async def _kill_broker(self, target: str) -> None:
        topics = {
            "leader": [self._plan.sink, self._plan.more[1]],
            "coordinator": [TRANSACTIONS],
            "staging leader": [STAGED],
        }[target]
        metadata = await look_at_metadata(self._brokers)
        leaders = [
            partition.leader
            for name in topics
            if metadata is not None and name in metadata.topics
            for partition in metadata.topics[name].partitions
            if partition.leader in NODE_IDS
        ]
        node_id = self._rng.choice(leaders or list(NODE_IDS))
        await self._brokers.kill(node_id)
        await asyncio.sleep(self._rng.uniform(0, PAUSE_S_MAX))
        await self._brokers.start(node_id)

    def _commits(self) -> int:
        """Of both queries. Spark keeps the last hundred files or so."""
        last: dict[Path, int] = {}
        for path in self._place.glob("checkpoint-run-*/commits/[0-9]*"):
            last[path.parent] = max(last.get(path.parent, 0), int(path.name))
        return sum(number + 1 for number in last.values())

    async def _moves(self, driver: Driver, commits: int, within_s: float) -> None:
        """Wait for a micro-batch behind the last kill, or for a while."""
        deadline_s = time.monotonic() + within_s
        while self._commits() <= commits and time.monotonic() < deadline_s:
            if driver.has_ended:
                return
            await asyncio.sleep(0.1)

    # --- the end -------------------------------------------------------------------------------
    def _run_to_end(self, plan: Plan) -> None:
        """Start the queries again if they fail: Spark gives Python ten seconds to begin."""
        for left in reversed(range(RUNS_MAX)):
            driver = self._driver(plan)
            try:
                if driver.wait_for_end(ENDS_WITHIN_S) == 0:
                    return
                assert left, driver.log_text[-3000:]
                self._on_step(f"failed, and started again: {driver.log_text[-500:]}")
            finally:
                driver.kill()

    def _compare(self, client: Any, clean: Plan, watches: list[Watch]) -> None:
        sinks = (self._plan.sink, self._plan.more[1]), (clean.sink, clean.more[1])
        for sink, wanted_in, watch in zip(*sinks, watches, strict=True):
            rows = read_all(client, sink)
            got, wanted = Counter(rows.values()), Counter(read_all(client, wanted_in).values())
            self.found.rows[sink] = got.total()
            if not wanted or got != wanted:
                more, fewer = ([*rest.items()][:3] for rest in (got - wanted, wanted - got))
                self.found.problems.append(
                    f"{sink}: {got.total()} rows, a clean run has {wanted.total()};"
                    f" more: {more}, fewer: {fewer}"
                )
            watch.wait_for(len(rows))
            if watch.rows != rows:
                self.found.problems.append(f"{sink}: a reader has seen other rows than are there")


# --- what is fed ----------------------------------------------------------------------------------
@contextlib.contextmanager
def _feeding(client: Any) -> Iterator[None]:
    stop = threading.Event()

    def feed() -> None:
        first = 0
        while not stop.wait(FEED_EVERY_S):
            _send(client, range(first, first + FEED_ROWS))
            first += FEED_ROWS

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _send(client: Any, ids: range) -> None:
    """Orders, one a second, and a payment for every third of them."""
    at = [NOON + datetime.timedelta(seconds=n) for n in ids]
    orders = pa.table([[*ids], [n % 7 for n in ids], at], schema=ORDERS)
    paid = [n for n in ids if n % 3 == 0]
    late = [NOON + datetime.timedelta(seconds=n + n % 50) for n in paid]
    for topic, rows in (("orders", orders), ("payments", pa.table([paid, late], schema=PAYMENTS))):
        with client.producer(topic, delivery_timeout=300) as producer:
            half = rows.num_rows // 2
            for partition, part in enumerate((rows.slice(0, half), rows.slice(half))):
                producer.send(part, partition=partition)


def _close_windows(client: Any) -> None:
    """In each partition one row that moves the watermark behind all others."""
    for n in range(2):
        _send(client, range(10**6 + n * 10**6, 10**6 + n * 10**6 + 6))
