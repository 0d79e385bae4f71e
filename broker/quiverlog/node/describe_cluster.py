"""DESCRIBE_CLUSTER: the brokers, the quorum, and how many partitions are not as they should be.

Owns this answer and what its counts mean. It is made from the image, in steps: what is being
decided is not true yet, and ten thousand topics do not hold up anybody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Final

from quiverlog.core.controller.eligible import min_in_sync
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import NO_LEADER, BrokerRecord
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.node.broker import Broker
from quiverlog.node.deciding import endpoint_at
from quiverlog.node.tasks import Call, Steps
from quiverlog.node.voters import describe_quorum
from quiverlog.wire.cluster_messages import (
    ClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

__all__ = ["handle_describe_cluster"]

_PARTITIONS_PER_STEP: Final = 64
"""Counting one takes about a microsecond, so a step takes as long as `tasks` expects of one."""


class _Counts:
    """Of partitions. Each of the first three is about all replicas that a partition should have:

    `under_replicated`: fewer are in sync. `under_min_in_sync`: fewer than `min.insync.replicas`
    are. `offline`: nobody leads it. `moving`: on its way to other brokers.

    By broker: `leaders`; `out_of_sync`, copies that are not in sync, but for those that a move
    adds; `needed`, partitions that would be below `min.insync.replicas` without it; `moved`, those
    that it holds and that are moving.
    """

    __slots__ = (
        "leaders",
        "moved",
        "moving",
        "needed",
        "offline",
        "out_of_sync",
        "partitions",
        "under_min_in_sync",
        "under_replicated",
    )

    def __init__(self) -> None:
        self.partitions = self.under_replicated = self.under_min_in_sync = self.offline = 0
        self.moving = 0
        self.leaders: Counter[int] = Counter()
        self.out_of_sync: Counter[int] = Counter()
        self.needed: Counter[int] = Counter()
        self.moved: Counter[int] = Counter()

    def add(self, topic: TopicImage, partition: PartitionImage) -> None:
        in_sync = partition.in_sync_replicas
        least = min_in_sync(topic.config, partition)
        self.partitions += 1
        self.under_min_in_sync += len(in_sync) < least
        if len(in_sync) < len(partition.replicas):
            self.under_replicated += 1
            self.out_of_sync.update(
                n for n in partition.replicas if n not in (*in_sync, *partition.adding_replicas)
            )
        if len(in_sync) <= least:
            self.needed.update(in_sync)
        if partition.moves:
            self.moving += 1
            self.moved.update(partition.replicas)
        if partition.leader_id == NO_LEADER:
            self.offline += 1
        else:
            self.leaders[partition.leader_id] += 1


def handle_describe_cluster(broker: Broker, call: Call) -> Steps:
    """What this broker knows, whoever decides."""
    assert isinstance(call.request, DescribeClusterRequest)
    counts = yield from _counted(broker.metadata.image)
    image = broker.metadata.image
    assert counts.under_replicated <= counts.partitions
    return DescribeClusterResponse(
        cluster_id=broker.directory.cluster_id,
        node_id=broker.config.node_id,
        metadata_version=image.version,
        controller_id=broker.membership.controller.controller_id,
        controller_epoch=broker.quorum.raft.term,
        brokers=[
            _described(broker, image.brokers[node_id], call, counts)
            for node_id in sorted(image.brokers)
        ],
        quorum=describe_quorum(broker, call.now),
        topic_count=len(image.topics),
        partition_count=counts.partitions,
        under_replicated_count=counts.under_replicated,
        under_min_in_sync_count=counts.under_min_in_sync,
        offline_count=counts.offline,
        moving_count=counts.moving,
        is_behind=broker.standing.is_over,
        heard_ms=broker.membership.registration.heard_ms(call.now),
    )


def _counted(image: Image) -> Generator[None, object, _Counts]:
    counts = _Counts()
    # A copy of the names: topics come and go while others have their turn.
    for name in list(image.topics):
        topic = image.topics.get(name)
        if topic is None:
            continue
        for partition in topic.partitions:
            counts.add(topic, partition)
            if counts.partitions % _PARTITIONS_PER_STEP == 0:
                yield
    assert counts.offline + counts.leaders.total() == counts.partitions
    return counts


def _described(broker: Broker, record: BrokerRecord, call: Call, counts: _Counts) -> ClusterBroker:
    address = endpoint_at(broker, record, call.connection_id)
    return ClusterBroker(
        node_id=record.node_id,
        broker_epoch=record.broker_epoch,
        host=address.host,
        port=address.port,
        rack=record.rack,
        is_fenced=record.fenced,
        in_shutdown=record.in_shutdown,
        leader_count=counts.leaders[record.node_id],
        replica_count=broker.metadata.image.replica_counts[record.node_id],
        out_of_sync_count=counts.out_of_sync[record.node_id],
        needed_count=counts.needed[record.node_id],
        moving_count=counts.moved[record.node_id],
        is_decommissioning=record.decommissioning,
        takes_partitions=record.takes_partitions,
        metadata_lag=broker.membership.registrar.metadata_lag(record.node_id),
        is_disk_full=record.node_id in broker.membership.full_disks,
        # A fenced one has reported it in an earlier life, perhaps.
        faulted_count=0 if record.fenced else broker.membership.registrar.faulted(record.node_id),
        second_at=broker.whereabouts.second_at(record.node_id, call.now),
    )
