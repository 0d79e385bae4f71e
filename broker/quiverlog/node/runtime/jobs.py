"""The jobs that this node has started, and the continuation of each.

Invariant: each started job gets one JobDone, which runs its continuation.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

from quiverlog.node.runtime.effects import Job, StartJob
from quiverlog.node.runtime.events import JobDone
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now

__all__ = ["Jobs", "Starter", "Then", "Urgency"]

Then = Callable[[object, BaseException | None, Now], None]

Starter = Callable[[Then], None]
"""Starts something that takes a while and calls back when it is done."""


class Urgency(enum.Enum):
    """How many jobs run at once: the second number."""

    FLUSH = (0, 16)
    """Bounded by the flush queue and the metadata log themselves."""
    READ = (1, 2)
    CHECK = (2, 2)
    """A client waits for it, but it costs processor and memory. Two: a check of seconds must not
    delay all others.
    """
    ROWS = (3, 1)
    """Committed rows that are published. One: they must not delay what clients produce."""
    BACKGROUND = (4, 1)
    """No client waits for the job, or it is one of thousands."""

    def __init__(self, _rank: int, at_once: int) -> None:
        self.at_once = at_once


class Jobs:
    __slots__ = ("_outbox", "_queues", "_running", "_waiting")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        # By identity of the job, which the value keeps alive.
        self._waiting: dict[int, tuple[Job, Then, Urgency]] = {}
        self._queues: dict[Urgency, deque[tuple[Job, Then]]] = {u: deque() for u in Urgency}
        self._running = dict.fromkeys(Urgency, 0)

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + sum(map(len, self._queues.values()))

    def waits_for(self, job: Job) -> bool:
        return id(job) in self._waiting

    def start(self, job: Job, then: Then, urgency: Urgency = Urgency.FLUSH) -> None:
        self._queues[urgency].append((job, then))
        self._start_next(urgency)

    def starter(self, job: Job, urgency: Urgency) -> Starter:
        return lambda then: self.start(job, then, urgency)

    def done(self, event: JobDone, now: Now) -> None:
        job, then, urgency = self._waiting.pop(id(event.job))
        assert job is event.job
        self._running[urgency] -= 1
        assert self._running[urgency] >= 0
        try:
            then(event.result, event.error, now)
        except Exception as error:
            self._outbox.internal_error(f"after the job {job.kind!r}", error)
            # It must now answer what is still unanswered.
            then(None, error, now)
        finally:
            self._start_next(urgency)

    def _start_next(self, urgency: Urgency) -> None:
        queue = self._queues[urgency]
        # A bound each: flushes, which clients wait for, must not queue behind the removal of ten
        # thousand files. A flush may overtake an earlier trim or removal of its log: a log start
        # never goes back, a removal names its files, and no name is used twice.
        while queue and self._running[urgency] < urgency.at_once:
            job, then = queue.popleft()
            assert id(job) not in self._waiting, "a job is run once"
            self._running[urgency] += 1
            assert self._running[urgency] <= urgency.at_once
            self._waiting[id(job)] = (job, then, urgency)
            self._outbox.emit(StartJob(job))
