"""Voters that change by themselves, where this node leads the quorum.

Owns when the plan (voter_plan.py) is looked at, and what has to be true before a change is begun:
whoever gets a vote follows closely, was reached where it is registered (reach.py), and a majority
of those who keep theirs is heard. What the Raft refuses, and what is not true yet, is tried again
half a second later. A change by command counts
like any other: one is under way at a time.

A quorum of one with nobody else registered has no deadline here.

Must not know: requests, why a broker wants a vote.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import ProposalRefused, ReplicaKey
from quiverlog.limits import RAFT_OBSERVERS_MAX
from quiverlog.node.config import NodeConfig
from quiverlog.node.metadata import Metadata
from quiverlog.node.outbox import Outbox
from quiverlog.node.quorum import Quorum
from quiverlog.node.reach import Reach
from quiverlog.node.voter_plan import Kind, Planned, endpoint_of, plan
from quiverlog.types import Now

__all__ = ["VoterChanges"]

_RETRY_US: Final = 500_000
_REACHED_US: Final = 5_000_000
"""So long it counts that a replica was reached."""

_Where = tuple[ReplicaKey, str]
"""A replica, and the endpoint at which it is to be reached."""


class VoterChanges:
    """See the module docstring."""

    __slots__ = (
        "_asked", "_config", "_due_us", "_metadata", "_outbox", "_quorum", "_reach", "_reached_us",
        "_term", "_told",
    )  # fmt: skip

    def __init__(
        self,
        config: NodeConfig,
        quorum: Quorum,
        metadata: Metadata,
        outbox: Outbox,
        reach: Reach,
    ) -> None:
        self._config = config
        self._quorum = quorum
        self._metadata = metadata
        self._outbox = outbox
        self._reach = reach
        self._asked: set[_Where] = set()
        self._reached_us: dict[_Where, int] = {}  # Who is to get a vote, and when it was reached.
        self._told = ""
        self._term = 0  # In which the plan was looked at.
        self._due_us: int | None = None

    def next_us(self) -> int | None:
        """When `tick` is to be called at the latest; 0: at once; None: when something happens."""
        if not self._quorum.is_leading:
            return None
        return self._due_us if self._quorum.leading_term == self._term else 0

    def changed(self) -> None:
        """Brokers have changed in the metadata."""
        self._due_us = 0

    def tick(self, now: Now) -> None:
        """Begin the next change, if there is one and its time has come."""
        quorum = self._quorum
        if not quorum.is_leading:
            self._term = 0
            return
        if quorum.leading_term != self._term:
            self._term, self._due_us = quorum.leading_term, 0
        if self._due_us is None or now.mono_us < self._due_us:
            return
        if quorum.is_changing:
            self._due_us = now.mono_us + _RETRY_US
            return
        raft = quorum.raft
        brokers, listener = self._metadata.image.brokers, self._config.inter_broker_listener
        planned = plan(raft.key, raft.voters, brokers, listener)
        if planned is None:
            self._due_us = None
            return
        self._due_us = now.mono_us + _RETRY_US
        assert self._term == quorum.leading_term
        if self._may_begin(planned, now) and self._are_reached(planned, now):
            try:
                place = self._propose(planned, now)
            except ProposalRefused:
                return
            quorum.when_decided(place, partial(self._decided, planned), now)

    def _may_begin(self, planned: Planned, now: Now) -> bool:
        raft = self._quorum.raft
        if not all(raft.is_caught_up(key, now.mono_us) for key in planned.follow):
            return False
        # The disk is gone for good. Who stays is heard, and can decide and add the new one.
        return planned.kind is not Kind.REMOVE or raft.is_silent(planned.key, now.mono_us)

    def _are_reached(self, planned: Planned, now: Now) -> bool:
        """Those who are to vote were reached just now; those who were not are asked."""
        brokers, listener = self._metadata.image.brokers, self._config.inter_broker_listener
        wanted = [(key, endpoint_of(brokers[key.node_id], listener)) for key in planned.follow]
        if planned.kind is Kind.MOVE:
            wanted.append((planned.key, planned.endpoint))
        since_us = now.mono_us - _REACHED_US
        fresh = {one: us for one, us in self._reached_us.items() if us >= since_us}
        self._reached_us = {one: fresh[one] for one in wanted if one in fresh}
        missing = [one for one in wanted if one not in fresh]
        for one in missing:
            if one not in self._asked:
                self._asked.add(one)
                self._reach.check(*one, now, partial(self._answered, one))
        assert len(self._asked) <= RAFT_OBSERVERS_MAX
        return not missing

    def _answered(
        self, where: _Where, _result: object, error: BaseException | None, now: Now
    ) -> None:
        self._asked.discard(where)
        if error is None:
            self._told = ""
            self._reached_us[where] = now.mono_us
            self._due_us = 0
        elif str(error) != self._told:
            self._told = str(error)
            self._outbox.log("warning", "voters not changed", why=self._told)

    def _propose(self, planned: Planned, now: Now) -> Place:
        """Raises ProposalRefused."""
        raft = self._quorum.raft
        if planned.kind is Kind.REMOVE:
            return raft.remove_voter(planned.key, now.mono_us)
        if planned.kind is Kind.MOVE:
            return raft.move_voter(planned.key, planned.endpoint, now.mono_us)
        # A quorum of one has written down no address of its own.
        own = str(self._config.endpoint)
        return raft.add_voter(planned.key, planned.endpoint, now.mono_us, own_endpoint=own)

    def _decided(
        self, planned: Planned, _result: object, error: BaseException | None, now: Now
    ) -> None:
        if error is not None:
            return  # Whoever leads now looks at it again.
        self._due_us = 0
        key = planned.key
        self._outbox.log(
            "info",
            planned.kind.value,
            node=key.node_id,
            directory=key.directory_id,
            why="by itself",
        )
