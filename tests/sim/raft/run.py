"""One run: work under faults, then calm, then what a healthy quorum must be able to do.

Owns the order of a run and the bounds of its end: after healing a leader is elected and commits; a
replica that comes back from a partition deposes no leader; a leader that is cut off steps down and
another one takes over; all replicas end in the same state.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quiverlog.core.raft.election import Role
from tests.sim.checker import Violation

from .cluster import PAUSE_US_MAX, Cluster
from .host import Host
from .scenario import Scenario

__all__ = ["RunResult", "simulate"]

_HEALING_US = 20_000_000
"""Simulated time from the last fault until all are equal: snapshots and voters included."""


@dataclass(frozen=True, slots=True)
class RunResult:
    seed: int
    simulated_s: float
    acknowledged: int
    counts: Counter[str]
    trace: str


def simulate(
    seed: int,
    *,
    duration_ms: int = 8_000,
    plant: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
    shape: Mapping[str, object] | None = None,
    opened: frozenset[str] = frozenset(),
) -> RunResult:
    """One run. Raises Violation, with the command that shows it again.

    Args:
        plant: a planted bug, for some of the replicas.
        shape: fields of the scenario that are not drawn.
        opened: gates, for which there is no use here.
    """
    assert not opened
    scenario = Scenario.draw(seed, duration_ms=duration_ms, shape=shape)
    run = _Run(scenario, plant)
    try:
        run.work()
        run.heal()
    except Exception as error:
        where = f"seed {seed} at {run.cluster.world.now_us / 1e6:.3f} s"
        again = f"python -m tests.sim.raft --seed {seed} --duration-ms {duration_ms}"
        raise Violation(f"{where}: {type(error).__name__}: {error}\nagain: {again}") from error
    world = run.cluster.world
    return RunResult(
        seed,
        world.now_us / 1e6,
        run.cluster.checker.acknowledged_count,
        world.counts,
        world.trace.hexdigest(),
    )


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        plant: Callable[[], contextlib.AbstractContextManager[None]] | None,
    ) -> None:
        self.scenario = scenario
        self.cluster = Cluster(scenario, plant)

    @property
    def _timeout_us(self) -> int:
        return self.scenario.config.election_timeout_us

    def work(self) -> None:
        """Faults and work."""
        self.cluster.begin()
        self.cluster.world.run(self.scenario.duration_ms * 1_000)

    def heal(self) -> None:
        """No more faults; everything must work."""
        cluster, world = self.cluster, self.cluster.world
        world.calm = True
        world.heal()
        for host in cluster.hosts:
            host.slow = False
            if host.raft is None:
                host.start()
        world.run(PAUSE_US_MAX)
        self._expect(self._all_equal, "all replicas agree")
        self._check_commit("after healing")
        self._remove_dead_voters()
        self._check_rejoin()
        self._check_cut_off_leader()
        self._expect(self._all_equal, "all replicas agree again")

    # --- expectations --------------------------------------------------------------------------
    def _expect(self, condition: Callable[[], bool], what: str) -> None:
        if not condition() and not self.cluster.world.run(_HEALING_US, until=condition):
            roles = [
                (h.node_id, h.raft.role.value, h.raft.term, h.raft.log.commit, h.state.index)
                for h in self.cluster.living
                if h.raft is not None
            ]
            raise Violation(f"not in {_HEALING_US / 1e6:.0f} s: {what}; {roles}")

    def _all_equal(self) -> bool:
        """One leader, and every state machine where the leader's is."""
        leader = self.cluster.leader()
        if leader is None or leader.raft is None:
            return False
        raft = leader.raft
        if raft.log.commit < raft.log.last_index or leader.state.index < raft.log.commit:
            return False
        return all(
            host.state == leader.state and host.raft is not None and host.raft.term == raft.term
            for host in self.cluster.hosts
        )

    def _check_commit(self, when: str) -> None:
        cluster = self.cluster
        before = cluster.checker.acknowledged_count
        done = False

        def again() -> None:
            if not done:
                cluster.propose()
                cluster.world.at(self._timeout_us, again)

        again()
        self._expect(lambda: cluster.checker.acknowledged_count > before, f"commits {when}")
        done = True

    def _remove_dead_voters(self) -> None:
        """What an administrator does after a disk was lost."""
        cluster = self.cluster

        def alive() -> bool:
            leader = cluster.leader()
            if leader is None or leader.raft is None:
                return False
            dead = set(leader.raft.voters) - cluster.keys()
            committed = leader.raft.log.commit == leader.raft.log.last_index
            if dead and committed:
                cluster.administrate()
            return not dead and committed

        self._expect(alive, "dead voters are removed")
        self._expect(self._all_equal, "all replicas know the voters")

    def _check_rejoin(self) -> None:
        """A replica that was cut off and comes back deposes no leader (pre-vote)."""
        leader, others = self._leader_and_voters()
        if len(others) < 2:
            return
        term = leader.raft.term if leader.raft else 0
        away = self.cluster.rng.choice(others)
        world = self.cluster.world
        world.isolate(away.node_id, self.cluster.nodes)
        world.run(8 * self._timeout_us)
        world.heal()
        world.run(4 * self._timeout_us)
        assert leader.raft is not None
        if leader.raft.role is not Role.LEADER or leader.raft.term != term:
            raise Violation(f"node {away.node_id} came back and deposed a healthy leader")
        self._expect(self._all_equal, "a replica that comes back catches up")

    def _check_cut_off_leader(self) -> None:
        """A leader that is cut off steps down in bounded time, and the others elect another."""
        leader, others = self._leader_and_voters()
        if not others:
            return
        world = self.cluster.world
        world.isolate(leader.node_id, self.cluster.nodes)
        world.run(2 * self._timeout_us)
        assert leader.raft is not None
        if leader.raft.role is Role.LEADER:
            raise Violation(f"node {leader.node_id} is cut off and goes on leading")
        if len(others) >= 2:
            self._expect(lambda: self.cluster.leader() in others, "another leader is elected")
            self._check_commit("without the old leader")
        world.heal()

    def _leader_and_voters(self) -> tuple[Host, list[Host]]:
        self._expect(self._all_equal, "a leader stands")
        leader = self.cluster.leader()
        assert leader is not None
        assert leader.raft is not None
        voters = leader.raft.voters
        if leader.key not in voters:
            raise Violation(f"node {leader.node_id} leads without being a voter")
        return leader, [h for h in self.cluster.hosts if h.key in voters and h is not leader]
