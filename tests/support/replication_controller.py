"""The controller of a simulated replication, and the messages of its world.

Owns the decisions: which brokers are fenced, in sync, eligible, elected. It keeps the rules to the
letter and is otherwise free.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from quiverlog.core.partition.in_sync import Proposal
from quiverlog.core.partition.progress import NEVER_FETCHED_EPOCH
from quiverlog.core.replication.peer_fetcher import FetchPlan
from quiverlog.errors import FencedLeaderEpoch, IneligibleReplica, OutdatedPartitionEpoch

from .replication import Answer, Meta

__all__ = ["Alter", "Altered", "Controller", "Fetch", "Fetched", "Message"]


class Fetch(NamedTuple):
    source: int
    life: int
    source_epoch: int
    target: int
    plan: FetchPlan


class Fetched(NamedTuple):
    asked: Fetch
    answer: Answer


class Alter(NamedTuple):
    source: int
    life: int
    source_epoch: int
    proposal: Proposal


class Altered(NamedTuple):
    asked: Alter
    error_code: int
    version: int


Message = Fetch | Fetched | Alter | Altered


class Controller:
    """Decides; `history` has the metadata at every version."""

    def __init__(self, rng: random.Random, brokers: int, min_in_sync: int) -> None:
        self.rng = rng
        self.replicas = tuple(range(brokers))
        self.min_in_sync = min_in_sync
        self.leader: int | None = None
        self.leader_epoch = 0
        self.partition_epoch = 0
        self.in_sync = set(self.replicas)
        self.eligible: set[int] = set()
        """Eligible leader replicas: they have all that is replicated, and are out of sync."""
        self.fenced = set(self.replicas)
        self.epochs = dict.fromkeys(self.replicas, 0)
        self.registrations = 0
        self.history: list[Meta] = []
        self.said: object = None
        self.publish()

    def publish(self) -> None:
        if len(self.in_sync) >= self.min_in_sync:
            self.eligible.clear()
        copies = (frozenset(self.in_sync), frozenset(self.eligible))
        now = (self.leader, self.leader_epoch, *copies)
        if now != self.said:
            # Fencing a broker that was not in sync is no change of the partition.
            self.said = now
            self.partition_epoch += 1
        self.history.append(
            Meta(
                self.leader,
                self.leader_epoch,
                self.partition_epoch,
                self.replicas,
                tuple(sorted(self.in_sync)),
                self.min_in_sync,
                {b: e for b, e in self.epochs.items() if b not in self.fenced},
            )
        )

    def leave(self, broker: int) -> None:
        """Out of sync: it has all that was replicated, which no more rows become now."""
        if broker in self.in_sync:
            self.in_sync.discard(broker)
            if len(self.in_sync) < self.min_in_sync:
                self.eligible.add(broker)

    def register(self, broker: int, *, unclean: bool) -> int:
        self.registrations += 1
        self.epochs[broker] = self.registrations
        self.fence(broker)
        if unclean:
            self.in_sync.discard(broker)
            self.eligible.discard(broker)
        self.publish()
        return self.registrations

    def fence(self, broker: int) -> None:
        self.fenced.add(broker)
        self.leave(broker)
        if self.leader == broker:
            self.elect()
        self.publish()

    def unfence(self, broker: int) -> None:
        self.fenced.discard(broker)
        if self.leader is None:
            self.elect()
        self.publish()

    def elect(self) -> None:
        """In sync first, then eligible; none otherwise."""
        alive = [b for b in self.in_sync if b not in self.fenced]
        if not alive:
            alive = [b for b in self.eligible if b not in self.fenced]
        self.leader_epoch += 1
        self.leader = self.rng.choice(sorted(alive)) if alive else None
        if self.leader in self.eligible:
            self.eligible.discard(self.leader)
            self.in_sync.add(self.leader)

    def lead(self, broker: int) -> None:
        """Have this one lead, which is in sync."""
        assert broker in self.in_sync
        self.leader_epoch += 1
        self.leader = broker
        self.publish()

    def alter(self, asked: Alter) -> int:
        """Rule 7, in its order. Returns an error's code, or 0."""
        proposal = asked.proposal
        if proposal.leader_epoch < self.leader_epoch or asked.source != self.leader:
            return FencedLeaderEpoch.code
        if asked.source_epoch != self.epochs[asked.source]:
            return FencedLeaderEpoch.code
        if proposal.partition_epoch != self.partition_epoch:
            return OutdatedPartitionEpoch.code
        for member, epoch in zip(proposal.members, proposal.broker_epochs, strict=True):
            if member in self.fenced:
                return IneligibleReplica.code
            # The leader may not have received a new life yet, nor the members that it found in
            # sync.
            not_reported = epoch == NEVER_FETCHED_EPOCH and member in self.in_sync
            if epoch != self.epochs[member] and not not_reported:
                return IneligibleReplica.code
        for member in self.in_sync - set(proposal.members):
            self.in_sync.discard(member)
            if len(proposal.members) < self.min_in_sync:
                self.eligible.add(member)
        self.in_sync = set(proposal.members)
        self.eligible -= self.in_sync
        self.said = None  # Also where nothing changes: earlier requests must not be taken after it.
        self.publish()
        return 0
