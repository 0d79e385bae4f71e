"""Fair scheduling: round robin between connections that have more to do than one turn allows.

Between two passes the loop polls its sockets, so a new request is served before the busy
connections' next turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["PASS_US_MAX", "FairScheduler", "Schedulable"]

PASS_US_MAX: Final = 4_000
"""After this time the loop polls its sockets and timers."""


class Schedulable(Protocol):
    is_scheduled: bool

    def run_turn(self) -> None:
        """Do one bounded piece of work; request another turn when more is left."""


class FairScheduler:
    __slots__ = ("_loop", "_now_us", "_ring", "_scheduled")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, now_us: Callable[[], int]) -> None:
        self._loop = loop
        self._now_us = now_us
        self._ring: deque[Schedulable] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._ring)

    def request(self, task: Schedulable) -> None:
        """Append `task`, unless it is scheduled already."""
        if task.is_scheduled:
            return
        task.is_scheduled = True
        self._ring.append(task)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        self._scheduled = False
        ring = self._ring
        deadline_us = self._now_us() + PASS_US_MAX
        try:
            for _ in range(len(ring)):  # A task that requests another turn waits for the next pass.
                task = ring.popleft()
                task.is_scheduled = False
                task.run_turn()
                if self._now_us() >= deadline_us:
                    break
        finally:
            if ring and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._pass)
