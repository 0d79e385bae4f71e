"""The replica that a reader fetches from: the leader, or a follower that is nearer.

Only followers in sync by the metadata are asked. A failed one rests for two seconds, twice as long
after each further failure, up to a minute; rows end the count. Its errors never reach the caller:
the leader is asked instead. Failures are also:

- a high watermark below the reader's offset;
- no rows where the leader has some: at the end of what its follower returns, a reader asks the
  leader once in five seconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from quiverlog.client.base.results import ClusterMetadata, PartitionInfo
from quiverlog.errors import InvalidArgument

__all__ = ["IN_SYNC_EVERY_S", "LEADER", "FetchFrom", "ReplicaChoice", "check_fetch_from"]

FetchFrom: TypeAlias = Literal["leader", "follower", "nearest"]

# In place of a follower's node id.
LEADER: Final = -1
CHECK_S: Final = 5.0
# Bound on the age of the list of replicas in sync: a nearer one may be back.
IN_SYNC_EVERY_S: Final = 30.0
REST_S_MIN: Final = 2.0
REST_S_MAX: Final = 60.0


def check_fetch_from(fetch_from: str, rack: str) -> None:
    if fetch_from not in get_args(FetchFrom):
        raise InvalidArgument(
            f"fetch_from={fetch_from!r} is none of 'leader', 'follower', 'nearest'."
        )
    if fetch_from == "nearest" and not rack:
        raise InvalidArgument(
            "fetch_from='nearest' needs client_rack: give the rack to be near to."
        )


class _Rest(NamedTuple):
    failures: int
    until_s: float


@dataclass(slots=True)
class _Reading:
    leader_asked_s: float
    # Is asked, or was until the leader was last asked.
    follower: int = LEADER
    # It has returned rows since.
    brought: bool = False
    # Its last answer was empty, or reached its high watermark.
    at_end: bool = False
    # Returned no rows before the leader was asked: it has failed if the leader returns some.
    suspect: int = LEADER


class ReplicaChoice:
    """The choices of a reader in `rack` (empty: unknown), by partitions' keys."""

    __slots__ = ("_fetch_from", "_rack", "_readings", "_rests", "_spread")

    def __init__(self, fetch_from: FetchFrom, rack: str, spread: int = 0) -> None:
        check_fetch_from(fetch_from, rack)
        self._fetch_from = fetch_from
        self._rack = rack
        self._spread = spread
        self._readings: dict[Hashable, _Reading] = {}
        self._rests: dict[tuple[Hashable, int], _Rest] = {}

    @property
    def wants_followers(self) -> bool:
        return self._fetch_from != "leader"

    def choose(
        self, key: Hashable, partition: PartitionInfo, metadata: ClusterMetadata, now_s: float
    ) -> int:
        if self._fetch_from == "leader":
            return LEADER
        node_id = self._best(partition, metadata)
        if node_id == LEADER:
            return LEADER
        rest = self._rests.get((key, node_id))
        if rest is not None and now_s < rest.until_s:
            return LEADER
        reading = self._readings.setdefault(key, _Reading(now_s))
        if reading.at_end and now_s - reading.leader_asked_s >= CHECK_S:
            return LEADER
        return node_id

    def _best(self, partition: PartitionInfo, metadata: ClusterMetadata) -> int:
        racks: Mapping[int, str] = metadata.racks
        leader = partition.leader
        followers = [
            node_id
            for node_id in partition.in_sync_replicas
            if node_id != leader and node_id in metadata.brokers
        ]
        near = [node_id for node_id in followers if self._rack and racks.get(node_id) == self._rack]
        if self._fetch_from == "nearest":
            followers = [] if racks.get(leader) == self._rack else near
        elif near:
            followers = near
        if leader < 0 or not followers:
            return LEADER
        # Readers with different `spread` use different ones of equally near followers.
        chosen = followers[(partition.partition + self._spread) % len(followers)]
        assert chosen != leader
        return chosen

    def asked(self, key: Hashable, node_id: int, now_s: float) -> None:
        reading = self._readings.setdefault(key, _Reading(now_s))
        if node_id != LEADER:
            reading.follower = node_id
            return
        reading.suspect = LEADER if reading.brought else reading.follower
        reading.follower = LEADER
        reading.brought = reading.at_end = False
        reading.leader_asked_s = now_s

    def leader_answered(self, key: Hashable, *, brought: bool, now_s: float) -> None:
        # Rows of the leader show that a follower that returned none lags.
        reading = self._readings[key]
        suspect, reading.suspect = reading.suspect, LEADER
        if brought and suspect != LEADER:
            self._rest(key, suspect, now_s)

    def follower_answered(
        self,
        key: Hashable,
        node_id: int,
        *,
        offset: int,
        next_offset: int,
        high_watermark: int,
        now_s: float,
    ) -> None:
        assert next_offset >= offset
        if high_watermark < offset:
            self.failed(key, node_id, now_s)
            return
        reading = self._readings[key]
        reading.at_end = next_offset in (offset, high_watermark)
        if next_offset > offset:
            reading.brought = True
            self._rests.pop((key, node_id), None)

    def failed(self, key: Hashable, node_id: int, now_s: float) -> None:
        self._rest(key, node_id, now_s)
        reading = self._readings[key]
        reading.follower = LEADER
        reading.brought = reading.at_end = False

    def _rest(self, key: Hashable, node_id: int, now_s: float) -> None:
        assert node_id != LEADER, "only a follower rests"
        before = self._rests.get((key, node_id))
        failures = 0 if before is None else before.failures + 1
        rest_s = min(REST_S_MIN * 2 ** min(failures, 16), REST_S_MAX)
        self._rests[key, node_id] = _Rest(failures, now_s + rest_s)

    def forget(self, key: Hashable) -> None:
        """Drop what is known of a partition that is not read any more."""
        self._readings.pop(key, None)
        for rest in [rest for rest in self._rests if rest[0] == key]:
            del self._rests[rest]
