"""Log starts of followers: following the leader's, and requests that wait until followers have.

A DELETE_RECORDS request waits for each follower whose broker is alive or that is in sync.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from quiverlog.core.partition.leadership import Brokers
from quiverlog.errors import NotLeader, QuiverlogError, RequestTimedOut, UnknownTopicId
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.partitions.trimming import Trims
from quiverlog.node.runtime.jobs import Starter, Then
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now

__all__ = ["CopiedStarts", "FollowedStarts"]


class _LeaderStart(NamedTuple):
    start_offset: int
    saved_offset: int


class FollowedStarts:
    """Moves the log start of each follower to its leader's.

    Args:
        moved: called with a replica whose start has moved: its leader needs the new one.
        failed: called with a replica that could not be trimmed now.
    """

    __slots__ = ("_failed", "_leader_starts", "_moved", "_trims")

    def __init__(
        self,
        trims: Trims,
        moved: Callable[[Replica], None],
        failed: Callable[[Replica, Now], None],
    ) -> None:
        self._trims = trims
        self._moved = moved
        self._failed = failed
        self._leader_starts: dict[Replica, _LeaderStart] = {}

    def follow(self, replica: Replica, start_offset: int, saved_offset: int, now: Now) -> None:
        """Rows below `saved_offset` never come back."""
        log = replica.log
        assert not replica.state.leads, "a leader follows no other"
        if start_offset <= log.log_start_offset and saved_offset <= log.start_saved:
            self._leader_starts.pop(replica, None)
            return
        self._leader_starts[replica] = _LeaderStart(start_offset, saved_offset)
        self.go_on(replica, now)

    def go_on(self, replica: Replica, now: Now) -> None:
        """Follow the leader's last start, as far as there are rows here and no other job runs."""
        leader = self._leader_starts.get(replica)
        if leader is None or replica.state.leads or replica.deleted:
            self._leader_starts.pop(replica, None)
            return
        if replica.cutting or replica.fault is not None or self._trims.busy(replica):
            return
        log = replica.log
        end = log.log_end_offset
        saved = min(leader.saved_offset, end)
        start = min(leader.start_offset, end)
        # A start promised to a client (DELETE_RECORDS) is on this disk before it counts as
        # followed; one moved by retention needs no write.
        promised = saved > log.start_saved
        if not promised and start <= log.log_start_offset:
            return  # The rest follows when rows are fetched.
        assert log.log_start_offset <= end
        then = partial(self._trimmed, [replica])
        try:
            self._trims.trim(replica, saved if promised else start, now, then, promised=promised)
        except QuiverlogError as error:
            then(None, error, now)

    def _trimmed(
        self, replicas: list[Replica], _files: object, error: BaseException | None, now: Now
    ) -> None:
        while replicas:  # It may be called again, after a bug of ours.
            replica = replicas.pop()
            if replica.deleted or replica.state.leads:
                self._leader_starts.pop(replica, None)
            elif error is not None:
                self._failed(replica, now)
            else:
                self._moved(replica)
                self.go_on(replica, now)

    def drop(self, replica: Replica) -> None:
        self._leader_starts.pop(replica, None)


class _Waiting(NamedTuple):
    offset: int
    deadline_us: int
    then: Then


class CopiedStarts:
    """Requests that wait until the followers' logs begin where the leader's does
    (DELETE_RECORDS).
    """

    __slots__ = ("_brokers", "_outbox", "_waiting")

    def __init__(self, brokers: Brokers, outbox: Outbox) -> None:
        self._brokers = brokers
        self._outbox = outbox
        # Bounded by the DELETE_RECORDS requests under way, a few partitions each.
        self._waiting: dict[Replica, list[_Waiting]] = {}

    @property
    def is_needed(self) -> bool:
        return bool(self._waiting)

    def starter(self, replica: Replica, offset: int, deadline_us: int, now: Now) -> Starter:
        """Return a wait, to be yielded, until each follower that is alive or in sync begins at
        `offset` or later."""

        def start(then: Then) -> None:
            self._waiting.setdefault(replica, []).append(_Waiting(offset, deadline_us, then))
            self.look(replica, now)

        return start

    def next_us(self) -> int | None:
        moments = (one.deadline_us for waiting in self._waiting.values() for one in waiting)
        return min(moments, default=None)

    def run(self, now: Now) -> None:
        for replica in list(self._waiting):
            self.look(replica, now)

    def look(self, replica: Replica, now: Now) -> None:
        """Look at one partition's requests: a follower's start moved, or its leader changed."""
        waiting = self._waiting.pop(replica, None)
        if waiting is None:
            return
        kept: list[_Waiting] = []
        for one in waiting:
            error = self._why_over(replica, one, now)
            if error is None and self._is_behind(replica, one.offset):
                kept.append(one)
            else:
                self._answer(one, error, now)
        if kept:
            self._waiting.setdefault(replica, []).extend(kept)
        assert len(kept) <= len(waiting)

    def _why_over(self, replica: Replica, one: _Waiting, now: Now) -> QuiverlogError | None:
        if replica.deleted:
            return UnknownTopicId(f"{replica.name} was deleted.")
        if not replica.state.leads:
            return NotLeader(f"{replica.name} is led elsewhere.")
        if now.mono_us >= one.deadline_us and self._is_behind(replica, one.offset):
            return RequestTimedOut(
                f"{replica.name}: not all followers have deleted the rows in time."
            )
        return None

    def _is_behind(self, replica: Replica, offset: int) -> bool:
        leadership = replica.state.leadership
        assert leadership is not None
        in_sync = leadership.in_sync.committed
        # Below `min.insync.replicas` nothing is confirmed: a broker that is away may lead next.
        is_risky = leadership.is_under_min and offset > 0
        return is_risky or any(
            follower.log_start_offset < offset
            for follower in leadership.followers.values()
            if follower.broker_id in in_sync
            or self._brokers.fit_epoch(follower.broker_id) is not None
        )

    def _answer(self, one: _Waiting, error: QuiverlogError | None, now: Now) -> None:
        try:
            one.then(None, error, now)
        except Exception as failure:
            self._outbox.internal_error("after copies have moved their starts", failure)

    def stop(self, now: Now) -> None:
        waiting = [one for some in self._waiting.values() for one in some]
        self._waiting.clear()
        for one in waiting:
            self._answer(
                one,
                RequestTimedOut("the broker stops before all followers have deleted the rows."),
                now,
            )
        assert not self._waiting, "no request waits again after its answer"
