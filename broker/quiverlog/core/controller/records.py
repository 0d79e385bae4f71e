"""The records of the metadata log: everything that a cluster agrees on.

Owns their fields and their bytes: one entry of the metadata log is a msgpack array of records,
each `[type, ...fields]`. An entry is taken in whole or not at all, so a crash never leaves half a
topic. Fields are only ever appended, with defaults; a type number is never used again.

Must not know: how the log is stored, who decides. (Raft takes over the same entries later.)
"""

from __future__ import annotations

from typing import Final

import msgspec

from quiverlog.errors import CorruptLog, UnsupportedFormat
from quiverlog.types import NO_EPOCH

__all__ = [
    "BrokerRecord",
    "ConfigRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerIdBlockRecord",
    "Record",
    "RemoveTopicRecord",
    "SchemaRecord",
    "SnapshotRecord",
    "TopicRecord",
    "decode_entry",
    "encode_entry",
]


class SnapshotRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """First record of a compacted log: what follows is the state at metadata version `version`."""

    version: int


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A broker registered. `incarnation` is new at every start of its process."""

    node_id: int
    incarnation: bytes
    host: str = ""
    port: int = 0
    rack: str = ""


class TopicRecord(msgspec.Struct, frozen=True, array_like=True, tag=3):
    topic_id: bytes
    name: str
    created_us: int
    replication_factor: int
    key_columns: tuple[str, ...] = ()


class PartitionRecord(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A partition of a topic exists. Partitions of a topic come in the order of their numbers."""

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    leader_id: int
    leader_epoch: int = 0


class PartitionChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """What is not given (-1, None) stays."""

    topic_id: bytes
    partition: int
    leader_id: int = -1
    leader_epoch: int = NO_EPOCH
    in_sync_replicas: tuple[int, ...] | None = None


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
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[Record])
_TYPES: Final = msgspec.msgpack.Decoder(list[list[object]])
_TAG_MAX: Final = 9


def encode_entry(records: list[Record]) -> bytes:
    """One entry of the metadata log: these records happen together."""
    assert records
    return _ENCODER.encode(records)


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
