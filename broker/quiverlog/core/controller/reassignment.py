"""Moving a partition to other replicas: how a move begins, is given up, and ends (KIP-455).

Owns these decisions. Every function reads the image and returns the change.

    settled ──reassign──▶ moving ──all that are added are in sync, and enough that stay──▶ settled
       ▲                    │ ▲
       └────── cancel ──────┘ └── reassign: another target; those in it that hold it are kept

While a partition moves, all of its replicas copy: those it moves to, in their order, then those
that it leaves. It ends with one record: the replicas are the target, only they are in sync, and
where the leader goes, the first of them that is in sync leads. Whoever is in sync has all that was
readable, so no row is lost as long as enough of them stay.

Must not know: requests, how rows are copied, how fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.core.controller.eligible import min_in_sync
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    LEADER_STAYS,
    NO_LEADER,
    PartitionChangeRecord,
    Record,
)
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.errors import InvalidReplicaAssignment, PolicyViolation
from quiverlog.limits import PARTITIONS_PER_BROKER_MAX
from quiverlog.types import NO_EPOCH

__all__ = ["arrived", "cancel", "reassign"]


def reassign(
    image: Image, topic: TopicImage, partition: PartitionImage, target: Sequence[int]
) -> list[Record]:
    """The partition is to be held by these brokers, of which the first is the preferred leader.

    Returns the change; none, where it is held by them already or on its way.

    Raises:
        InvalidReplicaAssignment: not as many as the topic asks for, one twice, or one that is not
            alive and gets the partition by this.
        PolicyViolation: a broker is full, nobody leads the partition, or another move is left and
            only those that it was to go to have the rows.
    """
    assert image.topics_by_id.get(topic.topic_id) is topic, "decided on what will hold"
    before = _before(partition)
    _check(image, topic, partition, before, target)
    adding = tuple(node_id for node_id in target if node_id not in before)
    removing = tuple(node_id for node_id in before if node_id not in target)
    replicas = (*target, *removing)
    now = (partition.replicas, partition.adding_replicas, partition.removing_replicas)
    assert len(set(replicas)) == len(replicas)
    if now == (replicas, adding, removing):
        return []
    in_sync = _kept_in_sync(topic, partition, replicas)
    ended = _ended(topic, partition, tuple(target), adding, in_sync) if adding else None
    return [ended or _change(topic, partition, replicas, adding, removing, in_sync)]


def cancel(topic: TopicImage, partition: PartitionImage) -> list[Record]:
    """The partition stays with those that held it before; none, where it does not move.

    Raises:
        PolicyViolation: only those that it was to move to have its rows.
    """
    assert partition in topic.partitions
    if not partition.moves:
        return []
    before = _before(partition)
    assert before, "somebody held it"
    in_sync = _kept_in_sync(topic, partition, before)
    return [_change(topic, partition, before, (), (), in_sync)]


def arrived(topic: TopicImage, partition: PartitionImage, in_sync: Sequence[int]) -> list[Record]:
    """The end of the move, if these, who are all fit to lead, are enough for it; else nothing.

    Those that are added have been in sync before: when their leader proposes once more it has seen
    that those that stay have on their disks what producers were promised to find there.
    """
    assert set(in_sync) <= set(partition.replicas)
    if not partition.moves or not set(partition.adding_replicas) <= set(partition.in_sync_replicas):
        return []
    target = tuple(n for n in partition.replicas if n not in partition.removing_replicas)
    assert target, "it moves somewhere"
    ended = _ended(topic, partition, target, partition.adding_replicas, in_sync)
    return [] if ended is None else [ended]


# --- parts -------------------------------------------------------------------------------------
def _before(partition: PartitionImage) -> tuple[int, ...]:
    """Who held the partition before it began to move."""
    return tuple(n for n in partition.replicas if n not in partition.adding_replicas)


def _check(
    image: Image,
    topic: TopicImage,
    partition: PartitionImage,
    before: Sequence[int],
    target: Sequence[int],
) -> None:
    name = f"{topic.name}-{partition.partition}"
    if partition.leader_id == NO_LEADER:
        raise PolicyViolation(f"{name} has no leader, so nobody could copy it.")
    if len(target) != len(before):
        raise InvalidReplicaAssignment(
            f"{name} has {len(before)} replicas, {len(target)} brokers were named."
        )
    if len(set(target)) != len(target):
        raise InvalidReplicaAssignment(f"{name}: a broker is named twice in {list(target)}.")
    alive = {one.node_id for one in image.live_brokers() if not one.in_shutdown}
    for node_id in target:
        if node_id in partition.replicas:
            continue
        if node_id not in alive:
            raise InvalidReplicaAssignment(f"{name}: broker {node_id} is not alive.")
        if not image.brokers[node_id].takes_partitions:
            raise InvalidReplicaAssignment(f"{name}: node {node_id} is a controller alone.")
        if image.replica_counts[node_id] >= PARTITIONS_PER_BROKER_MAX:
            raise PolicyViolation(
                f"broker {node_id} holds {PARTITIONS_PER_BROKER_MAX} partitions, which is the most"
                " allowed."
            )


def _kept_in_sync(
    topic: TopicImage, partition: PartitionImage, replicas: Sequence[int]
) -> tuple[int, ...]:
    """Who of these stays in sync, when the others are given up. Raises PolicyViolation."""
    relied = {*partition.in_sync_replicas, *partition.eligible_leader_replicas}
    in_sync = tuple(n for n in partition.in_sync_replicas if n in replicas)
    led = partition.leader_id != NO_LEADER
    if (led and not in_sync) or not relied & set(replicas):
        raise PolicyViolation(
            f"{topic.name}-{partition.partition}: of the brokers {list(replicas)} none has all"
            " rows; wait for one to be in sync."
        )
    assert led or not in_sync, "nobody is in sync without a leader"
    return in_sync


def _ended(
    topic: TopicImage,
    partition: PartitionImage,
    target: tuple[int, ...],
    adding: Sequence[int],
    in_sync: Sequence[int],
) -> PartitionChangeRecord | None:
    kept = tuple(n for n in in_sync if n in target)
    assert len(set(target)) == len(target)
    if not set(adding) <= set(kept) or len(kept) < min_in_sync(topic.config, partition):
        return None
    return _change(topic, partition, target, (), (), kept)


def _change(
    topic: TopicImage,
    partition: PartitionImage,
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    in_sync: tuple[int, ...],
) -> PartitionChangeRecord:
    """A leader that goes leaves the lead to the first that is in sync, in a new epoch."""
    leader_id, leader_epoch = LEADER_STAYS, NO_EPOCH
    assert set(in_sync) <= set(replicas)
    if partition.leader_id not in (NO_LEADER, *replicas):
        leader_id = next(node_id for node_id in replicas if node_id in in_sync)
        leader_epoch = partition.leader_epoch + 1
    assert partition.leader_id in (NO_LEADER, *in_sync) or leader_id in in_sync
    return PartitionChangeRecord(
        topic.topic_id,
        partition.partition,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        in_sync_replicas=in_sync,
        replicas=replicas,
        adding_replicas=adding,
        removing_replicas=removing,
    )
