"""What stands in for parts of the cluster that the shipped broker does not wire up by itself yet.

Owns the first voters of the quorum, the way to the controller, and a stand-in for what hosts the
shipped decisions of a controller: registrations, heartbeats, elections. Every decision is made by
the shipped quorum; each of these goes when the shipped part is there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.image import PartitionImage
from quiverlog.core.controller.records import (
    NO_LEADER,
    BrokerRecord,
    ConfigRecord,
    PartitionRecord,
    Record,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.core.controller.registrations import Heartbeat, Registrations
from quiverlog.core.raft.messages import HardState, ReplicaKey, SnapshotMeta
from quiverlog.errors import NotController, QuiverlogError
from quiverlog.limits import BROKER_SESSION_MS_DEFAULT
from quiverlog.node.assignment import Assignment
from quiverlog.node.broker import Broker
from quiverlog.node.effects import Peer, Purpose
from quiverlog.node.jobs import Then
from quiverlog.node.node import Node
from quiverlog.node.peers import Answer
from quiverlog.node.replica import Replica
from quiverlog.storage.data_directory import DataDirectory
from quiverlog.storage.metadata_frames import VERSION_QUORUM, file_header, pack_frame
from quiverlog.storage.quorum_items import Snapshot, pack_snapshot
from quiverlog.storage.quorum_state import STATE_FILE, pack_state
from quiverlog.types import Now
from quiverlog.wire.replica_messages import AlterPartitionRequest
from tests.sim.host import DATA_DIR
from tests.sim.rows import schema_of

from .host import ClusterHost

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["CLUSTER_ID", "StandIn", "ask_controllers", "make_directories"]

CLUSTER_ID = "the-cluster"
_LOOK_US = 100_000
_SESSION_US = BROKER_SESSION_MS_DEFAULT * 1000


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
    """Hosts the shipped decisions of a controller, without the requests that lead to them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        _GluedAssignment.waiting.clear()
        self._rng = random.Random(f"stand-in-{cluster.scenario.seed}")
        self._clean: dict[int, bytes] = {}
        self._asked: object = None
        self._term = 0
        self._registrations: Registrations | None = None

    def begin(self) -> None:
        """Look again and again."""
        self._look()
        self._cluster.world.at(self._rng.randrange(1, 2 * _LOOK_US), self.begin)

    def died(self, host: ClusterHost, clean: bool) -> None:
        """A process is gone, and perhaps what it had not flushed."""
        if clean:
            self._clean[host.node_id] = host.incarnation

    # --- topics --------------------------------------------------------------------------------
    def create(self) -> bool:
        """Create the topics. False: nobody decides yet, or somebody is not known."""
        cluster = self._cluster
        leader = cluster.controller()
        if leader is None or leader.node is None:
            return False
        if leader.node.broker.metadata.pending.topics:
            return True
        live = leader.node.broker.metadata.image.live_brokers()
        if len(live) < len(cluster.hosts):
            return False
        records: list[Record] = []
        for place, topic in enumerate(cluster.scenario.topics):
            topic_id = bytes([place + 1]) * 16
            records.append(TopicRecord(topic_id, topic.name, 1, topic.replicas))
            records += [ConfigRecord(topic_id, *config) for config in topic.configs]
            records.append(SchemaRecord(topic_id, 1, 1, bytes(serialize_schema(schema_of(1)))))
            for partition in range(topic.partitions):
                first = self._rng.randrange(len(cluster.hosts))
                count = min(topic.replicas, len(cluster.hosts))
                replicas = tuple((first + n) % len(cluster.hosts) for n in range(count))
                records.append(
                    PartitionRecord(topic_id, partition, replicas, replicas, replicas[0])
                )
        return self._decide(leader, records)

    def _decide(self, leader: ClusterHost, records: list[Record]) -> bool:
        assert leader.node is not None
        self._asked = asked = object()

        def then(_result: object, _error: BaseException | None, _now: Now) -> None:
            if self._asked is asked:
                self._asked = None

        try:
            leader.node.broker.propose(records, leader.now, then)
        except QuiverlogError:
            self._asked = None
            return False
        leader.feed()
        return True

    # --- who lives -----------------------------------------------------------------------------
    def _look(self) -> None:
        self._welcome()
        leader = self._cluster.controller()
        if leader is None or leader.is_paused or leader.node is None:
            return
        broker = leader.node.broker
        term = broker.quorum.raft.term
        if self._registrations is None or term != self._term:
            self._term, self._asked = term, None
            self._registrations = Registrations(leader.node_id, leader.incarnation, _SESSION_US)
            self._registrations.begin(broker.metadata.image, leader.now.mono_us, {})
        if self._asked is None:
            with leader.plant():
                self._decide_something(leader, broker)

    def _decide_something(self, leader: ClusterHost, broker: Broker) -> None:
        assert self._registrations is not None
        for host in self._cluster.hosts:
            if host.is_serving and not host.is_paused and self._reaches(leader, host):
                records = self._heard(self._registrations, leader, host)
                if records:
                    self._decide(leader, records)
                    return
        records = self._registrations.silent(broker.metadata.pending, leader.now.mono_us)
        if records:
            self._decide(leader, records)

    def _heard(
        self, registrations: Registrations, leader: ClusterHost, host: ClusterHost
    ) -> list[Record]:
        """What follows from a registration, or from a heartbeat."""
        assert leader.node is not None
        assert host.node is not None
        metadata, now_us = leader.node.broker.metadata, leader.now.mono_us
        known = metadata.pending.brokers.get(host.node_id)
        if known is None or known.incarnation != host.incarnation:
            newcomer = BrokerRecord(
                host.node_id, host.incarnation, host.name, 9292,
                directory_id=host.node.broker.directory.directory_id,
            )  # fmt: skip
            clean = self._clean.get(host.node_id, b"")
            return registrations.register(metadata.pending, newcomer, clean, now_us)
        if known.broker_epoch < 0:
            return []
        version = host.node.broker.metadata.image.version
        beat = Heartbeat(host.node_id, known.broker_epoch, version)
        return registrations.heartbeat(metadata.image, metadata.pending, beat, now_us).records

    def _reaches(self, leader: ClusterHost, host: ClusterHost) -> bool:
        network = self._cluster.world.network
        return not (
            network.is_cut(leader.name, host.name) or network.is_cut(host.name, leader.name)
        )

    def _welcome(self) -> None:
        """Whoever has heard of its own registration may lead."""
        for host in self._cluster.living:
            if host.node_id in _GluedAssignment.waiting and host.node is not None:
                broker = host.node.broker
                if broker.registered.own_epoch >= 0 and not host.is_paused:
                    _GluedAssignment.waiting.discard(host.node_id)
                    image = broker.metadata.image
                    broker.assignment.reconcile(image, image.topics_by_id, host.now)
                    host.feed()
