"""From rows of `__staged` to batches of their targets.

A staged row holds a whole batch of its target. Its stored checksum is verified before the publish's
numbers go into a copy of its header and a new checksum is made: with that alone, damaged rows would
get a good one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import split_batches
from quiverlog.batch.header import CRC_START, BatchHeader
from quiverlog.batch.rows import read_rows
from quiverlog.batch.structure import check_structure
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS, STAGED
from quiverlog.errors import CorruptBatch
from quiverlog.limits import BATCH_HEADER_BYTES, FORWARD_PIECE_BYTES
from quiverlog.node.transactions.queues import Item, TargetKey

__all__ = ["Numbered", "RenumberJob", "StagedRange", "join"]

_SCHEMA: Final = INTERNAL_TOPICS[STAGED].schema
_COLUMNS: Final = ("kind", "topic_id", "partition", "batch")
_KIND, _TOPIC_ID, _PARTITION, _BATCH = map(_SCHEMA.get_field_index, _COLUMNS)
_ROWS: Final = 0
"""The kind of a staged row; others are the publisher's own."""


class Numbered(NamedTuple):
    """A batch in two parts, as its rows are those in the log's file: a header of its own, which
    begins with room for the leader's stamp, and the rows."""

    header: BatchHeader
    head: bytearray
    rows: memoryview


def join(batch: Numbered) -> memoryview:
    """Return a copy that may be stamped and appended."""
    return memoryview(batch.head + batch.rows)


class _StagedBatch:
    """The columns of a staged batch that are needed to forward its rows."""

    __slots__ = ("_ends", "_kinds", "_partitions", "_topic_ids", "_values")

    def __init__(self, view: memoryview, header: BatchHeader) -> None:
        message = view[BATCH_HEADER_BYTES:]
        data = read_rows(message, check_structure(message, header, _SCHEMA), _SCHEMA)
        self._kinds, self._topic_ids = data.column(_KIND), data.column(_TOPIC_ID)
        self._partitions = data.column(_PARTITION)
        _, ends, values = data.column(_BATCH).buffers()
        self._ends = memoryview(ends).cast("i")
        self._values = memoryview(values) if values is not None else memoryview(b"")

    def batch(self, row: int, key: TargetKey) -> memoryview | None:
        """Return the batch of a row; None: another row lies there."""
        found = (self._topic_ids[row].as_py(), self._partitions[row].as_py())
        if self._kinds[row].as_py() != _ROWS or found != key:
            return None
        return self._values[self._ends[row] : self._ends[row + 1]]


class StagedRange:
    """Whole staged batches from `offset` to before `next_offset`, as views of the log's files. They
    are parsed as they are needed, by jobs of one key, one after the other, or on the loop."""

    __slots__ = ("_parsed", "_views", "byte_count", "next_offset", "offset")

    def __init__(self, views: Sequence[memoryview], offset: int, next_offset: int) -> None:
        assert offset < next_offset
        self._views = views
        self.byte_count = sum(map(len, views))
        self._parsed: list[tuple[BatchHeader, memoryview, _StagedBatch | None]] = []
        self.offset, self.next_offset = offset, next_offset

    def find(self, item: Item, key: TargetKey) -> memoryview | None:
        """Raises CorruptBatch: the staged batch cannot be read."""
        if not self._parsed:
            self._parsed = [(*one, None) for view in self._views for one in split_batches(view)]
        low, high = 0, len(self._parsed)
        while high - low > 1:
            middle = (low + high) // 2
            if self._parsed[middle][0].base_offset <= item.offset:
                low = middle
            else:
                high = middle
        header, view, batch = self._parsed[low]
        if not header.base_offset <= item.offset < header.next_offset:
            return None
        if batch is None:
            batch = _StagedBatch(view, header)
            self._parsed[low] = header, view, batch
        return batch.batch(item.offset - header.base_offset, key)


class Renumbered(NamedTuple):
    """`item_count`: items that `batches` and `missing_count` rows are for. The batches follow one
    upon the other; rows are missing before them only. `byte_count`: of the batches. `suspect`: the
    offset of a row that is to be read again before it counts as missing; -1: none."""

    batches: list[Numbered]
    item_count: int
    byte_count: int
    missing_count: int
    suspect: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class RenumberJob:
    """`is_final`: rows that cannot be read here count as missing."""

    kind: ClassVar[str] = "renumber"
    key: str
    staged: StagedRange
    target: TargetKey
    items: Sequence[Item]
    which: range
    producer_id: int
    producer_epoch: int
    is_final: bool

    def run(self) -> Renumbered:
        batches: list[Numbered] = []
        count = byte_count = missing_count = 0
        for item in (self.items[at] for at in self.which):
            if item.offset >= self.staged.next_offset:
                break
            view = self._find(item)
            # Before its checksums: the next piece would make them again.
            if batches and view is not None and byte_count + len(view) > FORWARD_PIECE_BYTES:
                break
            batch = None if view is None else self._numbered(item, view)
            if batch is None:
                if batches:
                    break  # The next piece begins with rows that are missing.
                if not self.is_final:
                    return Renumbered([], 0, 0, 0, item.offset)
                missing_count += item.row_count
            else:
                byte_count += batch.header.total_bytes
                if batches:
                    last = batches[-1].header
                    assert last.base_sequence + last.row_count == item.base_sequence, "no gap"
                batches.append(batch)
            count += 1
        assert count, "the range has the first row"
        return Renumbered(batches, count, byte_count, missing_count)

    def _find(self, item: Item) -> memoryview | None:
        try:
            return self.staged.find(item, self.target)
        except CorruptBatch:
            return None

    def _numbered(self, item: Item, view: memoryview) -> Numbered | None:
        if len(view) < BATCH_HEADER_BYTES:
            return None
        header = BatchHeader.unpack(view)
        # Before the checksum, which would cover other bytes.
        if header.total_bytes != len(view) or header.row_count != item.row_count:
            return None
        if crc32c(view[CRC_START:]) != header.crc32c:
            return None
        return number(header, view, self.producer_id, self.producer_epoch, item.base_sequence)


def number(
    header: BatchHeader, view: memoryview, producer_id: int, producer_epoch: int, sequence: int
) -> Numbered:
    """Return the batch with these numbers and a checksum that covers them."""
    assert header.total_bytes == len(view)
    head = bytearray(BATCH_HEADER_BYTES)
    rows = view[BATCH_HEADER_BYTES:]
    header = header._replace(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
    )
    header.pack_into(head)
    # Over two parts, as a copy of the rows would cost more than their checksum.
    header = header._replace(crc32c=crc32c(rows, crc32c(head[CRC_START:])))
    header.pack_into(head)
    return Numbered(header, head, rows)
