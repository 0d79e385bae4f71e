"""A broker reports a replica that takes no writes: it leaves the in-sync set, and another leads,
if one can.

A broker about to delete the replica's rows names the leader epoch under which it may have counted:
the partition gets a later one even if nothing else changes, and the log is noted as replaced, like
a lost disk's. Neither where no other replica can be relied on.
"""

from __future__ import annotations

from quiverlog.core.controller.alter_partition import check_broker, find_partition
from quiverlog.core.controller.eligible import min_in_sync
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import alive_brokers, successor
from quiverlog.core.controller.records import (
    LEADER_STAYS,
    NO_LEADER,
    PartitionChangeRecord,
    Record,
)
from quiverlog.errors import InvalidRequest
from quiverlog.types import NO_EPOCH

__all__ = ["replica_offline"]


def replica_offline(
    image: Image,
    broker_id: int,
    broker_epoch: int,
    topic_id: bytes,
    number: int,
    leader_epoch: int = NO_EPOCH,
) -> list[Record]:
    """Return the change after which the partition relies on others, in an epoch later than
    `leader_epoch`; none where no other can be relied on, or the metadata have it already."""
    check_broker(image, broker_id, broker_epoch)
    topic, partition = find_partition(image, topic_id, number)
    if broker_id not in partition.replicas:
        raise InvalidRequest(f"broker {broker_id} has no replica of {topic.name}-{number}.")
    # It is not eligible either: what its disk lost is unknown until it is read again.
    in_sync = _without(partition.in_sync_replicas, broker_id)
    eligible = _without(partition.eligible_leader_replicas, broker_id)
    leader_id, is_anew = LEADER_STAYS, leader_epoch != NO_EPOCH
    is_noted = broker_id in partition.replaced_disks
    if partition.leader_id == broker_id:
        leader_id, in_sync = successor(partition, alive_brokers(image), in_sync, eligible)
        # Without a successor it stays: readers get what can still be read.
        if leader_id == NO_LEADER:
            return []
    elif not in_sync and not eligible:
        return []  # The last eligible replica stays for the same reason.
    is_same = in_sync == partition.in_sync_replicas
    is_same = is_same and eligible == partition.eligible_leader_replicas
    is_over = is_same and leader_epoch < partition.leader_epoch
    if is_over and (is_noted or not is_anew):
        return []
    # Under a later leader epoch: a fetch that still waits at the leader reports all rows, and would
    # bring the replica back.
    is_later = leader_id != LEADER_STAYS or (is_anew and not is_over)
    is_later = is_later or (partition.leader_id >= 0 and in_sync != partition.in_sync_replicas)
    if len(in_sync) >= min_in_sync(topic.config, partition):
        eligible = ()
    assert broker_id not in (*in_sync, *eligible)
    return [
        PartitionChangeRecord(
            topic_id,
            number,
            leader_id=leader_id,
            leader_epoch=partition.leader_epoch + 1 if is_later else NO_EPOCH,
            in_sync_replicas=in_sync,
            eligible_leader_replicas=tuple(one for one in eligible if one not in in_sync),
            replaced_disks=_with(partition.replaced_disks, broker_id) if is_anew else None,
        )
    ]


def _with(members: tuple[int, ...], broker_id: int) -> tuple[int, ...]:
    return (*_without(members, broker_id), broker_id)


def _without(members: tuple[int, ...], broker_id: int) -> tuple[int, ...]:
    return tuple(member for member in members if member != broker_id)
