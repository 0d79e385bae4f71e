"""Small files of a partition that contradict the others: well formed, but another partition's or
out of date.

A rejected file counts as lost, is moved aside and named for an operator. One file is never trusted
against two, and none against the rows themselves. Rejected are:

- of two different log starts the one that no other file confirms, else the larger: a crash between
  the two writes leaves that state, and rows are trimmed when both are written
- a log start, or a recovery point that its copy contradicts, beyond the end of all rows
- `leader-epochs` with other epochs than the rows
- `truncate-to` after a clean stop, or of another partition
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from quiverlog.batch.header import BatchHeader, link
from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.disk.byte_source import FileBytes
from quiverlog.storage.disk.disk import Disk, short_name
from quiverlog.storage.log import checkpoint, truncation
from quiverlog.storage.log.checkpoint import (
    LOG_START_FILES,
    RECOVERY_COPY_FILE,
    RECOVERY_FILE,
    TRUNCATION_FILE,
    Bounds,
    RecoveryPoint,
    StoredPoint,
)
from quiverlog.storage.segment.epochs import EPOCHS_FILE, LeaderEpochs
from quiverlog.storage.segment.names import rename_aside
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES, SegmentHeader, read_header
from quiverlog.types import NO_EPOCH

__all__ = ["agree_with_rows", "move_contradictions_aside"]

_FOREVER: Final = 2**63
_VOTES_PER_SEGMENT_MAX: Final = 64
"""Batches that are asked for their epoch: one damaged batch must not decide."""


def move_contradictions_aside(
    disk: Disk, directory: str, names: list[str], *, clean: bool, known: Bounds | None
) -> tuple[list[str], list[str]]:
    assert names == sorted(set(names)), "as a disk lists them"
    look = _Look(disk, directory, names, clean, known)
    look.at_truncation()
    look.at_log_starts()
    look.at_recovery_points()
    look.at_epochs()
    return (disk.list(directory) if look.notes else names), look.notes


def agree_with_rows(
    epochs: LeaderEpochs, segments: Sequence[Segment], start_offset: int, end_offset: int
) -> bool:
    for segment in {id(one): one for one in (*segments[:1], *segments[-1:])}.values():
        header = _first_header(segment)
        if header is None or segment.base_offset >= end_offset:
            continue
        assert header.base_offset == segment.base_offset
        listed = epochs.epoch_for(header.base_offset)
        if listed != header.leader_epoch and (listed >= 0 or header.base_offset >= start_offset):
            return False
    entries = epochs.entries()
    return (
        not entries or not segments or entries[0][1] <= max(start_offset, segments[0].base_offset)
    )


def _first_header(segment: Segment) -> BatchHeader | None:
    if segment.file.size < SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES:
        return None
    with contextlib.suppress(OSError):
        head = segment.file.read_copy(SEGMENT_HEADER_BYTES, BATCH_HEADER_BYTES)
        if link(head, 0, segment.base_offset, segment.file.size - SEGMENT_HEADER_BYTES):
            return BatchHeader.unpack(head)
    return None


class _Look:
    def __init__(
        self, disk: Disk, directory: str, names: list[str], clean: bool, known: Bounds | None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._names = list(names)
        self._clean = clean
        self._known = known
        self._segments: list[Segment] | None = None
        self._reach = -1
        self.notes: list[str] = []

    def _aside(self, name: str, why: str) -> None:
        assert name in self._names
        assert why
        new = rename_aside(self._disk, self._directory, name, self._names)
        self._names.remove(name)
        self._names.append(new)
        shown = short_name(f"{self._directory}/{name}")
        self.notes.append(f"{shown} {why}: it was ignored, and moved to {new}.")

    # --- the rows ------------------------------------------------------------------------------
    def _files(self) -> list[Segment]:
        if self._segments is None:
            self._segments = truncation.find_segments(self._disk, self._directory, self._names)
        return self._segments

    def _headers(self) -> list[SegmentHeader]:
        found = []
        for segment in self._files()[-2:]:
            with contextlib.suppress(CorruptLog, OSError):
                found.append(read_header(segment.file, segment.base_offset))
        return found

    def _end_of_rows(self) -> int:
        """Return the end of the rows in the files, or more where damage hides it."""
        if self._reach < 0:
            self._reach = max([0, *(header.mark.offset for header in self._headers())])
            for segment in self._files()[-1:]:
                self._reach = max(self._reach, _walk(segment))
        assert self._reach >= 0
        return self._reach

    # --- the files -----------------------------------------------------------------------------
    def at_truncation(self) -> None:
        if TRUNCATION_FILE not in self._names:
            return
        if self._clean:
            self._aside(TRUNCATION_FILE, "asks for a cut after a clean stop")
        elif checkpoint.is_truncation_of_another(self._disk, self._directory):
            self._aside(TRUNCATION_FILE, "is another partition's")

    def at_log_starts(self) -> None:
        starts: dict[str, int] = {}
        for name in LOG_START_FILES:
            if name in self._names:
                with contextlib.suppress(QuiverlogError, OSError):
                    start = checkpoint.load_log_start(self._disk, self._directory, [name])
                    if start is not None:
                        starts[name] = start
        confirmed = self._starts_in_other_files()
        if len(set(starts.values())) == 2:
            values = sorted(starts.values())
            believed = next((one for one in reversed(values) if one in confirmed), values[0])
        elif len(starts) == 1 or (starts and self._clean and confirmed):
            (start,) = set(starts.values())
            alone = len(starts) == 1 and start not in confirmed
            # Without rows, and without another file that has any, the start trims nothing.
            beyond = alone and start > self._end_of_rows() and bool(self._files() or confirmed)
            if not beyond and not (alone and self._clean and confirmed):
                return
            believed = max(confirmed, default=0)
        else:
            return
        for name, start in starts.items():
            if start != believed:
                self._aside(name, f"has the log start {start}, other files {believed}")
        assert believed >= 0
        if believed and self.notes:
            checkpoint.save_log_start(self._disk, self._directory, believed)
            self._names = sorted({*self._names, *LOG_START_FILES})

    def _starts_in_other_files(self) -> list[int]:
        found = [] if self._known is None else [self._known.start_offset]
        for name in (RECOVERY_FILE, RECOVERY_COPY_FILE):
            with contextlib.suppress(OSError):
                stored = checkpoint.load_recovery_point(
                    self._disk, self._directory, [name] if name in self._names else []
                )
                if stored.bounds.end_offset > 0:
                    assert stored.bounds.start_offset >= 0
                    found.append(stored.bounds.start_offset)
        return found

    def at_recovery_points(self) -> None:
        stored: dict[str, StoredPoint] = {
            name: checkpoint.load_recovery_point(self._disk, self._directory, [name])
            for name in (RECOVERY_FILE, RECOVERY_COPY_FILE)
            if name in self._names
        }
        if len(stored) < 2 or any(one.bad or not one.contents for one in stored.values()):
            return  # With one of them gone the other must count.
        ends = {n: max(s.point.offset, s.bounds.end_offset) for n, s in stored.items()}
        starts = {n: s.bounds.start_offset for n, s in stored.items()}
        for name, other in (
            (RECOVERY_FILE, RECOVERY_COPY_FILE),
            (RECOVERY_COPY_FILE, RECOVERY_FILE),
        ):
            if (ends[name], starts[name]) == (ends[other], starts[other]):
                return
            end, start = self._end_of_rows(), self._log_start()
            assert ends[name] >= 0
            assert start >= 0
            if ends[name] > max(ends[other], end) and not self._fits(stored[name].point):
                self._aside(name, f"has rows up to {ends[name]}, the segments up to {end}")
                return
            if starts[name] > max(starts[other], start, self._known_start()):
                self._aside(name, f"has the log start {starts[name]}, log-start {start}")
                return

    def _fits(self, point: RecoveryPoint) -> bool:
        """Return True where a batch ends, or where a file begins whose loss only this point would
        show: after a power failure it may be the only one as new."""
        at = point.position
        assert point.base_offset <= point.offset
        for segment in self._files():
            if segment.base_offset == point.base_offset:
                size = segment.file.size
                if at == size:
                    return _walk(segment) in (point.offset, _FOREVER)
                head = segment.file.read_copy(at, BATCH_HEADER_BYTES) if at + 64 <= size else b""
                return bool(head and link(head, 0, point.offset, size - at))
        return point.base_offset in (-1, self._end_of_rows())

    def _known_start(self) -> int:
        starts = [header.start_offset for header in self._headers()]
        assert all(start >= 0 for start in starts)
        if self._known is not None:
            starts.append(self._known.start_offset)
        return max(starts, default=0)

    def _log_start(self) -> int:
        names = [name for name in LOG_START_FILES if name in self._names]
        found = checkpoint.load_log_start(self._disk, self._directory, names)
        return _FOREVER if found is None else found

    def at_epochs(self) -> None:
        if EPOCHS_FILE not in self._names:
            return
        path = f"{self._directory}/{EPOCHS_FILE}"
        epochs = LeaderEpochs(lambda: 0)
        try:
            epochs.load(path, self._disk.read_file(path))
        except (CorruptLog, OSError):
            return  # Damaged: opening.py handles that.
        point = checkpoint.load_recovery_point(self._disk, self._directory, self._names).point
        start = self._log_start()
        if agree_with_rows(epochs, self._files(), start, point.offset):
            return
        listed = [
            (epochs.epoch_for(header.base_offset), header.leader_epoch)
            for segment in self._files()
            for header in islice(_headers(segment), _VOTES_PER_SEGMENT_MAX)
            if start <= header.base_offset < point.offset
        ]
        others = [in_list for in_list, in_row in listed if in_list != in_row]
        assert all(epoch >= NO_EPOCH for epoch in others)
        # Few that differ are damaged batches, but their epochs would be in the list.
        if NO_EPOCH in others or 2 * len(others) > max(len(listed), 2):
            self._aside(EPOCHS_FILE, "lists other leader epochs than the rows have")


def _headers(segment: Segment) -> Iterator[BatchHeader]:
    size, offset, at = segment.file.size, segment.base_offset, SEGMENT_HEADER_BYTES
    source = FileBytes(segment.file, size)
    while at < size:
        head = source.read(at, BATCH_HEADER_BYTES)
        step = link(head, 0, offset, size - at) if len(head) == BATCH_HEADER_BYTES else 0
        if not step:
            return
        assert step >> 32 > 0, "a batch has rows"
        yield BatchHeader.unpack(head)
        offset, at = offset + (step >> 32), at + (step & 0xFFFFFFFF)
        assert at <= size


def _walk(segment: Segment) -> int:
    """Return where the rows of a segment end; _FOREVER where damage is in the way."""
    end, at = segment.base_offset, SEGMENT_HEADER_BYTES
    assert end >= 0
    for header in _headers(segment):
        end, at = header.next_offset, at + header.total_bytes
    return end if at == max(segment.file.size, SEGMENT_HEADER_BYTES) else _FOREVER
