"""Replicas that take no writes: the metadata count on them only where no other is left."""

from __future__ import annotations

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    NO_LEADER,
    BrokerRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from quiverlog.core.controller.replica_offline import replica_offline
from quiverlog.core.controller.topic_image import PartitionImage

TOPIC = b"t" * 16


def _reported(eligible: tuple[int, ...]) -> PartitionImage:
    """A partition without a leader, after broker 1 reported that it takes no writes."""
    image = Image({})
    setup: list[Record] = [BrokerRecord(n, b"life", "host", 1, broker_epoch=1) for n in range(3)]
    setup.append(TopicRecord(TOPIC, "t", 0, 1))
    setup.append(
        PartitionRecord(TOPIC, 0, (0, 1, 2), (), NO_LEADER, eligible_leader_replicas=eligible)
    )
    image.replay_entry(setup, version=1)
    records = replica_offline(image, 1, 1, TOPIC, 0)
    if records:
        image.replay_entry(records, version=2)
    return image.topics_by_id[TOPIC].partitions[0]


def test_the_last_one_that_has_all_rows_stays_eligible() -> None:
    """Having led alone it began to stop: a restart may find its log in order."""
    assert _reported((1,)).eligible_leader_replicas == (1,)


def test_others_that_have_all_rows_stay_alone() -> None:
    assert _reported((1, 2)).eligible_leader_replicas == (2,)
