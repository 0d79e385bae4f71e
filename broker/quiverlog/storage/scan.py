"""Walking the batches of a segment's bytes, and judging what does not fit.

Owns the difference between a torn tail (an append that a crash interrupted: never acknowledged as
flushed, cut at recovery) and damage (bytes that were written and changed later: reported, kept, and
stepped over). Rules, for bytes at which no good batch begins:

1. The header there fits (right offset, plausible fields) and reaches beyond the end: torn, unless
   the checksum proves that a shorter batch is all there. Nothing is looked for inside of it: a
   column's bytes may look like a batch, and whoever wrote them would choose rows and offsets.
2. The header fits and another one follows where it ends: one batch is damaged.
3. Otherwise the next good batch is looked for (resync.py): damage up to there.
4. Nothing good follows: a batch whose end is zeros that never arrived is torn; a whole one with a
   wrong checksum is damage, even at the end of the file.

Above what is known to be flushed another rule comes before these: a batch of which a whole sector
is zero, or of which the header is zeros, was never written there. It is torn whatever lies behind
it, because a flush that had succeeded would have brought it to the disk. Below, it is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quiverlog.batch.header import CRC_START, BatchHeader, whole_batch
from quiverlog.limits import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    BATCH_ROWS_MAX,
)
from quiverlog.storage.byte_source import BufferBytes, ByteSource, checksum
from quiverlog.storage.resync import EPOCHS_ALL, EpochBounds, Resync
from quiverlog.storage.tail import SECTOR_BYTES, looks_unwritten

__all__ = ["Damage", "EpochBounds", "Found", "Torn", "batch_at", "damaged_stamp", "scan"]


class Found(NamedTuple):
    """A batch at `position`."""

    position: int
    header: BatchHeader


class Damage(NamedTuple):
    """Bytes [position, end_position) that once held the rows [offset, end_offset)."""

    position: int
    end_position: int
    offset: int
    end_offset: int


def damaged_stamp(found: Found) -> Damage:
    """A batch of which only the leader epoch, outside the checksum, is wrong."""
    position, header = found
    end = position + header.total_bytes
    return Damage(position, end, header.base_offset, header.next_offset)


class Torn(NamedTuple):
    """From `position` on lies an append that never finished."""

    position: int
    offset: int


def batch_at(view: memoryview, at: int, offset: int) -> BatchHeader | None:
    """The header at byte `at` if a whole batch that begins with row `offset` lies there."""
    if len(view) - at < BATCH_HEADER_BYTES:
        return None
    header = BatchHeader.unpack(view, at)
    return header if whole_batch(header, offset, len(view) - at) else None


def scan(
    source: ByteSource | bytes | memoryview,
    at: int,
    offset: int,
    *,
    verify: bool,
    epochs: EpochBounds = EPOCHS_ALL,
    unflushed_from: int | None = None,
) -> Iterator[Found | Damage | Torn]:
    """Walk from byte `at`, where row `offset` should begin, to the end or to a torn tail.

    Args:
        verify: compute checksums too, not only look whether the headers join up.
        epochs: which leader epochs a batch behind damage may carry.
        unflushed_from: rows from this one on may never have reached the disk; None: all have.
    """
    if isinstance(source, bytes | memoryview):
        source = BufferBytes(source)
    judge = _Judge(source, epochs)
    while at < source.size:
        header = judge.header(at)
        if (
            header is not None
            and whole_batch(header, offset, source.size - at)
            and (not verify or judge.checksum_matches(at, header))
        ):
            yield Found(at, header)
            judge.epoch = max(judge.epoch, header.leader_epoch)
            at += header.total_bytes
            offset = header.next_offset
            assert at <= source.size, "a good batch is whole"
            continue
        if unflushed_from is not None and offset >= unflushed_from and judge.is_hole(at, offset):
            verdict: Damage | Torn = Torn(at, offset)
        else:
            verdict = judge.judge(at, offset, header)
        yield verdict
        if isinstance(verdict, Torn):
            return
        assert verdict.position == at
        assert at < verdict.end_position <= source.size, "a scan goes on"
        assert offset <= verdict.end_offset
        at, offset = verdict.end_position, verdict.end_offset


class _Judge:
    """See the module docstring's rules. `epoch`: of the last good batch."""

    def __init__(self, source: ByteSource, epochs: EpochBounds) -> None:
        self._source = source
        self._resync = Resync(source, epochs)
        self.epoch = epochs.oldest

    def header(self, at: int) -> BatchHeader | None:
        """The 64 bytes at `at`; None when there are fewer."""
        if self._source.size - at < BATCH_HEADER_BYTES:
            return None
        return BatchHeader.unpack(self._source.read(at, BATCH_HEADER_BYTES))

    def checksum_matches(self, at: int, header: BatchHeader) -> bool:
        """True when the stored bytes match the stored checksum."""
        end = at + header.total_bytes
        return checksum(self._source, at + CRC_START, end) == header.crc32c

    def is_hole(self, at: int, offset: int) -> bool:
        """True when a sector of the batch at `at`, which is no good one, never arrived.

        The sector of the header arrived with the header, as far as it is the batch's.
        """
        size = self._source.size
        boundary = at + SECTOR_BYTES - at % SECTOR_BYTES
        header = self.header(at)
        if header is None:
            return True
        if not header.is_plausible or header.base_offset != offset:
            return not any(self._source.read(at, min(boundary, size) - at))
        if self._end_by_checksum(at, header):
            return False
        end = min(size, at + header.total_bytes)
        return any(
            not any(self._source.read(start, min(SECTOR_BYTES, size - start)))
            for start in range(boundary, end, SECTOR_BYTES)
        )

    def judge(self, at: int, offset: int, header: BatchHeader | None) -> Damage | Torn:
        """Judge what lies at `at`, where no good batch begins."""
        if header is None:
            return Torn(at, offset)
        if header.is_plausible and header.base_offset == offset:
            return self._judge_fitting(at, header)
        found = self._resync.next_batch(at + BATCH_ALIGNMENT_BYTES, offset, self.epoch)
        if found is not None:
            return Damage(at, found.position, offset, found.base_offset)
        return self._judge_last(at, offset, header)

    def _judge_fitting(self, at: int, header: BatchHeader) -> Damage | Torn:
        """The header fits: only a wrong size field makes the batch end elsewhere than it says."""
        offset, end = header.base_offset, at + header.total_bytes
        if end < self._source.size and self._another_follows(end, header):
            return Damage(at, end, offset, header.next_offset)
        true_end = self._end_by_checksum(at, header)
        if true_end:
            return Damage(at, true_end, offset, header.next_offset)
        if end > self._source.size:
            return Torn(at, offset)
        found = self._resync.next_batch(end, offset, self.epoch)
        if found is None:
            return self._judge_last(at, offset, header)
        if found.position == end:  # The number of rows is wrong, the next batch knows better.
            return Damage(at, end, offset, found.base_offset)
        return Damage(at, end, offset, min(header.next_offset, found.base_offset))

    def _end_by_checksum(self, at: int, header: BatchHeader) -> int:
        """Find where the batch really ends if only its size field is wrong; 0 when more is wrong.

        The size lies in front of the checksum, so the checksum of the right bytes matches.
        """
        crc, size = 0, min(self._source.size, at + BATCH_BYTES_MAX)
        end = start = at + CRC_START
        for end in range(at + BATCH_HEADER_BYTES, size + 1, BATCH_ALIGNMENT_BYTES):
            crc = checksum(self._source, start, end, crc)
            start = end
            if crc == header.crc32c:
                return end
        return 0

    def _another_follows(self, end: int, header: BatchHeader) -> bool:
        after = self.header(end)
        return (
            after is not None
            and after.is_plausible
            and after.base_offset == header.next_offset
            and after.leader_epoch >= header.leader_epoch
        )

    def _judge_last(self, at: int, offset: int, header: BatchHeader) -> Damage | Torn:
        """Judge a bad batch behind which no good one was found: a torn tail or damage."""
        size = self._source.size
        end = at + header.total_bytes
        rows = header.row_count if 0 < header.row_count <= BATCH_ROWS_MAX else 1
        if self._end_by_checksum(at, header) == size:
            return Damage(at, size, offset, offset + rows)  # All there: the size field is wrong.
        if end > size:
            return Torn(at, offset)
        if header.total_bytes < BATCH_HEADER_BYTES:
            end = size
        if looks_unwritten(self._source, at, end):
            return Torn(at, offset)
        return Damage(at, end, offset, offset + rows)
