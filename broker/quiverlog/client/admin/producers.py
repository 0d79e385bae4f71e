"""The state of one producer id in the partitions that it wrote to, from their leaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quiverlog.client.base.commands import Operation
from quiverlog.client.cluster.each_broker import ask_each_broker
from quiverlog.client.cluster.routing import Cluster
from quiverlog.types import NO_EPOCH
from quiverlog.wire.producer_messages import (
    DescribeProducerRequest,
    DescribeProducerResponse,
    ProducerPartition,
)

__all__ = ["ProducerDescription", "ProducerWrites", "describe_producer"]


@dataclass(frozen=True, slots=True)
class ProducerWrites:
    """A producer's state in one partition.

    Attributes:
        leader: node id of the broker that reports it.
        epoch: under which the producer wrote last.
        next_sequence: the sequence of its next row.
        last_offset: the offset of its newest row.
        idle_s: seconds since its newest batch, or since the leader opened the partition.
    """

    topic: str
    partition: int
    leader: int
    epoch: int
    next_sequence: int
    last_offset: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """One producer id.

    Attributes:
        epoch: the newest epoch that was assigned: producers with an older one are refused. None:
            no broker has a record of the id.
        partitions: those that it wrote to, while their leaders keep its state.
        silent: node ids of brokers that did not answer; their partitions are missing.
    """

    producer_id: int
    epoch: int | None
    partitions: tuple[ProducerWrites, ...]
    silent: tuple[int, ...]


def describe_producer(
    cluster: Cluster, producer_id: int, names: Sequence[str] | None = None
) -> Operation[ProducerDescription]:
    request = DescribeProducerRequest(
        producer_id=producer_id, names=None if names is None else list(names)
    )
    pages, silent = yield from ask_each_broker(cluster, request)
    found: dict[tuple[str, int], ProducerWrites] = {}
    newest = NO_EPOCH
    for node_id, responses in pages.items():
        for response in responses:
            assert isinstance(response, DescribeProducerResponse)
            newest = max(newest, response.newest_epoch)
            for topic in response.topics:
                for one in topic.partitions:
                    # Two brokers report it while its leadership changes: more rows count.
                    before = found.get((topic.name, one.partition))
                    if before is None or before.last_offset < one.last_offset:
                        found[topic.name, one.partition] = _writes(node_id, topic.name, one)
    partitions = tuple(found[key] for key in sorted(found))
    epoch = None if newest == NO_EPOCH else newest
    return ProducerDescription(producer_id, epoch, partitions, tuple(silent))


def _writes(leader: int, topic: str, one: ProducerPartition) -> ProducerWrites:
    return ProducerWrites(
        topic,
        one.partition,
        leader,
        one.producer_epoch,
        one.next_sequence,
        one.last_offset,
        one.idle_ms / 1_000,
    )
