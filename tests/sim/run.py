"""One simulated run: make the world of a seed, let it live and die, look whether all is well.

Owns the course of a run: topics first, then work under faults, then calm (no more faults, a broker
that starts and stays up) in which every producer finishes and every row is read once more.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from quiverlog.batch.schema import serialize_schema
from quiverlog.types import EARLIEST, LATEST
from quiverlog.wire import messages as m

from .actors import SCHEMA, Actor, Key, Producer, Reader, Trimmer
from .checker import Checker, Violation
from .follower import Follower
from .scenario import Scenario
from .world import World

__all__ = ["RunResult", "simulate"]

_REBUILT = (".index", "leader-epochs", ".snapshot", "recovery-point")
_CALM_US = 120_000_000
_MINUTE_US = 60_000_000


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run amounted to, so that a run in which nothing happened is noticed."""

    seed: int
    rows_acknowledged: int
    rows_seen: int
    lives: int
    power_losses: int
    errors: dict[int, int]
    faults: dict[str, int]
    simulated_s: float
    trace: str
    """Equal traces: every frame and every line of the broker's log was the same."""


class _Admin(Actor):
    """Creates the topics, and later asks where logs begin and end."""

    def __init__(self, world: World, checker: Checker, plans: list) -> None:  # type: ignore[type-arg]
        self.plans = plans
        self.keys: list[Key] = []
        self.answers: list[m.Response] = []
        self.bodies: list[bytes] = []
        super().__init__(world, checker, "admin")

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        self.answers.append(response)
        self.bodies.append(body)

    def call(self, request: m.Request) -> tuple[m.Response, bytes]:
        """Ask, and let the world run until the answer is there (again after a lost connection)."""
        for _ in range(200):
            self.world.run(5_000_000, until=lambda: self.connection >= 0)
            self.answers.clear()
            self.bodies.clear()
            self.ask(request)
            connection = self.connection
            wanted = type(request).API

            def settled(lost: int = connection, api: int = wanted) -> bool:
                return self.connection != lost or any(a.api == api for a in self.answers)

            self.world.run(5_000_000, until=settled)
            for response, body in zip(self.answers, self.bodies, strict=True):
                if response.api == wanted:
                    return response, body
        raise Violation(f"{type(request).__name__} was never answered")

    def create(self) -> None:
        """Create all topics; a lost answer makes the repetition say that the topic exists."""
        schema = serialize_schema(SCHEMA)
        for plan in self.plans:
            new = m.NewTopic(plan.name, schema, plan.partitions, 1, [], dict(plan.configs))
            response, _ = self.call(m.CreateTopicsRequest(topics=[new]))
            assert isinstance(response, m.CreateTopicsResponse)
        response, _ = self.call(m.MetadataRequest(topics=[plan.name for plan in self.plans]))
        assert isinstance(response, m.MetadataResponse)
        for plan, topic in zip(self.plans, response.topics, strict=True):
            if topic.error_code:
                raise Violation(f"{plan.name} was created and is not there: {topic.error_code}")
            for partition in range(plan.partitions):
                self.keys.append((topic.topic_id, partition))
                self.checker.add(topic.topic_id, partition, plan)

    def offset(self, key: Key, at: int) -> int:
        """Where a log begins or ends."""
        for _ in range(100):
            request = m.ListOffsetsRequest(partitions=[m.ListOffsetsPartition(*key, at=at)])
            response, _ = self.call(request)
            assert isinstance(response, m.ListOffsetsResponse)
            if not response.error_code and not response.partitions[0].error_code:
                return response.partitions[0].offset
        raise Violation("offsets were never listed")


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"run-{scenario.seed}")
        self.world = World(scenario)
        self.checker = Checker()
        self.power_losses = 0
        self.producers: list[Producer] = []

    def run(self) -> RunResult:
        world, scenario, checker = self.world, self.scenario, self.checker
        world.start()
        admin = _Admin(world, checker, list(scenario.topics))
        world.calm = True
        admin.create()
        world.calm = False
        world.on_died.append(self._on_died)
        keys = admin.keys
        self.producers = [
            Producer(world, checker, number, keys[number % len(keys)])
            for number in range(scenario.producers)
        ]
        for number in range(scenario.readers):
            Reader(world, checker, number, keys)
        for number in range(scenario.trimmers):
            Trimmer(world, checker, number, keys)
        for number in range(scenario.followers):
            Follower(world, checker, number, keys)
        self._schedule_death()
        self._schedule_full_disk()
        world.run(scenario.duration_ms * 1000)
        self._finish(admin, keys)
        return RunResult(
            scenario.seed,
            checker.rows_acknowledged,
            checker.rows_seen,
            world.life,
            self.power_losses,
            checker.errors_seen,
            dict(world.faults),
            world.mono_us / 1e6,
            world.trace.hexdigest(),
        )

    # --- faults --------------------------------------------------------------------------------
    def _schedule_death(self) -> None:
        mean_us = self.scenario.death_interval_ms * 1000

        def die() -> None:
            if self.world.calm:
                return
            if self.world.node is not None:
                self.rng.choice((self.world.power_loss, self.world.kill, self.world.stop))()
            self._schedule_death()

        self.world.at(int(self.rng.expovariate(1 / mean_us)) + 1, die)

    def _on_died(self, clean: bool) -> None:
        disk = self.world.disk
        if not clean:
            self.checker.process_died()
        if disk.lost_power:
            self.power_losses += 1
            self.checker.machine_died()
            if not self.world.calm and self.rng.random() < self.scenario.bit_flip:
                self._flip_bit()

    def _flip_bit(self) -> None:
        """Damage a bit that was durable.

        In a segment the checker then expects errors, but no wrong row; all else must be rebuilt and
        nobody notice.
        """
        kind = ".log" if self.rng.random() < 0.4 else self.rng.choice((*_REBUILT, ".snapshot"))
        path = self.world.disk.flip_somewhere(self.rng, kind)
        if path is None:
            return
        self.world.faults[f"bit flip in {kind}"] += 1
        name = path.split("/")[-2]
        for (_, partition), model in self.checker.partitions.items():
            if kind == ".log" and name == f"{model.plan.name}-{partition}":
                model.damaged = True

    def _schedule_full_disk(self) -> None:
        mean_us = self.scenario.full_disk_interval_ms * 1000
        if not mean_us:
            return

        def fill() -> None:
            if self.world.calm:
                return
            self.world.disk.set_full(True)
            self.world.faults["full disk"] += 1
            self.world.at(self.rng.randrange(10_000, 1_000_000), self._empty_disk)
            self._schedule_full_disk()

        self.world.at(int(self.rng.expovariate(1 / mean_us)) + 1, fill)

    def _empty_disk(self) -> None:
        self.world.disk.set_full(False)
        self.world.disk_space(1 << 40)

    # --- the end -------------------------------------------------------------------------------
    def _finish(self, admin: _Admin, keys: list[Key]) -> None:
        world, checker = self.world, self.checker
        world.calm = True
        self._empty_disk()
        if world.node is not None:
            world.power_loss()  # Once more, and with all that this run has gathered.
        for producer in self.producers:
            producer.stopped = True
        world.run(_CALM_US, until=lambda: all(p.idle for p in self.producers))
        if not all(producer.idle for producer in self.producers):
            raise Violation("a producer could not finish although nothing failed any more")
        reader = Reader(world, checker, 1_000, keys)
        world.faults["segment rolled"] += sum(
            path.endswith(".log") and not path.endswith(f"{0:020d}.log")
            for path in world.disk.paths()
        )
        for key in keys:
            start = admin.offset(key, EARLIEST)
            admin.log_start(key, start)
            end = admin.offset(key, LATEST)
            if not checker.partitions[key].damaged:
                checker.log_end(key, end)
            self._read_all(admin, reader, key, start, end)
            # Retention went on while we read: only what is still kept must have been read.
            start = admin.offset(key, EARLIEST)
            admin.log_start(key, start)
            checker.finish(key, start, end)
        self._check_retention_holds(admin, keys)

    def _read_all(self, admin: _Admin, reader: Reader, key: Key, offset: int, end: int) -> None:
        damaged = self.checker.partitions[key].damaged
        while offset < end:
            part = m.FetchPartition(*key, offset=offset, bytes_max=1_000_000)
            response, body = admin.call(m.FetchRequest(bytes_max=1_000_000, partitions=[part]))
            assert isinstance(response, m.FetchResponse)
            got = response.partitions[0]
            if response.error_code or got.error_code:
                start = admin.offset(key, EARLIEST)
                if start > offset:
                    offset = start
                    continue
                if damaged:
                    return
                raise Violation(f"cannot read {offset} of {end}: {got.error_message}")
            after = reader.take(key, offset, body)
            if after == offset:
                if damaged:
                    return
                raise Violation(f"nothing at {offset} although the log ends at {end}")
            offset = after

    def _check_retention_holds(self, admin: _Admin, keys: list[Key]) -> None:
        """A minute after the bound an idle topic is empty (nobody writes any more)."""
        bounded = [k for k in keys if self.checker.partitions[k].plan.retention_ms >= 0]
        if not bounded:
            return
        longest_ms = max(self.checker.partitions[k].plan.retention_ms for k in bounded)
        self.world.run(longest_ms * 1000 + _MINUTE_US)
        for key in bounded:
            start, end = admin.offset(key, EARLIEST), admin.offset(key, LATEST)
            admin.log_start(key, start)
            if start != end and not self.checker.partitions[key].damaged:
                raise Violation(f"an idle topic still has rows {start} to {end} past its bound")


def simulate(seed: int, *, duration_ms: int = 20_000) -> RunResult:
    """Run one seed.

    Raises:
        Violation: the broker broke a promise; the message names the seed that shows it again.
    """
    run = _Run(Scenario.draw(seed, duration_ms=duration_ms))
    try:
        return run.run()
    except Violation as violation:
        lines = "\n  ".join(run.world.log_lines[-8:])
        raise Violation(
            f"seed {seed}: {violation}\n  {lines}\n"
            f"  again: python -m tests.sim --seed {seed} --duration-ms {duration_ms}"
        ) from violation
