"""Limits the rate at which partitions move to this broker.

A partition's rate is the lower of the broker's and its move's; after a fetch it rests until the
bytes' time at that rate is over. Moves with one rate take turns. The time is forgotten when no move
has the rate any more: bytes of a slow one that was cancelled, ended or changed hold up no other.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiverlog.core.replication.follower import Follower
from quiverlog.core.replication.peer_fetcher import Key
from quiverlog.node.replication.follower import Copy
from quiverlog.node.runtime.metadata_view import MetadataView

__all__ = ["MoveQuota"]


class MoveQuota:
    __slots__ = ("_bytes_per_s", "_metadata", "_node_id", "_rates", "_until_us")

    def __init__(self, node_id: int, bytes_per_s: int, metadata: MetadataView) -> None:
        assert bytes_per_s >= 0
        self._node_id = node_id
        self._bytes_per_s = bytes_per_s
        self._metadata = metadata
        # The rate of each move of which bytes were counted.
        self._rates: dict[Key, int] = {}
        # By rate: when the time of the counted bytes is over.
        self._until_us: dict[int, int] = {}

    def set_rate(self, bytes_per_s: int, copies: Iterable[Copy], now_us: int) -> list[Copy]:
        """Change the rate, and forget earlier bytes. Returns the copies that rest no longer."""
        assert bytes_per_s >= 0
        self._bytes_per_s = bytes_per_s
        self._rates.clear()
        self._until_us.clear()
        resting = [copy for copy in copies if copy.follower.rests]
        for copy in resting:
            copy.follower.rest_ends(now_us)
        assert not any(copy.follower.may_fetch for copy in resting)
        return resting

    def taken(self, key: Key, follower: Follower, byte_count: int, now_us: int) -> bool:
        """Count fetched bytes. True when the copy rests now."""
        rate = self._rate(key) if byte_count else 0
        if not rate:
            return False
        self.changed(key, follower, now_us)
        self._rates[key] = rate
        self._until_us.setdefault(rate, now_us)
        # Faster ones make room for these bytes, so all moves together are never faster than the
        # fastest may be. Slower ones do not: each has its own rate in any case.
        for one, until_us in self._until_us.items():
            if one >= rate:
                self._until_us[one] = max(until_us, now_us) + byte_count * 1_000_000 // one
        until_us = self._until_us[rate]
        assert until_us >= now_us
        if not follower.may_fetch or until_us == now_us:
            return False
        follower.rest(until_us)
        return True

    def changed(self, key: Key, follower: Follower, now_us: int) -> None:
        """End the rest of a copy whose move has another rate now, or is over."""
        rate = self._rates.get(key)
        if rate is None or rate == self._rate(key):
            return
        self.forget(key)
        if follower.rests:
            follower.rest_ends(now_us)

    def forget(self, key: Key) -> None:
        rate = self._rates.pop(key, None)
        if rate is not None and rate not in self._rates.values():
            del self._until_us[rate]

    def _rate(self, key: Key) -> int:
        """Return the partition's rate; 0: it does not move here, or nothing bounds it."""
        topic = self._metadata.image.topics_by_id.get(key[0])
        if topic is None:
            return 0
        assert key[1] < len(topic.partitions), "what is copied is in the metadata"
        partition = topic.partitions[key[1]]
        # In-sync and returning followers are not limited: others wait for those.
        is_in_sync = self._node_id in partition.in_sync_replicas
        if self._node_id not in partition.adding_replicas or is_in_sync:
            return 0
        rates = [one for one in (self._bytes_per_s, partition.move_bytes_per_s) if one]
        return min(rates, default=0)
