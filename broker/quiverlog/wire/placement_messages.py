"""The request about what lies on one broker's disk, as typed values; see `messages`.

Owns its field lists. Must not know: who is to hold what.
"""

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
    """Asks what the broker that is asked holds of these topics, in pages."""

    API: ClassVar[Api] = Api.DESCRIBE_REPLICAS
    names: PerTopic[str] | None = None
    first_name: str = ""


class ReplicaSize(Part, array_like=True, gc=False):
    """One replica that this broker holds."""

    partition: Int32 = -1
    size_bytes: Known = -1
    log_end_offset: Int64 = -1


class TopicReplicas(Part, array_like=True, gc=False):
    """Those of one topic. A topic of which the broker holds nothing is left out."""

    name: str = ""
    topic_id: TopicId = b""
    replicas: Annotated[list[ReplicaSize], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] = []


class DescribeReplicasResponse(Response, array_like=True, gc=False):
    """What the broker `node_id` holds."""

    API: ClassVar[Api] = Api.DESCRIBE_REPLICAS
    node_id: Int32 = -1
    room_bytes: Int64 = -1
    topics: PerTopic[TopicReplicas] = []
    next_name: str = ""
