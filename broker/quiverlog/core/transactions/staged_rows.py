"""The rows of `__staged`, and the bytes that their column `batch` has in those that brokers write.

    kind 0  a batch of a target topic, staged by a client
    kind 1  `[1, producer id, durability, [[topic id, partition, [[offset of the staged row,
            base sequence, rows], ...]], ...]]`: the transaction is decided, and this is published
    kind 2  `[1, [[topic id, partition, end offset, rows], ...], durability]`: all of it is in the
            target topics, and as safe as that

The version is the first element. Later ones may append elements to the outer array.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from quiverlog.errors import (
    CorruptLog,
    QuiverlogError,
    StagingFull,
    TransactionTooLarge,
    UnsupportedFormat,
)

__all__ = [
    "KIND_BATCH",
    "KIND_DONE",
    "KIND_PUBLISH",
    "SHARE",
    "DoneRow",
    "End",
    "PublishRow",
    "PublishTarget",
    "StagedRow",
    "above_share",
    "check_bytes",
    "decode_row",
    "encode_value",
]

KIND_BATCH: Final = 0
KIND_PUBLISH: Final = 1
KIND_DONE: Final = 2
_VERSION: Final = 1
SHARE: Final = 2
"""A transactional id has at most this part of each bound, whatever else is staged."""


class StagedRow(NamedTuple):
    """A row of kind 0 without its batch. `byte_count`: of that batch."""

    transactional_id: str
    epoch: int
    sequence: int
    attempt: bytes
    topic_id: bytes
    partition: int
    row_count: int
    byte_count: int


class PublishTarget(NamedTuple):
    """The staged rows for one partition, in log order: 12 bytes each, a publish may have 125,000.

    `row_counts`: how many rows the batch in each has.
    """

    topic_id: bytes
    partition: int
    offsets: array[int]
    row_counts: array[int]

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Offset of the staged row, base sequence and number of rows of its batch."""
        # The last sum is of no row.
        sums = accumulate(self.row_counts, initial=0)
        return zip(self.offsets, sums, self.row_counts, strict=False)

    @property
    def row_count(self) -> int:
        return sum(self.row_counts)


class PublishRow(NamedTuple):
    """A row of kind 1: the batches go to their targets under these numbers and no others."""

    transactional_id: str
    epoch: int
    sequence: int
    producer_id: int
    durability: int
    targets: tuple[PublishTarget, ...]

    @property
    def row_count(self) -> int:
        return sum(target.row_count for target in self.targets)


class End(NamedTuple):
    """Of a target's log behind the rows of a publish, as its leader has answered."""

    topic_id: bytes
    partition: int
    end_offset: int
    row_count: int


class DoneRow(NamedTuple):
    """A row of kind 2. `durability`: the weakest that a target gave its rows."""

    transactional_id: str
    epoch: int
    sequence: int
    ends: tuple[End, ...]
    durability: int


_Targets = list[tuple[bytes, int, list[tuple[int, int, int]]]]


class _Head(msgspec.Struct, array_like=True, gc=False):
    version: int


class _PublishValue(msgspec.Struct, array_like=True, gc=False):
    version: int
    producer_id: int
    durability: int
    targets: _Targets


class _DoneValue(msgspec.Struct, array_like=True, gc=False):
    version: int
    ends: list[End]
    durability: int


# Before the others: what a later version has changed would look like damage.
_HEAD: Final = msgspec.msgpack.Decoder(_Head)
_PUBLISH: Final = msgspec.msgpack.Decoder(_PublishValue)
_DONE: Final = msgspec.msgpack.Decoder(_DoneValue)


def encode_value(row: PublishRow | DoneRow) -> bytes:
    if isinstance(row, DoneRow):
        return msgspec.msgpack.encode(_DoneValue(_VERSION, list(row.ends), row.durability))
    targets: _Targets = [(one.topic_id, one.partition, list(one.rows())) for one in row.targets]
    return msgspec.msgpack.encode(_PublishValue(_VERSION, row.producer_id, row.durability, targets))


def decode_row(
    kind: int, transactional_id: str, epoch: int, sequence: int, value: bytes
) -> PublishRow | DoneRow:
    """Return a row of kind 1 or 2. Raises CorruptLog, UnsupportedFormat."""
    if kind not in (KIND_PUBLISH, KIND_DONE):
        raise UnsupportedFormat(f"a row of `__staged` has kind {kind}, which this version lacks.")
    try:
        version = _HEAD.decode(value).version
        if version != _VERSION:
            raise UnsupportedFormat(f"a row of `__staged` has version {version}, not {_VERSION}.")
        if kind == KIND_PUBLISH:
            publish = _PUBLISH.decode(value)
            targets = tuple(_target(*target) for target in publish.targets)
            return PublishRow(
                transactional_id, epoch, sequence, publish.producer_id, publish.durability, targets
            )
        done = _DONE.decode(value)
        return DoneRow(transactional_id, epoch, sequence, tuple(done.ends), done.durability)
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"a row of kind {kind} in `__staged` cannot be read: {error}.") from error


def _target(topic_id: bytes, partition: int, rows: list[tuple[int, int, int]]) -> PublishTarget:
    target = PublishTarget(
        topic_id,
        partition,
        array("q", [row[0] for row in rows]),
        array("i", [row[2] for row in rows]),
    )
    # A gap in the sequences would be sent to the target again and again.
    if list(target.rows()) != rows:
        raise CorruptLog(f"partition {partition}: the sequences of a publish have a gap.")
    return target


# --- bounds --------------------------------------------------------------------------------
def above_share(what: str, remedy: str, may_fit: bool) -> QuiverlogError:
    # Rows of an aborted or decided transaction go by themselves: this one alone may have room.
    return StagingFull(f"{what}.") if may_fit else TransactionTooLarge(f"{what}: {remedy}")


def check_bytes(
    transactional_id: str,
    added: int,
    held_by_id: int,
    added_in_all: int,
    held: int,
    bytes_max: int,
    *,
    has_others: bool = False,
) -> None:
    """Raise TransactionTooLarge or StagingFull where rows exceed what a broker stages.

    Args:
        held: by all partitions of `__staged` that the broker leads; `held_by_id`: by this id.
        has_others: some of these are of another transaction of the id.
    """
    share = bytes_max // SHARE
    if held_by_id + added > share:
        raise above_share(
            f"{transactional_id[:64]!r} would have {held_by_id + added} bytes staged at a broker,"
            f" the most for one id are {share}, half of `staged.bytes.max`",
            "raise it there, or write with `deliveryMode=at_least_once`.",
            has_others and added <= share,
        )
    if held + added_in_all > bytes_max:
        raise StagingFull(
            f"the broker would have {held + added_in_all} bytes staged, `staged.bytes.max` is"
            f" {bytes_max}."
        )
