"""The sparse index of a segment, for offsets and times, and boundaries of batches.

Three parallel columns; an entry for the first batch, and for each batch that begins at least
`index.interval.bytes` behind the last entry.

A stored index is used only where its length and offsets are those of the .log file; else
`segment_files` builds one from the headers of the batches.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from quiverlog.errors import CorruptLog
from quiverlog.limits import BATCH_ALIGNMENT_BYTES
from quiverlog.storage.disk.frames import pack_file, unpack_file

__all__ = ["NO_TIME", "Boundaries", "Boundary", "IndexSummary", "SparseIndex"]


NO_TIME: Final = -(2**63)
_MAGIC: Final = b"QVINDEX1"
_VERSION: Final = 1
_SUMMARY: Final = struct.Struct("<qqqQI")
assert array("I").itemsize == 4
assert sys.byteorder == "little", "the arrays are written as they lie in memory"


class IndexSummary(NamedTuple):
    base_offset: int
    end_offset: int
    newest_us: int
    covered_bytes: int


class SparseIndex:
    __slots__ = ("positions", "relative_offsets", "times")

    def __init__(self) -> None:
        self.relative_offsets = array("I")
        self.positions = array("I")
        self.times = array("q")

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, relative_offset: int, position: int, newest_before_us: int) -> None:
        if self.positions:
            assert position > self.positions[-1], "one entry for a batch"
            assert relative_offset > self.relative_offsets[-1]
            assert newest_before_us >= self.times[-1]
        self.relative_offsets.append(relative_offset)
        self.positions.append(position)
        # Rows may be older than rows before them; the newest time so far never falls.
        self.times.append(newest_before_us)

    def cut(self, count: int) -> None:
        assert 0 <= count <= len(self)
        for column in (self.relative_offsets, self.positions, self.times):
            del column[count:]
            assert len(column) == count

    @property
    def byte_count(self) -> int:
        return 16 * len(self)

    def entry_at_offset(self, relative_offset: int) -> int:
        assert relative_offset >= 0
        return max(0, bisect_right(self.relative_offsets, relative_offset) - 1)

    def entry_at_position(self, position: int) -> int:
        assert position >= 0
        return max(0, bisect_right(self.positions, position) - 1)

    def entry_at_time(self, at_us: int) -> int:
        # The first row of that time may lie between this entry and the next.
        return max(0, bisect_left(self.times, at_us) - 1)

    def dump(self, summary: IndexSummary) -> bytes:
        assert summary.base_offset <= summary.end_offset
        assert not self.positions or self.positions[-1] < summary.covered_bytes
        assert len(self.relative_offsets) == len(self.positions) == len(self.times)
        head = _SUMMARY.pack(*summary, len(self))
        columns = (self.relative_offsets, self.positions, self.times)
        return pack_file(_MAGIC, _VERSION, head + b"".join(c.tobytes() for c in columns))

    @classmethod
    def load(cls, path: str, data: bytes) -> tuple[IndexSummary, SparseIndex]:
        payload = unpack_file(path, data, _MAGIC, _VERSION)
        if len(payload) < _SUMMARY.size:
            raise CorruptLog(f"{path} is cut short.", file=path)
        *numbers, count = _SUMMARY.unpack_from(payload)
        if len(payload) != _SUMMARY.size + 16 * count:
            raise CorruptLog(f"{path} does not hold the {count} entries of its header.", file=path)
        index = cls()
        times_at = _SUMMARY.size + 8 * count
        index.relative_offsets.frombytes(payload[_SUMMARY.size : _SUMMARY.size + 4 * count])
        index.positions.frombytes(payload[_SUMMARY.size + 4 * count : times_at])
        index.times.frombytes(payload[times_at:])
        assert len(index.relative_offsets) == len(index.positions) == len(index.times) == count
        return IndexSummary(*numbers), index


class Boundary(NamedTuple):
    position: int
    offset: int


class Boundaries:
    """Places where a batch begins by the broker's own records; after damage a scan continues at the
    next. A producer can forge a header inside a batch, but no such place.

    Index entries are copied, for use in another thread. Places in `more` that are 0 or no multiple
    of 64 bytes are ignored.
    """

    __slots__ = ("_base_offset", "_more", "_positions", "_relative_offsets")

    def __init__(
        self, base_offset: int, index: SparseIndex | None = None, more: Iterable[Boundary] = ()
    ) -> None:
        assert base_offset >= 0
        assert index is None or len(index.positions) == len(index.relative_offsets)
        self._base_offset = base_offset
        self._positions = index.positions[:] if index is not None else array("I")
        self._relative_offsets = index.relative_offsets[:] if index is not None else array("I")
        # Batches begin at multiples of 64 bytes; anything else comes from a damaged file.
        self._more = sorted(
            place
            for place in more
            if place.position > 0 and not place.position % BATCH_ALIGNMENT_BYTES
        )

    def after(self, position: int) -> Boundary | None:
        found = [place for place in self._more if place.position > position][:1]
        entry = bisect_right(self._positions, position)
        if entry < len(self._positions):
            offset = self._base_offset + self._relative_offsets[entry]
            found.append(Boundary(self._positions[entry], offset))
        nearest = min(found, default=None)
        assert nearest is None or nearest.position > position, "a scan goes on there"
        return nearest
