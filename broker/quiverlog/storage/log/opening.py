"""Opening a log: reading the files of a directory into a log's state, in any thread.

Where the files are as a clean stop leaves them, nothing is written. Otherwise: finish an
interrupted truncation, read the small files, drop what was trimmed, then trust the recovery point
or scan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.limits import BATCH_ALIGNMENT_BYTES, BATCH_HEADER_BYTES
from quiverlog.storage.disk.byte_source import is_unreadable
from quiverlog.storage.disk.disk import Disk, short_name
from quiverlog.storage.log import checkpoint, truncation
from quiverlog.storage.log.checkpoint import (
    LOG_START_FILES,
    RECOVERY_COPY_FILE,
    RECOVERY_FILE,
    Bounds,
    RecoveryPoint,
    StoredPoint,
)
from quiverlog.storage.log.contradictions import agree_with_rows, move_contradictions_aside
from quiverlog.storage.log.files import (
    DAMAGED_FILE,
    EMPTIED_FILE,
    PARTITION_FILE,
    lost_unflushed,
    set_aside_strays,
    sync_partition_file,
)
from quiverlog.storage.log.marks import Marks
from quiverlog.storage.log.recovery import RecoveryReport, assign_epochs, recover_segments
from quiverlog.storage.segment import reading
from quiverlog.storage.segment.epochs import EPOCHS_FILE, LeaderEpochs
from quiverlog.storage.segment.index import Boundary
from quiverlog.storage.segment.names import own_offset, set_aside
from quiverlog.storage.segment.segment import Segment, segment_path
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES, FlushedMark, read_header
from quiverlog.types import Now

__all__ = ["OpenedFiles", "given_up_files", "open_as_left", "open_files"]


@dataclass(slots=True)
class OpenedFiles:
    """The files of a log as found.

    `given_up`: files below the log start, removed once nothing is read from them. `start_durable`:
    `log-start` or its copy has the log start. Without it the files must stay, and every start
    reports it until the next trim: the broker may die before the report is read.
    """

    segments: list[Segment]
    marks: Marks
    given_up: list[Segment] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    start_saved: int = 0
    start_durable: bool = True
    writable: bool = False
    changed: bool = False
    point: RecoveryPoint = field(default_factory=RecoveryPoint)
    snapshots: list[int] = field(default_factory=list)
    report: RecoveryReport = field(default_factory=RecoveryReport)


# The short way through an opening: the files are exactly as a clean stop leaves them.
_NAMED: Final = frozenset(
    (PARTITION_FILE, EPOCHS_FILE, RECOVERY_FILE, RECOVERY_COPY_FILE, *LOG_START_FILES)
)
_REQUIRED: Final = (EPOCHS_FILE, RECOVERY_FILE, RECOVERY_COPY_FILE)
_SEGMENT_BYTES_MIN: Final = SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES


def open_as_left(
    disk: Disk,
    directory: str,
    entries: Mapping[str, bool],
    epochs: LeaderEpochs,
    *,
    epoch_newest: int,
    known: Bounds | None,
) -> OpenedFiles | None:
    """Open the files if they are as a clean stop leaves them, and fill `epochs`; else None. Never
    raises."""
    try:
        return _open(disk, directory, entries, epochs, epoch_newest, known)
    except (OSError, QuiverlogError):
        return None


def _open(
    disk: Disk,
    directory: str,
    entries: Mapping[str, bool],
    epochs: LeaderEpochs,
    epoch_newest: int,
    known: Bounds | None,
) -> OpenedFiles | None:
    bases: list[int] = []
    indexed: set[int] = set()
    snapshots: list[int] = []
    for name, is_file in entries.items():
        if not is_file:
            return None
        if name in _NAMED:
            continue
        if (offset := own_offset(name, "log")) is not None:
            bases.append(offset)
        elif (offset := own_offset(name, "index")) is not None:
            indexed.add(offset)
        elif (offset := own_offset(name, "snapshot")) is not None:
            snapshots.append(offset)
        else:
            return None
    if not bases or any(name not in entries for name in _REQUIRED):
        return None
    stored = checkpoint.load_recovery_point(disk, directory, _REQUIRED[1:])
    point, (start, end) = stored.point, stored.bounds
    if not stored.agree or point.offset != end:
        return None
    if known is not None and (known.start_offset > start or known.end_offset > end):
        return None
    starts = _starts_of(entries)
    saved = checkpoint.load_log_starts(disk, directory, starts)
    if len(saved) < len(starts) or any(one != start for one in saved or [0]):
        return None
    segments = _segments(disk, directory, bases, indexed, start, stored)
    if segments is None:
        return None
    path = f"{directory}/{EPOCHS_FILE}"
    epochs.load(path, disk.read_file(path))
    if epochs.newest > epoch_newest or not agree_with_rows(epochs, segments, start, end):
        epochs.truncate_to(0)  # The caller fills it anew.
        return None
    epochs.trim(start)
    snapshots.reverse()
    assert end == segments[-1].end_offset, "the picture is whole"
    assert snapshots == sorted(snapshots, reverse=True)
    return OpenedFiles(
        segments,
        Marks(disk, directory, stored),
        log_start_offset=start,
        log_end_offset=end,
        start_saved=start,
        writable=True,
        point=point,
        snapshots=snapshots,
    )


def _starts_of(entries: Mapping[str, bool]) -> Sequence[str]:
    return [name for name in LOG_START_FILES if name in entries]


def _segments(
    disk: Disk,
    directory: str,
    bases: Sequence[int],
    indexed: set[int],
    start: int,
    stored: StoredPoint,
) -> list[Segment] | None:
    point = stored.point
    # The newest file is not the one of the last stop, or rows have lost theirs.
    if bases[-1] != point.base_offset or not bases[0] <= start:
        return None
    if point.offset <= point.base_offset or (bases[1:] or [point.offset])[0] <= start:
        return None  # Nothing follows the start, or files wait for their removal.
    segments: list[Segment] = []
    for base_offset in bases:
        path = segment_path(directory, base_offset)
        segment = Segment(disk, path, disk.open(path, create=False), base_offset)
        if segment.file.size < _SEGMENT_BYTES_MIN or base_offset not in indexed:
            return None
        if segments:
            segments[-1].end_offset = base_offset
            segments[-1].finished = True
        segments.append(segment)
    last = segments[-1]
    if last.file.size != point.position or point.position % BATCH_ALIGNMENT_BYTES:
        return None
    last.end_offset = point.offset
    last.recovered_from = Boundary(point.position, point.offset)
    return segments


def open_files(
    disk: Disk,
    directory: str,
    epochs: LeaderEpochs,
    *,
    clean: bool,
    now: Now,
    epoch_newest: int,
    known: Bounds | None,
) -> OpenedFiles:
    """Open the files of a log; arguments and errors as `Log.open`. Fills `epochs`."""
    try:
        entries = disk.entries(directory)
        if clean:
            as_left = open_as_left(
                disk, directory, entries, epochs, epoch_newest=epoch_newest, known=known
            )
            if as_left is not None:
                return as_left
        aside = set_aside(disk, directory, entries)
    except FileNotFoundError as error:
        why = "the partition's directory is missing"
        raise FileNotFoundError(error.errno, why, directory) from error
    if EMPTIED_FILE in aside.left:
        why = f"the partition's directory was emptied (to begin anew: remove {EMPTIED_FILE})"
        raise FileNotFoundError(2, why, directory)
    names, contradictions = move_contradictions_aside(
        disk, directory, aside.left, clean=clean, known=known
    )
    names = truncation.finish(disk, directory, names)
    opening = _Opening(disk, directory, names, epochs, now, epoch_newest, aside.names, known)
    found = opening.run(clean=clean)
    found.report.notes = [*aside.notes, *contradictions, *opening.notes]
    if DAMAGED_FILE in aside.left:
        name = short_name(f"{directory}/{DAMAGED_FILE}")
        found.report.damages.append(f"{name}: rows were found to be damaged before.")
    return found


class _Opening:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        names: list[str],
        epochs: LeaderEpochs,
        now: Now,
        epoch_newest: int,
        lost: Sequence[str],
        known: Bounds | None,
    ) -> None:
        self._stopped = known or Bounds(0, 0)
        self._known = self._stopped
        self._flushed_again = False
        self._missing_at_end = False
        self._lost = lost
        self._disk = disk
        self._directory = directory
        self._epochs = epochs
        self._now = now
        self._epoch_newest = epoch_newest
        self._names = names
        segments = truncation.find_segments(disk, directory, self._names)
        self.notes = set_aside_strays(disk, directory, segments, self._names)
        self._stored = checkpoint.load_recovery_point(disk, directory, self._names)
        self._found = OpenedFiles(segments, Marks(disk, directory, self._stored))

    def run(self, *, clean: bool) -> OpenedFiles:
        found = self._found
        found.snapshots = checkpoint.snapshot_offsets(self._names)
        point, bounds = self._stored.point, self._stored.bounds
        found.point = point
        self._known = Bounds(*map(max, self._stopped, bounds))
        for segment in found.segments:
            if segment.base_offset == point.base_offset and point.position <= segment.file.size:
                segment.recovered_from = Boundary(point.position, point.offset)
        names = [*self._names, *self._lost]
        start = checkpoint.load_log_start(self._disk, self._directory, names)
        name = short_name(f"{self._directory}/{checkpoint.LOG_START_FILE}")
        known_start = self._known_start(start or 0, clean=clean)
        if start is None or start < known_start:
            start = known_start or self._lowest_start()
            if known_start:
                self.notes.append(f"{name} is behind other files: the log starts at {start}.")
            sure = 0 < known_start <= self._stopped.start_offset
            if not sure:
                # Exact after the end of a process; a power failure may have taken newer ones.
                self._report(f"{name} is damaged or lost: rows that were given up may be back.")
            found.start_durable = sure and self._save_start(start)
        found.start_saved = start
        self._drop_given_up()
        intact = self._load_epochs()
        if not (clean and intact and self._believe_point()):
            damages = found.report.damages
            self._recover()
            found.report.damages = damages + found.report.damages
        self._place_bounds()
        known_end = max(point.offset, self._known.end_offset)
        assert found.log_end_offset >= known_end, "no offset is given out twice"
        assert found.start_saved >= self._known.start_offset, "no row comes back"
        assert all(segment.end_offset <= found.start_saved for segment in found.given_up)
        self._write_marks()
        return found

    def _known_start(self, start: int, *, clean: bool) -> int:
        known = self._known.start_offset
        if not clean and not start and not known:
            # The bounds are lost too, or there were none. The newest segment may have no mark yet.
            for segment in self._found.segments[-2:]:
                with contextlib.suppress(CorruptLog):
                    header = read_header(segment.file, segment.base_offset)
                    known = max(known, header.start_offset)
        return known

    def _save_start(self, start: int) -> bool:
        try:
            checkpoint.save_log_start(self._disk, self._directory, start)
        except QuiverlogError:
            return False
        return True

    def _lowest_start(self) -> int:
        found = self._found
        return found.segments[0].base_offset if found.segments else found.point.offset

    def _write_marks(self) -> None:
        found, marks = self._found, self._found.marks
        marks.started(found.start_saved)
        marks.flushed(found.log_end_offset)
        for name in self._stored.bad:  # Otherwise surplus bytes would remain after an overwrite.
            with contextlib.suppress(OSError):
                truncation.remove_files(self._disk, (f"{self._directory}/{name}",))
        if self._missing_at_end:
            marks.save()
        elif self._stored.agree and self._stored.bounds == marks.bounds:
            pass  # As a clean stop leaves them.
        elif self._stored.contents or self._stored.bad or self._flushed_again:
            marks.write()

    def _report(self, what: str) -> None:
        self._found.report.damages.append(what)

    def _drop_given_up(self) -> None:
        """Take out files below the log start that a power failure brought back, perhaps not all."""
        segments = self._found.segments
        while len(segments) > 1 and segments[0].end_offset <= self._found.start_saved:
            self._found.given_up.append(segments.pop(0))

    def _load_epochs(self) -> bool:
        found = self._found
        unreadable: OSError | None = None
        if EPOCHS_FILE in self._names:
            path = f"{self._directory}/{EPOCHS_FILE}"
            try:
                self._epochs.load(path, self._disk.read_file(path))
            except CorruptLog:
                pass
            except OSError as error:
                if not is_unreadable(error):
                    raise
                unreadable = error
            else:
                self._check_epochs(path)
                return True
        if found.point.base_offset >= 0:
            is_whole = self._read_epochs_again()
            if unreadable is not None and not is_whole:
                # With some epochs missing from the list, their rows would pass for older ones.
                raise unreadable
        return not found.segments

    def _check_epochs(self, path: str) -> None:
        if self._epochs.newest > self._epoch_newest:
            name = short_name(path)
            raise CorruptLog(
                f"{name}: the rows are of leader epoch {self._epochs.newest}, metadata.log has"
                f" {self._epoch_newest}: that file is older, or this one is another partition's."
                " No row was changed: restore metadata.log, or move the file away.",
                file=name,
            )

    def _read_epochs_again(self) -> bool:
        point, is_whole = self._found.point, True
        stamps: list[tuple[int, int]] = []
        for segment in self._found.segments:
            if segment.base_offset > point.base_offset:
                break
            if segment.base_offset == point.base_offset:
                segment.end_offset = point.offset
            damages = list(segment.damages)
            at = segment.base_offset
            with contextlib.suppress(CorruptLog):
                for _, header in reading.all_headers(segment, at):
                    stamps.append((header.leader_epoch, header.base_offset))
                    is_whole = is_whole and header.base_offset <= at
                    at = header.next_offset
            is_whole = is_whole and at >= segment.end_offset
            # The segment's end may change, and with it the number of damaged rows.
            segment.index = None
            segment.damages = damages
        assign_epochs(self._epochs, stamps, self._epoch_newest)
        return is_whole

    def _believe_point(self) -> bool:
        found = self._found
        point = found.point
        if not found.segments:
            if max(point.offset, self._known.end_offset) > found.start_saved:
                return False
            found.log_end_offset = found.start_saved
            return True
        last = found.segments[-1]
        if point.offset < self._known.end_offset:
            return False
        if point.base_offset != last.base_offset or point.position != last.file.size:
            return False
        last.end_offset = point.offset
        found.log_end_offset = point.offset
        found.writable = last.joins(point.offset)
        return True

    def _recover(self) -> None:
        found, point = self._found, self._found.point
        segments = found.segments
        if segments and segments[-1].base_offset < point.base_offset:
            # The files after this one are gone. It ends where the next began, at the latest.
            segments[-1].end_offset = point.base_offset
            segments[-1].finished = True
        kept = list(segments)
        cut_bytes = self._drop_behind_lost_name()
        touched, found.report = recover_segments(
            segments,
            point,
            self._epochs,
            self._now.wall_us,
            self._epoch_newest,
            self._known.end_offset,
        )
        found.report.bytes_truncated += cut_bytes
        for segment in kept:
            if segment.dropped:
                self._remove_files(segment)
        left = [segment for segment in kept if not segment.dropped]
        assert left == segments, "a file is the log's, or it is removed"
        if kept and not segments:  # They must not come back after rows that end where they began.
            self._disk.sync_dir(self._directory)
        for segment in touched:
            if not segment.dropped:
                self._flush_again(segment)
                self._flushed_again = True
        if touched:
            if point.base_offset < 0:  # Never flushed: then no flush has synced the label either.
                sync_partition_file(self._disk, self._directory)
            self._disk.sync_dir(self._directory)
        reached = segments[-1].end_offset if segments else 0
        flushed = max(point.offset, self._known.end_offset)
        end = max(reached, found.start_saved, flushed)
        if max(reached, found.start_saved) < flushed:
            self._missing_at_end = True
            self._report_missing(max(reached, found.start_saved), flushed)
        found.log_end_offset = end
        self._epochs.truncate_to(end + 1)
        # Nothing is appended after damage at the very end.
        last = segments[-1] if segments else None
        found.writable = (
            last is not None
            and last.joins(end)
            and not last.damages
            and not last.finished
            and last.created_us != 0
        )
        found.changed = True

    def _drop_behind_lost_name(self) -> int:
        found, segments, start = self._found, self._found.segments, self._found.start_saved
        known = max(found.point.offset, *self._known)
        if not lost_unflushed(segments, start, known, self._names, self._lost):
            return 0
        assert start < segments[0].base_offset, "the rows in front of the files are the lost ones"
        name = short_name(self._directory)
        self.notes.append(
            f"{name}: rows {start} to {segments[0].base_offset} have no file, and no flush of them"
            f" is known: the log ends at {start}, {len(segments)} files behind them were removed."
        )
        for segment in segments:
            segment.dropped = True
        byte_count = sum(segment.file.size for segment in segments)
        segments.clear()
        return byte_count

    def _flush_again(self, segment: Segment) -> None:
        """Write what was scanned once more, in place, and flush it.

        After a failed flush the kernel may count what is in the page cache as written: an fsync
        alone would do nothing. In place: the rows may be acknowledged, and none may be missing for
        a moment.
        """
        assert not segment.dropped
        segment.drop_index()
        point = self._found.point
        position = point.position if segment.base_offset == point.base_offset else 0
        segment.rewrite(position if position > SEGMENT_HEADER_BYTES else 0)
        self._found.marks.started(self._found.start_saved)
        self._found.marks.write_arrival(segment)  # Before the sync, which makes it durable.
        segment.file.sync()
        # After the sync: a mark never covers rows that are not on the disk.
        if segment.created_us > 0:
            mark = FlushedMark(segment.end_offset, segment.file.size)
            self._found.marks.write_header(segment, segment.created_us, mark)

    def _report_missing(self, first: int, end: int) -> None:
        assert first < end
        name = short_name(self._directory)
        self._report(f"{name}: rows {first} to {end} are missing.")

    def _place_bounds(self) -> None:
        found = self._found
        segments = found.segments
        if segments and segments[0].base_offset > found.start_saved:
            self._report_missing(found.start_saved, segments[0].base_offset)
        found.log_start_offset = found.start_saved
        if (
            len(segments) == 1
            and not segments[0].empty
            and segments[0].end_offset <= found.start_saved
        ):
            # The last one goes too: all its rows were trimmed.
            found.given_up.append(segments.pop())
        if segments and segments[-1].empty and segments[-1].base_offset != found.log_end_offset:
            # Its rows were trimmed and lost in a crash: a row at the end is not its first.
            found.writable = False
        found.writable = found.writable and bool(segments)
        for segment in segments[: len(segments) - found.writable]:
            segment.finished = True
        assert not any(segment.dropped for segment in segments)
        assert all(segment.finished for segment in segments[:-1])
        assert 0 <= found.log_start_offset <= found.log_end_offset
        self._epochs.trim(found.log_start_offset)

    def _remove_files(self, segment: Segment) -> None:
        segment.dropped = True
        segment.file.close()
        truncation.remove_files(self._disk, (segment.index_path, segment.path))


def given_up_files(given_up: Sequence[Segment]) -> tuple[str, ...]:
    paths: list[str] = []
    for segment in given_up:
        segment.dropped = True
        segment.file.close()
        paths += [segment.index_path, segment.path]
    return tuple(paths)
