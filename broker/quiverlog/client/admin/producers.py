"""The state of one producer id in the partitions that it wrote to, from their leaders.

All live brokers are asked, as each reports the partitions that it leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quiverlog.client.base.commands import Operation
from quiverlog.client.cluster.metadata import check
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import QuiverlogError
from quiverlog.types import NO_EPOCH
from quiverlog.wire.producer_messages import DescribeProducerRequest, DescribeProducerResponse

__all__ = ["ProducerDescription", "ProducerWrites", "describe_producer"]

_BROKER_S_MAX: Final = 5.0
"""A broker that is silent must not use up the time of the others."""


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
    def attempt() -> Operation[ProducerDescription]:
        yield from cluster.refresh([])
        found: dict[tuple[str, int], ProducerWrites] = {}
        silent: list[int] = []
        newest = NO_EPOCH
        asked = sorted(cluster.metadata.brokers)
        failure: QuiverlogError | None = None
        for node_id in asked:
            try:
                epoch = yield from _ask(cluster, node_id, producer_id, names, found)
                newest = max(newest, epoch)
            except QuiverlogError as error:
                failure = error
                silent.append(node_id)
        if failure is not None and len(silent) == len(asked):
            raise failure
        partitions = tuple(found[key] for key in sorted(found))
        newest_given = None if newest == NO_EPOCH else newest
        return ProducerDescription(producer_id, newest_given, partitions, tuple(silent))

    return (yield from cluster.retrying(attempt))


def _ask(
    cluster: Cluster,
    node_id: int,
    producer_id: int,
    names: Sequence[str] | None,
    found: dict[tuple[str, int], ProducerWrites],
) -> Operation[int]:
    first_name = ""
    timeout_s = min(_BROKER_S_MAX, cluster.settings.request_timeout_s)
    while True:
        request = DescribeProducerRequest(
            producer_id=producer_id,
            names=None if names is None else list(names),
            first_name=first_name,
        )
        reply = yield cluster.call(cluster.address_of(node_id), request, timeout_s=timeout_s)
        check(reply.response)
        response = reply.response
        assert isinstance(response, DescribeProducerResponse)
        for topic in response.topics:
            for one in topic.partitions:
                writes = ProducerWrites(
                    topic.name,
                    one.partition,
                    node_id,
                    one.producer_epoch,
                    one.next_sequence,
                    one.last_offset,
                    one.idle_ms / 1_000,
                )
                # Two report a partition while its leadership changes: the one that has more rows.
                key = (topic.name, one.partition)
                if key not in found or found[key].last_offset < one.last_offset:
                    found[key] = writes
        first_name = response.next_name
        if not first_name:
            return response.newest_epoch
