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
from typing import Final

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
_LATE_US: Final = 1_000_000
"""Rows whose time is further behind their arrival are judged by the arrival. Others come so late as
a producer and a network take, and their own time will do."""


def _late_arrival_us(batches: Batches, now: Now) -> int:
    """This moment, where one of the batches is late; 0: none is."""
    late_us = now.wall_us - _LATE_US
    is_late = any(header.timestamp_max_us < late_us for header, _ in batches)
    return now.wall_us if is_late else 0


class AppendableLog(ReadableLog):
    """See the module docstring."""

    __slots__ = (
        "_changed",
        "_disk",
        "_opened_at",
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
        self._opened_at = 0
        """Rows from here on were appended by this process."""
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
        segment.note_arrival(_late_arrival_us(batches, now), base_offset)
        assert self.log_end_offset == offset
        return base_offset

    def append_copied(self, batches: Batches, now: Now, arrived_us: int = -1) -> int:
        """Write batches as another broker's log has them: stamps stay. Returns the log's new end.

        They must go on where this log ends. The first batch of a log without rows may begin before
        the log start, when that lies inside of it; one that ends there holds no row of this log.
        What the batches tell of their producers is taken in, too: nobody checked them here.

        Args:
            arrived_us: when late ones among them arrived at the leader; 0: there are none; -1: it
                did not tell.

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
        if arrived_us < 0:
            arrived_us = _late_arrival_us(batches, now)
        segment.note_arrival(arrived_us, base_offset)
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
                    and now.wall_us - last.created_us < self._roll_us(last)
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
        segment.appended_mono_us = now.mono_us
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
        if now.wall_us - last.created_us >= self._roll_us(last):
            self.roll()

    def _roll_us(self, segment: Segment) -> int:
        return self.config.roll_us(has_late=segment.arrived_us > 0)

    def arrived_us(self, offset: int, end_offset: int) -> int:
        """When late rows of the segments that hold [offset, end_offset) arrived; 0: none is late.

        They must have been loaded, as those are of which rows were read.
        """
        assert offset <= end_offset
        latest_us = 0
        for segment in self._segments.holding(offset):
            if segment.base_offset >= end_offset:
                break
            if segment.arrived_from < end_offset:
                latest_us = max(latest_us, segment.arrived_us)
        return latest_us

    def clock_jumped(self, now: Now) -> bool:
        """The wall clock went ahead: perhaps it was behind, and so were the times of rows.

        Rows that this process appended have arrived so long ago as its monotonic clock says. True
        when there is something new to be flushed.
        """
        first = self._opened_at
        changed = False
        for segment in self._segments.items:
            if segment.appended_mono_us >= 0 and segment.end_offset > first:
                arrived_us = max(0, now.wall_us - (now.mono_us - segment.appended_mono_us))
                segment.note_arrival(arrived_us, max(first, segment.base_offset))
                assert not segment.dropped
                if segment.owes_arrival and not self.fault:
                    changed = True
                    self._unflushed.header_changed(segment, now)
        self._changed = self._changed or changed
        return changed
