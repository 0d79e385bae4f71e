"""Walking the batches of a segment's bytes, and judging what does not fit: a torn tail (an append
that a crash interrupted: cut at recovery) or damage (written and changed later: reported, kept,
stepped over).

A scan goes on only where a batch is known to begin: a column's bytes may look like a batch, with
rows and offsets that a producer chose. The rules and their order: docs/storage-format.md, "What a
restart does".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from quiverlog.batch.header import CRC_START, BatchHeader, whole_batch
from quiverlog.limits import BATCH_ALIGNMENT_BYTES, BATCH_HEADER_BYTES, BATCH_ROWS_MAX
from quiverlog.storage.disk.byte_source import BufferBytes, ByteSource, checksum
from quiverlog.storage.segment.damage import (
    EPOCHS_ALL,
    SECTOR_BYTES,
    EpochBounds,
    Resync,
    end_by_checksum,
    extent_of,
    header_at,
    looks_unwritten,
)
from quiverlog.storage.segment.index import Boundaries, Boundary

__all__ = ["Damage", "EpochBounds", "Found", "Torn", "batch_at", "damaged_stamp", "scan"]


class Found(NamedTuple):
    position: int
    header: BatchHeader


class Damage(NamedTuple):
    position: int
    end_position: int
    offset: int
    end_offset: int


def damaged_stamp(found: Found) -> Damage:
    position, header = found
    end = position + header.total_bytes
    return Damage(position, end, header.base_offset, header.next_offset)


class Torn(NamedTuple):
    position: int
    offset: int


def batch_at(view: memoryview, at: int, offset: int) -> BatchHeader | None:
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
    boundaries: Callable[[], Boundaries] | None = None,
) -> Iterator[Found | Damage | Torn]:
    """Walk from byte `at`, where row `offset` should begin, to the end or to a torn tail.

    Rows from `unflushed_from` on may never have reached the disk. `boundaries` is called once, at
    the first damage.
    """
    if isinstance(source, bytes | memoryview):
        source = BufferBytes(source)
    assert at >= 0
    assert offset >= 0
    judge = _Judge(source, epochs, boundaries)
    while at < source.size:
        header = header_at(source, at)
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
    """`epoch`: of the last good batch."""

    def __init__(
        self,
        source: ByteSource,
        epochs: EpochBounds,
        boundaries: Callable[[], Boundaries] | None,
    ) -> None:
        self._source = source
        self._resync = Resync(source, epochs)
        self._ask_boundaries = boundaries
        self._boundaries: Boundaries | None = None
        self.epoch = epochs.oldest

    def checksum_matches(self, at: int, header: BatchHeader) -> bool:
        end = at + header.total_bytes
        return checksum(self._source, at + CRC_START, end) == header.crc32c

    def is_hole(self, at: int, offset: int) -> bool:
        """Return whether a sector of the bad batch at `at` was never written.

        The header's sector was written with the header, as far as it is the batch's.
        """
        size = self._source.size
        boundary = at + SECTOR_BYTES - at % SECTOR_BYTES
        assert at < size
        assert at < boundary <= at + SECTOR_BYTES
        header = header_at(self._source, at)
        if header is None:
            return True
        if not header.is_plausible or header.base_offset != offset:
            return not any(self._source.read(at, min(boundary, size) - at))
        if end_by_checksum(self._source, at, header):
            return False
        end = min(size, at + header.total_bytes)
        return any(
            not any(self._source.read(start, min(SECTOR_BYTES, size - start)))
            for start in range(boundary, end, SECTOR_BYTES)
        )

    def judge(self, at: int, offset: int, header: BatchHeader | None) -> Damage | Torn:
        if header is None:
            return Torn(at, offset)
        source = self._source
        known = self._known_after(at, offset)
        assert known is None or at < known.position <= source.size
        extent = extent_of(source, at, offset, header, known)
        if extent is not None:
            return Damage(at, extent.end, offset, extent.next_offset)
        if known is not None:
            return Damage(at, known.position, offset, known.offset)
        fits = header.is_plausible and header.base_offset == offset
        if fits and at + header.total_bytes > source.size:
            return Torn(at, offset)
        found = self._resync.look_behind(at + BATCH_ALIGNMENT_BYTES, offset, self.epoch)
        if found is None:
            return self._judge_last(at, offset, header)
        assert offset <= found.end_offset
        if found.batch is not None:
            return Damage(at, found.batch.position, offset, found.batch.base_offset)
        return Damage(at, source.size, offset, found.end_offset)

    def _known_after(self, at: int, offset: int) -> Boundary | None:
        if self._boundaries is None and self._ask_boundaries is not None:
            self._boundaries = self._ask_boundaries()
        known = self._boundaries.after(at) if self._boundaries is not None else None
        # A place that contradicts the walk is another file's, or beyond a cut.
        fits = known is not None and known.position <= self._source.size and known.offset > offset
        return known if fits else None

    def _judge_last(self, at: int, offset: int, header: BatchHeader) -> Damage | Torn:
        size = self._source.size
        end = at + header.total_bytes
        rows = header.row_count if 0 < header.row_count <= BATCH_ROWS_MAX else 1
        if end_by_checksum(self._source, at, header) == size:
            return Damage(at, size, offset, offset + rows)  # All there: the size field is wrong.
        if end > size:
            return Torn(at, offset)
        aligned = not header.total_bytes % BATCH_ALIGNMENT_BYTES
        if not aligned or header.total_bytes < BATCH_HEADER_BYTES or header.base_offset != offset:
            end = size  # A wrong size leads anywhere.
        assert at < end <= size
        if looks_unwritten(self._source, at, end):
            return Torn(at, offset)
        return Damage(at, end, offset, offset + rows)
