"""What brokers have to do for transactions, seen from outside: is it done?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiverlog.core.controller.internal_topics import TRANSACTION_TOPICS

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["is_given_up", "is_published"]


def is_published(cluster: Cluster) -> bool:
    """Is every partition of the internal topics served, and does no publish wait in one?"""
    leader = cluster.controller()
    if leader is None or leader.node is None:
        return False
    topics = leader.node.broker.metadata.image.topics
    wanted = sum(len(topics[name].partitions) for name in TRANSACTION_TOPICS if name in topics)
    served = 0
    for host in cluster.living:
        assert host.node is not None
        broker = host.node.broker
        for machine in broker.coordinators._serving.values():
            served += 1
            if any(True for _ in machine.to_publish()):
                return False
        for led in broker.staging._led.values():
            served += 1
            if any(True for _ in led.staged.unfinished()):
                return False
    return served == wanted


def is_given_up(cluster: Cluster) -> bool:
    """Lies nothing staged any more, also of programs that have died?"""
    indexes = [
        staged
        for host in cluster.living
        if host.node is not None
        for staged in host.node.broker.staging.indexes().values()
    ]
    return is_published(cluster) and not any(staged.bytes_held for staged in indexes)
