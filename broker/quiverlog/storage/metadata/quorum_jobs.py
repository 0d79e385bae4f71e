"""Jobs of a quorum's log, and the bytes of its items and of `quorum-state`.

The parts of a `Write` become durable in the order hard state, entries, chunk. An entry with an
existing index replaces that one and all after it.

Invariant: jobs of one log run one after another; only they use the `Plate`. A `quorum-state` that
is damaged, or missing beside a log, prevents the start: it is never guessed.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from quiverlog.core.raft.membership import unpack_voters
from quiverlog.core.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    ReplicaKey,
    SnapshotChunk,
    SnapshotMeta,
)
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.snapshots import SnapshotRead
from quiverlog.errors import (
    CorruptLog,
    DiskFull,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
    UnsupportedFormat,
)
from quiverlog.storage.disk.disk import Disk, File, is_special_file, short_name, write_error
from quiverlog.storage.disk.frames import pack_file, unpack_file
from quiverlog.storage.metadata.metadata_log import (
    FILE_HEADER_BYTES,
    FRAME_OVERHEAD_BYTES,
    ITEM_OVERHEAD_BYTES,
    AppendJob,
    CompactJob,
    Tail,
    file_header,
    parse,
    restore_error,
)

__all__ = [
    "INSTALL_SUFFIX",
    "STATE_FILE",
    "Chunk",
    "History",
    "Plate",
    "ReadChunkJob",
    "Snapshot",
    "SnapshotJob",
    "WriteJob",
    "Written",
    "is_passing",
    "load_state",
    "pack_entry",
    "pack_snapshot",
    "pack_state",
    "snapshot_frame_bytes",
    "unpack_history",
    "unpack_snapshot",
]


_SNAPSHOT: Final = b"S"
_ENTRY: Final = b"E"
_U32: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<cQQB")
_META_VERSION: Final = 1
_KINDS: Final = frozenset(map(int, EntryKind))


class _Meta(msgspec.Struct, array_like=True):
    """Fields are appended, never changed."""

    version: int
    index: int
    term: int
    voters: list[tuple[int, str, str]]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Meta)


class Snapshot(NamedTuple):
    meta: SnapshotMeta
    records: bytes


class History(NamedTuple):
    snapshot: Snapshot
    entries: list[Entry]


def pack_snapshot(snapshot: Snapshot) -> bytes:
    meta, records = snapshot
    assert meta.index >= 0
    assert meta.term >= 0
    voters = [(*key, endpoint) for key, endpoint in sorted(meta.voters.items())]
    packed = _encoder.encode(_Meta(_META_VERSION, meta.index, meta.term, voters))
    return b"".join((_SNAPSHOT, _U32.pack(len(packed)), packed, records))


def snapshot_frame_bytes(item_bytes: int) -> int:
    assert item_bytes > 0
    return FRAME_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES + item_bytes


def unpack_snapshot(path: str, item: bytes) -> Snapshot:
    if item[:1] not in (_SNAPSHOT, _ENTRY):  # Not damage: its frame's checksum matched.
        raise UnsupportedFormat(f"{path} has the entries of a quiverlog before its first release.")
    if item[:1] != _SNAPSHOT or len(item) < 1 + _U32.size:
        raise restore_error(path, "does not begin with a snapshot")
    end = 1 + _U32.size + int(_U32.unpack_from(item, 1)[0])
    try:
        meta = _decoder.decode(item[1 + _U32.size : end])
    except msgspec.MsgspecError as error:
        raise restore_error(path, f"has a snapshot that cannot be read ({error})") from error
    if meta.version < _META_VERSION:
        raise UnsupportedFormat(f"{path} has a snapshot of version {meta.version}.")
    voters = {ReplicaKey(node, directory): endpoint for node, directory, endpoint in meta.voters}
    return Snapshot(SnapshotMeta(meta.index, meta.term, voters), item[end:])


def pack_entry(entry: Entry) -> bytes:
    assert entry.index > 0
    assert entry.term >= 0
    return _HEAD.pack(_ENTRY, entry.index, entry.term, entry.kind) + entry.data


def _unpack_entry(path: str, item: bytes) -> Entry:
    if item[:1] != _ENTRY or len(item) < _HEAD.size:
        raise restore_error(path, "has an entry that is none")
    _, index, term, kind = _HEAD.unpack_from(item)
    if kind not in _KINDS:
        raise UnsupportedFormat(f"{path} has an entry of an unknown kind, {kind}.")
    entry = Entry(index, term, EntryKind(kind), item[_HEAD.size :])
    if entry.kind is EntryKind.VOTERS:
        try:
            unpack_voters(entry.data)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise restore_error(path, f"has voters that cannot be read ({error})") from error
    return entry


def unpack_history(path: str, items: Sequence[bytes]) -> History:
    if not items:
        raise restore_error(path, "does not begin with a snapshot")
    snapshot = unpack_snapshot(path, items[0])
    entries: list[Entry] = []
    for item in items[1:]:
        entry = _unpack_entry(path, item)
        if not entries:
            if not 0 < entry.index <= snapshot.meta.index + 1:
                raise restore_error(
                    path, f"has entry {entry.index} after snapshot {snapshot.meta.index}"
                )
        else:
            place = entry.index - entries[0].index
            if not 0 <= place <= len(entries):
                raise restore_error(path, f"has entry {entry.index} after {entries[-1].index}")
            del entries[place:]
        if entries and entry.term < entries[-1].term:
            raise restore_error(path, f"has a term that falls at entry {entry.index}")
        entries.append(entry)
    assert not entries or entries[-1].index - entries[0].index == len(entries) - 1
    _check_agreement(path, snapshot.meta, entries)
    return History(snapshot, entries)


def _check_agreement(path: str, meta: SnapshotMeta, entries: Sequence[Entry]) -> None:
    if not entries:
        return
    place = meta.index - entries[0].index
    if entries[-1].index < meta.index:
        raise restore_error(path, f"ends at entry {entries[-1].index}, before its snapshot")
    if place >= 0 and entries[place].term != meta.term:
        raise restore_error(path, f"has another entry {meta.index} than its snapshot")
    if place < 0 and entries[0].term < meta.term:
        raise restore_error(path, "has an older term behind its snapshot")


STATE_FILE: Final = "quorum-state"
_MAGIC: Final = b"QVQUORUM"
_VERSION: Final = 1
_STATE: Final = struct.Struct("<QBq")


def pack_state(state: HardState) -> bytes:
    assert state.term >= 0
    assert state.term > 0 or state.vote is None, "no vote is given before the first term"
    vote = state.vote
    node_id, directory_id = (0, "") if vote is None else vote
    payload = _STATE.pack(state.term, vote is not None, node_id) + directory_id.encode()
    return pack_file(_MAGIC, _VERSION, payload)


def load_state(disk: Disk, path: str) -> HardState | None:
    if not disk.exists(path):
        return None
    try:
        payload = unpack_file(path, disk.read_file(path), _MAGIC, _VERSION)
        term, has_voted, node_id = _STATE.unpack_from(payload)
        vote = ReplicaKey(node_id, payload[_STATE.size :].decode()) if has_voted else None
    except (CorruptLog, struct.error, UnicodeDecodeError) as error:
        raise restore_error(path, "is damaged") from error
    except OSError as error:
        if not is_special_file(error):
            raise
        raise restore_error(path, "is not a regular file") from error
    return HardState(term, vote)


INSTALL_SUFFIX: Final = ".install"


class Plate:
    """The files, for the jobs. `frame_bytes`: length of the first snapshot's frame, which is sent
    to followers."""

    __slots__ = ("frame_bytes", "incoming", "snapshot", "state_path", "tail")

    def __init__(
        self, tail: Tail, state_path: str, snapshot: SnapshotMeta, frame_bytes: int
    ) -> None:
        assert frame_bytes > 0
        self.tail = tail
        self.state_path = state_path
        self.snapshot = snapshot
        self.frame_bytes = frame_bytes
        self.incoming: File | None = None


class Written(NamedTuple):
    size: int
    restored: Snapshot | None


class WriteJob:
    """`state_written`: the hard state is durable, whatever became of the rest. `harmless`: the job
    failed and changed, besides the hard state, a temporary file at most."""

    __slots__ = ("_plate", "append", "harmless", "key", "kind", "state_written", "write")

    def __init__(self, plate: Plate, write: Write, append: AppendJob | None) -> None:
        assert (append is not None) == bool(write.entries)
        assert append is None or write.chunk is None, "a chunk comes with no entries"
        self._plate = plate
        self.write = write
        self.append = append
        self.state_written = False
        self.harmless = False
        self.key = plate.tail.path
        self.kind = "metadata append"

    def run(self) -> Written:
        """Write. Raises DiskFull or ThrottledBroker: try again; StorageFault: see `harmless`."""
        tail = self._plate.tail
        tail.check()
        if self.write.hard_state is not None:
            # A new temporary file each time: after an earlier failure, this one is flushed as a
            # whole.
            state = pack_state(self.write.hard_state)
            try:
                tail.disk.write_file_atomic(self._plate.state_path, state)
            except StorageFault as error:
                raise tail.fail("writing the vote", error.__cause__ or error) from error
            self.state_written = True
        if self.append is not None:
            return Written(self.append.run(), None)
        if self.write.chunk is None:
            return Written(tail.file.size, None)
        try:
            return self._take_chunk(self.write.chunk)
        except (OSError, QuiverlogError) as error:
            self._give_up()
            self.harmless = not tail.fault
            raise write_error(tail.path, error) if isinstance(error, OSError) else error from error

    # --- a leader's snapshot ---------------------------------------------------------------------
    def _take_chunk(self, chunk: SnapshotChunk) -> Written:
        plate = self._plate
        if chunk.offset == 0:
            self._give_up()
            plate.incoming = self._temporary()
        file = plate.incoming
        if file is None or file.size != FILE_HEADER_BYTES + chunk.offset:
            raise StorageFault(f"a chunk of a snapshot does not fit at {chunk.offset}.")
        file.append([chunk.data])
        assert file.size == FILE_HEADER_BYTES + chunk.offset + len(chunk.data)
        if not chunk.done:
            return Written(plate.tail.file.size, None)
        file.sync()
        snapshot, item_bytes = self._read_back(file, chunk.snapshot)
        size = plate.tail.install(file)
        plate.incoming = None
        plate.snapshot, plate.frame_bytes = snapshot.meta, snapshot_frame_bytes(item_bytes)
        return Written(size, snapshot)

    def _temporary(self) -> File:
        tail = self._plate.tail
        file = tail.disk.open(tail.path + INSTALL_SUFFIX, create=True)
        file.append([file_header()])
        return file

    def _read_back(self, file: File, meta: SnapshotMeta) -> tuple[Snapshot, int]:
        path = file.path
        try:
            frames = parse(path, file.read_copy(0, file.size))
            if frames.end != file.size or len(frames.entries) != 1:
                raise CorruptLog(f"{path} is not one snapshot.", file=path)
            snapshot = unpack_snapshot(path, frames.entries[0])
        except CorruptLog as error:
            raise StorageFault(f"{short_name(path)}: a snapshot arrived damaged.") from error
        if snapshot.meta != meta:
            raise StorageFault(f"{short_name(path)} is another snapshot than was announced.")
        return snapshot, len(frames.entries[0])

    def _give_up(self) -> None:
        tail, self._plate.incoming = self._plate.tail, None
        with contextlib.suppress(OSError):
            tail.disk.remove(tail.path + INSTALL_SUFFIX)


class SnapshotJob:
    """Replace the entries that the state machine covers by a snapshot of it.

    The job calls `make_records`, because it may take long; what it reads must not change meanwhile.
    """

    __slots__ = ("_plate", "compact", "first_index", "item_bytes", "key", "kind", "meta")

    def __init__(
        self,
        plate: Plate,
        meta: SnapshotMeta,
        first_index: int,
        begin: Callable[[Callable[[], list[bytes]]], CompactJob],
        make_records: Callable[[], bytes],
    ) -> None:
        assert 0 < first_index <= meta.index + 1
        self._plate = plate
        self.meta = meta
        self.first_index = first_index
        self.item_bytes = 0

        def make_items() -> list[bytes]:
            item = pack_snapshot(Snapshot(meta, make_records()))
            self.item_bytes = len(item)
            return [item]

        self.compact = begin(make_items)
        self.key = self.compact.key
        self.kind = self.compact.kind

    def run(self) -> int:
        size = self.compact.run()
        assert self.item_bytes > 0, "the items were made"
        assert self.meta.index >= self._plate.snapshot.index
        self._plate.snapshot = self.meta
        self._plate.frame_bytes = snapshot_frame_bytes(self.item_bytes)
        return size


class Chunk(NamedTuple):
    """`data` None: that snapshot was replaced."""

    data: bytes | None
    done: bool


class ReadChunkJob:
    __slots__ = ("_plate", "key", "kind", "read")

    def __init__(self, plate: Plate, read: SnapshotRead) -> None:
        self._plate = plate
        self.read = read
        self.key = plate.tail.path
        self.kind = "metadata read"

    def run(self) -> Chunk:
        plate, read = self._plate, self.read
        if plate.snapshot != read.snapshot or read.offset > plate.frame_bytes:
            return Chunk(None, False)
        assert read.bytes_max > 0
        size = min(read.bytes_max, plate.frame_bytes - read.offset)
        assert size >= 0, "the offset was checked"
        data = plate.tail.file.read_copy(FILE_HEADER_BYTES + read.offset, size)
        if len(data) != size:
            return Chunk(None, False)
        return Chunk(data, read.offset + size == plate.frame_bytes)


def is_passing(error: BaseException) -> bool:
    return isinstance(error, DiskFull | ThrottledBroker)
