"""The part of a log that is not on the disk yet, and the jobs that write it.

Invariant: at most one FlushJob is outstanding; what it captured is its own until it is complete or
postponed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from quiverlog.limits import UNFLUSHED_MS_MAX
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.log.checkpoint import SNAPSHOTS_KEPT, Bounds, Producers, RecoveryPoint
from quiverlog.storage.log.jobs import FlushJob, FlushResult, IndexFile, MarkWrite, SnapshotFile
from quiverlog.storage.log.marks import Fsyncs, Marks
from quiverlog.storage.segment.epochs import LeaderEpochs
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import FlushedMark
from quiverlog.types import Now

__all__ = ["Unflushed"]

_CHECKPOINT_BYTES: Final = 8 * 1024 * 1024
"""A flush that ends this far after the recovery point moves it, so that a start after a crash scans
little."""


class Unflushed:
    """`covered`: offset of the newest snapshot that this process made durable. `point`,
    `snapshots`: those on the disk. `names_changed`: names of new files may not be durable."""

    __slots__ = (
        "_appended_us",
        "_directory",
        "_disk",
        "_finished",
        "_point_behind",
        "_point_due",
        "_rolled",
        "_since_us",
        "byte_count",
        "covered",
        "fsyncs",
        "indexes",
        "label_saved",
        "marks",
        "names_changed",
        "outstanding",
        "point",
        "segments",
        "snapshots",
        "snapshots_unsaved",
    )

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._appended_us = 0
        self._finished: Segment | None = None
        self._point_behind = False
        # A failed attempt clears it until the next append: a due time in the past would cause one
        # flush after the other.
        self._point_due = False
        self._rolled = False
        self._since_us: int | None = None
        self.byte_count = 0
        self.covered = -1
        self.fsyncs = Fsyncs()
        self.indexes: list[IndexFile] = []
        self.label_saved = False
        self.marks = Marks(disk, directory)
        self.names_changed = False
        self.outstanding: FlushJob | None = None
        self.point = RecoveryPoint()
        self.segments: list[Segment] = []
        self.snapshots: list[int] = []
        self.snapshots_unsaved: list[SnapshotFile] = []

    # --- what happened -------------------------------------------------------------------------
    def appended(self, segment: Segment, byte_count: int, now: Now) -> None:
        assert byte_count > 0
        assert not segment.dropped
        if not self.segments or self.segments[-1] is not segment:
            self.segments.append(segment)
        self.byte_count += byte_count
        self._appended_us = now.mono_us
        self._point_behind = self._point_due = True
        if self._since_us is None:
            self._since_us = now.mono_us

    def header_changed(self, segment: Segment, now: Now | None = None) -> None:
        """Note that a segment's header on the disk is out of date. `now`: flush it by itself."""
        assert not segment.dropped
        if segment not in self.segments:
            self.segments.append(segment)
            self.segments.sort(key=lambda one: one.base_offset)
        if self._since_us is None and now is not None:
            self._since_us = now.mono_us

    def rolled(self, segment: Segment, end_offset: int, producers: Producers | None) -> None:
        assert segment.finished
        assert segment.end_offset <= end_offset
        self._rolled = True
        self._finished = segment
        if segment.index is not None:
            self.indexes.append(IndexFile(segment.index_path, segment.summary, segment.index))
        if producers is not None:
            self.snapshot(end_offset, producers)

    def snapshot(self, end_offset: int, producers: Producers) -> None:
        unsaved = self.snapshots_unsaved
        assert not unsaved or unsaved[-1].offset <= end_offset, "the newest ones are kept"
        unsaved.append(SnapshotFile(end_offset, producers.capture()))
        del self.snapshots_unsaved[:-SNAPSHOTS_KEPT]

    def snapshot_saved(self, offset: int) -> None:
        assert offset >= 0
        self.snapshots = sorted({offset, *self.snapshots}, reverse=True)
        self.covered = max(self.covered, offset)

    def snapshot_lost(self, offset: int) -> None:
        """Note that a snapshot may be gone: it gave way to a log start on a full disk."""
        self.snapshots = [one for one in self.snapshots if one != offset]
        if self.covered == offset:
            self.covered = -1

    @property
    def segments_all(self) -> tuple[Segment, ...]:
        """Return the segments with unflushed bytes, with those of the flush under way: it may
        fail."""
        under_way = () if self.outstanding is None else self.outstanding.segments
        return tuple(dict.fromkeys((*under_way, *self.segments)))

    def has_unsaved(self, epochs: LeaderEpochs) -> bool:
        """Return whether epochs may not be on the disk: new ones, or those of a flush under way."""
        under_way = self.outstanding
        return epochs.dirty or (under_way is not None and under_way.epochs is not None)

    def discard(self, segment: Segment) -> None:
        assert segment.dropped, "jobs under way check the mark"
        if segment in self.segments:
            self.segments.remove(segment)
        if segment is self._finished:
            self._finished = None
        self.indexes = [file for file in self.indexes if file.path != segment.index_path]

    # --- flushing ------------------------------------------------------------------------------
    def begin(
        self,
        end_offset: int,
        last: Segment | None,
        epochs: LeaderEpochs,
        *,
        background: bool,
    ) -> FlushJob:
        assert self.outstanding is None, "a flush is outstanding"
        assert end_offset >= self.point.offset, "flushed rows are never given out again"
        assert not any(segment.dropped for segment in self.segments), "their files may be gone"
        assert last is None or last.end_offset <= end_offset
        point = self._next_point(end_offset, last, background)
        unsaved = (file.offset for file in self.snapshots_unsaved)
        kept = sorted({*unsaved, *self.snapshots}, reverse=True)
        job = FlushJob(
            self._disk,
            self._directory,
            self.fsyncs,
            self.marks,
            end_offset,
            tuple(self.segments),
            self.names_changed,
            epochs=epochs.dump() if epochs.dirty else None,
            newest_epoch=epochs.newest,
            point=point,
            indexes=tuple(self.indexes),
            snapshots=tuple(self.snapshots_unsaved),
            snapshots_doomed=tuple(kept[SNAPSHOTS_KEPT:]),
            mark=self._next_mark(end_offset, last),
            mark_before=self._mark_before(end_offset, last),
            label=not self.label_saved,
        )
        epochs.dirty = epochs.dirty and job.epochs is None
        self.segments = []
        self.names_changed = False
        self.indexes = []
        self.snapshots_unsaved = []
        self.byte_count = 0
        self._rolled = False
        self._since_us = None
        if point is not None:
            self._point_behind = False
        if point is not None or background:  # Without a segment there is nothing to point at.
            self._point_due = False
        self.outstanding = job
        return job

    def _next_point(
        self, end_offset: int, last: Segment | None, background: bool
    ) -> RecoveryPoint | None:
        if last is None or not self._point_behind or not last.joins(end_offset):
            return None
        point = RecoveryPoint(end_offset, last.base_offset, last.file.size)
        near = point.position - self.point.position < _CHECKPOINT_BYTES
        if near and not background and point.base_offset == self.point.base_offset:
            return None
        return point

    def _next_mark(self, end_offset: int, last: Segment | None) -> MarkWrite | None:
        if last is None or last not in self.segments or last.created_us <= 0:
            return None
        return MarkWrite(last, last.created_us, FlushedMark(end_offset, last.file.size))

    def _mark_before(self, end_offset: int, last: Segment | None) -> MarkWrite | None:
        before = self._finished
        if before is None or before is last or last not in self.segments:
            return None
        self._finished = None
        # Its header, which would be written anew, is damaged or was not read.
        if before.created_us <= 0:
            return None
        return MarkWrite(before, before.created_us, FlushedMark(end_offset, before.file.size))

    def complete(self, job: FlushJob, result: FlushResult, epochs: LeaderEpochs) -> None:
        assert job is self.outstanding
        assert result.point in (None, job.point), "the job writes the point that it was given"
        assert job.epochs is not None or result.epochs_saved, "there was nothing to save"
        self.outstanding = None
        self.label_saved = self.label_saved or job.label
        if job.epochs is not None:
            epochs.dirty = epochs.dirty or not result.epochs_saved
            if result.epochs_saved:
                epochs.saved = job.newest_epoch
        if result.point is not None:
            self.point = result.point
        elif job.point is not None:
            self._point_behind = True
        if result.snapshots_saved:
            self.snapshots = [o for o in self.snapshots if o not in job.snapshots_doomed]
            for file in job.snapshots:
                self.snapshot_saved(file.offset)

    def postpone(self, job: FlushJob, epochs: LeaderEpochs) -> None:
        """Take the job's work back: it attempted nothing."""
        assert job is self.outstanding
        self.outstanding = None
        mine = [s for s in job.segments if not s.dropped and s not in self.segments]
        self.segments = mine + self.segments  # The older ones first, as they were appended.
        self.names_changed = self.names_changed or job.names_changed
        epochs.dirty = epochs.dirty or job.epochs is not None
        self._point_behind = self._point_behind or job.point is not None
        self._point_due = self._point_due or job.point is not None
        self._rolled = self._rolled or bool(job.indexes)
        if self._finished is None and job.mark_before is not None:
            self._finished = job.mark_before.segment
        self.indexes = [*job.indexes, *self.indexes]
        unsaved = [*job.snapshots, *self.snapshots_unsaved]
        assert all(a.offset <= b.offset for a, b in pairwise(unsaved)), "the newest ones are kept"
        self.snapshots_unsaved = unsaved
        del self.snapshots_unsaved[:-SNAPSHOTS_KEPT]

    def truncated(self, end_offset: int, point: RecoveryPoint) -> None:
        assert self.outstanding is None
        assert point.offset <= end_offset
        self.point = point
        self._finished = None
        start, flushed = self.marks.bounds
        assert point.offset <= flushed, "a point vouches for flushed rows only"
        self.marks.lowered(point, Bounds(start, min(flushed, end_offset)))
        self.snapshots = [offset for offset in self.snapshots if offset <= end_offset]
        if self.covered > end_offset:
            self.covered = -1
        kept = [file for file in self.snapshots_unsaved if file.offset <= end_offset]
        self.snapshots_unsaved = kept
        self.indexes = [f for f in self.indexes if f.summary.end_offset <= end_offset]
        self._point_behind = self._point_due = True

    def due_us(self, bytes_max: int) -> int | None:
        if self.outstanding is not None:
            return None
        if self._rolled or self.byte_count >= bytes_max:
            return 0
        if self._since_us is not None:
            return self._since_us + UNFLUSHED_MS_MAX * 1000
        if self._point_due:
            return self._appended_us + UNFLUSHED_MS_MAX * 1000
        return None
