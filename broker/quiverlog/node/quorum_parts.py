"""What a quorum's host is given: a state machine, something that runs jobs, and random numbers.

Owns the two protocols, how jobs run before there is a loop, and dice made of the node's entropy.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from typing import Protocol

from quiverlog.core.raft.messages import Entry
from quiverlog.errors import QuiverlogError
from quiverlog.node.effects import Job
from quiverlog.node.jobs import Then, Urgency
from quiverlog.storage.metadata.quorum_jobs import Snapshot
from quiverlog.types import Now

__all__ = ["Dice", "InlineRunner", "Runner", "StateMachine", "traceback_of"]


class StateMachine(Protocol):
    """What the log's entries add up to."""

    def apply(self, entry: Entry, now: Now) -> None:
        """An entry is decided."""

    def restore(self, snapshot: Snapshot, now: Now) -> None:
        """Be what the snapshot says, whatever was before."""

    def leads(self, now: Now) -> None:
        """This node decides from now on, and the machine knows all that was decided before."""

    def interrupted(self, error: BaseException, now: Now) -> None:
        """This node decides no more: what is proposed and not applied may be lost."""

    @property
    def may_be_captured(self) -> bool:
        """True when it is exactly what has been applied."""

    def capture(self) -> Callable[[], bytes]:
        """What makes a snapshot of it as it is now, in a job. It holds still until `captured`."""

    def captured(self, now: Now) -> None:
        """The snapshot is made, or has failed."""


class Runner(Protocol):
    """`Jobs` is one."""

    def start(self, job: Job, then: Then, urgency: Urgency = Urgency.FLUSH) -> None: ...


class InlineRunner:
    """Jobs that are run at once: before the loop runs, a start may wait for the disk."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Job, Then]] = deque()

    def start(self, job: Job, then: Then, urgency: Urgency = Urgency.FLUSH) -> None:
        self._queue.append((job, then))

    def run(self, now: Now) -> None:
        while self._queue:
            job, then = self._queue.popleft()
            try:
                result = job.run()
            except (OSError, QuiverlogError) as error:
                then(None, error, now)
            else:
                then(result, None, now)


class Dice:
    """A `RandomSource` made of the node's entropy."""

    __slots__ = ("_entropy",)

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy

    def randrange(self, stop: int, /) -> int:
        return int.from_bytes(self._entropy(8), "big") % stop


def traceback_of(error: BaseException) -> str:
    """Where a bug was met."""
    return "".join(traceback.format_exception(error))
