"""One simulated run: make the world of a seed, let it live and die, look whether all is well.

Owns the course of a run: topics first, then work under faults, then calm (no more faults, nodes
that start and stay up) in which every producer finishes and every row is read once more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from quiverlog.types import EARLIEST, LATEST
from quiverlog.wire import messages as m

from .actors import Actor, Reader, Trimmer, rows_of
from .checker import Checker, Key, Violation
from .follower import Follower, Tailer
from .host import Host, Plant
from .limits import small_limits
from .producers import Producer
from .scenario import Scenario
from .shipped import ClientConsumer, ClientProducer, clients_clock
from .topics import Setup, TopicAdmin
from .world import World

__all__ = ["RunResult", "simulate"]

_REBUILT = (".index", "leader-epochs", ".snapshot", "recovery-point")
_CALM_US = 120_000_000
_MINUTE_US = 60_000_000
_STEPS_MAX = 2_000
_ANSWER_US = 25_000_000
"""Longer than any request asks to wait."""
_FLUSHED_AFTER_US = 40_000_000
"""Rows of every topic are on the disk half a minute after they were written."""
_JUMP_US = 8 * 24 * 3_600_000_000


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
    """Equal traces: every frame and every line of a broker's log was the same."""


class _Run:
    def __init__(self, scenario: Scenario, plant: Plant | None) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"run-{scenario.seed}")
        self.world = World(scenario)
        self.checker = Checker()
        self.checker.remembers_trimmed = scenario.gate("trimmed-producers")
        self.power_losses = 0
        self.producers: list[Producer] = []
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
        world.on_died.append(self._on_died)
        self._begin_faults()
        self._begin_work()
        world.run(scenario.duration_ms * 1000)
        self._finish(setup)
        return RunResult(
            scenario.seed,
            checker.rows_acknowledged,
            checker.rows_seen,
            sum(host.life for host in world.hosts),
            self.power_losses,
            checker.errors_seen,
            dict(world.faults),
            world.mono_us / 1e6,
            world.trace.hexdigest(),
        )

    def _begin_work(self) -> None:
        world, scenario, checker = self.world, self.scenario, self.checker
        self.producers = [Producer(world, checker, n) for n in range(scenario.producers)]
        self.tailers = [Tailer(world, checker, n) for n in range(scenario.followers)]
        self.others = [
            *(Reader(world, checker, n) for n in range(scenario.readers)),
            *(Trimmer(world, checker, n) for n in range(scenario.trimmers)),
            *(Follower(world, checker, n) for n in range(scenario.followers)),
            *(TopicAdmin(world, checker, n) for n in range(scenario.admins)),
        ]
        self.clients = [
            *(ClientProducer(world, checker, n) for n in range(scenario.client_producers)),
            *(ClientConsumer(world, checker, n) for n in range(scenario.client_consumers)),
        ]

    # --- faults --------------------------------------------------------------------------------
    def _begin_faults(self) -> None:
        world, scenario = self.world, self.scenario
        network = world.network
        network.loss, network.slow = scenario.loss, scenario.slow_network
        network.half_open, network.cut_up = scenario.half_open, scenario.cut_up
        for host in world.hosts:
            disk = host.disk
            disk.loop_may_block = not scenario.gate("loop-never-blocks")
            disk.reorder_pages = scenario.page_order
            disk.evict_chance = scenario.evictions
            disk.read_error_chance = scenario.read_errors
            disk.write_error_chance = scenario.write_errors
            disk.sync_error_chance = scenario.sync_errors
            self._now_and_then(scenario.death_interval_ms, lambda h=host: self._die(h))
            self._now_and_then(scenario.full_disk_interval_ms, lambda h=host: self._fill(h))
            self._now_and_then(scenario.emfile_interval_ms, lambda h=host: self._no_descriptors(h))
            self._now_and_then(scenario.clock_jump_interval_ms, lambda h=host: self._jump(h))
            self._now_and_then(scenario.cut_interval_ms, lambda h=host: self._cut(h))

    def _now_and_then(self, mean_ms: int, action: Callable[[], None]) -> None:
        """Do `action` at random moments, as often as `mean_ms` says, until the calm."""
        if not mean_ms:
            return

        def act() -> None:
            if not self.world.calm:
                action()
                self._now_and_then(mean_ms, action)

        self.world.at(int(self.rng.expovariate(1 / (mean_ms * 1000))) + 1, act)

    def _die(self, host: Host) -> None:
        if host.node is not None:
            self.rng.choice((host.power_loss, host.kill, host.stop))()

    def _on_died(self, host: Host, clean: bool) -> None:
        disk = host.disk
        if not clean:
            self.checker.process_died()
        if not disk.lost_power:
            return
        self.power_losses += 1
        self.checker.machine_died()
        if disk.pages_reordered:
            self.world.faults["pages out of order"] += 1
            for model in self.checker.partitions.values():
                model.torn = True
        if not self.world.calm and self.rng.random() < self.scenario.bit_flip:
            self._flip_bit(host)
        if not self.world.calm and self.rng.random() < 0.3:
            self._rob(host)

    def _flip_bit(self, host: Host) -> None:
        """Damage a bit that was durable.

        In a segment the checker then expects errors, but no wrong row; all else must be rebuilt and
        nobody notice.
        """
        kind = ".log" if self.rng.random() < 0.4 else self.rng.choice((*_REBUILT, ".snapshot"))
        path = host.disk.flip_somewhere(self.rng, kind)
        if path is None:
            return
        self.world.faults[f"bit flip in {kind}"] += 1
        model = self.checker.directory(path.split("/")[-2])
        if kind == ".log" and model is not None:
            model.damaged = True

    def _rob(self, host: Host) -> None:
        """Take a whole file of a log away, or damage its `log-start`: both must be noticed."""
        take = self.scenario.gate("segment-gone") and self.rng.random() < 0.5
        flip = self.scenario.gate("log-start-damaged") and not take
        suffix = ".log" if take else "log-start"
        paths = [path for path in host.disk.paths() if path.endswith(suffix) and "/data/" in path]
        paths = [path for path in paths if host.disk.durable_size(path) > 64 * take]
        if not paths or not (take or flip):
            return
        path = self.rng.choice(paths)
        model = self.checker.directory(path.split("/")[-2])
        if model is None or not (model.acknowledged or flip):
            return
        if take and sum(p.startswith(path.rpartition("/")[0] + "/") for p in paths) < 2:
            return
        self.world.faults[f"{suffix} {'taken' if take else 'damaged'}"] += 1
        model.damaged = True
        if flip:
            model.robbed = "its log-start was damaged"
            host.disk.flip_bit(path, self.rng.randrange(host.disk.durable_size(path) * 8))
            return
        # The oldest, with another behind it. The newest would take the end of the log along: its
        # offsets are given to other rows then, and every rule of the checker with them.
        siblings = [p for p in paths if p.rpartition("/")[0] == path.rpartition("/")[0]]
        path = siblings[0]
        end = int(siblings[1].rpartition("/")[2].split(".")[0])
        held = any(model.log_start_offset <= offset < end for offset in model.acknowledged)
        if held and not model.topic.retained:
            model.robbed = f"{path.rpartition('/')[2]} was taken"
        host.disk.remove(path)
        host.disk.sync_dir(path.rpartition("/")[0])

    def _fill(self, host: Host) -> None:
        host.disk.set_full(True)
        self.world.faults["full disk"] += 1
        self.world.at(self.rng.randrange(10_000, 1_000_000), lambda: self._make_room(host))

    def _make_room(self, host: Host) -> None:
        host.disk.set_full(False)
        host.disk_space(1 << 40)

    def _no_descriptors(self, host: Host) -> None:
        host.disk.descriptors_gone = True
        self.world.faults["no descriptors"] += 1

        def back() -> None:
            host.disk.descriptors_gone = False

        self.world.at(self.rng.randrange(1_000, 300_000), back)

    def _jump(self, host: Host) -> None:
        host.wall_offset_us = _JUMP_US
        self.world.faults["clock jump"] += 1

        def back() -> None:
            host.wall_offset_us = 0

        self.world.at(self.rng.randrange(100_000, 12_000_000), back)

    def _cut(self, host: Host) -> None:
        actor = self.rng.choice([*self.producers, *self.tailers, *self.others, *self.clients])
        self.world.network.cut(actor.name, host.name)
        self.world.faults["cut"] += 1
        self.world.at(self.rng.randrange(1_000, 500_000), self.world.network.heal)

    # --- the end -------------------------------------------------------------------------------
    def _finish(self, setup: Setup) -> None:
        world, checker = self.world, self.checker
        world.calm = True
        world.network.heal()
        for host in world.hosts:
            host.disk.quiet()
            host.wall_offset_us = 0
            self._make_room(host)
            if host.node is not None:
                host.power_loss()  # Once more, and with all that this run has gathered.
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
            if after == offset and not model.damaged:
                raise Violation(f"{model.name}: nothing at {offset} although the log ends at {end}")
            offset = max(after, offset + 1)

    def _check_topics(self, setup: Setup) -> None:
        """What nobody deleted is there; directories of what is gone do not stay for ever."""
        described = setup.describe()
        for topic in self.checker.topics.values():
            if not topic.doomed and topic.topic_id not in described:
                raise Violation(f"{topic.name} is gone and nobody deleted it")
        for host in self.world.hosts:
            orphans = [path for path in host.disk.paths() if ".orphan/" in path]
            if orphans:
                raise Violation(f"rows were set aside that belong to a topic: {orphans[0]}")

    def _check_answers(self) -> None:
        """Whoever asked and kept his connection was answered."""
        self.world.run(_ANSWER_US)
        for actor in (*self.producers, *self.tailers, *self.others):
            for asked in actor.unanswered:
                waited_s = (self.world.mono_us - asked.sent_us) / 1e6
                if asked.sent_us < self.world.mono_us - _ANSWER_US:
                    what = type(asked.request).__name__
                    raise Violation(f"{what} of {actor.name} has no answer after {waited_s:.0f} s")

    def _check_reports(self) -> None:
        """What was taken from outside was noticed: a line of the log names the partition."""
        lines = [line for host in self.world.hosts for line in host.log_lines]
        for model in self.checker.partitions.values():
            if model.robbed and not model.topic.doomed:
                loud = [n for n in lines if model.name in n and n.startswith(("error", "warning"))]
                if not loud:
                    raise Violation(f"{model.name}: {model.robbed}, and nobody said a word")

    def _check_retention_holds(self, setup: Setup) -> None:
        """A minute after the bound an idle topic is empty (nobody writes any more)."""
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
        with small_limits(), clients_clock(run.world):
            return run.run()
    except Violation as violation:
        lines = "\n  ".join(line[-1_000:] for line in run.world.last_words(8))
        gates = "".join(f" --open {name}" for name in sorted(opened))
        raise Violation(
            f"seed {seed}: {violation}\n  {lines}\n"
            f"  again: python -m tests.sim --seed {seed} --duration-ms {duration_ms}{gates}"
        ) from violation
