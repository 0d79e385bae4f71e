"""The data directory: its lock, its identity, the mark of a clean stop, and the partitions in
`data/`.

`clean-shutdown` is consumed at start: any later crash counts as unclean. A partition to be removed
is first renamed to `<topic id>-<8 hex>.deleted`: a crash half way leaves nothing that looks like a
partition. A start removes rows only when the metadata has their topic as deleted; those of an
unknown topic are set aside as `*.orphan`.

Invariant: errors are those of the error table, never a bare OSError; whichever step fails, the next
start can read the directory.
"""

from __future__ import annotations

import contextlib
import errno
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

from quiverlog.errors import CorruptLog, DiskFull, QuiverlogError
from quiverlog.storage.directory.node_file import NodeFile, load_node
from quiverlog.storage.disk.disk import Disk, DiskLock, out_of_descriptors, write_error
from quiverlog.storage.disk.frames import pack_file, unpack_file
from quiverlog.storage.log.checkpoint import Bounds
from quiverlog.storage.log.files import (
    DAMAGED,
    EMPTIED_FILE,
    ORPHAN,
    PARTITION_FILE,
    doomed_name,
    is_damaged_id,
    is_doomed_name,
    is_partition_name,
    names_itself,
    orphan_name,
    printable,
    read_topic_id,
    write_partition_file,
)
from quiverlog.storage.segment.names import move_aside, rename_aside

__all__ = ["RESERVE_BYTES", "ClockNote", "DataDirectory", "PartitionDirectories", "typed_errors"]


_ORPHANS_OF_A_NAME_MAX: Final = 1_000
_REMOVED_AT_ONCE: Final = 16
"""Beyond these, leftovers whose name no partition has are removed while requests are served."""


@contextlib.contextmanager
def typed_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_error(error.filename or path, error) from error


def _is_of_the_disk(error: QuiverlogError) -> bool:
    """Return True for a failure of the disk; False for another format."""
    return isinstance(error.__cause__, OSError) or error.retriable


class PartitionDirectories:
    __slots__ = ("_disk", "notes", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.notes: list[str] = []

    def partition_path(self, name: str) -> str:
        return f"{self.path}/{name}"

    def partitions(self) -> list[str]:
        with typed_errors(self.path):
            return [name for name in self._disk.directories(self.path) if is_partition_name(name)]

    def missing(self, names: Collection[str]) -> list[str]:
        there = set(self.partitions())
        return sorted(name for name in names if name not in there)

    # --- making and removing -------------------------------------------------------------------
    def create_partition(self, name: str, topic_id: bytes) -> bool:
        """Make a partition's directory; False where this topic has it already. Its name is durable
        after `sync_partitions`, its `partition.json` with the first rows."""
        assert is_partition_name(name)
        assert len(topic_id) == 16, "another one counts as torn when it is read again"
        path = self.partition_path(name)
        with typed_errors(path):
            if self._disk.exists(path):
                owner = read_topic_id(self._disk, path)
                if owner == topic_id:
                    return False
                if owner is None:  # It may hold this topic's rows.
                    raise OSError(errno.EIO, "it cannot be read whose directory this is", path)
                self.remove_partition(name)
            try:
                self._disk.make_dir(path)
                # Not flushed: thousands of partitions must not cost as many fsyncs. A power failure
                # may tear it; `remove_leftovers` then labels the directory again.
                write_partition_file(self._disk, path, name, topic_id)
            except BaseException:
                with contextlib.suppress(OSError, QuiverlogError):
                    self._disk.remove_tree(path)
                raise
        return True

    def sync_partitions(self) -> None:
        with typed_errors(self.path):
            self._disk.sync_dir(self.path)

    def remove_partition(self, name: str) -> None:
        self.remove_partitions({name: None})

    def remove_partitions(self, owners: Mapping[str, bytes | None]) -> None:
        """Remove partitions by name, with the topic id that each must have; None: any."""
        doomed: list[str] = []
        failures: list[QuiverlogError] = []
        for name, topic_id in owners.items():
            try:
                doomed.extend(self._doom(name, topic_id))
            except QuiverlogError as error:
                failures.append(error)
        if doomed:
            self.sync_partitions()
        for path in doomed:
            try:
                with typed_errors(path):
                    self._disk.remove_tree(path)
            except QuiverlogError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _doom(self, name: str, topic_id: bytes | None) -> list[str]:
        path = self.partition_path(name)
        with typed_errors(path):
            if not self._disk.exists(path):
                return []
            owner = read_topic_id(self._disk, path)
            if topic_id is not None and owner not in (topic_id, b""):
                return []
            doomed = self.partition_path(doomed_name(name, owner or b""))
            self._disk.remove_tree(doomed)  # An earlier process began this removal.
            assert doomed != path
            self._disk.rename(path, doomed)
        return [doomed]

    # --- what a start finds --------------------------------------------------------------------
    def remove_leftovers(
        self,
        owners: Mapping[str, bytes],
        removed: Collection[bytes],
        *,
        written: Collection[str] = (),
        later: dict[str, bytes] | None = None,
    ) -> tuple[list[str], list[str]]:
        """Clear away all directories without a topic; return (names removed, names set aside).

        What cannot be removed or set aside stays, and is reported in `notes`: of the content only a
        `partition.json` of another format keeps a broker from starting. A directory whose
        `partition.json` cannot be read is kept when its name is in `owners`.

        `removed`: ids of deleted topics. `written`: partitions that had rows at a clean stop; one
        without any file was emptied by hand, and is not taken for a new one. (One without rows may
        have lost its only file to a power failure.) `later` gets those beyond a few, for
        `remove_partitions` while requests are served.
        """
        gone: list[str] = []
        aside: list[str] = []
        with typed_errors(self.path):
            names = self._disk.list(self.path)
            directories = frozenset(self._disk.directories(self.path))
        for name in names:
            if name not in directories:
                self._note(name, "not a directory")
                continue
            try:
                own = owners.get(name)
                if own and read_topic_id(self._disk, self.partition_path(name)) == own:
                    continue  # Nearly always: a directory with its file in it.
                with typed_errors(self.partition_path(name)):
                    self._judge(name, owners, removed, gone, aside, written, later)
            except QuiverlogError as error:
                if not _is_of_the_disk(error):
                    raise
                self._note(name, error.message)
        assert not set(gone) & set(aside), "a directory has one fate"
        assert not later or not owners.keys() & later.keys(), "a name that is owned is free by now"
        return gone, aside

    def _judge(
        self,
        name: str,
        owners: Mapping[str, bytes],
        removed: Collection[bytes],
        gone: list[str],
        aside: list[str],
        written: Collection[str],
        later: dict[str, bytes] | None,
    ) -> None:
        path = self.partition_path(name)
        shown = printable(name)
        if is_doomed_name(name):
            self._disk.remove_tree(path)
            gone.append(shown)
        elif not name.endswith((ORPHAN, DAMAGED)):
            owner = read_topic_id(self._disk, path)
            if owner not in removed and self._has_damaged_label(name, owner, owners.get(name)):
                self.notes.append(
                    f"data/{shown}: the topic id in its {PARTITION_FILE} was damaged: written anew"
                )
                self._label(name, owners[name])
            elif name in owners and owner in (owners[name], b"", None):
                if owner is None:
                    self._note(name, f"its {PARTITION_FILE} could not be read")
                if owner == owners[name]:
                    return  # A directory with a file in it.
                if name in written and not self._disk.list(path):
                    self._disk.write_file_atomic(f"{path}/{EMPTIED_FILE}", b"")
                else:  # Missing or torn, as a power failure leaves it.
                    self._label(name, owners[name])
            elif owner is None:
                self._note(name, f"its {PARTITION_FILE} cannot be read")
            elif owner in removed or self._is_unfinished(name):
                # A name that is owned must be free before its partition is opened.
                if later is not None and name not in owners and len(gone) >= _REMOVED_AT_ONCE:
                    later[name] = owner
                else:
                    self.remove_partition(name)
                    gone.append(shown)
            elif owner or self._holds_rows(name):
                self._set_aside(name, owner)
                aside.append(shown)
            else:
                self._note(name, "not a partition")

    def unknown_rows(self, owners: Mapping[str, bytes], removed: Collection[bytes]) -> list[str]:
        found: list[str] = []
        for name in self.partitions():
            path = self.partition_path(name)
            with contextlib.suppress(QuiverlogError), typed_errors(path):
                owner = read_topic_id(self._disk, path)
                own = owners.get(name)
                owned = own is not None and owner in (own, b"", None)
                owned = owned or self._has_damaged_label(name, owner, own)
                if not owned and owner not in removed and self._holds_rows(name):
                    found.append(name)
        return found

    def _has_damaged_label(self, name: str, owner: bytes | None, own: bytes | None) -> bool:
        """Return True if a few flipped bits turned a partition's topic id into one that no topic
        has.

        Ids are random: two that differ in so few bits are one and the same, damaged. The
        directory's name, and the name in the file, still give the owner.
        """
        return (
            bool(owner and own)
            and is_damaged_id(owner or b"", own or b"")
            and names_itself(self._disk, self.partition_path(name), name)
        )

    def _note(self, name: str, why: str) -> None:
        self.notes.append(f"data/{printable(name)} was left alone: {why}")

    def _label(self, name: str, topic_id: bytes) -> None:
        """Write an owned partition's file anew; a failure is no error."""
        with contextlib.suppress(QuiverlogError):
            write_partition_file(self._disk, self.partition_path(name), name, topic_id)

    def _is_unfinished(self, name: str) -> bool:
        ours = {PARTITION_FILE, f"{PARTITION_FILE}.tmp"}
        return is_partition_name(name) and ours.issuperset(
            self._disk.list(self.partition_path(name))
        )

    def _holds_rows(self, name: str) -> bool:
        return any(file.endswith(".log") for file in self._disk.list(self.partition_path(name)))

    def _set_aside(self, name: str, owner: bytes) -> None:
        path = self.partition_path(name)
        if owner:
            self._label(name, owner)  # The name may be cut.
        for attempt in range(_ORPHANS_OF_A_NAME_MAX):
            aside = self.partition_path(orphan_name(name, owner, attempt))
            if not self._disk.exists(aside):
                break
        self._disk.rename(path, aside)
        self._disk.sync_dir(self.path)


RESERVE_BYTES: Final = 512 * 1024
"""Room for the new leader epochs of some 15,000 partitions."""
_RESERVE_FREE_FACTOR: Final = 4
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
_PENDING: Final = struct.Struct("<16sI")
_OWNER_NUMBER: Final = 2**32 - 1
"""No partition's number: this entry has the id of the directory that the note is of."""
_REPLACEABLE: Final = (
    "clean-shutdown", "clean-shutdown.tmp", "node.json.tmp", "reserve", "reserve.tmp",
    "clock", "clock.tmp", "made-directories", "made-directories.tmp",
)  # fmt: skip
"""Files that a start can do without: what has their name and is no file is moved aside."""
_UNFINISHED: Final = (
    "quorum-state.tmp", "metadata.log.tmp", "metadata.log.new", "metadata.log.install",
)  # fmt: skip
"""So are these, of `metadata/`."""


class ClockNote(NamedTuple):
    believed_us: int
    doubted_us: int = 0
    stayed_us: int = 0


class DataDirectory:
    """`incarnation` is new at every start; `clean_incarnation` is that of the process before, if it
    ended cleanly. `metadata_bytes`: length of the metadata log at the last clean stop, or 0.
    `written`: the bounds of the partitions that had rows at that stop, by name. The opening of a
    log takes its entry out: from then on the log has them."""

    __slots__ = (
        "_disk",
        "_lock",
        "clean",
        "clean_incarnation",
        "cluster_id",
        "data",
        "directory_id",
        "incarnation",
        "metadata_bytes",
        "node_id",
        "notes",
        "path",
        "proof_required",
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
        self.data = PartitionDirectories(disk, f"{path}/data")
        self.notes = self.data.notes
        self._disk = disk
        self._lock = lock
        self.path = path
        self.cluster_id = node.cluster_id
        self.node_id = node.node_id
        self.directory_id = node.directory_id
        self.proof_required = node.proof_required is True
        self.incarnation = incarnation
        self.clean = False
        self.clean_incarnation = b""
        self.metadata_bytes = 0
        self.written: dict[str, Bounds] = {}

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        *,
        node_id: int,
        cluster_id: str = "",
        entropy: Callable[[int], bytes],
        proof_required: bool = False,
        also_of_old: bool = False,
    ) -> DataDirectory:
        """Take the directory, making it when missing; a new one counts as clean. Needs no free byte
        in a directory that was used before. An empty `cluster_id` takes the directory's own, or a
        new one. A new directory records `proof_required`; an older one if `also_of_old`, which
        takes room once."""
        with typed_errors(path):
            disk.make_dir(f"{path}/data")
            disk.make_dir(f"{path}/metadata")
            notes = move_aside(disk, path, ("lock",))
            lock = disk.lock(path, guarded=("data", "metadata"))
            try:
                notes += move_aside(disk, path, _REPLACEABLE)
                notes += move_aside(disk, f"{path}/metadata", _UNFINISHED)
                node, fresh = load_node(
                    *(disk, path, node_id, cluster_id, entropy),
                    proof_required=proof_required,
                    also_of_old=also_of_old,
                )
                incarnation = entropy(16)
                directory = cls(disk, path, lock, node, incarnation=incarnation)
                directory.notes += notes
                directory._restrict()
                directory._use_or_make_reserve()
                # Last: if a start fails before this, the next one finds the files unchanged.
                if foreign := _move_foreign_mark_aside(disk, path):
                    directory.notes.append(foreign)
                mark = _consume_clean_mark(disk, path)
                directory.metadata_bytes, directory.written, directory.clean_incarnation = mark
                lock.claim(incarnation.hex().encode())
            except BaseException:
                lock.release()
                raise
        directory.clean = fresh or directory.metadata_bytes > 0
        assert not directory.written or directory.metadata_bytes > 0, (
            "only a clean stop writes the bounds"
        )
        return directory

    def _restrict(self) -> None:
        """A backup that was put back may have left them open to other users."""
        for path in (self.data.path, self.metadata_path):
            with contextlib.suppress(OSError):
                if self._disk.restrict(path):
                    self.notes.append(f"{path} was open to others: now only its owner may enter")

    # --- paths ---------------------------------------------------------------------------------
    @property
    def metadata_path(self) -> str:
        return f"{self.path}/metadata"

    @property
    def _reserve_path(self) -> str:
        return f"{self.path}/reserve"

    # --- owning --------------------------------------------------------------------------------
    def is_owned(self) -> bool:
        """Return whether the lock still holds. Costs some stat calls and a short read: call it off
        the loop. Any thread may call it, also while another closes the directory."""
        return self._lock.holds()

    # --- the reserve ---------------------------------------------------------------------------
    def _use_or_make_reserve(self) -> None:
        """Keep room for what a start must make durable (this incarnation, new leader epochs):
        without it a full disk would keep the rows from their readers."""
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
        """Remove the reserve, for what must be durable before requests are served; False if there
        is none.

        The next start with free space makes it anew.
        """
        with typed_errors(self._reserve_path):
            if not self._has_reserve():
                return False
            self._disk.remove(self._reserve_path)
            return True

    # --- the clock -----------------------------------------------------------------------------
    @property
    def clock_path(self) -> str:
        return f"{self.path}/clock"

    def noted_clock(self) -> ClockNote | None:
        path = self.clock_path
        try:
            payload = unpack_file(path, self._disk.read_file(path), _CLOCK_MAGIC, _CLOCK_VERSION)
            (wall_us,) = _CLOCK.unpack_from(payload)
            doubt = payload[_CLOCK.size :]
            return ClockNote(wall_us, *(_DOUBT.unpack(doubt) if doubt else ()))
        except (CorruptLog, struct.error, OSError):
            return None

    def note_clock(self, note: ClockNote) -> None:
        with typed_errors(self.clock_path):
            if self.is_owned():
                believed_us, *doubt = (max(0, value) for value in note)
                payload = _CLOCK.pack(believed_us) + (_DOUBT.pack(*doubt) if any(doubt) else b"")
                data = pack_file(_CLOCK_MAGIC, _CLOCK_VERSION, payload)
                self._disk.write_file_atomic(self.clock_path, data)

    # --- which directories were made -----------------------------------------------------------
    @property
    def made_path(self) -> str:
        return f"{self.path}/{_MADE_FILE}"

    def noted_made(self) -> tuple[int, frozenset[tuple[bytes, int]]] | None:
        """Return (metadata version up to which partitions had their directories, those without, by
        topic id and number); None if there is no good note.

        A note that names another directory is moved aside: by it a lost partition may pass for one
        that was never made.
        """
        path = self.made_path
        try:
            payload = unpack_file(path, self._disk.read_file(path), _MADE_MAGIC, _MADE_VERSION)
            (version,) = _MADE.unpack_from(payload)
            pending = frozenset(_PENDING.iter_unpack(payload[_MADE.size :]))
        except (CorruptLog, struct.error, OSError):
            return None
        owners = {one for one in pending if one[1] == _OWNER_NUMBER}
        if owners != {self._owner_entry}:
            with typed_errors(path):
                new = rename_aside(self._disk, self.path, _MADE_FILE, self._disk.list(self.path))
            named = ", ".join(sorted(one[0].hex() for one in owners)) or "unnamed"
            self.notes.append(
                f"{_MADE_FILE} is of the directory {named}, and this one is {self.directory_id}: it"
                f" was ignored, and moved to {new}"
            )
            return None
        return int(version), pending - owners

    @property
    def _owner_entry(self) -> tuple[bytes, int]:
        assert len(self.directory_id) == 32, "sixteen bytes, as the id of a topic"
        return bytes.fromhex(self.directory_id), _OWNER_NUMBER

    def note_made(self, version: int, pending: Iterable[tuple[bytes, int]]) -> None:
        assert version >= 0
        with typed_errors(self.made_path):
            if self.is_owned():
                payload = _MADE.pack(version) + b"".join(
                    _PENDING.pack(*one) for one in (*pending, self._owner_entry)
                )
                note = pack_file(_MADE_MAGIC, _MADE_VERSION, payload)
                self._disk.write_file_atomic(self.made_path, note)

    # --- the end -------------------------------------------------------------------------------
    def close(
        self,
        *,
        clean: bool,
        metadata_bytes: int = 0,
        written: Mapping[str, Bounds] | None = None,
    ) -> None:
        """Release the directory. `clean`: all logs were closed cleanly, the next start may trust
        them."""
        assert metadata_bytes >= 0
        for name in written or ():
            assert not set(name) & set(" \n"), "the mark is read by its lines and blanks"
        try:
            if clean and self.is_owned():
                payload = _CLEAN.pack(self.incarnation, metadata_bytes)
                lines = (
                    f"{name} {bounds.start_offset} {bounds.end_offset}"
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
        f" it was ignored, and moved to {new}; this start is one after a crash"
    )


def _consume_clean_mark(disk: Disk, path: str) -> tuple[int, dict[str, Bounds], bytes]:
    """Return (length of the metadata log, partitions with rows, incarnation) at the last stop.

    The mark is removed, durably, before anything is written that it covers.
    """
    mark = f"{path}/{_CLEAN_FILE}"
    if not disk.exists(mark):
        return 0, {}, b""
    incarnation = b""
    written: dict[str, Bounds] = {}
    try:
        payload = unpack_file(mark, disk.read_file(mark), _CLEAN_MAGIC, _CLEAN_VERSION)
        incarnation, metadata_bytes = _CLEAN.unpack_from(payload)
        for line in payload[_CLEAN.size :].decode().splitlines():
            name, *offsets = line.split(" ")
            written[name] = Bounds(*map(int, offsets))
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
