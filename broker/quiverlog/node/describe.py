"""METADATA, TOPIC_SCHEMAS, DESCRIBE_TOPICS: what is known of topics.

Owns these answers, whole or in pages (paging.py), made in steps so that ten thousand topics do not
hold up anybody else. They are made from the image: what is being decided is not true yet.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from quiverlog.core.controller import topics as decide
from quiverlog.core.controller.configs import CONFIG_DEFS, TAKEN_AT_CREATION, default_text
from quiverlog.core.controller.records import BrokerRecord, SchemaRecord
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.errors import InvalidRequest, QuiverlogError, UnknownTopic, UnknownTopicId
from quiverlog.node import paging
from quiverlog.node.broker import Broker
from quiverlog.node.deciding import endpoint_at, told_controller
from quiverlog.node.tasks import Call, Steps
from quiverlog.node.topics import check_count
from quiverlog.wire import messages as m

__all__ = ["handle_describe_topics", "handle_metadata", "handle_topic_schemas"]

_PARTITIONS_PER_STEP: Final = 16
"""Describing one takes some 4 us, so a step takes as long as `tasks` expects of one."""
_PARTITION_BYTES_MIN: Final = 8
"""Less than any encoded partition has."""


# --- METADATA -----------------------------------------------------------------------------------
def handle_metadata(broker: Broker, call: Call) -> Steps:
    """Brokers, topics, partitions, leaders. Unknown names are marked, not refused."""
    request = call.request
    assert isinstance(request, m.MetadataRequest)
    metadata = broker.metadata
    if request.first_name is not None and request.topic_ids:
        raise InvalidRequest("a page of topics is asked for by names, not by ids.")
    names = request.topics
    if names is None:
        names = [] if request.topic_ids else list(metadata.image.topics)
    check_count(len(names) + len(request.topic_ids))
    topics, next_name = yield from paging.by_name(
        names,
        request.first_name,
        lambda name: _topic_by_name(broker, name),
        lambda name: _bytes_min(metadata.image.topics.get(name)),
    )
    if request.topic_ids:
        topics += yield from _topics_by_id(broker, request.topic_ids, _least_bytes(topics))
    return m.MetadataResponse(
        cluster_id=broker.directory.cluster_id,
        controller_id=told_controller(broker),
        metadata_version=metadata.image.version,
        brokers=_endpoints(broker, call.connection_id),
        topics=topics,
        next_name=next_name,
        is_behind=broker.standing.is_over,
    )


def _endpoints(broker: Broker, connection_id: int) -> list[m.BrokerEndpoint]:
    """Where the live brokers are, for those who ask at this connection's listener.

    Where all are fenced, as after all were killed, the one that answers: it lives, and clients
    have somebody to go on asking.
    """
    config = broker.config
    own = BrokerRecord(
        config.node_id, b"", config.advertised_host, config.advertised_port, config.rack
    )
    found = []
    for record in broker.metadata.image.live_brokers() or [own]:
        host, port = endpoint_at(broker, record, connection_id)
        found.append(m.BrokerEndpoint(record.node_id, host, port, record.rack))
    return found


def _topics_by_id(
    broker: Broker, topic_ids: list[bytes], byte_count: int
) -> Generator[None, object, list[m.TopicMetadata]]:
    """Each once, behind those asked for by name, which take `byte_count` at least."""
    topics: list[m.TopicMetadata] = []
    for topic_id in dict.fromkeys(topic_ids):
        topic = broker.metadata.image.topics_by_id.get(topic_id)
        byte_count += _bytes_min(topic)
        paging.check_fits(byte_count)
        if topic is None:
            topics.append(m.TopicMetadata(topic_id=topic_id, error_code=UnknownTopicId.code))
        else:
            topics.append((yield from _topic_metadata(broker, topic)))
        yield
    return topics


def _topic_by_name(broker: Broker, name: str) -> paging.Making[m.TopicMetadata]:
    topic = broker.metadata.image.topics.get(name)
    if topic is None:
        return m.TopicMetadata(name=name, error_code=UnknownTopic.code)
    return (yield from _topic_metadata(broker, topic))


def _topic_metadata(broker: Broker, topic: TopicImage) -> paging.Making[m.TopicMetadata]:
    """From the cache, which every change empties."""
    metadata = broker.metadata
    cached = metadata.cache.get(topic.name)
    if cached is not None:
        return cached
    version = metadata.image.version
    partitions: list[m.PartitionMetadata] = []
    for partition in topic.partitions:
        partitions.append(
            m.PartitionMetadata(
                partition=partition.partition,
                leader_id=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replicas=list(partition.replicas),
                in_sync_replicas=list(partition.in_sync_replicas),
            )
        )
        if len(partitions) % _PARTITIONS_PER_STEP == 0:
            yield
    made = m.TopicMetadata(
        name=topic.name,
        topic_id=topic.topic_id,
        schema_id=topic.schema_id,
        key_columns=list(topic.key_columns),
        durability=topic.config.durability,
        batch_bytes_max=topic.config.batch_bytes_max,
        partitions=partitions,
        compression=topic.config.compression,
    )
    if metadata.image.version == version:
        assert len(partitions) == len(topic.partitions)
        metadata.remember(made)
    return made


def _least_bytes(topics: list[m.TopicMetadata]) -> int:
    return sum(_PARTITION_BYTES_MIN * len(topic.partitions) for topic in topics)


def _bytes_min(topic: TopicImage | None) -> int:
    return _PARTITION_BYTES_MIN * len(topic.partitions) if topic is not None else 1


# --- TOPIC_SCHEMAS ------------------------------------------------------------------------------
def handle_topic_schemas(broker: Broker, call: Call) -> Steps:
    """The schema history of one topic, whole or in pages."""
    request = call.request
    assert isinstance(request, m.TopicSchemasRequest)
    topic = broker.metadata.image.topics_by_id.get(request.topic_id)
    if topic is None:
        raise UnknownTopicId(f"there is no topic with id {request.topic_id[:16].hex()}.")
    if request.first_schema_id < 0:
        raise InvalidRequest(f"{request.first_schema_id} is no schema id.")
    records, next_schema_id = paging.schema_page(topic.schema_records, request.first_schema_id)
    yield None
    return m.TopicSchemasResponse(schemas=_schema_versions(records), next_schema_id=next_schema_id)


def _schema_versions(records: Iterable[SchemaRecord]) -> list[m.SchemaVersion]:
    return [
        m.SchemaVersion(record.schema_id, record.created_us, record.schema) for record in records
    ]


# --- DESCRIBE_TOPICS ----------------------------------------------------------------------------
def handle_describe_topics(broker: Broker, call: Call) -> Steps:
    """All that is known of topics: configuration, schemas, partitions with their sizes."""
    request = call.request
    assert isinstance(request, m.DescribeTopicsRequest)
    names = list(broker.metadata.image.topics) if request.names is None else request.names
    check_count(len(names))
    topics, next_name = yield from paging.by_name(
        names,
        request.first_name,
        lambda name: _describe_name(broker, name),
        lambda name: _bytes_min(broker.metadata.image.topics.get(name)),
    )
    return m.DescribeTopicsResponse(topics=topics, next_name=next_name)


def _describe_name(broker: Broker, name: str) -> paging.Making[m.TopicDescription]:
    try:
        topic = decide.find_topic(broker.metadata.image, name)
    except QuiverlogError as error:
        return m.TopicDescription(name=name, error_code=error.code, error_message=error.message)
    return (yield from _describe(broker, topic))


def _describe(broker: Broker, topic: TopicImage) -> paging.Making[m.TopicDescription]:
    partitions: list[m.PartitionDescription] = []
    for partition in topic.partitions:
        partitions.append(_describe_partition(broker, topic, partition))
        if len(partitions) % _PARTITIONS_PER_STEP == 0:
            yield
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


def _describe_partition(
    broker: Broker, topic: TopicImage, partition: PartitionImage
) -> m.PartitionDescription:
    """Offsets are -1 for a partition that is not open here, or that another broker may lead."""
    description = m.PartitionDescription(
        partition=partition.partition,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replicas=list(partition.replicas),
        in_sync_replicas=list(partition.in_sync_replicas),
        log_start_offset=-1,
        high_watermark=-1,
        log_end_offset=-1,
        flushed_offset=-1,
    )
    replica = broker.replicas.get((topic.topic_id, partition.partition))
    if replica is not None and broker.standing.offsets_are_known(replica):
        state = replica.state
        description.log_start_offset = state.log_start_offset
        description.high_watermark = state.high_watermark
        description.log_end_offset = state.log_end_offset
        description.flushed_offset = state.flushed_offset
        description.size_bytes = replica.log.size_bytes
        description.segments = replica.log.segment_count
    return description


def _config_entry(broker: Broker, topic: TopicImage, key: str) -> m.ConfigEntry:
    if key in topic.configs:
        return m.ConfigEntry(key, topic.configs[key], "topic")
    value = None
    if topic.replication_factor == 1 or key not in TAKEN_AT_CREATION:
        value = broker.metadata.image.defaults.get(key)
    if value is None:
        value = default_text(key, topic.replication_factor)
    return m.ConfigEntry(key, value, "default")
