"""All partitions copied from one leader: which of them the next fetch names, and when.

Owns the follower's end of a fetch session (KIP-227). The leader keeps each partition's last report,
so a fetch names only partitions with news: a new end, flushed or start offset, saved or leader
epoch. A session begins with all partitions, a bounded number per request; an error of the session
or a closed connection begins a new one. One fetch is in flight at a time.

A failed partition leaves the session until its retry deadline.

Invariant: a partition whose state differs from the session's is in `_news` or `_forgotten`, or may
not be fetched and is not in the session.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from quiverlog.core.replication.follower import Action, Follower, Phase
from quiverlog.limits import REPLICA_FETCH_ENTRIES_MAX
from quiverlog.wire.replica_messages import (
    PartitionKey,
    ReplicaFetchPartition,
    ReplicaFetchResult,
)

__all__ = ["SESSION_EPOCH_MAX", "FetchPlan", "Key", "PeerFetcher", "next_epoch"]

Key = tuple[bytes, int]

SESSION_EPOCH_MAX: Final = 2**31 - 1
_BACKOFF_US_MIN: Final = 50_000
_BACKOFF_US_MAX: Final = 1_000_000


def next_epoch(session_epoch: int) -> int:
    """Return the next request's epoch; 0 only begins a session."""
    assert 0 <= session_epoch <= SESSION_EPOCH_MAX
    return session_epoch + 1 if session_epoch < SESSION_EPOCH_MAX else 1


class FetchPlan(NamedTuple):
    """`may_wait`: the leader may hold its answer back until there is news."""

    session_id: int
    session_epoch: int
    entries: list[ReplicaFetchPartition]
    forgotten: list[PartitionKey]
    may_wait: bool


class PeerFetcher:
    __slots__ = (
        "_backoff_until_us",
        "_entries_max",
        "_failures",
        "_followers",
        "_forgotten",
        "_in_session",
        "_is_held",
        "_is_urgent",
        "_news",
        "_retries",
        "_session_epoch",
        "_session_id",
        "in_flight",
    )

    def __init__(self, *, entries_max: int = REPLICA_FETCH_ENTRIES_MAX) -> None:
        assert entries_max > 0
        self._entries_max = entries_max
        self._followers: dict[Key, Follower] = {}
        self._in_session: set[Key] = set()
        # News that the leader has not got, oldest first.
        self._news: dict[Key, None] = {}
        self._forgotten: dict[Key, None] = {}
        # (retry deadline, key) of partitions that failed; some are outdated.
        self._retries: list[tuple[int, Key]] = []
        self._session_id = 0
        self._session_epoch = 0
        self._failures = 0
        self._backoff_until_us = 0
        # The leader may hold the current fetch back, and was not asked to end that.
        self._is_held = False
        # A caller waits for what is in `_news`.
        self._is_urgent = False
        self.in_flight = False

    def __len__(self) -> int:
        return len(self._followers)

    # --- what is copied ------------------------------------------------------------------------
    def add(self, key: Key, follower: Follower, now_us: int) -> None:
        assert key not in self._followers
        self._followers[key] = follower
        self.mark_news(key, now_us)

    def remove(self, key: Key) -> None:
        if self._followers.pop(key, None) is not None:
            self._leave(key)

    def mark_news(self, key: Key, now_us: int, *, urgent: bool = True) -> None:
        """Note that the copy's phase changed, or something that the leader needs.

        Unless `urgent`, it goes with the next fetch, however long the leader holds the current one.
        """
        follower = self._followers.get(key)
        if follower is None:
            return
        if follower.may_fetch:
            self._news[key] = None
            self._is_urgent = self._is_urgent or urgent
            return
        self._leave(key)
        if follower.phase is Phase.FAILED:
            heapq.heappush(self._retries, (max(follower.retry_us, now_us), key))

    def _leave(self, key: Key) -> None:
        self._news.pop(key, None)
        if key in self._in_session:
            self._forgotten[key] = None
        assert key in self._in_session or key not in self._forgotten

    # --- asking --------------------------------------------------------------------------------
    def next_us(self) -> int | None:
        retry_us = self._retries[0][0] if self._retries else None
        if self._ends_wait:
            return 0
        if self.in_flight or not self._wants_to_ask():
            return retry_us
        if retry_us is None or self._backoff_until_us < retry_us:
            return self._backoff_until_us
        return retry_us

    @property
    def _ends_wait(self) -> bool:
        return self._is_held and self._is_urgent

    def wait_to_end(self) -> int | None:
        if not self._ends_wait:
            return None
        assert self.in_flight
        assert self._session_id, "the fetch that begins a session is not held"
        self._is_held = False
        return self._session_id

    def _wants_to_ask(self) -> bool:
        return bool(self._news or self._forgotten or self._in_session)

    def next_fetch(self, now_us: int) -> FetchPlan | None:
        self._retry(now_us)
        if self.in_flight or now_us < self._backoff_until_us or not self._wants_to_ask():
            return None
        forgotten = list(self._forgotten)[: self._entries_max]
        for key in forgotten:
            del self._forgotten[key]
            self._in_session.discard(key)
        entries: list[ReplicaFetchPartition] = []
        while self._news and len(entries) < self._entries_max:
            key = next(iter(self._news))
            del self._news[key]
            entries.append(self._followers[key].fetch_entry(*key))
            self._in_session.add(key)
            self._forgotten.pop(key, None)
        assert len(entries) <= self._entries_max
        assert len(forgotten) <= self._entries_max
        self.in_flight = True
        # A session that only begins has no id yet, so its wait could not be ended.
        may_wait = bool(self._session_id) and not self._news and not self._forgotten
        self._is_held = may_wait
        self._is_urgent = self._is_urgent and bool(self._news)
        return FetchPlan(
            self._session_id,
            self._session_epoch,
            entries,
            [PartitionKey(*key) for key in forgotten],
            may_wait,
        )

    def _retry(self, now_us: int) -> None:
        while self._retries and self._retries[0][0] <= now_us:
            _, key = heapq.heappop(self._retries)
            follower = self._followers.get(key)
            if follower is None or follower.phase is not Phase.FAILED:
                continue
            # A deadline of an earlier pause does not end a later one.
            if follower.retry_us <= now_us:
                follower.retry()
                self._news[key] = None
                self._is_urgent = True

    # --- what came of it -----------------------------------------------------------------------
    def answered(self, session_id: int) -> None:
        assert self.in_flight
        self.in_flight = self._is_held = False
        self._failures = 0
        self._session_id = session_id
        self._session_epoch = next_epoch(self._session_epoch)
        assert self._session_epoch > 0, "0 only begins a session"

    def result(self, result: ReplicaFetchResult, now_us: int) -> Action | None:
        assert not self.in_flight, "the answer as a whole comes first"
        key = (result.topic_id, result.partition)
        follower = self._followers.get(key)
        if follower is None or key not in self._in_session:
            return None
        action = follower.answered(result, now_us)
        if not follower.may_fetch:
            self.mark_news(key, now_us)
        return action

    def refused(self, now_us: int) -> None:
        """Begin a new session, as the leader does not have this one, or expected another
        request."""
        assert self.in_flight, "nothing was asked"
        self._begin_anew(now_us, backoff=self._session_id == 0)

    def failed(self, now_us: int) -> None:
        # The leader may have taken the report in: the session cannot go on.
        self._begin_anew(now_us, backoff=True)

    def _begin_anew(self, now_us: int, *, backoff: bool) -> None:
        self.in_flight = self._is_held = False
        self._session_id = self._session_epoch = 0
        self._in_session.clear()
        self._forgotten.clear()
        self._news = {key: None for key, one in self._followers.items() if one.may_fetch}
        if backoff:
            wait_us = min(_BACKOFF_US_MIN << min(self._failures, 16), _BACKOFF_US_MAX)
            self._failures += 1
            self._backoff_until_us = now_us + wait_us
            assert self._backoff_until_us > now_us
