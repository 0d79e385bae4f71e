"""The fetch sessions of followers, and which of their fetches wait here for news.

Owns both, and the way of news to them: a partition that moved is put into the sessions that copy
it, and the fetch that waits for one of them looks again. With one replica there are none, and
nothing is done.

Must not know: how a fetch is answered (`replica_fetch`).
"""

from __future__ import annotations

from quiverlog.core.replication.serving import sessions_of
from quiverlog.core.replication.sessions import FetchSession, FetchSessions
from quiverlog.node.purgatory import Waiter
from quiverlog.node.replica import Replica
from quiverlog.node.wakeups import Wakeups

__all__ = ["CopySessions"]


class CopySessions:
    """See the module docstring."""

    __slots__ = ("_parked", "_wakeups", "sessions")

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self.sessions = FetchSessions(1)
        # The fetch of each session that waits.
        self._parked: dict[FetchSession, Waiter] = {}

    def begin(self, first_id: int) -> None:
        """The broker begins its life: sessions of an earlier one have other numbers."""
        assert not self._parked, "nobody was served before"
        self.sessions = FetchSessions(first_id)

    def moved(self, replica: Replica) -> None:
        """Rows, the high watermark or the log start of a partition have moved."""
        leadership = replica.state.leadership
        if leadership is None or not leadership.followers:
            return
        key = (replica.topic.topic_id, replica.name.partition)
        for session in sessions_of(replica.state):
            if session.moved(key):
                waiter = self._parked.get(session)
                if waiter is not None:
                    self._wakeups.mark(waiter, (0,))

    def park(self, session: FetchSession, waiter: Waiter) -> Waiter | None:
        """This fetch waits for news. Returns the one that did so before."""
        assert not waiter.done
        before = self._parked.get(session)
        self._parked[session] = waiter
        return before

    def release(self, session: FetchSession, waiter: Waiter) -> None:
        """The follower does not any more."""
        if self._parked.get(session) is waiter:
            del self._parked[session]
