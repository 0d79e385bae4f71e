"""The segments of a log, oldest first, and the memory of their indexes.

An offset between two segments (a lost file) belongs to the one before the gap. `IndexCache` works
by second chance over finished segments; an append needs the growing one's index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog
from quiverlog.limits import INDEX_MEMORY_BYTES_MAX
from quiverlog.storage.disk.disk import short_name
from quiverlog.storage.segment import reading
from quiverlog.storage.segment.segment import Segment

__all__ = ["IndexCache", "Segments"]


class Segments:
    __slots__ = ("_bases", "byte_count", "items")

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.items: list[Segment] = []
        self._bases: list[int] = []
        self.byte_count = 0
        for segment in segments:
            self.add(segment)

    def __len__(self) -> int:
        return len(self.items)

    def add(self, segment: Segment) -> None:
        assert not self._bases or segment.base_offset > self._bases[-1]
        assert not segment.dropped, "its files are gone or about to go"
        self.items.append(segment)
        self._bases.append(segment.base_offset)
        self.byte_count += segment.file.size

    def grew(self, byte_count: int) -> None:
        assert self.items
        assert byte_count > 0
        self.byte_count += byte_count

    def take_first(self) -> Segment:
        del self._bases[0]
        return self._taken(self.items.pop(0))

    def take_last(self) -> Segment:
        self._bases.pop()
        return self._taken(self.items.pop())

    def _taken(self, segment: Segment) -> Segment:
        segment.dropped = True
        self.byte_count -= segment.file.size
        assert self.byte_count >= 0, "the bytes of all segments were counted"
        assert len(self._bases) == len(self.items)
        segment.file.close()
        return segment

    def number_of(self, offset: int) -> int:
        return bisect_right(self._bases, offset) - 1

    def holding(self, offset: int) -> list[Segment]:
        return self.items[max(0, self.number_of(offset)) :]

    def missing(self, number: int, directory: str, start: int, end: int) -> CorruptLog:
        assert -1 <= number < len(self.items)
        if number >= 0:
            start = max(start, self.items[number].end_offset)
        if number + 1 < len(self.items):
            end = self.items[number + 1].base_offset
        name = short_name(directory)
        why = f"{name}: rows {start} to {end} are missing."
        return CorruptLog(why, file=name, offset=start, end_offset=end)

    def headers(self, offset: int, damages: list[str]) -> Iterator[BatchHeader]:
        for segment in self.holding(offset):
            try:
                for _, header in reading.all_headers(segment, offset):
                    yield header
            except CorruptLog as error:
                if error.message not in damages:  # Retention asks every round.
                    damages.append(error.message)


class IndexCache:
    __slots__ = ("_bytes_max", "_segments", "byte_count")

    def __init__(self, bytes_max: int = INDEX_MEMORY_BYTES_MAX) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._segments: OrderedDict[Segment, None] = OrderedDict()
        self.byte_count = 0

    def finished(self, segment: Segment) -> None:
        if segment.index is None or segment.cached or not segment.finished:
            return
        segment.cached = True
        self.byte_count += segment.index.byte_count
        self._segments[segment] = None
        self._make_room()

    def discard(self, segment: Segment) -> None:
        if segment.cached:
            segment.cached = False
            del self._segments[segment]
            self.byte_count -= 0 if segment.index is None else segment.index.byte_count
            assert self.byte_count >= 0
            assert self._segments or not self.byte_count, "bytes are of indexes that are known"

    def _make_room(self) -> None:
        """Drop indexes, in at most two rounds: the first clears every mark of use."""
        for _ in range(2 * len(self._segments)):
            if self.byte_count <= self._bytes_max or len(self._segments) < 2:
                return
            oldest, _ = self._segments.popitem(last=False)
            assert oldest.finished, "an append needs the index of the others"
            if oldest.recent:
                oldest.recent = False
                self._segments[oldest] = None
            else:
                oldest.cached = False
                self.byte_count -= oldest.release_index()
                assert self.byte_count >= 0
