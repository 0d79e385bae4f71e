"""The rows of `__transactions`: `kind, transactional_id, value`.

A value is a msgpack array whose first element is its version. Fields are only appended, with
defaults; a kind is never used again.

Records hold no references that could form a cycle: the garbage collector need not walk 100,000 ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from quiverlog.errors import CorruptLog, UnsupportedFormat
from quiverlog.types import NO_SEQUENCE, Durability

__all__ = [
    "Change",
    "Closed",
    "Committed",
    "End",
    "Forgotten",
    "Last",
    "Opened",
    "Part",
    "Published",
    "Record",
    "SnapshotBegin",
    "SnapshotEnd",
    "SnapshotState",
    "decode_row",
    "digest_of",
    "encode_row",
    "instance_hash",
]

_INSTANCE_HASH_BYTES: Final = 8


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a staging partition has of a transaction; `attempts`: indexes of those with rows there.

    Rows of others may lie between `first_offset` and `next_offset`.
    """

    staged_partition: int
    first_offset: int
    next_offset: int
    row_count: int
    attempts: tuple[int, ...]


class End(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the rows of a transaction end in a partition of a topic."""

    topic_id: bytes
    partition: int
    end_offset: int


class Opened(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """An instance holds the id from now on, under a new epoch."""

    epoch: int
    instance: bytes
    client_id: str
    timeout_ms: int
    single_use: bool
    now_us: int


class Committed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The decision. `durability`: what the client asked for. `staged_durability`: the weakest
    level of this row and of the staged rows."""

    epoch: int
    sequence: int
    digest: bytes
    attempts: tuple[bytes, ...]
    parts: tuple[Part, ...]
    durability: int
    now_us: int
    row_count: int
    offsets: tuple[object, ...] = ()
    staged_durability: int = int(Durability.REPLICATED)


class Published(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """All rows of `sequence` are in their topics; `durability`: the weakest level there."""

    sequence: int
    ends: tuple[End, ...] = ()
    durability: int = int(Durability.REPLICATED_FLUSHED)


class Closed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Nothing is committed under an epoch below `epoch`, which no instance gets."""

    epoch: int
    reason: str


class Forgotten(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The id is unknown from now on. Its next epoch is above all that it had."""


class SnapshotBegin(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The states of all ids as of this row follow, up to SnapshotEnd, between other rows.

    `forgotten_epoch`: the highest of an id that was forgotten.
    """

    forgotten_epoch: int


class Last(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest transaction of an id that has committed. `durability`: what an answer names."""

    epoch: int
    sequence: int
    digest: bytes
    committed_us: int
    row_count: int
    durability: int


class SnapshotState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """What a coordinator holds of an id; the state itself.

    `closed`: the reason, while no instance holds the id. `ended_epoch`: the one that a Closed has
    ended, until another instance opens. `old_instances`: hashes, the newest last.
    """

    epoch: int = 0
    instance: bytes = b""
    client_id: str = ""
    timeout_ms: int = 0
    single_use: bool = False
    opened_us: int = 0
    closed: str | None = None
    ended_epoch: int | None = None
    old_instances: tuple[bytes, ...] = ()
    last: Last | None = None
    publishing: Committed | None = None
    ends: tuple[End, ...] = ()

    @property
    def last_sequence(self) -> int:
        return NO_SEQUENCE if self.last is None else self.last.sequence


class SnapshotEnd(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """All states are above."""


Change = (
    Opened
    | Committed
    | Published
    | Closed
    | Forgotten
    | SnapshotBegin
    | SnapshotState
    | SnapshotEnd
)


class Record(NamedTuple):
    """`transactional_id`: empty for the begin and the end of a snapshot."""

    transactional_id: str
    change: Change


_KINDS: Final[dict[type[Change], int]] = {
    Opened: 1,
    Committed: 2,
    Published: 3,
    Closed: 4,
    Forgotten: 5,
    SnapshotBegin: 6,
    SnapshotState: 7,
    SnapshotEnd: 8,
}
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(one) for one, kind in _KINDS.items()}
_VERSIONS: Final = msgspec.msgpack.Decoder(list[object])


def encode_row(record: Record) -> tuple[int, str, bytes]:
    """Returns kind, transactional id and value."""
    return _KINDS[type(record.change)], record.transactional_id, _ENCODER.encode(record.change)


def decode_row(kind: int, transactional_id: str, value: bytes) -> Record:
    """Raises UnsupportedFormat: a kind or a version of a later broker; CorruptLog: no such row."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise UnsupportedFormat(f"a row of __transactions has the unknown kind {kind}.")
    try:
        return Record(transactional_id, decoder.decode(value))
    except msgspec.MsgspecError as error:
        version = _version(value)
        if version > 1:
            raise UnsupportedFormat(
                f"a row of __transactions, kind {kind}, has version {version}."
            ) from error
        raise CorruptLog(
            f"a row of __transactions, kind {kind}, cannot be decoded: {error}."
        ) from error


def _version(value: bytes) -> int:
    try:
        fields = _VERSIONS.decode(value)
    except msgspec.MsgspecError:
        return 0
    return fields[0] if fields and isinstance(fields[0], int) else 0


def digest_of(attempts: Iterable[tuple[bytes, int]]) -> bytes:
    """Of (attempt, row count), in any order: what makes a COMMIT the same as one before it."""
    return hashlib.sha256(_ENCODER.encode(sorted(attempts))).digest()


def instance_hash(instance: bytes) -> bytes:
    return hashlib.blake2b(instance, digest_size=_INSTANCE_HASH_BYTES).digest()
