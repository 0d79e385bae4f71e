"""Places in a segment where a batch is known to begin, whatever its bytes say.

Owns the evidence that no producer can forge: index entries, the flushed mark, the recovery point.
A column may hold bytes that look like batches, so behind damage of unknown extent these places are
where a scan goes on (scan.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from quiverlog.limits import BATCH_ALIGNMENT_BYTES
from quiverlog.storage.index import SparseIndex

__all__ = ["Boundaries", "Boundary"]


class Boundary(NamedTuple):
    """The batch at `position` begins with row `offset`."""

    position: int
    offset: int


class Boundaries:
    """See the module docstring.

    Args:
        base_offset: of the segment.
        index: of these bytes, or of as many as the segment had before it grew. Its entries are
            copied: they may be asked for in another thread.
        more: other places; those where no batch can begin stand for none (0, the end of a file that
            was cut).
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
        self._more = sorted(
            place
            for place in more
            if place.position > 0 and not place.position % BATCH_ALIGNMENT_BYTES
        )

    def after(self, position: int) -> Boundary | None:
        """The first place behind byte `position`; None where none is known."""
        found = [place for place in self._more if place.position > position][:1]
        entry = bisect_right(self._positions, position)
        if entry < len(self._positions):
            offset = self._base_offset + self._relative_offsets[entry]
            found.append(Boundary(self._positions[entry], offset))
        nearest = min(found, default=None)
        assert nearest is None or nearest.position > position, "a scan goes on there"
        return nearest
