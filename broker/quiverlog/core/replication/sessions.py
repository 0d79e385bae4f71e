"""The leader's end of fetch sessions: each follower's last report, and what is news to it.

Owns the sessions (KIP-227), one per follower broker. A partition that changes enters the `news` of
its sessions; a fetch looks only at news, the oldest first.

A request counts once: its epoch must follow the last one, or the follower begins a new session,
which replaces the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quiverlog.core.partition.progress import FollowerSession
from quiverlog.core.replication.peer_fetcher import Key, next_epoch
from quiverlog.errors import InvalidFetchSession, StaleBrokerEpoch, ThrottledBroker
from quiverlog.limits import (
    REPLICA_SESSION_ENTRIES_MAX,
    REPLICA_SESSIONS_ENTRIES_MAX,
    REPLICA_SESSIONS_MAX,
)
from quiverlog.wire.replica_messages import PartitionKey, ReplicaFetchPartition

__all__ = ["FetchSession", "FetchSessions"]


class FetchSession(FollowerSession):
    """`sent`: what the follower got of each partition: (high watermark, log start, log start on the
    leader's disk, offset to flush, start of the leader's epoch). `lagging`: partitions of which
    only the high watermark changed, which may go later."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "entries",
        "epoch",
        "lagging",
        "news",
        "sent",
        "session_id"
    )  # fmt: skip

    def __init__(self, session_id: int, broker_id: int, broker_epoch: int, now_us: int) -> None:
        super().__init__(now_us)
        self.session_id = session_id
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.epoch = 0
        self.entries: dict[Key, ReplicaFetchPartition] = {}
        self.news: dict[Key, None] = {}
        self.sent: dict[Key, tuple[int, int, int, int, int]] = {}
        self.lagging: dict[Key, None] = {}

    def moved(self, key: Key) -> bool:
        if key not in self.entries:
            return False
        first = not self.news
        self.news[key] = None
        return first

    def take(
        self, entries: Sequence[ReplicaFetchPartition], forgotten: Iterable[PartitionKey]
    ) -> list[Key]:
        gone = []
        for one in forgotten:
            key = (one.topic_id, one.partition)
            if self.entries.pop(key, None) is not None:
                gone.append(key)
            self.news.pop(key, None)
            self.lagging.pop(key, None)
            self.sent.pop(key, None)
        for entry in entries:
            key = (entry.topic_id, entry.partition)
            before = self.entries.get(key)
            if before is None or before.leader_epoch != entry.leader_epoch:
                self.sent.pop(key, None)
            self.entries[key] = entry
            # The rows it asks for may be there already, or deleted.
            self.news[key] = None
        assert len(self.news) <= len(self.entries), "news is of known partitions"
        assert len(self.sent) <= len(self.entries)
        return gone

    def may_lag(self, key: Key, current: tuple[int, int, int, int, int]) -> bool:
        """Return whether only the high watermark changed and no reader waits for it there."""
        if self.entries[key].readers_wait:
            return False
        sent = self.sent.get(key)
        return sent is not None and sent[1:] == current[1:]

    def lag_no_more(self) -> bool:
        lagging, self.lagging = self.lagging, {}
        self.news.update(lagging)
        assert len(self.news) <= len(self.entries)
        return bool(lagging)

    def next_news(self) -> Key | None:
        """Return the partition with the oldest news; `moved` puts it back at the end."""
        if not self.news:
            return None
        key = next(iter(self.news))
        del self.news[key]
        self.lagging.pop(key, None)
        assert key in self.entries
        return key


class FetchSessions:
    """`first_id`: random at each start of the broker."""

    __slots__ = ("_by_broker", "_entries_max", "_next_id", "_session_entries_max", "_sessions_max")

    def __init__(
        self,
        first_id: int,
        *,
        sessions_max: int = REPLICA_SESSIONS_MAX,
        session_entries_max: int = REPLICA_SESSION_ENTRIES_MAX,
        entries_max: int = REPLICA_SESSIONS_ENTRIES_MAX,
    ) -> None:
        assert first_id > 0
        assert session_entries_max <= entries_max
        self._next_id = first_id
        self._sessions_max = sessions_max
        self._session_entries_max = session_entries_max
        self._entries_max = entries_max
        # The longest silent first.
        self._by_broker: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._by_broker)

    def request(
        self, broker_id: int, broker_epoch: int, session_id: int, session_epoch: int, now_us: int
    ) -> tuple[FetchSession, FetchSession | None]:
        known = self._by_broker.get(broker_id)
        if known is not None and broker_epoch < known.broker_epoch:
            raise StaleBrokerEpoch(
                f"broker {broker_id} has registered since: {known.broker_epoch}."
            )
        if session_id == 0:
            return self._begin(broker_id, broker_epoch, now_us)
        if known is None or known.session_id != session_id or known.broker_epoch != broker_epoch:
            raise InvalidFetchSession(f"broker {broker_id} has no session {session_id} here.")
        if session_epoch != next_epoch(known.epoch):
            raise InvalidFetchSession(
                f"session {session_id} goes on with {next_epoch(known.epoch)}, not {session_epoch}."
            )
        known.epoch = session_epoch
        known.fetched_us = max(known.fetched_us, now_us)
        del self._by_broker[broker_id]
        self._by_broker[broker_id] = known
        assert known.epoch > 0, "0 only begins a session"
        return known, None

    def check_room(self, session: FetchSession, entries: Sequence[ReplicaFetchPartition]) -> None:
        new = sum((entry.topic_id, entry.partition) not in session.entries for entry in entries)
        if not new:
            return  # The usual case.
        # A follower may name partitions that are not here yet, or no longer.
        if len(session.entries) + new > self._session_entries_max:
            raise InvalidFetchSession(
                f"session {session.session_id} would have {len(session.entries) + new} partitions,"
                f" allowed are {self._session_entries_max}."
            )
        total = sum(len(one.entries) for one in self._by_broker.values()) + new
        if total > self._entries_max:
            raise ThrottledBroker(
                f"all fetch sessions would have {total} partitions, allowed are"
                f" {self._entries_max}."
            )

    def _begin(
        self, broker_id: int, broker_epoch: int, now_us: int
    ) -> tuple[FetchSession, FetchSession | None]:
        ended = self._by_broker.pop(broker_id, None)
        if ended is None and len(self._by_broker) >= self._sessions_max:
            ended = self._by_broker.pop(next(iter(self._by_broker)))
        session = FetchSession(self._next_id, broker_id, broker_epoch, now_us)
        self._next_id += 1
        self._by_broker[broker_id] = session
        assert len(self._by_broker) <= self._sessions_max
        assert ended is None or ended.session_id < session.session_id
        return session, ended
