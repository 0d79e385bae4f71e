"""Limits the rate at which partitions move to this broker.

A partition's rate is the lower of the broker's and its move's; after a fetch it rests until the
bytes' time at that rate is over.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiverlog.core.replication.follower import Follower
from quiverlog.core.replication.peer_fetcher import Key
from quiverlog.node.replication.follower import Copy
from quiverlog.node.runtime.metadata_view import MetadataView

__all__ = ["MoveQuota"]


class MoveQuota:
    __slots__ = ("_bytes_per_s", "_metadata", "_node_id", "_until_us")

    def __init__(self, node_id: int, bytes_per_s: int, metadata: MetadataView) -> None:
        assert bytes_per_s >= 0
        self._node_id = node_id
        self._bytes_per_s = bytes_per_s
        self._metadata = metadata
        self._until_us = 0

    def set_rate(self, bytes_per_s: int, copies: Iterable[Copy], now_us: int) -> list[Copy]:
        """Change the rate, and forget earlier bytes. Returns the copies that rest no longer."""
        assert bytes_per_s >= 0
        self._bytes_per_s = bytes_per_s
        self._until_us = 0
        resting = [copy for copy in copies if copy.follower.rests]
        for copy in resting:
            copy.follower.rest_ends(now_us)
        assert not any(copy.follower.may_fetch for copy in resting)
        return resting

    def taken(self, key: Key, follower: Follower, byte_count: int, now_us: int) -> bool:
        """Count fetched bytes. True when the copy rests now."""
        bytes_per_s = self._rate(key) if byte_count else 0
        if not bytes_per_s:
            return False
        # One after the other: all moves together are never faster than the fastest may be.
        begins_us = max(self._until_us, now_us)
        self._until_us = begins_us + byte_count * 1_000_000 // bytes_per_s
        assert self._until_us >= now_us
        if not follower.may_fetch or self._until_us == now_us:
            return False
        follower.rest(self._until_us)
        return True

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
