"""Round robin between connections that have more to do than one turn allows.

Between two passes the loop polls its sockets, so a new request precedes the busy connections' next
turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["PASS_US_MAX", "TurnTaker", "Turns"]

PASS_US_MAX: Final = 4_000
"""Then the loop polls its sockets and timers."""


class TurnTaker(Protocol):
    """`waits_for_turn` belongs to `Turns`."""

    waits_for_turn: bool

    def take_turn(self) -> None:
        """Do one bounded piece of work; ask for another turn when more is left."""


class Turns:
    __slots__ = ("_loop", "_now_us", "_ring", "_scheduled")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, now_us: Callable[[], int]) -> None:
        self._loop = loop
        self._now_us = now_us
        self._ring: deque[TurnTaker] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._ring)

    def request(self, taker: TurnTaker) -> None:
        """Give `taker` a turn after those that wait. Asking twice is the same as once."""
        if taker.waits_for_turn:
            return
        taker.waits_for_turn = True
        self._ring.append(taker)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        """One turn for each that waits now, as far as the time allows."""
        self._scheduled = False
        ring = self._ring
        deadline_us = self._now_us() + PASS_US_MAX
        try:
            for _ in range(len(ring)):
                taker = ring.popleft()
                taker.waits_for_turn = False
                taker.take_turn()
                if self._now_us() >= deadline_us:
                    break
        finally:
            if ring and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._pass)
