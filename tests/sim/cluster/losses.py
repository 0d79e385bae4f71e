"""Reports the faults that had the right to take rows to the checkers that would else complain.

Owns: unclean elections (from the records that brokers apply: the first that applies one may be one
that starts, which does not log it) and machines that lose their power, and what follows for the
promises and for the comparison of copies.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from quiverlog.core.controller.records import PartitionChangeRecord, Record
from quiverlog.node.node import Node
from quiverlog.types import Now
from tests.sim.checker import Key
from tests.sim.host import Host

from .host import ClusterHost
from .promises import ClusterChecker, ClusterTopicModel

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Losses"]


class Losses:
    def __init__(self, cluster: Cluster, checker: ClusterChecker, *, keeps_flushed: bool) -> None:
        self._cluster = cluster
        self._checker = checker
        self._keeps_flushed = keeps_flushed
        self._elections: set[tuple[Key, int]] = set()
        self._applied: list[PartitionChangeRecord] = []
        """Not looked at yet: a violation that is raised inside of the broker would be its error."""
        checker.committed_end = cluster.invariants.committed_end
        checker.all_are_down = lambda: all(host.node is None for host in cluster.hosts)
        cluster.on_all_power.append(self._all_power)
        cluster.world.on_died.append(self._died)
        for host in cluster.hosts:
            host.looked = self._look
            host.made = self._watch

    def _look(self, host: ClusterHost) -> None:
        for record in self._applied:
            self._unclean((record.topic_id, record.partition), record.leader_epoch)
        self._applied.clear()
        self._cluster.invariants.look(host)
        self._cluster.aimed.looked(host)
        self._cluster.rights.look(host)
        self._cluster.logins.look(host)

    def _watch(self, node: Node) -> None:
        """Look at each record that this broker applies, in its start too."""
        metadata = node.broker.metadata
        on_applied, on_replayed = metadata._on_applied, metadata._on_replayed

        def applied(records: Sequence[Record], made: Set[str] | None, now: Now) -> None:
            self._note(records)
            on_applied(records, made, now)

        def replayed(records: Sequence[Record], version: int) -> None:
            self._note(records)
            on_replayed(records, version)

        metadata._on_applied, metadata._on_replayed = applied, replayed

    def _note(self, records: Sequence[Record]) -> None:
        self._applied += [
            record
            for record in records
            if isinstance(record, PartitionChangeRecord) and record.unclean
        ]

    def _unclean(self, key: Key, epoch: int) -> None:
        """By its id: the topic may be gone already, or its name another's."""
        if (key, epoch) in self._elections:
            return
        self._elections.add((key, epoch))
        world = self._cluster.world
        world.faults["unclean election"] += 1
        if key in self._checker.partitions:
            self._checker.unclean_election(key, world.mono_us)
        self._cluster.invariants.forgive(key, 0, from_epoch=epoch)

    def _all_power(self) -> None:
        """What may be gone, and what must not be: reported before it happens."""
        checker = self._checker
        checker.ledger.all_power_us.append(self._cluster.world.mono_us)
        checker.all_lost_power(
            is_flushed_kept=self._keeps_flushed, at_us=self._cluster.world.mono_us
        )
        for key, model in checker.partitions.items():
            kept = max(model.acknowledged, default=-1) + 1
            self._cluster.invariants.forgive(key, kept)
        # Of what is staged, and of decisions, the programs' promises are checked.
        for key in self._cluster.invariants.partitions.keys() - checker.partitions.keys():
            self._cluster.invariants.forgive(key, 0)

    def _died(self, host: Host, clean: bool) -> None:
        if not host.disk.lost_power:
            return
        for key, model in self._checker.partitions.items():
            topic = model.topic
            assert isinstance(topic, ClusterTopicModel)
            if topic.is_frail and not topic.doomed:
                self._checker.lost(key, self._cluster.world.mono_us)
                self._cluster.invariants.forgive(key, 0, from_epoch=0)
