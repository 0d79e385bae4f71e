"""Opening a log: from the files of a directory to what the log knows of them.

Owns the order: where all is as a clean stop leaves it, take that (clean_opening.py); otherwise
carry out a truncation that was interrupted, read the small files, drop what was given up, then
believe the recovery point (clean) or scan (recovery.py), and say loudly what the files should hold
and do not. Rows are missing where

- the first segment begins after the log start that is written down,
- the log ends before what is known to be on the disk: by the recovery point, the bounds beside it
  (marks.py), a segment's header, or the last stop.

Everything here may wait for the disk. Nothing here is shared yet: it may run in any thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.storage import checkpoint, header_walk, truncation
from quiverlog.storage.boundaries import Boundary
from quiverlog.storage.byte_source import is_unreadable
from quiverlog.storage.checkpoint import Bounds
from quiverlog.storage.clean_opening import open_as_left
from quiverlog.storage.contradictions import move_contradictions_aside
from quiverlog.storage.disk import Disk, short_name
from quiverlog.storage.epochs import EPOCHS_FILE, LeaderEpochs
from quiverlog.storage.log_files import set_aside
from quiverlog.storage.lost_names import lost_unflushed
from quiverlog.storage.marks import Marks
from quiverlog.storage.opened_files import OpenedFiles
from quiverlog.storage.partition_files import DAMAGED_FILE, EMPTIED_FILE, sync_partition_file
from quiverlog.storage.recovery import assign_epochs, recover_segments
from quiverlog.storage.segment import Segment
from quiverlog.storage.segment_index import SEGMENT_HEADER_BYTES, FlushedMark, read_header
from quiverlog.storage.stray_segments import set_aside_strays
from quiverlog.types import Now

__all__ = ["given_up_files", "open_files"]


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
    """See the module docstring; arguments and errors as `Log.open`. Fills `epochs`."""
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
    names, told = move_contradictions_aside(disk, directory, aside.left, clean=clean, known=known)
    names = truncation.finish(disk, directory, names)
    opening = _Opening(disk, directory, names, epochs, now, epoch_newest, aside.names, known)
    found = opening.run(clean=clean)
    found.report.notes = [*aside.notes, *told, *opening.notes]
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
                self.notes.append(f"{name} tells less than other files: the log starts at {start}.")
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
        """The log start by what other files say of it; `start` is what its own ones do."""
        known = self._known.start_offset
        if not clean and not start and not known:
            # The bounds are gone as well, or there were none. The newest segment may be new.
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
        """Say in all places what was found, where one of them says less or is damaged."""
        found, marks = self._found, self._found.marks
        marks.started(found.start_saved)
        marks.flushed(found.log_end_offset)
        for name in self._stored.bad:  # Bytes too many would stay behind what is written over.
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
        """Files below the log start that a power failure brought back, perhaps not all of them."""
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
                # A list that lacks some epochs would say of their rows that they are older.
                raise unreadable
        return not found.segments

    def _check_epochs(self, path: str) -> None:
        """A metadata log that is older than the rows would have new ones stored under old epochs.

        Raises CorruptLog.
        """
        if self._epochs.newest > self._epoch_newest:
            name = short_name(path)
            raise CorruptLog(
                f"{name}: the rows are of leader epoch {self._epochs.newest}, metadata.log knows"
                f" {self._epoch_newest}: that file is older, or this one is another partition's."
                " No row was changed: restore metadata.log, or move the file away.",
                file=name,
            )

    def _read_epochs_again(self) -> bool:
        """From the batches below the recovery point; what lies above is scanned anyway.

        Returns False when some could not be read.
        """
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
                for _, header in header_walk.all_headers(segment, at):
                    stamps.append((header.leader_epoch, header.base_offset))
                    is_whole = is_whole and header.base_offset <= at
                    at = header.next_offset
            is_whole = is_whole and at >= segment.end_offset
            # Its end may turn out to be another, and with it how many rows are damaged.
            segment.index = None
            segment.damages = damages
        assign_epochs(self._epochs, stamps, self._epoch_newest)
        return is_whole

    def _believe_point(self) -> bool:
        """Take the recovery point's word for the end, if the files agree with it."""
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
            # The files behind this one are gone. It ends where the next began, at the latest.
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
        if kept and not segments:  # They must not come back behind rows that end where they began.
            self._disk.sync_dir(self._directory)
        for segment in touched:
            if not segment.dropped:
                self._flush_again(segment)
                self._flushed_again = True
        if touched:
            if point.base_offset < 0:
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
        # After damage at the very end the rest of the file is nothing to append to.
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
        """Drop all files where the first one's name is lost, and no flush was; their bytes."""
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

        The last process may have died of a failed flush. What it wrote is in the cache, and was
        just read there; the kernel may hold it for written and a bare sync do nothing. In place,
        because the rows may be acknowledged: none may be missing for a moment.
        """
        assert not segment.dropped
        segment.drop_index()
        point = self._found.point
        position = point.position if segment.base_offset == point.base_offset else 0
        segment.rewrite(position if position > SEGMENT_HEADER_BYTES else 0)
        self._found.marks.started(self._found.start_saved)
        self._found.marks.write_arrival(segment)
        segment.file.sync()
        if segment.created_us > 0:
            mark = FlushedMark(segment.end_offset, segment.file.size)
            self._found.marks.write_header(segment, segment.created_us, mark)

    def _report_missing(self, first: int, end: int) -> None:
        assert first < end
        name = short_name(self._directory)
        self._report(f"{name}: rows {first} to {end} are missing.")

    def _place_bounds(self) -> None:
        """Drop what the log start has passed; know where the log begins."""
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
            found.given_up.append(segments.pop())
        if segments and segments[-1].empty and segments[-1].base_offset != found.log_end_offset:
            # Its rows were given up and lost in a crash: a row at the end is not its first.
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
    """Let go of these segments; their files, oldest first."""
    paths: list[str] = []
    for segment in given_up:
        segment.dropped = True
        segment.file.close()
        paths += [segment.index_path, segment.path]
    return tuple(paths)
