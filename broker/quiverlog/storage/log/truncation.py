"""Truncating a log, so that a crash at any step leaves the old log or the new one.

Owns the steps, which read only the files; an interrupted truncation is found by its mark
(`truncate-to`) and finished by the next start:

1. The cut is found, and the mark with it is on the disk.
2. What must never be ahead of the rows is lowered, durably: recovery point, epochs, snapshots.
3. Files of removed rows are removed. The file that keeps some of its rows is not truncated: readers
   may have its bytes mapped. The rest is written to a new file that takes the name.
4. The mark is removed, durably, before anything is appended: a restart that finds the mark would
   remove the new rows, too.

A batch is removed whole: a cut inside one cuts before it, and so does one inside damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple

from quiverlog.errors import CorruptLog, UnsupportedFormat
from quiverlog.storage.disk.byte_source import FileBytes
from quiverlog.storage.disk.disk import Disk, File
from quiverlog.storage.log import checkpoint
from quiverlog.storage.log.checkpoint import (
    TRUNCATION_FILE,
    Bounds,
    Producers,
    RecoveryPoint,
    StoredPoint,
    restore_producers,
)
from quiverlog.storage.log.jobs import SnapshotFile
from quiverlog.storage.segment.epochs import EPOCHS_FILE, LeaderEpochs
from quiverlog.storage.segment.names import own_offset
from quiverlog.storage.segment.scan import Damage, Found, Torn, scan
from quiverlog.storage.segment.segment import Segment, segment_path
from quiverlog.storage.segment.segment_files import (
    SEGMENT_HEADER_BYTES,
    FlushedMark,
    LoadedIndex,
    pack_segment_header,
    read_header,
)
from quiverlog.storage.segment.segments import Segments

__all__ = ["TruncateJob", "TruncateResult", "find_segments", "finish", "remove_files"]

_CUT_SUFFIX: Final = ".cut"
_COPY_BYTES: Final = 1024 * 1024


class TruncateResult(NamedTuple):
    """`file`: that segment's new file, if it was rewritten. `last_index`: the next append does not
    wait for it."""

    end_offset: int
    last_base: int
    file: File | None
    point: RecoveryPoint
    producers: Producers | None = None
    snapshots: tuple[int, ...] = ()
    damages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    last_index: LoadedIndex | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TruncateJob:
    """`first_base`: the log's oldest file; earlier ones were trimmed and go at the next start.
    `producers`: empty states, to be restored here. `trimmed`: those of rows that are gone already,
    for a log without a snapshot that is not ahead of the cut."""

    kind: ClassVar[str] = "truncate"
    disk: Disk
    key: str
    offset: int
    end_offset: int
    epochs: bytes
    start_offset: int = 0
    producers: Producers | None = None
    trimmed: SnapshotFile | None = None
    first_base: int = 0

    def run(self) -> TruncateResult:
        """Raises DiskFull, ThrottledBroker, StorageFault or OSError: run it again, or the next
        start does."""
        assert 0 <= self.offset < self.end_offset, "there are rows to cut"
        assert self.start_offset <= self.end_offset
        self._save_trimmed()
        # Epochs that were assigned since the last flush exist in memory only.
        self.disk.write_file_atomic(f"{self.key}/{EPOCHS_FILE}", self.epochs)
        result = _carry_out(
            self.disk,
            self.key,
            self.offset,
            self.end_offset,
            start_offset=self.start_offset,
            first_base=self.first_base,
        )
        names = self.disk.list(self.key)
        segments = _from_base(find_segments(self.disk, self.key, names), self.first_base)
        if segments:
            last = segments[-1]
            last.end_offset = result.end_offset
            result = result._replace(last_index=last.files.read_index())
        if self.producers is None:
            return result
        snapshots = checkpoint.snapshot_offsets(names)
        start = self.start_offset if segments else result.end_offset
        damages: list[str] = []
        notes = restore_producers(
            self.disk,
            self.key,
            self.producers,
            snapshots,
            Segments(segments),
            start,
            result.end_offset,
            damages,
        )
        return result._replace(
            producers=self.producers,
            snapshots=tuple(snapshots),
            damages=tuple(damages),
            notes=tuple(notes),
        )

    def _save_trimmed(self) -> None:
        if self.trimmed is None:
            return
        known = checkpoint.snapshot_offsets(self.disk.list(self.key))
        # A snapshot that is ahead is removed with the rows that are cut; one below the log start
        # lacks rows whose files are gone.
        if not any(self.trimmed.offset <= offset <= self.offset for offset in known):
            blob = self.trimmed.encode()
            checkpoint.write_snapshot(self.disk, self.key, self.trimmed.offset, blob)


def finish(disk: Disk, directory: str, names: list[str]) -> list[str]:
    """Finish an interrupted truncation; return the directory's entries."""
    cut = [name for name in names if name.endswith(_CUT_SUFFIX)]
    if not cut and TRUNCATION_FILE not in names:
        return names
    remove_files(disk, (f"{directory}/{name}" for name in cut))
    if TRUNCATION_FILE in names:
        offset = checkpoint.load_truncation(disk, directory)
        if offset is None:  # It is written whole or not at all, so it is damaged: remove no rows.
            remove_files(disk, (f"{directory}/{TRUNCATION_FILE}",))
            disk.sync_dir(directory)
        else:
            _carry_out(disk, directory, offset, None)
    left = disk.list(directory)
    assert TRUNCATION_FILE not in left, "what is appended from here on would be cut by a crash"
    return left


def find_segments(disk: Disk, directory: str, names: Iterable[str]) -> list[Segment]:
    bases = sorted(base for name in names if (base := own_offset(name, "log")) is not None)
    segments: list[Segment] = []
    for base_offset in bases:
        path = segment_path(directory, base_offset)
        try:
            file = disk.open(path, create=False)
        except (FileNotFoundError, IsADirectoryError):
            continue  # A name with no file behind it: its rows are missing.
        if segments:
            segments[-1].end_offset = base_offset
            segments[-1].finished = True
        segments.append(Segment(disk, path, file, base_offset))
    assert all(one.end_offset == after.base_offset for one, after in pairwise(segments))
    return segments


def _from_base(segments: list[Segment], first_base: int) -> list[Segment]:
    return [segment for segment in segments if segment.base_offset >= first_base]


def remove_files(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            disk.remove(path)


def _carry_out(
    disk: Disk,
    directory: str,
    offset: int,
    end_offset: int | None,
    *,
    start_offset: int = 0,
    first_base: int = 0,
) -> TruncateResult:
    """Run the steps. `start_offset`: the log start, which its file may not have yet."""
    names = disk.list(directory)
    segments = _from_base(find_segments(disk, directory, names), first_base)
    stored = checkpoint.load_recovery_point(disk, directory, names)
    start = max(start_offset, checkpoint.load_log_start(disk, directory, names) or 0)
    offset = max(offset, start)
    kept = [segment for segment in segments if segment.base_offset < offset]
    doomed = segments[len(kept) :]
    end, position = offset, 0
    if kept:
        known_end = doomed[0].base_offset if doomed else end_offset
        end, position = _find_cut(kept[-1], offset, known_end)
        assert kept[-1].base_offset <= end <= offset
        assert position <= kept[-1].file.size
        if position <= SEGMENT_HEADER_BYTES:  # Nothing is left in that file.
            doomed.insert(0, kept.pop())
            position = kept[-1].file.size if kept else 0
        if end < start:  # The batch that goes holds the log start too: no row is left.
            doomed, kept, end = kept + doomed, [], start
    assert start <= end, "the log never ends before its start"
    assert end <= offset, "no row that was to go stays"
    # The end, so that a restart after some of the files are gone cuts at the same place.
    mark = checkpoint.pack_truncation(end, directory)
    disk.write_file_atomic(f"{directory}/{TRUNCATION_FILE}", mark)
    if not kept:
        # Without a segment, only this file has the next offset for a restart.
        checkpoint.save_log_start(disk, directory, end)
    last = kept[-1] if kept else None
    # Before any row goes: a note ahead of the rows would report them as lost.
    point = _lower_notes(disk, directory, end, position, stored, last)
    _lower_marks(kept, end)
    for segment in reversed(doomed):  # The newest first: a crash in between leaves no gap.
        remove_files(disk, (segment.index_path, segment.path))
    file = None
    # Readers may have its bytes mapped: a shorter file takes the name instead.
    if last is not None and position < last.file.size:
        file = _write_anew(disk, last, position, end)
    disk.sync_dir(directory)
    # Last: a restart that finds the mark cuts again, also rows that came later.
    remove_files(disk, (f"{directory}/{TRUNCATION_FILE}",))
    disk.sync_dir(directory)
    return TruncateResult(end, last.base_offset if last is not None else -1, file, point)


def _find_cut(segment: Segment, offset: int, known_end: int | None) -> tuple[int, int]:
    size = segment.file.size
    at, end = SEGMENT_HEADER_BYTES, segment.base_offset
    if size <= SEGMENT_HEADER_BYTES:
        return end, size
    source = FileBytes(segment.file, size)
    bounds = segment.files.boundaries
    for entry in scan(source, at, segment.base_offset, verify=True, boundaries=bounds):
        # Bytes of no batch go as well: nothing may be appended behind them.
        if isinstance(entry, Torn):
            return end, entry.position
        after = entry.header.next_offset if isinstance(entry, Found) else entry.end_offset
        if after > offset:
            return end, entry.position
        assert at == entry.position, "a scan leaves no byte out"
        at, end = _end_of(entry), after
    if known_end is not None and end < min(offset, known_end):
        end = min(offset, known_end)  # Rows are missing at the end of the file.
    return end, at


def _end_of(entry: Found | Damage) -> int:
    if isinstance(entry, Found):
        return entry.position + entry.header.total_bytes
    return entry.end_position


def _lower_notes(
    disk: Disk,
    directory: str,
    end: int,
    position: int,
    stored: StoredPoint,
    last: Segment | None,
) -> RecoveryPoint:
    """Lower recovery point, epochs and snapshots below the removed rows. Durable.

    The copy of the recovery point is removed; the next flush writes a new one.
    """
    point, bounds = stored.point, stored.bounds
    assert last is None or last.base_offset <= end
    # A file that keeps all its bytes may have lost some before, even its header.
    assert last is None or 0 <= position <= last.file.size
    assert last is None or position > SEGMENT_HEADER_BYTES or position == last.file.size
    base_offset = last.base_offset if last is not None else -1
    inside = point.base_offset == base_offset and point.position <= position
    if point.offset > end or not (point.base_offset < base_offset or inside):
        point = RecoveryPoint()
    assert point.offset <= end, "a restart would report the rows as lost"
    if stored.contents or stored.bad or base_offset < 0:
        path = f"{directory}/{checkpoint.RECOVERY_FILE}"
        lowered = Bounds(bounds.start_offset, min(bounds.end_offset, end))
        disk.write_file_atomic(path, checkpoint.pack_recovery_point(point, lowered))
        remove_files(disk, (f"{directory}/{checkpoint.RECOVERY_COPY_FILE}",))
    epochs = LeaderEpochs(lambda: end)
    path = f"{directory}/{EPOCHS_FILE}"
    with contextlib.suppress(FileNotFoundError, CorruptLog):
        epochs.load(path, disk.read_file(path))
        epochs.truncate_to(end)
        disk.write_file_atomic(path, epochs.dump())
    for offset in checkpoint.snapshot_offsets(disk.list(directory)):
        if offset > end:
            checkpoint.drop_snapshot(disk, directory, offset)
    if last is not None:
        remove_files(disk, (last.index_path,))
    disk.sync_dir(directory)
    return point


def _lower_marks(kept: Sequence[Segment], end: int) -> None:
    """Lower the flushed marks in the headers of segments that stay. Durable."""
    for segment in kept:
        with contextlib.suppress(CorruptLog, UnsupportedFormat):
            created_us, mark, *rest = read_header(segment.file, segment.base_offset)
            if mark.offset > end and mark.position <= segment.file.size:
                mark = FlushedMark(end, mark.position)
                header = pack_segment_header(segment.base_offset, created_us, mark, *rest)
                segment.file.write_head(header)
                segment.file.sync()


def _write_anew(disk: Disk, segment: Segment, size: int, end_offset: int) -> File:
    assert SEGMENT_HEADER_BYTES < size < segment.file.size
    path = f"{segment.path}{_CUT_SUFFIX}"
    remove_files(disk, (path,))
    file = disk.open(path, create=True)
    file.append([_header_anew(segment, size, end_offset)])
    for at in range(SEGMENT_HEADER_BYTES, size, _COPY_BYTES):
        file.append([segment.file.read_copy(at, min(_COPY_BYTES, size - at))])
    file.sync()  # Before the name changes, or a crash would leave an empty segment.
    disk.replace(file, segment.path)
    return file


def _header_anew(segment: Segment, size: int, end_offset: int) -> bytes:
    with contextlib.suppress(CorruptLog, UnsupportedFormat):
        created_us, mark, *rest = read_header(segment.file, segment.base_offset)
        if mark.position > size:  # A mark beyond the file would show the cut rows as missing.
            mark = FlushedMark(end_offset, size)
            return pack_segment_header(segment.base_offset, created_us, mark, *rest)
    return segment.file.read_copy(0, SEGMENT_HEADER_BYTES)
