"""Logs that want a flush, in the order in which they get one: one of each asker in turn.

An asker is the connection whose produce waits for the flush. One that has written to a thousand
partitions waits for all of them; one that has written to one waits for one flush of each of the
others at most. A log that several ask for is flushed at the turn of the first of them. What nobody
waits for comes last, but for every sixteenth flush, so that it comes at all.

Must not know: logs, what a flush is.
"""

from __future__ import annotations

from typing import Final

from quiverlog.node.replica import Replica

__all__ = ["BROKER", "FlushQueue"]

BROKER: Final = -1
"""The asker of what no connection has asked for, and somebody waits for (a stop)."""
_BACKGROUND_EVERY: Final = 16


class FlushQueue:
    """See the module docstring.

    Invariant: a replica is in the queues of all who ask for it, or, if nobody does, in the
    background's; an asker without replicas is not there.
    """

    __slots__ = ("_askers", "_background", "_by_asker", "_taken")

    def __init__(self) -> None:
        # In the order of their turns.
        self._by_asker: dict[int, dict[Replica, None]] = {}
        self._background: dict[Replica, None] = {}
        # Who asks for the next flush of a replica, queued or not.
        self._askers: dict[Replica, dict[int, None]] = {}
        self._taken = 0

    def __bool__(self) -> bool:
        return bool(self._by_asker or self._background)

    def ask(self, replica: Replica, asker: int) -> None:
        """`asker` waits for the next flush of `replica`, which `put` queues."""
        self._askers.setdefault(replica, {})[asker] = None

    def put(self, replica: Replica) -> None:
        """Queue it: for all who ask for it, or for the background. May be called again."""
        askers = self._askers.get(replica)
        if askers is None:
            self._background[replica] = None
            return
        self._background.pop(replica, None)
        for asker in askers:
            self._by_asker.setdefault(asker, {})[replica] = None

    def take(self) -> Replica:
        """The next one; it is in no queue any more."""
        self._taken += 1
        background_due = self._taken % _BACKGROUND_EVERY == 0
        if self._background and (background_due or not self._by_asker):
            replica = next(iter(self._background))
            del self._background[replica]
            return replica
        asker = next(iter(self._by_asker))
        mine = self._by_asker.pop(asker)
        self._by_asker[asker] = mine  # Its next turn is after everybody's.
        replica = next(iter(mine))
        self.drop(replica)
        return replica

    def drop(self, replica: Replica) -> None:
        """Nobody asks for it any more."""
        self._background.pop(replica, None)
        for asker in self._askers.pop(replica, ()):
            queue = self._by_asker.get(asker)
            if queue is not None:
                queue.pop(replica, None)
                if not queue:
                    del self._by_asker[asker]
