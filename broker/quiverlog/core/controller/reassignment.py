"""Moving a partition to other replicas: begin, cancel, end (KIP-455).

    settled ──reassign──▶ moving ──all added are in sync, and enough that stay──▶ settled
                           │  ▲
                           └──┘ reassign: another target; cancel: back to those that held it before

While a partition moves, all of its replicas copy: the target in order, then those that leave. A
leader that leaves first hands over to the target's first in-sync replica, and stays in sync. One
record ends the move: only the target holds the partition and is in sync. As in-sync replicas have
every readable row, none is lost while enough of them stay.
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
    """Return the change that moves the partition to these brokers, the preferred leader first;
    none, where they hold it already or it is on its way there.

    With `changes_count` the number of replicas may change. `bytes_per_s`: rate limit per copying
    broker; 0: none for this move.

    Raises InvalidReplicaAssignment: another number than the partition has, a duplicate, or a new
    broker that may not take partitions now; PolicyViolation: a broker is full, the partition has no
    leader, or too many brokers hold it.
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
    assert partition in topic.partitions
    if not partition.moves:
        return []
    before = _before(partition)
    assert before, "a partition has replicas"
    return list(_moving(topic, partition, before, partition.move_bytes_per_s))


def arrived(topic: TopicImage, partition: PartitionImage, in_sync: Sequence[int]) -> list[Record]:
    """Return the end of the move (where the leader leaves, first an election), if these in-sync
    replicas suffice; otherwise nothing.

    The leader asks once the replicas that stay have flushed what producers were promised.
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
    # A leader that leaves hands over first: the next one asks again for the end.
    if partition.leader_id not in target:
        heir = first_of(target, kept)
        eligible = partition.eligible_leader_replicas
        return leader_change(topic, partition, heir, partition.in_sync_replicas, eligible)
    return [_change(topic, partition, target, (), (), kept)]


# --- parts -------------------------------------------------------------------------------------
def _before(partition: PartitionImage) -> tuple[int, ...]:
    return tuple(n for n in partition.replicas if n not in partition.adding_replicas)


def target_of(partition: PartitionImage) -> tuple[int, ...]:
    return tuple(n for n in partition.replicas if n not in partition.removing_replicas)


def _moving(
    topic: TopicImage, partition: PartitionImage, target: Sequence[int], bytes_per_s: int
) -> list[PartitionChangeRecord]:
    """Return the change to that target. It drops no replica, as each may be counted on."""
    before = _before(partition)
    # A cancelled addition may hold acknowledged rows on its disk: it leaves like any other, and is
    # both in `adding_replicas` and in `removing_replicas`.
    given_up = tuple(n for n in partition.adding_replicas if n not in target)
    adding = (*(n for n in target if n not in before), *given_up)
    removing = (*(n for n in before if n not in target), *given_up)
    replicas = (*target, *removing)
    assert len(set(replicas)) == len(replicas)
    assert set(replicas) >= set(partition.replicas), "all stay until the move has ended"
    # A move's own rate limit ends with it.
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
        # It holds the partition already, even if it is not alive.
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
    assert set(in_sync) <= set(replicas)
    assert partition.leader_id in (NO_LEADER, *in_sync)
    # A new replica counts once it asks under the new epoch, which proves that it has the metadata
    # of its addition. Earlier reports are of rows that it may be about to remove, as it once held
    # the partition.
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
