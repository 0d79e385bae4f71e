"""DESCRIBE_REPLICAS: how large the replicas are that this broker holds, led or followed.

Owns this answer. Every broker speaks of its own disk alone; who has to hold what is the image's.
"""

from __future__ import annotations

from typing import Final

from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.node import paging
from quiverlog.node.broker import Broker
from quiverlog.node.tasks import Call, Steps
from quiverlog.node.topics import check_count
from quiverlog.wire.placement_messages import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ReplicaSize,
    TopicReplicas,
)

__all__ = ["handle_describe_replicas"]

_PARTITIONS_PER_STEP: Final = 64


def handle_describe_replicas(broker: Broker, call: Call) -> Steps:
    """Topics that are gone, or of which nothing is here, are left out."""
    request = call.request
    assert isinstance(request, DescribeReplicasRequest)
    topics = broker.metadata.image.topics
    names = list(topics) if request.names is None else request.names
    check_count(len(names))
    found, next_name = yield from paging.by_name(
        names,
        request.first_name,
        lambda name: _held(broker, topics.get(name), name),
        lambda _name: 0,
    )
    return DescribeReplicasResponse(
        node_id=broker.config.node_id,
        room_bytes=broker.admission.room_bytes,
        topics=[one for one in found if one.replicas],
        next_name=next_name,
    )


def _held(broker: Broker, topic: TopicImage | None, name: str) -> paging.Making[TopicReplicas]:
    if topic is None:
        return TopicReplicas(name=name)
    sizes: list[ReplicaSize] = []
    for partition in topic.partitions:
        if partition.partition % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
            yield
        if broker.config.node_id not in partition.replicas:
            continue
        replica = broker.assignment.find((topic.topic_id, partition.partition))
        size = ReplicaSize(partition.partition)  # It may not be open yet, or not at all.
        if replica is not None:
            size.size_bytes = replica.log.size_bytes
            size.log_end_offset = replica.log.log_end_offset
        sizes.append(size)
    return TopicReplicas(name, topic.topic_id, sizes)
