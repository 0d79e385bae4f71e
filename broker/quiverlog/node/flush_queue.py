"""Logs that want a flush, in the order in which they get one: one of each asker in turn.

An asker is the connection whose produce waits for the flush. One that has written to a thousand
partitions waits for all of them. One that has written to one waits for one flush of each of the
others at most, and not for those that are under way: the last place is never given to an asker
that has one already. A log that several ask for is flushed at the turn of the first of them. What
nobody waits for comes last, but for every sixteenth flush, so that it comes at all.

A flush that takes long (the first of a log: six fsyncs and some twenty system calls) is the only
one of its asker: thousands of new logs would take processor, disk and interpreter from everybody.
Neither bound is for the broker itself: a stop waits for its flushes, and nobody comes after it.
Who has had the last 64 flushes for itself may have two such at once.

Must not know: logs, what a flush is.
"""

from __future__ import annotations

from typing import Final

from quiverlog.node.replica import Replica

__all__ = ["BROKER", "FlushQueue"]

BROKER: Final = -1
"""The asker of what no connection has asked for, and somebody waits for (a stop)."""
BACKGROUND: Final = -2
"""The asker of what nobody waits for."""
_BACKGROUND_EVERY: Final = 16
_ALONE_AFTER: Final = 64


class FlushQueue:
    """See the module docstring.

    Invariant: a replica is in the queues of all who ask for it, or, if nobody does, in the
    background's; an asker without replicas is not there.

    Args:
        in_flight_max: how many flushes may be under way.
    """

    __slots__ = (
        "_askers",
        "_background",
        "_by_asker",
        "_in_a_row",
        "_in_flight_max",
        "_last_asker",
        "_long",
        "_taken",
        "_under_way",
    )

    def __init__(self, in_flight_max: int) -> None:
        assert in_flight_max >= 1
        self._in_flight_max = in_flight_max
        # Replicas that were taken, with the asker whose turn it was, until they are `done`.
        self._under_way: dict[Replica, int] = {}
        # Those among them whose flush takes long.
        self._long: dict[Replica, int] = {}
        # In the order of their turns.
        self._by_asker: dict[int, dict[Replica, None]] = {}
        self._background: dict[Replica, None] = {}
        # Who asks for the next flush of a replica, queued or not.
        self._askers: dict[Replica, dict[int, None]] = {}
        self._taken = 0
        # How many the last asker has had since another one had a turn.
        self._in_a_row = 0
        self._last_asker = BROKER

    @property
    def idle(self) -> bool:
        """True when no flush is under way or wanted."""
        return not (self._under_way or self._by_asker or self._background)

    @property
    def waiting(self) -> bool:
        """True when a flush is wanted, and not as many as may be are under way."""
        return (
            bool(self._by_asker or self._background) and len(self._under_way) < self._in_flight_max
        )

    def ask(self, replica: Replica, asker: int) -> None:
        """`asker` waits for the next flush of `replica`, which `put` queues."""
        self._askers.setdefault(replica, {})[asker] = None

    def put(self, replica: Replica) -> None:
        """Queue it: for all who ask for it, or for the background. May be called again."""
        assert replica not in self._under_way, "the next flush waits for the one under way"
        askers = self._askers.get(replica)
        if askers is None:
            self._background[replica] = None
            return
        self._background.pop(replica, None)
        for asker in askers:
            self._by_asker.setdefault(asker, {})[replica] = None

    def take(self) -> Replica | None:
        """The next one, in no queue any more and under way; None when none may be taken now."""
        places = self._in_flight_max - len(self._under_way)
        if not places or not self.waiting:
            return None
        # Whoever has a flush under way leaves the last place to the others.
        having = list((self._under_way if places == 1 else self._long).values())
        if places > 1 and len(having) == 1 and self._in_a_row >= _ALONE_AFTER:
            having = []
        background = bool(self._background) and BACKGROUND not in having
        if background and ((self._taken + 1) % _BACKGROUND_EVERY == 0 or not self._by_asker):
            replica = next(iter(self._background))
            return self._take(replica, BACKGROUND)
        for asker, mine in self._by_asker.items():
            if asker == BROKER or asker not in having:
                self._by_asker[asker] = self._by_asker.pop(asker)  # The next turn is the others'.
                return self._take(next(iter(mine)), asker)
        return self._take(next(iter(self._background)), BACKGROUND) if background else None

    def _take(self, replica: Replica, asker: int) -> Replica:
        assert replica not in self._under_way, "a log has one flush at a time"
        assert len(self._under_way) < self._in_flight_max
        self._taken += 1
        self._in_a_row = self._in_a_row + 1 if asker == self._last_asker else 0
        self._last_asker = asker
        self.drop(replica)
        self._under_way[replica] = asker
        return replica

    def takes_long(self, replica: Replica) -> None:
        """The replica's flush, which is under way, takes long."""
        assert replica in self._under_way
        self._long[replica] = self._under_way[replica]

    def done(self, replica: Replica) -> None:
        """The replica's flush is not under way any more. May be called again."""
        self._under_way.pop(replica, None)
        self._long.pop(replica, None)
        assert len(self._long) <= len(self._under_way)

    def drop(self, replica: Replica) -> None:
        """Take a replica out of all queues."""
        self._background.pop(replica, None)
        for asker in self._askers.pop(replica, ()):
            queue = self._by_asker.get(asker)
            if queue is not None:
                queue.pop(replica, None)
                if not queue:
                    del self._by_asker[asker]
