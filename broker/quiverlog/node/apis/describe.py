"""METADATA, TOPIC_SCHEMAS, DESCRIBE_TOPICS, DESCRIBE_CLUSTER, DESCRIBE_REPLICAS.

Answers are made from the image, without proposals, in steps: ten thousand topics must not hold up
other requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from functools import partial
from typing import Final

from quiverlog.core.controller.configs import CONFIG_DEFS, TAKEN_AT_CREATION, default_text
from quiverlog.core.controller.eligible import min_in_sync
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import NO_LEADER, BrokerRecord, SchemaRecord
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.errors import InvalidRequest, QuiverlogError, UnknownTopic, UnknownTopicId
from quiverlog.node.apis.admin import describe_quorum
from quiverlog.node.apis.topics import check_count, topic_page
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import announced_controller, endpoint_at
from quiverlog.node.runtime import tasks
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.node.security.authoriser import Topics, no_topic_id
from quiverlog.types import Operation, ResourceKind
from quiverlog.wire import messages as m
from quiverlog.wire.cluster_messages import (
    ClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from quiverlog.wire.reassignment_messages import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ReplicaSize,
    TopicReplicas,
)

__all__ = [
    "handle_describe_cluster",
    "handle_describe_replicas",
    "handle_describe_topics",
    "handle_metadata",
    "handle_topic_schemas",
]


_PARTITIONS_PER_STEP: Final = 16
"""Describing one takes some 4 us."""
_PARTITION_BYTES_MIN: Final = 8
"""Any encoded partition has more."""


# --- METADATA -----------------------------------------------------------------------------------
def handle_metadata(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, m.MetadataRequest)
    metadata = broker.metadata
    if request.first_name is not None and request.topic_ids:
        raise InvalidRequest("first_name begins a page of topics by name: leave topic_ids empty.")
    seen = broker.authoriser.topics(call.connection_id, request.API)
    names = request.topics
    if names is None:
        names = [] if request.topic_ids else (yield from seen.names())
    check_count(len(names) + len(request.topic_ids))
    topics, next_name = yield from tasks.by_name(
        names,
        request.first_name,
        lambda name: _topic_by_name(broker, seen, name),
        lambda name: _bytes_min(seen.peek(name)),
    )
    if request.topic_ids:
        topics += yield from _topics_by_id(broker, seen, request.topic_ids, _least_bytes(topics))
    return m.MetadataResponse(
        cluster_id=broker.directory.cluster_id,
        controller_id=announced_controller(broker),
        metadata_version=metadata.image.version,
        brokers=_endpoints(broker, call.connection_id),
        topics=topics,
        next_name=next_name,
        is_behind=broker.leader_lease.is_over,
        cluster_number=metadata.image.cluster_number,
    )


def _endpoints(broker: Broker, connection_id: int) -> list[m.BrokerEndpoint]:
    # Where all are fenced, as after all were killed, this one's: clients need a broker to ask.
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
    broker: Broker, seen: Topics, topic_ids: list[bytes], byte_count: int
) -> Generator[None, object, list[m.TopicMetadata]]:
    topics: list[m.TopicMetadata] = []
    for topic_id in dict.fromkeys(topic_ids):
        topic = seen.by_id(topic_id)
        byte_count += _bytes_min(topic)
        tasks.check_fits(byte_count)
        if topic is None:
            topics.append(m.TopicMetadata(topic_id=topic_id, error_code=UnknownTopicId.code))
        else:
            topics.append((yield from _topic_metadata(broker, topic)))
        yield
    return topics


def _topic_by_name(broker: Broker, seen: Topics, name: str) -> tasks.Making[m.TopicMetadata]:
    topic = seen.get(name)
    if topic is None:
        return m.TopicMetadata(name=name, error_code=UnknownTopic.code)
    return (yield from _topic_metadata(broker, topic))


def _topic_metadata(broker: Broker, topic: TopicImage) -> tasks.Making[m.TopicMetadata]:
    """Return it from the cache, which every change empties."""
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
        is_internal=topic.is_internal,
        schema_id=topic.schema_id,
        key_columns=list(topic.key_columns),
        durability=topic.config.durability,
        batch_bytes_max=topic.config.batch_bytes_max,
        partitions=partitions,
        compression=topic.config.compression,
    )
    if metadata.image.version == version:  # Between the steps the cache may have been emptied.
        assert len(partitions) == len(topic.partitions)
        metadata.remember(made)
    return made


def _least_bytes(topics: list[m.TopicMetadata]) -> int:
    return sum(_PARTITION_BYTES_MIN * len(topic.partitions) for topic in topics)


def _bytes_min(topic: TopicImage | None) -> int:
    return _PARTITION_BYTES_MIN * len(topic.partitions) if topic is not None else 1


# --- TOPIC_SCHEMAS ------------------------------------------------------------------------------
def handle_topic_schemas(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, m.TopicSchemasRequest)
    topic = broker.authoriser.topics(call.connection_id, request.API).by_id(request.topic_id)
    if topic is None:
        raise no_topic_id(request.topic_id)
    if request.first_schema_id < 0:
        raise InvalidRequest(f"first_schema_id {request.first_schema_id} is negative.")
    records, next_schema_id = tasks.schema_page(topic.schema_records, request.first_schema_id)
    yield None
    return m.TopicSchemasResponse(schemas=_schema_versions(records), next_schema_id=next_schema_id)


def _schema_versions(records: Iterable[SchemaRecord]) -> list[m.SchemaVersion]:
    return [
        m.SchemaVersion(record.schema_id, record.created_us, record.schema) for record in records
    ]


# --- DESCRIBE_TOPICS ----------------------------------------------------------------------------
def handle_describe_topics(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, m.DescribeTopicsRequest)
    seen = broker.authoriser.topics(call.connection_id, request.API)
    names = (yield from seen.names()) if request.names is None else request.names
    check_count(len(names))
    topics, next_name = yield from tasks.by_name(
        names,
        request.first_name,
        lambda name: _describe_name(broker, seen, name),
        lambda name: _bytes_min(seen.peek(name)),
    )
    return m.DescribeTopicsResponse(topics=topics, next_name=next_name)


def _describe_name(broker: Broker, seen: Topics, name: str) -> tasks.Making[m.TopicDescription]:
    try:
        topic = seen.described(name)
    except QuiverlogError as error:
        return m.TopicDescription(name=name, error_code=error.code, error_message=error.message)
    return (yield from _describe(broker, topic))


def _describe(broker: Broker, topic: TopicImage) -> tasks.Making[m.TopicDescription]:
    partitions: list[m.PartitionDescription] = []
    for partition in topic.partitions:
        partitions.append(_describe_partition(broker, topic, partition))
        if len(partitions) % _PARTITIONS_PER_STEP == 0:
            yield
    return m.TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        created_us=topic.created_us,
        key_columns=list(topic.key_columns),
        replication_factor=topic.replication_factor,
        configs=[_config_entry(broker, topic, key) for key in CONFIG_DEFS],
        schemas=_schema_versions(tasks.newest_schemas(topic.schema_records)),
        partitions=partitions,
    )


def _describe_partition(
    broker: Broker, topic: TopicImage, partition: PartitionImage
) -> m.PartitionDescription:
    """Describe it; offsets are -1 if it is not open here, or another broker may lead it."""
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
    if replica is not None and broker.leader_lease.offsets_are_known(replica):
        state = replica.state
        description.log_start_offset = state.log_start_offset
        description.high_watermark = state.high_watermark
        description.log_end_offset = state.log_end_offset
        description.flushed_offset = state.flushed_offset
        description.size_bytes = replica.log.reader.size_bytes
        description.segments = replica.log.reader.segment_count
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


_DESCRIBE_CLUSTER_PARTITIONS_PER_STEP: Final = 64
"""Counting one takes a microsecond."""


class _Counts:
    """Counts of partitions; by broker: `needed`, those that would be below `min.insync.replicas`
    without it; `moved`, moving ones on it.
    """

    __slots__ = (
        "leaders",
        "moved",
        "moving",
        "needed",
        "offline",
        "out_of_sync",
        "partitions",
        "under_min_in_sync",
        "under_replicated",
    )

    def __init__(self) -> None:
        self.partitions = self.under_replicated = self.under_min_in_sync = self.offline = 0
        self.moving = 0
        self.leaders: Counter[int] = Counter()
        self.out_of_sync: Counter[int] = Counter()
        self.needed: Counter[int] = Counter()
        self.moved: Counter[int] = Counter()

    def add(self, topic: TopicImage, partition: PartitionImage) -> None:
        in_sync = partition.in_sync_replicas
        least = min_in_sync(topic.config, partition)
        self.partitions += 1
        self.under_min_in_sync += len(in_sync) < least
        if len(in_sync) < len(partition.replicas):
            self.under_replicated += 1
            # A copy that a move adds has not been in sync yet.
            self.out_of_sync.update(
                n for n in partition.replicas if n not in (*in_sync, *partition.adding_replicas)
            )
        if len(in_sync) <= least:
            self.needed.update(in_sync)
        if partition.moves:
            self.moving += 1
            self.moved.update(partition.replicas)
        if partition.leader_id == NO_LEADER:
            self.offline += 1
        else:
            self.leaders[partition.leader_id] += 1


def handle_describe_cluster(broker: Broker, call: Call) -> Steps:
    assert isinstance(call.request, DescribeClusterRequest)
    counts = yield from _counted(broker.metadata.image)
    image = broker.metadata.image
    assert counts.under_replicated <= counts.partitions
    return DescribeClusterResponse(
        cluster_id=broker.directory.cluster_id,
        node_id=broker.config.node_id,
        metadata_version=image.version,
        controller_id=broker.controller.controller_id,
        controller_epoch=broker.quorum.raft.term,
        brokers=[
            _described(broker, image.brokers[node_id], call, counts)
            for node_id in sorted(image.brokers)
        ],
        quorum=describe_quorum(broker, call.now),
        topic_count=len(image.topics),
        partition_count=counts.partitions,
        under_replicated_count=counts.under_replicated,
        under_min_in_sync_count=counts.under_min_in_sync,
        offline_count=counts.offline,
        moving_count=counts.moving,
        is_behind=broker.leader_lease.is_over,
        heard_ms=broker.membership.registration.metadata_age_ms(call.now),
        room_bytes=broker.admission.room_bytes,
        load_permille=broker.admission.load.permille,
        received_bytes_per_s=broker.admission.load.received_bytes_per_s,
        sent_bytes_per_s=broker.admission.load.sent_bytes_per_s,
    )


def _counted(image: Image) -> Generator[None, object, _Counts]:
    counts = _Counts()
    # A copy of the names: topics come and go between the steps.
    for name in list(image.topics):
        topic = image.topics.get(name)
        if topic is None:
            continue
        for partition in topic.partitions:
            counts.add(topic, partition)
            if counts.partitions % _DESCRIBE_CLUSTER_PARTITIONS_PER_STEP == 0:
                yield
    assert counts.offline + counts.leaders.total() == counts.partitions
    return counts


def _described(broker: Broker, record: BrokerRecord, call: Call, counts: _Counts) -> ClusterBroker:
    address = endpoint_at(broker, record, call.connection_id)
    return ClusterBroker(
        node_id=record.node_id,
        broker_epoch=record.broker_epoch,
        host=address.host,
        port=address.port,
        rack=record.rack,
        is_fenced=record.fenced,
        in_shutdown=record.in_shutdown,
        leader_count=counts.leaders[record.node_id],
        replica_count=broker.metadata.image.replica_counts[record.node_id],
        out_of_sync_count=counts.out_of_sync[record.node_id],
        needed_count=counts.needed[record.node_id],
        moving_count=counts.moved[record.node_id],
        is_decommissioning=record.decommissioning,
        takes_partitions=record.takes_partitions,
        metadata_lag=broker.membership.registrar.metadata_lag(record.node_id),
        is_disk_full=record.node_id in broker.membership.full_disks,
        # A fenced broker may have reported its faults in an earlier life.
        faulted_count=0 if record.fenced else broker.membership.registrar.faulted(record.node_id),
        second_at=broker.broker_addresses.second_at(record.node_id, call.now),
    )


# DESCRIBE_REPLICAS
_DESCRIBE_REPLICAS_PARTITIONS_PER_STEP: Final = 64


def handle_describe_replicas(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, DescribeReplicasRequest)
    found, next_name = yield from topic_page(
        broker, call, request.names, request.first_name, partial(_held, broker)
    )
    rights = broker.authoriser.rights_of(call.connection_id)
    sees_brokers = rights is None or rights.may(Operation.DESCRIBE, ResourceKind.CLUSTER)
    return DescribeReplicasResponse(
        node_id=broker.config.node_id,
        room_bytes=broker.admission.room_bytes if sees_brokers else -1,
        topics=[one for one in found if one.replicas],
        next_name=next_name,
    )


def _held(broker: Broker, topic: TopicImage | None, name: str) -> tasks.Making[TopicReplicas]:
    if topic is None:
        return TopicReplicas(name=name)
    sizes: list[ReplicaSize] = []
    for partition in topic.partitions:
        if (
            partition.partition % _DESCRIBE_REPLICAS_PARTITIONS_PER_STEP
            == _DESCRIBE_REPLICAS_PARTITIONS_PER_STEP - 1
        ):
            yield
        if broker.config.node_id not in partition.replicas:
            continue
        replica = broker.assignment.find((topic.topic_id, partition.partition))
        size = ReplicaSize(partition.partition)  # Its sizes are unknown until it is open.
        if replica is not None:
            size.size_bytes = replica.log.reader.size_bytes
            size.log_end_offset = replica.log.log_end_offset
        sizes.append(size)
    return TopicReplicas(name, topic.topic_id, sizes)
