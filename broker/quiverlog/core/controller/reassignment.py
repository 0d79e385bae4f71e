"""Moving a partition to other replicas: how a move begins, is given up, and ends (KIP-455).

Owns these decisions. Every function reads the image and returns the change.

    settled ──reassign──▶ moving ──all that are added are in sync, and enough that stay──▶ settled
                           │  ▲
                           └──┘ reassign: another target; cancel: back to those that held it before

While a partition moves, all of its replicas copy: those it moves to, in their order, then those
that it leaves. A leader that leaves hands over first, to the first of the target that is in sync,
and stays in sync itself. The move ends with one record: the replicas are the target, and only they
are in sync. Whoever is in sync has all that was readable, so no row is lost as long as enough of
them stay; and who led has heard by then that another does (leadership.py), so it shows no old end.

A replica that is added begins a leader epoch: it counts when it has asked under this epoch, which
it knows when it knows that it was added. What it says before is of rows that it may be about to
remove, because it held the partition earlier.

A replica that was added, and is given up by another target or `cancel`, may have been one of the
disks that rows were promised to lie on. So it is not dropped: it leaves as any other does, when
enough of those that stay have these rows. It is then among `adding_replicas`, for it did not hold
the partition before, and among `removing_replicas`.

A target may have another number of replicas, where that is asked for (replication_factor.py). What
is in sync at the end has to be enough for a partition of so many.

A move may have a bound of its own for what a broker copies. It is a part of the move, so nothing is
left of it when the move has ended.

Must not know: requests, how rows are copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.core.controller.eligible import eligible_after
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import first_of, leader_change
from quiverlog.core.controller.records import (
    LEADER_STAYS,
    NO_LEADER,
    PartitionChangeRecord,
    Record,
)
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.errors import InvalidReplicaAssignment, PolicyViolation
from quiverlog.limits import PARTITIONS_PER_BROKER_MAX, REPLICATION_FACTOR_MAX
from quiverlog.types import NO_EPOCH

__all__ = ["arrived", "cancel", "reassign", "target_of"]


def reassign(
    image: Image,
    topic: TopicImage,
    partition: PartitionImage,
    target: Sequence[int],
    *,
    changes_count: bool = False,
    bytes_per_s: int = 0,
) -> list[Record]:
    """The partition is to be held by these brokers, of which the first is the preferred leader.

    Returns the change; none, where it is held by them already or on its way.

    Args:
        changes_count: these may be more, or fewer, than it has now.
        bytes_per_s: no broker copies it faster; 0: no bound of this move.

    Raises:
        InvalidReplicaAssignment: not as many as the partition has, one twice, or one that is not
            alive and gets the partition by this.
        PolicyViolation: a broker is full, or nobody leads the partition.
    """
    assert image.topics_by_id.get(topic.topic_id) is topic, "decided on what will hold"
    assert bytes_per_s >= 0
    _check(image, topic, partition, target, changes_count)
    changes = _moving(topic, partition, target, bytes_per_s)
    if any(len(one.replicas or ()) > 2 * REPLICATION_FACTOR_MAX for one in changes):
        raise PolicyViolation(
            f"{topic.name}-{partition.partition} has had other targets, and"
            f" {2 * REPLICATION_FACTOR_MAX} brokers that hold it are the most allowed: wait."
        )
    return list(changes)


def cancel(topic: TopicImage, partition: PartitionImage) -> list[Record]:
    """The partition moves back to those that held it before; none, where it does not move."""
    assert partition in topic.partitions
    if not partition.moves:
        return []
    before = _before(partition)
    assert before, "somebody held it"
    return list(_moving(topic, partition, before, partition.move_bytes_per_s))


def arrived(topic: TopicImage, partition: PartitionImage, in_sync: Sequence[int]) -> list[Record]:
    """The end of the move, if these, who are all fit to lead, are enough for it; else nothing.

    Of a leader that leaves: the change by which it hands over, after which its heir asks for the
    end.

    Asked for by the leader, when it has seen that those that stay have on their disks what
    producers were promised to find there. They have been in sync before that.
    """
    assert set(in_sync) <= set(partition.replicas)
    if not partition.moves or set(in_sync) != set(partition.in_sync_replicas):
        return []
    target = target_of(partition)
    assert target, "it moves somewhere"
    enough = min(topic.config.min_in_sync_replicas, len(target))
    kept = tuple(n for n in in_sync if n in target)
    adding = {n for n in partition.adding_replicas if n in target}
    if not adding <= set(kept) or len(kept) < enough:
        return []
    assert partition.leader_id in in_sync, "a leader asks"
    if partition.leader_id not in target:
        heir = first_of(target, kept)
        eligible = partition.eligible_leader_replicas
        return leader_change(topic, partition, heir, partition.in_sync_replicas, eligible)
    return [_change(topic, partition, target, (), (), kept)]


# --- parts -------------------------------------------------------------------------------------
def _before(partition: PartitionImage) -> tuple[int, ...]:
    """Who held the partition before it began to move."""
    return tuple(n for n in partition.replicas if n not in partition.adding_replicas)


def target_of(partition: PartitionImage) -> tuple[int, ...]:
    """Who is to hold the partition."""
    return tuple(n for n in partition.replicas if n not in partition.removing_replicas)


def _moving(
    topic: TopicImage, partition: PartitionImage, target: Sequence[int], bytes_per_s: int
) -> list[PartitionChangeRecord]:
    """The change by which it moves there. Nobody who may have been counted on is dropped by it."""
    before = _before(partition)
    given_up = tuple(n for n in partition.adding_replicas if n not in target)
    adding = (*(n for n in target if n not in before), *given_up)
    removing = (*(n for n in before if n not in target), *given_up)
    replicas = (*target, *removing)
    assert len(set(replicas)) == len(replicas)
    assert set(replicas) >= set(partition.replicas), "all stay until the move has ended"
    if not adding and not removing:
        bytes_per_s = 0
    now = (partition.replicas, partition.adding_replicas, partition.removing_replicas)
    if (*now, partition.move_bytes_per_s) == (replicas, adding, removing, bytes_per_s):
        return []
    in_sync = partition.in_sync_replicas
    return [_change(topic, partition, replicas, adding, removing, in_sync, bytes_per_s)]


def _check(
    image: Image,
    topic: TopicImage,
    partition: PartitionImage,
    target: Sequence[int],
    changes_count: bool,
) -> None:
    name = f"{topic.name}-{partition.partition}"
    if partition.leader_id == NO_LEADER:
        raise PolicyViolation(f"{name} has no leader, so no replica could copy it.")
    count = len(target_of(partition))
    if changes_count and not 1 <= len(target) <= REPLICATION_FACTOR_MAX:
        raise InvalidReplicaAssignment(
            f"{name}: {len(target)} brokers were named, allowed are 1 to {REPLICATION_FACTOR_MAX}."
        )
    if not changes_count and len(target) != count:
        raise InvalidReplicaAssignment(
            f"{name} has {count} replicas, {len(target)} brokers were named."
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
        if image.brokers[node_id].decommissioning:
            raise InvalidReplicaAssignment(f"{name}: broker {node_id} is being decommissioned.")
        if image.replica_counts[node_id] >= PARTITIONS_PER_BROKER_MAX:
            raise PolicyViolation(
                f"broker {node_id} holds {PARTITIONS_PER_BROKER_MAX} partitions, which is the most"
                " allowed."
            )


def _change(
    topic: TopicImage,
    partition: PartitionImage,
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    in_sync: tuple[int, ...],
    bytes_per_s: int | None = None,
) -> PartitionChangeRecord:
    """Who leads stays; the leader epoch is another one where a replica is new."""
    assert set(in_sync) <= set(replicas)
    assert partition.leader_id in (NO_LEADER, *in_sync)
    is_later = not set(replicas) <= set(partition.replicas)
    return PartitionChangeRecord(
        topic.topic_id,
        partition.partition,
        leader_id=partition.leader_id if is_later else LEADER_STAYS,
        leader_epoch=partition.leader_epoch + 1 if is_later else NO_EPOCH,
        in_sync_replicas=in_sync,
        replicas=replicas,
        eligible_leader_replicas=eligible_after(topic.config, partition, in_sync),
        adding_replicas=adding,
        removing_replicas=removing,
        move_bytes_per_s=bytes_per_s,
    )
