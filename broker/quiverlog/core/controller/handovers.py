"""Leaderships that move between brokers that all live, because somebody asks or a round does.

Owns whether a partition gets another leader then. Nothing is lost by it: who is to lead is in sync,
and who led stays so.

Must not know: how often that is asked, when.
"""

from __future__ import annotations

from collections.abc import Collection

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import alive_brokers, first_of, leader_change
from quiverlog.core.controller.records import NO_LEADER, Record

__all__ = ["away_from", "preferred_leader"]


def away_from(
    image: Image, topic_id: bytes, number: int, without_room: Collection[int]
) -> list[Record]:
    """Another one leads than those without room for rows; no change where nobody can.

    The first of the replicas that is in sync, lives, stays and has room.
    """
    topic = image.topics_by_id[topic_id]
    partition = topic.partitions[number]
    if partition.leader_id not in without_room:
        return []
    in_sync = partition.in_sync_replicas
    with_room = alive_brokers(image) - frozenset(without_room)
    heir = first_of(partition.replicas, in_sync, with_room)
    assert heir != partition.leader_id
    if heir == NO_LEADER:
        return []
    return leader_change(topic, partition, heir, in_sync, partition.eligible_leader_replicas)


def preferred_leader(
    image: Image, topic_id: bytes, number: int, without_room: Collection[int] = ()
) -> list[Record]:
    """The first of the replicas leads; no change where it does, or cannot: it is in sync and stays.

    Never without a leader: whoever is elected then is the best that there is. Nor one of those
    without room for rows.
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
    if preferred in without_room:
        return []
    eligible = partition.eligible_leader_replicas
    return leader_change(topic, partition, preferred, partition.in_sync_replicas, eligible)
