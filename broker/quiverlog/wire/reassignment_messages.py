"""Where replicas lie: REASSIGN_PARTITIONS moves partitions to other brokers, DESCRIBE_REPLICAS
lists the replicas on one broker's disk."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX, REPLICATION_FACTOR_MAX

from .messages import (
    Api,
    BrokerEndpoint,
    Int32,
    Int64,
    Known,
    Part,
    PerTopic,
    Request,
    Response,
    TopicId,
    UInt63,
)

__all__ = [
    "REASSIGN_PARTITIONS_CONTAINERS_MAX",
    "DescribeReplicasRequest",
    "DescribeReplicasResponse",
    "PartitionReplicas",
    "PartitionTarget",
    "ReassignPartitionsRequest",
    "ReassignPartitionsResponse",
    "ReplicaSize",
    "TopicMoves",
    "TopicReplicas",
]

REASSIGN_PARTITIONS_CONTAINERS_MAX = 2 * PARTITIONS_PER_TOPIC_MAX + 2
"""A message, its list, and for each partition an entry with its list of brokers."""

Replicas = Annotated[list[Int32], Meta(max_length=REPLICATION_FACTOR_MAX)]
# While it moves, a partition is held by the replicas before and after.
Both = Annotated[list[Int32], Meta(max_length=2 * REPLICATION_FACTOR_MAX)]


class PartitionTarget(Part, array_like=True, gc=False):
    """The replicas that a partition moves to; none: it moves back to the previous ones."""

    partition: Int32 = -1
    replicas: Replicas = []


class ReassignPartitionsRequest(Request, array_like=True, gc=False):
    """Asks that partitions of a topic move, all or none of them. Without partitions: asks which of
    the topic's partitions move; without a name, which of any topic, in pages."""

    API: ClassVar[Api] = Api.REASSIGN_PARTITIONS
    name: str = ""
    partitions: Annotated[list[PartitionTarget], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] = []
    move_bytes_per_s: Int64 = 0
    changes_count: bool = False
    validate_only: bool = False
    first_name: str = ""

    @property
    def only_asks(self) -> bool:
        return not self.partitions


class PartitionReplicas(Part, array_like=True, gc=False):
    """The partition moves while any replicas are added or removed."""

    partition: Int32 = -1
    replicas: Both = []
    in_sync_replicas: Both = []
    adding_replicas: Replicas = []
    removing_replicas: Both = []
    move_bytes_per_s: UInt63 = 0


class TopicMoves(Part, array_like=True, gc=False):
    name: str = ""
    moves: Annotated[list[PartitionReplicas], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] = []


class ReassignPartitionsResponse(Response, array_like=True, gc=False):
    """The partitions that were named, or those that move; with no name, `topics`."""

    API: ClassVar[Api] = Api.REASSIGN_PARTITIONS
    moves: Annotated[list[PartitionReplicas], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] = []
    controller: BrokerEndpoint | None = None
    topics: PerTopic[TopicMoves] = []
    next_name: str = ""


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
