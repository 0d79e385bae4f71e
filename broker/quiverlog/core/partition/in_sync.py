"""The in-sync replicas of one partition, as its leader has to count on them.

Owns what is committed, and what was proposed to the controller and may hold by now. The leader
never changes the set by itself (KIP-497): it proposes, one request in flight, under the partition
epoch that it knows, and the controller takes it or refuses it. Until that is known, both may hold:

- `maximal`: whoever may be in sync. Rows are replicated when all of these have them.
- `certain`: whoever is in sync in any case. What has to lie in so many places counts these alone.

        settled ──propose──▶ asking ──applied, or the metadata say what holds──▶ settled
                               │ ├─ refused, and never applied (`PROVES_NOTHING_CHANGED`) ─▶ settled
                               │ ├─ another epoch ─▶ outdated: the metadata will say what holds
                               │ └─ no answer, or any other ─▶ to be asked again, the same
                               └────────────────────────────────────────────────────◀┘

A request that was never answered may still be on its way when its repetition is refused. So such a
refusal proves nothing of the first one: its members stay in `maximal` until another proposal is
applied, which takes the partition epoch that the first one needs.

Must not know: logs, offsets, who is fit to be in sync.
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
"""The controller compares epochs before it looks at the members: had this request been applied, its
partition epoch would be outdated. The metadata may have nothing later to say then: a member holds
the partition no more when a move has ended, which the leader hears with its answer, perhaps before
the metadata say who holds it."""

SETTLED_BY_METADATA: Final = frozenset(
    (
        FencedLeaderEpoch.code,
        OutdatedPartitionEpoch.code,
        UnknownTopicId.code,
        UnknownPartition.code,
    )
)
"""Another change came first, perhaps ours of an earlier try: asking again cannot succeed."""


class Proposal(NamedTuple):
    """What the controller is asked to make the in-sync replicas.

    `members`: sorted. It holds only if the partition is still at both epochs. `broker_epochs`: of
    the members, as they have said to the leader; UNHEARD_EPOCH where they have said nothing.
    `ends_move`: those that the partition moves to may hold it alone from now on.
    """

    leader_epoch: int
    partition_epoch: int
    members: tuple[int, ...]
    broker_epochs: tuple[int, ...] = ()
    ends_move: bool = False


class InSync:
    """See the module docstring."""

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
        """The metadata are ahead of what is known here: nothing can be proposed."""
        # The proposal that waits for its answer, or to be sent again.
        self._asked: frozenset[int] | None = None
        # What may have been applied, with the number of its requests that were never answered.
        self._possible: dict[frozenset[int], int] = {}

    @property
    def asking(self) -> bool:
        """True while a proposal is not settled: no other is made."""
        return self._asked is not None

    @property
    def unsettled(self) -> bool:
        """True when nothing is asked and yet something unknown may hold: propose what shall."""
        return self._asked is None and bool(self._possible) and not self.outdated

    def propose(self, members: Iterable[int]) -> Proposal:
        """Ask for these members. Returns what is to be sent."""
        assert self._asked is None, "one proposal at a time"
        assert not self.outdated, "the metadata have to come first"
        self._asked = frozenset(members)
        assert self._asked, "somebody is in sync"
        self._possible.setdefault(self._asked, 0)
        self._count()
        return self.again()

    def again(self) -> Proposal:
        """What is to be sent for the proposal that is not settled."""
        assert self._asked is not None
        assert not self.in_flight, "one request in flight"
        self.in_flight = True
        return Proposal(self._leader_epoch, self.partition_epoch, tuple(sorted(self._asked)))

    # --- what came of it -----------------------------------------------------------------------
    def unanswered(self) -> None:
        """No answer will come: nobody knows whether the request was applied, or will be."""
        assert self.in_flight
        assert self._asked is not None
        self.in_flight = False
        self._possible[self._asked] += 1

    def refused(self, error_code: int) -> None:
        """The controller has answered with this error."""
        assert self.in_flight
        assert self._asked is not None
        self.in_flight = False
        if error_code in PROVES_NOTHING_CHANGED:
            if not self._possible[self._asked]:
                del self._possible[self._asked]
            self._asked = None
        elif error_code in SETTLED_BY_METADATA:
            self._asked = None
            self.outdated = True
        self._count()

    def nothing_changed(self) -> None:
        """The controller has taken the proposal, under a partition epoch that was known: it asked
        for what held already.
        """
        assert self.in_flight
        assert self._asked is not None
        self.in_flight = False
        if not self._possible[self._asked]:
            del self._possible[self._asked]
        self._asked = None
        self._count()

    def holds(self, partition_epoch: int, members: Iterable[int]) -> bool:
        """The controller, or the metadata, say what holds. False for what is older or known."""
        if partition_epoch <= self.partition_epoch:
            return False
        # Whatever was proposed under an older epoch was applied by now, or never will be.
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
