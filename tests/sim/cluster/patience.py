"""How long a cluster may take to be well again, once nothing goes wrong any more.

Owns the bound. The timers of a cluster are as slow as its tempo; and a copy that has to begin anew,
after damage or on another disk, is as long in coming as its leader's log has files: of each some
jobs read, one after the other, before the next one is asked for. A run in quiet hours has many. A
copy that moves takes the time of its bytes at the rate that an operator has set.

Not here: what has to be well again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.sim.checker import Key

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["FILE_US", "HEAL_US", "patience_us"]

HEAL_US: Final = 60_000_000
"""At the shipped timing, where there is nothing to copy."""
FILE_US: Final = 500_000
"""A file of a log is read and copied in less, where every job is as slow as they get."""


def patience_us(cluster: Cluster, base_us: int = HEAL_US) -> int:
    """How long it may take from now on.

    Args:
        base_us: what it takes at the shipped timing, where there is nothing to copy; a scenario may
            want it sooner.
    """
    files: dict[Key, int] = {}
    sizes: dict[Key, int] = {}
    rates = []
    for host in cluster.living:
        assert host.node is not None
        rates.append(host.node.broker.replication._quota._bytes_per_s)
        for replica in host.node.broker.assignment.all_open():
            key = (replica.topic.topic_id, replica.name.partition)
            files[key] = max(files.get(key, 0), len(replica.log.reader.segments))
            sizes[key] = max(sizes.get(key, 0), replica.log._segments.byte_count)
    scenario = cluster.scenario
    base_us = min(base_us, scenario.heal_ms * 1_000)
    slowest = min(filter(None, rates), default=0)
    move_us = sum(sizes.values()) * 1_000_000 // slowest if slowest else 0
    return base_us * scenario.tempo.scale + FILE_US * sum(files.values()) + move_us
