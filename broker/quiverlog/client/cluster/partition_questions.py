"""Operations that ask partitions' leaders: grouped by leader, answered per partition.

A name means the topic that has it now, unless `topic_ids` has its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, TypeVar

from quiverlog.client.base.commands import Call, Operation
from quiverlog.client.base.results import Address, OffsetAndEpoch, RangeSize, TopicInfo
from quiverlog.errors import (
    InvalidArgument,
    QuiverlogError,
    UnknownTopicId,
    error_from_code,
)
from quiverlog.types import EARLIEST, LATEST, TopicPartition
from quiverlog.wire import messages as m

from .answers import about, named
from .metadata import check, partition_info
from .routing import Cluster, answers_of_leaders

T = TypeVar("T")

At: TypeAlias = "Literal['earliest', 'latest'] | datetime"
AtSpec: TypeAlias = "At | Mapping[int, At]"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def at_us(at: At) -> int:
    """Convert to the wire's form, or raise InvalidArgument."""
    if at == "latest":
        return LATEST
    if at == "earliest":
        return EARLIEST
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidArgument(
                f"{at!r} has no time zone: write datetime(..., tzinfo=timezone.utc)."
            )
        # In whole numbers: a float may be off by a microsecond, which would skip rows. A subclass's
        # nanoseconds round up: "at or after" excludes rows before the moment.
        return max(0, -((_EPOCH - at) // timedelta(microseconds=1)))
    raise InvalidArgument(f"{at!r} is none of 'earliest', 'latest' or a datetime.")


def raise_for(result: Any, what: str | TopicPartition) -> None:
    if result.error_code:
        message = result.error_message or f"{what}: refused."
        error = error_from_code(result.error_code, message)
        if isinstance(what, TopicPartition):
            named(error, what.topic, what.partition)
        else:
            named(error, what)
        raise error


Entry: TypeAlias = "Callable[[TopicInfo], Any]"
"""Makes a partition's entry of a request, once the topic is known."""


def ask_leaders(
    cluster: Cluster,
    entries: Mapping[TopicPartition, Entry],
    request: Callable[[list[Any]], m.Request],
    *,
    wait_s: float = 0.0,
) -> Operation[tuple[list[m.Response], dict[TopicPartition, Any]]]:
    """Send each partition's entry to its leader; return responses and results. No retry.

    Errors of partitions stay in their results; the first call that failed as a whole is raised:
    NotLeader for a silent leader that has a successor.
    """
    by_leader: dict[Address, list[Any]] = {}
    names: dict[tuple[bytes, int], TopicPartition] = {}
    for where, make in entries.items():
        topic = yield from cluster.topic(where.topic)
        entry = make(topic)
        names[entry.topic_id, where.partition] = where
        by_leader.setdefault(cluster.leader_address(topic, where.partition), []).append(entry)
    timeout_s = cluster.settings.request_timeout_s + wait_s
    questions = [
        (
            Call(address, request(parts), timeout_s),
            [names[part.topic_id, part.partition] for part in parts],
        )
        for address, parts in by_leader.items()
    ]
    replies = yield from answers_of_leaders(cluster, questions, wait_s)
    responses: list[m.Response] = []
    results: dict[TopicPartition, Any] = {}
    for parts, reply in zip(by_leader.values(), replies, strict=True):
        try:
            if isinstance(reply, QuiverlogError):
                raise reply
            check(reply.response)
        except QuiverlogError as error:
            _name_by_entries(error, parts, names)
            raise
        responses.append(reply.response)
        found: Iterable[Any] = reply.response.partitions  # type: ignore[attr-defined]
        results.update((names[r.topic_id, r.partition], r) for r in found)
    yield from _resolve_unknown_ids(cluster, results)
    return responses, results


def _resolve_unknown_ids(
    cluster: Cluster, results: Mapping[TopicPartition, Any]
) -> Operation[None]:
    """Make UnknownTopicId retriable where the topic exists: its leader may not have applied it."""
    resolved: dict[bytes, QuiverlogError] = {}
    for where, result in results.items():
        if result.error_code == UnknownTopicId.code:
            topic_id = result.topic_id
            if topic_id not in resolved:
                error = UnknownTopicId(result.error_message)
                resolved[topic_id] = yield from cluster.resolve_unknown_id(
                    where.topic, topic_id, error
                )
            result.error_code = resolved[topic_id].code
            result.error_message = resolved[topic_id].message


def _name_by_entries(
    error: QuiverlogError,
    entries: Sequence[Any],
    names: Mapping[tuple[bytes, int], TopicPartition],
) -> None:
    key = (error.details.get("topic_id"), error.details.get("partition"))
    about = [names[e.topic_id, e.partition] for e in entries if (e.topic_id, e.partition) == key]
    if not about:  # It is about the request.
        about = [names[e.topic_id, e.partition] for e in entries]
    topic = about[0].topic
    named(error, topic, *(w.partition for w in about if w.topic == topic))


def _about_all(places: Iterable[TopicPartition], operation: Operation[T]) -> Operation[T]:
    found = list(places)
    if len({where.topic for where in found}) != 1:  # An error names one topic.
        return operation
    return about(found[0].topic, operation, *(where.partition for where in found))


def leader_epoch(topic: TopicInfo, partition: int) -> int:
    return partition_info(topic, partition).leader_epoch


def _good(results: Mapping[TopicPartition, Any]) -> list[tuple[TopicPartition, Any]]:
    for where, result in results.items():
        raise_for(result, where)
    return sorted(results.items())


def list_offsets(cluster: Cluster, name: str, at: AtSpec) -> Operation[dict[int, int | None]]:
    def attempt() -> Operation[dict[int, int | None]]:
        # Fresh, to include partitions that other clients have added.
        topic = yield from cluster.topic(name, fresh=not isinstance(at, Mapping))
        wanted: Mapping[int, At]
        wanted = at if isinstance(at, Mapping) else {p.partition: at for p in topic.partitions}
        entries = {TopicPartition(name, p): offset_entry(p, at_us(a)) for p, a in wanted.items()}
        _, results = yield from ask_leaders(
            cluster, entries, lambda parts: m.ListOffsetsRequest(partitions=parts)
        )
        return {w.partition: (r.offset if r.offset >= 0 else None) for w, r in _good(results)}

    return (yield from about(name, cluster.retrying(attempt)))


def offset_entry(partition: int, at: int, known: int = -1, topic_id: bytes = b"") -> Entry:
    return lambda topic: m.ListOffsetsPartition(
        topic_id or topic.topic_id, partition, leader_epoch(topic, partition), at, known
    )


def offsets_with_epochs(
    cluster: Cluster,
    at: Mapping[TopicPartition, int],
    *,
    known: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, bytes],
    max_wait_s: float,
    metadata_version: int,
) -> Operation[tuple[int, dict[TopicPartition, OffsetAndEpoch]]]:
    def attempt() -> Operation[tuple[int, dict[TopicPartition, OffsetAndEpoch]]]:
        entries = {
            w: offset_entry(w.partition, a, known.get(w, -1), topic_ids.get(w.topic, b""))
            for w, a in at.items()
        }
        responses, results = yield from ask_leaders(
            cluster,
            entries,
            lambda parts: m.ListOffsetsRequest(
                max_wait_ms=round(max_wait_s * 1000),
                metadata_version=metadata_version,
                partitions=parts,
            ),
            wait_s=max_wait_s,
        )
        version = max((r.metadata_version for r in responses), default=-1)  # type: ignore[attr-defined]
        return version, {
            w: OffsetAndEpoch(
                r.offset, r.leader_epoch, r.timestamp_us, r.error_code, r.error_message
            )
            for w, r in results.items()
        }

    timeout_s = cluster.settings.request_timeout_s + max_wait_s
    return (yield from _about_all(at, cluster.retrying(attempt, timeout_s=timeout_s)))


def epoch_end_offsets(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], *, topic_ids: Mapping[str, bytes]
) -> Operation[dict[TopicPartition, OffsetAndEpoch]]:
    def entry(where: TopicPartition, epoch: int) -> Entry:
        p, pinned = where.partition, topic_ids.get(where.topic)
        return lambda t: m.EpochEndOffsetsPartition(
            pinned or t.topic_id, p, leader_epoch(t, p), epoch
        )

    def attempt() -> Operation[dict[TopicPartition, OffsetAndEpoch]]:
        _, results = yield from ask_leaders(
            cluster,
            {w: entry(w, e) for w, e in epochs.items()},
            lambda parts: m.EpochEndOffsetsRequest(partitions=parts),
        )
        return {w: OffsetAndEpoch(r.end_offset, r.epoch) for w, r in _good(results)}

    return (yield from _about_all(epochs, cluster.retrying(attempt)))


def describe_ranges(
    cluster: Cluster,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    *,
    bytes_max: int,
    topic_ids: Mapping[str, bytes],
) -> Operation[dict[TopicPartition, RangeSize]]:
    def entry(where: TopicPartition, start: int, end: int) -> Entry:
        p, pinned = where.partition, topic_ids.get(where.topic)
        return lambda t: m.RangePartition(pinned or t.topic_id, p, start, end, bytes_max)

    def attempt() -> Operation[dict[TopicPartition, RangeSize]]:
        _, results = yield from ask_leaders(
            cluster,
            {w: entry(w, *bounds) for w, bounds in ranges.items()},
            lambda parts: m.DescribeRangesRequest(partitions=parts),
        )
        return {w: RangeSize(r.end_offset, r.byte_count, r.first_row_us) for w, r in _good(results)}

    return (yield from _about_all(ranges, cluster.retrying(attempt)))


def delete_records(
    cluster: Cluster, name: str, before: Mapping[int, int | Literal["latest"]]
) -> Operation[dict[int, int]]:
    offsets = _bounds(before)

    def entry(partition: int, offset: int) -> Entry:
        return lambda t: m.DeleteRecordsPartition(t.topic_id, partition, offset)

    def attempt() -> Operation[dict[int, int]]:
        _, results = yield from ask_leaders(
            cluster,
            {TopicPartition(name, p): entry(p, o) for p, o in offsets.items()},
            lambda parts: m.DeleteRecordsRequest(partitions=parts),
        )
        return {w.partition: r.log_start_offset for w, r in _good(results)}

    return (yield from about(name, cluster.retrying(attempt)))


def _bounds(before: Mapping[int, int | Literal["latest"]]) -> dict[int, int]:
    """Convert to the wire's form, where -1 is the end."""
    if not isinstance(before, Mapping):
        raise InvalidArgument(f"delete_records: give {{partition: offset}}, not {before!r}.")
    for offset in before.values():
        if offset != "latest" and (not isinstance(offset, int) or offset < 0):
            raise InvalidArgument(
                f"delete_records: {offset!r} is neither an offset from 0 on nor 'latest'."
            )
    return {p: -1 if offset == "latest" else offset for p, offset in before.items()}
