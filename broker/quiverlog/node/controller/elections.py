"""What the controller decides at its own time: preferred leaders, leaders away from full disks,
more replicas of internal topics.

Rounds are bounded because each move sends clients to another broker. A broker with a full disk
hands over partitions that a live in-sync replica with room can lead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from quiverlog.core.controller.leaders import away_from, preferred_leader
from quiverlog.core.controller.records import BrokerRecord, PartitionChangeRecord, Record
from quiverlog.core.controller.replication_factor import internal_few, raise_internal
from quiverlog.errors import QuiverlogError
from quiverlog.limits import INTERNAL_RAISE_MS, INTERNAL_RAISE_RETRY_MS
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now

__all__ = ["Elections", "FullDisks", "InternalRaises"]


_AGAIN_US: Final = 2_000_000
_NEXT_US: Final = 100_000
_MOVES_MAX: Final = 500
"""Partitions that get another leader in one decision; the next follow after `_NEXT_US`."""


class FullDisks:
    __slots__ = ("_due_us", "_full", "_known", "_metadata", "_outbox")

    def __init__(
        self, metadata: Metadata, outbox: Outbox, full: Callable[[], frozenset[int]]
    ) -> None:
        self._metadata = metadata
        self._outbox = outbox
        self._full = full
        self._known: frozenset[int] = frozenset()
        self._due_us = 0

    @property
    def brokers(self) -> frozenset[int]:
        return self._full()

    def next_us(self) -> int | None:
        full = self._full()
        if not full:
            return None
        return self._due_us if full <= self._known else 0

    def run(self, now: Now) -> None:
        full = self._full()
        is_news = not full <= self._known
        self._known = full
        if not full or (now.mono_us < self._due_us and not is_news):
            return
        changes = self._changes(full)
        assert len(changes) <= _MOVES_MAX
        self._due_us = now.mono_us + (_NEXT_US if len(changes) == _MOVES_MAX else _AGAIN_US)
        assert self._due_us > now.mono_us, "the controller looks again after a pause"
        if not changes:
            return
        self._outbox.log(
            "warning", "leaders moved from full disks", brokers=sorted(full), count=len(changes)
        )
        try:
            self._metadata.propose(changes, now, _ignore_outcome)
        except QuiverlogError as error:
            self._outbox.log("warning", "leaders not moved", why=str(error))

    def _changes(self, full: frozenset[int]) -> list[Record]:
        image = self._metadata.pending
        changes: list[Record] = []
        for topic in image.topics.values():
            for partition in topic.partitions:
                if partition.leader_id in full:
                    changes += away_from(image, topic.topic_id, partition.partition, full)
                if len(changes) == _MOVES_MAX:
                    return changes
        return changes


def _ignore_outcome(_result: object, _error: BaseException | None, _now: Now) -> None:
    """Do nothing: the next round tries again."""


_LOOKED_AT_MAX: Final = 1_000
"""Partitions per round: the first replica of many may be gone."""


class Elections:
    """Preferred leaders, and logs of unclean elections. `full_disks` get no partitions back."""

    __slots__ = (
        "_due_us",
        "_entropy",
        "_full_disks",
        "_metadata",
        "_metrics",
        "_moves_max",
        "_outbox",
        "_period_us",
        "_quorum",
        "_todo",
    )

    def __init__(
        self,
        quorum: Quorum,
        metadata: Metadata,
        outbox: Outbox,
        metrics: NodeMetrics,
        entropy: Callable[[int], bytes],
        full_disks: FullDisks,
        *,
        period_ms: int,
        moves_max: int,
    ) -> None:
        assert period_ms >= 0
        assert moves_max >= 1
        self._quorum = quorum
        self._metadata = metadata
        self._outbox = outbox
        self._metrics = metrics
        self._entropy = entropy
        self._full_disks = full_disks
        self._period_us = period_ms * 1000
        self._moves_max = moves_max
        self._due_us: int | None = None
        # The rest of a pass that takes several rounds.
        self._todo: deque[tuple[bytes, int]] = deque()

    def next_us(self) -> int | None:
        full_us = self._full_disks.next_us()
        assert full_us is None or full_us >= 0
        if full_us is None or self._due_us is None:
            return self._due_us if full_us is None else full_us
        return min(self._due_us, full_us)

    def set_period(self, period_ms: int, now: Now) -> None:
        assert period_ms >= 0
        self._period_us = period_ms * 1000
        is_wanted = self._period_us and self._metadata.image.unpreferred
        self._due_us = self._next_round(now) if is_wanted else None

    def set_moves_max(self, moves_max: int, _now: Now) -> None:
        assert moves_max >= 1
        self._moves_max = moves_max

    def applied(self, records: Sequence[Record], now: Now) -> None:
        """Log unclean elections; schedule a round if a partition is not led by its first
        replica.
        """
        for record in records:
            if isinstance(record, PartitionChangeRecord) and record.unclean:
                self._log_unclean(record)
        if self._due_us is None and self._period_us and self._metadata.image.unpreferred:
            self._due_us = self._next_round(now)

    def _log_unclean(self, record: PartitionChangeRecord) -> None:
        assert record.leader_id >= 0, "an unclean election has a leader"
        self._metrics.unclean_elections += 1
        topic = self._metadata.image.topics_by_id.get(record.topic_id)
        self._outbox.log(
            "error",
            "unclean election",
            partition=f"{topic.name if topic else record.topic_id.hex()}-{record.partition}",
            topic_id=record.topic_id.hex(),
            leader=record.leader_id,
            leader_epoch=record.leader_epoch,
        )

    def _next_round(self, now: Now) -> int:
        # Up to a tenth more or less.
        tenth_us = self._period_us // 10
        jitter_us = int.from_bytes(self._entropy(4), "big") % (2 * tenth_us + 1) - tenth_us
        return now.mono_us + max(1, self._period_us + jitter_us)

    def run(self, now: Now) -> None:
        self._full_disks.run(now)
        if self._due_us is None or self._due_us > now.mono_us:
            return
        image = self._metadata.pending
        self._due_us = self._next_round(now) if image.unpreferred else None
        if not self._quorum.is_leading:
            self._todo.clear()
            return
        if not self._todo:
            self._todo.extend(image.unpreferred)
        assert self._period_us > 0
        changes: list[Record] = []
        for _ in range(min(len(self._todo), _LOOKED_AT_MAX)):
            key = self._todo.popleft()
            if key in image.unpreferred:  # Its topic may be deleted.
                changes += preferred_leader(image, *key, self._full_disks.brokers)
            if len(changes) == self._moves_max:
                break
        assert len(changes) <= self._moves_max
        if changes:
            self._outbox.log("info", "preferred leaders elected", count=len(changes))
            self._propose(changes, now)

    def _propose(self, changes: list[Record], now: Now) -> None:
        try:
            self._metadata.propose(changes, now, _ignore_outcome)
        except QuiverlogError as error:
            self._outbox.log("warning", "leaders not moved", why=str(error))


class InternalRaises:
    """Replicas of internal topics. There is no deadline where none lack any, or this broker is not
    the controller."""

    __slots__ = ("_due_us", "_metadata", "_outbox", "_quorum", "_term")

    def __init__(self, quorum: Quorum, metadata: Metadata, outbox: Outbox) -> None:
        self._quorum = quorum
        self._metadata = metadata
        self._outbox = outbox
        self._term = 0  # In which this broker has looked last; 0: it was not the controller.
        self._due_us: int | None = None

    def next_us(self) -> int | None:
        return self._due_us if self._quorum.leading_term == self._term else 0

    def applied(self, records: Sequence[Record], now: Now) -> None:
        # Brokers of a new cluster register one after another.
        if any(isinstance(one, BrokerRecord) for one in records):
            self._wait(INTERNAL_RAISE_MS, now)

    def _wait(self, ms: int, now: Now) -> None:
        few = internal_few(self._metadata.pending)
        self._due_us = now.mono_us + ms * 1_000 if few and self._term else None

    def run(self, now: Now) -> None:
        if self._term != self._quorum.leading_term:
            # The controller before may have waited, and has not done it.
            self._term = self._quorum.leading_term
            self._wait(INTERNAL_RAISE_MS, now)
        if self._due_us is None or now.mono_us < self._due_us:
            return
        self._wait(INTERNAL_RAISE_RETRY_MS, now)
        try:
            changes = raise_internal(self._metadata.pending)
            if changes:
                self._metadata.propose(changes, now, _ignore_outcome)
                self._outbox.log("info", "internal topics get replicas", count=len(changes))
        except QuiverlogError as error:
            self._outbox.log("warning", "internal topics get no replicas", why=str(error))
