"""How much memory the segments' indexes may take.

Owns the bound, and the choice whose index goes: of the finished segments one that was not used
since the last time around (second chance). The index of a segment that still grows stays, because
an append needs it; it takes 16 bytes for every `index.interval.bytes` of the file.
"""

from __future__ import annotations

from collections import OrderedDict

from quiverlog.limits import INDEX_MEMORY_BYTES_MAX
from quiverlog.storage.segment import Segment

__all__ = ["IndexCache"]


class IndexCache:
    """See the module docstring. One for a whole broker, or one for a log alone."""

    __slots__ = ("_bytes_max", "_segments", "byte_count")

    def __init__(self, bytes_max: int = INDEX_MEMORY_BYTES_MAX) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._segments: OrderedDict[Segment, None] = OrderedDict()
        self.byte_count = 0
        """Bytes of the indexes that this cache knows of."""

    def finished(self, segment: Segment) -> None:
        """A segment has its index in memory. One that takes more appends is not counted."""
        if segment.index is None or segment.cached or not segment.finished:
            return
        segment.cached = True
        self.byte_count += segment.index.byte_count
        self._segments[segment] = None
        self._make_room()

    def forget(self, segment: Segment) -> None:
        """The segment takes no part in the log any more: its index is not counted."""
        if segment.cached:
            segment.cached = False
            del self._segments[segment]
            self.byte_count -= 0 if segment.index is None else segment.index.byte_count
            assert self.byte_count >= 0
            assert self._segments or not self.byte_count, "bytes are of indexes that are known"

    def _make_room(self) -> None:
        """At most two rounds: the first takes the mark of use from everybody."""
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
