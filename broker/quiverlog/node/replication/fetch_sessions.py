"""The fetch sessions of followers, and their fetches that wait here.

A partition that moved is marked in the sessions that replicate it, and a waiting fetch of such a
session looks again.
"""

from __future__ import annotations

from quiverlog.core.replication.serving import sessions_of
from quiverlog.core.replication.sessions import FetchSession, FetchSessions
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.purgatory import Waiter, Wakeups
from quiverlog.types import Now

__all__ = ["CopySessions"]


class CopySessions:
    __slots__ = ("_parked", "_wakeups", "sessions")

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self.sessions = FetchSessions(1)
        # The fetch of each session that waits.
        self._parked: dict[FetchSession, Waiter] = {}

    def begin(self, first_id: int) -> None:
        """Start at a random id: sessions of an earlier start are not taken for these."""
        assert not self._parked, "no fetch was served before"
        self.sessions = FetchSessions(first_id)

    def moved(self, replica: Replica) -> None:
        """Mark the partition in its followers' sessions: its rows, high watermark or log start
        moved.
        """
        leadership = replica.state.leadership
        if leadership is None or not leadership.followers:
            return
        key = (replica.topic.topic_id, replica.name.partition)
        for session in sessions_of(replica.state):
            if session.moved(key):
                self.look_again(session)

    def look_again(self, session: FetchSession) -> None:
        waiter = self._parked.get(session)
        if waiter is not None:
            assert not waiter.done
            self._wakeups.mark(waiter, (0,))

    def end_wait(self, broker_id: int, session_id: int, now: Now) -> None:
        """Answer the session's waiting fetch: the follower has something new to send."""
        for session, waiter in self._parked.items():
            if (session.broker_id, session.session_id) == (broker_id, session_id):
                assert not waiter.done, "an answered fetch waits no more"
                waiter.expire(now)
                assert waiter.answered
                return

    def park(self, session: FetchSession, waiter: Waiter) -> Waiter | None:
        """Hold this fetch until something moves. Returns the one held before."""
        assert not waiter.done
        before = self._parked.get(session)
        self._parked[session] = waiter
        return before

    def release(self, session: FetchSession, waiter: Waiter) -> None:
        if self._parked.get(session) is waiter:
            del self._parked[session]
