"""REASSIGN_PARTITIONS: moving partitions to other brokers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX, REPLICATION_FACTOR_MAX

from .messages import (
    Api,
    BrokerEndpoint,
    Int32,
    Int64,
    Part,
    PerTopic,
    Request,
    Response,
    UInt63,
)

__all__ = [
    "REASSIGN_PARTITIONS_CONTAINERS_MAX",
    "PartitionReplicas",
    "PartitionTarget",
    "ReassignPartitionsRequest",
    "ReassignPartitionsResponse",
    "TopicMoves",
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
