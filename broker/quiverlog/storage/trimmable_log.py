"""A log's start: giving up the oldest rows, and the files that have none but such.

Owns the two steps of a trim, which are jobs (jobs.py), and which rows are too old or too many. The
new log start is on the disk before the rows disappear for readers; files go after that, when what
is known of the producers of their batches is on the disk, too.

Invariants:
- log_start_offset never falls, and is at most log_end_offset.
- At most one trim is outstanding.
- No file that is about to go has the name of one that may be begun.
"""

from __future__ import annotations

from quiverlog.errors import DiskFull, OffsetOutOfRange
from quiverlog.storage import retention
from quiverlog.storage.appendable_log import AppendableLog
from quiverlog.storage.checkpoint import Producers, RecoveryPoint
from quiverlog.storage.disk import Disk, out_of_descriptors
from quiverlog.storage.index_cache import IndexCache
from quiverlog.storage.jobs import RemoveFilesJob, SnapshotFile, TrimJob, TrimResult
from quiverlog.storage.log_config import LogConfig
from quiverlog.storage.reading_jobs import JustRead
from quiverlog.storage.segment import Segment
from quiverlog.types import Now

__all__ = ["TrimmableLog"]


class TrimmableLog(AppendableLog):
    """See the module docstring."""

    __slots__ = ("_last_given_up", "_start_saved", "_told_producers", "_trim")

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, indexes: IndexCache | None
    ) -> None:
        super().__init__(disk, directory, config, indexes)
        self._start_saved = 0
        self._last_given_up = RecoveryPoint()
        """The end of the newest segment that was given up."""
        self._trim: TrimJob | None = None
        self._told_producers: Producers | None = None

    @property
    def start_saved(self) -> int:
        """The log start that is on the disk: rows below it never come back."""
        return self._start_saved

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
        assert self._truncation is None, "a truncation is outstanding"
        if not 0 <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond the end {self.log_end_offset}.")
        if offset <= self._start_saved:
            return None
        offset = max(offset, self.log_start_offset)
        assert self._start_saved < offset <= self.log_end_offset
        doomed = [s for s in self.segments if self._is_given_up(s, offset)]
        assert doomed == self.segments[: len(doomed)], "the oldest files go, and none between"
        if not promised and not doomed:
            self._move_start(offset)
            return None
        snapshot = self._snapshot_before(doomed[-1].end_offset) if doomed else None
        unflushed: tuple[Segment, ...] = ()
        ahead = offset > self.flushed_offset if snapshot is None else snapshot.offset > offset
        if ahead and self._producers is not None and not self.fault:
            unflushed = self._unflushed.segments_all
        indexes = tuple(segment.index_path for segment in doomed)
        epochs = self.epochs.dump() if doomed and self._unflushed.owes(self.epochs) else None
        newest = self.segments[-1] if len(doomed) < len(self.segments) else None
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

    def begin_skip(self, offset: int, told: bytes = b"", now: Now | None = None) -> TrimJob:
        """Give up all rows and begin at `offset`, beyond the log's end. One at a time, as a trim.

        For a copy of a log whose rows from this end on were given up. Nothing may be appended until
        it is complete. The rows between cannot tell of their producers: `told`, a snapshot of whom
        the log has rows below `offset`, takes the place of what is known here, and is on the disk
        before the log begins there. Without it what is known here stays.

        Raises:
            CorruptLog: `told` is no snapshot.
        """
        assert self._trim is None, "a trim is outstanding"
        assert self._truncation is None, "a truncation is outstanding"
        assert offset > self.log_end_offset, "an end that is reached is trimmed to"
        assert not self._skipping, "one trim at a time"
        self._check_writable()
        indexes = tuple(segment.index_path for segment in self.segments)
        snapshot = self._snapshot_before(self.log_end_offset)
        self._told_producers = None
        if told and self._producers is not None:
            producers = self._producers.blank(None if now is None else now.mono_us)
            producers.restore(told)
            self._told_producers = producers
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
        """The new log start is on the disk: the rows below it are gone for readers from here on.

        Returns the job that removes their files, None when there are none, or when they must stay
        for the next start, which reads the disk.
        """
        assert job is self._trim
        self._trim = None
        self._start_saved = max(self._start_saved, job.offset)
        if self._skipping:
            assert self.log_end_offset < job.offset
            self.log_end_offset = self.flushed_offset = job.offset
            self.epochs.truncate_to(0)  # Nobody here knows where they ended.
            self._skipping = False
            if self._producers is not None and self._told_producers is not None:
                self._producers.adopt(self._told_producers)
        self._move_start(min(job.offset, self.log_end_offset))
        assert self._start_saved <= self.log_start_offset <= self.log_end_offset
        assert self.flushed_offset <= self.log_end_offset
        snapshot = job.snapshot
        if snapshot is not None and self.fault:
            return None  # It may speak of rows that are on no disk: the files tell what is true.
        if snapshot is not None and result.snapshot_saved:
            self._unflushed.snapshot_saved(snapshot.offset)
            snapshot = None
        elif snapshot is not None:
            self._unflushed.snapshot_lost(snapshot.offset)
        return self._detach_given_up(snapshot)

    def fail_trim(self, job: TrimJob, error: BaseException) -> None:
        """The trim's `run` raised `error`: the log starts where it did.

        A trim that had rows to flush may have failed at that, which is final, as in a flush.
        """
        assert job is self._trim
        assert self._start_saved < job.offset, "what is on the disk stays there"
        self._trim = None
        self._skipping = False
        if job.snapshot is not None:
            self._unflushed.snapshot_lost(job.snapshot.offset)
        if job.segments and not (isinstance(error, DiskFull) or out_of_descriptors(error)):
            self.fault = self.fault or f"flush failed: {error}"

    def _is_given_up(self, segment: Segment, start_offset: int) -> bool:
        """True when the file may go with the rows below `start_offset`.

        Not one without rows at the log's end: the next segment would have its name, and the job
        that removes the old file would remove the new one.
        """
        next_name = segment.empty and segment.base_offset == self.log_end_offset
        return segment.end_offset <= start_offset and not next_name

    def _move_start(self, offset: int) -> None:
        assert offset <= self.log_end_offset, "a log never begins behind its end"
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._oldest_us = None
            self._changed = True
            self.epochs.trim(offset)

    def _detach_given_up(self, snapshot: SnapshotFile | None) -> RemoveFilesJob | None:
        """Take the segments below the log start out; their files are still to be removed."""
        paths: list[str] = []
        byte_count, count = self.size_bytes, len(self.segments)
        while self.segments and self._is_given_up(self.segments[0], self.log_start_offset):
            segment = self._segments.take_first()
            self._forget(segment)
            size = segment.file.size
            self._last_given_up = RecoveryPoint(segment.end_offset, segment.base_offset, size)
            paths += [segment.index_path, segment.path]
        if not paths:
            return None
        assert len(paths) == 2 * (count - len(self.segments)), "a segment is two files"
        assert self.size_bytes <= byte_count, "files that go take their bytes with them"
        return RemoveFilesJob(
            self._disk,
            self.directory,
            tuple(paths),
            byte_count - self.size_bytes,
            count - len(self.segments),
            snapshot,
        )

    def _forget(self, segment: Segment) -> None:
        assert segment.dropped
        self._unflushed.forget(segment)
        self._indexes.forget(segment)

    def retention_target(
        self,
        now: Now,
        high_watermark: int,
        *,
        cold_ok: bool = True,
        just_read: JustRead = (),
        clock_us: int = 0,
    ) -> int:
        """Decide where the log should start: too old or too much goes. See `begin_trim`.

        Args:
            clock_us: the wall clock, where `now` has one that is behind because it is doubted.

        Raises:
            NotResident: only when not `cold_ok`.
        """
        return retention.target(
            self, now, high_watermark, cold_ok=cold_ok, just_read=just_read, clock_us=clock_us
        )

    def _snapshot_before(self, end_offset: int) -> SnapshotFile | None:
        """The snapshot to make durable before files with rows below `end_offset` go, or None."""
        assert 0 <= end_offset <= self.log_end_offset
        if self._producers is None or self._unflushed.covered >= end_offset:
            return None
        return SnapshotFile(self.log_end_offset, self._producers.capture())
