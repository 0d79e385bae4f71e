"""One partition's log: segments in a row, seen as one sequence of offsets.

Owns the order of things: stamp, write, index; when a segment is finished; what is readable.
Flushing (flushing.py), opening (opening.py), truncation (truncation.py) and what a reader gets of
one segment (reading.py) have files of their own. One thread uses a log; what may block is a job
(jobs.py) that is begun here, run elsewhere, and completed here.

Invariants:
- log_start_offset <= log_end_offset, flushed_offset <= log_end_offset: rows at or above
  flushed_offset may be lost by a power failure, rows below may not.
- An append is stored as a whole or not at all; after any error the log is as it was.
- A failed flush is final (`fault`): the kernel may have dropped the pages, a second fsync that
  succeeds would prove nothing. Only a restart, which reads the disk, helps.
- Offsets are never given out twice, except those of rows that were cut: as a torn tail, or by
  truncation.
- Every segment but the last is finished: it takes no more appends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.errors import (
    BatchTooLarge,
    CorruptLog,
    OffsetOutOfRange,
    StorageFault,
)
from quiverlog.limits import SEGMENT_BYTES_MAX, SEGMENT_ROWS_MAX
from quiverlog.storage import checkpoint, opening, reading, retention
from quiverlog.storage.checkpoint import Producers, RecoveryPoint
from quiverlog.storage.disk import Disk, out_of_descriptors, short_name
from quiverlog.storage.epochs import LeaderEpochs
from quiverlog.storage.flushing import Unflushed
from quiverlog.storage.index_cache import IndexCache
from quiverlog.storage.jobs import (
    FlushJob,
    FlushResult,
    LoadIndexJob,
    NotResident,
    ReadJob,
    ReadResult,
    RemoveFilesJob,
    TrimJob,
)
from quiverlog.storage.log_config import LogConfig
from quiverlog.storage.recovery import RecoveryReport
from quiverlog.storage.resync import EPOCHS_ALL
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import SEGMENT_HEADER_BYTES, LoadedIndex
from quiverlog.storage.segments import Segments
from quiverlog.storage.truncation import TruncateJob, TruncateResult
from quiverlog.types import Now

__all__ = ["Log", "LogConfig", "RecoveryReport"]

Batches = Sequence[tuple[BatchHeader, memoryview]]
"""Whole batches: the header, and all bytes."""


class Log:
    """See the module docstring. All attributes are for reading, except `config`."""

    __slots__ = (
        "_changed",
        "_disk",
        "_indexes",
        "_oldest_us",
        "_producers",
        "_segments",
        "_start_saved",
        "_trim",
        "_truncation",
        "_unflushed",
        "config",
        "directory",
        "epochs",
        "fault",
        "flushed_offset",
        "log_end_offset",
        "log_start_offset",
        "recovery",
    )

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, indexes: IndexCache | None
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.config = config
        self._segments = Segments()
        self._indexes = IndexCache() if indexes is None else indexes
        self._unflushed = Unflushed(disk, directory)
        self._changed = False
        self._oldest_us: int | None = None
        self._producers: Producers | None = None
        self._start_saved = 0
        self._trim: TrimJob | None = None
        self._truncation: TruncateJob | None = None
        self.epochs = LeaderEpochs(lambda: self.log_end_offset)
        self.fault = ""
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.flushed_offset = 0
        self.recovery = RecoveryReport()

    @property
    def segments(self) -> list[Segment]:
        """Oldest first; for reading."""
        return self._segments.items

    @property
    def segment_count(self) -> int:
        """Files that hold rows."""
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of these files."""
        return self._segments.byte_count

    # --- opening -------------------------------------------------------------------------------
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
    ) -> Log:
        """Open the log in `directory`, which must exist; recover it unless `clean`. In any thread.

        Args:
            clean: the whole broker was stopped in order. A log whose recovery point does not agree
                with its files is scanned all the same.
            producers: restored from the newest snapshot, then replayed with all later headers.
            epoch_newest: no row can have been written under a newer leader epoch.
            indexes: bounds the memory of indexes, together with other logs.

        Raises:
            UnsupportedFormat: a newer quiverlog wrote a file.
            OSError, DiskFull, StorageFault: the disk failed.
        """
        log = cls(disk, directory, config, indexes)
        found = opening.open_files(
            disk, directory, log.epochs, clean=clean, now=now, epoch_newest=epoch_newest
        )
        log._segments = Segments(found.segments)
        log._unflushed.point = found.point
        log._unflushed.snapshots = found.snapshots
        log._start_saved = found.start_saved
        log._changed = found.changed
        log.recovery = found.report
        log.log_start_offset = found.log_start_offset
        log.log_end_offset = log.flushed_offset = found.log_end_offset
        log._producers = producers
        log._restore_producers()
        return log

    def _restore_producers(self) -> None:
        if self._producers is not None:
            opening.restore_producers(
                self._disk,
                self.directory,
                self._producers,
                self._unflushed.snapshots,
                self._segments,
                self.log_start_offset,
                self.log_end_offset,
                self.recovery.damages,
            )

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Headers of the batches from the one that holds `offset` on; damaged ones left out."""
        return self._segments.headers(offset, self.recovery.damages)

    # --- appending -----------------------------------------------------------------------------
    def append(self, batches: Batches, leader_epoch: int, now: Now) -> int:
        """Stamp and write batches (writable views, validated). Returns the first row's offset.

        Raises:
            BatchTooLarge: more rows or bytes than a segment may hold; nothing was appended.
            DiskFull: nothing was appended.
            StorageFault: nothing was appended; an earlier flush failed, or the disk does.
        """
        self._check_writable()
        base_offset = offset = self.log_end_offset
        total = 0
        for header, view in batches:
            offset += header.row_count
            total += len(view)
        segment = self._writable(base_offset, total, offset, now)
        offset = base_offset
        for header, view in batches:
            stamp(view, 0, offset, leader_epoch)
            offset += header.row_count
        self._write(segment, batches, offset, total, now, [(leader_epoch, base_offset)])
        return base_offset

    def append_copied(self, batches: Batches, now: Now) -> int:
        """Write batches as another broker's log has them: stamps stay. Returns the log's new end.

        They must go on where this log ends. The first batch of a log without rows may begin before
        the log start, when that lies inside of it.

        Raises: as `append`, and
            CorruptLog: the offsets or epochs do not join up; nothing was appended.
        """
        self._check_writable()
        if not batches:
            return self.log_end_offset
        first = batches[0][0]
        offset = self.log_end_offset
        if not self.segments and first.base_offset < offset < first.next_offset:
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
        segment = self._writable(base_offset, total, offset, now)
        self._write(segment, batches, offset, total, now, epochs)
        return offset

    def _check_writable(self) -> None:
        if self.fault:
            raise StorageFault(f"{short_name(self.directory)} takes no writes: {self.fault}.")
        assert self._truncation is None, "a truncation is outstanding"

    def _writable(self, base_offset: int, byte_count: int, end_offset: int, now: Now) -> Segment:
        """The segment that takes these rows: the last one, or a new one.

        Raises: as `append`, before anything is written.
        """
        rows = end_offset - base_offset
        if rows > SEGMENT_ROWS_MAX or byte_count > SEGMENT_BYTES_MAX - SEGMENT_HEADER_BYTES:
            raise BatchTooLarge(
                f"one append of {rows} rows and {byte_count} bytes; a segment takes"
                f" {SEGMENT_ROWS_MAX} rows and {SEGMENT_BYTES_MAX} bytes."
            )
        last = self.segments[-1] if self.segments else None
        if last is not None and not last.finished:
            if last.created_us < 0:
                last.load()
            size = last.file.size
            if end_offset - last.base_offset <= SEGMENT_ROWS_MAX and (
                last.empty
                or (
                    size + byte_count <= self.config.roll_bytes
                    and now.wall_us - last.created_us < self.config.segment_ms * 1000
                )
            ):
                return last
            self.roll()
        segment = Segment.create(self._disk, self.directory, base_offset, now.wall_us)
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

    # --- flushing ------------------------------------------------------------------------------
    def begin_flush(self, *, background: bool = False) -> FlushJob:
        """What a flush has to cover now. At most one at a time.

        Args:
            background: nobody waits for it, so it also writes the recovery point.

        Raises:
            StorageFault: an earlier flush failed.
        """
        if self.fault:
            raise StorageFault(f"{short_name(self.directory)}: {self.fault}.")
        last = self.segments[-1] if self.segments else None
        return self._unflushed.begin(self.log_end_offset, last, self.epochs, background=background)

    def complete_flush(self, job: FlushJob, result: FlushResult) -> int:
        """The flush is done: returns the new flushed offset."""
        self._unflushed.complete(job, result, self.epochs)
        self.flushed_offset = max(self.flushed_offset, min(job.end_offset, self.log_end_offset))
        return self.flushed_offset

    def fail_flush(self, job: FlushJob, error: BaseException) -> bool:
        """The flush raised `error`. True: a write or fsync failed, which is final for the log.

        False: there was no descriptor, so nothing was tried; flush again later.
        """
        self._unflushed.postpone(job, self.epochs)
        if not out_of_descriptors(error):
            self.fault = f"flush failed: {error}"
        return bool(self.fault)

    def flush_due_us(self) -> int | None:
        """When a flush in the background is due (`Now.mono_us`): None for never, 0 for at once.

        At a roll, after 64 MiB and after 30 s, for every level of durability, and once more when
        a log has become idle: it bounds what a start after a crash has to scan.
        """
        return None if self.fault else self._unflushed.due_us()

    # --- reading -------------------------------------------------------------------------------
    def read(
        self, offset: int, *, bytes_max: int, end_offset: int, cold_ok: bool = True
    ) -> list[memoryview]:
        """Whole batches from the one that holds `offset` on, none that begins at `end_offset`.

        At least one batch, more while they fit `bytes_max`. Views hold whole batches in order; the
        last view holds exactly one. Empty when `offset` is the end.

        Args:
            cold_ok: the disk may be waited for.

        Raises:
            OffsetOutOfRange: not between log start and log end.
            CorruptLog: the batch at `offset` is damaged or missing. `offset` in its details is the
                first bad row, `end_offset` the next good one.
            NotResident: only when not `cold_ok`.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not in {self.log_start_offset} to {self.log_end_offset}.",
                log_start_offset=self.log_start_offset,
                high_watermark=self.log_end_offset,
            )
        end_offset = min(end_offset, self.log_end_offset)
        if offset >= end_offset:
            return []
        number = self._segments.number_of(offset)
        views: list[memoryview] = []
        while number < len(self.segments) and offset < end_offset:
            if number < 0 or offset >= self.segments[number].end_offset:
                if views:
                    break
                raise self._missing(number)
            segment = self.segments[number]
            try:
                self._make_ready(segment, (offset, bytes_max, end_offset), cold_ok)
                more = reading.read(segment, offset, bytes_max, end_offset)
            except (NotResident, CorruptLog):
                if views:
                    break
                raise
            byte_count = sum(map(len, more))
            if views and byte_count > bytes_max:
                break
            views += more
            bytes_max -= byte_count
            if bytes_max <= 0:
                break
            offset = BatchHeader.unpack(views[-1]).next_offset
            number += offset >= segment.end_offset
        if not views:
            raise self._missing(len(self.segments) - 1)
        return views

    def _make_ready(
        self, segment: Segment, wanted: tuple[int, int, int] | None, cold_ok: bool
    ) -> None:
        """Load the index. Raises NotResident when that, or reading `wanted`, would wait.

        Args:
            wanted: (offset, bytes_max, end_offset).
        """
        if segment.index is None:
            if not cold_ok:
                raise NotResident(LoadIndexJob(self.directory, segment))
            segment.load()
        if segment.finished and not segment.cached:
            self._indexes.finished(segment)
        if not cold_ok and wanted is not None:
            position, size = reading.span(segment, *wanted)
            if not segment.file.resident(position, size):
                raise NotResident(ReadJob(self.directory, segment, segment.file, position, size))

    def begin_load(self, offset: int | None = None) -> LoadIndexJob | None:
        """The load that an append (or a read at `offset`) would wait for; None: none."""
        if not self.segments or (offset is None and self.segments[-1].finished):
            return None
        segment = self.segments[-1] if offset is None else self._segments.holding(offset)[0]
        return LoadIndexJob(self.directory, segment) if segment.index is None else None

    def complete_load(self, job: LoadIndexJob, result: LoadedIndex) -> None:
        """An index was loaded."""
        if not job.segment.dropped:
            job.segment.take_index(result)
            if result.header_damage and result.header_damage not in self.recovery.damages:
                self.recovery.damages.append(result.header_damage)

    def complete_read(self, job: ReadJob, result: ReadResult) -> None:
        """A cold range was read. What the disk refused is verified before it is served."""
        if result.unreadable_from >= 0:
            job.segment.distrust()

    def _missing(self, number: int) -> CorruptLog:
        """The error for rows between segment `number` and the next one: their file is lost."""
        first, end = self.log_start_offset, self.log_end_offset
        if number >= 0:
            first = max(first, self.segments[number].end_offset)
        if number + 1 < len(self.segments):
            end = self.segments[number + 1].base_offset
        name = short_name(self.directory)
        return CorruptLog(
            f"{name}: rows {first} to {end} are missing.", file=name, offset=first, end_offset=end
        )

    def offset_for_timestamp(self, at_us: int, *, cold_ok: bool = True) -> tuple[int, int] | None:
        """(offset, time) of the first row whose time is `at_us` or later, None when there is none.

        Raises:
            CorruptLog: damage lies in the way.
            NotResident: only when not `cold_ok`.
        """
        start = self.log_start_offset
        for segment in self._segments.holding(start):
            self._make_ready(segment, None, cold_ok)
            header = reading.first_at_or_after(segment, at_us, start)
            if header is not None:
                return max(header.base_offset, start), header.timestamp_max_us
        return None

    def bytes_between(
        self, start: int, end: int, bytes_max: int = -1, *, cold_ok: bool = True
    ) -> tuple[int, int]:
        """(end offset, bytes) of the whole batches that hold the rows [start, end).

        Args:
            bytes_max: stop at the batch end that so many bytes reach, after one batch at least.

        Raises:
            OffsetOutOfRange, CorruptLog, NotResident: as `read`.
        """
        if not self.log_start_offset <= start <= end <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{start} to {end} is not in {self.log_start_offset} to {self.log_end_offset}."
            )
        total = 0
        for segment in self._segments.holding(start):
            if start >= end:
                break
            if start >= segment.end_offset:
                continue
            self._make_ready(segment, None, cold_ok)
            stop, offset, done = reading.measure(segment, start, end, bytes_max, total)
            total += stop
            if done:
                return offset, total
            start = offset
        return end, total

    # --- giving up rows ------------------------------------------------------------------------
    def begin_trim(self, offset: int, *, promised: bool = True) -> TrimJob | None:
        """Give up the rows below `offset`; None when there is nothing to do. One at a time.

        Args:
            promised: somebody will be told that the rows are gone. Otherwise (retention, which
                judges again after a crash) a start that frees no file is not written down: it moves
                at once, and there is no job.

        Raises:
            OffsetOutOfRange: beyond the log's end.
        """
        assert self._trim is None, "a trim is outstanding"
        if not 0 <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond the end {self.log_end_offset}.")
        if offset <= self._start_saved:
            return None
        offset = max(offset, self.log_start_offset)
        doomed = [s.index_path for s in self.segments if s.end_offset <= offset]
        if not promised and not doomed:
            self._move_start(offset)
            return None
        self._trim = TrimJob(self._disk, self.directory, offset, tuple(doomed))
        return self._trim

    def complete_trim(self, job: TrimJob) -> RemoveFilesJob | None:
        """The new log start is on the disk: the rows below it are gone for readers from here on.

        Returns the job that removes their files, None when there are none.
        """
        assert job is self._trim
        self._trim = None
        self._start_saved = max(self._start_saved, job.offset)
        self._move_start(min(job.offset, self.log_end_offset))
        return self._detach_given_up()

    def fail_trim(self, job: TrimJob) -> None:
        """The trim's `run` raised: nothing changed."""
        assert job is self._trim
        self._trim = None

    def _move_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._oldest_us = None
            self._changed = True
            self.epochs.trim(offset)

    def _detach_given_up(self) -> RemoveFilesJob | None:
        """Take the segments below the log start out; their files are still to be removed."""
        paths: list[str] = []
        byte_count, count = self.size_bytes, len(self.segments)
        while self.segments and self.segments[0].end_offset <= self.log_start_offset:
            segment = self._segments.take_first()
            self._forget(segment)
            paths += [segment.index_path, segment.path]
        if not paths:
            return None
        return RemoveFilesJob(
            self._disk,
            self.directory,
            tuple(paths),
            byte_count - self.size_bytes,
            count - len(self.segments),
        )

    def _forget(self, segment: Segment) -> None:
        assert segment.dropped
        self._unflushed.forget(segment)
        self._indexes.forget(segment)

    def retention_target(self, now: Now, high_watermark: int, *, cold_ok: bool = True) -> int:
        """Where the log should start: too old or too much goes. Decides only; see `begin_trim`.

        Raises:
            NotResident: only when not `cold_ok`.
        """
        return retention.target(self, now, high_watermark, cold_ok=cold_ok)

    def oldest_us(self, *, cold_ok: bool = True) -> int | None:
        """Time of the first row kept; None when the log is empty."""
        if self._oldest_us is None:
            if self.segments:
                first = self._segments.holding(self.log_start_offset)[0]
                self._make_ready(first, None, cold_ok)
            header = next(self.headers(self.log_start_offset), None)
            self._oldest_us = None if header is None else header.timestamp_max_us
        return self._oldest_us

    # --- truncating ----------------------------------------------------------------------------
    def begin_truncate(self, offset: int) -> TruncateJob | None:
        """Cut the rows from `offset` on; None when there are none. No flush may be outstanding.

        The job knows the files by name, and nothing may be appended until it is complete. A batch
        goes whole, so the log may end before `offset`.
        """
        assert self._unflushed.outstanding is None, "a flush is outstanding"
        assert self._truncation is None, "a truncation is outstanding"
        if offset >= self.log_end_offset:
            self.epochs.truncate_to(max(offset, self.log_end_offset))
            return None
        self._truncation = TruncateJob(
            self._disk, self.directory, offset, self.log_end_offset, self.epochs.dump()
        )
        return self._truncation

    def complete_truncate(self, job: TruncateJob, result: TruncateResult) -> int:
        """The rows are cut; returns the log's new end. Views of them stay what they were."""
        assert job is self._truncation
        self._truncation = None
        end = result.end_offset
        assert self.log_start_offset <= end <= self.log_end_offset
        while self.segments and self.segments[-1].base_offset > result.last_base:
            self._forget(self._segments.take_last())
        if result.file is not None:
            old = self._segments.take_last()
            self._forget(old)
            fresh = Segment(self._disk, old.path, result.file, old.base_offset)
            fresh.end_offset = end
            self._segments.add(fresh)
        if not self.segments:
            self._start_saved = max(self._start_saved, end)
            self._move_start(end)
        self.log_end_offset = end
        self.flushed_offset = min(self.flushed_offset, end)
        self.epochs.truncate_to(end)
        self.epochs.dirty = False
        self._unflushed.truncated(end, result.point)
        self._oldest_us = None
        self._changed = True
        self._restore_producers()
        return end

    def fail_truncate(self, job: TruncateJob) -> None:
        """The truncation's `run` raised: half of it may be done, so the log takes no writes."""
        assert job is self._truncation
        self._truncation = None
        self.fault = "a truncation failed half way"

    # --- closing -------------------------------------------------------------------------------
    def close(self, *, clean: bool) -> None:
        """Let go of the files. `clean`: flush and write what lets the next start skip the scan.

        Raises:
            OSError, QuiverlogError: not clean; the files are let go all the same.
        """
        try:
            if clean and not self.fault:
                self._close_clean()
        finally:
            for segment in self.segments:
                self._indexes.forget(segment)
                segment.file.close()

    def _close_clean(self) -> None:
        if not self._changed and not self.epochs.dirty:
            return
        if self._producers is not None and self._changed:
            self._unflushed.snapshot(self.log_end_offset, self._producers)
        last = self.segments[-1] if self.segments else None
        if last is not None and self._changed:
            last.save_index()
        job = self.begin_flush()
        self.complete_flush(job, job.run())
        if self._changed and self.log_start_offset > self._start_saved:
            checkpoint.save_log_start(self._disk, self.directory, self.log_start_offset)
        if self._changed:
            point = RecoveryPoint(self.log_end_offset)
            if last is not None:
                point = RecoveryPoint(self.log_end_offset, last.base_offset, last.file.size)
            # Not durable: it only counts if it agrees with the files, and old ones do no harm.
            path = f"{self.directory}/{checkpoint.RECOVERY_FILE}"
            data = checkpoint.pack_recovery_point(point)
            self._disk.write_file_atomic(path, data, durable=False)
