"""Loading a segment's index: from its file, or by a walk over the batch headers.

Only reads (except that another segment's index file is moved aside), and may run in another thread.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Final, NamedTuple

from quiverlog.batch.checksum import crc32c
from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.storage.disk.byte_source import ByteSource, FileBytes, is_unreadable
from quiverlog.storage.disk.disk import Disk, File, short_name
from quiverlog.storage.disk.frames import check_version
from quiverlog.storage.segment import index_check
from quiverlog.storage.segment.index import NO_TIME, Boundaries, Boundary, IndexSummary, SparseIndex
from quiverlog.storage.segment.names import rename_aside
from quiverlog.storage.segment.scan import Damage, Found, Torn, scan

__all__ = [
    "LOG_SUFFIX",
    "NO_MARK",
    "SEGMENT_HEADER_BYTES",
    "SEGMENT_MAGIC",
    "FlushedMark",
    "IndexBuilder",
    "LoadedIndex",
    "SegmentFiles",
    "SegmentHeader",
    "index_path",
    "pack_segment_header",
    "peek_base_offset",
    "read_header",
    "segment_path",
]

LOG_SUFFIX: Final = ".log"
_INDEX_SUFFIX: Final = ".index"
SEGMENT_HEADER_BYTES: Final = 64
SEGMENT_MAGIC: Final = b"QVSEGMNT"
_VERSION: Final = 1
_VERSION_PLAUSIBLE_MAX: Final = 15
_HEAD: Final = struct.Struct("<8sHHI")
_BODY: Final = struct.Struct("<qqqQqq")
assert _HEAD.size + _BODY.size == SEGMENT_HEADER_BYTES


def segment_path(directory: str, base_offset: int) -> str:
    assert base_offset >= 0
    return f"{directory}/{base_offset:020d}{LOG_SUFFIX}"


def index_path(log_path: str) -> str:
    assert log_path.endswith(LOG_SUFFIX)
    return log_path[: -len(LOG_SUFFIX)] + _INDEX_SUFFIX


class FlushedMark(NamedTuple):
    """`position`: where they end in this file; 0 when they end in an earlier segment's file."""

    offset: int = 0
    position: int = 0


NO_MARK: Final = FlushedMark()


class SegmentHeader(NamedTuple):
    """The header of a segment, without the base offset.

    `start_offset`: the log's start when it was written. `arrived_us`: when the newest of its late
    batches arrived; 0: there were none.
    """

    created_us: int
    mark: FlushedMark
    start_offset: int
    arrived_us: int = 0


def pack_segment_header(
    base_offset: int,
    created_us: int,
    mark: FlushedMark = NO_MARK,
    start_offset: int = 0,
    arrived_us: int = 0,
) -> bytes:
    assert base_offset >= 0
    assert start_offset >= 0
    assert arrived_us >= 0
    assert mark.position == 0 or mark.position >= SEGMENT_HEADER_BYTES
    assert mark.offset <= base_offset or mark.position > 0
    body = _BODY.pack(base_offset, created_us, *mark, start_offset, arrived_us)
    return _HEAD.pack(SEGMENT_MAGIC, _VERSION, 0, crc32c(body)) + body


def peek_base_offset(head: memoryview) -> int | None:
    if len(head) < SEGMENT_HEADER_BYTES or bytes(head[:8]) != SEGMENT_MAGIC:
        return None
    base_offset: int = _BODY.unpack_from(head, _HEAD.size)[0]
    return base_offset


def read_header(file: File, base_offset: int) -> SegmentHeader:
    """Read a segment's header.

    Raises:
        CorruptLog: the header is damaged, or is another segment's.
        UnsupportedFormat: it has another format version.
    """
    head = b""
    if file.size >= SEGMENT_HEADER_BYTES:
        with contextlib.suppress(OSError):  # Read again below, around unreadable blocks.
            head = file.read_copy(0, SEGMENT_HEADER_BYTES)
    if len(head) < SEGMENT_HEADER_BYTES:
        head = bytes(FileBytes(file, min(file.size, SEGMENT_HEADER_BYTES)).read(0, 64))
    if len(head) < SEGMENT_HEADER_BYTES or head[:8] != SEGMENT_MAGIC:
        raise _damaged_header(file, "is not a segment.")
    _, version, _, crc = _HEAD.unpack_from(head)
    found_base, created_us, *mark, start, arrived_us = _BODY.unpack_from(head, _HEAD.size)
    intact = crc32c(head[_HEAD.size :]) == crc and found_base == base_offset
    if version != _VERSION and not _is_flipped(version, intact):
        check_version(short_name(file.path), version, _VERSION)
    if version != _VERSION or not intact:
        raise _damaged_header(file, "has a damaged header.")
    return SegmentHeader(created_us, FlushedMark(*mark), max(0, start), max(0, arrived_us))


def _damaged_header(file: File, why: str) -> CorruptLog:
    name = short_name(file.path)
    return CorruptLog(f"{name} {why}", file=name, position=0)


def _is_flipped(version: int, intact: bool) -> bool:
    """Return whether the version is damaged: none that could be, or one flipped bit beside an
    intact rest."""
    return not 0 < version <= _VERSION_PLAUSIBLE_MAX or (
        intact and (version ^ _VERSION).bit_count() == 1
    )


class LoadedIndex(NamedTuple):
    """`created_us`: 0 when the header lacks it."""

    entries: SparseIndex
    newest_us: int
    size: int
    created_us: int
    damages: tuple[Damage, ...] = ()
    header_damage: str = ""
    arrived_us: int = 0
    note: str = ""


class IndexBuilder:
    __slots__ = ("_indexed_at", "_interval_bytes", "entries", "newest_us")

    def __init__(self, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self._indexed_at = 0
        self.entries = SparseIndex()
        self.newest_us = NO_TIME

    def add(self, position: int, relative_offset: int, timestamp_max_us: int) -> None:
        assert position >= SEGMENT_HEADER_BYTES
        assert relative_offset >= 0
        if position - self._indexed_at >= self._interval_bytes or not len(self.entries):
            self.entries.add(relative_offset, position, self.newest_us)
            self._indexed_at = position
        self.newest_us = max(self.newest_us, timestamp_max_us)


class SegmentFiles(NamedTuple):
    """`finished`: it takes no more appends, and an unfinished batch at its end is damage."""

    disk: Disk
    file: File
    base_offset: int
    end_offset: int
    size: int
    finished: bool
    known_places: tuple[Boundary, ...] = ()

    def read_index(self) -> LoadedIndex:
        """Load the index from the file, else from the batches.

        Raises:
            UnsupportedFormat: the segment has another format version.
            OSError: a file cannot be opened.
        """
        assert self.base_offset <= self.end_offset
        assert self.size <= self.file.size, "a segment only grows"
        damage, created_us, arrived_us = "", 0, 0
        try:
            created_us, _, _, arrived_us = read_header(self.file, self.base_offset)
        except CorruptLog as error:
            # The file's name has the base offset, too.
            damage = error.message
        found = self._load(created_us, damage) or self._rebuild(created_us, damage)
        return found._replace(arrived_us=arrived_us)

    def boundaries(self) -> Boundaries:
        """Return where batches are known to begin; an older index will do, as a segment only
        grows."""
        stored = self._stored()
        if stored is None or stored[0].base_offset != self.base_offset:
            return Boundaries(self.base_offset, None, self.known_places)
        return Boundaries(self.base_offset, stored[1], self.known_places)

    def ends_by_index(self, offset: int) -> bool:
        stored = self._stored()
        return stored is not None and (stored[0].covered_bytes, stored[0].end_offset) == (
            self.size,
            offset,
        )

    def _stored(self) -> tuple[IndexSummary, SparseIndex] | None:
        path = index_path(self.file.path)
        try:
            return SparseIndex.load(path, self.disk.read_file(path))
        except (FileNotFoundError, CorruptLog):
            return None
        except OSError as error:
            if not is_unreadable(error):
                raise
            return None

    def _load(self, created_us: int, header_damage: str) -> LoadedIndex | None:
        stored = self._stored()
        if stored is None:
            return None
        summary, entries = stored
        if (
            # Of another length: the file grew, or was cut, since.
            summary.covered_bytes != self.size
            or summary.base_offset != self.base_offset
            or summary.end_offset != self.end_offset
        ):
            return None
        loaded = LoadedIndex(
            entries, summary.newest_us, self.size, created_us, header_damage=header_damage
        )
        if not index_check.is_contradicted(self.file, self.size, summary, entries):
            return loaded
        # Only checksums show which of the two is wrong.
        built = self._build(FileBytes(self.file, self.size), verify=True)
        if built is None or built[1]:
            return loaded  # The batches may be damaged instead; readers find that.
        return loaded._replace(
            entries=built[0].entries, newest_us=built[0].newest_us, note=self._move_index_aside()
        )

    def _move_index_aside(self) -> str:
        """Move the index file aside.

        If it stays, the next load does not use it either.
        """
        directory, name = index_path(self.file.path).rsplit("/", 1)
        assert name.endswith(_INDEX_SUFFIX), "the rows stay where they are"
        what = f"{short_name(f'{directory}/{name}')} has other batches or times than the rows"
        try:
            new = rename_aside(self.disk, directory, name, self.disk.list(directory))
        except (OSError, QuiverlogError):
            return f"{what}: it was not used."
        assert new != name
        return f"{what}: it was not used, and moved to {new}."

    def _rebuild(self, created_us: int, header_damage: str) -> LoadedIndex:
        source = FileBytes(self.file, self.size)
        built = self._build(source, verify=False) or self._build(source, verify=True)
        assert built is not None, "a verified walk always ends"
        builder, damages = built
        return LoadedIndex(
            builder.entries,
            builder.newest_us,
            self.size,
            created_us,
            tuple(damages),
            header_damage,
        )

    def _build(
        self, source: ByteSource, *, verify: bool
    ) -> tuple[IndexBuilder, list[Damage]] | None:
        """Return None when the headers do not join up: only checksums show which neighbour is
        wrong."""
        builder = IndexBuilder(4096)
        damages: list[Damage] = []
        offset = self.base_offset
        at = SEGMENT_HEADER_BYTES
        bounds = self.boundaries
        for entry in scan(source, at, self.base_offset, verify=verify, boundaries=bounds):
            if isinstance(entry, Found):
                at, header = entry
                offset = header.next_offset
                builder.add(at, header.base_offset - self.base_offset, header.timestamp_max_us)
                at += header.total_bytes
            elif not verify:  # Try again with checksums, which give the extent of the damage.
                return None
            elif isinstance(entry, Damage):
                damages.append(entry)
                at, offset = entry.end_position, entry.end_offset
            elif isinstance(entry, Torn) and self.finished:
                damages.append(Damage(at, self.size, offset, self.end_offset))
                offset = self.end_offset
        if offset != self.end_offset and (self.finished or offset > self.end_offset):
            if not verify:
                return None
            if offset < self.end_offset:  # Its last batches are gone without a trace.
                damages.append(Damage(self.size, self.size, offset, self.end_offset))
        return builder, damages
