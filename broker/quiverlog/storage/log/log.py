"""One partition's log: consecutive segments as one sequence of offsets. One thread uses a log.

Owns append, roll, flush, trim, truncation and retention; `reader` reads. What waits for the disk is
a job (`jobs`): begun here, run elsewhere, completed here.

Invariants:
- log_start_offset <= log_end_offset; rows below flushed_offset survive a power failure.
- An append is stored whole or not at all; offsets have no gap; leader epochs never decrease.
- A failed flush is final (`fault`): the kernel may have dropped the pages.
- log_start_offset never decreases while the log is open. It is on the disk before a file is removed
  for it, and before a client is answered that the rows below are gone.
- Retention by time moves the start batch by batch, by size a segment at a time, neither beyond
  the high watermark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.errors import (
    BatchTooLarge,
    CorruptLog,
    DiskFull,
    OffsetOutOfRange,
    QuiverlogError,
    StorageFault,
)
from quiverlog.limits import (
    INDEX_INTERVAL_BYTES,
    RETENTION_MS_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
    SEGMENT_BYTES_MAX,
    SEGMENT_MS_DEFAULT,
    SEGMENT_ROWS_MAX,
    UNFLUSHED_BYTES_MAX,
)
from quiverlog.storage.disk.disk import Disk, out_of_descriptors, short_name, what_failed
from quiverlog.storage.log import checkpoint, opening
from quiverlog.storage.log.checkpoint import Bounds, Producers, RecoveryPoint, restore_producers
from quiverlog.storage.log.flushing import Unflushed
from quiverlog.storage.log.jobs import (
    FlushJob,
    FlushResult,
    RemoveFilesJob,
    SnapshotFile,
    TrimJob,
    TrimResult,
)
from quiverlog.storage.log.reader import LogReader
from quiverlog.storage.log.recovery import RecoveryReport
from quiverlog.storage.log.truncation import TruncateJob, TruncateResult
from quiverlog.storage.segment.damage import EPOCHS_ALL
from quiverlog.storage.segment.reading_jobs import JustRead, LoadIndexJob
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.storage.segment.segments import IndexCache
from quiverlog.types import NO_EPOCH, Now

__all__ = ["Log", "LogConfig", "RecoveryReport", "target"]


Batches = Sequence[tuple[BatchHeader, memoryview]]
_LATE_ROLL_MS_MIN: Final = 60_000
_LATE_US: Final = 1_000_000
"""Rows with a time further behind their arrival are retained by the arrival. Below that it is the
delay of a producer and its network."""


def _late_arrival_us(batches: Batches, now: Now) -> int:
    late_us = now.wall_us - _LATE_US
    is_late = any(header.timestamp_max_us < late_us for header, _ in batches)
    return now.wall_us if is_late else 0


_HALF_CUT: Final = "a truncation failed half way"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """A topic's settings for its logs; -1: no bound."""

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    segment_ms: int = SEGMENT_MS_DEFAULT
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    retention_ms: int = RETENTION_MS_DEFAULT
    retention_bytes: int = -1
    unflushed_bytes_max: int = UNFLUSHED_BYTES_MAX

    @property
    def roll_bytes(self) -> int:
        """Retention by size gives up whole segments: each has at most an eighth of the bound."""
        if self.retention_bytes < 0:
            return self.segment_bytes
        return max(1, min(self.segment_bytes, self.retention_bytes // 8))

    def roll_us(self, *, has_late: bool) -> int:
        """Roll early with late rows: all rows after the first late one stay as long as the last."""
        if not has_late or self.retention_ms < 0:
            return self.segment_ms * 1000
        assert self.segment_ms > 0
        return min(self.segment_ms, max(self.retention_ms // 8, _LATE_ROLL_MS_MIN)) * 1000


class Log:
    """Attributes are for reading, except `config`. `reader` has start and end."""

    __slots__ = (
        "_changed", "_disk", "_indexes", "_last_given_up", "_leader_producers", "_opened_at",
        "_producers", "_segments", "_skipping", "_start_saved", "_trim", "_truncation",
        "_unflushed", "config", "directory", "epochs", "fault", "flushed_offset", "reader",
    )  # fmt: skip

    def __init__(self, disk: Disk, reader: LogReader, config: LogConfig) -> None:
        self.reader = reader
        self.directory = reader.directory
        self.epochs = reader.epochs
        self._segments = reader.files
        self._indexes = reader.indexes
        self.config = config
        self._disk = disk
        self._unflushed = Unflushed(disk, reader.directory)
        self._changed = False
        self._opened_at = reader.log_end_offset
        self._producers: Producers | None = None
        self._skipping = False
        self._truncation: TruncateJob | None = None
        self.flushed_offset = reader.log_end_offset
        self.fault = ""
        self._start_saved = 0
        self._last_given_up = RecoveryPoint()
        self._trim: TrimJob | None = None
        self._leader_producers: Producers | None = None

    @property
    def log_start_offset(self) -> int:
        return self.reader.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.reader.log_end_offset

    @property
    def recovery(self) -> RecoveryReport:
        return self.reader.recovery

    # --- opening -------------------------------------------------------------------------------
    @classmethod
    def new(
        cls,
        disk: Disk,
        directory: str,
        *,
        config: LogConfig,
        producers: Producers | None = None,
        indexes: IndexCache | None = None,
    ) -> Log:
        """As `open` of an empty directory, without its I/O."""
        log = cls(disk, LogReader(directory, indexes), config)
        log._producers = producers
        return log

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        config: LogConfig,
        clean: bool,
        now: Now,
        producers: Producers | None = None,
        epoch_newest: int = EPOCHS_ALL.newest,
        indexes: IndexCache | None = None,
        known: Bounds | None = None,
    ) -> Log:
        """Open the log in `directory`, which must exist; recover it unless `clean`. In any thread.

        A clean log whose recovery point does not agree with its files is scanned nevertheless. No
        row can have an epoch above `epoch_newest`.

        Raises UnsupportedFormat; CorruptLog: its rows are of newer epochs, they stay as they are;
        OSError, DiskFull, ThrottledBroker, StorageFault: the disk failed, or no descriptor is free.
        """
        reader = LogReader(directory, indexes)
        found = opening.open_files(
            disk,
            directory,
            reader.epochs,
            clean=clean,
            now=now,
            epoch_newest=epoch_newest,
            known=known,
        )
        assert all(segment.finished for segment in found.segments[:-1])
        assert not found.segments or found.segments[-1].end_offset <= found.log_end_offset
        reader.opened(found.segments, found.log_start_offset, found.log_end_offset, found.report)
        log = cls(disk, reader, config)
        log._unflushed.point = found.point
        log._unflushed.marks = found.marks
        log._unflushed.snapshots = found.snapshots
        log._start_saved = found.start_saved if found.start_durable else 0
        log._changed = found.changed
        log._producers = producers
        log._restore_producers(found.given_up)
        for segment in reader.segments:
            if segment.index_note and segment.index_note not in log.recovery.notes:
                log.recovery.notes.append(segment.index_note)
            segment.release_index()  # No reader has used it yet, and no cache counts it.
        return log

    def distrust(self, offset: int) -> None:
        """Verify the segment of `offset` again, also this process's own rows: a reader got damaged
        bytes."""
        for segment in self._segments.holding(offset)[:1]:
            assert not segment.dropped
            segment.distrust()

    def _restore_producers(self, given_up: Sequence[Segment] = ()) -> None:
        for segment in given_up:
            assert segment.end_offset <= self.log_start_offset, "no file that is read goes"
        if self._producers is not None:
            known = list(self._unflushed.snapshots)
            # The replay finds the rows' headers by the index.
            if known and (load := self.reader.begin_load()) is not None:
                self.reader.complete_load(load, load.run())
            self.recovery.notes += restore_producers(
                self._disk,
                self.directory,
                self._producers,
                self._unflushed.snapshots,
                self._segments,
                self.log_start_offset,
                self.log_end_offset,
                self.recovery.damages,
                given_up,
            )
            self._changed |= self._unflushed.snapshots != known  # The next stop writes one anew.
        if given_up and self.log_start_offset > self._start_saved:
            # Their files stay: the start is not on the disk, and the next opening may find an
            # earlier one.
            opening.given_up_files(given_up)
        elif given_up:
            files = opening.given_up_files(given_up)
            snapshot = self._snapshot_before(given_up[-1].end_offset)
            try:
                RemoveFilesJob(self._disk, self.directory, files, snapshot=snapshot).run()
            except OSError as error:  # The next start tries again; no row of them is readable.
                self.recovery.notes.append(f"files below the log start stay: {what_failed(error)}.")

    # --- flushing ------------------------------------------------------------------------------
    def begin_flush(self, *, background: bool = False) -> FlushJob:
        """Make the job that flushes all that is unflushed now. At most one is outstanding. Without
        a request that waits for it (`background`) it also writes the recovery point."""
        assert self._truncation is None, "a truncation is outstanding"
        if self.fault:
            raise StorageFault(f"{short_name(self.directory)}: {self.fault}.")
        assert self.flushed_offset <= self.log_end_offset
        last = self._segments.items[-1] if self._segments.items else None
        return self._unflushed.begin(self.log_end_offset, last, self.epochs, background=background)

    def complete_flush(self, job: FlushJob, result: FlushResult) -> int:
        """Return the new flushed offset.

        Raises StorageFault: an earlier job failed at an fsync. The kernel reports lost pages once:
        the success of this one proves nothing.
        """
        if self.fault:
            raise StorageFault(f"{short_name(self.directory)}: {self.fault}.")
        self._unflushed.complete(job, result, self.epochs)
        assert job.end_offset <= self.log_end_offset, "a truncation waits for the flush"
        self.flushed_offset = max(self.flushed_offset, job.end_offset)
        return self.flushed_offset

    def fail_flush(self, job: FlushJob, error: BaseException) -> bool:
        """Return True where a write or fsync failed, which is final for the log; False where no
        file descriptor was free: flush again later."""
        self._unflushed.postpone(job, self.epochs)
        if not out_of_descriptors(error):  # Else nothing was attempted.
            self.fault = f"flush failed: {error}"
        return bool(self.fault)

    def flush_due_us(self) -> int | None:
        """Return when a flush in the background is due (`Now.mono_us`): None for never, 0 for at
        once.

        Due at a roll, after `unflushed_bytes_max` and after 30 s, for every level of durability,
        and once more when a log has become idle: that bounds what a start after a crash scans.
        """
        # A truncation replaces the files that a flush would sync.
        if self.fault or self._truncation is not None:
            return None
        return self._unflushed.due_us(self.config.unflushed_bytes_max)

    @property
    def saved_epoch(self) -> int:
        return self.epochs.saved

    @property
    def is_tail_bare(self) -> bool:
        newest, start_offset = self.epochs.latest()
        return newest != NO_EPOCH and start_offset >= self.log_end_offset

    def agreed(self, epoch: int, start_offset: int) -> bool:
        """Note that the log equals that of the epoch's leader up to `start_offset`, where it began
        to lead.

        True if the list must be written for this to hold after a crash; rows of the epoch prove it
        by themselves.
        """
        assert epoch >= 0
        if start_offset != self.log_end_offset or start_offset <= self.log_start_offset:
            return False
        assert epoch >= self.epochs.newest, "leader epochs never fall along a log"
        self.epochs.assign(epoch, start_offset)
        return self.saved_epoch < epoch

    # --- truncating ----------------------------------------------------------------------------
    def begin_truncate(self, offset: int) -> TruncateJob | None:
        """Begin to truncate the rows from `offset` on; None if there are none.

        Nothing may be appended, flushed or trimmed until the job is complete: it replaces files. A
        batch is removed whole: the log may end before `offset`.
        """
        assert self._unflushed.outstanding is None, "a flush is outstanding"
        assert self._truncation is None, "a truncation is outstanding"
        assert self._trim is None, "a trim is outstanding"
        assert offset >= 0
        if offset >= self.log_end_offset:
            self.epochs.truncate_to(max(offset, self.log_end_offset))
            return None
        start, trimmed = self.log_start_offset, None
        if self._producers is not None and start > 0:
            trimmed = SnapshotFile(start, self._producers.capture_below(start))
        self._truncation = TruncateJob(
            self._disk,
            self.directory,
            offset,
            self.log_end_offset,
            self.epochs.dump(),
            start,
            None if self._producers is None else self._producers.blank(),
            trimmed,
            self._segments.items[0].base_offset if self._segments.items else self.log_end_offset,
        )
        return self._truncation

    def complete_truncate(self, job: TruncateJob, result: TruncateResult) -> int:
        assert job is self._truncation
        self._truncation = None
        end = result.end_offset
        assert self.log_start_offset <= end <= self.log_end_offset
        while self._segments.items and self._segments.items[-1].base_offset > result.last_base:
            self._discard(self._segments.take_last())
        if result.file is not None:
            old = self._segments.take_last()
            self._discard(old)
            fresh = Segment(self._disk, old.path, result.file, old.base_offset)
            fresh.end_offset = end
            fresh.appended_mono_us = old.appended_mono_us
            fresh.note_arrival(old.arrived_us, old.arrived_from)
            self._segments.add(fresh)
            if old.has_unsaved_arrival:
                # The rows are synced, so the next flush has them; their arrival must go with it.
                self._unflushed.header_changed(fresh)
        self._unflushed.truncated(end, result.point)
        if not self._segments.items:
            self._start_saved = max(self._start_saved, end)
            self._unflushed.marks.started(end)
            self._move_start(end)
        else:
            self._segments.items[-1].end_at(end)
        self.reader.cut_at(end)
        self.flushed_offset = min(self.flushed_offset, end)
        self._opened_at = min(self._opened_at, end)
        self.epochs.dirty = False  # The job has written the list, cut like this one.
        self.epochs.saved = self.epochs.newest
        self._changed = True
        assert self.log_start_offset <= self.log_end_offset
        assert self._unflushed.point.offset <= self.flushed_offset
        assert not self._segments.items or self._segments.items[-1].end_offset <= end
        if self._segments.items and result.last_index is not None:
            # An append needs it, and must not wait for the disk.
            load = LoadIndexJob(self.directory, self._segments.items[-1])
            self.reader.complete_load(load, result.last_index)
        if self._producers is not None and result.producers is not None:
            self._unflushed.snapshots = list(result.snapshots)
            self.recovery.damages += [d for d in result.damages if d not in self.recovery.damages]
            self.recovery.notes += result.notes
            self._producers.adopt(result.producers)
        return end

    def fail_truncate(self, job: TruncateJob) -> None:
        assert job is self._truncation
        self._truncation = None
        self.fault = _HALF_CUT

    def truncate_again(self, job: TruncateJob) -> None:
        assert self._truncation is None
        assert self.fault == _HALF_CUT, "nothing was written since, or read into memory"
        self.fault = ""
        self._truncation = job

    # --- closing -------------------------------------------------------------------------------
    @property
    def is_as_left(self) -> bool:
        return not (self._changed or self.epochs.dirty or self.fault)

    def release_indexes(self) -> None:
        """Take this log out of the cache that all logs share, on the loop: `close` may run in a
        job."""
        for segment in self._segments.items:
            self._indexes.discard(segment)

    def close(self, *, clean: bool) -> None:
        """Close the files. `clean`: flush, and write what lets the next start skip the scan.

        Raises OSError, QuiverlogError: not clean; the files are closed nevertheless.
        """
        try:
            if clean and not self.fault:
                self._close_clean()
        finally:
            self.release_indexes()  # Here for a job that closes the log it is already done.
            for segment in self._segments.items:
                segment.file.close()

    def _close_clean(self) -> None:
        if self.is_as_left:
            return
        if not self._segments.items and not self.log_end_offset and not self._unflushed.snapshots:
            # Never written: a start finds the same without files, and the epoch in the metadata.
            # Thousands of such logs would cost a stop several fsyncs each.
            return
        if self._producers is not None and self._changed:
            self._unflushed.snapshot(self.log_end_offset, self._producers)
        job = self.begin_flush(background=True)
        self.complete_flush(job, job.run())
        assert self.flushed_offset == self.log_end_offset, "a clean log is on the disk"
        if self._changed:
            # The rows are safe. An error here, as of a full disk, makes the next start longer, not
            # unclean.
            with contextlib.suppress(OSError, QuiverlogError):
                self._save_what_shortens_the_start()

    def _save_what_shortens_the_start(self) -> None:
        last = self._segments.items[-1] if self._segments.items else None
        marks = self._unflushed.marks
        if self.log_start_offset > self._start_saved:
            checkpoint.save_log_start(self._disk, self.directory, self.log_start_offset)
            # Only after its own file: the marks must not be ahead of it.
            marks.started(self.log_start_offset)
        whole = last is None or last.joins(self.log_end_offset)
        # A start that trusted a point behind missing rows would append there. The point also
        # vouches for the epochs before it.
        if whole and not self.epochs.dirty:
            point = self._end_point()
            assert point.offset == self.flushed_offset
            # In place: the file may be the only durable one with the newest rows' point, and a new
            # one without an fsync would replace it after a power failure.
            marks.move_point(point)
        if last is not None:
            last.save_index()

    def _end_point(self) -> RecoveryPoint:
        """Without a segment the point names the last one removed: if its removal failed, a start
        recognizes the file without a scan."""
        if self._segments.items:
            last = self._segments.items[-1]
            return RecoveryPoint(self.log_end_offset, last.base_offset, last.file.size)
        if self._last_given_up.offset == self.log_end_offset:
            return self._last_given_up
        return RecoveryPoint(self.log_end_offset)

    # --- appending: batches are stamped, written and indexed --------------------------------------
    def append(self, batches: Batches, leader_epoch: int, now: Now) -> int:
        """Stamp and write batches (writable views, validated); return the first row's offset."""
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
        """Write batches of another broker's log with their stamps; return the log's new end.

        They must begin at this log's end; the first batch of a log without rows may have the log
        start inside it. Their producers are recorded without the checks of a produce request.
        `arrived_us`: when late ones arrived at the leader; 0: there are none; -1: the leader did
        not send it.

        Raises as `append`, and CorruptLog: the offsets or epochs do not join up; nothing was
        appended.
        """
        self._check_writable()
        if not batches:
            return self.log_end_offset
        first = batches[0][0]
        offset = self.log_end_offset
        # An earlier append that found no space may have created the first segment already.
        fits = all(s.empty and s.base_offset == first.base_offset for s in self._segments.items)
        if fits and first.base_offset < offset < first.next_offset:
            offset = first.base_offset
        base_offset = offset
        total = 0
        epochs: list[tuple[int, int]] = []
        newest = self.epochs.newest
        for header, view in batches:
            # Checked for all before the first is written: an append is stored whole or not at all.
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
            # Its header was not read yet.
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
        # The first copied batch may begin below the log start, up to which all counts as flushed.
        flushed = min(self.flushed_offset, base_offset)
        segment = Segment.create(self._disk, self.directory, base_offset, now.wall_us, flushed)
        if last is not None and last.base_offset == base_offset:
            # After a power failure it has no row and no good header; the new segment takes its
            # name.
            assert last.end_offset == base_offset
            self._segments.take_last()
            self._unflushed.discard(last)
            self._indexes.discard(last)
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
        assert self._segments.items[-1] is segment, "only the last segment grows"
        assert epochs[0][1] == segment.end_offset, "the first epoch begins with the first row"
        segment.append(batches, end_offset, self.config.index_interval_bytes)
        segment.appended_mono_us = now.mono_us
        for epoch, offset in epochs:
            if epoch > self.epochs.newest:
                self.epochs.assign(epoch, offset)
        self.reader.log_end_offset = end_offset
        self._segments.grew(byte_count)
        self._changed = True
        self._unflushed.appended(segment, byte_count, now)

    def roll(self) -> None:
        """Finish the last segment. No I/O: the next flush writes its index and snapshot."""
        if self._segments.items and not self._segments.items[-1].finished:
            last = self._segments.items[-1]
            assert last.end_offset <= self.log_end_offset
            last.finished = True
            self._unflushed.rolled(last, self.log_end_offset, self._producers)
            self._indexes.finished(last)

    def roll_if_due(self, now: Now) -> None:
        last = self._segments.items[-1] if self._segments.items else None
        if last is None or last.created_us < 0 or last.empty:
            return
        if now.wall_us - last.created_us >= self._roll_us(last):
            self.roll()

    def _roll_us(self, segment: Segment) -> int:
        return self.config.roll_us(has_late=segment.arrived_us > 0)

    def clock_jumped(self, now: Now) -> bool:
        """Correct arrival times after the wall clock jumped ahead: it may have been behind, and
        with it the times of rows.

        The monotonic clock has the age of rows that this process appended. True if there is
        something new to flush.
        """
        first = self._opened_at
        changed = False
        for segment in self._segments.items:
            if segment.appended_mono_us >= 0 and segment.end_offset > first:
                arrived_us = max(0, now.wall_us - (now.mono_us - segment.appended_mono_us))
                segment.note_arrival(arrived_us, max(first, segment.base_offset))
                assert not segment.dropped
                if segment.has_unsaved_arrival and not self.fault:
                    changed = True
                    self._unflushed.header_changed(segment, now)
        self._changed = self._changed or changed
        return changed

    # --- trimming: the oldest rows are given up ---------------------------------------------------
    @property
    def start_saved(self) -> int:
        return self._start_saved

    def begin_trim(self, offset: int, *, promised: bool = True) -> TrimJob | None:
        """Begin to remove the rows below `offset`; None if there is nothing to do. One at a time.

        `promised`: a client is answered that the rows are gone. Retention decides again after a
        crash: if it frees no file, its start moves at once and is not written. Raises
        OffsetOutOfRange.
        """
        assert self._trim is None, "a trim is outstanding"
        assert self._truncation is None, "a truncation is outstanding"
        if not 0 <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond the end {self.log_end_offset}.")
        if offset <= self._start_saved:
            return None
        offset = max(offset, self.log_start_offset)
        assert self._start_saved < offset <= self.log_end_offset
        doomed = [s for s in self._segments.items if self._is_given_up(s, offset)]
        assert doomed == self._segments.items[: len(doomed)], "the oldest go, and none between"
        if not promised and not doomed:
            self._move_start(offset)
            return None
        snapshot = self._snapshot_before(doomed[-1].end_offset) if doomed else None
        unflushed: tuple[Segment, ...] = ()
        ahead = offset > self.flushed_offset if snapshot is None else snapshot.offset > offset
        if ahead and self._producers is not None and not self.fault:
            unflushed = self._unflushed.segments_all
        indexes = tuple(segment.index_path for segment in doomed)
        epochs = self.epochs.dump() if doomed and self._unflushed.has_unsaved(self.epochs) else None
        newest = self._segments.items[-1] if len(doomed) < len(self._segments.items) else None
        self._trim = TrimJob(
            self._disk,
            self.directory,
            self._unflushed.fsyncs,
            self._unflushed.marks,
            offset,
            indexes,
            unflushed,
            snapshot,
            epochs,
            newest,
        )
        return self._trim

    def begin_skip(
        self, offset: int, leader_snapshot: bytes = b"", now: Now | None = None
    ) -> TrimJob:
        """Begin to remove all rows and start at `offset`, beyond the log's end; a trim.

        For a follower whose leader has removed the rows from this end on; nothing may be appended
        until it is complete. `leader_snapshot`, of the producers at `offset`, replaces the states
        here, and is on the disk before the log begins there. Raises CorruptLog: it is no snapshot.
        """
        assert self._trim is None, "a trim is outstanding"
        assert self._truncation is None, "a truncation is outstanding"
        assert offset > self.log_end_offset, "an end that is reached is trimmed to"
        assert not self._skipping, "one trim at a time"
        self._check_writable()
        indexes = tuple(segment.index_path for segment in self._segments.items)
        snapshot = self._snapshot_before(self.log_end_offset)
        self._leader_producers = None
        if leader_snapshot and self._producers is not None:
            producers = self._producers.blank(None if now is None else now.mono_us)
            producers.restore(leader_snapshot)
            self._leader_producers = producers
            snapshot = SnapshotFile(offset, producers.capture())
        self._trim = TrimJob(
            self._disk,
            self.directory,
            self._unflushed.fsyncs,
            self._unflushed.marks,
            offset,
            indexes,
            snapshot=snapshot,
        )
        self._skipping = True
        return self._trim

    def complete_trim(self, job: TrimJob, result: TrimResult) -> RemoveFilesJob | None:
        """The new log start is on the disk: readers lose the rows below it.

        Returns the job that removes their files; None if there are none, or if they must stay for
        the next start, which reads the disk.
        """
        assert job is self._trim
        self._trim = None
        self._start_saved = max(self._start_saved, job.offset)
        if self._skipping:
            assert self.log_end_offset < job.offset
            self.reader.log_end_offset = self.flushed_offset = job.offset
            self.epochs.truncate_to(0)  # The epochs of the missing rows are unknown here.
            self._skipping = False
            if self._producers is not None and self._leader_producers is not None:
                self._producers.adopt(self._leader_producers)
        self._move_start(min(job.offset, self.log_end_offset))
        assert self._start_saved <= self.log_start_offset <= self.log_end_offset
        assert self.flushed_offset <= self.log_end_offset
        snapshot = job.snapshot
        if snapshot is not None and self.fault:
            # It may cover rows that are not on the disk: the files decide at the next start.
            return None
        if snapshot is not None and result.snapshot_saved:
            self._unflushed.snapshot_saved(snapshot.offset)
            snapshot = None
        elif snapshot is not None:
            self._unflushed.snapshot_lost(snapshot.offset)
        return self._detach_given_up(snapshot)

    def fail_trim(self, job: TrimJob, error: BaseException) -> None:
        """If the job had to flush rows, the flush may have failed, which is final."""
        assert job is self._trim
        assert self._start_saved < job.offset, "what is on the disk stays there"
        self._trim = None
        self._skipping = False
        if job.snapshot is not None:
            self._unflushed.snapshot_lost(job.snapshot.offset)
        if job.segments and not (isinstance(error, DiskFull) or out_of_descriptors(error)):
            self.fault = self.fault or f"flush failed: {error}"

    def _is_given_up(self, segment: Segment, start_offset: int) -> bool:
        """Return whether the file may be removed with the rows below `start_offset`.

        Not one without rows at the log's end: the next segment would have its name, and be removed.
        """
        next_name = segment.empty and segment.base_offset == self.log_end_offset
        return segment.end_offset <= start_offset and not next_name

    def _move_start(self, offset: int) -> None:
        assert offset <= self.log_end_offset, "a log never begins behind its end"
        if offset > self.log_start_offset:
            self.reader.start_at(offset)
            self._changed = True
        # A start that is not written is older again after a crash: the list covers its rows, too.
        self.epochs.trim(self._start_saved)

    def _detach_given_up(self, snapshot: SnapshotFile | None) -> RemoveFilesJob | None:
        paths: list[str] = []
        segments = self._segments.items
        byte_count, count = self._segments.byte_count, len(segments)
        while segments and self._is_given_up(segments[0], self.log_start_offset):
            segment = self._segments.take_first()
            self._discard(segment)
            size = segment.file.size
            self._last_given_up = RecoveryPoint(segment.end_offset, segment.base_offset, size)
            paths += [segment.index_path, segment.path]
        if not paths:
            return None
        assert len(paths) == 2 * (count - len(self._segments.items)), "a segment is two files"
        assert self._segments.byte_count <= byte_count, "files that go take their bytes with them"
        return RemoveFilesJob(
            self._disk,
            self.directory,
            tuple(paths),
            byte_count - self._segments.byte_count,
            count - len(self._segments.items),
            snapshot,
        )

    def _discard(self, segment: Segment) -> None:
        assert segment.dropped
        self._unflushed.discard(segment)
        self._indexes.discard(segment)

    def retention_target(
        self,
        now: Now,
        high_watermark: int,
        *,
        cold_ok: bool = True,
        just_read: JustRead = (),
        clock_us: int = 0,
    ) -> int:
        """Return where the log should start by its retention limits.

        `clock_us`: the wall clock, where that of `now` is held back because it is doubted. Raises
        NotResident only when not `cold_ok`.
        """
        return target(
            self, now, high_watermark, cold_ok=cold_ok, just_read=just_read, clock_us=clock_us
        )

    def _snapshot_before(self, end_offset: int) -> SnapshotFile | None:
        assert 0 <= end_offset <= self.log_end_offset
        if self._producers is None or self._unflushed.covered >= end_offset:
            return None
        return SnapshotFile(self.log_end_offset, self._producers.capture())


def target(
    log: Log,
    now: Now,
    high_watermark: int,
    *,
    cold_ok: bool,
    just_read: JustRead = (),
    clock_us: int = 0,
) -> int:
    if log.log_start_offset >= log.log_end_offset:
        return log.log_start_offset
    assert high_watermark >= 0
    by_time = _by_time(log, now, max(clock_us, now.wall_us), cold_ok, just_read)
    wanted = min(max(by_time, _by_size(log)), high_watermark)
    start = max(wanted, log.log_start_offset)
    assert start <= log.log_end_offset
    assert start <= max(high_watermark, log.log_start_offset), "rows that are not replicated stay"
    return start


def _by_time(log: Log, now: Now, clock_us: int, cold_ok: bool, just_read: JustRead) -> int:
    retention_ms = log.config.retention_ms
    if retention_ms < 0:
        return 0
    cutoff_us = now.wall_us - retention_ms * 1000
    oldest_us = log.reader.oldest_us(cold_ok=cold_ok, just_read=just_read)
    if oldest_us is not None and oldest_us >= cutoff_us:
        return 0
    found = log.reader.offset_for_timestamp(cutoff_us, cold_ok=cold_ok, just_read=just_read)
    end_offset = log.log_end_offset if found is None else found[0]
    return _by_arrival(log, Now(now.mono_us, clock_us), cutoff_us, end_offset)


def _by_arrival(log: Log, clock: Now, cutoff_us: int, end_offset: int) -> int:
    assert cutoff_us <= clock.wall_us
    for segment in log.reader.segments:
        if segment.base_offset >= end_offset:
            break
        # A damaged header may have held an arrival: assume now.
        if not segment.created_us and not segment.arrived_us:
            segment.note_arrival(clock.wall_us, segment.base_offset)
        assert segment.arrived_from >= segment.base_offset
        if segment.arrival_by(clock) >= max(cutoff_us, 1):
            return min(end_offset, segment.arrived_from)
    return end_offset


def _by_size(log: Log) -> int:
    limit = log.config.retention_bytes
    target = 0
    if limit >= 0:
        size = log.reader.size_bytes
        for segment in log.reader.segments[:-1]:
            if size <= limit:
                break
            size -= segment.file.size
            assert size >= 0, "the log counts the bytes of all segments"
            assert segment.end_offset >= target
            target = segment.end_offset
    return target
