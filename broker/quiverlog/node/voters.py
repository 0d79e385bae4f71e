"""CHANGE_VOTERS: one voter more or less in the metadata quorum, or who they are.

Owns what is asked before a change is proposed (which disk of a node is meant, may it vote, where is
it), and the error of the table for each of the Raft's refusals. A change is answered when it is
committed; one is under way at a time, which the Raft sees to.

Must not know: how a change becomes durable, what else is decided.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from functools import partial

from quiverlog.core.controller.records import BrokerChangeRecord
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import ProposalRefused, Refusal, ReplicaKey
from quiverlog.errors import (
    InvalidRequest,
    InvalidVoterChange,
    NotController,
    QuiverlogError,
    VoterChangePending,
    VoterNotReady,
)
from quiverlog.limits import QUORUM_REPLICAS_SHOWN_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.jobs import Then
from quiverlog.node.tasks import Call, Steps, Wait
from quiverlog.types import Now
from quiverlog.wire.voters_messages import (
    ChangeVotersRequest,
    ChangeVotersResponse,
    QuorumReplica,
    VoterChange,
)

__all__ = ["describe_quorum", "handle_change_voters"]

_KINDS: dict[Refusal, type[QuiverlogError]] = {
    Refusal.NOT_LEADER: NotController,
    Refusal.TRANSFERRING: NotController,
    Refusal.NOTHING_COMMITTED_YET: VoterChangePending,
    Refusal.CHANGE_PENDING: VoterChangePending,
    Refusal.TOO_MUCH_UNCOMMITTED: VoterChangePending,
    Refusal.NOT_CAUGHT_UP: VoterNotReady,
    Refusal.TOO_LARGE: InvalidVoterChange,
    Refusal.ALREADY_VOTER: InvalidVoterChange,
    Refusal.NOT_VOTER: InvalidVoterChange,
    Refusal.TOO_MANY_VOTERS: InvalidVoterChange,
    Refusal.LAST_VOTER: InvalidVoterChange,
    Refusal.TOO_FEW_HEARD: InvalidVoterChange,
}
assert _KINDS.keys() == set(Refusal), "every refusal has its error"


def handle_change_voters(broker: Broker, call: Call) -> Steps:
    """Answer the quorum as it is when the change, if there is one, is committed."""
    request = call.request
    assert isinstance(request, ChangeVotersRequest)
    if request.change not in set(VoterChange):
        raise InvalidRequest(f"there is no change {request.change} of the voters.")
    change, asked = VoterChange(request.change), ReplicaKey(request.node_id, request.directory_id)
    if change is not VoterChange.NOTHING:
        if not broker.quorum.check_leading(call.now):
            raise NotController
        key = _replica_of(broker, asked, change)
        if change is VoterChange.ADD:
            endpoint = _endpoint_of(broker, key)
            yield partial(broker.membership.reach.check, key, endpoint, call.now)
            if _endpoint_of(broker, key) != endpoint:
                raise VoterNotReady(f"node {key.node_id} has moved from {endpoint}.")
        if change is VoterChange.REMOVE:
            # Before anything is decided about who stays.
            with _refusals():
                broker.quorum.raft.check_removal(key, call.now.mono_us)
            yield from _keep_out(broker, key, call)
        yield partial(_propose, broker, change, key, call.now)
        done = "voter added" if change is VoterChange.ADD else "voter removed"
        broker.outbox.log("info", done, node=key.node_id, directory=key.directory_id)
        broker.membership.changed()  # Somebody may be waiting for a free place.
    return ChangeVotersResponse(
        leader_id=broker.membership.controller.controller_id,
        term=broker.quorum.raft.term,
        committed_index=broker.quorum.raft.log.commit,
        replicas=describe_quorum(broker, call.now),
    )


def _keep_out(broker: Broker, key: ReplicaKey, call: Call) -> Generator[Wait, object, None]:
    """Who is removed by command must not be back a moment later, before its next start."""
    known = broker.metadata.image.brokers.get(key.node_id)
    if known is None or not known.wants_vote or known.directory_id != key.directory_id:
        return
    if known.decommissioning:
        return  # It gets none while it leaves, and its vote back when that is called off.
    change = BrokerChangeRecord(key.node_id, known.broker_epoch, wants_vote=False)
    yield broker.metadata.proposal([change], call.now)


def _replica_of(broker: Broker, asked: ReplicaKey, change: VoterChange) -> ReplicaKey:
    """The replica that is meant: with an empty directory id, the only one of its node."""
    voters = broker.quorum.raft.voters
    if change is VoterChange.REMOVE:
        known = {key for key in voters if key.node_id == asked.node_id}
    else:
        said = broker.whereabouts.said_by(asked.node_id)
        known = set() if said is None else {said.key}
        if any(key.node_id == asked.node_id for key in voters):
            raise InvalidVoterChange(
                f"node {asked.node_id}, or another disk of it, is a voter already."
            )
    found = [key for key in known if asked.directory_id in ("", key.directory_id)]
    if not found:
        which = f"node {asked.node_id}"
        if asked.directory_id:
            which += f" with the directory {asked.directory_id}"
        if change is VoterChange.REMOVE:
            raise InvalidVoterChange(f"{which} is no voter.")
        raise VoterNotReady(f"{which} does not follow the metadata log of this controller.")
    assert len(found) == 1, "two disks of one node are never known at once"
    return found[0]


def _propose(broker: Broker, change: VoterChange, key: ReplicaKey, now: Now, then: Then) -> None:
    """Propose it; `then` is called when it holds, or is lost."""
    with _refusals():
        place = _place(broker, change, key, now)
    broker.quorum.when_decided(place, then, now)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """What the Raft refuses, as the error of the table."""
    try:
        yield
    except ProposalRefused as refused:
        raise _KINDS[refused.refusal](f"{refused.refusal.value}.") from refused


def _place(broker: Broker, change: VoterChange, key: ReplicaKey, now: Now) -> Place:
    raft = broker.quorum.raft
    if change is VoterChange.REMOVE:
        return raft.remove_voter(key, now.mono_us)
    # A quorum of one has written down no address of its own.
    own = str(broker.config.endpoint)
    return raft.add_voter(key, _endpoint_of(broker, key), now.mono_us, own_endpoint=own)


def _endpoint_of(broker: Broker, key: ReplicaKey) -> str:
    """Where a replica that is to vote says it is. It may have stopped to say so meanwhile."""
    said = broker.whereabouts.said_by(key.node_id)
    if said is None or said.key != key:
        raise VoterNotReady(f"node {key.node_id} does not follow the metadata log any more.")
    if not said.is_controller:
        raise InvalidVoterChange(f"node {key.node_id} does not have the role `controller`.")
    return str(said.address)


def describe_quorum(broker: Broker, now: Now) -> list[QuorumReplica]:
    """The quorum, as far as this node knows: a leader knows where each replica stands."""
    raft = broker.quorum.raft
    assert broker.quorum.log is not None
    own = broker.quorum.log.key
    last_index = raft.log.last_index if broker.quorum.is_leading else None
    indexes = {own: raft.log.durable_index, **raft.match_indexes}
    heard_us = {own: now.mono_us, **raft.heard_us}
    voters = raft.voters
    addresses = broker.whereabouts.known()
    replicas = []
    for key in sorted({*voters, *indexes}):
        one = QuorumReplica(
            key.node_id,
            key.directory_id,
            voters.get(key) or str(addresses.get(key.node_id, "")),
            key in voters,
            indexes.get(key, -1),
        )
        if last_index is not None and key in indexes:
            one.lag = last_index - indexes[key]
            one.silent_ms = (now.mono_us - heard_us[key]) // 1_000
            assert one.lag >= 0, "nobody has more than the leader"
            assert one.silent_ms >= 0
        replicas.append(one)
    return replicas[:QUORUM_REPLICAS_SHOWN_MAX]
