"""The simulated disk with a fuse and with errors: between any two operations the machine may stop,
and any operation may fail.

Owns the fuse (power loss or kill -9 at the so-manieth operation), the errors that a scenario draws
(EIO, EMFILE, a full disk), the memory of which errors were real (so that a fault without a cause is
noticed) and the rule that an event loop must not block: see `on_loop`.

Not here: brokers, clients.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from quiverlog.batch.header import CRC_OFFSET, BatchHeader
from quiverlog.errors import CorruptLog, DiskFull
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.disk.disk import Disk
from quiverlog.storage.log import checkpoint
from quiverlog.storage.segment.damage import SECTOR_BYTES
from quiverlog.storage.segment.index import SparseIndex
from quiverlog.storage.segment.segment_files import _BODY, _HEAD, SEGMENT_HEADER_BYTES, index_path

from .disk import SimDisk

__all__ = ["Blocked", "Death", "FaultyDisk"]

OPENING: Final = frozenset(("open", "create", "atomic", "overwrite"))
"""Operations that take a descriptor."""
BLOCKING: Final = frozenset(
    ("fsync", "fsync_dir", "rename", "unlink", "atomic", "overwrite", "truncate")
)
"""Operations that have no business on an event loop."""
_BASE_OFFSET_BYTES: Final = 8
_EMPTY_BYTES: Final = 64
_CODES: Final = {
    errno.EIO: "Input/output error",
    errno.EMFILE: "Too many open files",
}


class Death(BaseException):
    """The process stopped here. Not an Exception: no handler of the broker may survive it."""


class Blocked(BaseException):
    """An operation that may block was called on the loop. Only the host may catch it."""


class _Still:
    """The files of a disk as they are: looking at them is no operation, and nothing can fail."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def read_file(self, path: str) -> bytes:
        return bytes(self._disk.inode(path).data)


class FaultyDisk(SimDisk):
    """`lost_power` records how the last life ended."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.directories_durable = False
        self.lost_power = False
        self.evict_rate = 0.0
        self.read_error_rate = 0.0
        self.write_error_rate = 0.0
        self.sync_error_rate = 0.0
        """Chance that an operation fails with EIO, in partitions; fsyncs everywhere."""
        self.full_segment_rate = 0.0
        """Chance that there is room for a segment and none for the first rows in it."""
        self.descriptors_gone = False
        """Every operation that would open a file fails with EMFILE."""
        self.on_loop = False
        """A handler of the node is running."""
        self.loop_may_block = True
        self.rows_hit: tuple[int, int] | None = None
        """Rows of the batch in which a bit was flipped last; None where that is not sure."""
        self.cut_from: int | None = None
        """From this row on they may be cut because of it, acknowledged or not (ADR 0017)."""
        self.looks: Callable[[], None] = lambda: None
        """Called before every operation: what the one before it did can be seen."""
        self.failures: Counter[str] = Counter()
        """Errors that were raised on purpose, by kind; in this life of the process."""
        self.happened: Counter[str] = Counter()
        """Errors by kind and names that a power loss took back, in all lives."""
        self.still = cast(Disk, _Still(self))
        """For checks from outside: it can read whole files."""
        self._fuse: int | None = None
        self._fuse_is_power = True

    # --- the fuse ------------------------------------------------------------------------------
    def die_after(self, operations: int | None, *, power: bool = True) -> None:
        """Raise Death at the so-manieth operation from now; None takes the fuse out."""
        self._fuse = operations
        self._fuse_is_power = power

    @property
    def fuse_is_power(self) -> bool:
        """Would the fuse take the whole machine?"""
        return self._fuse_is_power

    def step(self, kind: str, path: str) -> None:
        self.looks()
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self._fuse = None
                raise Death
        if self.on_loop and not self.loop_may_block and kind in BLOCKING:
            if kind == "unlink" and len(self.inode(path).data) <= _EMPTY_BYTES:
                return  # A file that was made a moment ago, for which there was no room after all.
            raise Blocked(f"{kind} of {path} on the loop")
        if self.descriptors_gone and kind in OPENING:
            self._fail(errno.EMFILE, kind, path)
        if "/data/" in path:
            if kind == "read" and self._happens(self.read_error_rate):
                self._fail(errno.EIO, kind, path)
            if kind in ("append", "overwrite") and self._happens(self.write_error_rate):
                self._fail(errno.EIO, kind, path)

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def _fail(self, code: int, kind: str, path: str) -> None:
        name = "EMFILE" if code == errno.EMFILE else f"EIO {kind}"
        self.failures[name] += 1
        self.happened[name] += 1
        raise OSError(code, _CODES[code], path)

    # --- how operations fail -------------------------------------------------------------------
    def sync_fails(self) -> bool:
        failed = super().sync_fails() or self._happens(self.sync_error_rate)
        self.failures["EIO fsync"] += failed
        self.happened["EIO fsync"] += failed
        return failed

    def take_room(self, byte_count: int, path: str) -> None:
        first = "/data/" in path and path.endswith(".log") and byte_count > SEGMENT_HEADER_BYTES
        first = first and len(self.inode(path).data) == SEGMENT_HEADER_BYTES
        if first and self._happens(self.full_segment_rate):
            self.failures["no room for first rows"] += 1
            self.happened["no room for first rows"] += 1
            raise DiskFull(f"writing {path}: simulated full disk.")
        super().take_room(byte_count, path)

    def evicts(self) -> bool:
        return self._happens(self.evict_rate)

    def half_written(self, byte_count: int) -> int:
        return self.rng.choice((0, byte_count, self.rng.randint(0, byte_count)))

    def quiet(self) -> None:
        """No more faults."""
        self.read_error_rate = self.write_error_rate = self.sync_error_rate = 0.0
        self.full_segment_rate = 0.0
        self.descriptors_gone = False
        self.fail_syncs = 0

    # --- deaths --------------------------------------------------------------------------------
    def power_loss(self) -> None:
        """What was not synced is lost, torn or kept."""
        self._begin_again(lost_power=True)
        self.crash()
        for kind, count in self.undone.items():
            self.happened[f"{kind} undone by a power loss"] += count
        self.undone.clear()

    def process_death(self) -> None:
        """Everything written stays."""
        self._begin_again(lost_power=False)
        self.kill()

    def _begin_again(self, *, lost_power: bool) -> None:
        self._fuse = None
        self.on_loop = False
        self.lost_power = lost_power
        self.failures.clear()
        self.descriptors_gone = False

    def set_full(self, room_bytes: int | None) -> None:
        """Let `room_bytes` more fit, and not one byte beyond; None: any number."""
        self.capacity = None if room_bytes is None else self.used_bytes + room_bytes

    def flip_header(self, rng: random.Random, *, indexed: bool = False) -> str | None:
        """Flip a durable bit in the header of some batch; its path, None when there is none.

        Not of the last one, which a torn append may look like (ADR 0011).

        Args:
            indexed: a batch to which an index file leads.
        """
        paths = [path for path in self.paths() if path.endswith(".log") and "/data/" in path]
        paths = [path for path in paths if self.durable_size(path) > BATCH_HEADER_BYTES]
        if indexed:
            paths = [path for path in paths if self._index_of(path)]
        if not paths:
            return None
        path = rng.choice(paths)
        durable = bytes(self.inode(path).data[: self.durable_size(path)])
        found = _batches(durable)
        if indexed:
            entries = self._index_of(path)
            found = [at for at in found[:-1] if at in entries] + found[-1:]
        if len(found) < 2:
            return None
        # In the fields that count its rows, or anywhere.
        byte_count = rng.choice((_BASE_OFFSET_BYTES, BATCH_HEADER_BYTES))
        at = rng.choice(found[:-1])
        self.flip_row_bit(path, at * 8 + rng.randrange(byte_count * 8), known_at=at)
        return path

    def flip_row_bit(self, path: str, bit: int, *, known_at: int | None = None) -> None:
        """Flip a durable bit of a segment; `rows_hit` and `cut_from` are what that may cost.

        Args:
            known_at: the byte to judge by; that of the bit, if None.
        """
        at = bit // 8 if known_at is None else known_at
        good = bytes(self.inode(path).data[: self.durable_size(path)])
        self.rows_hit = self._rows_at(path, good, at)
        self.flip_bit(path, bit)
        self.cut_from = self._cut_from(path, good, bit // 8)
        if self.cut_from is not None and self.rows_hit is not None:
            self.rows_hit = min(self.rows_hit[0], self.cut_from), 2**62

    def _cut_from(self, path: str, good: bytes, at: int) -> int | None:
        """The first row that a start cuts although it was acknowledged; None for none.

        The one double fault that ADR 0017 names: the power has failed, no file records that the
        batch with this byte was flushed, and it has a sector of zeros of its own (or what there is
        of one at the end of the file), as a batch has that never arrived.

        Args:
            good: the file before the byte was damaged.
        """
        if not self.lost_power:
            return None
        bad = bytes(self.inode(path).data)
        for start in _batches(good):
            header = BatchHeader.unpack(good, start)
            end = start + header.total_bytes
            if not start <= at < end:
                continue
            first = start + SECTOR_BYTES - start % SECTOR_BYTES
            sectors = (bad[one : one + SECTOR_BYTES] for one in range(first, end, SECTOR_BYTES))
            # In front of the checksum nothing is covered by it: the batch's length is there.
            looks_torn = at >= start + CRC_OFFSET and BatchHeader.unpack(bad, start).is_plausible
            is_unknown = header.base_offset >= self._known_end(path.rpartition("/")[0])
            if is_unknown and looks_torn and not all(map(any, sectors)):
                return header.base_offset
        return None

    def _known_end(self, directory: str) -> int:
        """The offset up to which the files of a log record rows as flushed."""
        paths = [path for path in self.paths() if path.startswith(f"{directory}/")]
        names = [path.rpartition("/")[2] for path in paths]
        stored = checkpoint.load_recovery_point(self.still, directory, names)
        marks = [
            _flushed_offset(bytes(self.inode(path).data))
            for path in paths
            if path.endswith(".log")
            and _base_offset(path) >= stored.point.base_offset
            and self.durable_size(path) >= SEGMENT_HEADER_BYTES
        ]
        return max(stored.point.offset, stored.bounds.end_offset, *marks)

    def _index_of(self, path: str) -> frozenset[int]:
        """Where the index file of a segment leads; nowhere when there is no good one."""
        name = index_path(path)
        if name not in self.paths():
            return frozenset()
        try:
            return frozenset(SparseIndex.load(name, bytes(self.inode(name).data))[1].positions)
        except CorruptLog:
            return frozenset()

    def _rows_at(self, path: str, data: bytes, at: int) -> tuple[int, int] | None:
        """Rows [first, next) of the batch with this byte; None where that is not sure.

        In the newest file of a log a flip may look like a torn append (ADR 0017): from there on.
        Not in a payload, where the file itself records that the batch was flushed.
        """
        directory = path.rpartition("/")[0]
        newest = max(p for p in self.paths() if p.startswith(directory) and p.endswith(".log"))
        for start in _batches(data):
            header = BatchHeader.unpack(data, start)
            if start <= at < start + header.total_bytes:
                payload = at >= start + BATCH_HEADER_BYTES
                flushed = header.next_offset <= _flushed_offset(data)
                if path != newest or (payload and flushed):
                    return header.base_offset, header.next_offset
        if path == newest:
            return _base_offset(path), 2**62
        return None

    def flip_somewhere(self, rng: random.Random, suffix: str) -> str | None:
        """Flip a durable bit of some partition's file; its path, None when there is none."""
        paths = [path for path in self.paths() if path.endswith(suffix) and "/data/" in path]
        spared = 64 if suffix == ".log" else 0
        paths = [path for path in paths if self.durable_size(path) > spared]
        if not paths:
            return None
        path = rng.choice(paths)
        bit = rng.randrange(spared * 8, self.durable_size(path) * 8)
        if suffix == ".log":
            self.flip_row_bit(path, bit)
        else:
            self.flip_bit(path, bit)
        return path


def _base_offset(path: str) -> int:
    """The first row of a segment, by its name."""
    return int(path.rpartition("/")[2].split(".")[0])


def _flushed_offset(data: bytes) -> int:
    """The offset of the mark in a segment's header: all rows below it were flushed."""
    head = _HEAD.unpack_from(data)
    assert len(head) == 4, "magic, version, reserved, crc"
    offset: int = _BODY.unpack_from(data, _HEAD.size)[2]
    return offset


def _batches(data: bytes) -> list[int]:
    """Where the batches of a segment begin: those of the log, not what a payload may hold."""
    found: list[int] = []
    at = SEGMENT_HEADER_BYTES
    while len(data) - at >= BATCH_HEADER_BYTES:
        header = BatchHeader.unpack(data, at)
        if not header.is_plausible:
            break
        found.append(at)
        at += header.total_bytes
    return found
