"""What stands in for parts of the cluster that the shipped broker does not wire up by itself yet.

Owns the wiring of the quorum to the connections between brokers, its first voters, and a stand-in
for the controller: who is dead, who leads which partition, who is in sync. Every decision is made
by the shipped quorum; each of these goes when the shipped part is there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from quiverlog.addresses import Address
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.image import PartitionImage
from quiverlog.core.controller.records import (
    LEADER_STAYS,
    NO_LEADER,
    BrokerRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.core.raft.messages import Entry, HardState, Message, ReplicaKey, SnapshotMeta
from quiverlog.errors import QuiverlogError
from quiverlog.node.assignment import Assignment
from quiverlog.node.node import Node
from quiverlog.node.quorum import Quorum
from quiverlog.node.quorum_parts import StateMachine
from quiverlog.node.quorum_wire import pack
from quiverlog.node.replica import Replica
from quiverlog.node.replica_fetch import Everybody
from quiverlog.storage.data_directory import DataDirectory
from quiverlog.storage.metadata_frames import VERSION_QUORUM, file_header, pack_frame
from quiverlog.storage.quorum_items import Snapshot, pack_snapshot
from quiverlog.storage.quorum_log import QuorumLog
from quiverlog.storage.quorum_state import STATE_FILE, pack_state
from quiverlog.types import NO_EPOCH, Now
from tests.sim.checker import Key
from tests.sim.host import DATA_DIR
from tests.sim.rows import schema_of

from .host import ClusterHost

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["CLUSTER_ID", "StandIn", "connect_quorum", "make_directories"]

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
        ReplicaKey(host.node_id, directory.directory_id): host.name
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


def connect_quorum(hosts: Sequence[ClusterHost], host: ClusterHost, node: Node) -> None:
    """Messages of the quorum travel over the connections between brokers."""
    broker = node.broker
    others = {h.node_id: Address(h.name, 1) for h in hosts if h is not host}

    def send(messages: Sequence[Message]) -> None:
        for packed in pack(CLUSTER_ID, messages):
            broker.peers.tell(packed.node_id, packed.request, packed.body)

    def receive(messages: Sequence[Message], now: Now) -> None:
        for message in messages:
            broker.quorum.step(message, now)

    broker.quorum.__class__ = _GluedQuorum
    broker.assignment.__class__ = _GluedAssignment
    _GluedAssignment.waiting.add(host.node_id)
    broker.quorum._send = send
    broker.quorum_inbox.serve(receive)
    broker.peers.addresses_changed(others)


class _GluedQuorum(Quorum):
    """Knows at its start what is decided of what its log holds: see `decided`."""

    __slots__ = ()

    decided: ClassVar[dict[int, int]] = {}
    """Terms of the entries that somebody has applied."""

    def start(self, log: QuorumLog, machine: StateMachine, now: Now) -> None:
        super().start(log, machine, now)
        for entry in log.entries(log.first_index, 1 << 62):
            if self.decided.get(entry.index) != entry.term:
                break
            self._apply(entry, now)

    def _apply(self, entry: Entry, now: Now) -> None:
        self.decided[entry.index] = entry.term
        super()._apply(entry, now)


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
        _GluedQuorum.decided.clear()
        _GluedAssignment.waiting.clear()
        self._rng = random.Random(f"stand-in-{cluster.scenario.seed}")
        self._dead_since: dict[int, int] = {}
        self.must_leave: set[tuple[int, Key]] = set()
        """Copies of processes that have died: out of sync until they have caught up."""
        self._keys: list[Key] = []

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
        records: list[Record] = [
            BrokerRecord(h.node_id, bytes(16), h.name, 9292) for h in cluster.hosts
        ]
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
                for number in replicas:
                    self._make_directory(number, f"{topic.name}-{partition}", topic_id)
                records.append(
                    PartitionRecord(topic_id, partition, replicas, replicas, replicas[0])
                )
        return self._decide(leader, records)

    def _make_directory(self, node_id: int, name: str, topic_id: bytes) -> None:
        node = self._cluster.hosts[node_id].node
        assert node is not None
        node.broker.directory.create_partition(name, topic_id)
        node.broker.directory.sync_partitions()

    def _decide(self, leader: ClusterHost, records: list[Record]) -> bool:
        assert leader.node is not None
        try:
            leader.node.broker.propose(records, leader.now, lambda _result, _error, _now: None)
        except QuiverlogError:
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
        if leader is None or leader.is_paused or leader.node is None:
            return
        image = leader.node.broker.metadata.pending
        records: list[Record] = []
        for topic in image.topics.values():
            for one in topic.partitions:
                records += self._change(topic.topic_id, one)
        if not records:
            self._welcome(leader)
        elif self._decide(leader, records):
            decided = {(r.topic_id, r.partition) for r in records
                       if isinstance(r, PartitionChangeRecord)}  # fmt: skip
            self.must_leave = {one for one in self.must_leave if one[1] not in decided}

    def _welcome(self, leader: ClusterHost) -> None:
        """Whoever has heard of all decisions may lead."""
        assert leader.node is not None
        version = leader.node.broker.metadata.image.version
        for host in self._cluster.living:
            if host.node_id in _GluedAssignment.waiting and host.node is not None:
                broker = host.node.broker
                if broker.metadata.image.version >= version and not host.is_paused:
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
        if gone and not gone & set(one.in_sync_replicas):
            self.must_leave = {left for left in self.must_leave if left[1] != key}
            gone = set()
        in_sync = tuple(n for n in one.in_sync_replicas if self._is_alive(n) and n not in gone)
        if not in_sync:
            longest = self._longest(key, one)
            if longest is None:
                return []
            in_sync = (longest,)
        if in_sync == one.in_sync_replicas:
            in_sync = tuple(n for n in self._wanted(topic_id, one) if self._is_alive(n))
        leader_id = one.leader_id if one.leader_id in in_sync else self._rng.choice(in_sync)
        restarted = one.leader_id in gone
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

    def _wanted(self, topic_id: bytes, one: PartitionImage) -> tuple[int, ...]:
        """Whom the leader would have in sync: asked without a message."""
        as_is = one.in_sync_replicas
        host = self._cluster.hosts[one.leader_id] if one.leader_id >= 0 else None
        if host is None or host.node is None or host.is_paused:
            return as_is
        replica = host.node.broker.replicas.get((topic_id, one.partition))
        if replica is None or replica.state.leadership is None:
            return as_is
        leadership, state = replica.state.leadership, replica.state
        in_sync = leadership.in_sync
        if in_sync.partition_epoch != one.partition_epoch or in_sync.outdated:
            return as_is
        if in_sync.asking:
            proposal = leadership.propose_again()
        else:
            found = leadership.propose(
                state.log_end_offset, state.high_watermark, Everybody(0), host.now.mono_us
            )
            if found is None:
                return as_is
            proposal = found
        in_sync.unanswered()
        return proposal.members
