"""The write side of a log: batches are stamped, written to the last segment, and indexed.

Owns the order of these steps, and when a segment is finished. Nothing here waits for the disk: an
append writes to the page cache, and what a roll leaves to be written is part of the next flush.

Invariants:
- An append is stored as a whole or not at all; after any error the log is as it was.
- Rows follow each other without a gap, leader epochs never fall.
- Every segment but the last is finished: it takes no more appends.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.errors import BatchTooLarge, CorruptLog, StorageFault
from quiverlog.limits import SEGMENT_BYTES_MAX, SEGMENT_ROWS_MAX
from quiverlog.storage.checkpoint import Producers
from quiverlog.storage.disk import Disk, short_name
from quiverlog.storage.flushing import Unflushed
from quiverlog.storage.index_cache import IndexCache
from quiverlog.storage.log_config import LogConfig
from quiverlog.storage.readable_log import ReadableLog
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import SEGMENT_HEADER_BYTES
from quiverlog.storage.truncation import TruncateJob
from quiverlog.types import Now

__all__ = ["AppendableLog"]

Batches = Sequence[tuple[BatchHeader, memoryview]]
"""Whole batches: the header, and all bytes."""


class AppendableLog(ReadableLog):
    """See the module docstring."""

    __slots__ = (
        "_changed",
        "_disk",
        "_producers",
        "_skipping",
        "_truncation",
        "_unflushed",
        "fault",
        "flushed_offset",
    )

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, indexes: IndexCache | None
    ) -> None:
        super().__init__(directory, config, indexes)
        self._disk = disk
        self._unflushed = Unflushed(disk, directory)
        self._changed = False
        self._producers: Producers | None = None
        self._skipping = False
        self._truncation: TruncateJob | None = None
        self.flushed_offset = 0
        self.fault = ""
        """Why the log takes no writes any more; empty while it does."""

    def append(self, batches: Batches, leader_epoch: int, now: Now) -> int:
        """Stamp and write batches (writable views, validated). Returns the first row's offset.

        Raises:
            BatchTooLarge: more rows or bytes than a segment may hold; nothing was appended.
            DiskFull: nothing was appended.
            StorageFault: nothing was appended; an earlier flush failed, or the disk does.
        """
        self._check_writable()
        assert leader_epoch >= self.epochs.newest, "leader epochs never fall along a log"
        base_offset = offset = self.log_end_offset
        total = 0
        for header, view in batches:
            stamp(view, 0, offset, leader_epoch)
            offset += header.row_count
            total += len(view)
        segment = self._writable(base_offset, total, offset, now)
        self._write(segment, batches, offset, total, now, [(leader_epoch, base_offset)])
        assert self.log_end_offset == offset
        return base_offset

    def append_copied(self, batches: Batches, now: Now) -> int:
        """Write batches as another broker's log has them: stamps stay. Returns the log's new end.

        They must go on where this log ends. The first batch of a log without rows may begin before
        the log start, when that lies inside of it; one that ends there holds no row of this log.
        What the batches tell of their producers is taken in, too: nobody checked them here.

        Raises: as `append`, and
            CorruptLog: the offsets or epochs do not join up; nothing was appended.
        """
        self._check_writable()
        if not batches:
            return self.log_end_offset
        first = batches[0][0]
        offset = self.log_end_offset
        # A copy that found no room may have begun the first segment already.
        fits = all(s.empty and s.base_offset == first.base_offset for s in self.segments)
        if fits and first.base_offset < offset < first.next_offset:
            offset = first.base_offset
        base_offset = offset
        total = 0
        epochs: list[tuple[int, int]] = []
        newest = self.epochs.newest
        for header, view in batches:
            if header.base_offset != offset or header.leader_epoch < newest:
                name = short_name(self.directory)
                raise CorruptLog(
                    f"{name}: a copied batch begins at row {header.base_offset} in epoch"
                    f" {header.leader_epoch}; the log ends at {offset} in epoch {newest}.",
                    file=name,
                    offset=offset,
                )
            assert BatchHeader.unpack(view) == header, "the bytes carry the stamps"
            newest = header.leader_epoch
            epochs.append((newest, offset))
            offset = header.next_offset
            total += len(view)
        assert base_offset <= self.log_end_offset < offset, "the copied rows are the log's next"
        segment = self._writable(base_offset, total, offset, now)
        self._write(segment, batches, offset, total, now, epochs)
        assert self.epochs.newest == newest
        if self._producers is not None:
            for header, _ in batches:
                self._producers.record(header, header.base_offset, now.mono_us)
        return offset

    def _check_writable(self) -> None:
        if self.fault:
            raise StorageFault(f"{short_name(self.directory)} takes no writes: {self.fault}.")
        assert self._truncation is None, "a truncation is outstanding"
        assert not self._skipping, "the log is about to begin elsewhere"

    def _writable(self, base_offset: int, byte_count: int, end_offset: int, now: Now) -> Segment:
        """The segment that takes these rows: the last one, or a new one.

        Raises: as `append`, before anything is written.
        """
        assert 0 <= base_offset < end_offset
        assert byte_count > 0
        rows = end_offset - base_offset
        if rows > SEGMENT_ROWS_MAX or byte_count > SEGMENT_BYTES_MAX - SEGMENT_HEADER_BYTES:
            raise BatchTooLarge(
                f"one append of {rows} rows and {byte_count} bytes; a segment takes"
                f" {SEGMENT_ROWS_MAX} rows and {SEGMENT_BYTES_MAX} bytes."
            )
        segments = self._segments.items
        last = segments[-1] if segments else None
        if last is not None and not last.finished:
            if last.created_us < 0:
                last.load()
            config = self.config
            if end_offset - last.base_offset <= SEGMENT_ROWS_MAX and (
                (
                    last.file.size + byte_count <= config.roll_bytes
                    and now.wall_us - last.created_us < config.segment_ms * 1000
                )
                or last.empty
            ):
                assert last.end_offset == base_offset, "rows follow each other without a gap"
                return last
            self.roll()
        assert last is None or last.finished, "one segment takes appends"
        flushed = min(self.flushed_offset, base_offset)
        segment = Segment.create(self._disk, self.directory, base_offset, now.wall_us, flushed)
        if last is not None and last.base_offset == base_offset:
            # A power failure left it without a row and without a good header: its name is taken.
            assert last.end_offset == base_offset
            self._segments.take_last()
            self._unflushed.forget(last)
            self._indexes.forget(last)
        self._segments.add(segment)
        self._unflushed.names_changed = True
        return segment

    def _write(
        self,
        segment: Segment,
        batches: Batches,
        end_offset: int,
        byte_count: int,
        now: Now,
        epochs: Sequence[tuple[int, int]],
    ) -> None:
        """Write stamped batches to `segment`. What comes after the write cannot fail."""
        assert self._segments.items[-1] is segment, "only the last segment grows"
        assert epochs[0][1] == segment.end_offset, "the first epoch begins with the first row"
        segment.append(batches, end_offset, self.config.index_interval_bytes)
        for epoch, offset in epochs:
            if epoch > self.epochs.newest:
                self.epochs.assign(epoch, offset)
        self.log_end_offset = end_offset
        self._segments.grew(byte_count)
        self._changed = True
        self._unflushed.appended(segment, byte_count, now)

    def roll(self) -> None:
        """The next append begins a new segment. No I/O: the next flush writes what it leaves."""
        if self.segments and not self.segments[-1].finished:
            last = self.segments[-1]
            assert last.end_offset <= self.log_end_offset
            last.finished = True
            self._unflushed.rolled(last, self.log_end_offset, self._producers)
            self._indexes.finished(last)

    def roll_if_due(self, now: Now) -> None:
        """An idle topic's segment is finished when its time has come."""
        last = self.segments[-1] if self.segments else None
        if last is None or last.created_us < 0 or last.empty:
            return
        if now.wall_us - last.created_us >= self.config.segment_ms * 1000:
            self.roll()
