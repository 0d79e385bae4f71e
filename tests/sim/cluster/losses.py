"""Reports the faults that had the right to take rows to the checkers that would else complain.

Owns: unclean elections (from the log of the controller that applies one) and machines that lose
their power, and what follows for the promises and for the comparison of copies.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.sim.checker import Key
from tests.sim.host import Host

from .host import ClusterHost
from .promises import ClusterChecker, ClusterTopicModel

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Losses"]

_UNCLEAN = re.compile(
    r"error unclean election \{'partition': '.+-(\d+)', 'topic_id': '([0-9a-f]+)', 'leader': \d+,"
    r" 'leader_epoch': (\d+)"
)


class Losses:
    def __init__(self, cluster: Cluster, checker: ClusterChecker, *, keeps_flushed: bool) -> None:
        self._cluster = cluster
        self._checker = checker
        self._keeps_flushed = keeps_flushed
        self._lines_read: dict[int, int] = {}
        self._elections: set[tuple[Key, int]] = set()
        checker.committed_end = cluster.invariants.committed_end
        checker.all_are_down = lambda: all(host.node is None for host in cluster.hosts)
        cluster.on_all_power.append(self._all_power)
        cluster.world.on_died.append(self._died)
        for host in cluster.hosts:
            host.looked = self._look

    def _look(self, host: ClusterHost) -> None:
        begin = self._lines_read.get(host.node_id, 0)
        if len(host.log_lines) > begin:
            for line in host.log_lines[begin:]:
                found = _UNCLEAN.match(line)
                if found:
                    self._unclean((bytes.fromhex(found[2]), int(found[1])), int(found[3]))
            self._lines_read[host.node_id] = len(host.log_lines)
        self._cluster.invariants.look(host)
        self._cluster.aimed.looked(host)

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
