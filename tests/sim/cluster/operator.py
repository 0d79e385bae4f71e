"""Looks after the quorum: removes voters whose disk is gone, adds others, one at a time.

Owns a client that asks the leader of the quorum (CHANGE_VOTERS), the memory of what it was
promised, and the rule that a change that was answered holds: a voter that was added is one until
the operator removes it, and the other way round.

A request without an answer may take effect at any later moment, so what the voters may be is more
than one set (`possible`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from quiverlog.core.raft.messages import ReplicaKey
from quiverlog.errors import InvalidVoterChange, VoterChangePending, VoterNotReady
from quiverlog.wire import messages as m
from quiverlog.wire.voters_messages import (
    ChangeVotersRequest,
    ChangeVotersResponse,
    QuorumReplica,
    VoterChange,
)
from tests.sim.actors import Actor
from tests.sim.checker import Checker, Violation
from tests.sim.host import Host

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Operator", "are_voters_settled"]

_VOTERS_MAX: Final = 5
_VOTERS_AT_THE_END: Final = 3
_SILENT_US: Final = 3_000_000
_SOON_US: Final = 300_000
_MAYBE_MAX: Final = 5
"""With more changes of unknown fate the set of voters is left open."""
_REFUSED: Final = (InvalidVoterChange.code, VoterChangePending.code, VoterNotReady.code)
"""Nothing was changed."""

Change = tuple[VoterChange, ReplicaKey]


def are_voters_settled(cluster: Cluster) -> bool:
    """Do enough disks vote, and only such as are there?"""
    leader = cluster.controller()
    if leader is None or leader.node is None:
        return False
    raft = leader.node.broker.quorum.raft
    if raft.log.commit < raft.log.last_index:
        return False
    voters, members = raft.voters, cluster.members
    present = {(host.node_id, host.directory_id) for host in members}
    return (
        len(voters) >= min(_VOTERS_AT_THE_END, len(members))
        and {tuple(key) for key in voters} <= present
    )


class Operator(Actor):
    def __init__(self, cluster: Cluster, checker: Checker) -> None:
        self._cluster = cluster
        self._target = 0
        self._promised: dict[ReplicaKey, bool] = {}
        """What the last answered change of a replica has made of it."""
        self._asking: Change | None = None
        self._was_unsure = False
        """Whether the same change may be under way from before."""
        self._maybe: set[Change] = set()
        """Changes without an answer."""
        self.added: set[int] = set()
        """Nodes that were to get a vote, answered or not."""
        self.changes = 0
        super().__init__(cluster.world, checker, "operator")
        self._watch()

    @property
    def host(self) -> Host:
        return self._cluster.hosts[self._target]

    # --- what others ask -----------------------------------------------------------------------
    def possible(self, voters: Collection[ReplicaKey]) -> list[frozenset[ReplicaKey]]:
        """The voters as they may be when what is under way takes effect, or not."""
        found = {frozenset(voters)}
        for change, key in sorted(self._maybe, key=str)[:_MAYBE_MAX]:
            moved = {one | {key} if change is VoterChange.ADD else one - {key} for one in found}
            found |= {one for one in moved if one}
        return sorted(found, key=sorted)

    @property
    def is_sure(self) -> bool:
        """Are few enough changes of unknown fate?"""
        return len(self._maybe) <= _MAYBE_MAX

    def check(self) -> None:
        """All that was promised holds. To be called when the cluster is settled."""
        leader = self._cluster.controller()
        assert leader is not None
        assert leader.node is not None
        voters = leader.node.broker.quorum.raft.voters
        unsure = {key for _, key in self._maybe}
        for key, is_voter in self._promised.items():
            if key not in unsure and (key in voters) != is_voter:
                raise Violation(f"{key} was made {'' if is_voter else 'no '}voter; {list(voters)}")

    # --- the client ----------------------------------------------------------------------------
    def lost(self) -> None:
        if self._asking is not None:
            self._asking = None
            self.world.events["voter change of unknown fate"] += 1
        self._target = self.rng.randrange(len(self._cluster.hosts))

    def connect(self) -> None:
        super().connect()
        if self.connection is None:
            self._target = self.rng.randrange(len(self._cluster.hosts))

    def _watch(self) -> None:
        waiting = self.unanswered
        if (
            waiting
            and waiting[0].sent_us
            < self.world.mono_us - _SILENT_US * self._cluster.scenario.tempo.scale
        ):
            self.hang_up()
        self.world.at(self.rng.randrange(200_000, 1_000_000), self._watch)

    def act(self) -> None:
        self.ask(ChangeVotersRequest())

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if not isinstance(response, ChangeVotersResponse):
            self.later(1_000)
            return
        assert isinstance(request, ChangeVotersRequest)
        if request.change != VoterChange.NOTHING:
            self._record_answer(request, response)
        elif response.leader_id == self._target:
            if not self._change(response):
                self.later(self._pause_us())
            return
        elif response.leader_id >= 0:
            self.hang_up()
            self._target = response.leader_id
            return
        else:
            self.hang_up_later(self.rng.randrange(1_000, 300_000))
            return
        self.later(self._pause_us())

    def _pause_us(self) -> int:
        interval_ms = self._cluster.scenario.plan.voters_interval_ms
        mean_us = interval_ms * 1_000 * self._cluster.scenario.tempo.scale
        if self.world.calm or not interval_ms:
            mean_us = _SOON_US
        return 1 + int(self.rng.expovariate(1 / mean_us))

    def _record_answer(self, request: ChangeVotersRequest, response: ChangeVotersResponse) -> None:
        """A change was answered."""
        assert self._asking is not None
        change, key = self._asking
        self._asking = None
        if response.error_code:
            if response.error_code in _REFUSED and not self._was_unsure:
                self._maybe.discard((change, key))
            self.world.events["voter change refused"] += 1
            return
        self._maybe.discard((change, key))
        self._promised[key] = change is VoterChange.ADD
        self.changes += 1
        self.world.faults["voter added" if change is VoterChange.ADD else "voter removed"] += 1
        voters = {ReplicaKey(one.node_id, one.directory_id) for one in response.replicas
                  if one.is_voter}  # fmt: skip
        if (key in voters) != self._promised[key]:
            raise Violation(f"{change.name} of {key} was answered, and the voters are {voters}")

    def _change(self, response: ChangeVotersResponse) -> bool:
        """Ask for one, if there is one to ask for."""
        wanted = self._wanted(response.replicas)
        if wanted is None:
            return False
        self._asking, self._was_unsure = wanted, wanted in self._maybe
        self._maybe.add(wanted)
        change, key = wanted
        if change is VoterChange.ADD:
            self.added.add(key.node_id)
        self.ask(
            ChangeVotersRequest(change=change, node_id=key.node_id, directory_id=key.directory_id)
        )
        return True

    def _wanted(self, replicas: list[QuorumReplica]) -> Change | None:
        """What to change: first what must be, then what the run is to have."""
        disks = {host.node_id: host.directory_id for host in self._cluster.members}
        voters = [ReplicaKey(r.node_id, r.directory_id) for r in replicas if r.is_voter]
        gone = [key for key in voters if disks.get(key.node_id) != key.directory_id]
        if gone:
            known = [key for key in gone if disks.get(key.node_id)]
            return (VoterChange.REMOVE, self.rng.choice(known)) if known else None
        others = [
            ReplicaKey(r.node_id, r.directory_id) for r in replicas
            if not r.is_voter and disks.get(r.node_id) == r.directory_id
        ]  # fmt: skip
        plan, count = self._cluster.scenario.plan, len(voters)
        few = count < min(_VOTERS_AT_THE_END, len(disks))
        if self.world.calm or not plan.voters_interval_ms:
            return (VoterChange.ADD, self.rng.choice(others)) if few and others else None
        may_add = bool(others) and count < _VOTERS_MAX
        if may_add and (count == 1 or self.rng.random() < 0.5):
            return VoterChange.ADD, self.rng.choice(others)
        if count > 1:
            return VoterChange.REMOVE, self.rng.choice(voters)
        return None
