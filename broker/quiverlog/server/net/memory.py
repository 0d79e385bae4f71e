"""One memory budget for all connections.

Counts incomplete frames, requests that wait for their turn, and replies that clients have not
taken. Above the budget, the connection with the highest cost (bytes times the time held) is closed:
a client that sends a large frame at full speed outlives forty that each leave half a frame.

What the node keeps of waiting requests takes up to half of it. Views of mapped log files do not
count: the kernel drops those pages when memory is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

__all__ = ["Holder", "MemoryBudget"]

HELD_US_MIN: Final = 50_000
"""Among younger holders only the bytes decide."""


class Holder(Protocol):
    held_bytes: int
    """As last reported to the budget."""

    def measure(self) -> tuple[int, int]:
        """Return (bytes held now, since when in monotonic microseconds)."""

    def evict(self) -> None:
        """Release everything and close."""


class MemoryBudget:
    """Closes the most expensive connections when all together hold more than `bytes_max`.

    Args:
        kept_bytes: what the node keeps of waiting requests.
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
        # At least half is the connections': the node's waiting requests cannot starve them.
        return self.bytes_max - min(self._kept_bytes(), self.bytes_max // 2)

    def report(self, holder: Holder, held_bytes: int) -> None:
        """Record what `holder` holds. May close it or others."""
        assert held_bytes >= 0
        self.used_bytes += held_bytes - holder.held_bytes
        holder.held_bytes = held_bytes
        if self.used_bytes > self.used_bytes_peak:
            self.used_bytes_peak = self.used_bytes
        if self.used_bytes > self._room_bytes:
            self._make_room()

    def remove(self, holder: Holder) -> None:
        self.used_bytes -= holder.held_bytes
        holder.held_bytes = 0
        assert self.used_bytes >= 0

    def _make_room(self) -> None:
        # Measured anew: no callback reports that a client has taken bytes.
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
            self.remove(holder)
            holder.evict()
