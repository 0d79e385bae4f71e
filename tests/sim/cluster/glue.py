"""Replaces the parts of the cluster that the shipped broker does not wire up by itself yet.

Owns the first voters of the quorum, and the creation of topics whose replicas are drawn. Everything
else is decided by the shipped brokers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.features import level_records
from quiverlog.core.controller.internal_topics import TRANSACTION_TOPICS
from quiverlog.core.controller.records import (
    ConfigRecord,
    PartitionRecord,
    Record,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.core.controller.topics import ensure_internal_topics
from quiverlog.core.raft.messages import HardState, ReplicaKey, SnapshotMeta
from quiverlog.errors import QuiverlogError
from quiverlog.limits import BROKER_SESSION_MS_DEFAULT, FEATURE_LEVEL_MAX
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.metadata.metadata_log import file_header, pack_frame
from quiverlog.storage.metadata.quorum_jobs import STATE_FILE, Snapshot, pack_snapshot, pack_state
from tests.sim.host import DATA_DIR
from tests.sim.rows import schema_of

from .host import ClusterHost

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["CLUSTER_ID", "PORT", "Setup", "make_directories"]

CLUSTER_ID = "the-cluster"
PORT = 9292
_LOOK_US = 100_000
_COPIES = 3
_SESSION_US = BROKER_SESSION_MS_DEFAULT * 1000


def make_directories(hosts: Sequence[ClusterHost]) -> None:
    """A directory for each node, whose metadata log names them all as voters.

    None for a single one: it begins the cluster by itself.
    """
    if len(hosts) == 1:
        return
    directories = [
        DataDirectory.open(
            host.disk, DATA_DIR, node_id=host.node_id, cluster_id=CLUSTER_ID,
            entropy=host.rng.randbytes,
        )
        for host in hosts
    ]  # fmt: skip
    voters = {
        ReplicaKey(host.node_id, directory.directory_id): f"{host.name}:{PORT}"
        for host, directory in zip(hosts, directories, strict=True)
    }
    item = pack_snapshot(Snapshot(SnapshotMeta(0, 0, voters), b""))
    log = file_header() + pack_frame([item])
    for host, directory in zip(hosts, directories, strict=True):
        path = directory.metadata_path
        host.disk.make_dir(path)
        host.disk.write_file_atomic(f"{path}/{STATE_FILE}", pack_state(HardState(0, None)))
        host.disk.write_file_atomic(f"{path}/metadata.log", log)
        directory.close(clean=True, metadata_bytes=len(log), written=frozenset())
        host.disk.process_death()


class Setup:
    """Creates the topics, as records of the controller."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"stand-in-{cluster.scenario.seed}")

    # --- topics --------------------------------------------------------------------------------
    def create(self) -> bool:
        """Create the topics. False: there is no controller yet, or a broker is not registered."""
        cluster = self._cluster
        leader = cluster.controller()
        if leader is None or leader.node is None:
            return False
        if leader.node.broker.metadata.pending.topics:
            return True
        live = leader.node.broker.metadata.image.live_brokers()
        members = [host.node_id for host in cluster.members]
        if len(live) < len(members):
            return False
        if cluster.scenario.aims.course and len(members) > _COPIES:
            members.remove(leader.node_id)  # What happens to the leader happens to no other node.
        records: list[Record] = []
        if cluster.scenario.clients.needs_newest_level:
            image = leader.node.broker.metadata.pending
            if image.feature_level < FEATURE_LEVEL_MAX:
                records += level_records(image, FEATURE_LEVEL_MAX, CLUSTER_ID)
        for place, topic in enumerate(cluster.scenario.topics):
            topic_id = bytes([place + 1]) * 16
            records.append(TopicRecord(topic_id, topic.name, 1, topic.replicas))
            records += [ConfigRecord(topic_id, *config) for config in topic.configs]
            records.append(SchemaRecord(topic_id, 1, 1, bytes(serialize_schema(schema_of(1)))))
            for partition in range(topic.partitions):
                first = self._rng.randrange(len(members))
                count = min(topic.replicas, len(members))
                replicas = tuple(members[(first + n) % len(members)] for n in range(count))
                records.append(
                    PartitionRecord(topic_id, partition, replicas, replicas, replicas[0])
                )
        return self._decide(leader, records)

    def create_internal(self) -> bool:
        """Create the topics of transactions, as the first OPEN would in the middle of faults."""
        leader = self._cluster.controller()
        if leader is None or leader.node is None:
            return False
        image = leader.node.broker.metadata.pending
        if image.topics.keys() >= set(TRANSACTION_TOPICS):
            return True
        records = ensure_internal_topics(
            image, staged=0, now_us=leader.now.wall_us, entropy=self._rng.randbytes
        )
        return self._decide(leader, records)

    def _decide(self, leader: ClusterHost, records: list[Record]) -> bool:
        assert leader.node is not None
        try:
            leader.node.broker.propose(records, leader.now, lambda _result, _error, _now: None)
        except QuiverlogError:
            return False
        leader.feed()
        return True
