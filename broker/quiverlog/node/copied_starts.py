"""Requests that wait until the copies of a partition begin where its log does (DELETE_RECORDS).

Owns those that wait, and their deadlines. A copy counts as long as its broker is alive or it is in
sync: one that is dead learns of the log's start before it is in sync again (leadership.py). While
fewer than the minimum are in sync somebody who is away may lead next, without having heard of it,
so nothing is confirmed. Where a partition has one replica nobody waits.

Must not know: how a start moves, how a copy says where it begins.
"""

from __future__ import annotations

from typing import NamedTuple

from quiverlog.core.partition.leadership import Brokers
from quiverlog.errors import NotLeader, QuiverlogError, RequestTimedOut, UnknownTopicId
from quiverlog.node.jobs import Starter, Then
from quiverlog.node.outbox import Outbox
from quiverlog.node.replica import Replica
from quiverlog.types import Now

__all__ = ["CopiedStarts"]


class _Waiting(NamedTuple):
    offset: int
    deadline_us: int
    then: Then


class CopiedStarts:
    """See the module docstring."""

    __slots__ = ("_brokers", "_outbox", "_waiting")

    def __init__(self, brokers: Brokers, outbox: Outbox) -> None:
        self._brokers = brokers
        self._outbox = outbox
        # As many as requests of DELETE_RECORDS are under way, a few partitions of each.
        self._waiting: dict[Replica, list[_Waiting]] = {}

    @property
    def is_needed(self) -> bool:
        """True while somebody waits."""
        return bool(self._waiting)

    def starter(self, replica: Replica, offset: int, deadline_us: int, now: Now) -> Starter:
        """Wait until all live copies begin at `offset` or later. To be yielded."""

        def start(then: Then) -> None:
            self._waiting.setdefault(replica, []).append(_Waiting(offset, deadline_us, then))
            self.look(replica, now)

        return start

    def next_us(self) -> int | None:
        """When `run` is to be called at the latest; None: when something happens."""
        moments = (one.deadline_us for waiting in self._waiting.values() for one in waiting)
        return min(moments, default=None)

    def run(self, now: Now) -> None:
        """Look at all that wait: deadlines, leaders and brokers may have changed."""
        for replica in list(self._waiting):
            self.look(replica, now)

    def look(self, replica: Replica, now: Now) -> None:
        """A copy of this partition has said where it begins, or the partition is led elsewhere."""
        waiting = self._waiting.pop(replica, None)
        if waiting is None:
            return
        kept: list[_Waiting] = []
        for one in waiting:
            error = self._why_over(replica, one, now)
            if error is None and self._is_behind(replica, one.offset):
                kept.append(one)
            else:
                self._tell(one, error, now)
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
                f"{replica.name}: not all copies have given the rows up in time."
            )
        return None

    def _is_behind(self, replica: Replica, offset: int) -> bool:
        leadership = replica.state.leadership
        assert leadership is not None
        in_sync = leadership.in_sync.committed
        is_risky = leadership.is_under_min and offset > 0
        return is_risky or any(
            follower.log_start_offset < offset
            for follower in leadership.followers.values()
            if follower.broker_id in in_sync
            or self._brokers.fit_epoch(follower.broker_id) is not None
        )

    def _tell(self, one: _Waiting, error: QuiverlogError | None, now: Now) -> None:
        try:
            one.then(None, error, now)
        except Exception as failure:
            self._outbox.internal_error("after copies have moved their starts", failure)

    def stop(self, now: Now) -> None:
        """The broker stops: nobody waits any longer."""
        waiting = [one for some in self._waiting.values() for one in some]
        self._waiting.clear()
        for one in waiting:
            self._tell(one, RequestTimedOut("the broker stops before all copies follow."), now)
        assert not self._waiting, "whoever is told asks for nothing more"
