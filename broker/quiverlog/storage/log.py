"""One partition's log: segments in a row, seen as one sequence of offsets.

Owns the order of things: stamp, write, index; which bytes a flush covers; what recovery keeps; what
retention takes. One thread uses it, except `SyncTicket.run`, which may run in another.

Invariants:
- log_start_offset <= flushed_offset' <= log_end_offset, where rows at or above flushed_offset may
  be lost by a power failure and rows below may not.
- An append is stored as a whole or not at all; after an error the log is as it was.
- A failed flush is final (`fault`): the kernel may have dropped the pages, a second fsync that
  succeeds would prove nothing. Only a restart, which reads the disk, helps.
- Offsets are never given out twice, except those of rows that were cut as a torn tail.

`append` writes at once: one pwrite for all batches of a call. Every segment but the last is sealed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.errors import CorruptLog, DiskFull, OffsetOutOfRange, QuiverlogError, StorageFault
from quiverlog.limits import (
    SEGMENT_ROWS_MAX,
)
from quiverlog.storage import checkpoint, retention
from quiverlog.storage.checkpoint import Producers, RecoveryPoint
from quiverlog.storage.disk import Disk, out_of_descriptors
from quiverlog.storage.epochs import EPOCHS_FILE, LeaderEpochs
from quiverlog.storage.flushing import Unflushed
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
from quiverlog.storage.recovery import RecoveryReport, find_segments, recover_segments
from quiverlog.storage.retention import RetentionResult
from quiverlog.storage.segment import SEGMENT_HEADER_BYTES, LoadedIndex, Segment
from quiverlog.storage.sync_ticket import SyncTicket
from quiverlog.types import Now

__all__ = ["Log", "LogConfig", "RecoveryReport", "RetentionResult", "SyncTicket"]


class Log:
    """See the module docstring. All attributes are for reading, except `config`."""

    __slots__ = (
        "_bases",
        "_changed",
        "_disk",
        "_oldest_us",
        "_producers",
        "_sealed",
        "_start_saved",
        "_trim",
        "_unflushed",
        "config",
        "directory",
        "epochs",
        "fault",
        "flushed_offset",
        "log_end_offset",
        "log_start_offset",
        "recovery",
        "segments",
        "size_bytes",
    )

    def __init__(self, disk: Disk, directory: str, config: LogConfig) -> None:
        self._disk = disk
        self.directory = directory
        self.config = config
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self._sealed = True
        self._unflushed = Unflushed(disk, directory)
        self._changed = False
        self._oldest_us: int | None = None
        self._producers: Producers | None = None
        self._start_saved = 0
        self._trim: TrimJob | None = None
        self.epochs = LeaderEpochs(lambda: self.log_end_offset)
        self.fault = ""
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.flushed_offset = 0
        self.size_bytes = 0
        self.recovery = RecoveryReport()

    @property
    def segment_count(self) -> int:
        """Files that hold rows."""
        return len(self.segments)

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
    ) -> Log:
        """Open the log in `directory`, which must exist; recover it unless `clean`.

        Args:
            clean: the whole broker was stopped in order. A log whose recovery point does not agree
                with its files is scanned all the same.
            producers: restored from the newest snapshot, then replayed with all later headers.

        Raises:
            UnsupportedFormat: a newer quiverlog wrote a file.
            OSError, DiskFull, StorageFault: the disk failed.
        """
        log = cls(disk, directory, config)
        names = disk.list(directory)
        log._unflushed.snapshots = checkpoint.snapshot_offsets(names)
        log._start_saved = checkpoint.load_log_start(disk, directory)
        log._unflushed.point = checkpoint.load_recovery_point(disk, directory)
        log.segments = find_segments(disk, directory, names)
        log._drop_given_up()
        intact = log._load_epochs(names)
        if not (clean and intact and log._open_clean()):
            log._recover(now)
        log._settle_start()
        log.size_bytes = sum(segment.file.size for segment in log.segments)
        log._producers = producers
        if producers is not None:
            log._restore_producers(producers)
        return log

    def _drop_given_up(self) -> None:
        """Files below the log start that a power failure brought back, perhaps not all of them."""
        while len(self.segments) > 1 and self.segments[0].end_offset <= self._start_saved:
            self._remove_files(self.segments.pop(0))

    def _load_epochs(self, names: list[str]) -> bool:
        if EPOCHS_FILE not in names:
            if self.segments:
                self._unflushed.point = RecoveryPoint()
            return not self.segments
        path = f"{self.directory}/{EPOCHS_FILE}"
        try:
            self.epochs.load(path, self._disk.read_file(path))
        except CorruptLog:
            self._unflushed.point = (
                RecoveryPoint()
            )  # Read them again from the batches, from the start on.
            return False
        return True

    def _open_clean(self) -> bool:
        """Take the recovery point's word for the end, if the files agree with it."""
        point = self._unflushed.point
        if not self.segments:
            self.log_end_offset = self.flushed_offset = max(point.offset, self._start_saved)
            return True
        last = self.segments[-1]
        if point.base_offset != last.base_offset or point.position != last.file.size:
            return False
        last.end_offset = point.offset
        self.log_end_offset = self.flushed_offset = point.offset
        self._sealed = False
        return True

    def _recover(self, now: Now) -> None:
        kept = list(self.segments)
        touched, self.recovery = recover_segments(
            self.segments, self._unflushed.point, self.epochs, now.wall_us
        )
        for segment in kept:
            if segment.dropped:
                self._remove_files(segment)
        end = self.segments[-1].end_offset if self.segments else 0
        end = max(end, self._start_saved, self._unflushed.point.offset)
        self.log_end_offset = end
        for segment in touched:
            segment.drop_index()
            # The last process may have died of a failed flush. What it wrote is in the cache, and
            # was just read there; the kernel may hold it for written and a bare sync do nothing.
            # In place, because the rows may be acknowledged: none may be missing for a moment.
            in_point = segment.base_offset == self._unflushed.point.base_offset
            position = self._unflushed.point.position if in_point else 0
            segment.rewrite(position if position > SEGMENT_HEADER_BYTES else 0)
            segment.file.sync()
        if touched:
            self._disk.sync_dir(self.directory)
        self.flushed_offset = end
        self.epochs.truncate_to(end + 1)
        # After damage at the very end the rest of the file is nothing to append to.
        self._sealed = not self.segments or bool(self.segments[-1].damages)
        if self.segments and self.segments[-1].end_offset != end:
            self._sealed = True
        self._changed = True

    def _settle_start(self) -> None:
        """Drop what the log start has passed; the bases for searching."""
        first = self.segments[0].base_offset if self.segments else self.log_end_offset
        self.log_start_offset = max(first, self._start_saved)
        if (
            len(self.segments) == 1
            and not self.segments[0].empty
            and self.segments[0].end_offset <= self._start_saved
        ):
            self._remove_files(self.segments.pop())
        if not self.segments or (
            # Its rows were given up and lost in a crash: a row at the end is not its first.
            self.segments[-1].empty and self.segments[-1].base_offset != self.log_end_offset
        ):
            self._sealed = True
        self._bases = [segment.base_offset for segment in self.segments]
        self.epochs.trim(self.log_start_offset)

    def _restore_producers(self, producers: Producers) -> None:
        """The newest snapshot that is whole and not ahead of the log; then the headers after it."""
        start = self.log_start_offset
        for offset in list(self._unflushed.snapshots):
            if offset <= self.log_end_offset:
                blob = checkpoint.load_snapshot(self._disk, self.directory, offset)
                try:
                    if blob is not None:
                        producers.restore(blob)
                        start = max(start, offset)
                        break
                except QuiverlogError:
                    producers.restore(b"")
            self._unflushed.snapshots.remove(offset)
            checkpoint.drop_snapshot(self._disk, self.directory, offset)
            # One that is ahead must not come back once other rows have taken its offsets.
            self._disk.sync_dir(self.directory)
        else:
            producers.restore(b"")
        for header in self.headers(start):
            if header.base_offset >= start:
                producers.replay(header)

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Headers of the batches from the one that holds `offset` on; damaged ones left out."""
        for segment in self.segments[self._segment_index(offset) :]:
            try:
                for _, header in segment.headers(offset):
                    yield header
            except CorruptLog as error:
                if error.message not in self.recovery.damages:  # Retention asks every round.
                    self.recovery.damages.append(error.message)

    # --- appending -----------------------------------------------------------------------------
    def append(
        self, batches: list[tuple[BatchHeader, memoryview]], leader_epoch: int, now: Now
    ) -> int:
        """Stamp and write batches (writable views, validated). Returns the first row's offset.

        Raises:
            DiskFull: nothing was appended.
            StorageFault: nothing was appended; an earlier flush failed, or the disk does.
        """
        if self.fault:
            raise StorageFault(f"{self.directory} takes no writes: {self.fault}.")
        base_offset = offset = self.log_end_offset
        total = 0
        for header, view in batches:
            stamp(view, 0, offset, leader_epoch)
            offset += header.row_count
            total += len(view)
        segment = self._writable(total, offset, now)
        segment.append(batches, offset, self.config.index_interval_bytes)
        if leader_epoch > self.epochs.newest:
            self.epochs.assign(leader_epoch, base_offset)
        self.log_end_offset = offset
        self.size_bytes += total
        self._changed = True
        self._unflushed.appended(segment, total, now)
        return base_offset

    def _writable(self, byte_count: int, end_offset: int, now: Now) -> Segment:
        """The segment that takes so many bytes: the last one, or a new one."""
        if not self._sealed:
            segment = self.segments[-1]
            config = self.config
            size = segment.file.size
            if segment.created_us < 0:
                segment.load()
            if size <= SEGMENT_HEADER_BYTES or (
                size + byte_count <= config.roll_bytes
                and now.wall_us - segment.created_us < config.segment_ms * 1000
                and end_offset - segment.base_offset <= SEGMENT_ROWS_MAX
            ):
                return segment
            self.roll()
        segment = Segment.create(self._disk, self.directory, self.log_end_offset, now.wall_us)
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        self.size_bytes += SEGMENT_HEADER_BYTES
        self._sealed = False
        self._unflushed.names_changed = True
        return segment

    def roll(self) -> None:
        """The next append begins a new segment. No I/O: the next flush writes what it leaves."""
        if not self._sealed:
            self._sealed = True
            self._unflushed.rolled(self.segments[-1], self.log_end_offset, self._producers)

    def roll_if_due(self, now: Now) -> None:
        """An idle topic's segment is finished when its time has come."""
        if self.segments:
            last = self.segments[-1]
            age_us = now.wall_us - last.created_us
            if last.created_us >= 0 and not last.empty and age_us >= self.config.segment_ms * 1000:
                self.roll()

    # --- flushing ------------------------------------------------------------------------------
    def begin_flush(self) -> FlushJob:
        """What a flush has to cover now. At most one at a time.

        Raises:
            StorageFault: an earlier flush failed.
        """
        if self.fault:
            raise StorageFault(f"{self.directory}: {self.fault}.")
        last = self.segments[-1] if self.segments else None
        return self._unflushed.begin(self.log_end_offset, last, self.epochs)

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

        At a roll, after 64 MiB and after 30 s, for every level of durability: it bounds what a
        start after a crash has to scan.
        """
        return None if self.fault else self._unflushed.due_us()

    def begin_sync(self) -> SyncTicket:
        """The older `begin_flush`. Raises StorageFault when an earlier flush failed."""
        return SyncTicket(self, self.begin_flush())

    def complete_sync(self, ticket: SyncTicket) -> int:
        """The older `complete_flush`. Raises StorageFault when the flush failed."""
        if self.fault:
            raise StorageFault(f"{self.directory}: {self.fault}.")
        return self.complete_flush(ticket.job, ticket.result)

    # --- reading -------------------------------------------------------------------------------
    def _segment_index(self, offset: int) -> int:
        return max(0, bisect_right(self._bases, offset) - 1)

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
            CorruptLog: the batch at `offset` is damaged.
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
        number = bisect_right(self._bases, offset) - 1
        views: list[memoryview] = []
        while number < len(self.segments) and offset < end_offset:
            segment = self.segments[number]
            if number < 0 or offset >= segment.end_offset:
                if views:
                    break
                raise self._missing(offset)
            try:
                if not cold_ok:
                    self._check_resident(segment, offset, bytes_max, end_offset)
                more = segment.read(offset, bytes_max, end_offset)
            except NotResident:
                if views:
                    break
                raise
            except CorruptLog:
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
        return views

    def _check_resident(
        self, segment: Segment, offset: int, bytes_max: int, end_offset: int
    ) -> None:
        """Raises NotResident when `read` would wait for the disk."""
        self._check_loaded(segment)
        position, size = segment.span(offset, bytes_max, end_offset)
        if not segment.file.resident(position, size):
            raise NotResident(ReadJob(self.directory, segment, segment.file, position, size))

    def _check_loaded(self, segment: Segment) -> None:
        if segment.index is None:
            raise NotResident(LoadIndexJob(self.directory, segment))

    def begin_load(self, offset: int | None = None) -> LoadIndexJob | None:
        """The load that an append (or a read at `offset`) would wait for; None: none."""
        if not self.segments or (offset is None and self._sealed):
            return None
        number = -1 if offset is None else self._segment_index(offset)
        segment = self.segments[number]
        return LoadIndexJob(self.directory, segment) if segment.index is None else None

    def complete_load(self, job: LoadIndexJob, result: LoadedIndex) -> None:
        """An index was loaded."""
        if not job.segment.dropped:
            job.segment.take_index(result)

    def complete_read(self, job: ReadJob, result: ReadResult) -> None:
        """A cold range was read. What the disk refused is verified before it is served."""
        if result.unreadable_from >= 0:
            job.segment.distrust(result.unreadable_from)

    def _missing(self, offset: int) -> CorruptLog:
        return CorruptLog(
            f"{self.directory}: row {offset} is missing.", file=self.directory, offset=offset
        )

    def offset_for_timestamp(self, at_us: int, *, cold_ok: bool = True) -> tuple[int, int] | None:
        """(offset, time) of the first row whose time is `at_us` or later, None when there is none.

        Raises:
            CorruptLog: damage lies in the way.
            NotResident: only when not `cold_ok`.
        """
        start = self.log_start_offset
        for segment in self.segments[self._segment_index(start) :]:
            if not cold_ok:
                self._check_loaded(segment)
            header = segment.first_at_or_after(at_us, start)
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
        for segment in self.segments[self._segment_index(start) :]:
            if start >= end:
                break
            if start >= segment.end_offset:
                continue
            if not cold_ok:
                self._check_loaded(segment)
            first = next(segment.headers(start), None)
            if first is None:
                start = segment.end_offset
                continue
            last_at, last = first
            if end < segment.end_offset:
                last_at, last = next(segment.headers(end - 1), first)
                stop = last_at + last.total_bytes
            else:
                stop = segment.file.size
            if bytes_max >= 0 and total + stop - first[0] > bytes_max:
                return self._bounded(segment, first, total, bytes_max, end)
            total += stop - first[0]
            start = segment.end_offset
        return end, total

    @staticmethod
    def _bounded(
        segment: Segment, first: tuple[int, BatchHeader], total: int, bytes_max: int, end: int
    ) -> tuple[int, int]:
        position, header = first
        one = position + header.total_bytes
        limit = position + bytes_max - total
        if limit < one:
            if total:
                return header.base_offset, total
            return min(end, header.next_offset), header.total_bytes
        at, offset = segment.last_boundary(limit, header.base_offset)
        return min(end, offset), total + at - position

    # --- giving up rows ------------------------------------------------------------------------
    def begin_trim(self, offset: int) -> TrimJob | None:
        """Give up the rows below `offset`; None when that was done before. One at a time.

        Raises:
            OffsetOutOfRange: beyond the log's end.
        """
        assert self._trim is None, "a trim is outstanding"
        if offset > self.log_end_offset or offset < 0:
            raise OffsetOutOfRange(f"offset {offset} is beyond the end {self.log_end_offset}.")
        if offset <= self._start_saved:
            return None
        offset = max(offset, self.log_start_offset)
        scratch = tuple(s.index_path for s in self.segments if s.end_offset <= offset)
        self._trim = TrimJob(self._disk, self.directory, offset, scratch)
        return self._trim

    def complete_trim(self, job: TrimJob) -> RemoveFilesJob | None:
        """The new log start is on the disk: the rows below it are gone for readers from here on.

        Returns the job that removes their files, None when there are none.
        """
        assert job is self._trim
        self._trim = None
        self._start_saved = max(self._start_saved, job.offset)
        offset = min(job.offset, self.log_end_offset)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._oldest_us = None
            self._changed = True
            self.epochs.trim(offset)
        return self._detach_below(offset)

    def fail_trim(self, job: TrimJob) -> None:
        """The trim's `run` raised: nothing changed."""
        assert job is self._trim
        self._trim = None

    def _detach_below(self, offset: int) -> RemoveFilesJob | None:
        paths: list[str] = []
        byte_count = self.size_bytes
        count = len(self.segments)
        while self.segments and self.segments[0].end_offset <= offset:
            if len(self.segments) == 1:
                self.roll()
            segment = self.segments.pop(0)
            del self._bases[0]
            segment.dropped = True
            self.size_bytes -= segment.file.size
            paths += [segment.index_path, segment.path]
            self._unflushed.forget(segment)
            segment.file.close()
        if not paths:
            return None
        return RemoveFilesJob(
            self._disk,
            self.directory,
            tuple(paths),
            byte_count - self.size_bytes,
            count - len(self.segments),
        )

    def retention_target(self, now: Now, high_watermark: int, *, cold_ok: bool = True) -> int:
        """Where the log should start: too old or too much goes. Decides only; see `begin_trim`.

        Raises:
            NotResident: only when not `cold_ok`.
        """
        if not cold_ok and self.segments:
            self._check_loaded(self.segments[0])
        return retention.target(self, now, high_watermark)

    def delete_before(self, offset: int) -> int:
        """Give up the rows below `offset`; durable when this returns. Returns the log start.

        Raises:
            OffsetOutOfRange: beyond the log's end.
            DiskFull, StorageFault: nothing changed.
        """
        if offset > self.log_end_offset or offset < 0:
            raise OffsetOutOfRange(f"offset {offset} is beyond the end {self.log_end_offset}.")
        if offset > self._start_saved:
            # Retention may have come further, unwritten: what is promised here is written down.
            offset = max(offset, self.log_start_offset)
            self._save_start(offset)
            self.move_start(offset)
        return self.log_start_offset

    def _save_start(self, offset: int) -> None:
        path = f"{self.directory}/{checkpoint.LOG_START_FILE}"
        self._disk.write_file_atomic(path, checkpoint.pack_log_start(offset))
        self._start_saved = offset

    def move_start(self, offset: int) -> tuple[int, int]:
        """Move the log start, drop the segments below: (segments, bytes). Not durable by itself.

        When files go, `log-start` is written first. A power failure may bring back some of them and
        not others: recovery must know that what is missing was given up, not lost. And when nothing
        is left, only that file knows which offset comes next.
        """
        if offset <= self.log_start_offset:
            return 0, 0
        count, byte_count = len(self.segments), self.size_bytes
        if self.segments and self.segments[0].end_offset <= offset > self._start_saved:
            self._save_start_first(offset)
        self.log_start_offset = offset
        self._oldest_us = None
        self._changed = True
        self.epochs.trim(offset)
        while self.segments and self.segments[0].end_offset <= offset:
            if len(self.segments) == 1:
                self.roll()
            self._drop_first()
        return count - len(self.segments), byte_count - self.size_bytes

    def _save_start_first(self, offset: int) -> None:
        """Write `log-start`; on a full disk, make room for it by what may go anyway."""
        while True:
            try:
                self._save_start(offset)
                return
            except DiskFull:
                if len(self.segments) < 2 or self.segments[0].end_offset > offset:
                    raise
                # One at a time leaves no gap, whatever the power does.
                self._drop_first()
                self.log_start_offset = max(self.log_start_offset, self._bases[0])
                self._disk.sync_dir(self.directory)

    def _drop_first(self) -> None:
        self.size_bytes -= self.segments[0].file.size
        self._remove_files(self.segments[0])
        del self.segments[0], self._bases[0]

    def _remove_files(self, segment: Segment) -> None:
        segment.dropped = True
        self._unflushed.forget(segment)
        segment.file.close()
        for path in (segment.index_path, segment.path):
            try:
                self._disk.remove(path)
            except FileNotFoundError:
                continue

    def apply_retention(self, now: Now, high_watermark: int) -> RetentionResult:
        """Take what is too old or too much, never at or above the high watermark.

        Raises:
            OSError, QuiverlogError: the disk failed; the next round tries again.
        """
        return retention.apply(self, now, high_watermark)

    def oldest_us(self) -> int | None:
        """Time of the first row kept; None when the log is empty."""
        if self._oldest_us is None:
            header = next(self.headers(self.log_start_offset), None)
            self._oldest_us = None if header is None else header.timestamp_max_us
        return self._oldest_us

    def truncate_to(self, offset: int) -> None:
        """Cut the rows from `offset` on; must be a batch's first row (or cuts the whole batch).

        Producers and epochs are rewound too. No ticket may be outstanding: its thread knows the
        files by name, and its offset would count rows as flushed that came later.
        """
        assert self._unflushed.outstanding is None, "a flush is outstanding"
        if offset >= self.log_end_offset:
            self.epochs.truncate_to(max(offset, self.log_end_offset))
            return
        offset = max(offset, self.log_start_offset)
        while self.segments and self.segments[-1].base_offset >= offset:
            segment = self.segments.pop()
            self._bases.pop()
            self.size_bytes -= segment.file.size
            self._remove_files(segment)
            self._sealed = True
            self.log_end_offset = segment.base_offset
        if self.segments and self.segments[-1].end_offset > offset:
            self._cut_last(offset)
        if not self.segments:
            self.log_end_offset = offset
            self._save_start(offset)
            self.log_start_offset = offset
        self.flushed_offset = min(self.flushed_offset, self.log_end_offset)
        self._oldest_us = None
        self._changed = True
        self.epochs.truncate_to(self.log_end_offset)
        self._save_after_cut()

    def _cut_last(self, offset: int) -> None:
        old = self.segments[-1]
        position, header = next(old.headers(offset))
        self.size_bytes -= old.file.size - position
        old.drop_index()
        old.file.truncate(position)
        old.file.sync()
        old.file.close()
        file = self._disk.open(old.path, create=False)
        fresh = Segment(self._disk, old.path, file, old.base_offset)
        fresh.end_offset = self.log_end_offset = header.base_offset
        self.segments[-1] = fresh
        unflushed = self._unflushed.segments
        self._unflushed.segments = [fresh if s is old else s for s in unflushed]
        self._sealed = False

    def _save_after_cut(self) -> None:
        """The recovery point and the snapshots must not be ahead of the log."""
        point = self._unflushed.point
        last = self.segments[-1].base_offset if self.segments else -1
        if point.offset > self.log_end_offset or point.base_offset > last:
            self._unflushed.point = point = RecoveryPoint()
            path = f"{self.directory}/{checkpoint.RECOVERY_FILE}"
            self._disk.write_file_atomic(path, checkpoint.pack_recovery_point(point))
        self._disk.write_file_atomic(f"{self.directory}/{EPOCHS_FILE}", self.epochs.dump())
        self.epochs.dirty = False
        if self._producers is not None:
            self._restore_producers(self._producers)

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
                segment.file.close()

    def _close_clean(self) -> None:
        if not self._changed and not self.epochs.dirty:
            return
        for segment in self._unflushed.segments:
            segment.file.sync()
        if self._unflushed.segments or self._unflushed.names_changed:
            self._disk.sync_dir(self.directory)
        self._unflushed.segments = []
        for path, summary, index in self._unflushed.indexes:
            self._disk.write_file_atomic(path, index.dump(summary), durable=False)
        self.flushed_offset = self.log_end_offset
        if self.epochs.dirty:
            path = f"{self.directory}/{EPOCHS_FILE}"
            self._disk.write_file_atomic(path, self.epochs.dump(), durable=bool(self.segments))
        if not self._changed:
            return
        if self.log_start_offset > self._start_saved:
            self._save_start(self.log_start_offset)
        point = RecoveryPoint(self.log_end_offset)
        if self.segments:
            last = self.segments[-1]
            last.save_index()
            point = RecoveryPoint(self.log_end_offset, last.base_offset, last.file.size)
        if self._producers is not None:
            checkpoint.save_snapshot(
                self._disk,
                self.directory,
                self.log_end_offset,
                self._producers.snapshot(),
                self._unflushed.snapshots,
            )
        # Not durable: it only counts if it agrees with the files, and old ones do no harm.
        path = f"{self.directory}/{checkpoint.RECOVERY_FILE}"
        self._disk.write_file_atomic(path, checkpoint.pack_recovery_point(point), durable=False)
