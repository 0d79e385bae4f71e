"""Threads that run the node's jobs while the loop goes on.

Invariants: jobs with one key run one at a time, in the order of submission; every job is collected
once, whatever it raised. Flushes have their own threads, so an acknowledgement never waits behind
the recovery or removal of another log; so have checks of rows, which take processor time for
seconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from quiverlog.node.runtime.effects import Job

__all__ = ["CHECK", "CLOSE", "FLUSH", "FinishedJob", "JobPool"]

FLUSH: Final = "flush"
"""The kind of job that acknowledgements wait for."""
CLOSE: Final = "close log"
"""A log's last flush. The flush threads run it: parallel fsyncs share the disk's commits."""
CHECK: Final = "check rows"
"""The kind of job that takes processor time for seconds."""
_CHECK_THREADS: Final = 2


class FinishedJob(NamedTuple):
    job: Job
    result: object
    error: BaseException | None
    waited_us: int
    elapsed_us: int


class _Submitted(NamedTuple):
    job: Job
    submitted_ns: int


class _Queue:
    """Jobs that may run now, guarded by the pool's lock."""

    __slots__ = ("available", "runnable")

    def __init__(self, lock: threading.Lock) -> None:
        self.runnable: deque[_Submitted] = deque()
        self.available = threading.Condition(lock)


class JobPool:
    """
    Args:
        wake: called in a thread when there are finished jobs to `collect`.
    """

    def __init__(
        self, *, flush_threads: int, work_threads: int, wake: Callable[[], object]
    ) -> None:
        assert flush_threads >= 1
        assert work_threads >= 1
        self._wake = wake
        self._lock = threading.Lock()
        # Guarded by the lock:
        self._flushes = _Queue(self._lock)
        self._checks = _Queue(self._lock)
        self._works = _Queue(self._lock)
        self._queues = (self._flushes, self._checks, self._works)
        self._behind: dict[str, deque[_Submitted]] = {}
        """By key: the jobs that wait for the one that runs or may run."""
        self._unfinished = 0
        self._closing = False
        # Not guarded: appending to a deque and setting a flag are atomic in CPython.
        self._finished: deque[FinishedJob] = deque()
        self._woken = False
        self.uncollected = self.uncollected_flushes = 0
        """Submitted and not collected; for the loop only."""
        counts = (
            (self._flushes, flush_threads, FLUSH),
            (self._checks, _CHECK_THREADS, "check"),
            (self._works, work_threads, "work"),
        )
        self._threads = [
            threading.Thread(target=self._work, args=(jobs,), name=f"{name}-{i}", daemon=True)
            for jobs, count, name in counts
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, *jobs: Job) -> None:
        """Run each when a thread is free and the earlier jobs of its key are done."""
        now_ns = time.perf_counter_ns()
        self.uncollected += len(jobs)
        self.uncollected_flushes += sum(job.kind == FLUSH for job in jobs)
        with self._lock:
            assert not self._closing, "the pool is closed"
            self._unfinished += len(jobs)
            for job in jobs:
                assert job.key, "a job without a key has no order"
                behind = self._behind.get(job.key)
                if behind is not None:
                    behind.append(_Submitted(job, now_ns))
                else:
                    self._behind[job.key] = deque()
                    self._queue_of(job).runnable.append(_Submitted(job, now_ns))
            # Once for all: a woken thread wants the interpreter, and would take it from the loop.
            for queue in self._queues:
                if queue.runnable:
                    queue.available.notify(len(queue.runnable))

    def collect(self) -> list[FinishedJob]:
        """Return the jobs that finished since the last call."""
        # Cleared first: a job that finishes from here on wakes the loop again.
        self._woken = False
        found = [self._finished.popleft() for _ in range(len(self._finished))]
        self.uncollected -= len(found)
        self.uncollected_flushes -= sum(finished.job.kind == FLUSH for finished in found)
        assert self.uncollected >= self.uncollected_flushes >= 0
        return found

    @property
    def waiting_by_queue(self) -> dict[str, int]:
        """Count the jobs that no thread has taken, by queue, and those behind a key."""
        with self._lock:
            return {
                FLUSH: len(self._flushes.runnable),
                "check": len(self._checks.runnable),
                "work": len(self._works.runnable),
                "behind": sum(map(len, self._behind.values())),
            }

    def close(self, timeout_s: float) -> bool:
        """Wait for all jobs, up to `timeout_s`; return whether all threads have ended."""
        with self._lock:
            self._closing = True
            self._wake_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _wake_all(self) -> None:
        for jobs in self._queues:
            jobs.available.notify_all()

    def _queue_of(self, job: Job) -> _Queue:
        if job.kind in (FLUSH, CLOSE):
            return self._flushes
        return self._checks if job.kind == CHECK else self._works

    def _take(self, jobs: _Queue) -> _Submitted | None:
        """Return the next job; None when the pool is closing and none can come."""
        with self._lock:
            while not jobs.runnable:
                if self._closing and not self._unfinished:
                    return None
                jobs.available.wait()
            return jobs.runnable.popleft()

    def _work(self, jobs: _Queue) -> None:
        while (submitted := self._take(jobs)) is not None:
            job = submitted.job
            started_ns = time.perf_counter_ns()
            result: object = None
            error: BaseException | None = None
            try:
                result = job.run()
            except BaseException as caught:  # The node waits for the job, whatever became of it.
                error = caught
            ended_ns = time.perf_counter_ns()
            waited_us = (started_ns - submitted.submitted_ns) // 1000
            elapsed_us = (ended_ns - started_ns) // 1000
            # Before the next job of this key may start: they are collected in their order.
            self._finished.append(FinishedJob(job, result, error, waited_us, elapsed_us))
            self._end(job.key)
            if not self._woken:
                self._woken = True
                try:
                    self._wake()
                except RuntimeError:
                    return  # The loop is closed: nothing collects any more.

    def _end(self, key: str) -> None:
        with self._lock:
            self._unfinished -= 1
            behind = self._behind[key]
            if behind:
                queue = self._queue_of(behind[0].job)
                queue.runnable.append(behind.popleft())
                queue.available.notify()
            else:
                del self._behind[key]
            if self._closing and not self._unfinished:
                self._wake_all()
