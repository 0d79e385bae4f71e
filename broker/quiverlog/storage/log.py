"""One partition's log: segments in a row, seen as one sequence of offsets.

Owns what a log does beside reading (readable_log.py), appending (appendable_log.py) and giving up
rows (trimmable_log.py): opening and closing, a flush and a truncation. These two wait for the disk,
as a trim does, so they are jobs (jobs.py): begun here, run elsewhere, completed here. One thread
uses a log.

Invariants:
- log_start_offset <= log_end_offset, flushed_offset <= log_end_offset: rows at or above
  flushed_offset may be lost by a power failure, rows below may not.
- A failed flush is final (`fault`): the kernel may have dropped the pages, a second fsync that
  succeeds would prove nothing. Only a restart, which reads the disk, helps.
- Offsets are never given out twice, except those of rows that were cut: as a torn tail, or by
  truncation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from quiverlog.errors import QuiverlogError, StorageFault
from quiverlog.storage import checkpoint, opening
from quiverlog.storage.checkpoint import Bounds, Producers, RecoveryPoint
from quiverlog.storage.disk import Disk, out_of_descriptors, short_name, what_failed
from quiverlog.storage.index_cache import IndexCache
from quiverlog.storage.jobs import FlushJob, FlushResult, RemoveFilesJob
from quiverlog.storage.log_config import LogConfig
from quiverlog.storage.producer_replay import restore_producers
from quiverlog.storage.reading_jobs import LoadIndexJob
from quiverlog.storage.recovery import RecoveryReport
from quiverlog.storage.resync import EPOCHS_ALL
from quiverlog.storage.segment import Segment
from quiverlog.storage.segments import Segments
from quiverlog.storage.trimmable_log import TrimmableLog
from quiverlog.storage.truncation import TruncateJob, TruncateResult
from quiverlog.types import NO_EPOCH, Now

__all__ = ["Log", "LogConfig", "RecoveryReport"]

_HALF_CUT: Final = "a truncation failed half way"


class Log(TrimmableLog):
    """See the module docstring. All attributes are for reading, except `config`."""

    __slots__ = ()

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
        """The log of a directory that holds none: what `open` finds there, without any I/O."""
        log = cls(disk, directory, config, indexes)
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

        Args:
            clean: the whole broker was stopped in order. A log whose recovery point does not agree
                with its files is scanned all the same.
            producers: restored from the newest snapshot, then replayed with all later headers.
            epoch_newest: no row can have been written under a newer leader epoch.
            indexes: bounds the memory of indexes, together with other logs.
            known: what the log held when it was last closed, if that was written down elsewhere.

        Raises:
            UnsupportedFormat: a newer quiverlog wrote a file.
            CorruptLog: its rows are of newer epochs than `epoch_newest`; they stay as they are.
            OSError, DiskFull, StorageFault: the disk failed.
        """
        log = cls(disk, directory, config, indexes)
        found = opening.open_files(
            disk,
            directory,
            log.epochs,
            clean=clean,
            now=now,
            epoch_newest=epoch_newest,
            known=known,
        )
        assert all(segment.finished for segment in found.segments[:-1])
        assert not found.segments or found.segments[-1].end_offset <= found.log_end_offset
        log._segments = Segments(found.segments)
        log._unflushed.point = found.point
        log._unflushed.marks = found.marks
        log._unflushed.snapshots = found.snapshots
        log._start_saved = found.start_saved if found.start_durable else 0
        log._changed = found.changed
        log.recovery = found.report
        log.log_start_offset = found.log_start_offset
        log.log_end_offset = log.flushed_offset = log._opened_at = found.log_end_offset
        log._producers = producers
        log._restore_producers(found.given_up)
        for segment in log.segments:
            if segment.index_note and segment.index_note not in log.recovery.notes:
                log.recovery.notes.append(segment.index_note)
            segment.release_index()  # Nobody has asked for its rows yet, and no cache counts it.
        return log

    def distrust(self, offset: int) -> None:
        """Somebody was given other bytes for rows from `offset` on than were written: verify them.

        Also those that this process has written, whose bytes it need not look at otherwise.
        """
        for segment in self._segments.holding(offset)[:1]:
            assert not segment.dropped
            segment.distrust()

    def _restore_producers(self, given_up: Sequence[Segment] = ()) -> None:
        for segment in given_up:
            assert segment.end_offset <= self.log_start_offset, "no file that is read goes"
        if self._producers is not None:
            known = list(self._unflushed.snapshots)
            if known and (load := self.begin_load()) is not None:  # It leads to the rows' headers.
                self.complete_load(load, load.run())
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
            # A start that finds `log-start` again takes them.
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
        """Make the job that flushes all that is unflushed now. At most one is outstanding.

        Args:
            background: nobody waits for it, so it also writes the recovery point.

        Raises:
            StorageFault: an earlier flush failed.
        """
        assert self._truncation is None, "a truncation is outstanding"
        if self.fault:
            raise StorageFault(f"{short_name(self.directory)}: {self.fault}.")
        assert self.flushed_offset <= self.log_end_offset
        last = self.segments[-1] if self.segments else None
        return self._unflushed.begin(self.log_end_offset, last, self.epochs, background=background)

    def complete_flush(self, job: FlushJob, result: FlushResult) -> int:
        """The flush is done: returns the new flushed offset.

        Raises:
            StorageFault: an earlier job failed at an fsync. The kernel tells of lost pages once, so
                that this one succeeded proves nothing; see `fail_flush`.
        """
        if self.fault:
            raise StorageFault(f"{short_name(self.directory)}: {self.fault}.")
        self._unflushed.complete(job, result, self.epochs)
        assert job.end_offset <= self.log_end_offset, "a truncation waits for the flush"
        self.flushed_offset = max(self.flushed_offset, job.end_offset)
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

        Never while a truncation is outstanding: it replaces the files that a flush would sync.

        At a roll, after 64 MiB and after 30 s, for every level of durability, and once more when
        a log has become idle: it bounds what a start after a crash has to scan.
        """
        if self.fault or self._truncation is not None:
            return None
        return self._unflushed.due_us()

    @property
    def saved_epoch(self) -> int:
        """The newest leader epoch of the list that is on the disk; NO_EPOCH without one."""
        return self.epochs.saved

    @property
    def is_tail_bare(self) -> bool:
        """True when no row is of the newest leader epoch of the list."""
        newest, start_offset = self.epochs.latest()
        return newest != NO_EPOCH and start_offset >= self.log_end_offset

    def agreed(self, epoch: int, start_offset: int) -> bool:
        """The log is that of this epoch's leader up to `start_offset`, with which it began to lead.

        True when the list is to be brought to the disk, so that it says so after a crash as well.
        Rows of the epoch say it themselves.
        """
        assert epoch >= 0
        if start_offset != self.log_end_offset or start_offset <= self.log_start_offset:
            return False
        assert epoch >= self.epochs.newest, "leader epochs never fall along a log"
        self.epochs.assign(epoch, start_offset)
        return self.saved_epoch < epoch

    # --- truncating ----------------------------------------------------------------------------
    def begin_truncate(self, offset: int) -> TruncateJob | None:
        """Cut the rows from `offset` on; None when there are none.

        No flush and no trim may be outstanding. The job knows the files by name: nothing may be
        appended, flushed or given up until it is complete. A batch goes whole, so the log may end
        before `offset`.
        """
        assert self._unflushed.outstanding is None, "a flush is outstanding"
        assert self._truncation is None, "a truncation is outstanding"
        assert self._trim is None, "a trim is outstanding"
        assert offset >= 0
        if offset >= self.log_end_offset:
            self.epochs.truncate_to(max(offset, self.log_end_offset))
            return None
        self._truncation = TruncateJob(
            self._disk,
            self.directory,
            offset,
            self.log_end_offset,
            self.epochs.dump(),
            self.log_start_offset,
            None if self._producers is None else self._producers.blank(),
            self.segments[0].base_offset if self.segments else self.log_end_offset,
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
            fresh.appended_mono_us = old.appended_mono_us
            fresh.note_arrival(old.arrived_us, old.arrived_from)
            self._segments.add(fresh)
        self._unflushed.truncated(end, result.point)
        if not self.segments:
            self._start_saved = max(self._start_saved, end)
            self._unflushed.marks.started(end)
            self._move_start(end)
        else:
            self.segments[-1].end_at(end)
        self.log_end_offset = end
        self.flushed_offset = min(self.flushed_offset, end)
        self._opened_at = min(self._opened_at, end)
        self.epochs.truncate_to(end)
        self.epochs.dirty = False  # The job has written the list, cut like this one.
        self.epochs.saved = self.epochs.newest
        self._oldest_us = None
        self._changed = True
        assert self.log_start_offset <= self.log_end_offset
        assert self._unflushed.point.offset <= self.flushed_offset
        assert not self.segments or self.segments[-1].end_offset <= end
        if self.segments and result.last_index is not None:
            # An append needs it, and must not wait for the disk.
            self.complete_load(LoadIndexJob(self.directory, self.segments[-1]), result.last_index)
        if self._producers is not None and result.producers is not None:
            self._unflushed.snapshots = list(result.snapshots)
            self.recovery.damages += [d for d in result.damages if d not in self.recovery.damages]
            self.recovery.notes += result.notes
            self._producers.adopt(result.producers)
        return end

    def fail_truncate(self, job: TruncateJob) -> None:
        """The truncation's `run` raised: half of it may be done, so the log takes no writes."""
        assert job is self._truncation
        self._truncation = None
        self.fault = _HALF_CUT

    def truncate_again(self, job: TruncateJob) -> None:
        """Before a job that has failed for want of room or descriptors is run again."""
        assert self._truncation is None
        assert self.fault == _HALF_CUT, "nothing was written since, or read into memory"
        self.fault = ""
        self._truncation = job

    # --- closing -------------------------------------------------------------------------------
    @property
    def is_as_left(self) -> bool:
        """True when the files say all already: a clean close has nothing to write."""
        return not (self._changed or self.epochs.dirty or self.fault)

    def forget_indexes(self) -> None:
        """Take this log out of the cache that all logs share: `close` may run in a job."""
        for segment in self.segments:
            self._indexes.forget(segment)

    def close(self, *, clean: bool) -> None:
        """Let go of the files. `clean`: flush, and write what lets the next start skip the scan.

        What cannot be written of the latter makes the next start scan this log, no more.

        Raises:
            OSError, QuiverlogError: not clean; the files are let go all the same.
        """
        try:
            if clean and not self.fault:
                self._close_clean()
        finally:
            self.forget_indexes()  # Nothing is left to do there when a job closes the log.
            for segment in self.segments:
                segment.file.close()

    def _close_clean(self) -> None:
        if self.is_as_left:
            return
        if not self.segments and not self.log_end_offset and not self._unflushed.snapshots:
            # Never written: a start finds as much in no files, and its epoch in the metadata.
            # Thousands of such logs would take a stop several fsyncs each.
            return
        if self._producers is not None and self._changed:
            self._unflushed.snapshot(self.log_end_offset, self._producers)
        job = self.begin_flush(background=True)
        self.complete_flush(job, job.run())
        assert self.flushed_offset == self.log_end_offset, "a clean log is on the disk"
        if self._changed:
            # The rows are safe. A full disk, say, makes the next start longer, and not unclean.
            with contextlib.suppress(OSError, QuiverlogError):
                self._save_what_shortens_the_start()

    def _save_what_shortens_the_start(self) -> None:
        """Each of these can be rebuilt, and says what it covers."""
        last = self.segments[-1] if self.segments else None
        marks = self._unflushed.marks
        if self.log_start_offset > self._start_saved:
            checkpoint.save_log_start(self._disk, self.directory, self.log_start_offset)
            marks.started(self.log_start_offset)
        whole = last is None or last.joins(self.log_end_offset)
        # A start that believed a point behind missing rows would append there. The point stands for
        # the epochs before it as well.
        if whole and not self.epochs.dirty:
            point = self._end_point()
            assert point.offset == self.flushed_offset
            # In place: the file may be the only durable one that tells of the newest rows, and a
            # new one that no fsync has covered would take its place after a power failure.
            marks.move_point(point)
        if last is not None:
            last.save_index()

    def _end_point(self) -> RecoveryPoint:
        """The recovery point at the log's end.

        When no segment is left, the point names the last one that was given up: its file may still
        be there, because the removal failed, and then a start knows it without a scan.
        """
        if self.segments:
            last = self.segments[-1]
            return RecoveryPoint(self.log_end_offset, last.base_offset, last.file.size)
        if self._last_given_up.offset == self.log_end_offset:
            return self._last_given_up
        return RecoveryPoint(self.log_end_offset)
