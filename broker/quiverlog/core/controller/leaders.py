"""The next leader of a partition, and the record of the change.

A leader that is in sync stays. Otherwise the first replica in order leads that is in sync, else the
first eligible one (eligible.py), then alone in sync; no fenced or stopping broker is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    LEADER_GONE,
    LEADER_STAYS,
    NO_LEADER,
    PartitionChangeRecord,
    Record,
)
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.types import NO_EPOCH

__all__ = [
    "alive_brokers",
    "away_from",
    "first_of",
    "leader_change",
    "preferred_leader",
    "successor",
]


def alive_brokers(image: Image) -> frozenset[int]:
    return frozenset(one.node_id for one in image.live_brokers() if not one.in_shutdown)


def first_of(replicas: Sequence[int], *conditions: Collection[int]) -> int:
    for node_id in replicas:
        if all(node_id in one for one in conditions):
            return node_id
    return NO_LEADER


def successor(
    partition: PartitionImage,
    alive: Collection[int],
    in_sync: tuple[int, ...],
    eligible: Collection[int],
) -> tuple[int, tuple[int, ...]]:
    """Return the leader and the in-sync replicas; NO_LEADER and none where none can lead."""
    leader_id = partition.leader_id
    assert set(in_sync) <= set(partition.replicas)
    if leader_id not in in_sync:
        leader_id = first_of(partition.replicas, alive, in_sync)
    if leader_id == NO_LEADER:
        leader_id = first_of(partition.replicas, alive, eligible)
        in_sync = () if leader_id == NO_LEADER else (leader_id,)
    assert leader_id == NO_LEADER or leader_id in in_sync, "a leader is in sync"
    return leader_id, in_sync


def leader_change(
    topic: TopicImage,
    partition: PartitionImage,
    leader_id: int,
    in_sync: tuple[int, ...],
    eligible: tuple[int, ...],
    unclean: bool = False,
    replaced: tuple[int, ...] | None = None,
    *,
    begins_anew: bool = False,
) -> list[Record]:
    """Return the record of the differences. A new leader gets a new epoch."""
    before = (partition.in_sync_replicas, partition.eligible_leader_replicas)
    if replaced == partition.replaced_disks:
        replaced = None
    assert len(set(in_sync)) == len(in_sync), "each once"
    assert set(in_sync) <= set(partition.replicas)
    is_elected = leader_id != partition.leader_id
    assert leader_id == NO_LEADER or leader_id in in_sync, "a leader is in sync"
    assert not set(in_sync) & set(eligible)
    assert is_elected or not unclean
    if not is_elected and before == (in_sync, eligible) and replaced is None:
        return []
    # No replica is trusted from now on: the log of the last one must be among those that elect the
    # next leader (docs/adr/0037).
    last_trusted = NO_LEADER
    if leader_id == NO_LEADER and not in_sync and not eligible:
        (last_trusted,) = before[0] or before[1] or (NO_LEADER,)
    recorded_leader = LEADER_STAYS
    if is_elected:
        recorded_leader = LEADER_GONE if leader_id == NO_LEADER else leader_id
    assert is_elected == (recorded_leader != LEADER_STAYS)
    return [
        PartitionChangeRecord(
            topic.topic_id,
            partition.partition,
            leader_id=recorded_leader,
            leader_epoch=partition.leader_epoch + 1 if is_elected else NO_EPOCH,
            in_sync_replicas=in_sync,
            eligible_leader_replicas=eligible,
            unclean=unclean,
            replaced_disks=replaced,
            last_trusted=last_trusted,
            begins_anew=begins_anew and is_elected,
        )
    ]


# --- moves between live brokers, on request or in rounds ------------------------------------------
def away_from(
    image: Image, topic_id: bytes, number: int, without_room: Collection[int]
) -> list[Record]:
    """Move leadership from brokers without room for rows to the first in-sync, live replica with
    room, if there is one."""
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
    """Make the first replica the leader, if it is in sync, not stopping, and has room for rows."""
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
