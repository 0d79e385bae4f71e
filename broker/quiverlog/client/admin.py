"""Administration and the low-level questions, as operations.

Owns the translation between the client's arguments and the wire's messages, argument checks that
need no broker, and the grouping of per-partition questions by leader. What is asked by topic name
is answered for the topic that has the name now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from quiverlog.errors import (
    ConnectionClosed,
    InvalidArgument,
    QuiverlogError,
    RequestTimedOut,
    TopicExists,
    UnknownTopic,
    error_from_code,
)
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, Durability, TopicPartition
from quiverlog.wire import messages as m

from .answers import about, named
from .commands import Buffer, Call, CallMany, Operation, Reply
from .deadline import within
from .results import (
    Address,
    ClusterMetadata,
    ConfigValue,
    FetchedPartition,
    OffsetAndEpoch,
    PartitionDetail,
    Produced,
    RangeSize,
    SchemaInfo,
    TopicDetail,
    TopicInfo,
    moment,
)
from .routing import Cluster, check, history_from_wire, partition_info

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.batch.schema import SchemaHistory

T = TypeVar("T")

Scalar: TypeAlias = "str | int | float | bool"
At: TypeAlias = "Literal['earliest', 'latest'] | datetime"
AtSpec: TypeAlias = "At | Mapping[int, At]"


# --- arguments ------------------------------------------------------------------------------------
def at_us(at: At) -> int:
    """The wire's form of "earliest", "latest" or a moment.

    Raises:
        InvalidArgument: anything else, or a datetime without a time zone.
    """
    if at == "latest":
        return LATEST
    if at == "earliest":
        return EARLIEST
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidArgument(
                f"{at!r} has no time zone: write datetime(..., tzinfo=timezone.utc)."
            )
        # Rounded up: "at or after" must not reach back before the moment asked for.
        return max(0, math.ceil(at.timestamp() * 1_000_000))
    raise InvalidArgument(f"{at!r} is none of 'earliest', 'latest' or a datetime.")


def config_text(value: Scalar) -> str:
    """A setting as the broker reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise InvalidArgument(f"A config value is a string, number or bool, not {value!r}.")


def _configs(config: Mapping[str, Scalar] | None) -> dict[str, str]:
    return {key: config_text(value) for key, value in (config or {}).items()}


def schema_bytes(schema: pa.Schema | Literal["raw"]) -> bytes:
    """A schema on its way to the broker; "raw" stands for `RAW_SCHEMA`."""
    from quiverlog.batch.schema import RAW_SCHEMA, serialize_schema

    if isinstance(schema, str):
        if schema != "raw":
            raise InvalidArgument(f"schema={schema!r}: give a pyarrow.Schema or 'raw'.")
        schema = RAW_SCHEMA
    if not hasattr(schema, "serialize"):
        if not hasattr(schema, "__arrow_c_schema__"):
            raise InvalidArgument(f"schema must be a pyarrow.Schema or 'raw', not {schema!r}.")
        import pyarrow as pa

        schema = pa.schema(schema)
    return bytes(serialize_schema(schema))


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _raise_for(result: Any, what: str | TopicPartition) -> None:
    """Raise a partition's or topic's own error, naming what it is about."""
    if result.error_code:
        message = result.error_message or f"{what}: refused."
        error = error_from_code(result.error_code, message)
        if isinstance(what, TopicPartition):
            named(error, what.topic, what.partition)
        else:
            named(error, what)
        raise error


# --- topics ---------------------------------------------------------------------------------------
def create_topic(
    cluster: Cluster,
    name: str,
    schema: pa.Schema | Literal["raw"],
    *,
    partitions: int,
    replication_factor: int,
    key: str | Sequence[str] | None,
    config: Mapping[str, Scalar] | None,
    if_not_exists: bool,
    validate_only: bool,
) -> Operation[TopicInfo | None]:
    """Create a topic; None after a mere validation."""
    if not isinstance(name, str):
        raise InvalidArgument(f"A topic's name is text, not {name!r}.")
    for what, number in (("partitions", partitions), ("replication_factor", replication_factor)):
        if not isinstance(number, int):
            raise InvalidArgument(f"{what}={number!r} is not a whole number.")
    new = m.NewTopic(
        name=name,
        schema=schema_bytes(schema),
        partitions=partitions,
        replication_factor=replication_factor,
        key_columns=list(_names(key)),
        configs=_configs(config),
    )
    tries: list[QuiverlogError] = []

    def attempt() -> Operation[TopicInfo | None]:
        try:
            reply = yield from cluster.call_any(
                m.CreateTopicsRequest(topics=[new], validate_only=validate_only)
            )
        except (ConnectionClosed, RequestTimedOut) as error:
            tries.append(error)  # it may have been created: the reply alone was lost
            raise
        response = reply.response
        assert isinstance(response, m.CreateTopicsResponse)
        try:
            _raise_for(response.topics[0], name)
        except TopicExists:
            if not (if_not_exists or (tries and (yield from _is_ours(cluster, new)))):
                raise
        if validate_only:
            return None
        return (yield from cluster.topic(name, fresh=True))

    return (yield from about(name, cluster.retrying(attempt)))


def _is_ours(cluster: Cluster, new: m.NewTopic) -> Operation[bool]:
    """After a lost reply: is the topic that exists the one that we asked for?"""
    found = (yield from describe_topics(cluster, [new.name]))[new.name]
    return (
        len(found.partitions) == new.partitions
        and list(found.key_columns) == new.key_columns
        and schema_bytes(found.schema) == _as_stored(new.schema)
        and all(found.configs.get(k, ("",))[0] == v for k, v in new.configs.items())
    )


def _as_stored(schema: bytes) -> bytes:
    from quiverlog.batch.schema import deserialize_schema, normalize_schema

    return schema_bytes(normalize_schema(deserialize_schema(schema)))


def delete_topic(cluster: Cluster, name: str, *, if_exists: bool) -> Operation[None]:
    """Delete a topic. After a lost reply, its absence counts as success."""
    tries: list[QuiverlogError] = []

    def attempt() -> Operation[None]:
        try:
            reply = yield from cluster.call_any(m.DeleteTopicsRequest(names=[name]))
        except (ConnectionClosed, RequestTimedOut) as error:
            tries.append(error)
            raise
        response = reply.response
        assert isinstance(response, m.DeleteTopicsResponse)
        cluster.forget_topics()
        try:
            _raise_for(response.topics[0], name)
        except UnknownTopic:
            if not (if_exists or tries):
                raise

    return (yield from about(name, cluster.retrying(attempt)))


def alter_topic(
    cluster: Cluster,
    name: str,
    *,
    config: Mapping[str, Scalar] | None,
    reset_config: Sequence[str],
    partitions: int | None,
    schema: pa.Schema | None,
    validate_only: bool,
) -> Operation[int]:
    """Change a topic; returns the id of its current schema."""
    if not config and not reset_config and partitions is None and schema is None:
        raise InvalidArgument("alter_topic: give config, reset_config, partitions or schema.")
    request = m.AlterTopicRequest(
        name=name,
        set_configs=_configs(config),
        delete_configs=list(_names(reset_config)),
        partitions=-1 if partitions is None else partitions,
        schema=b"" if schema is None else schema_bytes(schema),
        validate_only=validate_only,
    )

    def attempt() -> Operation[int]:
        reply = yield from cluster.call_any(request)
        assert isinstance(reply.response, m.AlterTopicResponse)
        cluster.forget_topics()
        return reply.response.schema_id

    return (yield from about(name, cluster.retrying(attempt)))


def describe_topics(
    cluster: Cluster, names: Sequence[str] | None
) -> Operation[dict[str, TopicDetail]]:
    """Everything about some topics, or about all."""
    wanted = None if names is None else list(dict.fromkeys(names))

    def attempt() -> Operation[dict[str, TopicDetail]]:
        found: dict[str, TopicDetail] = {}
        first_name = ""
        while True:
            reply = yield from cluster.call_any(
                m.DescribeTopicsRequest(names=wanted, first_name=first_name)
            )
            response = reply.response
            assert isinstance(response, m.DescribeTopicsResponse)
            for topic in response.topics:
                _raise_for(topic, topic.name)
            found.update((t.name, _topic_detail(t)) for t in response.topics)
            first_name = response.next_name
            if not first_name:
                return found

    operation = cluster.retrying(attempt)
    if wanted is not None and len(wanted) == 1:
        operation = about(wanted[0], operation)
    return (yield from operation)


def _topic_detail(topic: m.TopicDescription) -> TopicDetail:
    history = history_from_wire(topic.schemas, topic.name)
    return TopicDetail(
        name=topic.name,
        topic_id=topic.topic_id,
        created=moment(topic.created_us),
        key_columns=tuple(topic.key_columns),
        replication_factor=topic.replication_factor,
        configs={c.key: ConfigValue(c.value, c.source) for c in topic.configs},
        schemas=tuple(
            SchemaInfo(s.schema_id, moment(s.created_us), history[s.schema_id])
            for s in topic.schemas
        ),
        partitions=tuple(
            PartitionDetail(
                p.partition,
                p.leader_id,
                p.leader_epoch,
                tuple(p.replicas),
                tuple(p.in_sync_replicas),
                p.log_start_offset,
                p.high_watermark,
                p.log_end_offset,
                p.flushed_offset,
                p.size_bytes,
                p.segments,
            )
            for p in sorted(topic.partitions, key=lambda p: p.partition)
        ),
        is_internal=topic.is_internal,
    )


def metadata(cluster: Cluster, names: Sequence[str] | None) -> Operation[ClusterMetadata]:
    """A fresh picture of all topics, or of those named (unknown ones are left out)."""
    return (yield from cluster.retrying(lambda: cluster.refresh(names)))


def list_topics(cluster: Cluster, *, internal: bool) -> Operation[list[str]]:
    """The topics' names, sorted."""
    found = yield from metadata(cluster, None)
    return sorted(t.name for t in found.topics.values() if internal or not t.is_internal)


def schemas(cluster: Cluster, name: str) -> Operation[SchemaHistory]:
    """A topic's schema history, asked for anew."""

    def attempt() -> Operation[SchemaHistory]:
        topic = yield from cluster.topic(name, fresh=True)
        return (yield from cluster.history(topic.topic_id, name, needed_id=topic.schema_id))

    return (yield from about(name, cluster.retrying(attempt)))


# --- per-partition questions ----------------------------------------------------------------------
Entry: TypeAlias = "Callable[[TopicInfo], Any]"
"""Makes a partition's entry of a request, once the topic is known."""


def ask_leaders(
    cluster: Cluster,
    entries: Mapping[TopicPartition, Entry],
    request: Callable[[list[Any]], m.Request],
    *,
    wait_s: float = 0.0,
) -> Operation[tuple[list[m.Response], dict[TopicPartition, Any]]]:
    """Send each partition's entry to its leader: (the responses, the partitions' results).

    No retry. Errors of single partitions stay in their results; the first call that failed as a
    whole is raised.
    """
    by_leader: dict[Address, list[Any]] = {}
    names: dict[tuple[bytes, int], TopicPartition] = {}
    for where, make in entries.items():
        topic = yield from cluster.topic(where.topic)
        entry = make(topic)
        names[entry.topic_id, where.partition] = where
        by_leader.setdefault(cluster.leader_address(topic, where.partition), []).append(entry)
    timeout_s = cluster.settings.request_timeout_s + wait_s
    calls = [Call(address, request(parts), timeout_s) for address, parts in by_leader.items()]
    replies: list[Reply | QuiverlogError] = yield CallMany(calls)
    responses: list[m.Response] = []
    results: dict[TopicPartition, Any] = {}
    for parts, reply in zip(by_leader.values(), replies, strict=True):
        if isinstance(reply, QuiverlogError):
            raise _named_by_entries(reply, parts, names)
        check(reply.response)
        responses.append(reply.response)
        found: Iterable[Any] = reply.response.partitions  # type: ignore[attr-defined]
        results.update((names[r.topic_id, r.partition], r) for r in found)
    return responses, results


def _named_by_entries(
    error: QuiverlogError,
    entries: Sequence[Any],
    names: Mapping[tuple[bytes, int], TopicPartition],
) -> QuiverlogError:
    """A whole call failed: say which partition it was about, or which ones it asked for."""
    key = (error.details.get("topic_id"), error.details.get("partition"))
    about = [names[e.topic_id, e.partition] for e in entries if (e.topic_id, e.partition) == key]
    if not about:
        about = [names[e.topic_id, e.partition] for e in entries]
    topic = about[0].topic
    return named(error, topic, *(w.partition for w in about if w.topic == topic))


def _about_all(places: Iterable[TopicPartition], operation: Operation[T]) -> Operation[T]:
    """Errors name the topic, where all places lie in one."""
    found = list(places)
    if len({where.topic for where in found}) != 1:
        return operation
    return about(found[0].topic, operation, *(where.partition for where in found))


def _epoch(topic: TopicInfo, partition: int) -> int:
    return partition_info(topic, partition).leader_epoch


def _good(results: Mapping[TopicPartition, Any]) -> list[tuple[TopicPartition, Any]]:
    """The results in order; raises the first that carries an error."""
    for where, result in results.items():
        _raise_for(result, where)
    return sorted(results.items())


def list_offsets(cluster: Cluster, name: str, at: AtSpec) -> Operation[dict[int, int | None]]:
    """Offsets per partition; None where no row is that young."""

    def attempt() -> Operation[dict[int, int | None]]:
        # Partitions that others have added belong to the whole.
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
    """Asks for an offset; `topic_id` pins the topic that is meant."""
    return lambda topic: m.ListOffsetsPartition(
        topic_id or topic.topic_id, partition, _epoch(topic, partition), at, known
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
    """(metadata version, offset with epoch per partition); errors stay in the results."""

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
    cluster: Cluster, epochs: Mapping[TopicPartition, int]
) -> Operation[dict[TopicPartition, OffsetAndEpoch]]:
    """Where each leader epoch ended; see `Client.epoch_end_offsets`."""

    def entry(where: TopicPartition, epoch: int) -> Entry:
        p = where.partition
        return lambda t: m.EpochEndOffsetsPartition(t.topic_id, p, _epoch(t, p), epoch)

    def attempt() -> Operation[dict[TopicPartition, OffsetAndEpoch]]:
        _, results = yield from ask_leaders(
            cluster,
            {w: entry(w, e) for w, e in epochs.items()},
            lambda parts: m.EpochEndOffsetsRequest(partitions=parts),
        )
        return {w: OffsetAndEpoch(r.end_offset, r.epoch) for w, r in _good(results)}

    return (yield from _about_all(epochs, cluster.retrying(attempt)))


def describe_ranges(
    cluster: Cluster, ranges: Mapping[TopicPartition, tuple[int, int]], *, bytes_max: int
) -> Operation[dict[TopicPartition, RangeSize]]:
    """Stored bytes between offsets; see `Client.describe_ranges`."""

    def entry(where: TopicPartition, start: int, end: int) -> Entry:
        return lambda t: m.RangePartition(t.topic_id, where.partition, start, end, bytes_max)

    def attempt() -> Operation[dict[TopicPartition, RangeSize]]:
        _, results = yield from ask_leaders(
            cluster,
            {w: entry(w, *bounds) for w, bounds in ranges.items()},
            lambda parts: m.DescribeRangesRequest(partitions=parts),
        )
        return {w: RangeSize(r.end_offset, r.byte_count) for w, r in _good(results)}

    return (yield from _about_all(ranges, cluster.retrying(attempt)))


def delete_records(
    cluster: Cluster, name: str, before: Mapping[int, int | Literal["latest"]]
) -> Operation[dict[int, int]]:
    """Make rows below the given offsets unreadable; returns the new log start offsets."""
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
    """The wire's form, where -1 is the end: a program's own -1 must not delete all there is."""
    if not isinstance(before, Mapping):
        raise InvalidArgument(f"delete_records: give {{partition: offset}}, not {before!r}.")
    for offset in before.values():
        if offset != "latest" and (not isinstance(offset, int) or offset < 0):
            raise InvalidArgument(
                f"delete_records: {offset!r} is neither an offset from 0 on nor 'latest'."
            )
    return {p: -1 if offset == "latest" else offset for p, offset in before.items()}


# --- stored batches, as they are ------------------------------------------------------------------
def raw_produce(
    cluster: Cluster,
    name: str,
    batches: Mapping[int, Sequence[Buffer]],
    *,
    durability: Durability,
    timeout_s: float | None,
) -> Operation[dict[int, Produced]]:
    """Send encoded batches, one request per leader, once: the caller decides about retries."""
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
        return lambda t: m.ProducePartition(t.topic_id, partition, _epoch(t, partition), size)

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
            _raise_for(r, TopicPartition(name, r.partition))
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
    """Whole stored batches from each offset on; errors of partitions stay in the results."""

    def attempt() -> Operation[dict[int, FetchedPartition]]:
        topic = yield from cluster.topic(name)
        by_leader: dict[Address, list[m.FetchPartition]] = {}
        for p, offset in offsets.items():
            by_leader.setdefault(cluster.leader_address(topic, p), []).append(
                m.FetchPartition(
                    topic.topic_id,
                    p,
                    _epoch(topic, p),
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
    """One request to one broker, as it is, once."""
    seconds = timeout_s or cluster.settings.request_timeout_s
    if node_id is None:
        if body:
            raise InvalidArgument("raw_call: a request with a body needs node_id.")
        return (yield from within(cluster.clock, seconds, cluster.call_any(request)))
    reply: Reply = yield Call(cluster.address_of(node_id), request, seconds, body)
    return reply


def split_fetch(reply: Reply) -> list[FetchedPartition]:
    """Cut a fetch's body into its partitions' parts, whose sizes the driver has compared."""
    check(reply.response)
    assert isinstance(reply.response, m.FetchResponse)
    at = 0
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
