"""The broker's own decisions, in order: a small log of opaque entries.

Owns the file `metadata/metadata.log`. Entries are appended by jobs, several at a time; all entries
of one job are one frame, so that a crash keeps all of them or none:

```
file:   8s magic "QVMETLOG" | u16 version | 6 bytes 0 | frame...
frame:  u32 size | u32 crc32c over the size and the payload | payload
payload: per entry u32 length | bytes
```

A frame that the file ends inside of, or whose last sector never arrived, was never acknowledged
and is cut. Anything else that does not match its checksum is damage: the broker does not start on
half of its decisions (replication rule 13 in spirit), the file is left as it is.

A frame whose fsync failed is neither there nor not there: the log takes no more writes, and the
next start finds the whole frame or nothing of it. Whoever proposed the entries must be able to live
with both.

Invariant: what the jobs share (`Tail`) is used by jobs alone, which run one after another because
they have the same key. The loop knows the log as it was when the last job was completed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from quiverlog.errors import DiskFull, QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.storage.disk import Disk, is_special_file
from quiverlog.storage.metadata_frames import (
    FILE_HEADER_BYTES,
    VERSION_SINGLE,
    Frames,
    file_header,
    parse,
    restore_error,
)
from quiverlog.storage.metadata_jobs import AppendJob, CompactJob, Tail

__all__ = ["AppendJob", "CompactJob", "MetadataLog"]

_COMPACT_ENTRIES_MIN: Final = 1_000
_COMPACT_BYTES_MIN: Final = 256 * 1024


class MetadataLog:
    """See the module docstring."""

    __slots__ = (
        "_compacting",
        "_entry_count",
        "_fault",
        "_records",
        "_size",
        "_snapshot_bytes",
        "tail",
        "version",
    )

    def __init__(self, tail: Tail, entries: list[bytes], version: int) -> None:
        self.tail = tail
        self.version = version
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
        version: int = VERSION_SINGLE,
        first: bytes = b"",
        judge: Callable[[int, Sequence[bytes]], None] = lambda _version, _entries: None,
    ) -> MetadataLog:
        """Open or create the log in `directory`.

        Args:
            create: a missing or empty file may be made. Where there are partitions it may not: all
                of them would look like leftovers of topics that were deleted. (A broker registers
                itself before it makes the first partition.)
            bytes_min: what the file is known to have held when it was last closed in order.
            before_cut: asked, with the entries before it, when the last frame seems to be an append
                that never finished; says why it cannot be, or nothing.
            version: of a new file; older ones are opened too, none is changed into another.
            first: frames that a new file begins with.
            judge: given the version and the entries before anything is changed; may raise.

        Raises:
            CorruptLog: an entry is damaged, or the file is missing or cut; nothing is changed.
            UnsupportedFormat: a newer version wrote it.
            DiskFull: there is no room for a new file. A file that is there opens without room.
            StorageFault: the disk failed.
        """
        path = f"{directory}/metadata.log"
        try:
            return cls._open(
                disk, directory, path, create, bytes_min, before_cut, version, first, judge
            )
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
        version: int,
        first: bytes,
        judge: Callable[[int, Sequence[bytes]], None],
    ) -> MetadataLog:
        disk.make_dir(directory)
        new = False
        if not disk.exists(path):
            if not create or bytes_min:
                raise restore_error(path, "is missing, yet there are partitions")
            disk.write_file_atomic(path, file_header(version) + first)
            new = True
        data = disk.read_file(path)
        if len(data) < bytes_min:
            raise restore_error(path, f"has {len(data)} bytes and had {bytes_min} at the last stop")
        frames = parse(path, data, version)
        if not frames.entries and not create:
            raise restore_error(path, "holds no entry, yet there are partitions")
        if frames.end < len(data) and (why := before_cut(frames.entries)):
            raise restore_error(path, f"ends inside of its last frame, {why}")
        judge(frames.version, frames.entries)
        file = disk.open(path, create=False)
        tail = Tail(disk, path, file, frames.version)
        if not new:
            # A compaction of the last process may have failed to flush the name of this very file.
            tail.name_unflushed = True
            _flush_last(tail, data, frames)
        return cls(tail, frames.entries, frames.version)

    # --- looking -------------------------------------------------------------------------------
    @property
    def size_bytes(self) -> int:
        """Bytes of the file when the last job was completed."""
        return self._size

    @property
    def fault(self) -> str:
        """Why the log takes no more writes; empty while it does."""
        return self._fault

    @property
    def wants_compaction(self) -> bool:
        """True when most of the file is likely to be history that a snapshot leaves out."""
        return (
            not self._compacting
            and not self._fault
            and self._entry_count >= _COMPACT_ENTRIES_MIN
            and self._size >= 2 * self._snapshot_bytes
        )

    def records(self) -> Iterator[bytes]:
        """The entries that were in the file at opening; only once, the memory is given back."""
        records, self._records = self._records, []
        return iter(records)

    # --- appending -----------------------------------------------------------------------------
    def begin_append(self, entries: Sequence[bytes]) -> AppendJob:
        """A job that makes entries durable, together: after a crash all are there or none.

        Raises:
            StorageFault: the log takes no writes until a restart.
        """
        assert entries
        self.check_usable()
        return AppendJob(self.tail, entries)

    def complete_append(self, job: AppendJob, size: int) -> None:
        """The append job is back with the `size` of the file: its entries are durable."""
        assert job.entry_count > 0
        assert size > self._size, "jobs are completed in the order in which they ran"
        self._entry_count += job.entry_count
        self._size = size

    def fail_append(self, job: AppendJob, error: BaseException) -> bool:
        """The job raised `error`. Returns whether the log is out of service now.

        False: nothing was written (no room, no descriptor). True: a write or an fsync failed, and
        only a restart tells whether the entries are there.
        """
        assert job.key == self.tail.path
        if isinstance(error, DiskFull | ThrottledBroker):
            return False
        self.put_out_of_service(error)
        return True

    def put_out_of_service(self, error: BaseException) -> None:
        """Nobody knows what the disk holds: no more writes until a restart."""
        self._fault = str(getattr(error, "message", "")) or str(error)

    def append(self, entries: Sequence[bytes]) -> None:
        """`begin_append`, run and completed at once. Raises what the job raises."""
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
        """A job that replaces all entries whose append was completed by those of `snapshot`.

        These, and `kept`, must stand for exactly those; see `CompactJob`. Appends may be begun
        meanwhile; they are kept.

        Raises:
            StorageFault: the log takes no writes until a restart.
        """
        assert not self._compacting, "one compaction at a time"
        self.check_usable()
        self._compacting = True
        return CompactJob(self.tail, snapshot, self._size, self._entry_count - len(kept), kept)

    def complete_compact(self, job: CompactJob, size: int) -> None:
        """The compaction job is back with the `size` of the new file."""
        assert self._compacting
        assert job.replaced_entries <= self._entry_count
        assert FILE_HEADER_BYTES < job.snapshot_bytes <= size
        self._compacting = False
        self._entry_count -= job.replaced_entries
        self._size = size
        self._snapshot_bytes = max(job.snapshot_bytes, _COMPACT_BYTES_MIN)

    def fail_compact(self, job: CompactJob, error: BaseException) -> bool:
        """The job raised `error`. Returns whether the log is out of service now.

        False: the log is as it was. True: the new file has the name, but the name may not be on the
        disk; either file holds every entry, and nothing more may be written to one of them.
        """
        assert self._compacting
        assert job.key == self.tail.path
        self._compacting = False
        # On a full disk every append would bring another one, which writes all and ends in vain:
        # it is tried again when there is twice as much to gain.
        self._snapshot_bytes = max(self._snapshot_bytes, self._size)
        # The job is back, so no other thread writes this. (The next job has the same key, and sets
        # what it finds wrong again.)
        self._fault = self._fault or self.tail.fault
        return bool(self._fault)

    def flush_name(self) -> None:
        """Make all names in the log's directory durable. Raises OSError."""
        self.tail.disk.sync_dir(self.tail.path.rpartition("/")[0])
        self.tail.name_unflushed = False

    def replaced(self, size: int) -> None:
        """Another file, of one snapshot and nothing else, has taken the place of this one."""
        self._entry_count = 0
        self._size = size
        self._snapshot_bytes = max(size, _COMPACT_BYTES_MIN)

    def close(self) -> None:
        """Let go of the file; every completed entry is durable already."""
        self.tail.file.close()

    def check_usable(self) -> None:
        """Raises StorageFault when the log takes no more writes."""
        if self._fault:
            raise StorageFault(
                f"the metadata log takes no writes until a restart: {self._fault}",
                file=self.tail.path,
            )


def _flush_last(tail: Tail, data: bytes, frames: Frames) -> None:
    """Cut a torn frame, and write the last whole one once more.

    The last append's flush may have failed, or never been: what was read is in the cache, and the
    kernel may hold it for written. Decisions are built upon it from now on.
    """
    file = tail.file
    assert FILE_HEADER_BYTES <= frames.last <= frames.end
    assert frames.end <= len(data) == file.size
    if frames.end < len(data):
        file.truncate(frames.end)
    last = bytes(data[frames.last : frames.end])
    try:
        file.rewrite(frames.last, last)
    except DiskFull:
        # A broker must start for its readers. The next append makes up for it, or fails as well.
        tail.unflushed = (frames.last, last)
        return
    file.sync()
