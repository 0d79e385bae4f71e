"""One course of events, step by step: a set of voters that an earlier leader has left behind meets
one that a later leader has made, and the two need not overlap.

Owns the order of the cuts (Ongaro's correction of 2015 to changes of one voter at a time): a leader
adds a voter, and only this one gets the entry; another is elected by the set before, reaches one of
its voters alone, and removes the first leader; then those two are cut off, and the first leader
asks its own set for votes.

Not here: what is right or wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final

from quiverlog.core.raft.election import Role
from quiverlog.core.raft.messages import ProposalRefused, ReplicaKey
from quiverlog.core.raft.raft import Raft

from .host import Host

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Apart"]

_Course = Generator[int, None, None]

_LOOK_US: Final = 100
"""Shorter than any message takes."""
_TIMEOUTS: Final = 8


class _Over(Exception):
    """What was waited for has not come."""


class Apart:
    """Wants four voters and one replica more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._patience_us = _TIMEOUTS * cluster.scenario.config.election_timeout_us

    def begin(self) -> None:
        """From now on until the world is calm."""
        self._go_on(self._course())

    def _go_on(self, course: _Course) -> None:
        if self._world.calm:
            return
        try:
            delay_us = next(course)
        except (StopIteration, _Over):
            self._world.heal()
            course, delay_us = self._course(), self._patience_us // _TIMEOUTS
        self._world.at(delay_us, lambda: self._go_on(course))

    def _until(self, condition: Callable[[], object]) -> _Course:
        waited_us = 0
        while not condition():
            if waited_us >= self._patience_us:
                raise _Over
            waited_us += _LOOK_US
            yield _LOOK_US

    def _course(self) -> _Course:
        cluster, world = self._cluster, self._world
        yield from self._until(self._is_settled)
        first = cluster.leader()
        voters = cluster.voters()
        assert first is not None
        assert voters is not None
        others = [host for host in cluster.hosts if host.key in voters and host is not first]
        (fifth,) = (host for host in cluster.hosts if host.key not in voters)
        self._cut((first, fifth), others)
        self._try(first, lambda raft: raft.add_voter(fifth.key, "fifth", first.now_us))
        yield from self._until(lambda: self._has_voter(fifth, fifth.key))
        term = self._raft(first).term
        yield from self._until(lambda: self._later(others, term))
        second = self._later(others, term)
        assert second is not None
        third, fourth = (host for host in others if host is not second)
        self._cut((second, third), (fourth,))
        yield from self._until(lambda: self._removes(second, first.key))
        yield from self._until(
            lambda: self._raft(second).log.commit >= self._raft(second).log.last_index
        )
        world.counts["voters apart"] += 1
        world.heal()
        self._cut((second, third), (first, fourth, fifth))
        yield from self._until(lambda: self._later([first, fourth, fifth], self._raft(second).term))

    # --- looking -------------------------------------------------------------------------------
    @staticmethod
    def _raft(host: Host) -> Raft:
        if host.raft is None:
            raise _Over
        return host.raft

    def _is_settled(self) -> bool:
        """Four voters, in the logs of all, and a leader whose whole log is everywhere."""
        leader, voters = self._cluster.leader(), self._cluster.voters()
        if leader is None or leader.raft is None or voters is None or len(voters) != 4:
            return False
        log = leader.raft.log
        return leader.key in voters and log.commit > 1 and all(
            host.raft is not None and host.raft.log.last == log.last for host in self._cluster.hosts
        )  # fmt: skip

    @staticmethod
    def _has_voter(host: Host, voter: ReplicaKey) -> bool:
        return host.raft is not None and voter in host.raft.voters

    @staticmethod
    def _later(hosts: list[Host], term: int) -> Host | None:
        """The one of them that leads in a later term."""
        for host in hosts:
            raft = host.raft
            if raft is not None and raft.role is Role.LEADER and raft.term > term:
                return host
        return None

    def _removes(self, leader: Host, voter: ReplicaKey) -> bool:
        self._try(leader, lambda raft: raft.remove_voter(voter, leader.now_us))
        return voter not in self._raft(leader).voters

    # --- doing ---------------------------------------------------------------------------------
    @staticmethod
    def _try(host: Host, action: Callable[[Raft], object]) -> None:
        def act(raft: Raft) -> None:
            with contextlib.suppress(ProposalRefused):
                action(raft)

        host.call(act)

    def _cut(self, some: tuple[Host, ...], others: tuple[Host, ...] | list[Host]) -> None:
        for one in some:
            for other in others:
                self._world.cut(one.node_id, other.node_id)
                self._world.cut(other.node_id, one.node_id)
