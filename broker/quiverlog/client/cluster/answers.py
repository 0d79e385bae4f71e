"""Checks that a broker's answer fits its request, before any operation sees it.

Each partition, topic or key of the request is answered once and no other, pages follow one another,
numbers agree. `wire` has checked single fields; `decoding` checks rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from quiverlog.client.base.commands import Operation
from quiverlog.errors import ConnectionFailed, InvalidResponse, QuiverlogError
from quiverlog.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX, TOPICS_MAX
from quiverlog.types import EARLIEST, LATEST
from quiverlog.wire import messages as m
from quiverlog.wire.cluster_messages import ClusterBroker, DescribeClusterResponse
from quiverlog.wire.registry import APIS

__all__ = ["OFFSET_MAX", "about", "check_answer", "check_topic_count", "named"]


T = TypeVar("T")

OFFSET_MAX: Final = 2**63 - 1
TOPIC_ID_BYTES: Final = 16
SHOWN_MAX: Final = 3


def check_answer(request: m.Request, response: m.Response, body_bytes: int) -> None:
    """Raise InvalidResponse, which names the part that does not fit the request."""
    assert request.API == response.API, "wire decodes an answer as what was asked"
    if response.error_code:
        return
    if body_bytes and request.API is not m.Api.FETCH:
        raise InvalidResponse(f"A {request.API.name} answer came with {body_bytes} bytes of rows.")
    _CHECKS[request.API](request, response, body_bytes)


def named(error: QuiverlogError, topic: str, *partitions: int) -> QuiverlogError:
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
    try:
        return (yield from operation)
    except QuiverlogError as error:
        named(error, topic, *partitions)
        raise


# --- parts that several answers share -------------------------------------------------------------
def _check_range(value: int, low: int, high: int, what: str, part: Any) -> None:
    if not low <= value <= high:
        raise _wrong(part, f"{what} {value} is not in the range {low} to {high}")


def _wrong(part: Any, why: str) -> InvalidResponse:
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
    # Brokers' names may have any length here.
    return repr(name[:TOPIC_NAME_CHARS_MAX])


def _answered_partitions(request: Any, response: Any) -> list[tuple[Any, Any]]:
    """Return (entry, result) of each partition without an error. Each entry must have a result."""
    asked = {(e.topic_id, e.partition): e for e in request.partitions}
    missing = dict(asked)
    pairs = []
    for result in response.partitions:
        key = (result.topic_id, result.partition)
        if missing.pop(key, None) is None:
            why = "was answered twice" if key in asked else "was not asked for"
            raise _wrong(result, why)
        if not result.error_code:
            pairs.append((asked[key], result))
    for entry in missing.values():
        raise _wrong(entry, "was left unanswered")
    return pairs


def _answered_page(
    names: Sequence[str] | None, first_name: str | None, topics: Iterable[Any], next_name: str
) -> list[Any]:
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
        # Pages are in the order of names: the others are on earlier and later pages.
        names = [n for n in names if first_name <= n and (not next_name or n < next_name)]
    return _answered_topics(names, topics)


def check_topic_count(count: int) -> None:
    # A broker's pages may be endless.
    if count > TOPICS_MAX:
        raise InvalidResponse(f"The pages of topics have more than {TOPICS_MAX} together.")


def _answered_topics(names: Sequence[str] | None, topics: Iterable[Any]) -> list[Any]:
    """Return the topics without an error; each name must be answered once."""
    missing = set(names or ())
    seen: set[str] = set()
    good = []
    for topic in topics:
        if topic.name in seen:
            raise InvalidResponse(f"topic {_shown(topic.name)} was answered twice.")
        if names is not None and topic.name not in missing:
            raise InvalidResponse(f"topic {_shown(topic.name)} was not asked for.")
        seen.add(topic.name)
        if not topic.error_code:
            if not topic.name:
                raise InvalidResponse("A topic without a name was answered.")
            good.append(topic)
    for name in sorted(missing - seen):
        raise InvalidResponse(f"topic {name!r}: was left unanswered.", topic=name)
    return good


def _check_partition_numbers(topic: Any) -> None:
    numbers = sorted(p.partition for p in topic.partitions)
    if not numbers or numbers != list(range(len(numbers))):
        raise _wrong(topic, f"its partitions are {numbers[:10]}")
    if len(numbers) > PARTITIONS_PER_TOPIC_MAX:
        raise _wrong(topic, f"it has {len(numbers)} partitions")


def _check_topic_id(topic: Any, *, may_be_empty: bool = False) -> None:
    if len(topic.topic_id) != TOPIC_ID_BYTES and (topic.topic_id or not may_be_empty):
        raise _wrong(topic, f"its id has {len(topic.topic_id)} bytes")


def _check_schemas(schemas: Sequence[m.SchemaVersion], part: Any) -> None:
    ids = [s.schema_id for s in schemas]
    if not ids or ids != sorted(set(ids)):
        raise _wrong(part, f"its schemas have the ids {ids[:10]}")


def _check_unique(values: Sequence[object], what: str) -> None:
    if len(set(values)) != len(values):
        raise InvalidResponse(f"{what}: {values[:10]} names one of them twice.")


def _check_same(wanted: Sequence[object], found: Sequence[object], what: str) -> None:
    if list(wanted) != list(found):
        raise InvalidResponse(f"{what} {wanted[:10]} were asked for; {found[:10]} came.")


def _check_brokers(api: str, brokers: Sequence[m.BrokerEndpoint | ClusterBroker]) -> None:
    _check_unique([one.node_id for one in brokers], f"{api}: brokers")
    for one in brokers:
        if not one.host or not one.port or one.node_id < 0:
            raise InvalidResponse(f"{api}: broker {one.node_id} at {one.host!r}, port {one.port}.")


def _check_hello(request: Any, response: Any, _: int) -> None:
    _check_unique([a.api for a in response.apis], "HELLO: APIs")


def _check_metadata(request: Any, response: Any, _: int) -> None:
    names = None if request.topics is None or request.topic_ids else request.topics
    if not response.brokers:
        # Without contact to the controller, a broker may have none; another one may have more.
        raise ConnectionFailed("The broker lists no live brokers.")
    _check_brokers("METADATA", response.brokers)
    page = _answered_page(names, request.first_name, response.topics, response.next_name)
    for topic in page:
        _check_topic_id(topic)
        _check_partition_numbers(topic)


def _check_produce(request: Any, response: Any, _: int) -> None:
    for _entry, result in _answered_partitions(request, response):
        _check_range(result.row_count, 1, OFFSET_MAX, "row count", result)
        _check_range(result.base_offset, 0, OFFSET_MAX - result.row_count, "offset", result)
        # The topic's own durability may be higher than the producer's.
        if result.durability < request.durability:
            why = f"durability {result.durability} where {request.durability} was asked for"
            raise _wrong(result, why)


def _check_fetch(request: Any, response: Any, body_bytes: int) -> None:
    total = 0
    for result in response.partitions:
        _check_range(result.batch_bytes, 0, body_bytes - total, "batch bytes", result)
        total += result.batch_bytes
        if result.batch_bytes and result.error_code:
            raise _wrong(result, "rows came with an error")
    # `split_fetch` cuts the body by these sizes.
    if total != body_bytes:
        raise InvalidResponse(f"A fetch's parts have {total} bytes, its body {body_bytes}.")
    for _entry, result in _answered_partitions(request, response):
        _check_range(result.high_watermark, 0, OFFSET_MAX, "high watermark", result)
        _check_range(result.log_start_offset, 0, result.high_watermark, "log start", result)


def _check_list_offsets(request: Any, response: Any, _: int) -> None:
    for entry, result in _answered_partitions(request, response):
        if entry.at in (LATEST, EARLIEST):
            _check_range(result.offset, 0, OFFSET_MAX, "offset", result)


def _check_init_producer_id(request: Any, response: Any, _: int) -> None:
    if min(response.producer_id, response.producer_epoch) < 0:
        raise InvalidResponse(
            f"Producer id {response.producer_id} with epoch {response.producer_epoch} was given."
        )


def _check_create_topics(request: Any, response: Any, _: int) -> None:
    names = [topic.name for topic in request.topics]
    for topic in _answered_topics(names, response.topics):
        # A topic that was only validated has no id.
        _check_topic_id(topic, may_be_empty=request.validate_only)


def _check_delete_topics(request: Any, response: Any, _: int) -> None:
    _answered_topics(request.names, response.topics)


def _check_describe_topics(request: Any, response: Any, _: int) -> None:
    page = _answered_page(request.names, request.first_name, response.topics, response.next_name)
    for topic in page:
        _check_topic_id(topic)
        _check_partition_numbers(topic)
        _check_schemas(topic.schemas, topic)
        for p in topic.partitions:
            what = f"partition {p.partition}:"
            if p.log_end_offset == p.high_watermark == p.log_start_offset == -1:
                continue  # Another broker leads it, or it is not open.
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
    for entry, result in _answered_partitions(request, response):
        # A reader that walks back through the epochs must come to an end.
        if result.epoch > entry.epoch:
            raise _wrong(result, f"epoch {result.epoch} came for epoch {entry.epoch}")


def _check_describe_ranges(request: Any, response: Any, _: int) -> None:
    for entry, result in _answered_partitions(request, response):
        end = OFFSET_MAX if entry.end_offset < 0 else entry.end_offset
        low = max(0, entry.start_offset)
        if low < entry.end_offset:
            low += 1  # at least one batch, so that a reader that walks the range advances
        _check_range(result.end_offset, low, end, "end offset", result)


def _check_describe_cluster(_request: Any, response: DescribeClusterResponse, _: int) -> None:
    _check_brokers("DESCRIBE_CLUSTER", response.brokers)
    if response.node_id < 0:
        raise InvalidResponse(f"DESCRIBE_CLUSTER was answered by broker {response.node_id}.")
    partitions = response.partition_count
    some = (
        response.under_replicated_count,
        response.under_min_in_sync_count,
        response.offline_count,
        response.moving_count,
    )
    if max(some) > partitions:
        raise InvalidResponse(f"DESCRIBE_CLUSTER: {some} of {partitions} partitions.")


def _check_describe_configs(request: Any, response: Any, _: int) -> None:
    if response.node_id < 0:
        raise InvalidResponse(f"DESCRIBE_CONFIGS was answered by broker {response.node_id}.")
    found = [one.key for one in response.configs]
    _check_unique(found, "DESCRIBE_CONFIGS: keys")
    if request.keys:
        _check_same(list(dict.fromkeys(request.keys)), found, "Keys")


def _check_update_features(_request: Any, response: Any, _: int) -> None:
    _check_unique([one.node_id for one in response.brokers], "UPDATE_FEATURES: brokers")
    if response.level < 1:
        raise InvalidResponse(f"UPDATE_FEATURES: the cluster has the level {response.level}.")


def _check_elect_leaders(request: Any, response: Any, _: int) -> None:
    found = [one.partition for one in response.leaders]
    named = request.partitions
    _check_same(range(len(found)) if named is None else sorted(set(named)), found, "Leaders of")


def _check_reassign_partitions(request: Any, response: Any, _: int) -> None:
    found = [one.partition for one in response.moves]
    _check_unique(found, "REASSIGN_PARTITIONS: partitions")
    if request.partitions:
        _check_same(
            sorted({one.partition for one in request.partitions}), sorted(found), "Moves of"
        )
    names = [topic.name for topic in response.topics]
    if names != sorted(set(names)) or (request.name and names):
        raise InvalidResponse(f"Moves of {request.name!r} were asked for; {names[:10]} came.")
    _check_next_page(request, response)
    for one in (*response.moves, *(move for topic in response.topics for move in topic.moves)):
        if one.partition < 0 or not one.replicas:
            raise InvalidResponse(f"Partition {one.partition} is held by {one.replicas}.")


def _check_page_of_topics(request: Any, response: Any, _: int) -> None:
    names = [topic.name for topic in response.topics]
    if names != sorted(set(names)):
        raise InvalidResponse(f"Topics come as {names[:10]}.")
    _check_next_page(request, response)


def _check_describe_replicas(request: Any, response: Any, body_bytes: int) -> None:
    _check_page_of_topics(request, response, body_bytes)
    for topic in response.topics:
        if min((one.partition for one in topic.replicas), default=0) < 0:
            raise _wrong(topic, "a replica of it has no number")


def _check_next_page(request: Any, response: Any) -> None:
    if response.next_name and response.next_name <= request.first_name:
        raise InvalidResponse(
            f"The page from {_shown(request.first_name)} on is followed by itself."
        )


def _check_open_transaction(_request: Any, response: Any, _: int) -> None:
    if response.epoch < 0:
        raise InvalidResponse(f"OPEN_TRANSACTION was answered with the epoch {response.epoch}.")


def _check_commit_transaction(request: Any, response: Any, _: int) -> None:
    row_count = sum(one.row_count for one in request.attempts)
    # What had been committed before may have been other attempts, of an earlier run.
    if not response.outcome and response.row_count != row_count:
        raise InvalidResponse(
            f"COMMIT_TRANSACTION of {row_count} rows: {response.row_count} were committed."
        )


def _check_page_of_transactions(request: Any, response: Any, _: int) -> None:
    found = [one.transactional_id for one in response.transactions]
    following = response.next_id
    # Each page goes beyond the one before: else the client would ask for ever.
    if found != sorted(set(found)) or (found and found[0] < request.first_id):
        raise InvalidResponse(
            f"Transactions from {_shown(request.first_id)} on come as {found[:SHOWN_MAX]}."
        )
    if following and following <= max((request.first_id, *found[-1:])):
        raise InvalidResponse(
            f"The page of transactions from {_shown(request.first_id)} on is followed by"
            f" {_shown(following)}."
        )


def _check_group_heartbeat(request: Any, response: Any, _: int) -> None:
    # One that has just joined has nothing yet, under epoch 0.
    if response.member_epoch < min(request.member_epoch, 0):
        raise InvalidResponse(
            f"GROUP_HEARTBEAT was answered with the epoch {response.member_epoch}."
        )


def _check_offset_results(request: Any, response: Any, _: int) -> None:
    asked = [(one.topic_id, one.partition) for one in request.entries]
    found = [(one.topic_id, one.partition) for one in response.entries]
    _check_same(asked, found, "entries")


def _check_fetch_offsets(request: Any, response: Any, _: int) -> None:
    found = [(one.topic_id, one.partition) for one in response.offsets]
    if len(set(found)) != len(found):
        raise InvalidResponse("FETCH_OFFSETS was answered with a partition twice.")
    if request.topics is not None:
        asked = {(one.topic_id, number) for one in request.topics for number in one.partitions}
        if not asked.issuperset(found):
            raise InvalidResponse("FETCH_OFFSETS was answered with partitions of others.")
    _check_page(request, response)


def _check_page(request: Any, response: Any) -> None:
    # Else the client would ask for ever.
    if response.next_page and response.next_page <= request.page:
        raise InvalidResponse("A page of the answer is followed by itself, or an earlier one.")


def _check_list_groups(request: Any, response: Any, _: int) -> None:
    found = [one.group for one in response.groups]
    if found != sorted(set(found)) or (found and found[0] < request.first_group):
        raise InvalidResponse(
            f"Groups from {_shown(request.first_group)} on come as {found[:SHOWN_MAX]}."
        )
    following = response.next_group
    if following and following <= max((request.first_group, *found[-1:])):
        raise InvalidResponse(
            f"The page of groups from {_shown(request.first_group)} on is followed by"
            f" {_shown(following)}."
        )


def _check_describe_groups(request: Any, response: Any, _: int) -> None:
    found = [one.group for one in response.groups]
    if len(set(found)) != len(found) or not set(request.groups).issuperset(found):
        raise InvalidResponse(f"Of other groups came {found[:SHOWN_MAX]}.")
    _check_page(request, response)


def _check_delete_groups(request: Any, response: Any, _: int) -> None:
    if [one.group for one in response.groups] != request.groups:
        raise InvalidResponse("DELETE_GROUPS was answered with other groups.")


def _check_describe_users(request: Any, response: Any, _: int) -> None:
    names = [user.name for user in response.users]
    if request.name is not None:
        _check_same([request.name], names, "Users")
    if names != sorted(set(names)) or (names and names[0] < request.first_name):
        raise InvalidResponse(f"Users come as {names[:SHOWN_MAX]}.")
    following = response.next_name
    if following is not None and following <= max((request.first_name, *names[-1:])):
        raise InvalidResponse(
            f"The page of users from {_shown(request.first_name)} on is followed by"
            f" {_shown(following)}."
        )


def _check_create_token(request: Any, response: Any, _: int) -> None:
    if not response.token_id or (request.owner and response.owner != request.owner):
        raise InvalidResponse(f"CREATE_TOKEN was answered with a token of {response.owner!r}.")


def _check_alter_acls(request: Any, response: Any, _: int) -> None:
    if len(response.numbers) != len(request.additions) or 0 in response.numbers:
        raise InvalidResponse(
            f"{len(request.additions)} rules were added, and got the numbers"
            f" {response.numbers[:SHOWN_MAX]}."
        )


def _check_describe_acls(request: Any, response: Any, _: int) -> None:
    found = [one.number for one in response.rules]
    if found != sorted(set(found)) or (found and found[0] < max(1, request.first_number)):
        raise InvalidResponse(f"Rules from {request.first_number} on come as {found[:SHOWN_MAX]}.")
    following = response.next_number
    if following and following <= max((request.first_number, *found[-1:])):
        raise InvalidResponse(
            f"The page of rules from {request.first_number} on is followed by {following}."
        )


def _check_describe_quotas(request: Any, response: Any, _: int) -> None:
    found = [(one.kind, one.name) for one in response.quotas]
    if found != sorted(set(found)):
        raise InvalidResponse(f"Quotas come as {found[:SHOWN_MAX]}.")


def _fits_any(_request: Any, _response: Any, _body_bytes: int) -> None:
    """Nothing in these answers must agree with the request."""


_CHECKS: Final[dict[m.Api, Callable[[Any, Any, int], None]]] = {
    m.Api.HELLO: _check_hello,
    m.Api.AUTHENTICATE: _fits_any,
    m.Api.WHO_AM_I: _fits_any,
    m.Api.ALTER_USERS: _fits_any,
    m.Api.DESCRIBE_USERS: _check_describe_users,
    m.Api.CREATE_TOKEN: _check_create_token,
    m.Api.END_TOKENS: _fits_any,
    m.Api.METADATA: _check_metadata,
    m.Api.PRODUCE: _check_produce,
    m.Api.FETCH: _check_fetch,
    m.Api.LIST_OFFSETS: _check_list_offsets,
    m.Api.INIT_PRODUCER_ID: _check_init_producer_id,
    m.Api.CREATE_TOPICS: _check_create_topics,
    m.Api.DELETE_TOPICS: _check_delete_topics,
    m.Api.ALTER_TOPIC: _fits_any,
    m.Api.DESCRIBE_TOPICS: _check_describe_topics,
    m.Api.TOPIC_SCHEMAS: _check_topic_schemas,
    m.Api.DELETE_RECORDS: _check_delete_records,
    m.Api.EPOCH_END_OFFSETS: _check_epoch_end_offsets,
    m.Api.DESCRIBE_RANGES: _check_describe_ranges,
    m.Api.DESCRIBE_CLUSTER: _check_describe_cluster,
    m.Api.DECOMMISSION_BROKER: _fits_any,
    m.Api.CHANGE_VOTERS: _fits_any,
    m.Api.ELECT_LEADERS: _check_elect_leaders,
    m.Api.REASSIGN_PARTITIONS: _check_reassign_partitions,
    m.Api.ALTER_CONFIGS: _fits_any,
    m.Api.UPDATE_FEATURES: _check_update_features,
    m.Api.DESCRIBE_CONFIGS: _check_describe_configs,
    m.Api.DESCRIBE_REPLICAS: _check_describe_replicas,
    m.Api.DESCRIBE_PRODUCER: _check_page_of_topics,
    m.Api.ALTER_ACLS: _check_alter_acls,
    m.Api.DESCRIBE_ACLS: _check_describe_acls,
    m.Api.ALTER_QUOTAS: _fits_any,
    m.Api.DESCRIBE_QUOTAS: _check_describe_quotas,
    m.Api.OPEN_TRANSACTION: _check_open_transaction,
    m.Api.COMMIT_TRANSACTION: _check_commit_transaction,
    m.Api.ABORT_TRANSACTION: _fits_any,
    m.Api.LIST_TRANSACTIONS: _check_page_of_transactions,
    m.Api.DESCRIBE_TRANSACTIONS: _check_page_of_transactions,
    m.Api.GROUP_HEARTBEAT: _check_group_heartbeat,
    m.Api.COMMIT_OFFSETS: _check_offset_results,
    m.Api.FETCH_OFFSETS: _check_fetch_offsets,
    m.Api.LIST_GROUPS: _check_list_groups,
    m.Api.DESCRIBE_GROUPS: _check_describe_groups,
    m.Api.ALTER_GROUP_OFFSETS: _check_offset_results,
    m.Api.DELETE_GROUPS: _check_delete_groups,
    m.Api.REPORT_PROGRESS: _fits_any,
}
assert _CHECKS.keys() == {spec.api for spec in APIS.values() if not spec.between_brokers}
