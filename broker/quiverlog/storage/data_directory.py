"""The data directory as a whole: whose it is, who uses it, and whether it was left in order.

Owns:
- the lock          flock on the directory itself and on the file `lock` in it, so that two brokers
                    never share a directory; `lock` names the incarnation that has it;
- `node.json`       magic, format version, cluster id, node id, directory id (node_file.py);
- `clean-shutdown`  there only while a cleanly stopped broker's data lie still: consumed at start,
                    so that a crash at any later moment counts as unclean; it knows how long the
                    metadata log was, so that one that was cut since is noticed. Of another life
                    than the one in `lock` it is not believed;
- `clock`           the wall clock that was believed a while ago, or at the stop (node/clock.py);
- `made-directories` which partitions have had their directories, as of a version of the metadata
                    (node/unmade.py);
- `reserve`         bytes that stand for nothing, given up where a start finds no room for what it
                    must write;
- `metadata/`       the metadata log and the vote (quorum_log.py);
- `data/`           the partitions (partition_directories.py).

Every method raises errors of the error table, never a bare OSError. Whichever step fails, the next
start understands what is there.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

from quiverlog.errors import CorruptLog, DiskFull, QuiverlogError
from quiverlog.storage.checkpoint import Bounds
from quiverlog.storage.disk import Disk, DiskLock, out_of_descriptors
from quiverlog.storage.frames import pack_file, unpack_file
from quiverlog.storage.log_files import move_aside, rename_aside
from quiverlog.storage.node_file import NodeFile, identify, load_node
from quiverlog.storage.partition_directories import PartitionDirectories, typed_errors

__all__ = ["RESERVE_BYTES", "ClockNote", "DataDirectory"]

RESERVE_BYTES: Final = 512 * 1024
"""Room for the new leader epochs of some 15,000 partitions."""
_RESERVE_FREE_FACTOR: Final = 4
"""The reserve is only made where so many times its size is free."""
_CLEAN_FILE: Final = "clean-shutdown"
_OWNER: Final = re.compile("[0-9a-f]{32}")
_CLEAN_MAGIC: Final = b"QVCLEAN\0"
_CLEAN_VERSION: Final = 1
_CLEAN: Final = struct.Struct("<16sQ")
_CLOCK_MAGIC: Final = b"QVCLOCK\0"
_CLOCK_VERSION: Final = 1
_CLOCK: Final = struct.Struct("<Q")
_DOUBT: Final = struct.Struct("<QQ")
_MADE_FILE: Final = "made-directories"
_MADE_MAGIC: Final = b"QVMADE\0\0"
_MADE_VERSION: Final = 1
_MADE: Final = struct.Struct("<Q")
_UNMADE: Final = struct.Struct("<16sI")
_WHOSE: Final = 2**32 - 1
"""No partition's number: this entry has the id of the directory that the note is of."""
_REPLACEABLE: Final = (
    "clean-shutdown", "clean-shutdown.tmp", "node.json.tmp", "reserve", "reserve.tmp",
    "clock", "clock.tmp", "made-directories", "made-directories.tmp",
)  # fmt: skip
"""Files that a start can do without: what lies in their place and is no file is moved aside."""
_UNFINISHED: Final = (
    "quorum-state.tmp", "metadata.log.tmp", "metadata.log.new", "metadata.log.install",
)  # fmt: skip
"""So are these, of `metadata/`."""


class ClockNote(NamedTuple):
    """The wall clock that was believed; and one that was doubted, which had stayed there for so
    long. Zeros: none was."""

    believed_us: int
    doubted_us: int = 0
    stayed_us: int = 0


class DataDirectory(PartitionDirectories):
    """See the module docstring. `incarnation` is new at every start.

    `clean_incarnation`: of the life before this one, if it ended cleanly.
    `metadata_bytes`: length of the metadata log at the last clean stop; 0 when that is not known.
    `written`: the partitions that had rows at that stop, by name, so that they have files; and
    which rows, if the mark tells. Whoever opens a log takes it out: from then on the log knows.
    `notes`: what the operator should hear of this start.
    """

    __slots__ = (
        "_lock",
        "clean",
        "clean_incarnation",
        "cluster_id",
        "directory_id",
        "incarnation",
        "metadata_bytes",
        "node_id",
        "path",
        "written",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        lock: DiskLock,
        node: NodeFile,
        *,
        incarnation: bytes,
    ) -> None:
        assert incarnation
        super().__init__(disk, f"{path}/data")
        self._lock = lock
        self.path = path
        self.cluster_id = node.cluster_id
        self.node_id = node.node_id
        self.directory_id = node.directory_id
        self.incarnation = incarnation
        self.clean = False
        self.clean_incarnation = b""
        self.metadata_bytes = 0
        self.written: dict[str, Bounds | None] = {}

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        node_id: int,
        cluster_id: str = "",
        entropy: Callable[[int], bytes],
    ) -> DataDirectory:
        """Take the directory, making it when missing. A new one counts as clean.

        A directory that was used before is taken without a free byte on the disk.

        Args:
            cluster_id: empty takes the directory's own, or makes one up for a new directory.

        Raises:
            DataDirectoryInUse: another broker has it.
            ForeignDataDirectory: it belongs to another cluster or node.
            UnsupportedFormat: a newer quiverlog wrote it.
            CorruptLog: `node.json` is damaged.
            DiskFull, StorageFault: the disk is full (and the directory new), or failed.
        """
        with typed_errors(path):
            disk.make_dir(f"{path}/data")
            disk.make_dir(f"{path}/metadata")
            notes = move_aside(disk, path, ("lock",))
            lock = disk.lock(path, guarded=("data", "metadata"))
            try:
                notes += move_aside(disk, path, _REPLACEABLE)
                notes += move_aside(disk, f"{path}/metadata", _UNFINISHED)
                node, fresh = load_node(disk, path, node_id, cluster_id, entropy)
                incarnation = entropy(16)
                directory = cls(disk, path, lock, node, incarnation=incarnation)
                directory.notes += notes
                directory._restrict()
                directory._use_or_make_reserve()
                directory.directory_id = identify(disk, path, node, entropy)
                # Last: of a start that fails before this the next one is to know as much.
                if foreign := _move_foreign_mark_aside(disk, path):
                    directory.notes.append(foreign)
                mark = _consume_clean_mark(disk, path)
                directory.metadata_bytes, directory.written, directory.clean_incarnation = mark
                lock.claim(incarnation.hex().encode())
            except BaseException:
                lock.release()
                raise
        directory.clean = fresh or directory.metadata_bytes > 0
        assert not directory.written or directory.metadata_bytes > 0, "only a stop in order tells"
        return directory

    def _restrict(self) -> None:
        """Older brokers made directories that everybody could read."""
        for path in (self.data_path, self.metadata_path):
            with contextlib.suppress(OSError):
                if self._disk.restrict(path):
                    self.notes.append(f"{path} was open to others: now only its owner may enter")

    # --- paths ---------------------------------------------------------------------------------
    @property
    def metadata_path(self) -> str:
        """Where the metadata log lies."""
        return f"{self.path}/metadata"

    @property
    def _reserve_path(self) -> str:
        return f"{self.path}/reserve"

    # --- owning --------------------------------------------------------------------------------
    def is_owned(self) -> bool:
        """True while this is the directory that was locked, and nobody else uses it.

        `data/` and `metadata/` in it must be the same ones, too. Costs some stat calls and a read
        of a few bytes: off the loop, now and then. (Each flush looks at its own file.) Any thread
        may call it, also while another closes the directory.
        """
        return self._lock.holds()

    # --- the reserve ---------------------------------------------------------------------------
    def _use_or_make_reserve(self) -> None:
        """Give up the reserve where this start has no room, else keep some for the next.

        What a start must make durable (this incarnation, new leader epochs) takes little, and
        without it a full disk would keep the rows from their readers.
        """
        try:
            free_bytes = self._disk.free_bytes(self.path)
            if free_bytes < RESERVE_BYTES:
                if self.release_reserve():
                    self.notes.append("the disk is full: the reserve was given up for this start")
            elif free_bytes >= _RESERVE_FREE_FACTOR * RESERVE_BYTES and not self._has_reserve():
                self._disk.write_file_atomic(self._reserve_path, bytes(RESERVE_BYTES))
        except (OSError, QuiverlogError) as error:
            self.notes.append(f"no reserve of disk space could be made: {error}")

    def _has_reserve(self) -> bool:
        return self._disk.exists(self._reserve_path)

    def release_reserve(self) -> bool:
        """Give up the reserved room; False when there is none.

        For what must be durable before anybody is served. The next start with room makes it anew.
        """
        with typed_errors(self._reserve_path):
            if not self._has_reserve():
                return False
            self._disk.remove(self._reserve_path)
            return True

    # --- the clock -----------------------------------------------------------------------------
    @property
    def clock_path(self) -> str:
        """Where the note of the clock lies."""
        return f"{self.path}/clock"

    def noted_clock(self) -> ClockNote | None:
        """The wall clock as it was noted; None when nothing good is there."""
        path = self.clock_path
        try:
            payload = unpack_file(path, self._disk.read_file(path), _CLOCK_MAGIC, _CLOCK_VERSION)
            (wall_us,) = _CLOCK.unpack_from(payload)
            doubt = payload[_CLOCK.size :]
            return ClockNote(wall_us, *(_DOUBT.unpack(doubt) if doubt else ()))
        except (CorruptLog, struct.error, OSError):
            return None

    def note_clock(self, note: ClockNote) -> None:
        """Write down the wall clock, if the directory is still ours.

        Raises:
            DiskFull, StorageFault: the note is the one of before.
        """
        with typed_errors(self.clock_path):
            if self.is_owned():
                believed_us, *doubt = (max(0, value) for value in note)
                payload = _CLOCK.pack(believed_us) + (_DOUBT.pack(*doubt) if any(doubt) else b"")
                data = pack_file(_CLOCK_MAGIC, _CLOCK_VERSION, payload)
                self._disk.write_file_atomic(self.clock_path, data)

    # --- which directories were made -----------------------------------------------------------
    @property
    def made_path(self) -> str:
        """Where it is noted which partitions have their directories."""
        return f"{self.path}/{_MADE_FILE}"

    def noted_made(self) -> tuple[int, frozenset[tuple[bytes, int]]] | None:
        """Up to which metadata version partitions had their directories, and which of them had
        none, by topic id and number; None when nothing good is there.

        A note that names another directory is moved aside, which `notes` tell: by it a lost
        partition may pass for one that was never made. An older version's names none.

        Raises StorageFault: it cannot be moved.
        """
        path = self.made_path
        try:
            payload = unpack_file(path, self._disk.read_file(path), _MADE_MAGIC, _MADE_VERSION)
            (version,) = _MADE.unpack_from(payload)
            unmade = frozenset(_UNMADE.iter_unpack(payload[_MADE.size :]))
        except (CorruptLog, struct.error, OSError):
            return None
        whose = {one for one in unmade if one[1] == _WHOSE}
        if whose - {self._whose}:
            new = rename_aside(self._disk, self.path, _MADE_FILE, self._disk.list(self.path))
            named = ", ".join(sorted(one[0].hex() for one in whose))
            self.notes.append(
                f"{_MADE_FILE} is of the directory {named}, and this one is {self.directory_id}: it"
                f" was not believed, and moved to {new}"
            )
            return None
        return int(version), unmade - whose

    @property
    def _whose(self) -> tuple[bytes, int]:
        assert len(self.directory_id) == 32, "sixteen bytes, as the id of a topic"
        return bytes.fromhex(self.directory_id), _WHOSE

    def note_made(self, version: int, unmade: Iterable[tuple[bytes, int]]) -> None:
        """Write that down, if the directory is still ours.

        Raises:
            DiskFull, StorageFault: the note is the one of before.
        """
        assert version >= 0
        with typed_errors(self.made_path):
            if self.is_owned():
                payload = _MADE.pack(version) + b"".join(
                    _UNMADE.pack(*one) for one in (*unmade, self._whose)
                )
                note = pack_file(_MADE_MAGIC, _MADE_VERSION, payload)
                self._disk.write_file_atomic(self.made_path, note)

    # --- the end -------------------------------------------------------------------------------
    def close(
        self,
        *,
        clean: bool,
        metadata_bytes: int = 0,
        written: Mapping[str, Bounds | None] | None = None,
    ) -> None:
        """Let go. `clean`: all logs were closed cleanly, the next start may trust them.

        Args:
            written: the partitions that have rows, or had them, by name.

        Raises:
            DiskFull, StorageFault: the mark was not written; the directory is let go.
        """
        assert metadata_bytes >= 0
        for name in written or ():
            assert not set(name) & set(" \n"), "the mark is read by its lines and blanks"
        try:
            if clean and self.is_owned():
                payload = _CLEAN.pack(self.incarnation, metadata_bytes)
                lines = (
                    name if bounds is None else f"{name} {bounds.start_offset} {bounds.end_offset}"
                    for name, bounds in sorted((written or {}).items(), key=itemgetter(0))
                )
                payload += "\n".join(lines).encode()
                self._write_mark(pack_file(_CLEAN_MAGIC, _CLEAN_VERSION, payload))
        finally:
            self._lock.release()

    def _write_mark(self, mark: bytes) -> None:
        path = f"{self.path}/clean-shutdown"
        try:
            self._disk.write_file_atomic(path, mark)
        except DiskFull:
            if not self.release_reserve():
                raise
            self._disk.write_file_atomic(path, mark)


def _move_foreign_mark_aside(disk: Disk, path: str) -> str:
    """A mark of another life than the one that `lock` names says nothing of what lies here.

    Returns a note of it; empty where there is none, or nothing to compare it with.
    """
    mark = f"{path}/{_CLEAN_FILE}"
    if not disk.exists(mark):
        return ""
    try:
        payload = unpack_file(mark, disk.read_file(mark), _CLEAN_MAGIC, _CLEAN_VERSION)
        incarnation, _ = _CLEAN.unpack_from(payload)
        owner = disk.read_file(f"{path}/lock").decode()
        assert len(incarnation) == 16, "as long as what the lock names"
    except (CorruptLog, struct.error, UnicodeError, OSError):
        return ""  # A damaged mark is consumed, and proves nothing.
    if not _OWNER.fullmatch(owner) or owner == incarnation.hex():
        return ""
    new = rename_aside(disk, path, _CLEAN_FILE, disk.list(path))
    disk.sync_dir(path)
    assert not disk.exists(mark), "it must not be consumed"
    return (
        f"{_CLEAN_FILE} is of the life {incarnation.hex()}, and {owner} had this directory last:"
        f" it was not believed, and moved to {new}; this start is one after a crash"
    )


def _consume_clean_mark(disk: Disk, path: str) -> tuple[int, dict[str, Bounds | None], bytes]:
    """(length of the metadata log, partitions with rows, incarnation) at the last stop.

    The length is 0 if it was not clean.

    The mark is gone, durably, before anything is written that it speaks of.
    """
    mark = f"{path}/{_CLEAN_FILE}"
    if not disk.exists(mark):
        return 0, {}, b""
    incarnation = b""
    written: dict[str, Bounds | None] = {}
    try:
        payload = unpack_file(mark, disk.read_file(mark), _CLEAN_MAGIC, _CLEAN_VERSION)
        incarnation, metadata_bytes = _CLEAN.unpack_from(payload)
        for line in payload[_CLEAN.size :].decode().splitlines():
            name, *offsets = line.split(" ")
            written[name] = Bounds(*map(int, offsets)) if offsets else None
    except (CorruptLog, struct.error, ValueError, TypeError):
        metadata_bytes = 0  # A damaged mark proves nothing: scan.
    except OSError as error:
        if out_of_descriptors(error):
            raise
        metadata_bytes = 0  # Nor does one that cannot be read.
    disk.remove(mark)
    disk.sync_dir(path)
    assert metadata_bytes >= 0
    return (metadata_bytes, written, incarnation) if metadata_bytes else (0, {}, b"")
