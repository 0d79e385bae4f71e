"""A log's bounds in its files, mostly written without an fsync, and the state of its fsyncs.

`recovery-point` and its copy are rewritten in place after every flush and trim (adr/0023): exact
after the end of a process, and true of some earlier moment after a power failure, because bounds
grow, and a truncation lowers them durably first.

Invariant: jobs of one log run one after another; the loop changes these only while none runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from quiverlog.errors import QuiverlogError, StorageFault
from quiverlog.storage.disk.disk import Disk, out_of_descriptors, short_name
from quiverlog.storage.log.checkpoint import (
    RECOVERY_COPY_FILE,
    RECOVERY_FILE,
    Bounds,
    RecoveryPoint,
    StoredPoint,
    pack_recovery_point,
)
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segment_files import FlushedMark, pack_segment_header, read_header

__all__ = ["Fsyncs", "Marks"]


class Marks:
    """`bounds`: the log start that is on the disk, and the end of what is flushed."""

    __slots__ = ("_directory", "_disk", "_written", "bounds", "point")

    def __init__(self, disk: Disk, directory: str, stored: StoredPoint | None = None) -> None:
        self._disk = disk
        self._directory = directory
        self._written: dict[str, bytes] = {} if stored is None else dict(stored.contents)
        self.bounds = Bounds(0, 0) if stored is None else stored.bounds
        self.point = RecoveryPoint() if stored is None else stored.point

    def flushed(self, end_offset: int) -> None:
        assert end_offset >= 0
        start, end = self.bounds
        self.bounds = Bounds(start, max(end, end_offset))

    def started(self, start_offset: int) -> None:
        assert start_offset >= 0
        start, end = self.bounds
        self.bounds = Bounds(max(start, start_offset), end)

    def contents(self, point: RecoveryPoint) -> bytes:
        assert point.offset <= self.bounds.end_offset, "it vouches for flushed rows only"
        return pack_recovery_point(point, self.bounds)

    def saved(self, point: RecoveryPoint, contents: bytes) -> None:
        self.point = point
        self._written[RECOVERY_FILE] = contents

    def move_point(self, point: RecoveryPoint) -> None:
        self.point = point
        self.write()

    def lowered(self, point: RecoveryPoint, bounds: Bounds) -> None:
        assert bounds.end_offset <= self.bounds.end_offset
        assert bounds.start_offset == self.bounds.start_offset, "it moves the end alone"
        self.point = point
        self.bounds = bounds
        self._written.clear()

    def write(self) -> None:
        """Write both files in place where they differ. Errors are ignored: the files are hints."""
        contents = self.contents(self.point)
        for name in (RECOVERY_FILE, RECOVERY_COPY_FILE):
            if self._written.get(name) == contents:
                continue
            self._written.pop(name, None)
            try:
                self._disk.overwrite(f"{self._directory}/{name}", contents)
            except (OSError, QuiverlogError):
                continue
            self._written[name] = contents

    def save(self) -> None:
        """Write both files durably and unconditionally: rows are missing, and no other file shows
        it."""
        contents = self.contents(self.point)
        for name in (RECOVERY_FILE, RECOVERY_COPY_FILE):
            self._written.pop(name, None)
            with contextlib.suppress(OSError, QuiverlogError):
                self._disk.write_file_atomic(f"{self._directory}/{name}", contents)
                self._written[name] = contents

    def write_header(self, segment: Segment, created_us: int, mark: FlushedMark) -> bool:
        if segment.dropped:
            return False
        bounds = (mark, self.bounds.start_offset)
        arrived_us = segment.arrived_us  # Read once: the loop may raise it meanwhile.
        header = pack_segment_header(segment.base_offset, created_us, *bounds, arrived_us)
        try:
            segment.file.write_head(header)
        except (OSError, QuiverlogError):
            return False
        segment.arrival_saved(arrived_us)
        return True

    def write_arrival(self, segment: Segment) -> None:
        """Write the arrival of late rows before their fsync, which makes it durable."""
        if segment.has_unsaved_arrival:
            self._write_again(segment)

    def write_start(self, segment: Segment) -> None:
        self._write_again(segment)

    def _write_again(self, segment: Segment) -> None:
        if segment.dropped:
            return
        try:
            found = read_header(segment.file, segment.base_offset)
        except (OSError, QuiverlogError):
            return
        self.write_header(segment, found.created_us, found.mark)


class Fsyncs:
    """The fsyncs of one log's rows. The kernel reports pages that it could not write once and drops
    them: after a failed fsync no later one proves anything.

    For the log's jobs alone: the loop reads `Log.fault`.
    """

    __slots__ = ("_failure",)

    def __init__(self) -> None:
        self._failure = ""

    def rows(self, segment: Segment) -> None:
        try:
            self._sync(segment.file.sync, segment.path)
        except FileNotFoundError as error:
            if not segment.dropped:
                self._failure = str(error)
                raise

    def names(self, disk: Disk, directory: str) -> None:
        self._sync(lambda: disk.sync_dir(directory), directory)

    def _sync(self, call: Callable[[], None], path: str) -> None:
        if self._failure:
            raise StorageFault(f"{short_name(path)}: an earlier flush failed: {self._failure}.")
        try:
            call()
        except FileNotFoundError:
            raise
        except BaseException as error:
            if not out_of_descriptors(error):  # Then no fsync was tried.
                self._failure = str(error) or type(error).__name__
            raise
