"""The records of the metadata log: everything that a cluster agrees on.

Owns their fields and their bytes: one entry of the metadata log is a msgpack array of records,
each `[type, ...fields]`. An entry is taken in whole or not at all, so a crash never leaves half a
topic. Fields are only ever appended, with defaults; a type number is never used again. Owns also
how what follows from a broker's coming or going is cut into entries where it is larger than one
may be: the image is sound after each, and what is left is decided again.

Must not know: how the log is stored, which broker decides.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import Final, get_args

import msgspec

from quiverlog.errors import CorruptLog, UnsupportedFormat
from quiverlog.types import NO_EPOCH

__all__ = [
    "ALL_BROKERS",
    "LEADER_GONE",
    "LEADER_STAYS",
    "NO_LEADER",
    "UNKNOWN_BROKER_EPOCH",
    "BrokerChangeRecord",
    "BrokerConfigRecord",
    "BrokerRecord",
    "ConfigRecord",
    "FeatureLevelRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerEpochRecord",
    "ProducerIdBlockRecord",
    "Record",
    "RemoveTopicRecord",
    "SchemaRecord",
    "SnapshotRecord",
    "TopicChangeRecord",
    "TopicRecord",
    "UnregisterBrokerRecord",
    "changed_by",
    "decode_entry",
    "encode_entry",
    "encode_long_entry",
    "in_entries",
    "topic_of",
]


NO_LEADER: Final = -1
LEADER_STAYS: Final = -1
"""In a change. That the leader is gone is said by LEADER_GONE: -1 meant "stays" from the start."""
LEADER_GONE: Final = -2
ALL_BROKERS: Final = -1
"""In the place of a node id, where something is said of all of them."""
UNKNOWN_BROKER_EPOCH: Final = -1
"""In a registration: the metadata version of the entry that it stands in."""


class SnapshotRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """First record of a compacted log: what follows is the state at metadata version `version`.

    `removed_topic_ids`: of the topics removed last; what lies about under these ids is garbage.
    """

    version: int
    removed_topic_ids: tuple[bytes, ...] = ()


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A broker registered, in the place of an earlier registration of its node id.

    `incarnation` is new at every start of its process, `directory_id` belongs to its disk.
    `broker_epoch` numbers the registration (UNKNOWN_BROKER_EPOCH); snapshots write the number.
    `fenced`: it leads nothing, and counts as a copy of nothing. `wants_vote`: it may be made a
    voter of the metadata quorum without anybody's asking. `takes_partitions`: it may be given
    replicas; what it holds it keeps. `feature_level_min`, `feature_level_max`: what it supports;
    software from before there were levels supports the first. `decommissioning`: it is to leave,
    and is given nothing.
    """

    node_id: int
    incarnation: bytes
    host: str = ""
    port: int = 0
    rack: str = ""
    listeners: tuple[tuple[str, str, int], ...] = ()
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    fenced: bool = False
    in_shutdown: bool = False
    directory_id: str = ""
    wants_vote: bool = False
    takes_partitions: bool = True
    feature_level_min: int = 1
    feature_level_max: int = 1
    decommissioning: bool = False


class TopicRecord(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """`min_in_sync_least`: the smallest `min.insync.replicas` that the topic has had, in a
    snapshot; 0: as its configuration says.
    """

    topic_id: bytes
    name: str
    created_us: int
    replication_factor: int
    key_columns: tuple[str, ...] = ()
    min_in_sync_least: int = 0


class PartitionRecord(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A partition of a topic exists. Partitions of a topic come in the order of their numbers.

    `leader_id` NO_LEADER: none of the replicas leads it now. `eligible_leader_replicas`: out of
    sync, and yet known to have all that was readable (KIP-966). While the partition moves,
    `replicas` are those it moves to, in their order, and then `removing_replicas`, which hold it
    until `adding_replicas` are in sync (KIP-455). One that was added, and is given up, is in both.

    `replaced_disks`: replicas whose disk is another one than that on which they acknowledged rows.
    `last_trusted`: who was, when nobody is any more; NO_LEADER otherwise. `begins_anew`: the only
    one that is relied on may have no log, and may make an empty one. `move_bytes_per_s`: no
    broker copies it faster on its way; 0: the move has no bound of its own. `never_in_sync`: those
    that were added, and have not been in sync since: no row was promised to lie on their disks.
    """

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    leader_id: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    replaced_disks: tuple[int, ...] = ()
    last_trusted: int = NO_LEADER
    begins_anew: bool = False
    move_bytes_per_s: int = 0
    never_in_sync: tuple[int, ...] = ()


class PartitionChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """What is not given (LEADER_STAYS, NO_EPOCH, None) stays. Each one is a partition epoch.

    Eligible leader replicas, and replaced disks, stay but for those that this change takes into
    sync, or away. `unclean`: the new leader may lack rows that were readable. `last_trusted`: when
    nobody is trusted any more. `begins_anew`: of who is elected no log is known. The bound of a
    move ends with the move. Who was never in sync follows from the replicas and those in sync.
    """

    topic_id: bytes
    partition: int
    leader_id: int = LEADER_STAYS
    leader_epoch: int = NO_EPOCH
    in_sync_replicas: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    eligible_leader_replicas: tuple[int, ...] | None = None
    unclean: bool = False
    adding_replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    replaced_disks: tuple[int, ...] | None = None
    last_trusted: int = NO_LEADER
    begins_anew: bool = False
    move_bytes_per_s: int | None = None


class ConfigRecord(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """`value` None: back to the default."""

    topic_id: bytes
    key: str
    value: str | None


class SchemaRecord(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """`schema` is an Arrow IPC schema message. Ids of a topic count from 1."""

    topic_id: bytes
    schema_id: int
    created_us: int
    schema: bytes


class RemoveTopicRecord(msgspec.Struct, frozen=True, array_like=True, tag=8):
    topic_id: bytes


class ProducerIdBlockRecord(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Producer ids below `next_producer_id` may have been given out."""

    next_producer_id: int


class ProducerEpochRecord(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Epochs of this producer up to `epoch` were given out."""

    producer_id: int
    epoch: int


class BrokerChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """What is None stays. It is about the registration `broker_epoch`, and about no later one."""

    node_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_shutdown: bool | None = None
    wants_vote: bool | None = None
    decommissioning: bool | None = None


class BrokerConfigRecord(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A key of the brokers' configuration, for one of them or (node id -1) for all. `value` None:
    nothing is said of it any more.
    """

    node_id: int
    key: str
    value: str | None


class FeatureLevelRecord(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """From here on the log may hold what this feature level has. No such record: level 1."""

    level: int


class TopicChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The topic's partitions have so many replicas now, and so will those that are added later."""

    topic_id: bytes
    replication_factor: int


class UnregisterBrokerRecord(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """The broker that was registered under this epoch is forgotten."""

    node_id: int
    broker_epoch: int


Record = (
    SnapshotRecord
    | BrokerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | SchemaRecord
    | RemoveTopicRecord
    | ProducerIdBlockRecord
    | ProducerEpochRecord
    | BrokerChangeRecord
    | BrokerConfigRecord
    | FeatureLevelRecord
    | TopicChangeRecord
    | UnregisterBrokerRecord
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Record])
_TYPES: Final = msgspec.msgpack.Decoder(list[list[object]])
_TAG_MAX: Final = max(kind.__struct_config__.tag for kind in get_args(Record))
_ARRAY_32: Final = struct.Struct(">BI")
_ARRAY_32_TAG: Final = 0xDD


def topic_of(record: Record) -> bytes | None:
    """The topic that a record is about; None when it is about none."""
    match record:
        case SnapshotRecord() | BrokerRecord() | BrokerChangeRecord() | UnregisterBrokerRecord():
            return None
        case ProducerIdBlockRecord() | ProducerEpochRecord() | BrokerConfigRecord():
            return None
        case FeatureLevelRecord():
            return None
    return record.topic_id


def changed_by(records: Iterable[Record]) -> dict[bytes, Collection[int] | None]:
    """The topics that these records are about, and their partitions that change; None: any may.

    Thousands of partitions change one by one when a broker comes or goes.
    """
    found: dict[bytes, dict[int, None] | None] = {}
    for record in records:
        topic_id = topic_of(record)
        if topic_id is None:
            continue
        if not isinstance(record, PartitionChangeRecord):
            found[topic_id] = None
        elif (numbers := found.setdefault(topic_id, {})) is not None:
            assert record.partition >= 0, "a change is of one partition"
            numbers[record.partition] = None
    return {**found}


def encode_entry(records: list[Record]) -> bytes:
    """One entry of the metadata log: these records happen together."""
    assert records
    return _ENCODER.encode(records)


def encode_long_entry(records: Iterable[Record]) -> bytes:
    """`encode_entry` for a thread beside others: one record after the other.

    No other thread runs during one call of the encoder, which for all records of thousands of
    topics takes many milliseconds.
    """
    encoded = [_ENCODER.encode(record) for record in records]
    assert encoded, "an entry is at least one record"
    return b"".join((_ARRAY_32.pack(_ARRAY_32_TAG, len(encoded)), *encoded))


def decode_entry(entry: bytes) -> list[Record]:
    """The records of one entry.

    Raises:
        UnsupportedFormat: a newer quiverlog wrote a record type that this one does not know.
        CorruptLog: the bytes are no entry.
    """
    try:
        return _DECODER.decode(entry)
    except msgspec.MsgspecError as error:
        if _has_newer_type(entry):
            raise UnsupportedFormat("the metadata log has a record of an unknown type.") from error
        raise CorruptLog(f"an entry of the metadata log cannot be decoded: {error}.") from error


def _has_newer_type(entry: bytes) -> bool:
    try:
        rows = _TYPES.decode(entry)
    except msgspec.MsgspecError:
        return False
    return any(row and isinstance(row[0], int) and row[0] > _TAG_MAX for row in rows)


# What follows from a broker's coming or going, as entries of the metadata log.
def in_entries(records: list[Record], entry_bytes_max: int) -> list[list[Record]]:
    """The first record is about the broker, the others are about partitions."""
    assert records
    assert entry_bytes_max > 0
    if len(encode_entry(records)) <= entry_bytes_max:
        return [records]
    own, following = records[:1], _bounded(records[1:], entry_bytes_max)
    is_unfencing = isinstance(own[0], BrokerChangeRecord) and own[0].fenced is False
    return [own, *following] if is_unfencing else [*following, own]


def _bounded(records: list[Record], entry_bytes_max: int) -> list[list[Record]]:
    """In their order. A record that is too large by itself is refused where it is proposed."""
    if len(records) <= 1 or len(encode_entry(records)) <= entry_bytes_max:
        return [records] if records else []
    half = len(records) // 2
    return [*_bounded(records[:half], entry_bytes_max), *_bounded(records[half:], entry_bytes_max)]
