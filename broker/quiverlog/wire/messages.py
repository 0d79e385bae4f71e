"""Every request and response, as typed values.

Owns the field lists. On the wire a message is a flat msgpack array
`[api, version, correlation_id, ...fields]`; fields are only ever appended, always with a default,
so that an older decoder ignores what it does not know and a newer one fills in what is missing
(docs/protocol.md, "Evolution"). Bodies (batches) travel outside msgpack, after the header.

A partition inside a request is named by topic id, not by name: a topic that was deleted and
created again must not be taken for the old one (KIP-516).
"""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, NO_PRODUCER_ID, Durability


class Api(enum.IntEnum):
    """Numbers of the requests. 20-39 are for transactions and groups, 40-59 for the cluster."""

    HELLO = 0
    METADATA = 1
    PRODUCE = 2
    FETCH = 3
    LIST_OFFSETS = 4
    INIT_PRODUCER_ID = 5
    CREATE_TOPICS = 6
    DELETE_TOPICS = 7
    ALTER_TOPIC = 8
    DESCRIBE_TOPICS = 9
    TOPIC_SCHEMAS = 10
    DELETE_RECORDS = 11
    EPOCH_END_OFFSETS = 12
    DESCRIBE_RANGES = 13


class Part(msgspec.Struct, array_like=True, gc=False):
    """A value inside a message: a msgpack array of its fields."""


class Message(msgspec.Struct, array_like=True, gc=False):
    """First fields of every message. `frames.encode` fills them in; handlers never do."""

    api: int = 0
    version: int = 0
    correlation_id: int = 0


class Request(Message, array_like=True, gc=False):
    """Base of the requests."""

    API: ClassVar[Api]
    VERSION: ClassVar[int] = 1


class Response(Message, array_like=True, gc=False):
    """Base of the responses. `error_code` 0 means that the request as a whole was understood."""

    API: ClassVar[Api]
    VERSION: ClassVar[int] = 1
    error_code: int = 0
    error_message: str = ""


# --- HELLO: who are you, what do you speak ---------------------------------------------------
class HelloRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.HELLO
    client_id: str = ""
    software: str = ""
    software_version: str = ""


class ApiRange(Part, array_like=True, gc=False):
    api: int = 0
    version_min: int = 1
    version_max: int = 1


class HelloResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.HELLO
    cluster_id: str = ""
    node_id: int = -1
    roles: list[str] = []
    software_version: str = ""
    apis: list[ApiRange] = []
    frame_bytes_max: int = 0


# --- METADATA: brokers, topics, partitions, leaders --------------------------------------------
class MetadataRequest(Request, array_like=True, gc=False):
    """`topics` None asks for all; `topic_ids` are looked up as well as the names."""

    API: ClassVar[Api] = Api.METADATA
    topics: list[str] | None = None
    topic_ids: list[bytes] = []


class BrokerEndpoint(Part, array_like=True, gc=False):
    node_id: int = -1
    host: str = ""
    port: int = 0
    rack: str = ""


class PartitionMetadata(Part, array_like=True, gc=False):
    partition: int = -1
    error_code: int = 0
    leader_id: int = -1
    leader_epoch: int = NO_EPOCH
    replicas: list[int] = []
    in_sync_replicas: list[int] = []


class TopicMetadata(Part, array_like=True, gc=False):
    """For an unknown name, `error_code` is set and the rest is empty."""

    name: str = ""
    topic_id: bytes = b""
    error_code: int = 0
    is_internal: bool = False
    schema_id: int = 0
    key_columns: list[str] = []
    durability: int = Durability.FLUSHED
    batch_bytes_max: int = 0
    partitions: list[PartitionMetadata] = []
    compression: int = 0


class MetadataResponse(Response, array_like=True, gc=False):
    """`metadata_version` grows with every change of any topic; compare, do not interpret."""

    API: ClassVar[Api] = Api.METADATA
    cluster_id: str = ""
    controller_id: int = -1
    metadata_version: int = 0
    brokers: list[BrokerEndpoint] = []
    topics: list[TopicMetadata] = []


# --- PRODUCE: body = the partitions' batches, one after the other, in the order of `partitions` --
class ProducePartition(Part, array_like=True, gc=False):
    """All batches of one entry are appended together or not at all."""

    topic_id: bytes = b""
    partition: int = -1
    leader_epoch: int = NO_EPOCH
    batch_bytes: int = 0


class ProduceRequest(Request, array_like=True, gc=False):
    """`durability` TOPIC_DEFAULT takes the topic's; another level may only be stronger."""

    API: ClassVar[Api] = Api.PRODUCE
    durability: int = Durability.TOPIC_DEFAULT
    timeout_ms: int = 30_000
    partitions: list[ProducePartition] = []


class ProducePartitionResult(Part, array_like=True, gc=False):
    """`durability` is what the acknowledgement rests on. `duplicate`: stored by an earlier try."""

    topic_id: bytes = b""
    partition: int = -1
    error_code: int = 0
    error_message: str = ""
    base_offset: int = -1
    row_count: int = 0
    durability: int = Durability.MEMORY
    leader_epoch: int = NO_EPOCH
    log_start_offset: int = -1
    duplicate: bool = False


class ProduceResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.PRODUCE
    partitions: list[ProducePartitionResult] = []


# --- FETCH: body = the partitions' batches, one after the other, in the order of `partitions` ----
class FetchPartition(Part, array_like=True, gc=False):
    """`offset` may lie inside a batch: the whole batch travels and the reader slices.

    `last_epoch` is the leader epoch of the last row read before `offset` (NO_EPOCH if none): the
    broker answers with the point of divergence when that row is no longer in its log (KIP-320).
    `end_offset` >= 0: send no batch that starts at or after it.
    """

    topic_id: bytes = b""
    partition: int = -1
    leader_epoch: int = NO_EPOCH
    offset: int = 0
    last_epoch: int = NO_EPOCH
    bytes_max: int = 0
    end_offset: int = -1


class FetchRequest(Request, array_like=True, gc=False):
    """Answered when `min_bytes` are there, or `max_wait_ms` have passed, or an entry has an error.

    `bytes_max` bounds the body; the first batch of the first partition with rows always travels,
    whatever its size, so that a reader cannot get stuck.
    """

    API: ClassVar[Api] = Api.FETCH
    max_wait_ms: int = 0
    min_bytes: int = 1
    bytes_max: int = 0
    isolation_level: int = 1
    rack: str = ""
    replica_id: int = -1
    partitions: list[FetchPartition] = []


class FetchPartitionResult(Part, array_like=True, gc=False):
    topic_id: bytes = b""
    partition: int = -1
    error_code: int = 0
    error_message: str = ""
    leader_epoch: int = NO_EPOCH
    log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    diverging_epoch: int = NO_EPOCH
    diverging_end_offset: int = -1
    preferred_replica: int = -1
    batch_bytes: int = 0


class FetchResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.FETCH
    partitions: list[FetchPartitionResult] = []


# --- LIST_OFFSETS ---------------------------------------------------------------------------------
class ListOffsetsPartition(Part, array_like=True, gc=False):
    """`at`: LATEST, EARLIEST, or microseconds since 1970 (first row at or after that moment).

    `known_offset` matters with `max_wait_ms` alone: the offset the asker already has.
    """

    topic_id: bytes = b""
    partition: int = -1
    leader_epoch: int = NO_EPOCH
    at: int = LATEST
    known_offset: int = -1


class ListOffsetsRequest(Request, array_like=True, gc=False):
    """With `max_wait_ms` > 0 the answer waits until some partition's result differs from its
    `known_offset`, or the metadata version differs from `metadata_version` (if that is >= 0), or
    an entry has an error, or the time is up: a tailing reader polls without polling.
    """

    API: ClassVar[Api] = Api.LIST_OFFSETS
    max_wait_ms: int = 0
    metadata_version: int = -1
    isolation_level: int = 1
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsPartitionResult(Part, array_like=True, gc=False):
    """No row at or after a timestamp: `offset` is -1. `leader_epoch` is that of the row before
    `offset` (what a reader that starts there must carry as `last_epoch`)."""

    topic_id: bytes = b""
    partition: int = -1
    error_code: int = 0
    error_message: str = ""
    offset: int = -1
    timestamp_us: int = -1
    leader_epoch: int = NO_EPOCH


class ListOffsetsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.LIST_OFFSETS
    metadata_version: int = 0
    partitions: list[ListOffsetsPartitionResult] = []


# --- INIT_PRODUCER_ID ----------------------------------------------------------------------------
class InitProducerIdRequest(Request, array_like=True, gc=False):
    """`transactional_id` is refused until transactions exist; the field holds its place."""

    API: ClassVar[Api] = Api.INIT_PRODUCER_ID
    transactional_id: str = ""
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class InitProducerIdResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.INIT_PRODUCER_ID
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


# --- administration ---------------------------------------------------------------------------
class NewTopic(Part, array_like=True, gc=False):
    """`schema` is an Arrow IPC schema message. -1 takes the broker's default."""

    name: str = ""
    schema: bytes = b""
    partitions: int = -1
    replication_factor: int = -1
    key_columns: list[str] = []
    configs: dict[str, str] = {}


class CreateTopicsRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.CREATE_TOPICS
    topics: list[NewTopic] = []
    validate_only: bool = False


class TopicResult(Part, array_like=True, gc=False):
    name: str = ""
    topic_id: bytes = b""
    error_code: int = 0
    error_message: str = ""


class CreateTopicsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.CREATE_TOPICS
    topics: list[TopicResult] = []


class DeleteTopicsRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DELETE_TOPICS
    names: list[str] = []


class DeleteTopicsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DELETE_TOPICS
    topics: list[TopicResult] = []


class AlterTopicRequest(Request, array_like=True, gc=False):
    """What is not given stays: `partitions` -1, empty `schema`, no configs."""

    API: ClassVar[Api] = Api.ALTER_TOPIC
    name: str = ""
    set_configs: dict[str, str] = {}
    delete_configs: list[str] = []
    partitions: int = -1
    schema: bytes = b""
    validate_only: bool = False


class AlterTopicResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.ALTER_TOPIC
    schema_id: int = 0


class DescribeTopicsRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DESCRIBE_TOPICS
    names: list[str] | None = None


class ConfigEntry(Part, array_like=True, gc=False):
    """`source`: `topic` when set on the topic, `default` otherwise."""

    key: str = ""
    value: str = ""
    source: str = "default"


class SchemaVersion(Part, array_like=True, gc=False):
    schema_id: int = 0
    created_us: int = 0
    schema: bytes = b""


class PartitionDescription(Part, array_like=True, gc=False):
    partition: int = -1
    leader_id: int = -1
    leader_epoch: int = NO_EPOCH
    replicas: list[int] = []
    in_sync_replicas: list[int] = []
    log_start_offset: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
    flushed_offset: int = 0
    size_bytes: int = 0
    segments: int = 0


class TopicDescription(Part, array_like=True, gc=False):
    name: str = ""
    topic_id: bytes = b""
    error_code: int = 0
    error_message: str = ""
    is_internal: bool = False
    created_us: int = 0
    key_columns: list[str] = []
    replication_factor: int = 1
    configs: list[ConfigEntry] = []
    schemas: list[SchemaVersion] = []
    partitions: list[PartitionDescription] = []


class DescribeTopicsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DESCRIBE_TOPICS
    topics: list[TopicDescription] = []


class TopicSchemasRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.TOPIC_SCHEMAS
    topic_id: bytes = b""


class TopicSchemasResponse(Response, array_like=True, gc=False):
    """The topic's whole schema history, oldest first; the last one is the current one."""

    API: ClassVar[Api] = Api.TOPIC_SCHEMAS
    schemas: list[SchemaVersion] = []


class DeleteRecordsPartition(Part, array_like=True, gc=False):
    """`before_offset` -1 stands for the high watermark."""

    topic_id: bytes = b""
    partition: int = -1
    before_offset: int = -1


class DeleteRecordsRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DELETE_RECORDS
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsPartitionResult(Part, array_like=True, gc=False):
    topic_id: bytes = b""
    partition: int = -1
    error_code: int = 0
    error_message: str = ""
    log_start_offset: int = -1


class DeleteRecordsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DELETE_RECORDS
    partitions: list[DeleteRecordsPartitionResult] = []


# --- what a careful reader asks ---------------------------------------------------------------
class EpochEndOffsetsPartition(Part, array_like=True, gc=False):
    topic_id: bytes = b""
    partition: int = -1
    leader_epoch: int = NO_EPOCH
    epoch: int = NO_EPOCH


class EpochEndOffsetsRequest(Request, array_like=True, gc=False):
    """Where did `epoch` end? An offset above the answer, read under `epoch`, was truncated away."""

    API: ClassVar[Api] = Api.EPOCH_END_OFFSETS
    partitions: list[EpochEndOffsetsPartition] = []


class EpochEndOffsetsPartitionResult(Part, array_like=True, gc=False):
    topic_id: bytes = b""
    partition: int = -1
    error_code: int = 0
    error_message: str = ""
    epoch: int = NO_EPOCH
    end_offset: int = -1


class EpochEndOffsetsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.EPOCH_END_OFFSETS
    partitions: list[EpochEndOffsetsPartitionResult] = []


class RangePartition(Part, array_like=True, gc=False):
    """`bytes_max` -1: no bound. `end_offset` -1: the high watermark."""

    topic_id: bytes = b""
    partition: int = -1
    start_offset: int = EARLIEST
    end_offset: int = -1
    bytes_max: int = -1


class DescribeRangesRequest(Request, array_like=True, gc=False):
    """How many stored bytes lie between two offsets, and how far do `bytes_max` reach?"""

    API: ClassVar[Api] = Api.DESCRIBE_RANGES
    partitions: list[RangePartition] = []


class RangePartitionResult(Part, array_like=True, gc=False):
    """`end_offset`: the largest batch boundary (or the asked end) that `bytes_max` reach, but
    always at least one batch. `byte_count`: stored bytes of the batches touched up to there."""

    topic_id: bytes = b""
    partition: int = -1
    error_code: int = 0
    error_message: str = ""
    end_offset: int = -1
    byte_count: int = 0


class DescribeRangesResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DESCRIBE_RANGES
    partitions: list[RangePartitionResult] = []
