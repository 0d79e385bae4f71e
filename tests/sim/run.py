"""One simulated run: make the world of a seed, let it live and die, look whether all is well.

Owns the course of a run: topics first, then work under faults, then calm (no more faults, nodes
that start and stay up) in which every producer finishes and every row is read once more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from quiverlog.types import EARLIEST, LATEST
from quiverlog.wire import messages as m

from .actors import Actor, Reader, Trimmer
from .anonymous import AnonymousProducer
from .checker import Checker, Key, Violation
from .decoding import rows_of
from .follower import Follower, Tailer
from .host import Plant
from .injection import Injection
from .limits import small_limits
from .producers import Producer
from .scenario import Scenario
from .shipped import ClientConsumer, ClientProducer, clients_world
from .strangers import Stranger
from .topics import Setup, TopicAdmin
from .world import World

__all__ = ["RunResult", "simulate"]

_CALM_US = 120_000_000
_MINUTE_US = 60_000_000
_STEPS_MAX = 2_000
_ANSWER_US = 25_000_000
"""Longer than any request asks to wait."""
_FLUSHED_AFTER_US = 40_000_000
"""Rows of every topic are on the disk half a minute after they were written."""


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
    events: dict[str, int]
    simulated_s: float
    trace: str
    """Equal traces: every frame and every line of a broker's log was the same."""


class _Run:
    def __init__(self, scenario: Scenario, plant: Plant | None) -> None:
        self.scenario = scenario
        self.world = World(scenario)
        self.checker = Checker()
        rng = random.Random(f"run-{scenario.seed}")
        self.injection = Injection(self.world, self.checker, rng, self._names)
        self.producers: list[Producer | AnonymousProducer] = []
        self.tailers: list[Tailer] = []
        self.others: list[Actor] = []
        self.clients: list[ClientProducer | ClientConsumer] = []
        if plant is not None:
            self.world.hosts[0].plant = plant

    def run(self) -> RunResult:
        world, scenario, checker = self.world, self.scenario, self.checker
        world.calm = True
        for host in world.hosts:
            host.start()
        setup = Setup(world, checker)
        setup.create(scenario.topics)
        world.calm = False
        self.injection.begin()
        self._begin_work()
        world.run(scenario.duration_ms * 1000)
        self._finish(setup)
        return RunResult(
            scenario.seed,
            checker.rows_acknowledged,
            checker.rows_seen,
            sum(host.life for host in world.hosts),
            self.injection.power_losses,
            checker.errors_seen,
            dict(world.faults),
            dict(world.events),
            world.mono_us / 1e6,
            world.trace.hexdigest(),
        )

    def _begin_work(self) -> None:
        world, scenario, checker = self.world, self.scenario, self.checker
        self.producers = [
            *(Producer(world, checker, n) for n in range(scenario.producers)),
            *(AnonymousProducer(world, checker, n) for n in range(scenario.anonymous)),
        ]
        self.tailers = [Tailer(world, checker, n) for n in range(scenario.followers)]
        self.others = [
            *(Reader(world, checker, n) for n in range(scenario.readers)),
            *(Trimmer(world, checker, n) for n in range(scenario.trimmers)),
            *(Follower(world, checker, n) for n in range(scenario.followers)),
            *(TopicAdmin(world, checker, n) for n in range(scenario.admins)),
            *(Stranger(world, checker, n) for n in range(scenario.strangers)),
        ]
        self.clients = [
            *(ClientProducer(world, checker, n) for n in range(scenario.client_producers)),
            *(ClientConsumer(world, checker, n) for n in range(scenario.client_consumers)),
        ]

    def _names(self) -> list[str]:
        actors = [*self.producers, *self.tailers, *self.others, *self.clients]
        return [actor.name for actor in actors]

    # --- the end -------------------------------------------------------------------------------
    def _finish(self, setup: Setup) -> None:
        world, checker = self.world, self.checker
        world.calm = True
        self.injection.end()
        for actor in self.others:
            actor.retired = True
        shipped = [client for client in self.clients if isinstance(client, ClientProducer)]
        for producer in (*self.producers, *shipped):
            producer.stopped = True
        world.run(_CALM_US, until=lambda: all(p.idle for p in (*self.producers, *shipped)))
        for producer in (*self.producers, *shipped):
            if not producer.idle:
                raise Violation(f"{producer.name} could not finish although nothing failed")
        self._check_consumers(setup)
        for client in self.clients:
            client.stop()
        if self.scenario.gate("memory-flushed"):
            world.run(_FLUSHED_AFTER_US)
            for model in checker.partitions.values():
                model.acknowledged.update(model.acknowledged_memory)
            for host in world.hosts:
                host.power_loss()
        for host in world.hosts:
            world.faults["segment rolled"] += sum(
                path.endswith(".log") and not path.endswith(f"{0:020d}.log")
                for path in host.disk.paths()
            )
        for key in checker.live():
            self._check_log(setup, key)
        world.run(_CALM_US, until=lambda: all(t.at_end for t in self.tailers))
        for tailer in self.tailers:
            if not tailer.at_end:
                raise Violation(f"{tailer.name} never reached the end of its log")
            tailer.retired = True
            tailer.check_copy()
        self._check_topics(setup)
        self._check_answers()
        self._check_reports()
        self._check_retention_holds(setup)

    def _check_consumers(self, setup: Setup) -> None:
        """The shipped consumers come to the end of what they follow."""
        ends = {key: setup.offset(key, LATEST) for key in self.checker.live()}
        sound = {k: e for k, e in ends.items() if not self._readers_may_stop(k)}
        consumers = [client for client in self.clients if isinstance(client, ClientConsumer)]

        def behind() -> list[Key]:
            return [key for key, end in sound.items() for c in consumers if c.behind(key, end)]

        self.world.run(_CALM_US, until=lambda: not behind())
        for key in behind():
            raise Violation(f"{self.checker.partitions[key].name}: a consumer never saw the end")
        for client in self.clients:
            if client.loop.complaints:
                raise Violation(f"{client.name}: {client.loop.complaints[0]}")

    def _readers_may_stop(self, key: Key) -> bool:
        return any(
            m.damaged or m.torn for k, m in self.checker.partitions.items() if k[0] == key[0]
        )

    def _check_log(self, setup: Setup, key: Key) -> None:
        checker = self.checker
        start = setup.offset(key, EARLIEST)
        setup.log_start(key, start)
        end = setup.offset(key, LATEST)
        if not checker.partitions[key].damaged:
            checker.log_end(key, end)
        self._read_all(setup, key, start, end)
        # Retention went on while we read: only what is still kept must have been read.
        start = setup.offset(key, EARLIEST)
        setup.log_start(key, start)
        checker.finish(key, start, end)

    def _read_all(self, setup: Setup, key: Key, offset: int, end: int) -> None:
        model = self.checker.partitions[key]
        for _ in range(_STEPS_MAX):
            if offset >= end:
                return
            part = m.FetchPartition(*key, offset=offset, bytes_max=1_000_000)
            response, body = setup.call(m.FetchRequest(bytes_max=1_000_000, partitions=[part]))
            assert isinstance(response, m.FetchResponse)
            got = response.partitions[0]
            if response.error_code or got.error_code:
                start = setup.offset(key, EARLIEST)
                if start > offset:
                    offset = start
                elif model.damaged or (model.torn and offset not in model.acknowledged):
                    offset += 1
                else:
                    raise Violation(
                        f"{model.name}: cannot read {offset} of {end}: {got.error_message}"
                    )
                continue
            after, found = rows_of(model, offset, body)
            for base_offset, values in found:
                self.checker.read(key, base_offset, values)
                model.read_last.update(range(base_offset, base_offset + len(values)))
            if after == offset and not model.damaged:
                raise Violation(f"{model.name}: nothing at {offset} although the log ends at {end}")
            offset = max(after, offset + 1)

    def _check_topics(self, setup: Setup) -> None:
        """Topics without a deletion are there; directories of deleted ones do not stay for ever."""
        described = setup.describe()
        for topic in self.checker.topics.values():
            if not topic.doomed and topic.topic_id not in described:
                raise Violation(f"{topic.name} is gone and no client deleted it")
        for host in self.world.hosts:
            for path in host.disk.paths():
                name = path.split("/")[-2]
                if name.endswith(".orphan") and not self._was_deleted(name.split(".")[0]):
                    raise Violation(f"rows were set aside that belong to a topic: {path}")

    def _was_deleted(self, name: str) -> bool:
        """A power failure may take the label of a directory: then its topic is unknown."""
        return any(
            model.topic.doomed and (model.name == name or model.name.startswith(name.split("~")[0]))
            for model in self.checker.partitions.values()
        )

    def _check_answers(self) -> None:
        """Every request whose connection lasted was answered."""
        self.world.run(_ANSWER_US)
        for actor in (*self.producers, *self.tailers, *self.others):
            for asked in actor.unanswered:
                waited_s = (self.world.mono_us - asked.sent_us) / 1e6
                if asked.sent_us < self.world.mono_us - _ANSWER_US:
                    what = type(asked.request).__name__
                    raise Violation(f"{what} of {actor.name} has no answer after {waited_s:.0f} s")

    def _check_reports(self) -> None:
        """What was taken from outside was noticed: a start logs it, with the partition."""
        lines = [line for host in self.world.hosts for line in host.log_lines]
        for model in self.checker.partitions.values():
            if model.robbed and not model.topic.doomed:
                warning = f"warning damaged rows found {{'partition': '{model.name}'"
                if not any(line.startswith(warning) for line in lines[model.robbed_at :]):
                    raise Violation(f"{model.name}: {model.robbed}, and no start logged it")

    def _check_retention_holds(self, setup: Setup) -> None:
        """A minute after the bound an idle topic is empty (no producer writes any more)."""
        bounds: dict[Key, int] = {}
        for topic_id, topic in setup.describe().items():
            configs = {entry.key: entry.value for entry in topic.configs}
            if int(configs["retention.ms"]) >= 0 and topic_id in self.checker.topics:
                for key in self.checker.live():
                    if key[0] == topic_id:
                        bounds[key] = int(configs["retention.ms"])
        if not bounds:
            return
        self.world.run(max(bounds.values()) * 1000 + _MINUTE_US)
        for key in bounds:
            start, end = setup.offset(key, EARLIEST), setup.offset(key, LATEST)
            setup.log_start(key, start)
            if start != end and not self.checker.partitions[key].damaged:
                raise Violation(f"an idle topic still has rows {start} to {end} past its bound")


def simulate(
    seed: int,
    *,
    duration_ms: int = 20_000,
    opened: frozenset[str] = frozenset(),
    plant: Plant | None = None,
    shape: Mapping[str, object] | None = None,
) -> RunResult:
    """Run one seed.

    Args:
        opened: gates that are open for this run.
        plant: makes the context in which the code of the first node has a bug.
        shape: fields of the scenario that are not left to the seed.

    Raises:
        Violation: the broker broke a promise; the message names the seed that shows it again.
    """
    scenario = Scenario.draw(seed, duration_ms=duration_ms, opened=opened)
    run = _Run(replace(scenario, **(shape or {})), plant)  # type: ignore[arg-type]
    try:
        with small_limits(), clients_world(run.world):
            return run.run()
    except Violation as violation:
        lines = "\n  ".join(line[-1_000:] for line in run.world.last_words(8))
        gates = "".join(f" --open {name}" for name in sorted(opened))
        raise Violation(
            f"seed {seed}: {violation}\n  {lines}\n"
            f"  again: python -m tests.sim --seed {seed} --duration-ms {duration_ms}{gates}"
        ) from violation
