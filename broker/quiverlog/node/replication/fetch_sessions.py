"""The fetch sessions of followers, and which of their fetches wait here for news.

Owns both, and the way of news to them: a partition that moved is put into the sessions that copy
it, and the fetch that waits for one of them looks again. With one replica there are none, and
nothing is done.

Must not know: how a fetch is answered (`replica_fetch`).
"""

from __future__ import annotations

from quiverlog.core.replication.serving import sessions_of
from quiverlog.core.replication.sessions import FetchSession, FetchSessions
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.purgatory import Waiter, Wakeups
from quiverlog.types import Now

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
                self.look_again(session)

    def look_again(self, session: FetchSession) -> None:
        """There is news for the fetch that waits, if one does."""
        waiter = self._parked.get(session)
        if waiter is not None:
            assert not waiter.done
            self._wakeups.mark(waiter, (0,))

    def end_wait(self, broker_id: int, session_id: int, now: Now) -> None:
        """Answer the fetch of this session that waits, if one does: the follower has news."""
        for session, waiter in self._parked.items():
            if (session.broker_id, session.session_id) == (broker_id, session_id):
                assert not waiter.done, "who has an answer waits no more"
                waiter.expire(now)
                assert waiter.answered
                return

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
