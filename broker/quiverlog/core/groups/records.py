"""The rows of `__groups`: `kind, group, key, value`; a row puts a value under its key.

    kind         key                     value
    GROUP        empty                   type, epoch, assignor, digest of the topics, emptied when
    MEMBER       member id               subscription, rack, instance, client, timeouts
    TARGET       member id; empty        partitions it is to have; empty: the epoch of all targets
    CURRENT      member id               its epochs, what is assigned, what it must give up
    OFFSET       topic id, u32 partition committed offset
    PENDING      transactional id        offsets of a transaction that is being decided
    OBSERVED     who reports             where a Spark query reads

An empty value deletes. A value is a msgpack array, its version first; fields are only appended.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import msgspec

from quiverlog.errors import CorruptLog, UnsupportedFormat

__all__ = [
    "Current",
    "Entry",
    "GroupRow",
    "GroupType",
    "Held",
    "Kind",
    "Member",
    "Observed",
    "Offset",
    "Pending",
    "Position",
    "Record",
    "Share",
    "Target",
    "TopicPartition",
    "Value",
    "decode_row",
    "encode_row",
    "key_of",
    "partition_of",
]

TopicPartition = tuple[bytes, int]
"""The topic's id and the partition's number."""

_TOPIC_ID_BYTES: Final = 16
_STATE: Final = 16
"""Added to the kind of a row that belongs to a snapshot."""


class Kind(enum.IntEnum):
    """Never used again for something else."""

    GROUP = 1
    MEMBER = 2
    TARGET = 3
    CURRENT = 4
    OFFSET = 5
    PENDING = 6
    OBSERVED = 7
    SNAPSHOT_BEGIN = 8
    """Of all rows as of this one, and of what came after; up to SNAPSHOT_END, other rows between.
    """
    SNAPSHOT_END = 9


class GroupType(enum.IntEnum):
    CONSUMER = 1
    OBSERVER = 2
    SIMPLE = 3
    """Offsets without members."""

    @property
    def label(self) -> str:
        return self.name.lower()


class Share(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic_id: bytes
    partitions: tuple[int, ...]


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`epochs`: of the same length; the group's epoch in which the member was given each."""

    topic_id: bytes
    partitions: tuple[int, ...]
    epochs: tuple[int, ...]


class GroupRow(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """`topics`: digest of the ids and partition counts that the epoch is of. `emptied_us`: by the
    wall clock, 0 while the group has members."""

    group_type: GroupType
    epoch: int
    assignor: str
    topics: bytes = b""
    emptied_us: int = 0


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """`beat`: the heartbeat that brought this. `is_away`: a static member that will come back."""

    topics: tuple[str, ...]
    rack: str
    instance_id: str
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    beat: int
    is_away: bool = False


class Target(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    epoch: int
    shares: tuple[Share, ...] = ()


class Current(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """`beat`: the newest heartbeat whose answer has offered partitions: what an older one, or this
    one again, reports is from before that."""

    epoch: int
    previous_epoch: int
    beat: int
    assigned: tuple[Held, ...] = ()
    revoking: tuple[Held, ...] = ()


class Offset(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """`leader_epoch`: of the row before `offset`, -1 where the consumer has none."""

    offset: int
    leader_epoch: int
    metadata: str
    now_us: int


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of a commit."""

    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class Pending(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """`settled_us`, by the wall clock: it is settled, and only its place among the transactions of
    the id counts, so that a late PREPARE_OFFSETS does not begin it again.

    `attempt`: of the coordinators of transactions; a later one has a larger number.
    """

    epoch: int
    sequence: int
    digest: bytes
    attempt: int
    entries: tuple[Entry, ...] = ()
    now_us: int = 0
    settled_us: int = 0
    is_committed: bool = False


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic_id: bytes
    partition: int
    next_offset: int
    leader_epoch: int


class Observed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    title: str
    positions: tuple[Position, ...]
    rows_per_second: float
    now_us: int


Value = GroupRow | Member | Target | Current | Offset | Pending | Observed


class Record(NamedTuple):
    """`value` None: the key is deleted. `is_state`: of a snapshot."""

    kind: Kind
    group: str
    key: bytes = b""
    value: Value | None = None
    is_state: bool = False


_VALUES: Final[dict[Kind, type[Value]]] = {
    Kind.GROUP: GroupRow,
    Kind.MEMBER: Member,
    Kind.TARGET: Target,
    Kind.CURRENT: Current,
    Kind.OFFSET: Offset,
    Kind.PENDING: Pending,
    Kind.OBSERVED: Observed,
}
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(one) for kind, one in _VALUES.items()}
_VERSIONS: Final = msgspec.msgpack.Decoder(list[object])


def encode_row(record: Record) -> tuple[int, str, bytes, bytes]:
    """Return kind, group, key and value."""
    kind = record.kind + _STATE if record.is_state else int(record.kind)
    value = b"" if record.value is None else _ENCODER.encode(record.value)
    return kind, record.group, record.key, value


def decode_row(number: int, group: str, key: bytes, value: bytes) -> Record:
    """Raises UnsupportedFormat: a kind or a version of a later broker; CorruptLog: no such row."""
    is_state = number > _STATE
    try:
        kind = Kind(number - _STATE if is_state else number)
    except ValueError:
        raise UnsupportedFormat(f"a row of __groups has the unknown kind {number}.") from None
    if kind is Kind.OFFSET and len(key) != _TOPIC_ID_BYTES + 4:
        raise CorruptLog(f"a row of __groups, kind {number}, has a key of {len(key)} bytes.")
    decoder = _DECODERS.get(kind)
    if not value or decoder is None:
        return Record(kind, group, key, None, is_state)
    try:
        return Record(kind, group, key, decoder.decode(value), is_state)
    except msgspec.MsgspecError as error:
        version = _version(value)
        if version > 1:
            raise UnsupportedFormat(
                f"a row of __groups, kind {number}, has version {version}."
            ) from error
        raise CorruptLog(
            f"a row of __groups, kind {number}, cannot be decoded: {error}."
        ) from error


def _version(value: bytes) -> int:
    try:
        fields = _VERSIONS.decode(value)
    except msgspec.MsgspecError:
        return 0
    return fields[0] if fields and isinstance(fields[0], int) else 0


def key_of(partition: TopicPartition) -> bytes:
    """Return the key of a partition's OFFSET."""
    topic_id, number = partition
    assert len(topic_id) == _TOPIC_ID_BYTES
    return topic_id + number.to_bytes(4, "big")


def partition_of(key: bytes) -> TopicPartition:
    return key[:_TOPIC_ID_BYTES], int.from_bytes(key[_TOPIC_ID_BYTES:], "big")
