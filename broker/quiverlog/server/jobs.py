"""Threads that run the node's jobs while the loop goes on.

Owns the threads, the order of jobs with the same key, and the way back: a finished job wakes the
loop once, however many finish before it looks. Must not know: what a job does, what the node does
with the news.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from quiverlog.node.effects import Job

__all__ = ["Finished", "JobPool"]


class Finished(NamedTuple):
    """A job that has run: what it returned or raised, and how long it took."""

    job: Job
    result: object
    error: BaseException | None
    elapsed_us: int


class JobPool:
    """See the module docstring.

    Args:
        threads: how many jobs may run at once.
        wake: called from a thread when there are finished jobs to `collect`; must be safe to
            call from there (`loop.call_soon_threadsafe`).
    """

    def __init__(self, *, threads: int, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._runnable: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # By key: the jobs that wait for the one that runs (or is runnable). Guarded by the lock.
        self._behind: dict[str, deque[Job]] = {}
        self._finished: deque[Finished] = deque()
        self._woken = False
        self.running = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"job-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Run it as soon as a thread is free and the earlier jobs of its key are done."""
        self.running += 1
        with self._lock:
            behind = self._behind.get(job.key)
            if behind is not None:
                behind.append(job)
                return
            self._behind[job.key] = deque()
        self._runnable.put(job)

    def collect(self) -> list[Finished]:
        """What finished since the last look. Called on the loop."""
        # Cleared first: a job that finishes from here on wakes the loop again.
        self._woken = False
        found = [self._finished.popleft() for _ in range(len(self._finished))]
        self.running -= len(found)
        return found

    def close(self, timeout_s: float) -> bool:
        """Let what is runnable finish, for so long. True when all threads have ended."""
        for _ in self._threads:
            self._runnable.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (job := self._runnable.get()) is not None:
            started = time.perf_counter_ns()
            result: object = None
            error: BaseException | None = None
            try:
                result = job.run()
            except BaseException as caught:  # whatever it was, the node must hear of it
                error = caught
            elapsed_us = (time.perf_counter_ns() - started) // 1000
            self._finished.append(Finished(job, result, error, elapsed_us))
            self._start_next(job.key)
            if not self._woken:
                self._woken = True
                try:
                    self._wake()
                except RuntimeError:
                    return  # the loop is closed: nobody is left to hear of it

    def _start_next(self, key: str) -> None:
        with self._lock:
            behind = self._behind[key]
            if not behind:
                del self._behind[key]
                return
            job = behind.popleft()
        self._runnable.put(job)
