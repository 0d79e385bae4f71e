"""Changes of the quorum's voters: planning the next one, and carrying it out, one at a time."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from quiverlog.addresses import Address
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import ProposalRefused, ReplicaKey, Voters
from quiverlog.limits import QUORUM_AUTO_VOTERS_MAX, RAFT_OBSERVERS_MAX
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.metadata.reach import Reach
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now

__all__ = ["Kind", "Planned", "VoterChanges", "endpoint_of", "plan"]


class Kind(enum.Enum):
    ADD = "voter added"
    REMOVE = "voter removed"
    MOVE = "voter moved"


class Planned(NamedTuple):
    """`follow`: replicas that must have caught up before."""

    kind: Kind
    key: ReplicaKey
    endpoint: str = ""
    follow: tuple[ReplicaKey, ...] = ()


def plan(
    own: ReplicaKey, voters: Voters, brokers: Mapping[int, BrokerRecord], listener: str
) -> Planned | None:
    assert voters, "the leader of a quorum has voters"
    live = {n: one for n, one in sorted(brokers.items()) if not one.fenced and not one.in_shutdown}
    return (
        _replaced(own, voters, live)
        or _joining(voters, live, listener)
        or _moved(voters, live, listener)
    )


def _key(broker: BrokerRecord) -> ReplicaKey:
    return ReplicaKey(broker.node_id, broker.directory_id)


def _replaced(own: ReplicaKey, voters: Voters, live: Mapping[int, BrokerRecord]) -> Planned | None:
    for voter in sorted(voters):
        broker = live.get(voter.node_id)
        if broker is None or not broker.wants_vote or voter == own:
            continue
        # A wiped disk is another voter (replication rule 30): the old one cannot come back.
        if broker.directory_id not in ("", voter.directory_id):
            assert own.node_id != voter.node_id, "the leader is registered with its own disk"
            return Planned(Kind.REMOVE, voter, follow=(_key(broker),))
    return None


def _joining(voters: Voters, live: Mapping[int, BrokerRecord], listener: str) -> Planned | None:
    nodes = {voter.node_id for voter in voters}
    found = [
        one
        for node_id, one in live.items()
        if one.wants_vote
        and one.directory_id
        and node_id not in nodes
        and endpoint_of(one, listener)
        and not one.decommissioning
    ]
    # Planned in pairs and added one by one: their number is even only in between.
    wanted = 2 if len(voters) % 2 else 1
    if len(found) < wanted or len(voters) + wanted > QUORUM_AUTO_VOTERS_MAX:
        return None
    assert (len(voters) + wanted) % 2, "an odd number survives as much as the next even one"
    follow = tuple(_key(one) for one in found[:wanted])
    return Planned(Kind.ADD, follow[0], endpoint_of(found[0], listener), follow)


def _moved(voters: Voters, live: Mapping[int, BrokerRecord], listener: str) -> Planned | None:
    if len(voters) == 1:
        return None  # No other voter needs its address.
    for voter, endpoint in sorted(voters.items()):
        broker = live.get(voter.node_id)
        if broker is not None and broker.directory_id == voter.directory_id:
            now_at = endpoint_of(broker, listener)
            if now_at and now_at != endpoint:
                return Planned(Kind.MOVE, voter, now_at)
    return None


def endpoint_of(broker: BrokerRecord, listener: str) -> str:
    """Return the address for other brokers; empty: none is registered."""
    endpoints = {name: str(Address(host, port)) for name, host, port in broker.listeners}
    return endpoints.get(listener, "")


_RETRY_US: Final = 500_000
_REACHED_US: Final = 5_000_000
"""How long a successful contact with a replica counts."""

_Where = tuple[ReplicaKey, str]


class VoterChanges:
    __slots__ = (
        "_asked", "_config", "_due_us", "_logged_reason", "_metadata", "_outbox", "_quorum",
        "_reach", "_reached_us", "_term",
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
        self._reached_us: dict[_Where, int] = {}  # By future voter: the time of the last contact.
        self._logged_reason = ""
        self._term = 0  # The term in which the plan was last evaluated.
        self._due_us: int | None = None

    def next_us(self) -> int | None:
        if not self._quorum.is_leading:
            return None
        return self._due_us if self._quorum.leading_term == self._term else 0

    def changed(self) -> None:
        self._due_us = 0

    def tick(self, now: Now) -> None:
        quorum = self._quorum
        if not quorum.is_leading:
            self._term = 0
            return
        if quorum.leading_term != self._term:
            self._term, self._due_us = quorum.leading_term, 0
        if self._due_us is None or now.mono_us < self._due_us:
            return
        if quorum.is_changing:  # One change at a time (replication rule 30).
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
        # Silent, as its node runs on another disk, which those that stay can add.
        return planned.kind is not Kind.REMOVE or raft.is_silent(planned.key, now.mono_us)

    def _are_reached(self, planned: Planned, now: Now) -> bool:
        """Return whether the future voters were reached lately; connect to the others."""
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
            self._logged_reason = ""
            self._reached_us[where] = now.mono_us
            self._due_us = 0
        elif str(error) != self._logged_reason:
            self._logged_reason = str(error)
            self._outbox.log("warning", "voters not changed", why=self._logged_reason)

    def _propose(self, planned: Planned, now: Now) -> Place:
        raft = self._quorum.raft
        if planned.kind is Kind.REMOVE:
            return raft.remove_voter(planned.key, now.mono_us)
        if planned.kind is Kind.MOVE:
            return raft.move_voter(planned.key, planned.endpoint, now.mono_us)
        # A quorum of one has no address of its own in the log yet.
        own = str(self._config.endpoint)
        return raft.add_voter(planned.key, planned.endpoint, now.mono_us, own_endpoint=own)

    def _decided(
        self, planned: Planned, _result: object, error: BaseException | None, now: Now
    ) -> None:
        if error is not None:
            return  # The next leader evaluates the plan again.
        self._due_us = 0
        key = planned.key
        self._outbox.log(
            "info",
            planned.kind.value,
            node=key.node_id,
            directory=key.directory_id,
            why="by itself",
        )
