"""Requests and responses of clients, as typed values.

On the wire a message is a flat msgpack array `[api, version, correlation_id, ...fields]`. Fields
are only appended, with a default: an older decoder ignores unknown ones, a newer one fills in
missing ones (docs/protocol.md, "Evolution", has each field's meaning, too). Bodies (batches) follow
the header, outside msgpack.

Types carry their bounds: those of an answer by meaning, those of a request by width (the broker
refuses the rest with a better message). msgspec checks a list's length before it allocates the
list.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, TypeVar

import msgspec
from msgspec import Meta

from quiverlog.limits import (
    BATCH_HEADER_BYTES,
    CONFIGS_PER_REQUEST_MAX,
    PARTITIONS_PER_REQUEST_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    SCHEMAS_PER_TOPIC_MAX,
    TOPICS_PER_REQUEST_MAX,
)
from quiverlog.types import (
    EARLIEST,
    LATEST,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Compression,
    Durability,
    IsolationLevel,
)

from .apis import Api as Api

MOMENT_US_MAX: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999, where Python's datetime ends."""
CORRELATION_ID_MAX: Final = 2**31 - 1
"""Requests have ids from 1 on; 0 is that of the answer to an unreadable request."""

_T = TypeVar("_T")

UInt31 = Annotated[int, Meta(ge=0, le=2**31 - 1)]
UInt63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
NodeId = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""-1: none, or not known."""
Epoch = Annotated[int, Meta(ge=NO_EPOCH, le=2**31 - 1)]
ProducerEpoch = Annotated[int, Meta(ge=NO_EPOCH, le=2**15 - 1)]
Known = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
"""An offset, size or age; -1: none, or not known."""
Moment = Annotated[int, Meta(ge=0, le=MOMENT_US_MAX)]
"""Microseconds since 1970."""
Port = Annotated[int, Meta(ge=0, le=65_535)]
ErrorCode = Annotated[int, Meta(ge=0, le=999)]
"""Codes from 1,000 on are a client's own."""
DurabilityLevel = Annotated[int, Meta(ge=0, le=int(max(Durability)))]
"""Of a topic or an acknowledgement: TOPIC_DEFAULT is for requests."""
CompressionCodec = Annotated[int, Meta(ge=0, le=int(max(Compression)))]
BatchHead = Annotated[bytes, Meta(max_length=BATCH_HEADER_BYTES)]
TopicId = Annotated[bytes, Meta(max_length=16)]
PerTopic = Annotated[list[_T], Meta(max_length=TOPICS_PER_REQUEST_MAX)]
PerPartition = Annotated[list[_T], Meta(max_length=PARTITIONS_PER_REQUEST_MAX)]
Few = Annotated[list[_T], Meta(max_length=CONFIGS_PER_REQUEST_MAX)]
"""A list whose real bound is smaller and checked elsewhere, with a better message."""
Configs = Annotated[dict[str, str], Meta(max_length=CONFIGS_PER_REQUEST_MAX)]

assert PARTITIONS_PER_TOPIC_MAX <= PARTITIONS_PER_REQUEST_MAX, "a topic's partitions fit a request"


class Part(msgspec.Struct, array_like=True, gc=False):
    """A value inside a message: a msgpack array of its fields."""


class Message(msgspec.Struct, array_like=True, gc=False):
    """First fields of every message, set by `frames.encode`."""

    api: UInt31 = 0
    version: UInt31 = 0
    correlation_id: UInt31 = 0


class Request(Message, array_like=True, gc=False):
    API: ClassVar[Api]
    VERSION: ClassVar[int] = 1

    @property
    def only_asks(self) -> bool:
        """True for an administrative request that neither makes nor tries a change."""
        return False


class Response(Message, array_like=True, gc=False):
    """Base of the responses. `error_code` 0: the request as a whole was understood."""

    API: ClassVar[Api]
    VERSION: ClassVar[int] = 1
    error_code: ErrorCode = 0
    error_message: str = ""


# --- HELLO: the two sides exchange names and supported versions ---------------------------
class HelloRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.HELLO
    client_id: str = ""
    software: str = ""
    software_version: str = ""


class ApiRange(Part, array_like=True, gc=False):
    api: UInt31 = 0
    version_min: Int32 = 1
    version_max: Int32 = 1


class HelloResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.HELLO
    cluster_id: str = ""
    node_id: Int32 = -1
    roles: Few[str] = []
    software_version: str = ""
    apis: Few[ApiRange] = []
    frame_bytes_max: Int64 = 0
    needs_authentication: bool = False
    mechanisms: Few[str] = []


# --- METADATA: brokers, topics, partitions, leaders --------------------------------------------
class MetadataRequest(Request, array_like=True, gc=False):
    """`topics` nil: all; topics are looked up by `topics` and by `topic_ids`.

    With `first_name` (not nil) the answer is a page of topics by name, from that name on ("" from
    the first), and `topic_ids` must be empty. Without it the answer is complete, or
    FRAME_TOO_LARGE.
    """

    API: ClassVar[Api] = Api.METADATA
    topics: PerTopic[str] | None = None
    topic_ids: PerTopic[TopicId] = []
    first_name: str | None = None


class BrokerEndpoint(Part, array_like=True, gc=False):
    node_id: NodeId = -1
    host: str = ""
    port: Port = 0
    rack: str = ""


class PartitionMetadata(Part, array_like=True, gc=False):
    partition: Int32 = -1
    error_code: Int32 = 0
    leader_id: NodeId = -1
    leader_epoch: Epoch = NO_EPOCH
    replicas: Few[Int32] = []
    in_sync_replicas: Few[Int32] = []


class TopicMetadata(Part, array_like=True, gc=False):
    """For an unknown name, `error_code` is set and the rest is empty."""

    name: str = ""
    topic_id: TopicId = b""
    error_code: ErrorCode = 0
    is_internal: bool = False
    schema_id: UInt31 = 0
    key_columns: Few[str] = []
    durability: DurabilityLevel = Durability.FLUSHED
    batch_bytes_max: UInt63 = 0
    partitions: PerPartition[PartitionMetadata] = []
    compression: CompressionCodec = 0


class MetadataResponse(Response, array_like=True, gc=False):
    """`metadata_version` is for comparison only. `controller_id` -1: no controller is known.

    `is_behind`: the broker had no contact with the controller for a session, so other brokers may
    have newer metadata.
    """

    API: ClassVar[Api] = Api.METADATA
    cluster_id: str = ""
    controller_id: Int32 = -1
    metadata_version: Int64 = 0
    brokers: Few[BrokerEndpoint] = []
    topics: PerTopic[TopicMetadata] = []
    next_name: str = ""
    is_behind: bool = False
    cluster_number: Int32 = 0


# --- PRODUCE: body = the partitions' batches, one after the other, in the order of `partitions` --
class ProducePartition(Part, array_like=True, gc=False):
    """All batches of an entry are appended together or not at all."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    batch_bytes: Int64 = 0


class ProduceRequest(Request, array_like=True, gc=False):
    """`durability` TOPIC_DEFAULT: the topic's; another level may only be stronger."""

    API: ClassVar[Api] = Api.PRODUCE
    durability: Int32 = Durability.TOPIC_DEFAULT
    timeout_ms: Int32 = 30_000
    partitions: PerPartition[ProducePartition] = []


class ProducePartitionResult(Part, array_like=True, gc=False):
    """`durability`: at least the requested one."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: ErrorCode = 0
    error_message: str = ""
    base_offset: Known = -1
    row_count: UInt63 = 0
    durability: DurabilityLevel = Durability.MEMORY
    leader_epoch: Int32 = NO_EPOCH
    log_start_offset: Int64 = -1
    duplicate: bool = False
    next_sequence: Int32 = NO_SEQUENCE


class ProduceResponse(Response, array_like=True, gc=False):
    """`throttle_ms`: the client is over its quota, and sends the next PRODUCE after this time."""

    API: ClassVar[Api] = Api.PRODUCE
    partitions: PerPartition[ProducePartitionResult] = []
    throttle_ms: UInt31 = 0


# --- FETCH: body = the partitions' batches, one after the other, in the order of `partitions` ----
class FetchPartition(Part, array_like=True, gc=False):
    """`offset` may be inside a batch: the whole batch is sent and the reader slices.

    `last_epoch` is the leader epoch of the last row read before `offset`: the broker answers with
    the point of divergence when that row is no longer in its log (KIP-320).
    """

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    offset: Int64 = 0
    last_epoch: Int32 = NO_EPOCH
    bytes_max: Int64 = 0
    end_offset: Int64 = -1
    from_follower: bool = False


class FetchRequest(Request, array_like=True, gc=False):
    """Answered when `min_bytes` are available, `max_wait_ms` have passed, or an entry has an error.

    The first batch of the first partition with rows is sent whatever its size, so that a reader
    cannot get stuck. `file_ranges`: a broker on the reader's machine may send positions in
    its files instead of rows.
    """

    API: ClassVar[Api] = Api.FETCH
    max_wait_ms: Int32 = 0
    min_bytes: Int64 = 1
    bytes_max: Int64 = 0
    isolation_level: Int32 = IsolationLevel.READ_COMMITTED
    rack: str = ""
    replica_id: Int32 = -1
    partitions: PerPartition[FetchPartition] = []
    file_ranges: bool = False


class FileRange(Part, array_like=True, gc=False):
    """Bytes of a file on the broker's machine: whole batches, `last_header` the last one's header.

    A reader that opens `path` and finds another `device` or `inode` has another file. One that
    finds another header there after reading has rows that were written since. Either fetches the
    rows.
    """

    path: str = ""
    device: Int64 = 0
    inode: Int64 = 0
    position: Int64 = 0
    byte_count: Int64 = 0
    last_header: BatchHead = b""


class FetchPartitionResult(Part, array_like=True, gc=False):
    """With CORRUPT_LOG, the rows from `damage_start_offset` to before `damage_end_offset` cannot be
    read; a reader may skip them and go on at `damage_end_offset`. -1: unknown.

    With `file_ranges`, the body has nothing of this entry: its `batch_bytes` are in these ranges,
    one after the other.
    """

    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: ErrorCode = 0
    error_message: str = ""
    leader_epoch: Epoch = NO_EPOCH
    log_start_offset: Known = -1
    high_watermark: Known = -1
    last_stable_offset: Int64 = -1
    diverging_epoch: Int32 = NO_EPOCH
    diverging_end_offset: Known = -1
    preferred_replica: Int32 = -1
    batch_bytes: UInt63 = 0
    damage_start_offset: Int64 = -1
    damage_end_offset: Known = -1
    file_ranges: Few[FileRange] = []


class FetchResponse(Response, array_like=True, gc=False):
    """`throttle_ms`: as of PRODUCE, for the next FETCH."""

    API: ClassVar[Api] = Api.FETCH
    partitions: PerPartition[FetchPartitionResult] = []
    throttle_ms: UInt31 = 0


# --- LIST_OFFSETS ---------------------------------------------------------------------------------
class ListOffsetsPartition(Part, array_like=True, gc=False):
    """`at`: LATEST, EARLIEST, or microseconds since 1970 (first row at or after that time).

    `known_offset` is used with `max_wait_ms` only.
    """

    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    at: Int64 = LATEST
    known_offset: Int64 = -1


class ListOffsetsRequest(Request, array_like=True, gc=False):
    """A long poll with `max_wait_ms` > 0: the answer waits until a result differs from its
    `known_offset`, the metadata version differs from `metadata_version` (if >= 0), an entry has an
    error, or the time is up."""

    API: ClassVar[Api] = Api.LIST_OFFSETS
    max_wait_ms: Int32 = 0
    metadata_version: Int64 = -1
    isolation_level: Int32 = IsolationLevel.READ_COMMITTED
    partitions: PerPartition[ListOffsetsPartition] = []


class ListOffsetsPartitionResult(Part, array_like=True, gc=False):
    """`leader_epoch` is the `last_epoch` of a reader that starts at `offset`."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: ErrorCode = 0
    error_message: str = ""
    offset: Known = -1
    timestamp_us: Int64 = -1
    leader_epoch: Epoch = NO_EPOCH


class ListOffsetsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.LIST_OFFSETS
    metadata_version: Int64 = 0
    partitions: PerPartition[ListOffsetsPartitionResult] = []


# --- INIT_PRODUCER_ID ----------------------------------------------------------------------------
class InitProducerIdRequest(Request, array_like=True, gc=False):
    """`transactional_id` is refused: ordinary producers stage the rows of transactions."""

    API: ClassVar[Api] = Api.INIT_PRODUCER_ID
    transactional_id: str = ""
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int32 = NO_EPOCH


class InitProducerIdResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.INIT_PRODUCER_ID
    producer_id: Known = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_EPOCH
    controller: BrokerEndpoint | None = None


# --- administration ---------------------------------------------------------------------------
class NewTopic(Part, array_like=True, gc=False):
    name: str = ""
    schema: bytes = b""
    partitions: Int32 = -1
    replication_factor: Int32 = -1
    key_columns: Few[str] = []
    configs: Configs = {}


class CreateTopicsRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.CREATE_TOPICS
    topics: PerTopic[NewTopic] = []
    validate_only: bool = False


class TopicResult(Part, array_like=True, gc=False):
    name: str = ""
    topic_id: TopicId = b""
    error_code: ErrorCode = 0
    error_message: str = ""


class CreateTopicsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.CREATE_TOPICS
    topics: PerTopic[TopicResult] = []
    controller: BrokerEndpoint | None = None


class DeleteTopicsRequest(Request, array_like=True, gc=False):
    """With `topic_ids`, as many as names, a name is deleted only while it names that topic; an
    empty id fits any. So a request without an answer can be repeated."""

    API: ClassVar[Api] = Api.DELETE_TOPICS
    names: PerTopic[str] = []
    topic_ids: PerTopic[TopicId] = []


class DeleteTopicsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DELETE_TOPICS
    topics: PerTopic[TopicResult] = []
    controller: BrokerEndpoint | None = None


class AlterTopicRequest(Request, array_like=True, gc=False):
    API: ClassVar[Api] = Api.ALTER_TOPIC
    name: str = ""
    set_configs: Configs = {}
    delete_configs: Few[str] = []
    partitions: Int32 = -1
    schema: bytes = b""
    validate_only: bool = False


class AlterTopicResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.ALTER_TOPIC
    schema_id: UInt31 = 0
    controller: BrokerEndpoint | None = None


class DescribeTopicsRequest(Request, array_like=True, gc=False):
    """`first_name`: a page, as in METADATA."""

    API: ClassVar[Api] = Api.DESCRIBE_TOPICS
    names: PerTopic[str] | None = None
    first_name: str | None = None


class ConfigEntry(Part, array_like=True, gc=False):
    key: str = ""
    value: str = ""
    source: str = "default"


class SchemaVersion(Part, array_like=True, gc=False):
    schema_id: UInt31 = 0
    created_us: Moment = 0
    schema: bytes = b""


class PartitionDescription(Part, array_like=True, gc=False):
    partition: Int32 = -1
    leader_id: NodeId = -1
    leader_epoch: Epoch = NO_EPOCH
    replicas: Few[Int32] = []
    in_sync_replicas: Few[Int32] = []
    log_start_offset: Known = 0
    high_watermark: Known = 0
    log_end_offset: Known = 0
    flushed_offset: Int64 = 0
    size_bytes: Known = 0
    segments: Int32 = 0


class TopicDescription(Part, array_like=True, gc=False):
    """`schemas` are the newest ones, at most 512 KiB; TOPIC_SCHEMAS returns all."""

    name: str = ""
    topic_id: TopicId = b""
    error_code: ErrorCode = 0
    error_message: str = ""
    is_internal: bool = False
    created_us: Moment = 0
    key_columns: Few[str] = []
    replication_factor: Int32 = 1
    configs: Few[ConfigEntry] = []
    schemas: Annotated[list[SchemaVersion], Meta(max_length=SCHEMAS_PER_TOPIC_MAX)] = []
    partitions: PerPartition[PartitionDescription] = []


class DescribeTopicsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DESCRIBE_TOPICS
    topics: PerTopic[TopicDescription] = []
    next_name: str = ""


class TopicSchemasRequest(Request, array_like=True, gc=False):
    """With `first_schema_id` > 0 the answer is a page: schemas from that id on.

    With 0 it is the whole history, or FRAME_TOO_LARGE.
    """

    API: ClassVar[Api] = Api.TOPIC_SCHEMAS
    topic_id: TopicId = b""
    first_schema_id: Int32 = 0


class TopicSchemasResponse(Response, array_like=True, gc=False):
    """With `next_schema_id` 0 the last schema is the current one; otherwise ask again with it as
    `first_schema_id`."""

    API: ClassVar[Api] = Api.TOPIC_SCHEMAS
    schemas: Annotated[list[SchemaVersion], Meta(max_length=SCHEMAS_PER_TOPIC_MAX)] = []
    next_schema_id: UInt31 = 0


class DeleteRecordsPartition(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    before_offset: Int64 = -1


class DeleteRecordsRequest(Request, array_like=True, gc=False):
    """Answered when the leader and all live replicas have deleted the rows. With REQUEST_TIMED_OUT
    the leader has deleted them, and not all others have."""

    API: ClassVar[Api] = Api.DELETE_RECORDS
    partitions: PerPartition[DeleteRecordsPartition] = []
    timeout_ms: Int32 = 30_000


class DeleteRecordsPartitionResult(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: ErrorCode = 0
    error_message: str = ""
    log_start_offset: Known = -1


class DeleteRecordsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DELETE_RECORDS
    partitions: PerPartition[DeleteRecordsPartitionResult] = []


# --- ends of epochs, sizes of ranges --------------------------------------------------------
class EpochEndOffsetsPartition(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    leader_epoch: Int32 = NO_EPOCH
    epoch: Int32 = NO_EPOCH


class EpochEndOffsetsRequest(Request, array_like=True, gc=False):
    """Asks where `epoch` ended: a later offset, read under `epoch`, was truncated."""

    API: ClassVar[Api] = Api.EPOCH_END_OFFSETS
    partitions: PerPartition[EpochEndOffsetsPartition] = []


class EpochEndOffsetsPartitionResult(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: ErrorCode = 0
    error_message: str = ""
    epoch: Epoch = NO_EPOCH
    end_offset: Known = -1


class EpochEndOffsetsResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.EPOCH_END_OFFSETS
    partitions: PerPartition[EpochEndOffsetsPartitionResult] = []


class RangePartition(Part, array_like=True, gc=False):
    topic_id: TopicId = b""
    partition: Int32 = -1
    start_offset: Int64 = EARLIEST
    end_offset: Int64 = -1
    bytes_max: Int64 = -1


class DescribeRangesRequest(Request, array_like=True, gc=False):
    """Asks for the stored bytes between two offsets, and how far `bytes_max` reach."""

    API: ClassVar[Api] = Api.DESCRIBE_RANGES
    partitions: PerPartition[RangePartition] = []


class RangePartitionResult(Part, array_like=True, gc=False):
    """`end_offset`: the last batch boundary (or the requested end) within `bytes_max`, after at
    least one batch. `first_row_us`: the timestamp of the range's first row; -1: there is none, or
    it is unknown."""

    topic_id: TopicId = b""
    partition: Int32 = -1
    error_code: ErrorCode = 0
    error_message: str = ""
    end_offset: Known = -1
    byte_count: UInt63 = 0
    first_row_us: Int64 = -1


class DescribeRangesResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.DESCRIBE_RANGES
    partitions: PerPartition[RangePartitionResult] = []
