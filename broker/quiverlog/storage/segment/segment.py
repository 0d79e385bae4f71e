"""One file of a log: batches back to back behind a 64-byte header.

```
 0  8s  magic "QVSEGMNT"
 8  u16 version = 1     10 u16 reserved     12 u32 crc32c over bytes 16..64
16  i64 base_offset     24 i64 created_us
32  i64 flushed_offset  40 u64 flushed_position (segment_files.FlushedMark)
48  i64 log_start_offset                                  56 i64 arrived_us
64  batch | batch | ...   each as batch/header.py draws it, a multiple of 64 bytes
```

Owns the .log file and its index. Invariants: behind its header the file only grows (a finished
segment not even that), so served views stay valid; positions and relative offsets fit 32 bits;
batches' offsets join up. What the process has written or scanned itself is trusted; other bytes
have their checksums verified when they are read for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quiverlog.batch.header import SIZE_END, BatchHeader
from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.limits import BATCH_ALIGNMENT_BYTES, INDEX_INTERVAL_BYTES_MAX, SEGMENT_ROWS_MAX
from quiverlog.storage.disk.byte_source import BLOCK_BYTES, readable_bytes
from quiverlog.storage.disk.disk import Disk, File, short_name
from quiverlog.storage.segment.checks import clip, find_damages
from quiverlog.storage.segment.index import NO_TIME, Boundaries, Boundary, IndexSummary, SparseIndex
from quiverlog.storage.segment.scan import Damage
from quiverlog.storage.segment.segment_files import (
    NO_MARK,
    SEGMENT_HEADER_BYTES,
    FlushedMark,
    LoadedIndex,
    SegmentFiles,
    index_path,
    pack_segment_header,
    read_header,
    segment_path,
)
from quiverlog.types import Now

__all__ = ["Segment", "segment_path"]

_REWRITE_BYTES: Final = 1024 * 1024
_VERIFIED_RANGES_MAX: Final = 64
_POSITIONS_MAX: Final = 2**32


class Segment:
    """Attributes:
    arrived_from, arrived_us: rows from this offset on count as no older than this time,
        whatever their own times (log.py). 0: all are judged by their times.
    created_us: -1 until the header was read, 0 when that is damaged.
    newest_us: only right once the index is loaded.
    damages: the known unreadable rows, in order.
    index_note: why its index file was not used.
    recovered_from: the recovery point at the start, if it was in this segment.
    recent: its index was used since the last round of `IndexCache`.
    tail: (position, offset) of the newest append.
    trusted_from: everything from this position on was written or verified by this process.
    """

    __slots__ = (
        "_ahead_since_us",
        "_arrived_saved_us",
        "_disk",
        "_indexed_at",
        "_verified",
        "appended_mono_us",
        "arrived_from",
        "arrived_us",
        "base_offset",
        "cached",
        "created_us",
        "damages",
        "dropped",
        "end_offset",
        "file",
        "finished",
        "index",
        "index_note",
        "mark",
        "newest_us",
        "path",
        "recent",
        "recovered_from",
        "tail",
        "trusted_from",
    )

    def __init__(self, disk: Disk, path: str, file: File, base_offset: int) -> None:
        assert base_offset >= 0
        assert file.path == path
        self._disk = disk
        self.path = path
        self.file = file
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.created_us = -1
        self.appended_mono_us = -1
        self.arrived_from = base_offset
        self.arrived_us = 0
        self._ahead_since_us = -1
        self._arrived_saved_us = -1  # -1: the header was not read.
        self.index: SparseIndex | None = None
        self.index_note = ""
        self.mark = NO_MARK
        self.newest_us = NO_TIME
        self.damages: list[Damage] = []
        self.dropped = False
        self.cached = False
        self.finished = False
        self.recent = False
        self.recovered_from = Boundary(0, 0)
        self.tail = (0, -1)
        self.trusted_from = file.size
        self._indexed_at = 0
        # Verified ranges before `trusted_from`, not touching each other.
        self._verified: list[tuple[int, int]] = []

    # --- making and opening --------------------------------------------------------------------
    @classmethod
    def create(
        cls, disk: Disk, directory: str, base_offset: int, now_us: int, flushed_offset: int = 0
    ) -> Segment:
        """Create an empty segment. Raises DiskFull, ThrottledBroker or StorageFault.

        `flushed_offset`: all rows of the log below it are on the disk.
        """
        assert 0 <= flushed_offset <= base_offset
        path = segment_path(directory, base_offset)
        if disk.exists(path):
            disk.remove(path)  # Left by a failed creation; it holds no batch.
        file = disk.open(path, create=True)
        segment = cls(disk, path, file, base_offset)
        try:
            segment.write_header(now_us, FlushedMark(flushed_offset))
        except QuiverlogError:
            disk.remove(path)
            raise
        segment.index = SparseIndex()
        segment.trusted_from = SEGMENT_HEADER_BYTES
        return segment

    def write_header(self, now_us: int, mark: FlushedMark = NO_MARK) -> None:
        assert self.file.size == 0
        self.file.append([pack_segment_header(self.base_offset, now_us, mark)])
        assert self.file.size == SEGMENT_HEADER_BYTES, "batches begin where readers look for them"
        self.created_us = now_us
        self.mark = mark
        self._arrived_saved_us = 0

    def check_header(self) -> None:
        self.created_us, self.mark, _, arrived_us = read_header(self.file, self.base_offset)
        self._take_arrival(arrived_us)

    # --- when rows arrived ---------------------------------------------------------------------
    def note_arrival(self, at_us: int, offset: int) -> None:
        assert self.base_offset <= offset
        assert at_us >= 0
        if at_us > 0:
            self.arrived_from = min(self.arrived_from, offset) if self.arrived_us else offset
            self.arrived_us = max(self.arrived_us, at_us)
            self._ahead_since_us = -1

    def arrival_by(self, clock: Now) -> int:
        """Return when its late rows arrived, by a clock that may be behind the noted time: then the
        rows age by the monotonic clock from the moment that was first seen."""
        if self.arrived_us <= clock.wall_us:
            self._ahead_since_us = -1
            return self.arrived_us
        if self._ahead_since_us < 0:
            self._ahead_since_us = clock.mono_us
        assert self._ahead_since_us <= clock.mono_us
        return max(0, clock.wall_us - (clock.mono_us - self._ahead_since_us))

    def _take_arrival(self, at_us: int) -> None:
        """Take the header's time, for all rows: it has no offset."""
        if self._arrived_saved_us < 0:
            self._arrived_saved_us = at_us
            self.note_arrival(at_us, self.base_offset)

    @property
    def has_unsaved_arrival(self) -> bool:
        return self.arrived_us > self._arrived_saved_us

    def arrival_saved(self, at_us: int) -> None:
        assert at_us >= 0
        self._arrived_saved_us = max(self._arrived_saved_us, at_us)

    def rewrite(self, position: int) -> None:
        """Write cached bytes again; an unreadable block is in no cache and is left alone."""
        at, size = position, self.file.size
        assert at >= 0
        while at < size:
            count = min(_REWRITE_BYTES - at % _REWRITE_BYTES, size - at)
            count = readable_bytes(self.file, at, count)
            if count:
                self.file.rewrite(at, self.file.read_copy(at, count))
            step = count or min(BLOCK_BYTES - at % BLOCK_BYTES, size - at)
            assert step > 0, "each round leaves some bytes behind"
            at += step

    @property
    def empty(self) -> bool:
        return self.file.size <= SEGMENT_HEADER_BYTES

    def joins(self, offset: int) -> bool:
        """Return whether a batch that begins with row `offset` may follow the file's last byte.

        Not after missing rows or damage: a walk could not connect the batch.
        """
        size = self.file.size
        if self.end_offset != offset or size % BATCH_ALIGNMENT_BYTES:
            return False
        return all(damage.end_position < size for damage in self.damages)

    def is_older(self, at_us: int) -> bool:
        return self.finished and NO_TIME < self.newest_us < at_us

    # --- the index -----------------------------------------------------------------------------
    def load(self) -> SparseIndex:
        self.recent = True
        if self.index is None:
            self.take_index(self.files.read_index())
        assert self.index is not None
        return self.index

    @property
    def files(self) -> SegmentFiles:
        return SegmentFiles(
            self._disk,
            self.file,
            self.base_offset,
            self.end_offset,
            self.file.size,
            self.finished,
            self._known_places,
        )

    def take_index(self, loaded: LoadedIndex) -> None:
        if self.index is not None or loaded.size != self.file.size:
            return
        assert not self.dropped
        assert not len(loaded.entries) or loaded.entries.positions[-1] < self.file.size
        self.recent = True
        index = self.index = loaded.entries
        self.newest_us = loaded.newest_us
        self.created_us = loaded.created_us
        self.index_note = loaded.note or self.index_note
        self._take_arrival(loaded.arrived_us)
        self._indexed_at = index.positions[-1] if len(index) else 0
        for damage in loaded.damages:
            inside = clip(damage, loaded.size, self.end_offset)
            if inside is not None:
                self.note_damage(inside)

    def release_index(self) -> int:
        if self.index is None or not self.finished:
            return 0
        released = self.index.byte_count
        self.index = None
        return released

    @property
    def index_path(self) -> str:
        return index_path(self.path)

    @property
    def summary(self) -> IndexSummary:
        assert self.index is not None
        return IndexSummary(self.base_offset, self.end_offset, self.newest_us, self.file.size)

    def save_index(self) -> None:
        """Write the index file. Not durable: it can be rebuilt, and has the bytes it covers."""
        data = self.load().dump(self.summary)
        self._disk.write_file_atomic(self.index_path, data, durable=False)

    def drop_index(self) -> None:
        """Remove the index where bytes were or may be cut: others may fill the same length."""
        self.index = None
        if self._disk.exists(self.index_path):
            self._disk.remove(self.index_path)

    # --- writing -------------------------------------------------------------------------------
    def append(
        self,
        batches: Sequence[tuple[BatchHeader, memoryview]],
        end_offset: int,
        interval_bytes: int,
    ) -> None:
        index = self.load()
        file, offset, base_offset = self.file, self.end_offset, self.base_offset
        position = file.size
        assert not self.finished
        assert not self.dropped
        assert not position % BATCH_ALIGNMENT_BYTES, "a scan looks for batches at multiples of 64"
        assert offset < end_offset <= base_offset + SEGMENT_ROWS_MAX
        if interval_bytes > INDEX_INTERVAL_BYTES_MAX:
            interval_bytes = INDEX_INTERVAL_BYTES_MAX
        entry_count, tail = len(index), (position, offset)
        newest_us, indexed_at = self.newest_us, self._indexed_at
        try:
            at = file.append([view for _, view in batches])
            assert at == position
            for header, view in batches:
                if at - indexed_at >= interval_bytes or not indexed_at:
                    index.add(offset - base_offset, at, newest_us)
                    indexed_at = at
                if header.timestamp_max_us > newest_us:
                    newest_us = header.timestamp_max_us
                assert len(view) == SIZE_END + header.size, "a walk goes by the header's size"
                at += len(view)
                offset += header.row_count
            assert offset == end_offset
            assert at == file.size < _POSITIONS_MAX
        except BaseException:
            file.retract(position)
            index.cut(entry_count)
            raise
        # Nothing below can fail: the segment has changed as a whole.
        self.newest_us, self._indexed_at = newest_us, indexed_at
        self.end_offset, self.tail = end_offset, tail

    def end_at(self, offset: int) -> None:
        """End at `offset`: where rows are missing behind the file's last one, fewer are."""
        assert self.base_offset < offset
        if offset < self.end_offset:
            self.end_offset = offset
            kept = [damage for damage in self.damages if damage.offset < offset]
            self.damages = [d._replace(end_offset=min(d.end_offset, offset)) for d in kept]
        assert self.end_offset <= offset

    # --- damage and trust ----------------------------------------------------------------------
    def note_damage(self, damage: Damage) -> None:
        assert self.base_offset <= damage.offset <= damage.end_offset
        assert damage.position <= damage.end_position <= self.file.size
        if all(known.position != damage.position for known in self.damages):
            self.damages.append(damage)
            self.damages.sort()

    def diagnose(self) -> bool:
        """Scan the whole file; return whether new damage was found. For callers that may wait for
        the disk."""
        bounds = (self.base_offset, self.file.size, self.end_offset)
        return self.note_damages(find_damages(self.file, *bounds, self.boundaries))

    def note_damages(self, damages: Sequence[Damage]) -> bool:
        known = len(self.damages)
        for damage in damages:
            self.note_damage(damage)
        return len(self.damages) > known

    @property
    def boundaries(self) -> Boundaries:
        return Boundaries(self.base_offset, self.index, self._known_places)

    @property
    def _known_places(self) -> tuple[Boundary, ...]:
        position, offset = self.mark
        if self.finished:  # It may include rows that followed in the next segment.
            offset = min(offset, self.end_offset)
        mark = Boundary(position, offset)
        behind = (Boundary(damage.end_position, damage.end_offset) for damage in self.damages)
        return mark, self.recovered_from, *behind

    def corrupt(self, damage: Damage) -> CorruptLog:
        position, end, offset, end_offset = damage
        name = short_name(self.path)
        return CorruptLog(
            f"{name}: bytes {position} to {end}, rows {offset} to {end_offset}, are damaged.",
            file=name,
            position=position,
            offset=offset,
            end_offset=end_offset,
        )

    def trust_from(self, position: int) -> None:
        assert position >= SEGMENT_HEADER_BYTES
        assert not self._verified, "a scan comes before any read"
        self.trusted_from = min(self.trusted_from, position)

    def distrust(self) -> None:
        """Verify again before anything is served: some bytes were refused or damaged."""
        self.trusted_from = self.file.size
        self._verified = []
        self.tail = (0, -1)

    def verified_end(self, start: int) -> int:
        assert SEGMENT_HEADER_BYTES <= start <= self.file.size
        if start >= self.trusted_from:
            return self.file.size
        end = max((end for first, end in self._verified if first <= start < end), default=start)
        assert end < self.trusted_from, "a range that reaches trusted bytes is one with them"
        return end

    def verified(self, start: int, end: int) -> None:
        assert SEGMENT_HEADER_BYTES <= start < end <= self.file.size
        apart: list[tuple[int, int]] = []
        for known in self._verified:
            if known[0] <= end and start <= known[1]:
                start, end = min(start, known[0]), max(end, known[1])
            else:
                apart.append(known)
        if end >= self.trusted_from:
            self.trusted_from = min(self.trusted_from, start)
            self._verified = apart
        else:
            # The oldest verified range is verified again when needed.
            self._verified = [*apart, (start, end)][-_VERIFIED_RANGES_MAX:]
        assert all(known_end < self.trusted_from for _, known_end in self._verified)
