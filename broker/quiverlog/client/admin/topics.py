"""Administration and descriptions of topics, and configuration of brokers, as operations.

One broker gives a topic's settings and leaders, and the leaders give offsets and sizes, which stay
unknown (-1) without their answers: callers describe topics also when something is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from quiverlog.client.base.arguments import shown
from quiverlog.client.base.commands import Operation, Sleep
from quiverlog.client.base.results import (
    ClusterMetadata,
    ConfigValue,
    PartitionDetail,
    SchemaInfo,
    TopicDetail,
    TopicInfo,
    moment,
)
from quiverlog.client.base.schema_history import history_from_wire
from quiverlog.client.cluster.answers import about, check_topic_count
from quiverlog.client.cluster.metadata import check
from quiverlog.client.cluster.partition_questions import raise_for
from quiverlog.client.cluster.routing import Cluster, backoff_s
from quiverlog.errors import (
    ConnectionClosed,
    InvalidArgument,
    NotController,
    OutcomeUnknown,
    QuiverlogError,
    RequestTimedOut,
    TopicExists,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.wire import messages as m
from quiverlog.wire.config_messages import (
    WHOLE_CLUSTER,
    AlterConfigsRequest,
    AlterConfigsResponse,
    BrokerConfigEntry,
    ConfigChange,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from quiverlog.wire.election_messages import ElectLeadersRequest, ElectLeadersResponse

if TYPE_CHECKING:
    import pyarrow as pa

    from quiverlog.batch.schema import SchemaHistory

__all__ = [
    "BrokerSetting",
    "BrokerSettings",
    "alter_configs",
    "describe_configs",
    "describe_topics",
]


def describe_topics(
    cluster: Cluster, names: Sequence[str] | None
) -> Operation[dict[str, TopicDetail]]:
    wanted = None if names is None else list(dict.fromkeys(names))

    def attempt() -> Operation[dict[str, TopicDetail]]:
        found = yield from _pages(cluster, wanted, -1)
        for leader, topics in sorted(_unknown_by_leader(found).items()):
            try:
                if leader not in cluster.metadata.brokers:
                    yield from cluster.refresh([])
                theirs = yield from _pages(cluster, topics, leader)
            except QuiverlogError:
                continue  # Its numbers stay unknown; one broker that is down hides no topic.
            for name in theirs.keys() & found.keys():
                found[name] = _filled(found[name], theirs[name])
        return found

    operation = cluster.retrying(attempt)
    if wanted is not None and len(wanted) == 1:
        operation = about(wanted[0], operation)
    return (yield from operation)


def _pages(
    cluster: Cluster, names: list[str] | None, node_id: int
) -> Operation[dict[str, TopicDetail]]:
    """Return one broker's descriptions; a negative id: any broker's."""
    found: dict[str, TopicDetail] = {}
    first_name = ""
    while True:
        request = m.DescribeTopicsRequest(names=names, first_name=first_name)
        if node_id < 0:
            reply = yield from cluster.call_any(request)
        else:
            reply = yield cluster.call(cluster.address_of(node_id), request)
            check(reply.response)
        response = reply.response
        assert isinstance(response, m.DescribeTopicsResponse)
        for topic in response.topics:
            raise_for(topic, topic.name)
        found.update((t.name, _topic_detail(t)) for t in response.topics)
        check_topic_count(len(found))
        first_name = response.next_name
        if not first_name:
            return found


def _unknown_by_leader(found: dict[str, TopicDetail]) -> dict[int, list[str]]:
    topics: dict[int, dict[str, None]] = {}
    for name, topic in found.items():
        for partition in topic.partitions:
            if partition.log_end_offset < 0 <= partition.leader:
                topics.setdefault(partition.leader, {})[name] = None
    return {leader: list(names) for leader, names in topics.items()}


def _filled(mine: TopicDetail, theirs: TopicDetail) -> TopicDetail:
    if mine.topic_id != theirs.topic_id:
        return mine  # It was deleted and created again in between.
    led = {p.partition: p for p in theirs.partitions if p.log_end_offset >= 0}
    partitions = (led.get(p.partition, p) if p.log_end_offset < 0 else p for p in mine.partitions)
    return replace(mine, partitions=tuple(partitions))


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


T = TypeVar("T")

# Some seconds, with their pauses.
_LOOKS_MAX = 10
# For a topic whose creation used up the caller's time.
_LOOKS_BEFORE_CONTROLLER = 3
_LOOK_S_MIN = 1.0

Scalar: TypeAlias = "str | int | float | bool"


def config_text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise InvalidArgument(f"A config value is a string, number or bool, not {value!r}.")


def _configs(config: Mapping[str, Scalar] | None) -> dict[str, str]:
    return {key: config_text(value) for key, value in (config or {}).items()}


def schema_bytes(schema: pa.Schema | str) -> bytes:
    """Encode a schema; text is DDL, or "raw", which means `RAW_SCHEMA`."""
    from quiverlog.batch.schema import serialize_schema

    if isinstance(schema, str):
        return bytes(serialize_schema(_schema_of_text(schema)))
    import pyarrow as pa

    wanted = "a pyarrow.Schema, text like 'id long, name string', or 'raw'"
    if not isinstance(schema, pa.Schema):
        if not hasattr(schema, "__arrow_c_schema__"):
            raise InvalidArgument(f"schema={shown(schema)}: give {wanted}.")
        try:
            schema = pa.schema(schema)
        except Exception as error:  # a caller's object may raise anything
            raise InvalidArgument(f"schema={shown(schema)} is no schema: {error}") from error
    return bytes(serialize_schema(schema))


def _schema_of_text(text: str) -> pa.Schema:
    from quiverlog.batch.schema import RAW_SCHEMA
    from quiverlog.batch.schema_text import SchemaSyntaxError, parse_schema

    if text.strip().lower() == "raw":
        return RAW_SCHEMA
    try:
        return parse_schema(text)
    except SchemaSyntaxError as error:
        raise InvalidArgument(f"schema={shown(text)}: {error}.") from None


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def create_topic(
    cluster: Cluster,
    name: str,
    schema: pa.Schema | str,
    *,
    partitions: int,
    replication_factor: int | None,
    key: str | Sequence[str] | None,
    config: Mapping[str, Scalar] | None,
    if_not_exists: bool,
    validate_only: bool,
) -> Operation[TopicInfo | None]:
    if not isinstance(name, str):
        raise InvalidArgument(f"A topic's name is text, not {name!r}.")
    factor = -1 if replication_factor is None else replication_factor
    for what, number in (("partitions", partitions), ("replication_factor", factor)):
        if not isinstance(number, int):
            raise InvalidArgument(f"{what}={number!r} is not a whole number.")
    new = m.NewTopic(
        name=name,
        schema=schema_bytes(schema),
        partitions=partitions,
        replication_factor=factor,
        key_columns=list(_names(key)),
        configs=_configs(config),
    )
    tries: list[QuiverlogError] = []
    created = b""

    def attempt() -> Operation[None]:
        nonlocal created
        try:
            reply = yield from cluster.call_controller(
                m.CreateTopicsRequest(topics=[new], validate_only=validate_only)
            )
        except (ConnectionClosed, RequestTimedOut) as error:
            tries.append(error)  # it may have been created: the reply alone was lost
            raise
        response = reply.response
        assert isinstance(response, m.CreateTopicsResponse)
        try:
            raise_for(response.topics[0], name)
            created = response.topics[0].topic_id
        except TopicExists:
            if not (if_not_exists or (tries and (yield from _is_ours(cluster, new)))):
                raise
        except (NotController, OutcomeUnknown) as error:
            tries.append(error)  # it may yet be created
            raise

    began_s = cluster.clock()
    yield from _with_open_tries(tries, about(name, cluster.retrying(attempt)))
    if validate_only:
        return None
    # Outside the attempt: a failure here must not create the topic once more.
    left_s = cluster.settings.request_timeout_s - (cluster.clock() - began_s)
    look_s = max(left_s, _LOOK_S_MIN)
    look = cluster.retrying(lambda: _when_known(cluster, name, created), timeout_s=look_s)
    return (yield from about(name, look))


def _with_open_tries(tries: list[QuiverlogError], operation: Operation[T]) -> Operation[T]:
    try:
        return (yield from operation)
    except QuiverlogError as error:
        if tries:
            error.add_note("An earlier try had no valid answer: the change may have been made.")
        raise


def _when_known(cluster: Cluster, name: str, topic_id: bytes) -> Operation[TopicInfo | None]:
    """Return None: the topic is there, and hidden from this client, which may create it alone."""
    # By its id where that is known: a broker that applies it late may still return a deleted one of
    # the same name.
    for tries in itertools.count():
        try:
            found = yield from cluster.topic(name, fresh=True)
            if topic_id in (b"", found.topic_id):
                return found
            cluster.invalidate_topics()
            raise UnknownTopic(f"There is another topic {name!r} than the created one.", topic=name)
        except UnknownTopic:
            if tries == _LOOKS_BEFORE_CONTROLLER:
                # It has applied what it created: where it shows no topic, it hides it.
                shown = (yield from cluster.refresh([name], from_controller=True)).topics
                if name not in shown:
                    return None
            if tries >= _LOOKS_MAX:
                raise
        yield Sleep(backoff_s(tries, 1.0))
    raise AssertionError("it is counted without end")


def _is_ours(cluster: Cluster, new: m.NewTopic) -> Operation[bool]:
    """Return True if the existing topic is as asked: the reply to its creation may be lost."""
    for tries in range(_LOOKS_MAX + 1):
        try:
            found = (yield from describe_topics(cluster, [new.name]))[new.name]
        except UnknownTopic:
            yield Sleep(backoff_s(tries, 1.0))
        else:
            return _is_as_asked(found, new)
    return False


def _is_as_asked(found: TopicDetail, new: m.NewTopic) -> bool:
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
    """Delete a topic, by the id that it has now."""
    tries: list[QuiverlogError] = []
    topic_id = b""

    def attempt() -> Operation[None]:
        nonlocal topic_id
        if not tries:
            found = (yield from cluster.refresh([name], from_controller=True)).topics.get(name)
            if found is None and not if_exists:
                raise UnknownTopic(f"There is no topic {name!r}.", topic=name)
            if found is None:
                return
            topic_id = found.topic_id
        request = m.DeleteTopicsRequest(names=[name], topic_ids=[topic_id])
        try:
            reply = yield from cluster.call_controller(request)
        except (ConnectionClosed, RequestTimedOut) as error:
            tries.append(error)
            raise
        response = reply.response
        assert isinstance(response, m.DeleteTopicsResponse)
        cluster.invalidate_topics()
        try:
            raise_for(response.topics[0], name)
        except (UnknownTopic, UnknownTopicId) as error:
            # After a lost answer, its absence or another topic of the name is success. Without one
            # another client has deleted it: look the name up again.
            if not tries and isinstance(error, UnknownTopicId):
                raise
            if not (if_exists or tries):
                raise
        except (NotController, OutcomeUnknown) as error:
            tries.append(error)
            raise

    return (yield from _with_open_tries(tries, about(name, cluster.retrying(attempt))))


def alter_topic(
    cluster: Cluster,
    name: str,
    *,
    config: Mapping[str, Scalar] | None,
    reset_config: Sequence[str],
    partitions: int | None,
    schema: pa.Schema | str | None,
    validate_only: bool,
) -> Operation[int]:
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
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, m.AlterTopicResponse)
        cluster.invalidate_topics()
        return reply.response.schema_id

    return (yield from about(name, cluster.retrying(attempt)))


def elect_leaders(
    cluster: Cluster, name: str, partitions: Sequence[int] | None, *, unclean: bool
) -> Operation[dict[int, int | None]]:
    wanted = None if partitions is None else list(dict.fromkeys(partitions))
    request = ElectLeadersRequest(name=name, partitions=wanted, unclean=unclean)

    def attempt() -> Operation[dict[int, int | None]]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, ElectLeadersResponse)
        cluster.invalidate_topics()
        leaders = {one.partition: one.leader_id for one in reply.response.leaders}
        return {number: None if n < 0 else n for number, n in leaders.items()}

    return (yield from about(name, cluster.retrying(attempt)))


def metadata(cluster: Cluster, names: Sequence[str] | None) -> Operation[ClusterMetadata]:
    return (yield from cluster.retrying(lambda: cluster.refresh(names)))


def list_topics(cluster: Cluster, *, internal: bool) -> Operation[list[str]]:
    found = yield from metadata(cluster, None)
    return sorted(t.name for t in found.topics.values() if internal or not t.is_internal)


def schemas(cluster: Cluster, name: str) -> Operation[SchemaHistory]:
    def attempt() -> Operation[SchemaHistory]:
        topic = yield from cluster.topic(name, fresh=True)
        return (yield from cluster.history(topic.topic_id, name, needed_id=topic.schema_id))

    return (yield from about(name, cluster.retrying(attempt)))


@dataclass(frozen=True, slots=True)
class BrokerSetting:
    """A key of a broker's configuration. Values are text; None: not set there.

    `source`: of the value (default, file, environment, flag, cluster, broker). `given`: by the
    process's flag, environment or file. `in_cluster`, `in_broker`: set at run time, for all brokers
    or for this one. `changes_live`: no restart is needed.
    """

    value: str
    source: str
    changes_live: bool
    default: str
    given: str | None
    in_cluster: str | None
    in_broker: str | None


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The configuration of one broker as of a metadata version."""

    node_id: int
    metadata_version: int
    settings: dict[str, BrokerSetting]


def alter_configs(
    cluster: Cluster, changes: Mapping[str, str | None], broker: int | None
) -> Operation[int]:
    request = AlterConfigsRequest(
        node_id=WHOLE_CLUSTER if broker is None else broker,
        changes=[ConfigChange(key, value) for key, value in changes.items()],
    )

    def attempt() -> Operation[int]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, AlterConfigsResponse)
        return reply.response.metadata_version

    return (yield from cluster.retrying(attempt))


def describe_configs(
    cluster: Cluster, broker: int | None, keys: Sequence[str]
) -> Operation[BrokerSettings]:
    request = DescribeConfigsRequest(keys=list(keys))

    def attempt() -> Operation[BrokerSettings]:
        if broker is None:
            reply = yield from cluster.call_any(request)
        else:
            reply = yield cluster.call(cluster.address_of(broker), request)
            check(reply.response)
        response = reply.response
        assert isinstance(response, DescribeConfigsResponse)
        settings = {one.key: _setting(one) for one in response.configs}
        return BrokerSettings(response.node_id, response.metadata_version, settings)

    return (yield from cluster.retrying(attempt))


def _setting(one: BrokerConfigEntry) -> BrokerSetting:
    return BrokerSetting(
        one.value,
        ConfigSource(one.source).label,
        one.changes_live,
        one.default,
        one.given,
        one.in_cluster,
        one.in_broker,
    )
