"""Requests that wait: for rows, for offsets, for the disk.

Owns the order of their deadlines (one heap) and who of them belongs to which connection. What they
wait for and what they answer is theirs (`Waiter`'s subclasses in the handlers).

Invariants: a waiter is answered or dropped once; `live` is the number that still waits; the heap
holds at most about twice as many entries (done ones are swept when they are the majority), so that
a long timeout on many short waits does not keep their memory.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from quiverlog.types import Now

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = ["Purgatory", "Waiter"]

_SWEEP_MIN = 256


class Waiter:
    """A request that is not answered yet."""

    __slots__ = ("connection_id", "correlation_id", "deadline_us", "done")

    def __init__(self, connection_id: int, correlation_id: int, deadline_us: int) -> None:
        self.connection_id = connection_id
        self.correlation_id = correlation_id
        self.deadline_us = deadline_us
        self.done = False

    def wake(self, broker: Broker, index: int, now: Now) -> None:
        """Something moved in the `index`-th partition of the request: answer if it is enough."""
        raise NotImplementedError

    def expire(self, broker: Broker, now: Now) -> None:
        """The deadline has come: answer with what there is."""
        raise NotImplementedError

    def release(self, broker: Broker) -> None:
        """Take yourself off every list but the purgatory's."""


class Purgatory:
    """See the module docstring."""

    __slots__ = ("_by_connection", "_heap", "_sequence", "live")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiter]] = []
        self._sequence = 0
        self._by_connection: dict[int, dict[Waiter, None]] = {}
        self.live = 0

    def add(self, waiter: Waiter, *, by_connection: bool) -> None:
        """Wait until `waiter.deadline_us` (monotonic). `by_connection`: `forget` drops it."""
        self._sequence += 1
        self.live += 1
        heap = self._heap
        heapq.heappush(heap, (waiter.deadline_us, self._sequence, waiter))
        if by_connection:
            self._by_connection.setdefault(waiter.connection_id, {})[waiter] = None
        if len(heap) > _SWEEP_MIN and len(heap) > 2 * self.live:
            self._sweep()

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[2].done]
        heapq.heapify(self._heap)
        assert len(self._heap) == self.live

    def finish(self, waiter: Waiter) -> None:
        """It is answered, or nobody waits for it any more."""
        assert not waiter.done
        waiter.done = True
        self.live -= 1
        mine = self._by_connection.get(waiter.connection_id)
        if mine is not None:
            mine.pop(waiter, None)
            if not mine:
                del self._by_connection[waiter.connection_id]

    def of_connection(self, connection_id: int) -> list[Waiter]:
        """Those of one connection that were added `by_connection`."""
        return list(self._by_connection.get(connection_id, ()))

    def expired(self, mono_us: int) -> list[Waiter]:
        """Those whose deadline has come, in its order. They are still to be finished."""
        found: list[Waiter] = []
        heap = self._heap
        while heap and heap[0][0] <= mono_us:
            waiter = heapq.heappop(heap)[2]
            if not waiter.done:
                found.append(waiter)
        return found

    def next_deadline_us(self) -> int | None:
        """The earliest deadline of one that waits."""
        heap = self._heap
        while heap and heap[0][2].done:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def all_live(self) -> list[Waiter]:
        """Every one that waits, in no order."""
        return [entry[2] for entry in self._heap if not entry[2].done]
