"""What an answer must satisfy before any operation sees it.

Owns the comparison of a response with its request: every partition and topic that was asked for
is answered once and no other, numbers lie in their ranges, error codes are a broker's. Drivers
call `check_answer` for each reply, so operations need no defence of their own. Frames and types
were checked before, by `wire`; rows are checked after, by `decoding`.

Must not know: connections, retries, topic names (answers carry ids).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from quiverlog.client.base.commands import Operation
from quiverlog.errors import ConnectionFailed, InvalidResponse, QuiverlogError
from quiverlog.limits import (
    BATCH_ROWS_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    TOPIC_NAME_CHARS_MAX,
    TOPICS_MAX,
)
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, Compression, Durability
from quiverlog.wire import messages as m
from quiverlog.wire.cluster_messages import DescribeClusterResponse
from quiverlog.wire.config_messages import (
    AlterConfigsResponse,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from quiverlog.wire.decommission_messages import DecommissionBrokerResponse
from quiverlog.wire.election_messages import ElectLeadersRequest, ElectLeadersResponse
from quiverlog.wire.feature_messages import UpdateFeaturesResponse
from quiverlog.wire.placement_messages import DescribeReplicasRequest, DescribeReplicasResponse
from quiverlog.wire.reassignment_messages import (
    ReassignPartitionsRequest,
    ReassignPartitionsResponse,
)
from quiverlog.wire.registry import APIS

__all__ = [
    "about",
    "check_alter_configs",
    "check_answer",
    "check_decommission_broker",
    "check_describe_cluster",
    "check_describe_configs",
    "check_describe_replicas",
    "check_elect_leaders",
    "check_reassign_partitions",
    "check_topic_count",
    "check_update_features",
    "named",
]


# What an answer about the cluster must satisfy before any operation looks at it; see `answers`.
def check_describe_cluster(_request: object, response: DescribeClusterResponse, _: int) -> None:
    """Raises InvalidResponse."""
    nodes = [one.node_id for one in response.brokers]
    if len(nodes) != len(set(nodes)) or min([response.node_id, *nodes]) < 0:
        raise InvalidResponse(f"DESCRIBE_CLUSTER names the brokers {nodes[:10]}.")
    for one in response.brokers:
        if not one.host or not 0 < one.port < 65_536:
            raise InvalidResponse(
                f"DESCRIBE_CLUSTER: broker {one.node_id} at {one.host!r}, port {one.port}."
            )
        counts = (
            one.leader_count,
            one.replica_count,
            one.out_of_sync_count,
            one.needed_count,
            one.moving_count,
            one.faulted_count,
        )
        if min(counts) < 0:
            raise InvalidResponse(f"DESCRIBE_CLUSTER: broker {one.node_id} counts {counts}.")
        if one.metadata_lag < -1:
            raise InvalidResponse(
                f"DESCRIBE_CLUSTER: broker {one.node_id} lacks {one.metadata_lag} entries."
            )
    if response.heard_ms < -1:
        raise InvalidResponse(f"DESCRIBE_CLUSTER is {response.heard_ms} ms old.")
    partitions = response.partition_count
    some = (
        response.under_replicated_count,
        response.under_min_in_sync_count,
        response.offline_count,
        response.moving_count,
    )
    if response.topic_count < 0 or not 0 <= min(some) <= max(some) <= partitions:
        raise InvalidResponse(f"DESCRIBE_CLUSTER: {some} of {partitions} partitions.")


def check_alter_configs(_request: object, response: AlterConfigsResponse, _: int) -> None:
    """Raises InvalidResponse."""
    if response.metadata_version < 0:
        raise InvalidResponse(f"ALTER_CONFIGS: metadata version {response.metadata_version}.")


def check_describe_configs(
    request: DescribeConfigsRequest, response: DescribeConfigsResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    if min(response.node_id, response.metadata_version) < 0:
        raise InvalidResponse(f"DESCRIBE_CONFIGS: broker {response.node_id}.")
    found = [one.key for one in response.configs]
    wanted = list(dict.fromkeys(request.keys))
    if len(set(found)) != len(found) or (wanted and wanted != found):
        raise InvalidResponse(f"Keys {wanted[:10]} were asked for; {found[:10]} came.")
    for one in response.configs:
        if one.source not in set(ConfigSource):
            raise InvalidResponse(f"{one.key[:100]!r} comes from {one.source}.")


def check_update_features(_request: object, response: UpdateFeaturesResponse, _: int) -> None:
    """Raises InvalidResponse."""
    nodes = [one.node_id for one in response.brokers]
    if len(nodes) != len(set(nodes)) or min(nodes, default=0) < 0 or response.level < 1:
        raise InvalidResponse(f"UPDATE_FEATURES: level {response.level}, brokers {nodes[:10]}.")


def check_decommission_broker(
    _request: object, response: DecommissionBrokerResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    if response.replica_count < 0:
        raise InvalidResponse(f"DECOMMISSION_BROKER: {response.replica_count} replicas are left.")


def check_elect_leaders(
    request: ElectLeadersRequest, response: ElectLeadersResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    found = [one.partition for one in response.leaders]
    wanted = range(len(found)) if request.partitions is None else sorted(set(request.partitions))
    if found != list(wanted):
        raise InvalidResponse(f"Leaders of {list(wanted)[:10]} were asked for; {found[:10]} came.")
    for one in response.leaders:
        if one.leader_id < -1 or one.leader_epoch < 0:
            raise InvalidResponse(
                f"Partition {one.partition} is led by {one.leader_id} in epoch {one.leader_epoch}."
            )


def check_reassign_partitions(
    request: ReassignPartitionsRequest, response: ReassignPartitionsResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    found = [one.partition for one in response.moves]
    wanted = {one.partition for one in request.partitions}
    if len(set(found)) != len(found) or (wanted and wanted != set(found)):
        raise InvalidResponse(f"Partitions {sorted(wanted)[:10]} were named; {found[:10]} came.")
    names = [topic.name for topic in response.topics]
    if names != sorted(set(names)) or (request.name and names):
        raise InvalidResponse(f"Moves of {request.name!r} were asked for; {names[:10]} came.")
    if response.next_name and response.next_name <= request.first_name:
        raise InvalidResponse("A page of moves is followed by itself.")
    for one in (*response.moves, *(move for topic in response.topics for move in topic.moves)):
        if one.partition < 0 or not one.replicas or one.move_bytes_per_s < 0:
            raise InvalidResponse(f"Partition {one.partition} is held by {one.replicas}.")


def check_describe_replicas(
    request: DescribeReplicasRequest, response: DescribeReplicasResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    names = [topic.name for topic in response.topics]
    if names != sorted(set(names)):
        raise InvalidResponse(f"Topics come as {names[:10]}.")
    if response.next_name and response.next_name <= request.first_name:
        raise InvalidResponse("A page of replicas is followed by itself.")
    for topic in response.topics:
        for one in topic.replicas:
            if one.partition < 0 or one.size_bytes < -1:
                raise InvalidResponse(f"{topic.name}-{one.partition} has {one.size_bytes} bytes.")


T = TypeVar("T")

OFFSET_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**31 - 1
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
TOPIC_ID_BYTES: Final = 16
WIRE_CODES_END: Final = 1_000
"""Codes from here on are the client's own: no broker sends them."""
MOMENT_US_MAX: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999, where Python's datetime ends."""
DURABILITIES: Final = frozenset(d for d in Durability if d >= 0)
SHOWN_MAX: Final = 3


def check_answer(request: m.Request, response: m.Response, body_bytes: int) -> None:
    """Check a response, and the size of its body, against the request.

    Raises:
        InvalidResponse: names the partition and topic id where it is about one.
    """
    assert request.API == response.API, "wire decodes an answer as what was asked"
    _check_code(response.error_code, request.API.name)
    if response.error_code:
        return
    if body_bytes and request.API is not m.Api.FETCH:
        raise InvalidResponse(f"A {request.API.name} answer came with {body_bytes} bytes of rows.")
    _CHECKS[request.API](request, response, body_bytes)


def named(error: QuiverlogError, topic: str, *partitions: int) -> QuiverlogError:
    """Add the topic and partition to an error that does not name them yet; returns the error."""
    if "topic" in error.details:
        return error
    error.details["topic"] = topic
    if "partition" not in error.details and len(partitions) == 1:
        error.details["partition"] = partitions[0]
    partition = error.details.get("partition")
    if partition is not None:
        where = f"{topic}-{partition}"
    elif 0 < len(partitions) <= SHOWN_MAX:
        where = ", ".join(f"{topic}-{p}" for p in partitions)
    elif partitions:
        where = f"{topic} ({len(partitions)} partitions from {min(partitions)} on)"
    else:
        where = topic
    if not re.search(rf"(?<![\w.-]){re.escape(where)}(?![\w.])", error.message):
        error.message = f"{where}: {error.message}"
    return error


def about(topic: str, operation: Operation[T], *partitions: int) -> Operation[T]:
    """Run an operation whose errors name the topic (and partitions) that it was about."""
    try:
        return (yield from operation)
    except QuiverlogError as error:
        named(error, topic, *partitions)
        raise


# --- parts that several answers share -------------------------------------------------------------
def _check_code(code: int, where: str, **details: object) -> None:
    if not 0 <= code < WIRE_CODES_END:
        raise InvalidResponse(f"{where} was answered with error code {code}.", **details)


def _check_range(value: int, low: int, high: int, what: str, part: Any) -> None:
    if not low <= value <= high:
        raise _wrong(part, f"{what} {value} is not in the range {low} to {high}")


def _wrong(part: Any, why: str) -> InvalidResponse:
    """The error for one partition's or topic's part of an answer."""
    details: dict[str, object] = {}
    if hasattr(part, "partition"):
        details["partition"] = part.partition
    topic_id = getattr(part, "topic_id", b"")
    if topic_id:
        details["topic_id"] = topic_id
    name = getattr(part, "name", "")
    if name:
        details["topic"] = name
        return InvalidResponse(f"topic {_shown(name)}: {why}.", **details)
    return InvalidResponse(f"partition {details.get('partition')}: {why}.", **details)


def _shown(name: str) -> str:
    """A name that a broker sent, cut to the length that a message shows."""
    return repr(name[:TOPIC_NAME_CHARS_MAX])


def _answered_partitions(request: Any, response: Any) -> list[tuple[Any, Any]]:
    """(entry, result) of the partitions that carry no error of their own.

    Raises:
        InvalidResponse: not each entry has exactly one result.
    """
    asked = {(e.topic_id, e.partition): e for e in request.partitions}
    missing = dict(asked)
    pairs = []
    for result in response.partitions:
        key = (result.topic_id, result.partition)
        if missing.pop(key, None) is None:
            why = "was answered twice" if key in asked else "was not asked for"
            raise _wrong(result, why)
        _check_code(
            result.error_code,
            f"partition {result.partition}",
            partition=result.partition,
            topic_id=result.topic_id,
        )
        if not result.error_code:
            pairs.append((asked[key], result))
    for entry in missing.values():
        raise _wrong(entry, "was left unanswered")
    return pairs


def _answered_page(
    names: Sequence[str] | None, first_name: str | None, topics: Iterable[Any], next_name: str
) -> list[Any]:
    """`_answered_topics` for one page, which holds the names from `first_name` to `next_name`."""
    topics = list(topics)
    if next_name and (first_name is None or next_name <= first_name or not topics):
        raise InvalidResponse(
            f"The page of topics after {_shown(first_name or '')}, which has {len(topics)}, is "
            f"{_shown(next_name)}."
        )
    if first_name is not None:
        for topic in topics:
            if topic.name < first_name or (next_name and topic.name >= next_name):
                raise InvalidResponse(f"topic {_shown(topic.name)} is in another page's place.")
    if names is not None and first_name is not None:
        names = [n for n in names if first_name <= n and (not next_name or n < next_name)]
    return _answered_topics(names, topics)


def check_topic_count(count: int) -> None:
    """What the pages of one question may hold together: pages may be endless, a cluster is not.

    Raises:
        InvalidResponse
    """
    if count > TOPICS_MAX:
        raise InvalidResponse(f"The pages of topics have more than {TOPICS_MAX} together.")


def _answered_topics(names: Sequence[str] | None, topics: Iterable[Any]) -> list[Any]:
    """The topics without an error of their own; each name that was asked for is there once."""
    missing = set(names or ())
    seen: set[str] = set()
    good = []
    for topic in topics:
        if topic.name in seen:
            raise InvalidResponse(f"topic {_shown(topic.name)} was answered twice.")
        if names is not None and topic.name not in missing:
            raise InvalidResponse(f"topic {_shown(topic.name)} was not asked for.")
        seen.add(topic.name)
        _check_code(topic.error_code, f"topic {topic.name!r}", topic=topic.name)
        if not topic.error_code:
            if not topic.name:
                raise InvalidResponse("A topic without a name was answered.")
            good.append(topic)
    for name in sorted(missing - seen):
        raise InvalidResponse(f"topic {name!r}: was left unanswered.", topic=name)
    return good


def _check_partition_numbers(topic: Any) -> None:
    """A topic's partitions are numbered from 0 on, without a gap."""
    numbers = sorted(p.partition for p in topic.partitions)
    if not numbers or numbers != list(range(len(numbers))):
        raise _wrong(topic, f"its partitions are {numbers[:10]}")
    if len(numbers) > PARTITIONS_PER_TOPIC_MAX:
        raise _wrong(topic, f"it has {len(numbers)} partitions")
    for p in topic.partitions:
        _check_range(p.leader_id, -1, EPOCH_MAX, f"partition {p.partition}: leader", topic)
        _check_range(p.leader_epoch, NO_EPOCH, EPOCH_MAX, "leader epoch", topic)


def _check_topic_id(topic: Any, *, may_be_empty: bool = False) -> None:
    if len(topic.topic_id) != TOPIC_ID_BYTES and (topic.topic_id or not may_be_empty):
        raise _wrong(topic, f"its id has {len(topic.topic_id)} bytes")


def _check_schemas(schemas: Sequence[m.SchemaVersion], part: Any) -> None:
    ids = [s.schema_id for s in schemas]
    if not ids or ids != sorted(set(ids)) or ids[0] < 0 or ids[-1] > EPOCH_MAX:
        raise _wrong(part, f"its schemas have the ids {ids[:10]}")
    for schema in schemas:
        _check_range(schema.created_us, 0, MOMENT_US_MAX, "creation of a schema", part)


# --- one function per answer ----------------------------------------------------------------------
def _check_hello(request: Any, response: Any, _: int) -> None:
    if len({a.api for a in response.apis}) != len(response.apis):
        raise InvalidResponse("HELLO: an API is named twice.")


def _check_metadata(request: Any, response: Any, _: int) -> None:
    names = None if request.topics is None or request.topic_ids else request.topics
    nodes = [b.node_id for b in response.brokers]
    if not nodes:
        # Of a cluster that nobody has decided in for a while: another broker may know more.
        raise ConnectionFailed("The broker that was asked knows of none that is alive.")
    if len(nodes) != len(set(nodes)):
        raise InvalidResponse(f"METADATA names the brokers {nodes[:10]}.")
    for broker in response.brokers:
        if not broker.host or not 0 < broker.port < 65_536 or broker.node_id < 0:
            raise InvalidResponse(
                f"METADATA: broker {broker.node_id} at {broker.host!r}, port {broker.port}."
            )
    page = _answered_page(names, request.first_name, response.topics, response.next_name)
    for topic in page:
        _check_topic_id(topic)
        _check_partition_numbers(topic)
        _check_range(topic.schema_id, 0, EPOCH_MAX, "schema id", topic)
        _check_range(topic.batch_bytes_max, 0, OFFSET_MAX, "max.message.bytes", topic)
        if topic.durability not in DURABILITIES:
            raise _wrong(topic, f"durability {topic.durability} is unknown")
        if topic.compression not in tuple(Compression):
            raise _wrong(topic, f"compression {topic.compression} is unknown")


def _check_produce(request: Any, response: Any, _: int) -> None:
    for _entry, result in _answered_partitions(request, response):
        _check_range(result.row_count, 1, OFFSET_MAX, "row count", result)
        _check_range(result.base_offset, 0, OFFSET_MAX - result.row_count, "offset", result)
        if result.durability not in DURABILITIES or result.durability < request.durability:
            why = f"durability {result.durability} where {request.durability} was asked for"
            raise _wrong(result, why)


def _check_fetch(request: Any, response: Any, body_bytes: int) -> None:
    total = 0
    for result in response.partitions:
        _check_range(result.batch_bytes, 0, body_bytes - total, "batch bytes", result)
        total += result.batch_bytes
        if result.batch_bytes and result.error_code:
            raise _wrong(result, "rows came with an error")
        _check_range(result.damage_end_offset, -1, OFFSET_MAX, "end of the damage", result)
        _check_range(result.diverging_end_offset, -1, OFFSET_MAX, "diverging offset", result)
        _check_range(result.log_start_offset, -1, OFFSET_MAX, "log start", result)
        _check_range(result.high_watermark, -1, OFFSET_MAX, "high watermark", result)
    if total != body_bytes:
        raise InvalidResponse(f"A fetch's parts have {total} bytes, its body {body_bytes}.")
    for _entry, result in _answered_partitions(request, response):
        _check_range(result.leader_epoch, NO_EPOCH, EPOCH_MAX, "leader epoch", result)
        high = result.high_watermark
        _check_range(high, 0, OFFSET_MAX, "high watermark", result)
        _check_range(result.log_start_offset, 0, high, "log start", result)


def _check_list_offsets(request: Any, response: Any, _: int) -> None:
    for entry, result in _answered_partitions(request, response):
        low = 0 if entry.at in (LATEST, EARLIEST) else -1
        _check_range(result.offset, low, OFFSET_MAX, "offset", result)
        _check_range(result.leader_epoch, NO_EPOCH, EPOCH_MAX, "leader epoch", result)


def _check_init_producer_id(request: Any, response: Any, _: int) -> None:
    if not (
        0 <= response.producer_id <= OFFSET_MAX
        and 0 <= response.producer_epoch <= PRODUCER_EPOCH_MAX
    ):
        raise InvalidResponse(
            f"Producer id {response.producer_id} with epoch {response.producer_epoch} was given."
        )


def _check_create_topics(request: Any, response: Any, _: int) -> None:
    names = [topic.name for topic in request.topics]
    for topic in _answered_topics(names, response.topics):
        _check_topic_id(topic, may_be_empty=request.validate_only)


def _check_delete_topics(request: Any, response: Any, _: int) -> None:
    _answered_topics(request.names, response.topics)


def _check_alter_topic(request: Any, response: Any, _: int) -> None:
    if not 0 <= response.schema_id <= EPOCH_MAX:
        raise InvalidResponse(
            f"topic {request.name!r}: schema id {response.schema_id}.", topic=request.name
        )


def _check_describe_topics(request: Any, response: Any, _: int) -> None:
    page = _answered_page(request.names, request.first_name, response.topics, response.next_name)
    for topic in page:
        _check_topic_id(topic)
        _check_partition_numbers(topic)
        _check_schemas(topic.schemas, topic)
        _check_range(topic.created_us, 0, MOMENT_US_MAX, "creation", topic)
        for p in topic.partitions:
            what = f"partition {p.partition}:"
            if p.log_end_offset == p.high_watermark == p.log_start_offset == -1:
                continue  # Another broker leads it, or it is not open.
            _check_range(p.log_end_offset, 0, OFFSET_MAX, f"{what} log end", topic)
            _check_range(p.high_watermark, 0, p.log_end_offset, f"{what} high watermark", topic)
            _check_range(p.log_start_offset, 0, p.log_end_offset, f"{what} log start", topic)
            _check_range(p.size_bytes, 0, OFFSET_MAX, f"{what} size", topic)


def _check_topic_schemas(request: Any, response: Any, _: int) -> None:
    try:
        _check_schemas(response.schemas, request)
    except InvalidResponse as error:
        raise InvalidResponse(error.message, topic_id=request.topic_id) from None
    ids = [s.schema_id for s in response.schemas]
    following = response.next_schema_id
    if ids[0] < request.first_schema_id or (following and following <= ids[-1]):
        raise InvalidResponse(
            f"Schemas from {request.first_schema_id} on were asked for; {ids[:10]} came, and "
            f"{following} is to follow."
        )


def _check_delete_records(request: Any, response: Any, _: int) -> None:
    for entry, result in _answered_partitions(request, response):
        low = max(0, entry.before_offset)
        _check_range(result.log_start_offset, low, OFFSET_MAX, "log start", result)


def _check_epoch_end_offsets(request: Any, response: Any, _: int) -> None:
    for _entry, result in _answered_partitions(request, response):
        _check_range(result.end_offset, -1, OFFSET_MAX, "end offset", result)
        _check_range(result.epoch, NO_EPOCH, EPOCH_MAX, "epoch", result)


def _check_describe_ranges(request: Any, response: Any, _: int) -> None:
    for entry, result in _answered_partitions(request, response):
        end = OFFSET_MAX if entry.end_offset < 0 else entry.end_offset
        low = max(0, entry.start_offset)
        if low < entry.end_offset:
            low += 1  # at least one batch, so that whoever walks the range gets on
        _check_range(result.end_offset, low, end, "end offset", result)
        _check_range(result.byte_count, 0, OFFSET_MAX, "byte count", result)


_CHECKS: Final[dict[m.Api, Callable[[Any, Any, int], None]]] = {
    m.Api.HELLO: _check_hello,
    m.Api.METADATA: _check_metadata,
    m.Api.PRODUCE: _check_produce,
    m.Api.FETCH: _check_fetch,
    m.Api.LIST_OFFSETS: _check_list_offsets,
    m.Api.INIT_PRODUCER_ID: _check_init_producer_id,
    m.Api.CREATE_TOPICS: _check_create_topics,
    m.Api.DELETE_TOPICS: _check_delete_topics,
    m.Api.ALTER_TOPIC: _check_alter_topic,
    m.Api.DESCRIBE_TOPICS: _check_describe_topics,
    m.Api.TOPIC_SCHEMAS: _check_topic_schemas,
    m.Api.DELETE_RECORDS: _check_delete_records,
    m.Api.EPOCH_END_OFFSETS: _check_epoch_end_offsets,
    m.Api.DESCRIBE_RANGES: _check_describe_ranges,
    m.Api.DESCRIBE_CLUSTER: check_describe_cluster,
    m.Api.DECOMMISSION_BROKER: check_decommission_broker,
    m.Api.CHANGE_VOTERS: lambda _request, _response, _body_bytes: None,  # Nothing is done with it.
    m.Api.ELECT_LEADERS: check_elect_leaders,
    m.Api.REASSIGN_PARTITIONS: check_reassign_partitions,
    m.Api.ALTER_CONFIGS: check_alter_configs,
    m.Api.UPDATE_FEATURES: check_update_features,
    m.Api.DESCRIBE_CONFIGS: check_describe_configs,
    m.Api.DESCRIBE_REPLICAS: check_describe_replicas,
}
assert _CHECKS.keys() == {spec.api for spec in APIS.values() if not spec.between_brokers}
assert BATCH_ROWS_MAX < EPOCH_MAX
