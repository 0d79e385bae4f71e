"""What goes wrong with single machines: their disks, descriptors, links, clocks, and long sleeps.

Owns when and where a run's `FaultPlan` strikes and what ends each fault: an operator looks after a
machine whose disk has failed, within seconds while the work goes on, and at once when it is over.
Faults that cost a machine rows strike one machine at a time, as `Cluster.may_lose_power` allows; a
disk that is lost takes no vote of which the quorum has none to spare.

Not here: what clients want.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from quiverlog.core.raft.messages import ReplicaKey
from tests.sim.inodes import Directory
from tests.sim.network import Link

from .host import ClusterHost

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["UNNOTICED_JUMP_US", "Machines"]

_ERROR_RATES: Final = (0.1, 0.5, 1.0)
_ROOM_BYTES: Final = (0, 200, 3_000)
_STALLED_US: Final = (50_000, 700_000, 3_000_000)
_LINKS: Final = (Link(loss=0.05), Link(delay_us=30_000), Link(delay_us=400_000), Link(0.02, 5_000))
UNNOTICED_JUMP_US: Final = 60_000_000
"""A broker believes a clock that has gained so much between two looks (docs/adr/0024)."""
_JUMPS_US: Final = (-3_600_000_000, -2_000_000, 500_000, UNNOTICED_JUMP_US, 8 * 86_400_000_000)
_SESSIONS_US: Final = (2_500_000, 5_000_000)
"""Longer than a broker's session, and than the quorum waits for its leader."""

_FLIPPED: Final = (".log", ".log", ".log", ".index", ".snapshot", "leader-epochs")
_SPARED_BYTES: Final = 8
_EMPTY_US: Final = 20_000_000


class Machines:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.rng
        self._scale = cluster.scenario.tempo.scale
        self._images: dict[int, Directory] = {}
        self._ailing: set[int] = set()
        """Nodes whose process has to be started again before all is well."""
        self.failing: set[int] = set()
        """Those of them whose fsyncs or reads fail or have failed: their last rows may be on no
        disk, or rows count as damaged, so that their copy is made anew."""
        self.rotten: set[int] = set()
        """The one node on whose disk bits are flipped, if there is one: their number is open."""

    def begin(self) -> None:
        """From now on until the world is calm."""
        cluster, plan = self._cluster, self._cluster.scenario.plan
        for host in cluster.hosts:
            host.disk.reorder_pages = bool(plan.page_order)
        cluster.every(plan.wipe_interval_ms, self._wipe)
        cluster.every(plan.old_disk_interval_ms // 2, self._take_image)
        cluster.every(plan.old_disk_interval_ms, self._put_image)
        cluster.every(plan.disk_error_interval_ms, self._disk_fails)
        cluster.every(plan.emfile_interval_ms, self._no_descriptors)
        cluster.every(plan.full_interval_ms, self._fill)
        cluster.every(plan.stall_interval_ms, self._stall)
        cluster.every(plan.lonely_power_interval_ms, self._power)
        cluster.every(plan.link_interval_ms, self._worsen_links)
        cluster.every(plan.long_pause_interval_ms, self._pause)
        cluster.every(plan.clock_interval_ms, self._jump)
        cluster.every(plan.flip_interval_ms, self._flip)

    def end(self) -> None:
        """What lasted ends, and a node that needs it is started again."""
        self._cluster.world.network.links.clear()
        for host in self._cluster.hosts:
            host.stalled_us = 0
            host.disk.quiet()
            self.make_room(host)
        for node_id in sorted(self._ailing):
            self._restart(self._cluster.hosts[node_id])

    # --- disks that are lost -------------------------------------------------------------------
    def _wipe(self) -> None:
        """An empty disk: all that this machine had is gone, its vote too."""
        host = self._cluster.victim()
        if host.life and self._may_lose_disk(host):
            self._cluster.world.faults["disk wiped"] += 1
            self._lose(host, None)

    def _take_image(self) -> None:
        host = self._rng.choice(self._cluster.hosts)
        if host.node is not None and host.directory_id:
            self._images[host.node_id] = host.disk.image()

    def _put_image(self) -> None:
        """The disk as it was a while ago, under the same names: of a broker without a vote.

        No quorum survives voters that lose what they have promised: such a disk has to be wiped
        instead (docs/cluster.md).
        """
        known = [
            host for host in self._cluster.members
            if host.node_id in self._images and not self._votes(host)
        ]  # fmt: skip
        if not known:
            return
        host = self._rng.choice(known)
        if self._may_lose_disk(host):
            self._cluster.world.faults["old disk"] += 1
            self._lose(host, self._images.pop(host.node_id))

    def _lose(self, host: ClusterHost, image: Directory | None) -> None:
        self._cluster.goes_down(host)
        host.change_disk(image)
        # Partitions whose directory is missing are offline until the controller relies on others.
        until_us = max(host.down_until_us, self._cluster.world.mono_us) + _EMPTY_US * self._scale
        host.offline_until_us = max(host.offline_until_us, until_us)
        self._images.pop(host.node_id, None)
        self._recovers(host)
        self._cluster.frail.add(host.node_id)
        self._cluster.bare.add(host.node_id)

    def _recovers(self, host: ClusterHost) -> None:
        """The process is another one now."""
        self._ailing.discard(host.node_id)
        if host.node_id in self.failing:
            self.failing.discard(host.node_id)
            self._cluster.frail.add(host.node_id)

    def _votes(self, host: ClusterHost) -> bool:
        """Has this disk, or one before it, perhaps ever had a vote?"""
        operator = self._cluster.operator
        added = set() if operator is None else operator.added
        return host in self._cluster.first_voters or host.node_id in added

    def _may_lose_disk(self, host: ClusterHost) -> bool:
        """Return whether others have its rows, and the voters go on without it."""
        cluster = self._cluster
        leader = cluster.controller()
        if leader is None or leader.node is None or not cluster.may_lose(host):
            return False
        if not cluster.scenario.gate("killed-while-frail") and not cluster.all_in_sync():
            return False  # A host may just have been killed.
        raft = leader.node.broker.quorum.raft
        if raft.log.commit < raft.log.last_index or raft.log.last.term != raft.term:
            return False  # The voters may be about to be others.
        possible = [frozenset(raft.voters)]
        if cluster.operator is not None:
            if not cluster.operator.is_sure:
                return False
            possible = cluster.operator.possible(raft.voters)
        # The leader may be about to make a voter of this very disk.
        own = ReplicaKey(host.node_id, host.directory_id)
        return all(
            self._is_minority(host, one) and self._is_minority(host, one | {own})
            for one in possible
        )

    def _is_minority(self, host: ClusterHost, voters: Collection[ReplicaKey]) -> bool:
        """Without this host's disk, and those that are gone already?"""
        gone = [
            key for key in voters
            if key.node_id == host.node_id
            or key.directory_id != self._cluster.hosts[key.node_id].directory_id
        ]  # fmt: skip
        return len(gone) <= (len(voters) - 1) // 2

    def _flip(self) -> None:
        """A bit of a file turns while its machine is down: always the same machine's.

        No other one may lose rows from then on: two that lack different rows need an operator
        (docs/replication.md).
        """
        cluster = self._cluster
        host = cluster.hosts[min(self.rotten)] if self.rotten else cluster.victim()
        if host.node is None or not (cluster.may_lose(host) and cluster.all_in_sync()):
            return
        leader = cluster.controller()
        assert leader is not None
        assert leader.node is not None
        topics = leader.node.broker.metadata.image.topics.values()
        names = {f"{t.name}-{p.partition}" for t in topics for p in t.partitions
                 if len(p.replicas) > 1}  # fmt: skip
        suffix = self._rng.choice(_FLIPPED)
        paths = [path for path in host.disk.paths() if path.endswith(suffix)]
        paths = [path for path in paths if path.split("/")[-2] in names]
        paths = [path for path in paths if host.disk.durable_size(path) > _SPARED_BYTES]
        if not paths:
            return
        path = self._rng.choice(sorted(paths))
        bits = (_SPARED_BYTES * 8, host.disk.durable_size(path) * 8)
        self.rotten.add(host.node_id)
        host.is_rotten = True
        cluster.goes_down(host)
        host.kill()
        host.disk.flip_bit(path, self._rng.randrange(*bits))
        cluster.world.faults["bit flipped"] += 1
        cluster.world.faults[f"bit flipped in {suffix}"] += 1

    # --- disks that fail -----------------------------------------------------------------------
    def _disk_fails(self) -> None:
        """Reads, writes or fsyncs meet EIO for a while; then an operator looks at the machine."""
        host = self._cluster.victim()
        if host.node is None or host.node_id in self._ailing:
            return
        kind, rate = self._rng.choice(("read", "write", "fsync")), self._rng.choice(_ERROR_RATES)
        if kind != "write" and not self._cluster.may_lose(host):
            return  # It costs rows, and so may others have.
        self._cluster.world.faults[f"{kind}s fail for a while"] += 1
        disk = host.disk
        if kind == "read":
            disk.read_error_rate = rate
        elif kind == "write":
            disk.write_error_rate = rate
        else:
            disk.sync_error_rate = rate
        if kind != "write":
            self.failing.add(host.node_id)
        self._ailing.add(host.node_id)

        def over() -> None:
            disk.quiet()
            self._later(3_000_000, lambda: self._restart(host))

        self._later(1_000_000, over)

    def ails(self, host: ClusterHost) -> None:
        """The process of this machine is to be started again before all is well."""
        self._ailing.add(host.node_id)

    def _restart(self, host: ClusterHost) -> None:
        """What an operator does about a broker whose disk has failed."""
        self._recovers(host)
        if host.node is None:
            return
        self._cluster.world.faults["restarted by hand"] += 1
        if (self._rng.random() < 0.5 and not host.is_paused) or not self._cluster.may_kill(host):
            host.stop()
        else:
            host.kill()

    def _no_descriptors(self) -> None:
        host = self._cluster.victim()
        if host.node is None:
            return
        self._cluster.world.faults["no descriptors"] += 1
        host.disk.descriptors_gone = True

        def back() -> None:
            host.disk.descriptors_gone = False

        self._later(1_500_000, back)

    def _fill(self) -> None:
        host = self._cluster.victim()
        if host.node is None or host.disk.capacity is not None:
            return
        self._cluster.world.faults["full disk"] += 1
        host.disk.set_full(self._rng.randrange(1 + self._rng.choice(_ROOM_BYTES)))
        self._later(3_000_000, lambda: self.make_room(host))

    def make_room(self, host: ClusterHost) -> None:
        """The disk of this machine is full no more."""
        if host.disk.capacity is not None:
            host.disk.set_full(None)
            host.disk_space(1 << 40)

    def _stall(self) -> None:
        """Every job waits for a disk that hardly moves."""
        host = self._cluster.victim()
        self._cluster.world.faults["stalled disk"] += 1
        host.stalled_us = self._rng.choice(_STALLED_US)

        def over() -> None:
            host.stalled_us = 0

        self._later(3_000_000, over)

    def _power(self) -> None:
        host = self._cluster.victim()
        if host.node is not None and self._cluster.may_lose(host):
            self._cluster.goes_down(host)
            host.power_loss()

    # --- links, clocks, sleeps -----------------------------------------------------------------
    def _worsen_links(self) -> None:
        """Ways between single brokers get worse, each way on its own, until they are others."""
        network, hosts = self._cluster.world.network, self._cluster.hosts
        network.links.clear()
        for _ in range(self._rng.randint(1, len(hosts))):
            source, target = self._rng.sample(hosts, 2)
            network.links[source.name, target.name] = self._rng.choice(_LINKS)
        self._cluster.world.faults["bad links"] += 1

    def _pause(self) -> None:
        host = self._cluster.victim()
        if host.node is not None and not host.is_paused:
            self._cluster.world.faults["pause longer than a session"] += 1
            host.pause(self._rng.randint(*_SESSIONS_US) * self._scale)

    def _jump(self) -> None:
        """The wall clock of one machine jumps, and stays there until it jumps again."""
        host = self._rng.choice(self._cluster.hosts)
        before, host.wall_offset_us = host.wall_offset_us, self._rng.choice((0, *_JUMPS_US))
        if host.wall_offset_us != before:
            way = "ahead" if host.wall_offset_us > before else "back"
            self._cluster.world.faults[f"clock jump {way}"] += 1

    def _later(self, mean_us: int, action: Callable[[], None]) -> None:
        """Unless the work is over by then: `end` has done it."""

        def act() -> None:
            if not self._cluster.world.calm:
                action()

        delay_us = 1 + int(self._rng.expovariate(1 / (mean_us * self._scale)))
        self._cluster.world.at(delay_us, act)
