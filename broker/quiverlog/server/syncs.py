"""Threads that flush logs to disk while the loop goes on.

Owns the threads and the way back: a finished ticket wakes the loop once, however many finish
before it looks. Must not know: what a ticket flushes, what the node does with the news.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Finished", "SyncPool"]


class Ticket(Protocol):
    """Something to run off the loop."""

    def run(self) -> None: ...


Finished = tuple[Any, BaseException | None, int]
"""A ticket, what it raised, and how long it took in microseconds."""


class SyncPool:
    """See the module docstring.

    Args:
        threads: how many flushes may run at once.
        wake: called from a thread when there are finished tickets to `collect`; must be safe to
            call from there (`loop.call_soon_threadsafe`).
    """

    def __init__(self, *, threads: int, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._finished: deque[Finished] = deque()
        self._woken = False
        self.running = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"fsync-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Run it as soon as a thread is free."""
        self.running += 1
        self._waiting.put(ticket)

    def collect(self) -> list[Finished]:
        """What finished since the last look. Called on the loop."""
        # Cleared first: a ticket that finishes from here on wakes the loop again.
        self._woken = False
        found = [self._finished.popleft() for _ in range(len(self._finished))]
        self.running -= len(found)
        return found

    def close(self, timeout_s: float) -> bool:
        """Let what waits finish, for so long. True when all threads have ended."""
        for _ in self._threads:
            self._waiting.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (ticket := self._waiting.get()) is not None:
            started = time.perf_counter_ns()
            error: BaseException | None = None
            try:
                ticket.run()
            except BaseException as caught:  # whatever it was, the node must hear of it
                error = caught
            elapsed_us = (time.perf_counter_ns() - started) // 1000
            self._finished.append((ticket, error, elapsed_us))
            if not self._woken:
                self._woken = True
                try:
                    self._wake()
                except RuntimeError:
                    return  # the loop is closed: nobody is left to hear of it
