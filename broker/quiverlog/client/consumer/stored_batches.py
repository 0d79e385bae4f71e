"""Stored batches, produced and fetched without encoding or decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quiverlog.client.base.commands import Buffer, Call, CallMany, Operation, Reply
from quiverlog.client.base.deadline import within
from quiverlog.client.base.results import Address, FetchedPartition, Produced
from quiverlog.client.cluster.answers import about, named
from quiverlog.client.cluster.metadata import check
from quiverlog.client.cluster.partition_questions import Entry, leader_epoch, raise_for
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import (
    InvalidArgument,
    QuiverlogError,
)
from quiverlog.types import NO_EPOCH, Durability, TopicPartition
from quiverlog.wire import messages as m


def raw_produce(
    cluster: Cluster,
    name: str,
    batches: Mapping[int, Sequence[Buffer]],
    *,
    durability: Durability,
    timeout_s: float | None,
) -> Operation[dict[int, Produced]]:
    """Send encoded batches, one request per leader. No retry."""
    seconds = timeout_s or cluster.settings.request_timeout_s
    operation = _raw_produce(cluster, name, batches, durability, seconds)
    timed = within(cluster.clock, seconds, operation)
    return (yield from about(name, timed, *batches))


def _raw_produce(
    cluster: Cluster,
    name: str,
    batches: Mapping[int, Sequence[Buffer]],
    durability: Durability,
    seconds: float,
) -> Operation[dict[int, Produced]]:
    def entry(partition: int, size: int) -> Entry:
        return lambda t: m.ProducePartition(t.topic_id, partition, leader_epoch(t, partition), size)

    topic = yield from cluster.topic(name)
    by_leader: dict[Address, list[int]] = {}
    for partition in batches:
        by_leader.setdefault(cluster.leader_address(topic, partition), []).append(partition)
    calls = []
    for address, partitions in by_leader.items():
        parts = [entry(p, sum(memoryview(b).nbytes for b in batches[p]))(topic) for p in partitions]
        request = m.ProduceRequest(
            durability=durability, timeout_ms=round(seconds * 1000), partitions=parts
        )
        body = [b for p in partitions for b in batches[p]]
        calls.append(Call(address, request, seconds, body))
    replies: list[Reply | QuiverlogError] = yield CallMany(calls)
    produced: dict[int, Produced] = {}
    for partitions, reply in zip(by_leader.values(), replies, strict=True):
        if isinstance(reply, QuiverlogError):
            raise named(reply, name, *partitions)
        check(reply.response)
        assert isinstance(reply.response, m.ProduceResponse)
        for r in reply.response.partitions:
            raise_for(r, TopicPartition(name, r.partition))
            level = Durability(r.durability)
            produced[r.partition] = Produced(
                r.partition, r.base_offset, r.row_count, level, r.duplicate
            )
    return produced


def raw_fetch(
    cluster: Cluster,
    name: str,
    offsets: Mapping[int, int],
    *,
    max_wait_s: float,
    min_bytes: int,
    bytes_max: int,
    partition_bytes_max: int,
    end_offsets: Mapping[int, int],
) -> Operation[dict[int, FetchedPartition]]:
    """Fetch whole batches; partitions' errors stay in the results."""

    def attempt() -> Operation[dict[int, FetchedPartition]]:
        topic = yield from cluster.topic(name)
        by_leader: dict[Address, list[m.FetchPartition]] = {}
        for p, offset in offsets.items():
            by_leader.setdefault(cluster.leader_address(topic, p), []).append(
                m.FetchPartition(
                    topic.topic_id,
                    p,
                    leader_epoch(topic, p),
                    offset,
                    NO_EPOCH,
                    partition_bytes_max,
                    end_offsets.get(p, -1),
                )
            )
        calls = [
            Call(
                address,
                m.FetchRequest(
                    max_wait_ms=round(max_wait_s * 1000),
                    min_bytes=min_bytes,
                    bytes_max=bytes_max,
                    partitions=parts,
                ),
                cluster.settings.request_timeout_s + max_wait_s,
            )
            for address, parts in by_leader.items()
        ]
        replies: list[Reply | QuiverlogError] = yield CallMany(calls)
        fetched: dict[int, FetchedPartition] = {}
        for parts, reply in zip(by_leader.values(), replies, strict=True):
            if isinstance(reply, QuiverlogError):
                raise named(reply, name, *(p.partition for p in parts))
            fetched.update((f.partition, f) for f in split_fetch(reply))
        return fetched

    timeout_s = cluster.settings.request_timeout_s + max_wait_s
    operation = cluster.retrying(attempt, timeout_s=timeout_s)
    return (yield from about(name, operation, *offsets))


def raw_call(
    cluster: Cluster,
    request: m.Request,
    node_id: int | None,
    *,
    body: Sequence[Buffer],
    timeout_s: float | None,
) -> Operation[Reply]:
    seconds = timeout_s or cluster.settings.request_timeout_s
    if node_id is None:
        if body:
            raise InvalidArgument("raw_call: a request with a body needs node_id.")
        return (yield from within(cluster.clock, seconds, cluster.call_any(request)))
    reply: Reply = yield Call(cluster.address_of(node_id), request, seconds, body)
    return reply


def split_fetch(reply: Reply) -> list[FetchedPartition]:
    check(reply.response)
    assert isinstance(reply.response, m.FetchResponse)
    at = 0  # The parts follow one another; `check_answer` has compared their sizes.
    fetched = []
    for r in reply.response.partitions:
        end = at + r.batch_bytes
        fetched.append(
            FetchedPartition(
                topic_id=r.topic_id,
                partition=r.partition,
                body=reply.body[at:end],
                leader_epoch=r.leader_epoch,
                log_start_offset=r.log_start_offset,
                high_watermark=r.high_watermark,
                last_stable_offset=r.last_stable_offset,
                error_code=r.error_code,
                error_message=r.error_message,
                diverging_epoch=r.diverging_epoch,
                diverging_end_offset=r.diverging_end_offset,
                damage_start_offset=r.damage_start_offset,
                damage_end_offset=r.damage_end_offset,
            )
        )
        at = end
    assert at == len(reply.body)
    return fetched
