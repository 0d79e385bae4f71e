"""What stands in for parts of the cluster that the shipped broker does not wire up by itself yet.

Owns the first voters of the quorum, the way to the controller, and a stand-in
for the controller: who is dead, who leads which partition, who is in sync. Every decision is made
by the shipped quorum; each of these goes when the shipped part is there.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.image import Image, PartitionImage
from quiverlog.core.controller.records import (
    LEADER_STAYS,
    NO_LEADER,
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.core.raft.messages import HardState, ReplicaKey, SnapshotMeta
from quiverlog.errors import NotController, QuiverlogError
from quiverlog.node.assignment import Assignment
from quiverlog.node.effects import Peer, Purpose
from quiverlog.node.jobs import Then
from quiverlog.node.node import Node
from quiverlog.node.peers import Answer
from quiverlog.node.replica import Replica
from quiverlog.storage.data_directory import DataDirectory
from quiverlog.storage.metadata_frames import VERSION_QUORUM, file_header, pack_frame
from quiverlog.storage.quorum_items import Snapshot, pack_snapshot
from quiverlog.storage.quorum_state import STATE_FILE, pack_state
from quiverlog.types import NO_EPOCH, Now
from quiverlog.wire.replica_messages import AlterPartitionRequest
from tests.sim.checker import Key
from tests.sim.host import DATA_DIR
from tests.sim.rows import schema_of

from .host import ClusterHost

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["CLUSTER_ID", "StandIn", "ask_controllers", "make_directories"]

CLUSTER_ID = "the-cluster"
_LOOK_US = 100_000
_SILENT_US = 1_000_000


def make_directories(hosts: Sequence[ClusterHost]) -> None:
    """A directory for each node, whose metadata log names them all as voters."""
    directories = [
        DataDirectory.open(
            host.disk, DATA_DIR, node_id=host.node_id, cluster_id=CLUSTER_ID,
            entropy=host.rng.randbytes,
        )
        for host in hosts
    ]  # fmt: skip
    voters = {
        ReplicaKey(host.node_id, directory.directory_id): f"{host.name}:9292"
        for host, directory in zip(hosts, directories, strict=True)
    }
    item = pack_snapshot(Snapshot(SnapshotMeta(0, 0, voters), b""))
    log = file_header(VERSION_QUORUM) + pack_frame([item])
    for host, directory in zip(hosts, directories, strict=True):
        path = directory.metadata_path
        host.disk.make_dir(path)
        host.disk.write_file_atomic(f"{path}/{STATE_FILE}", pack_state(HardState(0, None)))
        host.disk.write_file_atomic(f"{path}/metadata.log", log)
        directory.close(clean=True, metadata_bytes=len(log), written=frozenset())
        host.disk.process_death()


def ask_controllers(host: ClusterHost, node: Node) -> None:
    """Who is in sync is asked of whoever leads the quorum."""
    broker = node.broker

    def ask_controller(request: AlterPartitionRequest, then: Then, now: Now) -> None:
        if broker.quorum.is_leading:
            broker.in_sync_decisions.decide(request, then, now)
            return
        leader = broker.quorum.raft.leader
        if leader is None:
            raise NotController
        peer = Peer(leader.node_id, Purpose.CONTROL)

        def answered(answer: object, error: BaseException | None, now: Now) -> None:
            then(answer.response if isinstance(answer, Answer) else None, error, now)

        broker.peers.ask(peer, request, answered, now)

    broker.in_sync_changes._ask = ask_controller
    broker.assignment.__class__ = _GluedAssignment
    _GluedAssignment.waiting.add(host.node_id)


class _GluedAssignment(Assignment):
    """A broker leads nothing before it has heard of what was decided since its process began."""

    __slots__ = ()

    waiting: ClassVar[set[int]] = set()

    def _lead_or_follow(self, replica: Replica, partition: PartitionImage, now: Now) -> None:
        node_id = self._config.node_id
        if partition.leader_id == node_id and node_id in self.waiting and not replica.state.leads:
            record = partition.record(replica.topic.topic_id)
            partition = PartitionImage(msgspec.structs.replace(record, leader_id=NO_LEADER))
        super()._lead_or_follow(replica, partition, now)


class StandIn:
    """The controller's decisions, by somebody who sees who lives."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        _GluedAssignment.waiting.clear()
        self._rng = random.Random(f"stand-in-{cluster.scenario.seed}")
        self._dead_since: dict[int, int] = {}
        self.must_leave: set[tuple[int, Key]] = set()
        """Copies of processes that have died: out of sync until they have caught up."""
        self._keys: list[Key] = []
        self._asked: object = None
        self._asked_term = 0

    def begin(self) -> None:
        """Look again and again."""
        self._look()
        self._cluster.world.at(self._rng.randrange(1, 2 * _LOOK_US), self.begin)

    def died(self, host: ClusterHost) -> None:
        """A process is gone, and perhaps what it had not flushed."""
        self.must_leave |= {(host.node_id, key) for key in self._keys}

    # --- topics --------------------------------------------------------------------------------
    def create(self) -> bool:
        """Register all brokers and create the topics. False: nobody decides yet."""
        cluster = self._cluster
        leader = cluster.controller()
        if leader is None:
            return False
        if any(host.node is None for host in cluster.hosts):
            return False
        records = [one for host in cluster.hosts for one in self._register(Image({}), host)]
        for place, topic in enumerate(cluster.scenario.topics):
            topic_id = bytes([place + 1]) * 16
            records.append(TopicRecord(topic_id, topic.name, 1, topic.replicas))
            records += [ConfigRecord(topic_id, *config) for config in topic.configs]
            records.append(SchemaRecord(topic_id, 1, 1, bytes(serialize_schema(schema_of(1)))))
            for partition in range(topic.partitions):
                self._keys.append((topic_id, partition))
                first = self._rng.randrange(len(cluster.hosts))
                count = min(topic.replicas, len(cluster.hosts))
                replicas = tuple((first + n) % len(cluster.hosts) for n in range(count))
                records.append(
                    PartitionRecord(topic_id, partition, replicas, replicas, replicas[0])
                )
        return self._decide(leader, records)

    def _decide(
        self, leader: ClusterHost, records: list[Record], leaving: Collection[tuple[int, Key]] = ()
    ) -> bool:
        assert leader.node is not None
        self._asked = asked = object()

        def then(_result: object, error: BaseException | None, _now: Now) -> None:
            if self._asked is asked:
                self._asked = None
            if error is None:
                self.must_leave.difference_update(leaving)

        try:
            leader.node.broker.propose(records, leader.now, then)
        except QuiverlogError:
            self._asked = None
            return False
        leader.feed()
        return True

    # --- who leads, who is in sync -------------------------------------------------------------
    def _look(self) -> None:
        cluster = self._cluster
        leader = cluster.controller()
        for host in cluster.hosts:
            if host.node is not None and not host.is_paused and self._reaches(leader, host):
                self._dead_since.pop(host.node_id, None)
            else:
                self._dead_since.setdefault(host.node_id, cluster.world.mono_us)
        term = 0 if leader is None or leader.node is None else leader.node.broker.quorum.raft.term
        if leader is None or leader.is_paused or leader.node is None:
            return
        if self._asked is not None and term == self._asked_term:
            return
        self._asked_term = term
        image = leader.node.broker.metadata.pending
        records: list[Record] = []
        for host in cluster.hosts:
            records += self._register(image, host)
        for topic in image.topics.values():
            for one in topic.partitions:
                records += self._change(topic.topic_id, one)
        if not records:
            self._welcome(leader)
            return
        about = {(r.topic_id, r.partition) for r in records if isinstance(r, PartitionChangeRecord)}
        leaving = {one for one in self.must_leave if one[1] in about}
        self._decide(leader, records, leaving)

    def _register(self, image: Image, host: ClusterHost) -> list[Record]:
        """A broker that is there and not known, or known and not there any more."""
        known = image.brokers.get(host.node_id)
        if not self._is_alive(host.node_id):
            if known is None or known.fenced:
                return []
            return [BrokerChangeRecord(host.node_id, known.broker_epoch, fenced=True)]
        if host.node is None or host.node_id in self._dead_since:
            return []
        directory = getattr(host.node.broker, "directory", None)
        if directory is None:
            return []
        if known is None or known.incarnation != directory.incarnation:
            return [BrokerRecord(host.node_id, directory.incarnation, host.name, 9292,
                                 directory_id=directory.directory_id)]  # fmt: skip
        if known.fenced:
            return [BrokerChangeRecord(host.node_id, known.broker_epoch, fenced=False)]
        return []

    def _welcome(self, leader: ClusterHost) -> None:
        """Whoever has heard of all decisions may lead."""
        assert leader.node is not None
        version = leader.node.broker.metadata.image.version
        for host in self._cluster.living:
            left = any(node_id == host.node_id for node_id, _ in self.must_leave)
            if host.node_id in _GluedAssignment.waiting and not left and host.node is not None:
                broker = host.node.broker
                is_known = broker.registered.own_epoch >= 0
                if is_known and broker.metadata.image.version >= version and not host.is_paused:
                    _GluedAssignment.waiting.discard(host.node_id)
                    image = broker.metadata.image
                    broker.assignment.reconcile(image, image.topics_by_id, host.now)
                    host.feed()

    def _reaches(self, leader: ClusterHost | None, host: ClusterHost) -> bool:
        network = self._cluster.world.network
        return leader is None or not (
            network.is_cut(leader.name, host.name) or network.is_cut(host.name, leader.name)
        )

    def _is_alive(self, node_id: int) -> bool:
        since_us = self._dead_since.get(node_id)
        return since_us is None or self._cluster.world.mono_us - since_us < _SILENT_US

    def _change(self, topic_id: bytes, one: PartitionImage) -> list[Record]:
        key = (topic_id, one.partition)
        gone = {node_id for node_id, left in self.must_leave if left == key}
        in_sync = tuple(n for n in one.in_sync_replicas if self._is_alive(n) and n not in gone)
        if not in_sync:
            longest = self._longest(key, one)
            if longest is None:
                return []
            in_sync = (longest,)
        leader_id = one.leader_id if one.leader_id in in_sync else self._rng.choice(in_sync)
        restarted = bool(gone)
        if leader_id == one.leader_id and not restarted:
            if set(in_sync) == set(one.in_sync_replicas):
                return []
            return [PartitionChangeRecord(topic_id, one.partition, in_sync_replicas=in_sync)]
        return [
            PartitionChangeRecord(
                topic_id,
                one.partition,
                leader_id=leader_id if leader_id != one.leader_id else LEADER_STAYS,
                leader_epoch=one.leader_epoch + 1 if leader_id >= 0 else NO_EPOCH,
                in_sync_replicas=in_sync,
            )
        ]

    def _longest(self, key: Key, one: PartitionImage) -> int | None:
        """Nobody in sync has been there all the time: who has most, when all are back."""
        ends: list[tuple[int, int]] = []
        for node_id in one.in_sync_replicas:
            node = self._cluster.hosts[node_id].node
            replica = None if node is None else node.broker.assignment.find(key)
            if replica is None or not self._is_alive(node_id):
                return None
            ends.append((replica.log.log_end_offset, node_id))
        return max(ends)[1]
