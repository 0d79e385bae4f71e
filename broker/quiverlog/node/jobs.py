"""The jobs that this node has started, and what is to be done when each is back.

Owns the pairing of a job with its continuation. Invariant: every started job is answered by one
JobDone, which runs its continuation once; an answer that nobody waits for is our own bug.

Must not know: what a job does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quiverlog.node.effects import Effect, Job, StartJob
from quiverlog.node.events import JobDone
from quiverlog.types import Now

if TYPE_CHECKING:
    from quiverlog.storage.log import SyncTicket

__all__ = ["Jobs", "Then", "TicketJob"]

Then = Callable[[object, BaseException | None, Now], None]
"""Called with the job's result, or with what it raised."""


class TicketJob:
    """A flush of one log."""

    __slots__ = ("key", "kind", "ticket")

    def __init__(self, key: str, ticket: SyncTicket) -> None:
        self.key = key
        self.kind = "flush"
        self.ticket = ticket

    def run(self) -> None:
        self.ticket.run()


class Jobs:
    """See the module docstring."""

    __slots__ = ("_emit", "_waiting")

    def __init__(self, emit: Callable[[Effect], None]) -> None:
        self._emit = emit
        # By identity of the job, which the value keeps alive.
        self._waiting: dict[int, tuple[Job, Then]] = {}

    @property
    def running(self) -> int:
        """Jobs that are not back."""
        return len(self._waiting)

    def start(self, job: Job, then: Then) -> None:
        """Run `job` off the loop; `then` gets what came of it."""
        assert id(job) not in self._waiting, "a job is run once"
        self._waiting[id(job)] = (job, then)
        self._emit(StartJob(job))

    def done(self, event: JobDone, now: Now) -> None:
        """A job is back."""
        job, then = self._waiting.pop(id(event.job))
        assert job is event.job
        then(event.result, event.error, now)
