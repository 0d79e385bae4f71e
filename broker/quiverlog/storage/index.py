"""Where in a segment a row or a moment lies: one sparse index for both.

Owns the three parallel columns and their file. An entry is made for the first batch and then for a
batch about every `index.interval.bytes`:

    relative offset   of the batch's first row, from the segment's base
    position          of the batch in the .log file
    newest before     the newest timestamp of all batches in front of it (growing, so searchable)

A lookup gives the last entry that is not too far; the few batches after it are walked. The index
only shortens a walk: it is rebuilt from the batch headers whenever its file is missing, damaged, or
covers another number of bytes than the .log file has, so it can never be ahead of the log.

`.index` (all of it: offsets lead to `u32 x count`, then positions, then times) and its summary,
framed as `frames` draws it, magic `QVINDEX1`:

```
 0  i64 base_offset     8 i64 end_offset     16 i64 newest_us     24 u64 covered_bytes
32  u32 count          36 u32 x count relative offsets | u32 x count positions | i64 x count times
```
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from quiverlog.errors import CorruptLog
from quiverlog.storage.frames import pack_file, unpack_file

__all__ = ["NO_TIME", "IndexSummary", "SparseIndex"]

NO_TIME: Final = -(2**63)
"""Older than every timestamp."""
_MAGIC: Final = b"QVINDEX1"
_VERSION: Final = 1
_SUMMARY: Final = struct.Struct("<qqqQI")
assert array("I").itemsize == 4
assert sys.byteorder == "little", "the arrays are written as they lie in memory"


class IndexSummary(NamedTuple):
    """The head of an index file: facts about the whole segment."""

    base_offset: int
    end_offset: int
    newest_us: int
    covered_bytes: int


class SparseIndex:
    """See the module docstring."""

    __slots__ = ("positions", "relative_offsets", "times")

    def __init__(self) -> None:
        self.relative_offsets = array("I")
        self.positions = array("I")
        self.times = array("q")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, relative_offset: int, position: int, newest_before_us: int) -> None:
        """Append an entry; all three only grow."""
        if self.positions:
            assert position > self.positions[-1], "one entry for a batch"
            assert relative_offset > self.relative_offsets[-1]
            assert newest_before_us >= self.times[-1]
        self.relative_offsets.append(relative_offset)
        self.positions.append(position)
        self.times.append(newest_before_us)

    def cut(self, count: int) -> None:
        """Keep the first `count` entries: an append failed half way through its entries."""
        assert 0 <= count <= len(self)
        for column in (self.relative_offsets, self.positions, self.times):
            del column[count:]
            assert len(column) == count

    @property
    def byte_count(self) -> int:
        """The bytes that the entries take in memory."""
        return 16 * len(self)

    def floor_offset(self, relative_offset: int) -> int:
        """The last entry whose batch begins at or before the row; at least 0."""
        assert relative_offset >= 0
        return max(0, bisect_right(self.relative_offsets, relative_offset) - 1)

    def floor_position(self, position: int) -> int:
        """The last entry at or before the position; at least 0."""
        assert position >= 0
        return max(0, bisect_right(self.positions, position) - 1)

    def floor_time(self, at_us: int) -> int:
        """The last entry in front of which everything is older than `at_us`; at least 0."""
        return max(0, bisect_left(self.times, at_us) - 1)

    def dump(self, summary: IndexSummary) -> bytes:
        """The file's bytes."""
        assert summary.base_offset <= summary.end_offset
        assert not self.positions or self.positions[-1] < summary.covered_bytes
        assert len(self.relative_offsets) == len(self.positions) == len(self.times)
        head = _SUMMARY.pack(*summary, len(self))
        columns = (self.relative_offsets, self.positions, self.times)
        return pack_file(_MAGIC, _VERSION, head + b"".join(c.tobytes() for c in columns))

    @classmethod
    def load(cls, path: str, data: bytes) -> tuple[IndexSummary, SparseIndex]:
        """Read a file's bytes.

        Raises:
            CorruptLog: damaged; rebuild it from the segment.
            UnsupportedFormat: a newer version wrote it.
        """
        payload = unpack_file(path, data, _MAGIC, _VERSION)
        if len(payload) < _SUMMARY.size:
            raise CorruptLog(f"{path} is cut short.", file=path)
        *numbers, count = _SUMMARY.unpack_from(payload)
        if len(payload) != _SUMMARY.size + 16 * count:
            raise CorruptLog(f"{path} does not hold the {count} entries it tells of.", file=path)
        index = cls()
        times_at = _SUMMARY.size + 8 * count
        index.relative_offsets.frombytes(payload[_SUMMARY.size : _SUMMARY.size + 4 * count])
        index.positions.frombytes(payload[_SUMMARY.size + 4 * count : times_at])
        index.times.frombytes(payload[times_at:])
        assert len(index.relative_offsets) == len(index.positions) == len(index.times) == count
        return IndexSummary(*numbers), index
