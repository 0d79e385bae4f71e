"""Faults aimed at the moments in which one mistake would show; they see the whole cluster.

Owns what each kind waits for and what it does then. A run has none of them unless its scenario
names them (`AimPlan`): drawn by chance, these moments are too rare for a few seeds.

- stranded: a leader is cut off from other brokers, not from clients, and killed soon: no other
  broker has its last rows. Also right after its election, so that this holds for all rows of its
  epoch.
- lean: one follower of a leader is late, another receives nothing for a moment, then the leader is
  killed: copies end at different places, and not all have the high watermark that was shown.
- joiner: a replica about to join the in-sync set loses its power, while the leader that proposes it
  is cut off from the controller, and repeats the proposal when the replica is back.
- moves: partitions are to be held by others, and some of these moves are cancelled.
- handovers: two brokers that do not reach each other hand the leadership over and back, while both
  are in sync: each has rows of epochs that the other lacks.
- unflushed: a machine loses its power soon after it has cut rows off a log's end.
- snapshots: a coordinator of transactions is lost in the middle of a snapshot, or soon after it.
- no_controller: a broker is cut off from the controller, and from no other node.

Not here: rules about rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from quiverlog.core.controller.reassignment import cancel, reassign
from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.errors import QuiverlogError
from tests.sim.network import Link

from .host import ClusterHost

if TYPE_CHECKING:
    from quiverlog.core.controller.topic_image import TopicImage

    from .cluster import Cluster

__all__ = ["NO_AIMS", "AimPlan", "Aimed"]

_STRANDED_US: Final = 150_000
_LATE_US: Final = 60_000
_QUICK_US: Final = 20_000
_NO_CONTROLLER_US: Final = 3_500_000
"""Longer than a session."""


@dataclass(frozen=True, slots=True)
class AimPlan:
    """Intervals are means between two events (0: never), the others are chances."""

    stranded_interval_ms: int = 0
    stranded_newborn: float = 0.0
    lean_interval_ms: int = 0
    joiner: float = 0.0
    moves_interval_ms: int = 0
    no_controller_interval_ms: int = 0
    handovers_interval_ms: int = 0
    unflushed: float = 0.0
    snapshots: float = 0.0
    course: str = ""
    """One of `courses`, again and again."""


NO_AIMS: Final = AimPlan()


class Aimed:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.rng
        self._plan = cluster.scenario.aims
        self._striking = False
        self._ends: dict[tuple[int, int, str], int] = {}

    def begin(self) -> None:
        """From now on until the world is calm."""
        cluster, plan = self._cluster, self._plan
        cluster.every(plan.stranded_interval_ms, self._strand_leader)
        cluster.every(plan.lean_interval_ms, self._lean)
        cluster.every(plan.no_controller_interval_ms, self._cut_from_controller)
        cluster.every(plan.moves_interval_ms, self._move)
        cluster.every(plan.handovers_interval_ms, self._begin_handovers)

    # --- rows on one broker only ---------------------------------------------------------------
    def _leading(self) -> list[ClusterHost]:
        return [
            host for host in self._cluster.living
            if host.node is not None and host.node.broker.replicas and not host.is_paused
        ]  # fmt: skip

    def _strand_leader(self) -> None:
        leading = self._leading()
        if leading:
            self._strand(self._rng.choice(leading))

    def elected(self, host: ClusterHost) -> None:
        """This node has begun to lead a partition."""
        if self._rng.random() < self._plan.stranded_newborn:
            self._cluster.world.at(1, lambda: self._strand(host))

    def _strand(self, host: ClusterHost) -> None:
        if host.node is None or self._striking or self._cluster.world.calm:
            return
        self._striking = True
        self._cluster.world.faults["leader stranded"] += 1
        for other in self._cluster.hosts:
            if other is not host:
                self._cluster.world.network.cut(host.name, other.name)
        self._kill_soon(host, self._rng.randrange(1, 2 * _STRANDED_US))

    def _lean(self) -> None:
        """One copy is late, one misses the last messages."""
        leading = self._leading()
        if not leading or self._striking:
            return
        host = self._rng.choice(leading)
        others = [one for one in self._cluster.living if one is not host]
        if len(others) < 2:
            return
        self._striking = True
        self._cluster.world.faults["leader lean"] += 1
        late, deaf = self._rng.sample(others, 2)
        network = self._cluster.world.network
        link = Link(delay_us=self._rng.randrange(_LATE_US // 4, _LATE_US))
        network.links[host.name, late.name] = network.links[late.name, host.name] = link
        life = host.life

        def deafen() -> None:
            if host.life == life and not self._cluster.world.calm:
                network.cut_one_way(host.name, deaf.name)

        self._cluster.world.at(2 * _STRANDED_US, deafen)
        self._kill_soon(host, 2 * _STRANDED_US + self._rng.randrange(1, 2 * _LATE_US))

    def _kill_soon(self, host: ClusterHost, delay_us: int) -> None:
        cluster, life = self._cluster, host.life

        def strike() -> None:
            self._striking = False
            cluster.world.network.links.clear()
            if cluster.world.calm:
                return
            if host.node is not None and host.life == life and cluster.may_kill(host):
                cluster.goes_down(host)
                host.kill()
            cluster.world.network.heal()

        cluster.world.at(delay_us, strike)

    # --- leaders that hand over ----------------------------------------------------------------
    def _begin_handovers(self) -> None:
        cluster = self._cluster
        controller = cluster.controller()
        if self._striking or controller is None or not cluster.all_in_sync():
            return
        assert controller.node is not None
        topic = self._topic(controller)
        if topic is None:
            return
        partition = self._rng.choice(topic.partitions)
        pair = [n for n in partition.in_sync_replicas if n != controller.node_id][:2]
        if len(pair) < 2:
            return
        if partition.leader_id == pair[0]:
            pair.reverse()
        self._striking = True
        cluster.world.faults["handovers"] += 1
        cluster.world.network.cut(cluster.hosts[pair[0]].name, cluster.hosts[pair[1]].name)
        self._hand_over(partition.partition, pair, self._rng.randint(4, 5))

    def _hand_over(self, number: int, pair: list[int], left: int) -> None:
        """The controller may decide so: both are in sync."""
        controller, world = self._cluster.controller(), self._cluster.world
        topic = None if controller is None else self._topic(controller)
        if world.calm or controller is None or controller.node is None or topic is None or not left:
            self._striking = False
            if not world.calm:
                world.network.heal()
            return
        partition = topic.partitions[number]
        if set(pair) <= set(partition.in_sync_replicas) and partition.leader_id != pair[0]:
            record = PartitionChangeRecord(
                topic.topic_id,
                number,
                leader_id=pair[0],
                leader_epoch=partition.leader_epoch + 1,
            )
            broker = controller.node.broker
            broker.propose([record], controller.now, lambda _result, _error, _now: None)
            controller.feed()
        delay_us = self._rng.randrange(_STRANDED_US // 3, 3 * _STRANDED_US)
        world.at(delay_us, lambda: self._hand_over(number, pair[::-1], left - 1))

    def _topic(self, controller: ClusterHost) -> TopicImage | None:
        assert controller.node is not None
        pending = controller.node.broker.metadata.pending
        return pending.topics.get(self._cluster.scenario.topics[0].name)

    # --- rows that were cut --------------------------------------------------------------------
    def _look_for_cuts(self, host: ClusterHost) -> None:
        assert host.node is not None
        for replica in host.node.broker.assignment.all_open():
            place = (host.node_id, host.life, replica.name)
            before, end = self._ends.get(place, 0), replica.log.log_end_offset
            self._ends[place] = end
            if end < before and self._rng.random() < self._plan.unflushed:
                self._cluster.world.at(
                    self._rng.randrange(1, _STRANDED_US), partial(self._lose_power, host, host.life)
                )

    def _lose_power(self, host: ClusterHost, life: int) -> None:
        cluster = self._cluster
        if host.node is not None and host.life == life and cluster.may_lose_power(host):
            cluster.world.faults["power lost after a cut"] += 1
            cluster.goes_down(host)
            host.power_loss()

    def _look_for_snapshots(self, host: ClusterHost) -> None:
        assert host.node is not None
        snapshots = [hosted._snapshot for hosted in host.node.broker.coordinators._serving]
        begun = any(one is not None and one.begin_offset >= 0 for one in snapshots)
        if not begun or self._striking or self._rng.random() >= self._plan.snapshots:
            return
        self._striking = True
        self._cluster.world.faults["lost around a snapshot"] += 1
        self._kill_soon(host, self._rng.randrange(1, self._rng.choice((_QUICK_US, _STRANDED_US))))

    # --- the controller ------------------------------------------------------------------------
    def looked(self, host: ClusterHost) -> None:
        """Code of this node has run."""
        if self._plan.unflushed and host.node is not None:
            self._look_for_cuts(host)
        if self._plan.snapshots and host.node is not None:
            self._look_for_snapshots(host)
        if not self._plan.joiner or self._striking or host.node is None:
            return
        for replica in host.node.broker.replicas.values():
            leadership = replica.state.leadership
            if leadership is None or not leadership.in_sync.in_flight:
                continue
            joining = sorted(leadership.in_sync.maximal - leadership.in_sync.committed)
            if joining and self._rng.random() < self._plan.joiner:
                self._striking = True
                joiner = self._cluster.hosts[joining[0]]
                self._cluster.world.at(1, partial(self._fell, host, joiner))
                return

    def _fell(self, leader: ClusterHost, joiner: ClusterHost) -> None:
        cluster, world = self._cluster, self._cluster.world
        controller = cluster.controller()
        ready = joiner.node is not None and controller is not None and not world.calm
        if not ready or controller in (leader, joiner) or not cluster.may_lose_power(joiner):
            self._striking = False
            return
        assert controller is not None
        world.faults["joiner lost"] += 1
        world.network.cut(leader.name, controller.name)
        world.network.cut(leader.name, joiner.name)
        joiner.down_until_us = world.mono_us + self._rng.randrange(_QUICK_US)
        joiner.power_loss()

        def decides() -> None:
            world.network.mend(leader.name, controller.name)
            world.at(_STRANDED_US, over)

        def over() -> None:
            self._striking = False
            if not world.calm:
                world.network.heal()

        world.at(self._rng.randrange(30 * _QUICK_US, 70 * _QUICK_US), decides)

    def _move(self) -> None:
        """By a record of the controller, as the request for it ends in."""
        controller = self._cluster.controller()
        if controller is None or controller.node is None:
            return
        broker, rng = controller.node.broker, self._rng
        pending = broker.metadata.pending
        topic = pending.topics.get(self._cluster.scenario.topics[0].name)
        if topic is None:
            return
        partition = rng.choice(topic.partitions)
        cancels = partition.moves and rng.random() < 0.3
        count = len(partition.replicas) - len(partition.adding_replicas)
        target = rng.sample(sorted(pending.brokers), count)
        try:
            with controller.plant():  # Here its own code decides.
                if cancels:
                    records = cancel(topic, partition)
                else:
                    records = reassign(pending, topic, partition, target)
            if records:
                broker.propose(records, controller.now, lambda _result, _error, _now: None)
        except QuiverlogError:
            return
        self._cluster.world.faults["move cancelled" if cancels else "move"] += bool(records)
        controller.feed()

    def _cut_from_controller(self) -> None:
        controller, world = self._cluster.controller(), self._cluster.world
        if controller is None or self._striking:
            return
        host = self._rng.choice([one for one in self._cluster.hosts if one is not controller])
        self._striking = True
        world.faults["cut off from the controller"] += 1
        world.network.cut(host.name, controller.name)

        def over() -> None:
            self._striking = False
            if not world.calm:
                world.network.heal()

        world.at(_NO_CONTROLLER_US * self._cluster.scenario.tempo.scale, over)
