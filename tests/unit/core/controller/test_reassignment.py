"""Moves of partitions at the controller: the leader, and its leader epoch."""

from __future__ import annotations

from dataclasses import replace

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.reassignment import arrived, cancel, reassign
from quiverlog.core.controller.records import (
    BrokerRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage

TOPIC_ID = b"t" * 16


class Controller:
    """Four brokers that live; a partition at the first two, led by the first."""

    def __init__(self) -> None:
        self.image = Image({"min.insync.replicas": "2"})
        records: list[Record] = [
            BrokerRecord(node_id, bytes(16), f"h{node_id}", 9292) for node_id in range(1, 5)
        ]
        records.append(TopicRecord(TOPIC_ID, "t", 0, 2))
        records.append(PartitionRecord(TOPIC_ID, 0, (1, 2), (1, 2), 1, 7, 3))
        self.image.replay_entry(records)

    @property
    def topic(self) -> TopicImage:
        return self.image.topics_by_id[TOPIC_ID]

    @property
    def partition(self) -> PartitionImage:
        return self.topic.partitions[0]

    def hold(self, records: list[Record]) -> None:
        assert records, "a change was asked for"
        self.image.replay_entry(records)

    def move(self, *target: int) -> None:
        self.hold(reassign(self.image, self.topic, self.partition, target))

    def in_sync(self, *members: int) -> None:
        self.partition.in_sync_replicas = members

    def arrive(self) -> None:
        self.hold(arrived(self.topic, self.partition, self.partition.in_sync_replicas))


def test_a_leader_that_leaves_hands_over_before_it_is_dropped() -> None:
    """Rule 18: a dropped replica would go on reporting its end, for which no request waits any
    more."""
    controller = Controller()
    controller.move(3, 4)
    controller.in_sync(1, 2, 3, 4)
    epoch = controller.partition.leader_epoch
    controller.arrive()
    partition = controller.partition
    assert (partition.leader_id, partition.leader_epoch) == (3, epoch + 1)
    assert set(partition.in_sync_replicas) == {1, 2, 3, 4}
    assert partition.moves
    controller.arrive()
    partition = controller.partition
    assert not partition.moves
    assert partition.replicas == partition.in_sync_replicas == (3, 4)
    assert (partition.leader_id, partition.leader_epoch) == (3, epoch + 1)


def test_the_heir_is_in_sync() -> None:
    controller = Controller()
    controller.move(2, 3)
    controller.in_sync(1, 3)
    assert not arrived(controller.topic, controller.partition, (1, 3)), "too few of those that stay"
    controller.topic.config = replace(controller.topic.config, min_in_sync_replicas=1)
    controller.arrive()
    assert controller.partition.leader_id == 3


def test_a_replica_that_is_added_begins_a_leader_epoch() -> None:
    """Rule 18: its broker may have held the partition before, without the metadata of its
    removal."""
    controller = Controller()
    controller.move(1, 3)
    assert (controller.partition.leader_id, controller.partition.leader_epoch) == (1, 8)
    controller.in_sync(1, 2, 3)
    controller.move(1, 4)
    assert controller.partition.leader_epoch == 9, "another one is added"


def test_where_no_replica_is_added_the_leader_epoch_goes_on() -> None:
    controller = Controller()
    controller.move(2, 1)
    assert controller.partition.leader_epoch == 7, "the same in another order"
    controller.move(2, 3)
    assert controller.partition.leader_epoch == 8
    controller.hold(cancel(controller.topic, controller.partition))
    assert controller.partition.leader_epoch == 8
    assert controller.partition.leader_id == 1
