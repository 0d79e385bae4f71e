"""The small files of a partition that a restart begins from, and the replay of its producers: the
newest good snapshot that is not ahead of the log, then the batch headers after it.

Invariant: a damaged file counts as missing; the log is scanned or replayed from further back.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, Self

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import BatchHeader
from quiverlog.errors import (
    CorruptLog,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    QuiverlogError,
    UnsupportedFormat,
)
from quiverlog.storage.disk.byte_source import is_unreadable
from quiverlog.storage.disk.disk import Disk, is_special_file, short_name
from quiverlog.storage.disk.frames import pack_file, unpack_file
from quiverlog.storage.segment import reading
from quiverlog.storage.segment.names import own_offset, rename_aside
from quiverlog.storage.segment.segment import Segment
from quiverlog.storage.segment.segments import Segments

__all__ = [
    "LOG_START_FILE",
    "LOG_START_FILES",
    "RECOVERY_COPY_FILE",
    "RECOVERY_FILE",
    "SNAPSHOTS_KEPT",
    "TRUNCATION_FILE",
    "Bounds",
    "Producers",
    "RecoveryPoint",
    "StoredPoint",
    "drop_snapshot",
    "is_truncation_of_another",
    "load_log_start",
    "load_log_starts",
    "load_recovery_point",
    "load_snapshot",
    "load_truncation",
    "move_snapshot_aside",
    "pack_log_start",
    "pack_recovery_point",
    "pack_truncation",
    "restore_producers",
    "save_log_start",
    "snapshot_offsets",
    "write_snapshot",
]


LOG_START_FILE: Final = "log-start"
LOG_START_FILES: Final = (LOG_START_FILE, "log-start-copy")
TRUNCATION_FILE: Final = "truncate-to"
RECOVERY_FILE: Final = "recovery-point"
RECOVERY_COPY_FILE: Final = "recovery-point-copy"
_LOG_START_MAGIC: Final = b"QVLOGSTA"
_TRUNCATION_MAGIC: Final = b"QVTRUNCA"
_RECOVERY_MAGIC: Final = b"QVRECOVR"
_SNAPSHOT_MAGIC: Final = b"QVPRODUC"
_VERSION: Final = 1
_OFFSET: Final = struct.Struct("<q")
_CHECK: Final = struct.Struct("<I")
_TRUNCATION_BYTES: Final = _OFFSET.size + _CHECK.size
_POINT: Final = struct.Struct("<qqQ")
_BOUNDS: Final = struct.Struct("<qq")
_PREFIX: Final = "producers-"
_SUFFIX: Final = ".snapshot"
SNAPSHOTS_KEPT: Final = 2


class Producers(Protocol):
    def capture(self) -> Callable[[], bytes]:
        """Capture the states as they are now, cheaply; a job calls the result, which encodes
        them."""

    def capture_below(self, offset: int) -> Callable[[], bytes]:
        """The same of the batches that end at or below `offset`."""

    def blank(self, now_us: int | None = None) -> Self:
        """Return empty states of the same kind, to be restored. `now_us`: when restored producers
        were last seen; None: as in these states."""

    def adopt(self, restored: Self) -> None:
        """Take over the states of `restored`, which has no other user."""

    def record(self, header: BatchHeader, base_offset: int, now_us: int) -> None: ...

    def restore(self, blob: bytes) -> None: ...

    def replay(self, header: BatchHeader) -> None: ...

    @property
    def newest_offset(self) -> int:
        """Return the first row of the newest batch in these states; -1: none."""

    def check(self, header: BatchHeader) -> int | None:
        """Return where the batch was stored, None for a new one. Raises the error that refuses
        it."""


class RecoveryPoint(NamedTuple):
    offset: int = 0
    base_offset: int = -1
    position: int = 0


class Bounds(NamedTuple):
    start_offset: int
    end_offset: int


class StoredPoint(NamedTuple):
    """`bad`: names of other existing ones. `agree`: both exist and are equal, bounds as well."""

    point: RecoveryPoint
    bounds: Bounds
    contents: dict[str, bytes]
    bad: tuple[str, ...]
    agree: bool = False


class _Copies:
    """The copies of one small file.

    A damaged one counts as lost: the other, or the log, has the value. One that the disk cannot
    read now may be good: while no other is, nothing is concluded.
    """

    def __init__(self, disk: Disk, magic: bytes, size: int) -> None:
        self._disk = disk
        self._magic = magic
        self._size = size
        self._silent: OSError | None = None
        self._is_known = False

    def read(self, path: str) -> bytes | None:
        try:
            return self._disk.read_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not is_unreadable(error):
                raise
            if not is_special_file(error):
                self._silent = error
            return None

    def payload(self, data: bytes | None, path: str) -> bytes | None:
        if data is None:
            return None
        try:
            payload = unpack_file(path, data, self._magic, _VERSION)
        except CorruptLog:
            return None
        if len(payload) < self._size:
            return None
        self._is_known = True
        return payload

    def check(self) -> None:
        """Raise the disk's error if no copy is good, and one could not be read."""
        if self._silent is not None and not self._is_known:
            raise self._silent


def _load(disk: Disk, magic: bytes, size: int, *paths: str) -> list[bytes]:
    copies = _Copies(disk, magic, size)
    found = [copies.payload(copies.read(path), path) for path in paths]
    copies.check()
    return [payload for payload in found if payload is not None]


def pack_log_start(offset: int) -> bytes:
    assert offset >= 0
    return pack_file(_LOG_START_MAGIC, _VERSION, _OFFSET.pack(offset))


def save_log_start(disk: Disk, directory: str, offset: int) -> None:
    data = pack_log_start(offset)
    for name in LOG_START_FILES:
        disk.write_file_atomic(f"{directory}/{name}", data)


def load_log_start(disk: Disk, directory: str, names: Sequence[str]) -> int | None:
    """Return the highest log start of the good files; 0: none was written, None: all are
    damaged."""
    good = load_log_starts(disk, directory, names)
    if good:
        # A crash between the two writes leaves the second one behind, and starts only grow.
        return max(good)
    return None if any(name in names for name in LOG_START_FILES) else 0


def load_log_starts(disk: Disk, directory: str, names: Sequence[str]) -> list[int]:
    paths = [f"{directory}/{name}" for name in LOG_START_FILES if name in names]
    found = _load(disk, _LOG_START_MAGIC, _OFFSET.size, *paths)
    assert len(found) <= len(paths)
    return [max(0, int(_OFFSET.unpack_from(payload)[0])) for payload in found]


def pack_truncation(offset: int, directory: str) -> bytes:
    assert offset >= 0
    return pack_file(_TRUNCATION_MAGIC, _VERSION, _OFFSET.pack(offset) + _name_check(directory))


def _name_check(directory: str) -> bytes:
    return _CHECK.pack(crc32c(directory.rpartition("/")[2].encode()))


def is_truncation_of_another(disk: Disk, directory: str) -> bool:
    path = f"{directory}/{TRUNCATION_FILE}"
    found = _load(disk, _TRUNCATION_MAGIC, _TRUNCATION_BYTES, path)
    return any(payload[_OFFSET.size :] != _name_check(directory) for payload in found)


def load_truncation(disk: Disk, directory: str) -> int | None:
    """Return the offset of an unfinished truncation; None if there is none (or it is damaged)."""
    path = f"{directory}/{TRUNCATION_FILE}"
    found = _load(disk, _TRUNCATION_MAGIC, _TRUNCATION_BYTES, path)
    return int(_OFFSET.unpack_from(found[0])[0]) if found else None


def pack_recovery_point(point: RecoveryPoint, bounds: Bounds) -> bytes:
    """Return the file's bytes: of constant length, because it is overwritten in place."""
    assert point.offset >= 0
    assert point.base_offset <= point.offset, "the point lies in its segment"
    assert bounds.start_offset >= 0
    assert bounds.end_offset >= 0
    payload = _POINT.pack(*point) + _BOUNDS.pack(*bounds)
    return pack_file(_RECOVERY_MAGIC, _VERSION, payload)


def load_recovery_point(disk: Disk, directory: str, names: Sequence[str]) -> StoredPoint:
    """Read the file and its copy; an empty point if there is none. All points and bounds in them
    are valid: the later ones count."""
    point, known = RecoveryPoint(), Bounds(0, 0)
    contents: dict[str, bytes] = {}
    bad: list[str] = []
    good: bytes | None = None
    agree = False
    copies = _Copies(disk, _RECOVERY_MAGIC, _POINT.size + _BOUNDS.size)
    for name in (RECOVERY_FILE, RECOVERY_COPY_FILE):
        if name not in names:
            continue
        data = copies.read(f"{directory}/{name}")
        # Nearly always: then the frame need not be checked twice.
        if data is not None and data == good:
            contents[name] = data
            agree = True
            continue
        payload = copies.payload(data, f"{directory}/{name}")
        # Also one that could not be read: `check` decides whether that stops the start.
        if data is None or payload is None:
            bad.append(name)
            continue
        contents[name] = good = data
        point = max(point, RecoveryPoint._make(_POINT.unpack_from(payload)))
        start, end = _BOUNDS.unpack_from(payload, _POINT.size)
        known = Bounds(max(known.start_offset, start), max(known.end_offset, end))
    copies.check()
    return StoredPoint(point, known, contents, tuple(bad), agree)


def snapshot_offsets(names: list[str]) -> list[int]:
    found = (own_offset(name, "snapshot") for name in names)
    return sorted((offset for offset in found if offset is not None), reverse=True)


def _snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{_PREFIX}{offset:020d}{_SUFFIX}"


def pack_snapshot(offset: int, blob: bytes) -> bytes:
    assert offset >= 0
    return pack_file(_SNAPSHOT_MAGIC, _VERSION, _OFFSET.pack(offset) + blob)


def write_snapshot(disk: Disk, directory: str, offset: int, blob: bytes) -> None:
    data = pack_snapshot(offset, blob)
    disk.write_file_atomic(_snapshot_path(directory, offset), data)


def drop_snapshot(disk: Disk, directory: str, offset: int) -> None:
    """Remove a snapshot; a missing one is fine, and a directory of that name is not a snapshot."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        disk.remove(_snapshot_path(directory, offset))


def move_snapshot_aside(disk: Disk, directory: str, offset: int) -> str:
    path = _snapshot_path(directory, offset)
    new = rename_aside(disk, directory, path.rpartition("/")[2], disk.list(directory))
    return (
        f"{short_name(path)} has other batches of producers than the rows: it was ignored, and"
        f" moved to {new}."
    )


def load_snapshot(disk: Disk, directory: str, offset: int) -> bytes | None:
    path = _snapshot_path(directory, offset)
    found = _load(disk, _SNAPSHOT_MAGIC, _OFFSET.size, path)
    if not found or _OFFSET.unpack_from(found[0])[0] != offset:
        return None
    return found[0][_OFFSET.size :]


def restore_producers(
    disk: Disk,
    directory: str,
    producers: Producers,
    snapshots: list[int],
    segments: Segments,
    log_start_offset: int,
    log_end_offset: int,
    damages: list[str],
    given_up: Sequence[Segment] = (),
) -> list[str]:
    """Restore the newest snapshot that is whole, this log's and not ahead of it; then replay
    headers.

    Headers below the log start are replayed too: a trimmed batch may be sent again. Bad snapshots
    are removed, those of another log moved aside, with a note returned for each. A snapshot at an
    offset inside a batch does not cover that batch: it is that of a follower whose rows begin there
    (docs/adr/0050).
    """
    assert 0 <= log_start_offset <= log_end_offset
    assert snapshots == sorted(snapshots, reverse=True), "the newest is tried first"
    rows = _Rows(segments, given_up, log_start_offset, log_end_offset, damages)
    notes: list[str] = []
    for offset in list(snapshots):
        if offset <= log_end_offset and _restore_one(disk, directory, producers, offset):
            if rows.confirm(producers, offset) and rows.replay(producers, offset):
                break
            if producers.newest_offset >= 0:
                notes.append(move_snapshot_aside(disk, directory, offset))
        snapshots.remove(offset)
        drop_snapshot(disk, directory, offset)
        # A snapshot that is ahead must not come back once other rows have taken its offsets.
        disk.sync_dir(directory)
    else:
        producers.restore(b"")  # No good one: from the rows alone.
        rows.replay(producers, 0)
    assert all(offset <= log_end_offset for offset in snapshots), "no other one is on the disk"
    return notes


class _Rows:
    def __init__(
        self,
        segments: Segments,
        given_up: Sequence[Segment],
        log_start_offset: int,
        log_end_offset: int,
        damages: list[str],
    ) -> None:
        self._segments = segments
        self._given_up = given_up
        self._start = log_start_offset
        self._end = log_end_offset
        self._damages = damages

    def replay(self, producers: Producers, start: int) -> bool:
        """Return False, half way, if one of them cannot follow the snapshot's state."""
        assert 0 <= start <= self._end
        seen = joined = start
        met: set[int] = set()
        for header in self._headers(start):
            # Met already, in a given-up file.
            if header.next_offset <= seen:
                continue
            assert header.next_offset <= self._end, "rows that the log does not have"
            # After missing rows a producer may have continued from those.
            if start and header.base_offset <= joined and header.producer_id not in met:
                met.add(header.producer_id)
                if not _may_follow(producers, header) and self._is_sound(header):
                    return False
            joined = header.next_offset if header.base_offset <= joined else -1
            producers.replay(header)
            seen = header.next_offset
        self._report_damages(max(start, self._start))
        return True

    def _headers(self, start: int) -> Iterator[BatchHeader]:
        """Yield headers; below the log start as many as can be read, as damage there loses no
        row."""
        seen = start
        for segment in self._given_up:
            with contextlib.suppress(CorruptLog, UnsupportedFormat):
                for _, header in reading.all_headers(segment, start):
                    seen = max(seen, header.next_offset)
                    yield header
        if start < self._start:
            for header in self._segments.headers(start, []):
                if header.base_offset >= self._start:
                    break
                seen = max(seen, header.next_offset)
                yield header
        yield from self._segments.headers(max(seen, self._start), self._damages)

    def _report_damages(self, first: int) -> None:
        """Report the damage that this walk has skipped, too: its producer states are missing."""
        assert self._start <= first <= self._end
        met = [(one, place) for one in self._segments.holding(first) for place in one.damages]
        for segment, place in met:
            message = segment.corrupt(place).message
            holds_rows = place.end_offset > max(place.offset, first)
            if holds_rows and message not in self._damages:
                self._damages.append(message)

    def confirm(self, producers: Producers, offset: int) -> bool:
        """Return whether the rows have the snapshot's newest batch, or miss its producer: it may be
        expired, and then a replay costs only time."""
        assert 0 <= offset <= self._end
        before = self._batch_with(offset - 1)
        if before is None or before.next_offset > offset or before.producer_id < 0:
            newest = producers.newest_offset
            before = self._batch_with(newest)
            if before is None:
                return True
            if before.base_offset != newest or before.producer_id < 0:
                return not self._is_sound(before)
        with contextlib.suppress(QuiverlogError):
            if producers.check(before) == before.base_offset:
                return True
        return not self._is_sound(before)

    def _batch_with(self, offset: int) -> BatchHeader | None:
        found = self._find(offset)
        return None if found is None else found[2]

    def _is_sound(self, header: BatchHeader) -> bool:
        found = self._find(header.base_offset)
        assert found is None or found[2].base_offset <= header.base_offset
        return found is not None and reading.is_sound(*found)

    def _find(self, offset: int) -> tuple[Segment, int, BatchHeader] | None:
        for segment in (*self._given_up, *self._segments.holding(offset)[:1]):
            if segment.base_offset <= offset < segment.end_offset:
                with contextlib.suppress(CorruptLog, UnsupportedFormat, reading.Undiagnosed):
                    found = reading.batch_with(segment, offset)
                    return None if found is None else (segment, *found)
        return None


def _may_follow(producers: Producers, header: BatchHeader) -> bool:
    """Return False for a batch that no leader can have stored after its producer's state.

    A producer that expired in between (a day without batches) starts with a new state.
    """
    # Without a producer, or as a new producer begins.
    if header.producer_id < 0 or header.base_sequence == 0:
        return True
    try:
        return producers.check(header) is None
    except QuiverlogError as error:
        return not isinstance(error, InvalidProducerEpoch | OutOfOrderSequence)


def _restore_one(disk: Disk, directory: str, producers: Producers, offset: int) -> bool:
    blob = load_snapshot(disk, directory, offset)
    if blob is None:
        return False
    try:
        producers.restore(blob)
    except QuiverlogError:
        producers.restore(b"")  # It may have failed half way.
        return False
    return True
