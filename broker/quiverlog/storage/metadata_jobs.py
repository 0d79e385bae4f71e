"""The jobs that write the metadata log, and what they share.

Owns the end of the file (`Tail`) while the log is open: appending with a flush, replacing the file
by a snapshot, and the judgement after which failure nothing more may be written. Jobs of one log
have one key, so they run one after another, and nobody else uses a `Tail`.

Must not know: which entries are true; metadata_log.py keeps that for the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from quiverlog.errors import QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.storage.disk import Disk, File, out_of_descriptors, short_name
from quiverlog.storage.metadata_frames import FILE_HEADER_BYTES, file_header, pack_frame

__all__ = ["AppendJob", "CompactJob", "Tail"]

_NEW: Final = ".new"


class Tail:
    """The end of the file, as the jobs know it.

    `unflushed`: position and bytes of a frame that was read at the start and could not be flushed
    then. `name_unflushed`: the file is new and its name not yet durable.
    """

    __slots__ = ("disk", "fault", "file", "header", "name_unflushed", "path", "unflushed")

    def __init__(self, disk: Disk, path: str, file: File, version: int) -> None:
        self.header = file_header(version)
        self.disk = disk
        self.path = path
        self.file = file
        self.fault = ""
        self.unflushed: tuple[int, bytes] | None = None
        self.name_unflushed = False

    def check(self) -> None:
        """Raises StorageFault after a failure that left open what the disk holds."""
        if self.fault:
            raise StorageFault(f"{short_name(self.path)} takes no writes: {self.fault}.")

    def fail(self, what: str, error: BaseException) -> StorageFault:
        """The log is out of service from now on."""
        reason = getattr(error, "strerror", None) or str(error)
        self.fault = f"{what} failed: {reason}"
        return StorageFault(f"{short_name(self.path)}: {self.fault}.", file=self.path)

    def write_postponed(self) -> None:
        """Flush what an earlier step could not, for want of room or descriptors."""
        if self.unflushed is not None:
            self.file.rewrite(*self.unflushed)
        if self.name_unflushed:
            self._sync_name()
        assert not self.name_unflushed
        self.unflushed = None

    def _sync_name(self) -> None:
        directory = self.path.rpartition("/")[0]
        try:
            self.disk.sync_dir(directory)
        except OSError as error:
            if out_of_descriptors(error):
                raise ThrottledBroker(f"{short_name(self.path)}: {error.strerror}.") from error
            raise self.fail("fsync of the directory", error) from error
        self.name_unflushed = False

    def append(self, frame: bytes) -> int:
        """Write and flush. Returns the position after the frame."""
        self.check()
        self.write_postponed()
        assert self.unflushed is None, "an older frame comes first"
        assert not self.name_unflushed, "a file without a name vouches for nothing"
        end = self.file.size + len(frame)
        try:
            self.file.append([frame])
        except StorageFault as error:
            raise self.fail("a write", error.__cause__ or error) from error
        try:
            self.file.sync()
        except OSError as error:
            raise self.fail("fsync", error) from error
        assert self.file.size == end, "nobody else writes the file"
        return end

    def replace(self, snapshot: bytes, position: int) -> int:
        """A new file of `snapshot` and what lies behind `position`. Returns its size."""
        self.check()
        temporary = self.path + _NEW
        try:
            self._write_new(temporary, snapshot, position)
        except (OSError, QuiverlogError) as error:
            with contextlib.suppress(OSError):
                self.disk.remove(temporary)
            if isinstance(error, OSError):
                raise StorageFault(
                    f"{short_name(self.path)} was not compacted: {error.strerror}."
                ) from error
            raise
        self._flush_new_name()
        return self.file.size

    def install(self, new: File) -> int:
        """A file that is whole and flushed takes the place of this one. Returns its size.

        Raises StorageFault: the old file has the name, unless `fault` says that nobody knows.
        """
        self.check()
        try:
            self._rename(new)
        except OSError as error:
            raise StorageFault(
                f"{short_name(self.path)} was not replaced: {error.strerror}."
            ) from error
        self._flush_new_name()
        return self.file.size

    def _flush_new_name(self) -> None:
        self.unflushed = None
        self.name_unflushed = True
        # Out of descriptors: the next append tries again before it writes.
        with contextlib.suppress(ThrottledBroker):
            self._sync_name()
        assert self.file.path == self.path, "what is appended from here on lies under the name"

    def _write_new(self, temporary: str, snapshot: bytes, position: int) -> None:
        if self.disk.exists(temporary):
            self.disk.remove(temporary)
        old = self.file
        assert FILE_HEADER_BYTES <= position <= old.size, "the snapshot stands for what was written"
        behind = old.read_copy(position, old.size - position)
        if len(behind) != old.size - position:
            raise StorageFault(f"{short_name(self.path)} is shorter than what was written.")
        new = self.disk.open(temporary, create=True)
        new.append([snapshot, behind] if behind else [snapshot])
        assert new.size == len(snapshot) + len(behind)
        new.sync()
        self._rename(new)

    def _rename(self, new: File) -> None:
        old = self.file
        self.disk.replace(new, self.path)
        # From here on the old file has no name: whatever else fails, nothing is written to it.
        self.file = new
        old.close()


class AppendJob:
    """Write entries as one frame and flush it; the result is the size of the file."""

    __slots__ = ("_frame", "_tail", "entry_count", "key", "kind")

    def __init__(self, tail: Tail, entries: Sequence[bytes]) -> None:
        self._tail = tail
        self._frame = pack_frame(entries)
        self.entry_count = len(entries)
        self.key = tail.path
        self.kind = "metadata append"

    def run(self) -> int:
        return self._tail.append(self._frame)


class CompactJob:
    """Replace the entries up to a position by a snapshot; the result is the size of the file.

    Entries that were appended after the snapshot was taken are carried over.

    Args:
        snapshot: makes the entries that stand for what is replaced. The job calls it, because it
            may take long: whoever hands it in changes nothing of what it reads until the job ends.
        kept: entries that follow the snapshot in a frame of their own.

    `snapshot_bytes`: bytes that stand for what was replaced, once the job has run.
    """

    __slots__ = (
        "_kept",
        "_make_snapshot",
        "_position",
        "_tail",
        "key",
        "kind",
        "replaced_entries",
        "snapshot_bytes",
    )

    def __init__(
        self,
        tail: Tail,
        snapshot: Callable[[], Sequence[bytes]],
        position: int,
        replaced_entries: int,
        kept: Sequence[bytes] = (),
    ) -> None:
        assert position >= FILE_HEADER_BYTES, "the snapshot brings its own header"
        assert replaced_entries >= 0
        self._tail = tail
        self._kept = kept
        self._make_snapshot = snapshot
        self._position = position
        self.snapshot_bytes = 0
        self.replaced_entries = replaced_entries
        self.key = tail.path
        self.kind = "metadata compaction"

    def run(self) -> int:
        snapshot = self._tail.header + pack_frame(self._make_snapshot())
        if self._kept:
            snapshot += pack_frame(self._kept)
        self.snapshot_bytes = len(snapshot)
        return self._tail.replace(snapshot, self._position)
