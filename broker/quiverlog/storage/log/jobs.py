"""Work of a log that may block: made on the loop, run off it, completed on the loop again.

A job captures all it needs when it is made. Jobs of a log share `Marks` and `Fsyncs` (marks.py).
Of what the loop changes, `run` reads only `Segment.dropped`, which is set once, an arrival time and
the size of a file, which only grow; it records in the segment that the arrival time is saved. The
log that made a job takes its result (`complete_...`) or its error (`fail_...`).

Jobs with the same `key` run one after another, but a flush may overtake reads and trims
(node/runtime/jobs.py): a job must not overwrite newer files with older contents (`TrimJob`, its
epochs).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from quiverlog.errors import CorruptLog, DiskFull, QuiverlogError, StorageFault
from quiverlog.storage.disk.disk import Disk, out_of_descriptors
from quiverlog.storage.log import checkpoint
from quiverlog.storage.log.checkpoint import RecoveryPoint
from quiverlog.storage.log.files import sync_partition_file
from quiverlog.storage.log.marks import Fsyncs, Marks
from quiverlog.storage.segment.epochs import EPOCHS_FILE, LeaderEpochs
from quiverlog.storage.segment.index import IndexSummary, SparseIndex
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import FlushedMark
from quiverlog.types import NO_EPOCH

__all__ = [
    "FlushJob",
    "FlushResult",
    "IndexFile",
    "Job",
    "MarkWrite",
    "RemoveFilesJob",
    "SnapshotFile",
    "TrimJob",
    "TrimResult",
]


class Job(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def kind(self) -> str:
        """For metrics and log lines."""

    def run(self) -> object:
        """Do the work, once."""


# --- flushing ---------------------------------------------------------------------------------
class IndexFile(NamedTuple):
    path: str
    summary: IndexSummary
    entries: SparseIndex


class SnapshotFile(NamedTuple):
    """The states of the partition's producers when the log ended at `offset`.

    `encode` is called in the job: there may be ten thousand producers.
    """

    offset: int
    encode: Callable[[], bytes]


class MarkWrite(NamedTuple):
    segment: Segment
    created_us: int
    mark: FlushedMark


class FlushResult(NamedTuple):
    epochs_saved: bool = True
    snapshots_saved: bool = True
    point: RecoveryPoint | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FlushJob:
    """Bring everything below `end_offset` to the disk; then what shortens the next start.

    `label`: flush `partition.json` first. Acknowledged rows without it would pass for those of a
    topic that was created anew under their name while this broker was down; at their creation
    thousands of directories would cost an fsync each.

    `mark`: written after the rows, durable with the next flush: that costs no fsync, and a start
    after a crash finds all flushes but the last one (adr/0017). `mark_before`: the same for the
    segment before, once when rows follow.

    Mark and recovery point cover all rows below `end_offset`: earlier flushes, each completed
    before the next begins, covered those not in `segments`, and `fsyncs` raises once any has
    failed.
    """

    kind: ClassVar[str] = "flush"
    disk: Disk
    key: str
    fsyncs: Fsyncs
    marks: Marks
    end_offset: int
    segments: tuple[Segment, ...]
    names_changed: bool
    epochs: bytes | None = None
    newest_epoch: int = NO_EPOCH
    point: RecoveryPoint | None = None
    indexes: tuple[IndexFile, ...] = ()
    snapshots: tuple[SnapshotFile, ...] = ()
    snapshots_doomed: tuple[int, ...] = ()
    mark: MarkWrite | None = None
    mark_before: MarkWrite | None = None
    label: bool = False

    def run(self) -> FlushResult:
        """Raise OSError or StorageFault; `Log.fail_flush` decides whether that is a fault."""
        assert self.mark is None or self.mark.segment in self.segments, "a mark of unflushed bytes"
        assert self.mark is None or self.mark.mark.offset == self.end_offset
        assert self.point is None or self.point.offset == self.end_offset
        if self.label:
            sync_partition_file(self.disk, self.key)
        for segment in self.segments:
            self.marks.write_arrival(segment)  # Before the fsync, which then makes it durable.
            self.fsyncs.rows(segment)
        if self.names_changed:
            self.fsyncs.names(self.disk, self.key)
        marked = self._write_mark()
        result = self._save_notes()
        self.marks.write()
        if marked and self.point is not None and result.point is None:
            # The recovery point on the disk may be far behind: the mark takes its place.
            assert self.mark is not None
            self.fsyncs.rows(self.mark.segment)
        return result._replace(snapshots_saved=self._save_what_can_be_rebuilt())

    def _write_mark(self) -> bool:
        """Write the marks; errors are ignored: a start uses the older mark."""
        self.marks.flushed(self.end_offset)
        if self.mark_before is not None:
            self.marks.write_header(*self.mark_before)
        return self.mark is not None and self.marks.write_header(*self.mark)

    def _save_what_can_be_rebuilt(self) -> bool:
        """Snapshots are flushed: the files with their batches may be removed."""
        try:
            for path, summary, index in self.indexes:
                # Without an fsync: it can be rebuilt, and has the bytes it covers.
                self.disk.write_file_atomic(path, index.dump(summary), durable=False)
            for file in self.snapshots:
                checkpoint.write_snapshot(self.disk, self.key, file.offset, file.encode())
            for offset in self.snapshots_doomed:
                checkpoint.drop_snapshot(self.disk, self.key, offset)
            return True
        except (OSError, QuiverlogError) as error:
            if not (isinstance(error, DiskFull) or out_of_descriptors(error)):
                raise
            return False

    def _save_notes(self) -> FlushResult:
        epochs_saved = self.epochs is None
        try:
            if self.epochs is not None:
                path = f"{self.key}/{EPOCHS_FILE}"
                # First: the recovery point vouches for the epochs before it.
                self.disk.write_file_atomic(path, self.epochs)
                epochs_saved = True
            if self.point is not None:
                assert self.point.offset <= self.marks.bounds.end_offset
                data = self.marks.contents(self.point)
                path = f"{self.key}/{checkpoint.RECOVERY_FILE}"
                self.disk.write_file_atomic(path, data)
                self.marks.saved(self.point, data)
                return FlushResult(epochs_saved, point=self.point)
        except (OSError, QuiverlogError) as error:
            if not (isinstance(error, DiskFull) or out_of_descriptors(error)):
                raise
        return FlushResult(epochs_saved)


# --- giving up rows ---------------------------------------------------------------------------
class TrimResult(NamedTuple):
    snapshot_saved: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TrimJob:
    """Write the log start `offset`.

    Before files are removed, the producer states from their batches are made durable: these batches
    can still be sent again. So are the leader epochs that only they have.

    `scratch`: indexes that can be removed to free space. `segments`: unflushed rows that are
    trimmed, or that the snapshot covers. `newest`: the segment whose header gets the start, too
    (adr/0023).
    """

    kind: ClassVar[str] = "trim"
    disk: Disk
    key: str
    fsyncs: Fsyncs
    marks: Marks
    offset: int
    scratch: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    snapshot: SnapshotFile | None = None
    epochs: bytes | None = None
    newest: Segment | None = None

    def run(self) -> TrimResult:
        assert self.offset > 0
        assert self.newest is None or self.newest.index_path not in self.scratch
        scratch = list(self.scratch)
        self._flush()
        self._save_epochs()
        # Before the log start: after it the batches of these producers may be removed.
        saved = self._save_snapshot(scratch)
        try:
            self._save_start(scratch)
        except DiskFull:
            if self.snapshot is None or not saved:
                raise
            # The log start comes first: only with it can anything be removed.
            checkpoint.drop_snapshot(self.disk, self.key, self.snapshot.offset)
            saved = False
            self._save_start(scratch)
        self.marks.started(self.offset)  # Durable in `log-start` now: the hints may follow.
        if self.newest is not None:
            self.marks.write_start(self.newest)
        self.marks.write()
        return TrimResult(saved)

    def _flush(self) -> None:
        """Flush the rows that the snapshot covers: a start drops a snapshot that is ahead of the
        log."""
        try:
            for segment in self.segments:
                if not segment.dropped:
                    self.fsyncs.rows(segment)
        except DiskFull as error:  # As final as any failed fsync, unlike a snapshot without room.
            raise StorageFault(f"flush failed: {error}") from error
        if self.segments:
            self.fsyncs.names(self.disk, self.key)

    def _save_epochs(self) -> None:
        """Write the epochs, unless a flush that was begun later has written a newer list."""
        if self.epochs is None:
            return
        path = f"{self.key}/{EPOCHS_FILE}"
        mine, stored = LeaderEpochs(lambda: 0), LeaderEpochs(lambda: 0)
        mine.load(path, self.epochs)
        with contextlib.suppress(FileNotFoundError, CorruptLog):
            stored.load(path, self.disk.read_file(path))
        if stored.newest <= mine.newest:
            with contextlib.suppress(DiskFull):
                self.disk.write_file_atomic(path, self.epochs)

    def _save_snapshot(self, scratch: list[str]) -> bool:
        if self.snapshot is None:
            return False
        blob = self.snapshot.encode()
        while True:
            try:
                checkpoint.write_snapshot(self.disk, self.key, self.snapshot.offset, blob)
                return True
            except DiskFull:
                if not scratch:
                    return False
                _remove(self.disk, scratch.pop())

    def _save_start(self, scratch: list[str]) -> None:
        while True:
            try:
                checkpoint.save_log_start(self.disk, self.key, self.offset)
                return
            except DiskFull:
                if not scratch:
                    raise
                # The segments of these are about to go, and an index can be rebuilt until then.
                _remove(self.disk, scratch.pop())


@dataclass(frozen=True, slots=True, eq=False)
class RemoveFilesJob:
    """Remove files without readable rows; what cannot be removed goes at the next start.

    `snapshot` takes the first space that is freed; a crash before that loses the producers of the
    removed files.
    """

    kind: ClassVar[str] = "remove files"
    disk: Disk
    key: str
    paths: tuple[str, ...]
    byte_count: int = 0
    segment_count: int = 0
    snapshot: SnapshotFile | None = None

    def run(self) -> None:
        assert self.paths
        inside = f"{self.key}/"
        assert all(path.startswith(inside) for path in self.paths), "files of this log only"
        unsaved = self.snapshot is not None and not self._save_snapshot()
        for path in self.paths:
            _remove(self.disk, path)
            unsaved = unsaved and not self._save_snapshot()

    def _save_snapshot(self) -> bool:
        assert self.snapshot is not None
        try:
            blob = self.snapshot.encode()
            checkpoint.write_snapshot(self.disk, self.key, self.snapshot.offset, blob)
        except DiskFull:
            return False
        return True


def _remove(disk: Disk, path: str) -> None:
    try:
        disk.remove(path)
    except FileNotFoundError:
        return
