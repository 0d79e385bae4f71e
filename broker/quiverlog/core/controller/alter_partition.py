"""ALTER_PARTITION: the leader proposes in-sync replicas, the controller accepts or refuses."""

from __future__ import annotations

from typing import Final

from quiverlog.core.controller.eligible import eligible_after
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.reassignment import arrived
from quiverlog.core.controller.records import PartitionChangeRecord, Record
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    NotController,
    OutdatedPartitionEpoch,
    StaleBrokerEpoch,
    UnknownPartition,
    UnknownTopicId,
)
from quiverlog.wire.replica_messages import AlterPartition

__all__ = ["alter_partition", "check_broker", "find_partition", "fit_epoch"]

_NEVER_FETCHED_EPOCH: Final = -1
"""The broker epoch of a member that has not asked since its leader began."""


def fit_epoch(image: Image, broker_id: int) -> int | None:
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced or broker.in_shutdown:
        return None
    return broker.broker_epoch


def check_broker(image: Image, broker_id: int, broker_epoch: int) -> None:
    broker = image.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpoch(f"broker {broker_id} is not registered under {broker_epoch}.")


def find_partition(image: Image, topic_id: bytes, number: int) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise UnknownTopicId("there is no topic of this id.")
    if not 0 <= number < len(topic.partitions):
        raise UnknownPartition(f"topic {topic.name!r} has no partition {number}.")
    partition = topic.partitions[number]
    assert partition.partition == number
    return topic, partition


def alter_partition(
    image: Image, broker_id: int, broker_epoch: int, proposal: AlterPartition
) -> list[Record]:
    """Raises StaleBrokerEpoch, UnknownTopicId, UnknownPartition; FencedLeaderEpoch,
    OutdatedPartitionEpoch: the partition has changed since; NotController: the sender has newer
    metadata; InvalidRequest: no leader proposes this; IneligibleReplica: a member may not be in
    sync now, or not under its epoch."""
    check_broker(image, broker_id, broker_epoch)
    topic, partition = find_partition(image, proposal.topic_id, proposal.partition)
    assert image.topics_by_id[proposal.topic_id] is topic
    name = f"{topic.name}-{partition.partition}"
    # Epochs before members: a refusal of members then proves that no earlier try was applied.
    _check_epochs(name, partition, proposal)
    if partition.leader_id != broker_id:
        raise InvalidRequest(f"{name} is led by {partition.leader_id}, not by {broker_id}.")
    _check_shape(name, partition, proposal)
    _check_members(image, name, partition, proposal)
    in_sync = tuple(proposal.in_sync_replicas)
    assert partition.leader_id in in_sync, "a leader is in sync"
    assert len(in_sync) <= len(partition.replicas)
    ended = arrived(topic, partition, in_sync) if proposal.ends_move else []
    if ended:
        return ended
    # A change even with the same members: it uses up the partition epoch that an earlier,
    # unanswered request needs.
    return [
        PartitionChangeRecord(
            topic.topic_id,
            partition.partition,
            in_sync_replicas=in_sync,
            eligible_leader_replicas=eligible_after(topic.config, partition, in_sync),
        )
    ]


def _check_epochs(name: str, partition: PartitionImage, proposal: AlterPartition) -> None:
    leader_epoch, partition_epoch = proposal.leader_epoch, proposal.partition_epoch
    if leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(
            f"{name}: leader epoch {leader_epoch} is over, this is {partition.leader_epoch}."
        )
    if leader_epoch > partition.leader_epoch or partition_epoch > partition.partition_epoch:
        raise NotController(f"{name}: the leader's metadata are newer than this controller's.")
    if partition_epoch != partition.partition_epoch:
        raise OutdatedPartitionEpoch(
            f"{name}: partition epoch {partition_epoch} is over, this is"
            f" {partition.partition_epoch}."
        )


def _check_shape(name: str, partition: PartitionImage, proposal: AlterPartition) -> None:
    members = proposal.in_sync_replicas
    assert proposal.leader_epoch == partition.leader_epoch, "epochs come first"
    assert proposal.partition_epoch == partition.partition_epoch
    if len(set(members)) != len(members) or len(proposal.broker_epochs) != len(members):
        raise InvalidRequest(f"{name}: each member comes once, with its broker epoch.")
    if not set(members) <= set(partition.replicas):
        raise InvalidRequest(f"{name}: {members} are not all among its replicas.")
    if partition.leader_id not in members:
        raise InvalidRequest(f"{name}: the leader {partition.leader_id} is not among {members}.")


def _check_members(
    image: Image, name: str, partition: PartitionImage, proposal: AlterPartition
) -> None:
    assert len(proposal.broker_epochs) == len(proposal.in_sync_replicas)
    assert set(proposal.in_sync_replicas) <= set(partition.replicas)
    for member, epoch in zip(proposal.in_sync_replicas, proposal.broker_epochs, strict=True):
        # The leader's own broker epoch was compared before.
        if member == partition.leader_id:
            continue
        fit = fit_epoch(image, member)
        if fit is None:
            raise IneligibleReplica(f"{name}: broker {member} is fenced, or stopping.")
        # Under the epoch that it reported to the leader, not a newer one: a broker that restarted
        # since may have come back without its rows (KIP-903). A member that has not fetched since
        # the leader began stays, but none joins so.
        stays_unfetched = epoch == _NEVER_FETCHED_EPOCH and member in partition.in_sync_replicas
        if epoch != fit and not stays_unfetched:
            raise IneligibleReplica(
                f"{name}: broker {member} reported epoch {epoch}, registered is {fit}."
            )
