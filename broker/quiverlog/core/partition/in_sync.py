"""The in-sync replicas of one partition, in the leader's view.

The leader does not change the set by itself (KIP-497): it proposes, one request in flight, under
its partition epoch, and the controller accepts or refuses. Until then both sets may hold:

- `maximal`: replicas that may be in sync. Rows are replicated when all of these have them.
- `certain`: replicas in sync in any case. A required number of copies counts only these.

        settled ──propose──▶ asking ──applied, or newer metadata──▶ settled
                               │ ├─ refused, and never applied (`PROVES_NOTHING_CHANGED`) ─▶ settled
                               │ ├─ another epoch ─▶ outdated: newer metadata will come
                               │ └─ no answer, or any other ─▶ to be proposed again, unchanged
                               └────────────────────────────────────────────────────◀┘
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from quiverlog.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    OutdatedPartitionEpoch,
    UnknownPartition,
    UnknownTopicId,
)

__all__ = ["PROVES_NOTHING_CHANGED", "SETTLED_BY_METADATA", "InSync", "Proposal"]

PROVES_NOTHING_CHANGED: Final = frozenset((IneligibleReplica.code, InvalidRequest.code))
"""The controller compares epochs before members, so a request that had been applied would fail with
an outdated partition epoch. The metadata need not change then: after a move has ended, a member may
no longer hold the partition, and the answer may come before the metadata."""

SETTLED_BY_METADATA: Final = frozenset(
    (
        FencedLeaderEpoch.code,
        OutdatedPartitionEpoch.code,
        UnknownTopicId.code,
        UnknownPartition.code,
    )
)
"""Another change was applied first, perhaps an earlier try of this one: a retry cannot succeed."""


class Proposal(NamedTuple):
    """The in-sync replicas that the leader asks the controller for, valid only at both epochs.

    `broker_epochs`: those that the members reported to the leader. `ends_move`: the replicas that
    the partition moves to may hold it alone from now on.
    """

    leader_epoch: int
    partition_epoch: int
    members: tuple[int, ...]
    broker_epochs: tuple[int, ...] = ()
    ends_move: bool = False


class InSync:
    __slots__ = (
        "_asked",
        "_leader_epoch",
        "_possible",
        "certain",
        "committed",
        "in_flight",
        "maximal",
        "outdated",
        "partition_epoch",
    )

    def __init__(self, leader_epoch: int, partition_epoch: int, members: Iterable[int]) -> None:
        assert leader_epoch >= 0
        assert partition_epoch >= 0
        self._leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.committed = self.maximal = self.certain = frozenset(members)
        self.in_flight = False
        self.outdated = False
        """The metadata are ahead of this state: nothing can be proposed."""
        # The proposal that waits for its answer, or for a retry.
        self._asked: frozenset[int] | None = None
        # Sets that may have been applied, and how many of their requests were never answered.
        self._possible: dict[frozenset[int], int] = {}

    @property
    def asking(self) -> bool:
        return self._asked is not None

    @property
    def unsettled(self) -> bool:
        return self._asked is None and bool(self._possible) and not self.outdated

    def propose(self, members: Iterable[int]) -> Proposal:
        assert self._asked is None, "one proposal at a time"
        assert not self.outdated, "the metadata have to come first"
        self._asked = frozenset(members)
        assert self._asked, "the leader is in sync"
        self._possible.setdefault(self._asked, 0)
        self._count()
        return self.again()

    def again(self) -> Proposal:
        assert self._asked is not None
        assert not self.in_flight, "one request in flight"
        self.in_flight = True
        return Proposal(self._leader_epoch, self.partition_epoch, tuple(sorted(self._asked)))

    # --- what came of it -----------------------------------------------------------------------
    def unanswered(self) -> None:
        assert self.in_flight
        assert self._asked is not None
        self.in_flight = False
        self._possible[self._asked] += 1

    def refused(self, error_code: int) -> None:
        assert self.in_flight
        assert self._asked is not None
        self.in_flight = False
        if error_code in PROVES_NOTHING_CHANGED:
            # An earlier request for the same set may still be applied, though this one was refused:
            # the set counts until another proposal takes the partition epoch that the earlier one
            # needs.
            if not self._possible[self._asked]:
                del self._possible[self._asked]
            self._asked = None
        elif error_code in SETTLED_BY_METADATA:
            self._asked = None
            self.outdated = True
        self._count()

    def nothing_changed(self) -> None:
        assert self.in_flight
        assert self._asked is not None
        self.in_flight = False
        # As after a refusal: an unanswered request for the same set may still be applied.
        if not self._possible[self._asked]:
            del self._possible[self._asked]
        self._asked = None
        self._count()

    def take_over(self, partition_epoch: int, members: Iterable[int]) -> bool:
        """Take over the set of the controller or the metadata. Returns False for an older or known
        epoch."""
        if partition_epoch <= self.partition_epoch:
            return False
        # Every proposal under an older epoch was applied by now, or never will be.
        self.partition_epoch = partition_epoch
        self.committed = frozenset(members)
        self._possible.clear()
        self._asked = None
        self.in_flight = self.outdated = False
        self._count()
        assert self.maximal == self.certain, "what holds is known"
        return True

    def _count(self) -> None:
        self.maximal = self.committed.union(*self._possible)
        self.certain = self.committed.intersection(*self._possible)
        assert self._asked is None or self._asked in self._possible
        assert self._asked is not None or not self.in_flight
        assert self.certain <= self.committed <= self.maximal
