"""DESCRIBE_PRODUCER: the leaders' state of one producer id."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX
from quiverlog.types import NO_EPOCH

from .messages import (
    Api,
    Int64,
    NodeId,
    Part,
    PerTopic,
    ProducerEpoch,
    Request,
    Response,
    TopicId,
    UInt31,
    UInt63,
)

__all__ = [
    "DescribeProducerRequest",
    "DescribeProducerResponse",
    "ProducerPartition",
    "TopicProducer",
]


class DescribeProducerRequest(Request, array_like=True, gc=False):
    """Asks a broker what it remembers of a producer in the partitions that it leads, in pages."""

    API: ClassVar[Api] = Api.DESCRIBE_PRODUCER
    producer_id: Int64 = -1
    names: PerTopic[str] | None = None
    first_name: str = ""


class ProducerPartition(Part, array_like=True, gc=False):
    """What a leader remembers of the producer in one partition."""

    partition: UInt31 = 0
    producer_epoch: ProducerEpoch = NO_EPOCH
    next_sequence: UInt31 = 0
    last_offset: UInt63 = 0
    idle_ms: UInt63 = 0


class TopicProducer(Part, array_like=True, gc=False):
    """A topic in which the broker remembers nothing of the producer is left out."""

    name: str = ""
    topic_id: TopicId = b""
    partitions: Annotated[list[ProducerPartition], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)] = []


class DescribeProducerResponse(Response, array_like=True, gc=False):
    """What the broker `node_id` remembers of the producer."""

    API: ClassVar[Api] = Api.DESCRIBE_PRODUCER
    node_id: NodeId = -1
    newest_epoch: ProducerEpoch = NO_EPOCH
    topics: PerTopic[TopicProducer] = []
    next_name: str = ""
