"""The jobs that write and read the log of a quorum, and what they share.

Owns the order in which the parts of a `Write` become durable (hard state, entries, chunk), the
temporary file of a snapshot that comes from elsewhere, and which failures leave everything as it
was. All jobs of one log have one key, so they run one after another, and nobody else uses `Plate`.

Must not know: what is true; quorum_log.py keeps that for the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from quiverlog.core.raft.messages import SnapshotChunk, SnapshotMeta
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.snapshots import SnapshotRead
from quiverlog.errors import CorruptLog, DiskFull, QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.storage.disk import File, short_name, write_error
from quiverlog.storage.metadata_frames import FILE_HEADER_BYTES, VERSION_QUORUM, parse
from quiverlog.storage.metadata_jobs import AppendJob, CompactJob, Tail
from quiverlog.storage.quorum_items import (
    Snapshot,
    pack_snapshot,
    snapshot_frame_bytes,
    unpack_snapshot,
)
from quiverlog.storage.quorum_state import pack_state

__all__ = [
    "INSTALL_SUFFIX",
    "Chunk",
    "Plate",
    "ReadChunkJob",
    "SnapshotJob",
    "WriteJob",
    "Written",
    "is_passing",
]

INSTALL_SUFFIX: Final = ".install"


class Plate:
    """The files as the jobs know them. `snapshot`: the one that the log begins with.

    `frame_bytes`: length of its frame, which is what travels to others.
    """

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
    """What a write has left: the size of the log, and a snapshot that took its place, if any."""

    size: int
    restored: Snapshot | None


class WriteJob:
    """See `Write`. `state_written`: the hard state is durable, whatever became of the rest.

    `harmless`: the job has failed, and nothing but a temporary file is different.
    """

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
        """Raises DiskFull or ThrottledBroker: try again; StorageFault: see `harmless`."""
        tail = self._plate.tail
        tail.check()
        if self.write.hard_state is not None:
            # A temporary file each time: whatever failed before, this one is flushed as a whole.
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

    # --- a snapshot from elsewhere ---------------------------------------------------------------
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
        file.append([tail.header])
        return file

    def _read_back(self, file: File, meta: SnapshotMeta) -> tuple[Snapshot, int]:
        """What was put together is what somebody has sent, or it is not taken."""
        path = file.path
        try:
            frames = parse(path, file.read_copy(0, file.size), VERSION_QUORUM)
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
    """Replace what the state machine stands for by a snapshot of it; the result is the size.

    Args:
        make_records: called by the job, because it may take long; what it reads is left alone
            meanwhile.
        compact: makes the file.
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
        """Raises DiskFull, ThrottledBroker or StorageFault."""
        size = self.compact.run()
        assert self.item_bytes > 0, "the items were made"
        assert self.meta.index >= self._plate.snapshot.index
        self._plate.snapshot = self.meta
        self._plate.frame_bytes = snapshot_frame_bytes(self.item_bytes)
        return size


class Chunk(NamedTuple):
    """`data` None: that snapshot is not there any more."""

    data: bytes | None
    done: bool


class ReadChunkJob:
    """Read a piece of a snapshot's frame for a follower."""

    __slots__ = ("_plate", "key", "kind", "read")

    def __init__(self, plate: Plate, read: SnapshotRead) -> None:
        self._plate = plate
        self.read = read
        self.key = plate.tail.path
        self.kind = "metadata read"

    def run(self) -> Chunk:
        """Raises OSError: the file cannot be read."""
        plate, read = self._plate, self.read
        if plate.snapshot != read.snapshot or read.offset > plate.frame_bytes:
            return Chunk(None, False)
        assert read.bytes_max > 0
        size = min(read.bytes_max, plate.frame_bytes - read.offset)
        assert size >= 0, "the offset was looked at"
        data = plate.tail.file.read_copy(FILE_HEADER_BYTES + read.offset, size)
        if len(data) != size:
            return Chunk(None, False)
        return Chunk(data, read.offset + size == plate.frame_bytes)


def is_passing(error: BaseException) -> bool:
    """True for a failure that says nothing about the disk: the same may succeed a moment later."""
    return isinstance(error, DiskFull | ThrottledBroker)
