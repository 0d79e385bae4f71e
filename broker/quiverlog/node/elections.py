"""Elections that no broker's coming or going asks for: the preferred leaders, and what is said.

Owns the rounds in which the controller gives partitions back to their first replicas, and what log
and metrics tell of unclean elections. A round looks at some of the partitions that another than the
first replica leads, and moves a bounded number: each move sends clients to another broker. Where
all are led as preferred, and where another node is the controller, there are no rounds.

Must not know: how a leader is found (core/controller/leaders.py), requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from quiverlog.core.controller.handovers import preferred_leader
from quiverlog.core.controller.records import PartitionChangeRecord, Record
from quiverlog.errors import QuiverlogError
from quiverlog.node.full_disks import FullDisks
from quiverlog.node.metadata import Metadata
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.outbox import Outbox
from quiverlog.node.quorum import Quorum
from quiverlog.types import Now

__all__ = ["Elections"]

_LOOKED_AT_MAX: Final = 1_000
"""Partitions that a round looks at: there may be many whose first replica is gone."""


class Elections:
    """See the module docstring.

    Args:
        full_disks: whose disks are full: nobody gives them partitions back.
        entropy: source of random bytes, so that controllers' rounds do not fall together.
        period_ms: between rounds, up to a tenth more or less; 0: there are none.
        moves_max: partitions that get another leader in one round.
    """

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
        # Those of a pass that may take several rounds.
        self._todo: deque[tuple[bytes, int]] = deque()

    def next_us(self) -> int | None:
        """When the next round is; None: there is nothing to move, as far as is known."""
        full_us = self._full_disks.next_us()
        assert full_us is None or full_us >= 0
        if full_us is None or self._due_us is None:
            return self._due_us if full_us is None else full_us
        return min(self._due_us, full_us)

    def set_period(self, period_ms: int, now: Now) -> None:
        """Another time between rounds, which begins now."""
        assert period_ms >= 0
        self._period_us = period_ms * 1000
        is_wanted = self._period_us and self._metadata.image.unpreferred
        self._due_us = self._next_round(now) if is_wanted else None

    def set_moves_max(self, moves_max: int, _now: Now) -> None:
        """Another bound of each round."""
        assert moves_max >= 1
        self._moves_max = moves_max

    def applied(self, records: Sequence[Record], now: Now) -> None:
        """These have become true: say what was lost, and have a round when there is a cause."""
        for record in records:
            if isinstance(record, PartitionChangeRecord) and record.unclean:
                self._tell(record)
        if self._due_us is None and self._period_us and self._metadata.image.unpreferred:
            self._due_us = self._next_round(now)

    def _tell(self, record: PartitionChangeRecord) -> None:
        assert record.leader_id >= 0, "an unclean election elects somebody"
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
        tenth_us = self._period_us // 10
        jitter_us = int.from_bytes(self._entropy(4), "big") % (2 * tenth_us + 1) - tenth_us
        return now.mono_us + max(1, self._period_us + jitter_us)

    def run(self, now: Now) -> None:
        """Move some leaders, if it is time."""
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
            if key in image.unpreferred:  # Its topic may be gone.
                changes += preferred_leader(image, *key, self._full_disks.brokers)
            if len(changes) == self._moves_max:
                break
        assert len(changes) <= self._moves_max
        if changes:
            self._outbox.log("info", "preferred leaders elected", count=len(changes))
            self._propose(changes, now)

    def _propose(self, changes: list[Record], now: Now) -> None:
        try:
            self._metadata.propose(changes, now, _nobody_waits)
        except QuiverlogError as error:
            self._outbox.log("warning", "leaders not moved", why=str(error))


def _nobody_waits(_result: object, _error: BaseException | None, _now: Now) -> None:
    """What failed is tried again by a later round."""
