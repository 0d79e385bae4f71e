"""One file of a log: batches back to back behind a 64-byte header.

```
 0  8s  magic "QVSEGMNT"
 8  u16 version = 1     10 u16 reserved     12 u32 crc32c over bytes 16..64
16  i64 base_offset     24 i64 created_us   32 reserved (0) up to 64
64  batch | batch | ...   each as batch/header.py draws it, a multiple of 64 bytes
```

Owns the .log file and its index. Invariants: the file only grows (a sealed segment not even that),
so served views stay valid; positions fit 32 bits; batches' offsets join up. What the process has
written or scanned itself is trusted; other bytes have their checksums verified when they are read
for the first time (clients verify always, so this finds damage early rather than guards readers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.disk import Disk, File
from quiverlog.storage.frames import check_version
from quiverlog.storage.index import NO_TIME, IndexSummary, SparseIndex
from quiverlog.storage.scan import Damage, Found, scan

__all__ = [
    "LOG_SUFFIX",
    "SEGMENT_HEADER_BYTES",
    "SEGMENT_MAGIC",
    "LoadedIndex",
    "Segment",
    "segment_path",
]

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
SEGMENT_HEADER_BYTES: Final = 64
SEGMENT_MAGIC: Final = b"QVSEGMNT"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sHHI")
_BODY: Final = struct.Struct("<qq32x")
_CHAIN: Final = struct.Struct("<qiI20xI")
"""base_offset, leader_epoch, size, row_count: what a walk needs of a header."""
_WINDOW_BYTES_MAX: Final = 64 * 1024
_REWRITE_BYTES: Final = 1024 * 1024
assert _HEAD.size + _BODY.size == SEGMENT_HEADER_BYTES


def segment_path(directory: str, base_offset: int) -> str:
    """Path of the .log file."""
    return f"{directory}/{base_offset:020d}{LOG_SUFFIX}"


class LoadedIndex(NamedTuple):
    """What a load brings to memory, for the first `size` bytes of the file."""

    entries: SparseIndex
    newest_us: int
    size: int
    created_us: int
    damages: tuple[Damage, ...] = ()


class Segment:
    """See the module docstring. `end_offset`: the offset after the last row.

    `newest_us` is only right once the index is loaded (`load`).
    """

    __slots__ = (
        "_disk",
        "_indexed_at",
        "_tail_at",
        "_tail_offset",
        "_trusted_from",
        "_verified_from",
        "_verified_to",
        "base_offset",
        "created_us",
        "damages",
        "dropped",
        "end_offset",
        "file",
        "index",
        "newest_us",
        "path",
    )

    def __init__(self, disk: Disk, path: str, file: File, base_offset: int) -> None:
        self._disk = disk
        self.path = path
        self.file = file
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.created_us = -1
        self.index: SparseIndex | None = None
        self.newest_us = NO_TIME
        self.damages: list[Damage] = []
        self.dropped = False
        self._indexed_at = 0
        # The newest append: nearly every reader of a log that grows asks for it.
        self._tail_at = 0
        self._tail_offset = -1
        self._verified_from = self._verified_to = 0
        self._trusted_from = file.size

    # --- making and opening --------------------------------------------------------------------
    @classmethod
    def create(cls, disk: Disk, directory: str, base_offset: int, now_us: int) -> Segment:
        """A new, empty segment. Raises DiskFull or StorageFault, leaving nothing behind."""
        path = segment_path(directory, base_offset)
        if disk.exists(path):
            disk.remove(path)  # Left by a creation that failed half way; it holds no batch.
        file = disk.open(path, create=True)
        segment = cls(disk, path, file, base_offset)
        try:
            segment.write_header(now_us)
        except QuiverlogError:
            disk.remove(path)
            raise
        segment.index = SparseIndex()
        segment._trusted_from = SEGMENT_HEADER_BYTES
        return segment

    def write_header(self, now_us: int) -> None:
        """The first 64 bytes of an empty file."""
        body = _BODY.pack(self.base_offset, now_us)
        self.file.append([_HEAD.pack(SEGMENT_MAGIC, _VERSION, 0, crc32c(body)), body])
        self.created_us = now_us

    def check_header(self) -> None:
        """Raises CorruptLog or UnsupportedFormat unless the file is this segment's."""
        self.created_us = self._read_header()

    def _read_header(self) -> int:
        """When the segment was made. Raises as `check_header`. From any thread."""
        head = self.file.read_copy(0, SEGMENT_HEADER_BYTES)
        if len(head) < SEGMENT_HEADER_BYTES or head[:8] != SEGMENT_MAGIC:
            raise CorruptLog(f"{self.path} is not a segment.", file=self.path, position=0)
        _, version, _, crc = _HEAD.unpack_from(head)
        check_version(self.path, version, _VERSION)
        base_offset, created_us = _BODY.unpack_from(head, _HEAD.size)
        if crc32c(head[_HEAD.size :]) != crc or base_offset != self.base_offset:
            raise CorruptLog(f"{self.path}: its header is damaged.", file=self.path, position=0)
        return int(created_us)

    def rewrite(self, position: int) -> None:
        """Write all from `position` on once more, as it is (why: `disk.File.rewrite`)."""
        for at in range(position, self.file.size, _REWRITE_BYTES):
            # Copied: the source may be a mapping of the very pages that are written.
            self.file.rewrite(at, bytes(self.file.read(at, _REWRITE_BYTES)))

    @property
    def empty(self) -> bool:
        """Has it no batch?"""
        return self.file.size <= SEGMENT_HEADER_BYTES

    def load(self) -> SparseIndex:
        """The index: from memory, from its file, or from a walk over the batch headers.

        Raises:
            CorruptLog: the file is not this segment's.
        """
        if self.index is None:
            self.take_index(self.read_index(self.file.size))
        assert self.index is not None
        return self.index

    def take_index(self, loaded: LoadedIndex) -> None:
        """A load came back. What was loaded for other bytes than there are now is dropped."""
        if self.index is not None or loaded.size != self.file.size:
            return
        index = self.index = loaded.entries
        self.newest_us = loaded.newest_us
        self.created_us = loaded.created_us
        self._indexed_at = index.positions[-1] if len(index) else 0
        for damage in loaded.damages:
            self._note_found(damage)

    def read_index(self, size: int) -> LoadedIndex:
        """The index for the first `size` bytes. Changes nothing; may run in another thread.

        Raises:
            CorruptLog: the file is not this segment's.
        """
        created_us = self._read_header()
        return self._read_index_file(size, created_us) or self._rebuild_index(size, created_us)

    def _read_index_file(self, size: int, created_us: int) -> LoadedIndex | None:
        path = self.index_path
        try:
            summary, index = SparseIndex.load(path, self._disk.read_file(path))
        except (FileNotFoundError, CorruptLog):
            return None
        if (
            summary.covered_bytes != size
            or summary.base_offset != self.base_offset
            or summary.end_offset != self.end_offset
        ):
            return None
        return LoadedIndex(index, summary.newest_us, size, created_us)

    def _rebuild_index(
        self, size: int, created_us: int, *, interval_bytes: int = 4096, verify: bool = False
    ) -> LoadedIndex:
        index = SparseIndex()
        newest_us = NO_TIME
        indexed_at = 0
        damages: list[Damage] = []
        view = memoryview(self.file.read_copy(0, size))
        for entry in scan(view, SEGMENT_HEADER_BYTES, self.base_offset, verify=verify):
            if isinstance(entry, Found):
                position, header = entry
                if position - indexed_at >= interval_bytes or not len(index):
                    index.add(header.base_offset - self.base_offset, position, newest_us)
                    indexed_at = position
                newest_us = max(newest_us, header.timestamp_max_us)
            elif not verify:
                # Headers do not join up: only checksums tell which of the neighbours lies.
                return self._rebuild_index(size, created_us, verify=True)
            elif isinstance(entry, Damage):
                damages.append(entry)
        return LoadedIndex(index, newest_us, size, created_us, tuple(damages))

    def note_damage(self, damage: Damage) -> None:
        """Remember rows that cannot be read."""
        if all(known.position != damage.position for known in self.damages):
            self.damages.append(damage)
            self.damages.sort()

    def _note_found(self, damage: Damage) -> None:
        """A damaged header may lie about its rows, but where the segment ends is known."""
        at_end = damage.end_position >= self.file.size or damage.end_offset > self.end_offset
        self.note_damage(damage._replace(end_offset=self.end_offset) if at_end else damage)

    def trust_from(self, position: int) -> None:
        """Everything from `position` on was verified by a scan."""
        self._trusted_from = min(self._trusted_from, position)

    def distrust(self, position: int) -> None:
        """The disk refused bytes at `position`: verify from there on before anything is served."""
        self._trusted_from = self.file.size
        self._verified_from = self._verified_to = 0
        self._tail_at, self._tail_offset = 0, -1

    def span(self, offset: int, bytes_max: int, end_offset: int) -> tuple[int, int]:
        """(position, size) of what `read` looks at, a little more rather than less."""
        index = self.load()
        if not len(index):
            return SEGMENT_HEADER_BYTES, 0
        size = self.file.size
        position = index.positions[index.floor_offset(offset - self.base_offset)]
        end = size
        last = index.floor_offset(max(0, end_offset - 1 - self.base_offset)) + 1
        if last < len(index):
            end = index.positions[last]
        after = index.floor_offset(offset - self.base_offset) + 1
        first_end = index.positions[after] if after < len(index) else size
        return position, min(end, max(first_end, position + bytes_max)) - position

    @property
    def index_path(self) -> str:
        """Path of the .index file."""
        return self.path[: -len(LOG_SUFFIX)] + INDEX_SUFFIX

    def save_index(self) -> None:
        """Write the index file. Not durable: it can be rebuilt and says what it covers."""
        data = self.load().dump(self.summary)
        self._disk.write_file_atomic(self.index_path, data, durable=False)

    @property
    def summary(self) -> IndexSummary:
        """What an index file says of this segment. The index must be loaded."""
        return IndexSummary(self.base_offset, self.end_offset, self.newest_us, self.file.size)

    def drop_index(self) -> None:
        """Bytes are cut or may have been: others may come to fill the same length."""
        self.index = None
        if self._disk.exists(self.index_path):
            self._disk.remove(self.index_path)

    # --- writing -------------------------------------------------------------------------------
    def append(
        self, batches: list[tuple[BatchHeader, memoryview]], end_offset: int, interval_bytes: int
    ) -> None:
        """Write stamped batches; `end_offset` is the offset after them. All or nothing."""
        index = self.index
        if index is None:
            index = self.load()
        position = self.file.append([view for _, view in batches])
        offset = self.end_offset
        self._tail_at, self._tail_offset = position, offset
        for header, view in batches:
            if position - self._indexed_at >= interval_bytes or not self._indexed_at:
                index.add(offset - self.base_offset, position, self.newest_us)
                self._indexed_at = position
            if header.timestamp_max_us > self.newest_us:
                self.newest_us = header.timestamp_max_us
            position += len(view)
            offset += header.row_count
        assert offset == end_offset
        self.end_offset = end_offset

    # --- reading -------------------------------------------------------------------------------
    def read(self, offset: int, bytes_max: int, end_offset: int) -> list[memoryview]:
        """As `Log.read`, within this segment."""
        self.load()
        try:
            return self._read(offset, bytes_max, end_offset)
        except CorruptLog:
            # Find out how far the damage reaches: what lies behind it can still be read.
            if any(d.offset <= offset < d.end_offset for d in self.damages) or not (
                self._diagnose(SEGMENT_HEADER_BYTES, self.base_offset)
            ):
                raise
            return self._read(offset, bytes_max, end_offset)

    def _diagnose(self, position: int, offset: int) -> bool:
        """Scan from a batch on with checksums; True if damage was found that was not known."""
        known = len(self.damages)
        view = self.file.read(position, self.file.size - position)
        for entry in scan(view, 0, offset, verify=True):
            if isinstance(entry, Damage):
                at, end = position + entry.position, position + entry.end_position
                self._note_found(Damage(at, end, entry.offset, entry.end_offset))
        return len(self.damages) > known

    def _read(self, offset: int, bytes_max: int, end_offset: int) -> list[memoryview]:
        index = self.load()
        entry = index.floor_offset(offset - self.base_offset)
        if self.damages:
            end_offset = self._end_before_damage(offset, end_offset)
        if not len(index):
            raise self._corrupt(SEGMENT_HEADER_BYTES, self.file.size, offset, self.end_offset)
        floor = index.positions[entry]
        expected = self.base_offset + index.relative_offsets[entry]
        if self.damages:
            floor, expected = self._skip_damage(floor, expected, offset)
        elif floor < self._tail_at and offset >= self._tail_offset:
            floor, expected = self._tail_at, self._tail_offset
        size = self.file.size
        need = min(size - floor, bytes_max + 2 * BATCH_HEADER_BYTES + 4096)
        if need > _WINDOW_BYTES_MAX:
            need = size - floor
        window = self.file.read(floor, need)
        at, total = 0, 0
        while True:  # To the batch that holds `offset`.
            total, rows = self._step(window, at, floor, expected, size)
            if expected + rows > offset:
                break
            at, expected = at + total, expected + rows
        start, last = at, at
        expected += rows
        at += total
        if expected < end_offset and at - start < bytes_max:
            # One entry less than what surely fits: the walk must pass the last batch's header.
            jump = -1 + min(
                index.floor_position(floor + start + bytes_max),
                index.floor_offset(end_offset - 1 - self.base_offset),
            )
            if jump > entry and index.positions[jump] > floor + at and not self.damages:
                at = index.positions[jump] - floor
                expected = self.base_offset + index.relative_offsets[jump]
            while expected < end_offset and floor + at < size:
                try:
                    total, rows = self._step(window, at, floor, expected, size)
                except CorruptLog:
                    break  # What is good in front of it goes out; the next read tells.
                if at + total - start > bytes_max:
                    break
                last, at, expected = at, at + total, expected + rows
        return self._views(window, floor, start, last, at, size)

    def _views(
        self, window: memoryview, floor: int, start: int, last: int, end: int, size: int
    ) -> list[memoryview]:
        if end > len(window):
            window = self.file.read(floor, size - floor)
        if floor + start < self._trusted_from:
            last, end = self._verify(window, floor, start, last, end)
        if last in (start, end):
            return [window[start:end]]
        return [window[start:last], window[last:end]]

    def _step(
        self, window: memoryview, at: int, floor: int, expected: int, size: int
    ) -> tuple[int, int]:
        """(bytes, rows) of the batch at `at`, whose first row must be `expected`."""
        if at + BATCH_HEADER_BYTES > len(window):
            window = self.file.read(floor + at, BATCH_HEADER_BYTES)
            if len(window) < BATCH_HEADER_BYTES:
                raise self._corrupt(floor + at, size, expected, self.end_offset)
            base_offset, _, after, rows = _CHAIN.unpack_from(window)
        else:
            base_offset, _, after, rows = _CHAIN.unpack_from(window, at)
        total = after + 16
        if base_offset != expected or not rows or floor + at + total > size or total < 64:
            raise self._corrupt(floor + at, size, expected, self.end_offset)
        return total, rows

    def _verify(
        self, window: memoryview, floor: int, start: int, last: int, end: int
    ) -> tuple[int, int]:
        """Check window[start:end] unless that was done before; (last batch, end) of what is good.

        Raises:
            CorruptLog: the very first batch is damaged.
        """
        if self._verified_from <= floor + start and floor + end <= self._verified_to:
            return last, end
        good_last, good_end = start, start
        offset = BatchHeader.unpack(window, start).base_offset
        for entry in scan(window[:end], start, offset, verify=True):
            if isinstance(entry, Found):
                good_last, good_end = entry.position, entry.position + entry.header.total_bytes
                continue
            if entry.position == start:
                # How far it reaches is for `_diagnose`, which sees the whole file.
                raise self._corrupt(floor + start, floor + end, entry.offset, self.end_offset)
            break
        self._verified(floor + start, floor + good_end)
        return good_last, good_end

    def _verified(self, start: int, end: int) -> None:
        if self._verified_from <= start <= self._verified_to:
            self._verified_to = max(self._verified_to, end)
        else:
            self._verified_from, self._verified_to = start, end
        if self._verified_to >= self._trusted_from:
            self._trusted_from = min(self._trusted_from, self._verified_from)

    def _end_before_damage(self, offset: int, end_offset: int) -> int:
        for damage in self.damages:
            if damage.offset <= offset < damage.end_offset:
                raise self._corrupt(*damage)
            if offset < damage.offset < end_offset:
                return damage.offset
        return end_offset

    def _skip_damage(self, floor: int, expected: int, offset: int) -> tuple[int, int]:
        """Begin after the last damage that lies between an index entry and `offset`."""
        for damage in self.damages:
            if expected <= damage.offset and damage.end_offset <= offset:
                floor, expected = damage.end_position, damage.end_offset
        return floor, expected

    def _corrupt(self, position: int, end: int, offset: int, end_offset: int) -> CorruptLog:
        return CorruptLog(
            f"{self.path}: bytes {position} to {end}, rows {offset} to {end_offset}, are damaged.",
            file=self.path,
            position=position,
            offset=offset,
            end_offset=end_offset,
        )

    def headers(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from the one that holds `offset` on.

        Batches that are damaged are left out.
        """
        if self.empty or offset >= self.end_offset:
            return
        index = self.load()
        entry = index.floor_offset(max(0, offset - self.base_offset))
        yield from self._headers_from(entry, offset)

    def _headers_from(self, entry: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        index = self.load()
        if not len(index):
            return
        floor = index.positions[entry]
        expected = self.base_offset + index.relative_offsets[entry]
        size = self.file.size
        near = min(size - floor, _WINDOW_BYTES_MAX)
        known = {damage.position: damage for damage in self.damages}
        view, shift = self.file.read(floor, near), floor
        position = floor
        while position < size:
            damage = known.get(position)
            if damage is not None:
                position, expected = damage.end_position, damage.end_offset
                continue
            if position - shift + BATCH_HEADER_BYTES > len(view):
                view, shift = self.file.read(position, size - position), position
            if len(view) - (position - shift) < BATCH_HEADER_BYTES:
                raise self._corrupt(position, size, expected, self.end_offset)
            header = BatchHeader.unpack(view, position - shift)
            if (
                header.base_offset != expected
                or header.total_bytes < BATCH_HEADER_BYTES
                or position + header.total_bytes > size
                or not header.row_count
            ):
                if not self._diagnose(SEGMENT_HEADER_BYTES, self.base_offset):
                    raise self._corrupt(position, size, expected, self.end_offset)
                known = {damage.position: damage for damage in self.damages}
                # The culprit may be the batch just passed, which lied about its rows.
                passed = [d.end_offset for d in self.damages if d.end_position == position]
                if position not in known and not passed:
                    raise self._corrupt(position, size, expected, self.end_offset)
                expected = passed[0] if passed else expected
                continue
            if header.next_offset > offset:
                yield position, header
            position += header.total_bytes
            expected = header.next_offset

    def first_at_or_after(self, at_us: int, offset: int) -> BatchHeader | None:
        """The first batch with rows at or after `offset` whose time is `at_us` or later."""
        index = self.load()
        if self.newest_us < at_us or self.empty:
            return None
        entry = max(index.floor_time(at_us), index.floor_offset(max(0, offset - self.base_offset)))
        for _, header in self._headers_from(entry, offset):
            if header.timestamp_max_us >= at_us:
                return header
        return None

    def last_boundary(self, position: int, offset: int) -> tuple[int, int]:
        """(position, offset) of the last batch end at or before `position`, not below `offset`."""
        index = self.load()
        entry = index.floor_position(position)
        best = (index.positions[entry], self.base_offset + index.relative_offsets[entry])
        for at, header in self._headers_from(entry, 0):
            if at + header.total_bytes > position:
                break
            best = (at + header.total_bytes, header.next_offset)
        return best
