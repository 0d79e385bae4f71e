"""Which change of the voters should be next, of what the metadata say. Pure functions.

Owns the rules (docs/adr/0039-brokers-join-the-voters.md). One change at a time, in this order:

1. A voter whose node is registered, and alive, with another disk is removed: that disk is gone.
2. Brokers that want a vote get one: two of them where the number of voters is odd, so that it is
   odd again with the second; one where it is even. Never more than `QUORUM_AUTO_VOTERS_MAX`.
3. A voter that has registered at another address is moved there.

Must not know: who is caught up, how a change is proposed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from quiverlog.addresses import Address
from quiverlog.core.controller.records import BrokerRecord
from quiverlog.core.raft.messages import ReplicaKey, Voters
from quiverlog.limits import QUORUM_AUTO_VOTERS_MAX

__all__ = ["Kind", "Planned", "endpoint_of", "plan"]


class Kind(enum.Enum):
    """What is to be done with a replica."""

    ADD = "voter added"
    REMOVE = "voter removed"
    MOVE = "voter moved"


class Planned(NamedTuple):
    """One change. `follow`: replicas that have to be caught up before it is begun."""

    kind: Kind
    key: ReplicaKey
    endpoint: str = ""
    follow: tuple[ReplicaKey, ...] = ()


def plan(
    own: ReplicaKey, voters: Voters, brokers: Mapping[int, BrokerRecord], listener: str
) -> Planned | None:
    """The next change; None: the voters are as they should be.

    Args:
        own: the replica that leads.
        listener: the name of the listener between brokers.
    """
    assert voters, "somebody leads a quorum"
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
        if broker.directory_id not in ("", voter.directory_id):
            assert own.node_id != voter.node_id, "who leads is registered as itself"
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
    wanted = 2 if len(voters) % 2 else 1
    if len(found) < wanted or len(voters) + wanted > QUORUM_AUTO_VOTERS_MAX:
        return None
    assert (len(voters) + wanted) % 2, "an odd number survives as much as the next even one"
    follow = tuple(_key(one) for one in found[:wanted])
    return Planned(Kind.ADD, follow[0], endpoint_of(found[0], listener), follow)


def _moved(voters: Voters, live: Mapping[int, BrokerRecord], listener: str) -> Planned | None:
    if len(voters) == 1:
        return None  # It has nobody to tell.
    for voter, endpoint in sorted(voters.items()):
        broker = live.get(voter.node_id)
        if broker is not None and broker.directory_id == voter.directory_id:
            now_at = endpoint_of(broker, listener)
            if now_at and now_at != endpoint:
                return Planned(Kind.MOVE, voter, now_at)
    return None


def endpoint_of(broker: BrokerRecord, listener: str) -> str:
    """Where other brokers reach it; empty: it has not said."""
    endpoints = {name: str(Address(host, port)) for name, host, port in broker.listeners}
    return endpoints.get(listener, "")
