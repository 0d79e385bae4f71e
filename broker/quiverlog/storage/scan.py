"""Walking the batches of a segment's bytes, and judging what does not fit.

Owns the difference between a torn tail (an append that a crash interrupted: never acknowledged as
flushed, cut at recovery) and damage (bytes that were written and changed later: reported, kept, and
stepped over). Rules, for bytes at which no good batch begins:

1. A good batch begins further on: damage up to there.
2. The file ends inside the batch, or the batch's end is zeros that never arrived: torn.
3. A whole batch whose checksum is wrong: damage, even at the end of the file.

Rule 1 and 3 may call damage what a disk wrote out of order before a power failure. That costs
unacknowledged rows that cannot be read; the other mistake would cost acknowledged ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import CRC_START, MAGIC, BatchHeader
from quiverlog.limits import BATCH_HEADER_BYTES, BATCH_ROWS_MAX
from quiverlog.storage.tail import looks_unwritten

__all__ = ["Damage", "Found", "Torn", "batch_at", "scan"]

_ALIGNMENT: Final = 64
_MAGIC_AT: Final = 20


class Found(NamedTuple):
    """A batch at `position` (relative to the bytes scanned)."""

    position: int
    header: BatchHeader


class Damage(NamedTuple):
    """Bytes [position, end_position) that once held the rows [offset, end_offset)."""

    position: int
    end_position: int
    offset: int
    end_offset: int


class Torn(NamedTuple):
    """From `position` on lies an append that never finished."""

    position: int
    offset: int


def batch_at(view: memoryview, at: int, offset: int) -> BatchHeader | None:
    """The header at byte `at` if a whole batch that begins with row `offset` lies there."""
    if len(view) - at < BATCH_HEADER_BYTES:
        return None
    header = BatchHeader.unpack(view, at)
    total = header.total_bytes
    if (
        header.base_offset != offset
        or header.magic != MAGIC
        or total < BATCH_HEADER_BYTES
        or at + total > len(view)
        or not 0 < header.row_count <= BATCH_ROWS_MAX
    ):
        return None
    return header


def _checksum_matches(view: memoryview, at: int, header: BatchHeader) -> bool:
    """Do the stored bytes match the stored checksum?"""
    return crc32c(view[at + CRC_START : at + header.total_bytes]) == header.crc32c


def scan(
    view: memoryview, at: int, offset: int, *, verify: bool
) -> Iterator[Found | Damage | Torn]:
    """Walk from byte `at`, where row `offset` should begin, to the end or to a torn tail.

    Args:
        verify: compute checksums too, not only look whether the headers join up.
    """
    while at < len(view):
        header = batch_at(view, at, offset)
        if header is not None and (not verify or _checksum_matches(view, at, header)):
            yield Found(at, header)
            at += header.total_bytes
            offset = header.next_offset
            continue
        verdict = _judge(view, at, offset, header)
        yield verdict
        if isinstance(verdict, Torn):
            return
        at, offset = verdict.end_position, verdict.end_offset


def _judge(view: memoryview, at: int, offset: int, whole: BatchHeader | None) -> Damage | Torn:
    """What lies at `at`? `whole`: its header is good, only the checksum is not."""
    after = _next_good_batch(view, at, offset)
    if after is not None:
        return Damage(at, after, offset, BatchHeader.unpack(view, after).base_offset)
    if len(view) - at < BATCH_HEADER_BYTES:
        return Torn(at, offset)
    if whole is not None:
        end = at + whole.total_bytes
        if looks_unwritten(view, at, end):
            return Torn(at, offset)
        return Damage(at, end, offset, whole.next_offset)
    header = BatchHeader.unpack(view, at)
    end = at + header.total_bytes
    rows = header.row_count if 0 < header.row_count <= BATCH_ROWS_MAX else 1
    if end > len(view) or header.total_bytes < BATCH_HEADER_BYTES:
        # Cut short; unless all the bytes are there and only the size field is wrong.
        all_there = crc32c(view[at + CRC_START :]) == header.crc32c
        if not all_there and (end > len(view) or looks_unwritten(view, at, len(view))):
            return Torn(at, offset)
        end = len(view)
    elif looks_unwritten(view, at, end):
        return Torn(at, offset)
    return Damage(at, end, offset, offset + rows)


def _next_good_batch(view: memoryview, at: int, offset: int) -> int | None:
    """The next position at which a batch of later rows begins, checksum and all."""
    for position in range(at + _ALIGNMENT, len(view) - BATCH_HEADER_BYTES + 1, _ALIGNMENT):
        if view[position + _MAGIC_AT] != MAGIC:
            continue
        base_offset = BatchHeader.unpack(view, position).base_offset
        if not offset < base_offset <= offset + 2**31:
            continue
        header = batch_at(view, position, base_offset)
        if header is not None and _checksum_matches(view, position, header):
            return position
    return None
