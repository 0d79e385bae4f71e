"""Leaderships that move between brokers that all live, because somebody asks or a round does.

Owns whether a partition gets another leader then. Nothing is lost by it: who is to lead is in sync,
and who led stays so.

Must not know: how often that is asked, when.
"""

from __future__ import annotations

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import alive_brokers, leader_change
from quiverlog.core.controller.records import NO_LEADER, Record

__all__ = ["preferred_leader"]


def preferred_leader(image: Image, topic_id: bytes, number: int) -> list[Record]:
    """The first of the replicas leads; no change where it does, or cannot: it is in sync and stays.

    Never without a leader: whoever is elected then is the best that there is.
    """
    topic = image.topics_by_id[topic_id]
    partition = topic.partitions[number]
    assert partition.partition == number
    preferred = partition.replicas[0]
    assert partition.leader_id in (NO_LEADER, *partition.in_sync_replicas)
    if partition.leader_id in (preferred, NO_LEADER):
        return []
    if preferred not in partition.in_sync_replicas or preferred not in alive_brokers(image):
        return []
    eligible = partition.eligible_leader_replicas
    return leader_change(topic, partition, preferred, partition.in_sync_replicas, eligible)
