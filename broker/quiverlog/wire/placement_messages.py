"""DESCRIBE_REPLICAS: the replicas on one broker's disk."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX

from .messages import Api, Int32, Int64, Known, Part, PerTopic, Request, Response, TopicId

__all__ = [
    "DescribeReplicasRequest",
    "DescribeReplicasResponse",
    "ReplicaSize",
    "TopicReplicas",
]


class DescribeReplicasRequest(Request, array_like=True, gc=False):
    """Asks the broker for its replicas of these topics, in pages."""

    API: ClassVar[Api] = Api.DESCRIBE_REPLICAS
    names: PerTopic[str] | None = None
    first_name: str = ""


class ReplicaSize(Part, array_like=True, gc=False):
    partition: Int32 = -1
    size_bytes: Known = -1
    log_end_offset: Int64 = -1


class TopicReplicas(Part, array_like=True, gc=False):
    """Topics without a replica there are left out."""

    name: str = ""
    topic_id: TopicId = b""
    replicas: Annotated[list[ReplicaSize], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] = []


class DescribeReplicasResponse(Response, array_like=True, gc=False):
    """The replicas of broker `node_id`."""

    API: ClassVar[Api] = Api.DESCRIBE_REPLICAS
    node_id: Int32 = -1
    room_bytes: Int64 = -1
    topics: PerTopic[TopicReplicas] = []
    next_name: str = ""
