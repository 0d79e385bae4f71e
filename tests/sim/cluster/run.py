"""One simulated run of a cluster: work under faults, then calm, then what must be true of it.

Owns the course of a run and the bounds of its end: after the last fault everything is in sync and
served again within a bound, all copies are the same bytes, and every row that was acknowledged at a
level that no fault had the right to break is there exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

from tests.sim.checker import Violation
from tests.sim.host import Plant
from tests.sim.limits import small_limits
from tests.sim.shipped import clients_world

from .caretaker import look_after
from .cluster import Cluster
from .courses import Courses
from .fault_plan import CALM
from .host import ClusterHost
from .last_resort import awaiting_operator, elect_uncleanly
from .losses import Losses
from .machines import UNNOTICED_JUMP_US
from .operator import Operator, are_voters_settled
from .patience import HEAL_US, patience_us
from .promises import ClusterChecker, ClusterTopicModel
from .scenario import ClusterScenario
from .scrub import scrub
from .tempo import Tempo
from .transactions import is_given_up, is_published
from .workload import Workload

__all__ = ["ClusterResult", "simulate"]

_START_US = 20_000_000
_BUGS = ("error internal error", "error the quorum met a bug")
_DAMAGED = ("warning damaged rows found", "error replica damaged")
"""No disk has damage unless a fault of machines made it; deaths and lost power make none."""
_NOISE = re.compile(r": debug |: warning peer cannot be asked|internal error")


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """What a run amounted to, so that a run in which nothing happened is noticed."""

    seed: int
    rows_acknowledged: int
    rows_seen: int
    lives: int
    elections: int
    compared: int
    judged: int
    """Windows of histories that were judged to be linearizable."""
    errors: dict[int, int]
    faults: dict[str, int]
    events: dict[str, int]
    moments: int
    """How many things happened, each at its moment."""
    simulated_s: float
    tempo: Tempo
    healed_s: float
    """From the last fault until all was in sync."""
    trace: str


class _Run:
    def __init__(self, scenario: ClusterScenario, plant: Plant | None) -> None:
        self.scenario = scenario
        self.cluster = Cluster(scenario, plant)
        self.world = self.cluster.world
        self.checker = ClusterChecker()
        self.checker.now_us = lambda: self.world.mono_us
        if scenario.plan.clock_interval_ms:
            self.checker.clock_slack_us += UNNOTICED_JUMP_US
        self.workload = Workload(self.cluster, self.checker)

    def run(self) -> ClusterResult:
        with ExitStack() as watching:
            if self.scenario.rules:
                watching.enter_context(self.cluster.rights.watching())
            if self.scenario.clients.user_keepers:
                watching.enter_context(self.cluster.logins.watching())
            return self._run()

    def _run(self) -> ClusterResult:
        cluster, world, checker = self.cluster, self.world, self.checker
        world.calm = True
        for host in cluster.hosts:
            if host not in cluster.late:
                host.start()
        self._until(lambda: cluster.controller() is not None, _START_US, "a quorum leader")
        self._until(
            lambda: all(host.is_serving for host in cluster.members), _START_US, "every start"
        )
        self._until(cluster.setup.create, _START_US, "the topics")
        self._until(self._all_open, _START_US, "every copy is open and in sync")
        self._know_topics()
        if self.scenario.clients.has_transactions and not self.scenario.clients.makes_internal:
            self._until(cluster.setup.create_internal, _START_US, "the internal topics")
            self._until(self._all_open, _START_US, "the internal topics are open")
        world.calm = False
        Losses(cluster, checker, keeps_flushed=self.scenario.gate("flushed-everywhere"))
        self.workload.begin()
        if self.scenario.plan.has_operator:
            cluster.operator = Operator(cluster, checker)
        if self.scenario.aims.course:
            Courses(cluster, checker).begin()
        cluster.begin_faults()
        world.run(self.scenario.duration_ms * self.scenario.tempo.stretch * 1_000)
        healed_us = self._finish()
        return ClusterResult(
            self.scenario.seed,
            checker.rows_acknowledged,
            checker.rows_seen,
            sum(host.life for host in cluster.hosts),
            cluster.invariants.elections,
            cluster.invariants.compared,
            checker.histories.judged,
            checker.errors_seen,
            dict(world.faults),
            dict(world.events),
            world.moments,
            world.mono_us / 1e6,
            self.scenario.tempo,
            healed_us / 1e6,
            world.trace.hexdigest(),
        )

    def _until(self, condition: Callable[[], bool], bound_us: int, what: str) -> int:
        """Let time pass until something is so. Returns how long it took."""
        begin_us = self.world.mono_us
        bound_us = patience_us(self.cluster, bound_us)
        if not condition():
            self.world.run(bound_us, until=condition)
            if not condition():
                raise Violation(f"not within {bound_us / 1e6:.0f} s: {what}; {self._roles()}")
        return self.world.mono_us - begin_us

    def _roles(self) -> str:
        found = []
        for host in self.cluster.living:
            assert host.node is not None
            broker = host.node.broker
            if broker.quorum.log is None:
                continue
            copies = [
                f"{r.name}:{'L' if r.state.leads else 'f'}e{r.state.leader_epoch}"
                f" {r.log.log_start_offset}-{r.state.high_watermark}-{r.log.log_end_offset}"
                for r in broker.assignment.all_open()
            ]
            role, version = broker.quorum.raft.role.value, broker.metadata.image.version
            found.append(f"{host.name} {role} v{version} {copies}")
        return "; ".join(found)

    def _know_topics(self) -> None:
        leader = self.cluster.controller()
        assert leader is not None
        assert leader.node is not None
        for topic in leader.node.broker.metadata.image.topics.values():
            model = ClusterTopicModel(topic.name, topic.topic_id, dict(topic.configs))
            self.checker.add(model, len(topic.partitions))

    # --- the end -------------------------------------------------------------------------------
    def _all_open(self) -> bool:
        hosts = self.cluster.members
        return self.cluster.all_in_sync() and all(self._has_its_copies(host) for host in hosts)

    def _has_its_copies(self, host: ClusterHost) -> bool:
        leader, node = self.cluster.controller(), host.node
        if leader is None or leader.node is None or node is None:
            return False
        image = leader.node.broker.metadata.image
        return all(
            node.broker.assignment.find((topic.topic_id, one.partition)) is not None
            for topic in image.topics.values()
            for one in topic.partitions
            if node.broker.config.node_id in one.replicas
        )

    def _finish(self) -> int:
        cluster = self.cluster
        cluster.calm()
        look_after(cluster, self.checker)
        self.workload.stop()
        self._until(self.workload.operators_are_done, HEAL_US, "operators have cleared up")
        healed_us = self._until(
            lambda: self._all_open() or bool(awaiting_operator(cluster, self.checker)),
            HEAL_US, "all are in sync again",
        )  # fmt: skip
        for key in awaiting_operator(cluster, self.checker):
            elect_uncleanly(cluster, self.checker, key)
        healed_us += self._until(self._all_open, HEAL_US, "all are in sync again")
        cluster.whole_us = self.world.mono_us
        self._until(self.workload.is_idle, HEAL_US, "every client has its answers")
        self._settle_voters()
        self._until(lambda: is_published(cluster), HEAL_US, "no publish waits")
        self._until(self._all_equal, HEAL_US, "all copies have all rows")
        self._until(lambda: is_given_up(cluster), HEAL_US, "all that was staged is given up")
        self._until(self.workload.consumers_are_done, HEAL_US, "consumers are given all rows")
        for node_id in cluster.machines.rotten:
            scrub(cluster, self.checker, cluster.hosts[node_id])
            self._until(self._all_open, HEAL_US, "what was damaged is copied again")
        self.workload.end()
        # A stop that had begun before the calm may have ended just now, even the controller's.
        self._until(self._all_open, HEAL_US, "all are in sync at the end")
        self.workload.check()
        for host in cluster.hosts:
            cluster.invariants.look_at_all(host)
        self._check_logs()
        return healed_us

    def _settle_voters(self) -> None:
        cluster = self.cluster
        self._until(lambda: are_voters_settled(cluster), HEAL_US, "voters are disks that are there")
        if self.scenario.plan.first_voters == 1:
            self.world.events["a quorum grew"] += 1
        if cluster.operator is not None:
            cluster.operator.check()
            cluster.operator.retired = True

    def _check_logs(self) -> None:
        """No node met a bug of its own, or takes sound rows for damaged ones."""
        wrong = (*_BUGS, *(_DAMAGED if self.scenario.plan == CALM else ()))
        for host in self.cluster.hosts:
            for line in host.log_lines:
                if line.startswith(wrong):
                    raise Violation(f"{host.name}: {line[-700:]}")

    def _all_equal(self) -> bool:
        for key in self.checker.live():
            ends = set()
            for host in self.cluster.hosts:
                replica = None if host.node is None else host.node.broker.assignment.find(key)
                if replica is not None:
                    ends |= {replica.log.log_end_offset, replica.state.high_watermark}
            if len(ends) != 1:
                return False
        return True


def simulate(
    seed: int,
    *,
    duration_ms: int = 20_000,
    opened: frozenset[str] = frozenset(),
    plant: Plant | None = None,
    shape: Mapping[str, object] | None = None,
) -> ClusterResult:
    """Run one seed. Raises Violation: a promise was broken; the message names the command that
    repeats it.

    Args:
        opened: gates that are open for this run.
        plant: makes the context in which the code of one node (or of all) has a bug.
        shape: fields of the scenario that are not left to the seed.
    """
    scenario = ClusterScenario.draw(seed, duration_ms=duration_ms, opened=opened, shape=shape)
    outside = plant() if plant is not None and scenario.buggy_clients else nullcontext()
    run = _Run(scenario, None if scenario.buggy_clients else plant)
    try:
        with outside, small_limits(), clients_world(run.world), scenario.tempo.timers():
            return run.run()
    except (Violation, AssertionError) as violation:
        run.world.abandon()
        lines = "\n  ".join(
            line[-600:] for line in run.world.last_words(9) if " debug " not in line
        )
        at_s = run.world.mono_us / 1e6
        gates = "".join(f" --open {name}" for name in sorted(opened))
        raise Violation(
            f"seed {seed}: at {at_s:.3f} s: {violation}\n  {lines}\n"
            f"  again: python -m tests.sim --cluster --seed {seed}"
            f" --duration-ms {duration_ms}{gates}"
        ) from violation
