"""A quorum of simulated replicas, and what people and machines do to it.

Owns the hosts, the clients' proposals, the administrator (voters in and out, leadership handed
over, snapshots) and the faults (crashes, pauses, partitions, wiped disks). It never asks for what
no quorum could survive: a majority of the voters keeps its disks.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from quiverlog.core.raft.election import Role
from quiverlog.core.raft.messages import ProposalRefused, ReplicaKey, SnapshotMeta
from quiverlog.core.raft.raft import Raft

from .apart import Apart
from .checker import Checker
from .host import Host
from .scenario import Scenario
from .world import World

__all__ = ["PAUSE_US_MAX", "Cluster"]

PAUSE_US_MAX = 1_000_000

_Plant = Callable[[], contextlib.AbstractContextManager[None]]


class Cluster:
    def __init__(self, scenario: Scenario, plant: _Plant | None) -> None:
        self.scenario = scenario
        self.world = World(scenario)
        self.checker = Checker(self.world)
        self.rng = random.Random(f"cluster-{scenario.seed}")
        self.nodes = range(scenario.nodes)
        buggy = self._buggy_nodes()
        self.hosts = [
            Host(self.world, self.checker, node, plant if node in buggy else None, self.nodes)
            for node in self.nodes
        ]
        self.checker.hosts = self.hosts
        self.checker.on_elected = self._elected
        self.world.deliver = lambda message: self.hosts[message.target.node_id].deliver(message)
        self._values = 0
        voters = {self.hosts[n].key: f"node{n}" for n in range(scenario.voters)}
        for host in self.hosts[: scenario.voters]:
            host.plate.snapshot = SnapshotMeta(0, 0, voters)
        for host in self.hosts:
            host.start()

    def _buggy_nodes(self) -> set[int]:
        """At least one of three replicas is sound: a bug in one node is to be found, too."""
        if self.scenario.buggy_everywhere:
            return set(self.nodes)
        return set(self.rng.sample(self.nodes, max(1, len(self.nodes) // 2)))

    # --- looking -------------------------------------------------------------------------------
    @property
    def living(self) -> list[Host]:
        return [host for host in self.hosts if host.raft is not None]

    def leader(self) -> Host | None:
        """The leader of the newest term of all living replicas."""
        leaders = [h for h in self.living if h.raft is not None and h.raft.role is Role.LEADER]
        return max(leaders, key=lambda h: h.raft.term if h.raft else 0, default=None)

    def voters(self) -> frozenset[ReplicaKey] | None:
        """The voters, if all living replicas that have any agree, and they are committed."""
        found = set()
        for host in self.living:
            raft = host.raft
            assert raft is not None
            if raft.voters:
                found.add(frozenset(raft.voters))
        leader = self.leader()
        if len(found) != 1 or leader is None or leader.raft is None:
            return None
        return found.pop()

    def keys(self) -> set[ReplicaKey]:
        """The disks that are in use."""
        return {host.key for host in self.hosts}

    # --- work ----------------------------------------------------------------------------------
    def every(self, interval_ms: int, action: Callable[[], None]) -> None:
        """Do something again and again, until the world is calm."""
        if interval_ms == 0:
            return

        def again() -> None:
            if not self.world.calm:
                action()
                self.world.at(self._soon_us(interval_ms), again)

        self.world.at(self._soon_us(interval_ms), again)

    def _soon_us(self, interval_ms: int) -> int:
        return 1 + int(self.rng.expovariate(1 / (interval_ms * 1_000)))

    def begin(self) -> None:
        """Everything that goes on until the world is calm."""
        scenario = self.scenario
        self.every(scenario.proposal_interval_ms, self.propose)
        self.every(scenario.admin_interval_ms, self.administrate)
        self.every(scenario.snapshot_interval_ms, self._snapshot)
        self.every(scenario.crash_interval_ms, self._crash)
        self.every(scenario.pause_interval_ms, self._pause)
        self.every(scenario.partition_interval_ms, self._partition)
        self.every(scenario.wipe_interval_ms, self._wipe)
        self.every(1_000, self._slow_disk)
        if scenario.apart:
            Apart(self).begin()

    def propose(self) -> None:
        """A client proposes where it believes a leader to be."""
        leaders = [h for h in self.living if h.raft is not None and h.raft.role is Role.LEADER]
        if not leaders:
            return
        host = self.rng.choice(leaders)
        data = []
        for _ in range(self.rng.choice((1, 1, 1, 3))):
            self._values += 1
            data.append(b"%d." % self._values + bytes(self.rng.choice((0, 10, 100))))

        def act(raft: Raft) -> None:
            with contextlib.suppress(ProposalRefused):
                last = raft.propose(data, host.now_us)
                for back, value in enumerate(reversed(data)):
                    host.proposed[last.index - back] = (last.term, value)

        host.call(act)

    def administrate(self) -> None:
        """Change the voters, or hand leadership over."""
        leader = self.leader()
        if leader is None:
            return
        count = 2 if self.rng.random() < self.scenario.two_changes else 1
        for _ in range(count):
            leader.call(lambda raft: self._change(leader, raft))

    def _change(self, leader: Host, raft: Raft) -> None:
        voters = set(raft.voters)
        dead = voters - self.keys()
        others = [h.key for h in self.living if h.key not in voters]
        act = self.rng.choice(("add", "add", "remove", "transfer", "move"))
        if dead:
            act = "remove"
        try:
            if act == "add" and others and len(voters) < 7:
                key = self.rng.choice(sorted(others))
                raft.add_voter(key, f"node{key.node_id}", leader.now_us)
            elif act == "remove" and len(voters) > 1:
                victim = self.rng.choice(sorted(dead or voters))
                raft.remove_voter(victim, leader.now_us)
            elif act == "move":
                key = self.rng.choice(sorted(voters))
                raft.move_voter(key, f"elsewhere{self._values}", leader.now_us)
            elif act == "transfer":
                raft.transfer_leadership(self.rng.choice(sorted(voters)), leader.now_us)
            else:
                return
        except ProposalRefused as refused:
            self.world.counts[f"refused: {refused.refusal.name}"] += 1
        else:
            self.world.counts[f"voters: {act}"] += 1

    def _snapshot(self) -> None:
        host = self.rng.choice(self.hosts)
        if host.raft is not None and self.world.now_us >= host.paused_until_us:
            host.take_snapshot()

    # --- faults --------------------------------------------------------------------------------
    def _crash(self) -> None:
        count = 1 if self.rng.random() < 0.8 else self.rng.randint(1, len(self.hosts))
        victims = self.rng.sample(self.hosts, count)
        for host in self._leading_victim() or victims:
            if host.raft is not None:
                self._kill(host)

    def _elected(self, host: Host) -> None:
        """A leader that is lost now leaves a term that few replicas have (paper, figure 8)."""
        if self.world.calm or self.rng.random() >= self.scenario.newborn_faults:
            return
        dies = self.rng.random() < 0.3

        def lose() -> None:
            if host.raft is None or self.world.calm:
                return
            if dies:
                self._kill(host)
            else:
                self.world.heal()
                self.world.isolate(host.node_id, self.nodes)

        self.world.counts["newborn leader lost"] += 1
        self.world.at(self.rng.randrange(1 + self.rng.choice((0, 2, 20)) * 5_000), lose)

    def _leading_victim(self) -> list[Host]:
        """The leader, as often as the scenario asks for."""
        leader = self.leader()
        hit = self.rng.random() < self.scenario.leader_faults
        return [leader] if hit and leader is not None else []

    def _kill(self, host: Host) -> None:
        host.crash()
        self.world.counts["crash"] += 1
        self.world.at(1 + self.rng.randrange(self.scenario.down_ms * 1_000), lambda: self._up(host))

    def _up(self, host: Host) -> None:
        if host.raft is None:
            host.start()

    def _pause(self) -> None:
        host = self.rng.choice(self.hosts)
        host.paused_until_us = self.world.now_us + self.rng.randrange(PAUSE_US_MAX)
        self.world.counts["pause"] += 1

    def _partition(self) -> None:
        self.world.counts["partition"] += 1
        side = set(self.rng.sample(self.nodes, self.rng.randint(1, max(1, len(self.nodes) // 2))))
        side = {host.node_id for host in self._leading_victim()} or side
        one_way = self.rng.random() < self.scenario.one_way
        for source in self.nodes:
            for target in self.nodes:
                if (source in side) != (target in side) and (source in side or not one_way):
                    self.world.cut(source, target)

        def heal() -> None:
            if not self.world.calm:
                self.world.heal()

        self.world.at(self._soon_us(self.scenario.partition_ms), heal)

    def _slow_disk(self) -> None:
        host = self.rng.choice(self.hosts)
        host.slow = not host.slow and self.scenario.slow_write > 0

    def _wipe(self) -> None:
        """Replace a disk, if a majority of the voters keeps theirs, whatever is decided now."""
        voters = self.voters()
        if voters is None or any(host.raft is None for host in self.hosts):
            return
        leader = self.leader()
        assert leader is not None
        assert leader.raft is not None
        if leader.raft.log.commit < leader.raft.log.last_index:
            return  # A change of the voters may be under way.
        host = self.rng.choice(self.hosts)
        lost = {key for key in voters if key not in self.keys() or key == host.key}
        if 2 * len(lost) >= len(voters):
            return
        host.crash()
        host.wipe()
        self.world.counts["wiped disk"] += 1
        self.world.at(1 + self.rng.randrange(self.scenario.down_ms * 1_000), lambda: self._up(host))
