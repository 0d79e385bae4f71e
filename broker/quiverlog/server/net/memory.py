"""One budget of memory for all connections.

Counts incomplete frames, requests that wait for their turn, and replies that were not taken. Above
the budget, the connection that costs most (bytes times the time held) is closed: so a client that
sends a large frame at full speed outlives forty that each leave half a frame.

What the node keeps of waiting requests has its own bounds; the connections keep at least half of
the budget. Views of mapped log files are not counted: the page cache gives them up when memory is
short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

__all__ = ["Holder", "MemoryBudget"]

HELD_US_MIN: Final = 50_000
"""Below this age, only the bytes decide."""


class Holder(Protocol):
    """A connection, as the budget sees it."""

    held_bytes: int
    """Of the last `MemoryBudget.report`."""

    def measure(self) -> tuple[int, int]:
        """(bytes held now, since when in monotonic microseconds)."""

    def evict(self) -> None:
        """Release everything and close."""


class MemoryBudget:
    """Closes the most expensive connection when all together hold too much.

    Args:
        bytes_max: what all holders may hold together.
        holders: all that may be closed.
        now_us: the monotonic clock.
        kept_bytes: what the node keeps.
    """

    __slots__ = (
        "_holders",
        "_kept_bytes",
        "_now_us",
        "bytes_max",
        "used_bytes",
        "used_bytes_peak",
    )

    def __init__(
        self,
        bytes_max: int,
        holders: Callable[[], Iterable[Holder]],
        *,
        now_us: Callable[[], int],
        kept_bytes: Callable[[], int] = int,
    ) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.used_bytes_peak = 0
        self._holders = holders
        self._now_us = now_us
        self._kept_bytes = kept_bytes

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes()

    @property
    def _room_bytes(self) -> int:
        return self.bytes_max - min(self._kept_bytes(), self.bytes_max // 2)

    def report(self, holder: Holder, held_bytes: int) -> None:
        """Record what `holder` holds. May close it, or others, before it returns."""
        assert held_bytes >= 0
        self.used_bytes += held_bytes - holder.held_bytes
        holder.held_bytes = held_bytes
        if self.used_bytes > self.used_bytes_peak:
            self.used_bytes_peak = self.used_bytes
        if self.used_bytes > self._room_bytes:
            self._make_room()

    def forget(self, holder: Holder) -> None:
        self.used_bytes -= holder.held_bytes
        holder.held_bytes = 0
        assert self.used_bytes >= 0

    def _make_room(self) -> None:
        """Measure all holders anew (clients take replies unseen by the broker), then close."""
        now_us, room_bytes = self._now_us(), self._room_bytes
        costs = []
        for holder in self._holders():
            held_bytes, since_us = holder.measure()
            self.used_bytes += held_bytes - holder.held_bytes
            holder.held_bytes = held_bytes
            if held_bytes:
                age_us = max(HELD_US_MIN, now_us - since_us)
                costs.append((held_bytes * age_us, -since_us, id(holder), holder))
        costs.sort(reverse=True)
        for _, _, _, holder in costs:
            if self.used_bytes <= room_bytes:
                return
            self.forget(holder)
            holder.evict()
