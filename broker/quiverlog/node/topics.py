"""METADATA, TOPIC_SCHEMAS and the administration of topics: create, delete, alter, describe.

Owns the order of a change: decide (core/controller), make the partitions' directories, log the
records durably, apply, answer. Directories come before the record, so that a topic that exists
always has them; a crash in between leaves directories that no record names, and the next start
removes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quiverlog.core.controller import topics as decide
from quiverlog.core.controller.configs import CONFIG_DEFS, default_text
from quiverlog.core.controller.image import TopicImage
from quiverlog.core.controller.records import PartitionRecord, Record, SchemaRecord
from quiverlog.errors import (
    InvalidRequest,
    QuiverlogError,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.limits import TOPICS_PER_REQUEST_MAX
from quiverlog.node import logs, paging
from quiverlog.node.events import RequestReceived
from quiverlog.node.replica import log_config
from quiverlog.types import Now
from quiverlog.wire import messages as m

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = [
    "handle_alter_topic",
    "handle_create_topics",
    "handle_delete_topics",
    "handle_describe_topics",
    "handle_metadata",
    "handle_topic_schemas",
]


# --- METADATA, TOPIC_SCHEMAS --------------------------------------------------------------------
def handle_metadata(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Brokers, topics, partitions, leaders. Unknown names are marked, not refused."""
    request = event.request
    assert isinstance(request, m.MetadataRequest)
    image = broker.image
    if request.first_name is not None and request.topic_ids:
        raise InvalidRequest("a page of topics is asked for by names, not by ids.")
    names = request.topics
    if names is None:
        names = [] if request.topic_ids else list(image.topics)
    _check_count(len(names) + len(request.topic_ids))
    topics, next_name = paging.by_name(
        names,
        request.first_name,
        lambda name: (
            _topic_metadata(broker, image.topics[name])
            if name in image.topics
            else m.TopicMetadata(name=name, error_code=UnknownTopic.code)
        ),
    )
    for topic_id in request.topic_ids:
        topic = image.topics_by_id.get(topic_id)
        topics.append(
            m.TopicMetadata(topic_id=topic_id, error_code=UnknownTopicId.code)
            if topic is None
            else _topic_metadata(broker, topic)
        )
    response = m.MetadataResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.config.node_id,
        metadata_version=image.version,
        brokers=[
            m.BrokerEndpoint(record.node_id, record.host, record.port, record.rack)
            for record in image.brokers.values()
        ],
        topics=topics,
        next_name=next_name,
    )
    broker.respond(event.connection_id, request.correlation_id, response)


def _topic_metadata(broker: Broker, topic: TopicImage) -> m.TopicMetadata:
    """From the cache, which every metadata change empties."""
    cached = broker.metadata_cache.get(topic.name)
    if cached is None:
        cached = broker.metadata_cache[topic.name] = m.TopicMetadata(
            name=topic.name,
            topic_id=topic.topic_id,
            schema_id=topic.schema_id,
            key_columns=list(topic.key_columns),
            durability=topic.config.durability,
            batch_bytes_max=topic.config.batch_bytes_max,
            partitions=[
                m.PartitionMetadata(
                    partition=partition.partition,
                    leader_id=partition.leader_id,
                    leader_epoch=partition.leader_epoch,
                    replicas=list(partition.replicas),
                    in_sync_replicas=list(partition.in_sync_replicas),
                )
                for partition in topic.partitions
            ],
            compression=topic.config.compression,
        )
    return cached


def handle_topic_schemas(broker: Broker, event: RequestReceived, now: Now) -> None:
    """The schema history of one topic, whole or in pages."""
    request = event.request
    assert isinstance(request, m.TopicSchemasRequest)
    topic = broker.image.topics_by_id.get(request.topic_id)
    if topic is None:
        raise UnknownTopicId(f"there is no topic with id {request.topic_id[:16].hex()}.")
    if request.first_schema_id < 0:
        raise InvalidRequest(f"{request.first_schema_id} is no schema id.")
    records, next_schema_id = paging.schema_page(topic.schema_records, request.first_schema_id)
    response = m.TopicSchemasResponse(
        schemas=_schema_versions(records), next_schema_id=next_schema_id
    )
    broker.respond(event.connection_id, request.correlation_id, response)


def _schema_versions(records: Iterable[SchemaRecord]) -> list[m.SchemaVersion]:
    return [
        m.SchemaVersion(record.schema_id, record.created_us, record.schema) for record in records
    ]


# --- CREATE_TOPICS ------------------------------------------------------------------------------
def handle_create_topics(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Each topic is created or refused on its own."""
    request = event.request
    assert isinstance(request, m.CreateTopicsRequest)
    _check_count(len(request.topics))
    broker.check_writable()
    results: list[m.TopicResult] = []
    for new in request.topics:
        result = m.TopicResult(new.name)
        results.append(result)
        try:
            result.topic_id = _create(broker, new, now, validate_only=request.validate_only)
        except QuiverlogError as error:
            result.error_code, result.error_message = error.code, error.message
    broker.metadata_changed(now)
    response = m.CreateTopicsResponse(topics=results)
    broker.respond(event.connection_id, request.correlation_id, response)


def _create(broker: Broker, new: m.NewTopic, now: Now, *, validate_only: bool) -> bytes:
    config = broker.config
    broker.check_writable()  # An earlier topic of this request may have filled the disk.
    records = decide.create_topic(
        broker.image,
        name=new.name,
        schema=new.schema,
        partitions=config.partitions_default if new.partitions == -1 else new.partitions,
        replication_factor=(
            config.replication_factor_default
            if new.replication_factor == -1
            else new.replication_factor
        ),
        key_columns=new.key_columns,
        configs=new.configs,
        brokers=[config.node_id],
        now_us=now.wall_us,
        entropy=broker.entropy,
    )
    if validate_only:
        return b""
    _commit_with_partitions(broker, new.name, records, now)
    topic = broker.image.topics[new.name]
    broker.log("info", "topic created", topic=new.name, partitions=len(topic.partitions))
    return topic.topic_id


def _commit_with_partitions(broker: Broker, name: str, records: list[Record], now: Now) -> None:
    """Directories first, then the record; a record that cannot be logged takes them away again."""
    added = [record for record in records if isinstance(record, PartitionRecord)]
    made = logs.create_directories(broker, name, added)
    try:
        broker.commit(records)
    except QuiverlogError:
        logs.remove_directories(broker, made)
        raise
    topic = broker.image.topics[name]
    for record in added:
        logs.open_replica(broker, topic, record.partition, now, clean=True)


# --- DELETE_TOPICS ------------------------------------------------------------------------------
def handle_delete_topics(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Gone at once for everybody; the files follow."""
    request = event.request
    assert isinstance(request, m.DeleteTopicsRequest)
    _check_count(len(request.names))
    results: list[m.TopicResult] = []
    for name in request.names:
        result = m.TopicResult(name)
        results.append(result)
        try:
            topic = decide.find_topic(broker.image, name)
            broker.commit(decide.delete_topic(topic))
        except QuiverlogError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        result.topic_id = topic.topic_id
        logs.drop_topic(broker, topic, now)
        broker.log("info", "topic deleted", topic=name)
    broker.metadata_changed(now)
    response = m.DeleteTopicsResponse(topics=results)
    broker.respond(event.connection_id, request.correlation_id, response)


# --- ALTER_TOPIC --------------------------------------------------------------------------------
def handle_alter_topic(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Configuration, more partitions, a wider schema: all of it or nothing."""
    request = event.request
    assert isinstance(request, m.AlterTopicRequest)
    topic = decide.find_topic(broker.image, request.name)
    records = decide.alter_topic(
        broker.image,
        topic,
        set_configs=request.set_configs,
        delete_configs=request.delete_configs,
        partitions=request.partitions,
        schema=request.schema,
        brokers=[broker.config.node_id],
        now_us=now.wall_us,
    )
    if records and not request.validate_only:
        if any(isinstance(record, PartitionRecord) for record in records):
            broker.check_writable()
        _commit_with_partitions(broker, topic.name, records, now)
        _apply_config(broker, topic)
        broker.metadata_changed(now)
        broker.log("info", "topic altered", topic=topic.name, records=len(records))
    response = m.AlterTopicResponse(schema_id=topic.schema_id)
    broker.respond(event.connection_id, request.correlation_id, response)


def _apply_config(broker: Broker, topic: TopicImage) -> None:
    """The topic's logs and rules take its configuration as it is now."""
    config = log_config(topic.config)
    for partition in topic.partitions:
        replica = broker.replicas[topic.topic_id, partition.partition]
        replica.log.config = config
        if replica.state.set_durability(topic.config.durability):
            broker.moved[replica] = None
        if replica.dirty:
            # Rows written under `memory` become as safe as the topic promises from now on.
            broker.want_sync(replica)


# --- DESCRIBE_TOPICS ----------------------------------------------------------------------------
def handle_describe_topics(broker: Broker, event: RequestReceived, now: Now) -> None:
    """All that is known of topics: configuration, schemas, partitions with their sizes."""
    request = event.request
    assert isinstance(request, m.DescribeTopicsRequest)
    names = list(broker.image.topics) if request.names is None else request.names
    _check_count(len(names))
    topics, next_name = paging.by_name(
        names, request.first_name, lambda name: _describe_name(broker, name)
    )
    response = m.DescribeTopicsResponse(topics=topics, next_name=next_name)
    broker.respond(event.connection_id, request.correlation_id, response)


def _describe_name(broker: Broker, name: str) -> m.TopicDescription:
    try:
        return _describe(broker, decide.find_topic(broker.image, name))
    except QuiverlogError as error:
        return m.TopicDescription(name=name, error_code=error.code, error_message=error.message)


def _describe(broker: Broker, topic: TopicImage) -> m.TopicDescription:
    partitions: list[m.PartitionDescription] = []
    for partition in topic.partitions:
        replica = broker.replicas[topic.topic_id, partition.partition]
        state, log = replica.state, replica.log
        partitions.append(
            m.PartitionDescription(
                partition=partition.partition,
                leader_id=partition.leader_id,
                leader_epoch=state.leader_epoch,
                replicas=list(partition.replicas),
                in_sync_replicas=list(partition.in_sync_replicas),
                log_start_offset=log.log_start_offset,
                high_watermark=state.high_watermark,
                log_end_offset=state.log_end_offset,
                flushed_offset=state.flushed_offset,
                size_bytes=log.size_bytes,
                segments=log.segment_count,
            )
        )
    return m.TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        created_us=topic.created_us,
        key_columns=list(topic.key_columns),
        replication_factor=topic.replication_factor,
        configs=[_config_entry(broker, topic, key) for key in CONFIG_DEFS],
        schemas=_schema_versions(paging.newest_schemas(topic.schema_records)),
        partitions=partitions,
    )


def _config_entry(broker: Broker, topic: TopicImage, key: str) -> m.ConfigEntry:
    if key in topic.configs:
        return m.ConfigEntry(key, topic.configs[key], "topic")
    value = broker.image.defaults.get(key)
    if value is None:
        value = default_text(key, topic.replication_factor)
    return m.ConfigEntry(key, value, "default")


def _check_count(count: int) -> None:
    if count > TOPICS_PER_REQUEST_MAX:
        raise InvalidRequest(f"{count} topics in a request, allowed are {TOPICS_PER_REQUEST_MAX}.")
