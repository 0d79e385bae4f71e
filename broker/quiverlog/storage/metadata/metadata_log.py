"""A log of opaque entries in one file, `metadata.log`: frames, jobs that write them, the log.

All entries of one append are one frame, and a crash keeps all or none. A last frame that is cut
short, or has sectors that were never written, was never acknowledged and is cut off; any other
mismatch is damage, and the broker does not start. A frame whose fsync failed may be there at the
next start or not.

Invariant: jobs of one log run one after another; once it is open, only they write by the `Tail`.
The loop has the log as of the last completed job.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from quiverlog.batch.checksum import crc32c
from quiverlog.errors import CorruptLog, DiskFull, QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.storage.disk.disk import Disk, File, is_special_file, out_of_descriptors, short_name
from quiverlog.storage.disk.frames import check_version
from quiverlog.storage.segment.damage import SECTOR_BYTES, looks_unwritten

__all__ = [
    "FILE_HEADER_BYTES",
    "FRAME_OVERHEAD_BYTES",
    "ITEM_OVERHEAD_BYTES",
    "AppendJob",
    "CompactJob",
    "Frames",
    "MetadataLog",
    "Tail",
    "file_header",
    "pack_frame",
    "parse",
    "restore_error",
]


_MAGIC: Final = b"QVMETLOG"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sH6x")
_FRAME: Final = struct.Struct("<II")
_U32: Final = struct.Struct("<I")
FILE_HEADER_BYTES: Final = _HEAD.size
FRAME_OVERHEAD_BYTES: Final = _FRAME.size
ITEM_OVERHEAD_BYTES: Final = _U32.size
_HOLE_BYTES_MIN: Final = 8
_SEARCH_CHECKSUM_BYTES_MIN: Final = 64 * 1024 * 1024
_SEARCH_STEPS_MIN: Final = 1_000_000


class Frames(NamedTuple):
    """`end`: position after the last whole frame; `last`: its position."""

    entries: list[bytes]
    end: int
    last: int


def file_header() -> bytes:
    return _HEAD.pack(_MAGIC, _VERSION)


def pack_frame(entries: Sequence[bytes]) -> bytes:
    assert entries
    assert all(entries), "a search for frames accepts none with an empty entry"
    payload = b"".join(_U32.pack(len(entry)) + entry for entry in entries)
    size = _U32.pack(len(payload))
    return size + _U32.pack(crc32c(payload, crc32c(size))) + payload


def parse(path: str, data: bytes) -> Frames:
    if len(data) < FILE_HEADER_BYTES or data[:8] != _MAGIC:
        raise restore_error(path, "is not a metadata log")
    check_version(path, _HEAD.unpack_from(data)[1], _VERSION)
    entries: list[bytes] = []
    view = memoryview(data)
    at = last = FILE_HEADER_BYTES
    while at < len(data):
        end = _frame_end(view, at)
        if end is None:
            if not _is_torn(view, at):
                raise _damaged(path, at)
            return Frames(entries, at, last)
        try:
            entries.extend(_split(view[at + _FRAME.size : end]))
        except struct.error as error:
            raise _damaged(path, at) from error
        last, at = at, end
    assert last <= at == len(data)
    return Frames(entries, at, last)


def restore_error(path: str, what: str, **details: int) -> CorruptLog:
    """Return the error for an earlier state of a voter's disk: without the votes and entries that
    others rely on, committed decisions could be lost."""
    return CorruptLog(
        f"{path} {what}; nothing was changed. A broker that is alone: restore the file from a"
        " backup. One of several: never from a backup, empty its data directory, and it joins the"
        " others again (docs/cluster.md).",
        file=path,
        **details,
    )


def _damaged(path: str, at: int) -> CorruptLog:
    return restore_error(path, f"is damaged at byte {at}", position=at)


def _frame_end(view: memoryview, at: int) -> int | None:
    if len(view) - at < _FRAME.size:
        return None
    size, crc = _FRAME.unpack_from(view, at)
    end = at + _FRAME.size + int(size)
    if size == 0 or end > len(view):  # No frame is empty.
        return None
    assert at < end <= len(view)
    payload = view[at + _FRAME.size : end]
    return end if crc32c(payload, crc32c(view[at : at + 4])) == crc else None


def _is_torn(view: memoryview, at: int) -> bool:
    size = _FRAME.unpack_from(view, at)[0] if len(view) - at >= _FRAME.size else 0
    end = at + _FRAME.size + size
    if end <= len(view) and not looks_unwritten(view, at, end) and not _has_hole(view, at, end):
        return False
    return not _only_size_is_wrong(view, at) and not _valid_frame_after(view, at + 1)


def _has_hole(view: memoryview, start: int, end: int) -> bool:
    """Return whether a sector of [start, end) is zero: sectors of one append arrive in any order.

    Few bytes of the frame may be in the last one, and then zeros prove nothing.
    """
    assert 0 <= start < end
    first = -(-start // SECTOR_BYTES) * SECTOR_BYTES
    assert start <= first < start + SECTOR_BYTES
    sectors = range(first, end - _HOLE_BYTES_MIN + 1, SECTOR_BYTES)
    return any(not any(view[at : min(at + SECTOR_BYTES, end)]) for at in sectors)


def _only_size_is_wrong(view: memoryview, at: int) -> bool:
    if len(view) - at < _FRAME.size:
        return False
    payload = view[at + _FRAME.size :]
    return bool(_FRAME.unpack_from(view, at)[1] == crc32c(payload, crc32c(_U32.pack(len(payload)))))


def _valid_frame_after(view: memoryview, at: int) -> bool:
    """Return whether a whole frame is at or after `at`. Frames are not aligned.

    A checksum is computed only where the lengths in a frame agree. If the search costs several
    times that of a plain file (frames within frames), the result is True: an operator must look at
    the file.
    """
    checksum_bytes = max(4 * (len(view) - at), _SEARCH_CHECKSUM_BYTES_MIN)
    steps = max(len(view) - at, _SEARCH_STEPS_MIN)
    for start in _candidates(view, at):
        size = int(_FRAME.unpack_from(view, start)[0])
        agree, walked = _lengths_agree(view, start + _FRAME.size, start + _FRAME.size + size)
        steps -= walked
        checksum_bytes -= size if agree else 0
        if min(steps, checksum_bytes) < 0 or (agree and _frame_end(view, start) is not None):
            return True
    return False


def _candidates(view: memoryview, at: int) -> Iterator[int]:
    """Yield possible frames: `re` finds the highest byte of both lengths, 0 in any file below 16
    MiB; the other checks run at few positions."""
    top = b"[\\x00-" + re.escape(bytes([min((len(view) - at) >> 24, 255)])) + b"]"
    length = b"(?!\\x00{4})..." + top
    pattern = re.compile(b"(?s)(?=" + length + b"...." + length + b")")
    for match in pattern.finditer(view, at):
        start = match.start()
        size = int(_FRAME.unpack_from(view, start)[0])
        first = int(_U32.unpack_from(view, start + _FRAME.size)[0])
        if size >= _U32.size + first and start + _FRAME.size + size <= len(view):
            yield start


def _lengths_agree(view: memoryview, at: int, end: int) -> tuple[bool, int]:
    walked = 0
    while at + _U32.size <= end:
        walked += 1
        size = int(_U32.unpack_from(view, at)[0])
        if size == 0:  # No entry is empty, and a page of zeros is no chain.
            return False, walked
        at += _U32.size + size
    return at == end, walked


def _split(payload: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        (size,) = _U32.unpack_from(payload, at)
        at += 4
        if at + size > len(payload):
            raise struct.error("an entry is longer than its frame")
        yield bytes(payload[at : at + size])
        at += size


_NEW: Final = ".new"


class Tail:
    """The end of the file, for the jobs.

    `unflushed`: position and bytes of a frame that was read at the start and could not be flushed
    then.
    """

    __slots__ = ("disk", "fault", "file", "name_unflushed", "path", "unflushed")

    def __init__(self, disk: Disk, path: str, file: File) -> None:
        self.disk = disk
        self.path = path
        self.file = file
        self.fault = ""
        self.unflushed: tuple[int, bytes] | None = None
        self.name_unflushed = False

    def check(self) -> None:
        if self.fault:
            raise StorageFault(f"{short_name(self.path)} takes no writes: {self.fault}.")

    def fail(self, what: str, error: BaseException) -> StorageFault:
        reason = getattr(error, "strerror", None) or str(error)
        self.fault = f"{what} failed: {reason}"
        return StorageFault(f"{short_name(self.path)}: {self.fault}.", file=self.path)

    def write_postponed(self) -> None:
        """Flush what an earlier step could not, for lack of room or descriptors."""
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
        self.check()
        self.write_postponed()  # Older frames first: an fsync of this one would vouch for them.
        assert self.unflushed is None, "an older frame comes first"
        assert not self.name_unflushed, "entries in a file without a name are lost"
        end = self.file.size + len(frame)
        try:
            self.file.append([frame])
        except StorageFault as error:
            raise self.fail("a write", error.__cause__ or error) from error
        try:
            self.file.sync()
        except OSError as error:
            raise self.fail("fsync", error) from error
        assert self.file.size == end, "only this job writes the file"
        return end

    def replace(self, snapshot: bytes, position: int) -> int:
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
        # Without descriptors, the next append tries again before it writes.
        with contextlib.suppress(ThrottledBroker):
            self._sync_name()
        assert self.file.path == self.path, "later appends go to the file with the name"

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
        new.sync()  # Before the rename: the name must never lead to a file without its entries.
        self._rename(new)

    def _rename(self, new: File) -> None:
        old = self.file
        self.disk.replace(new, self.path)
        # From here on the old file has no name: whatever else fails, nothing is written to it.
        self.file = new
        old.close()


class AppendJob:
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
    """Replace the entries up to a position by a snapshot; later entries are kept.

    The job calls `snapshot`, because it may take long; what it reads must not change meanwhile.
    `kept`: entries that follow the snapshot in a frame of their own.
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
        snapshot = file_header() + pack_frame(self._make_snapshot())
        if self._kept:
            snapshot += pack_frame(self._kept)
        self.snapshot_bytes = len(snapshot)
        return self._tail.replace(snapshot, self._position)


_COMPACT_ENTRIES_MIN: Final = 1_000
_COMPACT_BYTES_MIN: Final = 256 * 1024


class MetadataLog:
    __slots__ = (
        "_compacting",
        "_entry_count",
        "_fault",
        "_records",
        "_size",
        "_snapshot_bytes",
        "tail",
    )

    def __init__(self, tail: Tail, entries: list[bytes]) -> None:
        self.tail = tail
        self._records = entries
        self._entry_count = len(entries)
        self._size = tail.file.size
        self._snapshot_bytes = _COMPACT_BYTES_MIN
        self._compacting = False
        self._fault = ""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        create: bool = True,
        bytes_min: int = 0,
        before_cut: Callable[[Sequence[bytes]], str] = lambda _entries: "",
        first: bytes = b"",
        judge: Callable[[Sequence[bytes]], None] = lambda _entries: None,
    ) -> MetadataLog:
        """Open or create the log in `directory`.

        `create`: a missing or empty file may be made; not where there are partitions, which would
        all look like leftovers of deleted topics. `bytes_min`: the file's size at the last clean
        stop. `before_cut`: called with the entries before a last frame that seems to be an
        unfinished append; returns why it cannot be one, or nothing. `first`: frames that a new file
        begins with. `judge`: called with the entries before anything is changed; may raise.

        Raises CorruptLog: an entry is damaged, or the file is missing or cut; UnsupportedFormat;
        DiskFull: an existing file opens without room; ThrottledBroker; StorageFault.
        """
        path = f"{directory}/metadata.log"
        try:
            return cls._open(disk, directory, path, create, bytes_min, before_cut, first, judge)
        except OSError as error:
            if is_special_file(error):
                raise restore_error(path, "is not a regular file") from error
            raise StorageFault(f"{path} cannot be opened: {error.strerror}.", file=path) from error

    @classmethod
    def _open(
        cls,
        disk: Disk,
        directory: str,
        path: str,
        create: bool,
        bytes_min: int,
        before_cut: Callable[[Sequence[bytes]], str],
        first: bytes,
        judge: Callable[[Sequence[bytes]], None],
    ) -> MetadataLog:
        disk.make_dir(directory)
        new = False
        if not disk.exists(path):
            if not create or bytes_min:
                raise restore_error(path, "is missing, yet there are partitions")
            disk.write_file_atomic(path, file_header() + first)
            new = True
        data = disk.read_file(path)
        if len(data) < bytes_min:
            raise restore_error(path, f"has {len(data)} bytes and had {bytes_min} at the last stop")
        frames = parse(path, data)
        if not frames.entries and not create:
            raise restore_error(path, "holds no entry, yet there are partitions")
        if frames.end < len(data) and (why := before_cut(frames.entries)):
            raise restore_error(path, f"ends inside of its last frame, {why}")
        judge(frames.entries)
        file = disk.open(path, create=False)
        tail = Tail(disk, path, file)
        if not new:
            # An earlier process's compaction may have failed to flush the name of this very file.
            tail.name_unflushed = True
            _flush_last(tail, data, frames)
        return cls(tail, frames.entries)

    # --- looking -------------------------------------------------------------------------------
    @property
    def size_bytes(self) -> int:
        return self._size

    @property
    def fault(self) -> str:
        return self._fault

    @property
    def wants_compaction(self) -> bool:
        return (
            not self._compacting
            and not self._fault
            and self._entry_count >= _COMPACT_ENTRIES_MIN
            and self._size >= 2 * self._snapshot_bytes
        )

    def records(self) -> Iterator[bytes]:
        """Return the entries that were in the file at opening, once; then their memory is freed."""
        records, self._records = self._records, []
        return iter(records)

    # --- appending -----------------------------------------------------------------------------
    def begin_append(self, entries: Sequence[bytes]) -> AppendJob:
        assert entries
        self.check_usable()
        return AppendJob(self.tail, entries)

    def complete_append(self, job: AppendJob, size: int) -> None:
        assert job.entry_count > 0
        assert size > self._size, "jobs are completed in the order in which they ran"
        self._entry_count += job.entry_count
        self._size = size

    def fail_append(self, job: AppendJob, error: BaseException) -> bool:
        """Record the job's `error`; return whether the log is out of service now.

        False: nothing was written (no room, no descriptor). True: a write or an fsync failed, and
        only a restart shows whether the entries are there.
        """
        assert job.key == self.tail.path
        if isinstance(error, DiskFull | ThrottledBroker):
            return False
        self.put_out_of_service(error)
        return True

    def put_out_of_service(self, error: BaseException) -> None:
        self._fault = str(getattr(error, "message", "")) or str(error)

    def append(self, entries: Sequence[bytes]) -> None:
        job = self.begin_append(entries)
        try:
            size = job.run()
        except QuiverlogError as error:
            self.fail_append(job, error)
            raise
        self.complete_append(job, size)

    # --- compacting ----------------------------------------------------------------------------
    def begin_compact(
        self, snapshot: Callable[[], Sequence[bytes]], kept: Sequence[bytes] = ()
    ) -> CompactJob:
        """Return a job that replaces all entries of completed appends by `snapshot` and `kept`;
        later appends are kept."""
        assert not self._compacting, "one compaction at a time"
        self.check_usable()
        self._compacting = True
        return CompactJob(self.tail, snapshot, self._size, self._entry_count - len(kept), kept)

    def complete_compact(self, job: CompactJob, size: int) -> None:
        assert self._compacting
        assert job.replaced_entries <= self._entry_count
        assert FILE_HEADER_BYTES < job.snapshot_bytes <= size
        self._compacting = False
        self._entry_count -= job.replaced_entries
        self._size = size
        self._snapshot_bytes = max(job.snapshot_bytes, _COMPACT_BYTES_MIN)

    def fail_compact(self, job: CompactJob, error: BaseException) -> bool:
        """Record the job's `error`; return whether the log is out of service now.

        False: the log is as it was. True: the new file has the name, but perhaps not on the disk;
        either file holds every entry, and neither may be written to.
        """
        assert self._compacting
        assert job.key == self.tail.path
        self._compacting = False
        # On a full disk every append would start another one in vain: try again at twice the size.
        self._snapshot_bytes = max(self._snapshot_bytes, self._size)
        # No other thread writes this between two jobs of one key.
        self._fault = self._fault or self.tail.fault
        return bool(self._fault)

    def flush_name(self) -> None:
        self.tail.disk.sync_dir(self.tail.path.rpartition("/")[0])
        self.tail.name_unflushed = False

    def replaced(self, size: int) -> None:
        self._entry_count = 0
        self._size = size
        self._snapshot_bytes = max(size, _COMPACT_BYTES_MIN)

    def close(self) -> None:
        self.tail.file.close()

    def check_usable(self) -> None:
        if self._fault:
            raise StorageFault(
                f"the metadata log takes no writes until a restart: {self._fault}",
                file=self.tail.path,
            )


def _flush_last(tail: Tail, data: bytes, frames: Frames) -> None:
    """Cut a torn frame, and write the last whole one once more.

    The last append's flush may have failed: the kernel may count the cached bytes as written, and
    decisions are based on them from now on.
    """
    file = tail.file
    assert FILE_HEADER_BYTES <= frames.last <= frames.end
    assert frames.end <= len(data) == file.size
    if frames.end < len(data):
        file.truncate(frames.end)  # An append behind a torn frame would be unreadable.
    last = bytes(data[frames.last : frames.end])
    try:
        file.rewrite(frames.last, last)
    except DiskFull:
        # A broker must start for its readers: the next append flushes it, or fails.
        tail.unflushed = (frames.last, last)
        return
    file.sync()
