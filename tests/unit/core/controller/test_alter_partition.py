"""Which replicas may be in sync: the controller's checks, their order, and eligible replicas."""

from __future__ import annotations

from typing import Any

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.alter_partition import alter_partition, fit_epoch
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    SchemaRecord,
    TopicRecord,
)
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    NotController,
    OutdatedPartitionEpoch,
    QuiverlogError,
    StaleBrokerEpoch,
    UnknownPartition,
    UnknownTopicId,
)
from quiverlog.wire.replica_messages import AlterPartition
from tests.support.node import SCHEMA

TOPIC = bytes(range(16))
EPOCHS = {0: 10, 1: 11, 2: 12}
LEADER = 0


def cluster(*, in_sync: tuple[int, ...] = (0, 1, 2), min_in_sync: int = 2) -> Image:
    """Three brokers, and one partition that the first of them leads, in leader epoch 3."""
    image = Image({})
    image.replay_entry([BrokerRecord(n, b"i", broker_epoch=e) for n, e in EPOCHS.items()])
    image.replay_entry(
        [
            TopicRecord(TOPIC, "t", 1, 3),
            ConfigRecord(TOPIC, "min.insync.replicas", str(min_in_sync)),
            SchemaRecord(TOPIC, 1, 1, serialize_schema(SCHEMA)),
            PartitionRecord(TOPIC, 0, (0, 1, 2), in_sync, LEADER, 3, 7),
        ]
    )
    return image


def partition(image: Image) -> PartitionImage:
    return image.topics_by_id[TOPIC].partitions[0]


def proposal(*members: int, **fields: Any) -> AlterPartition:
    given = {
        "topic_id": TOPIC,
        "partition": 0,
        "leader_epoch": 3,
        "partition_epoch": 7,
        "in_sync_replicas": list(members),
        "broker_epochs": [EPOCHS.get(member, 0) for member in members],
    }
    return AlterPartition(**{**given, **fields})  # type: ignore[arg-type]


def decide(image: Image, asked: AlterPartition, *, broker: int = LEADER, epoch: int = 10) -> None:
    image.replay_entry(alter_partition(image, broker, epoch, asked))


def test_what_is_taken_is_one_change_of_the_partition() -> None:
    """Rule 31 of docs/replication-rules.md."""
    image = cluster()
    decide(image, proposal(0, 2))
    assert partition(image).in_sync_replicas == (0, 2)
    assert partition(image).partition_epoch == 8
    assert (partition(image).leader_id, partition(image).leader_epoch) == (LEADER, 3)
    decide(image, proposal(0, 2, partition_epoch=8))
    assert partition(image).partition_epoch == 9, "earlier requests must not be taken after it"


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (proposal(0, topic_id=b"x" * 16), UnknownTopicId),
        (proposal(0, partition=1), UnknownPartition),
        (proposal(0, partition=-1), UnknownPartition),
        (proposal(0, leader_epoch=2), FencedLeaderEpoch),
        (proposal(0, leader_epoch=4), NotController),
        (proposal(0, partition_epoch=6), OutdatedPartitionEpoch),
        (proposal(0, partition_epoch=8), NotController),
        (proposal(0, 0), InvalidRequest),
        (proposal(0, 1, broker_epochs=[10]), InvalidRequest),
        (proposal(0, 5), InvalidRequest),
        (proposal(1, 2), InvalidRequest),
        (proposal(), InvalidRequest),
        (proposal(0, 1, broker_epochs=[-1, 10]), IneligibleReplica),
    ],
)
def test_what_cannot_be_taken(asked: AlterPartition, error: type[QuiverlogError]) -> None:
    with pytest.raises(error):
        decide(cluster(), asked)


def test_only_the_leader_asks_and_only_this_life_of_it() -> None:
    with pytest.raises(InvalidRequest):
        decide(cluster(), proposal(0, 1), broker=1, epoch=11)
    for broker, epoch in ((LEADER, 9), (LEADER, 11), (7, 0)):
        with pytest.raises(StaleBrokerEpoch):
            decide(cluster(), proposal(0, 1), broker=broker, epoch=epoch)


def test_epochs_are_compared_before_members() -> None:
    """A leader whose proposal is refused for an unfit member concludes that it was not applied.

    Rule 7 of docs/replication-rules.md.
    """
    image = cluster()
    decide(image, proposal(0, 1))
    image.replay_entry([BrokerChangeRecord(1, 11, fenced=True)])
    with pytest.raises(OutdatedPartitionEpoch):
        decide(image, proposal(0, 1))


@pytest.mark.parametrize("change", [{"fenced": True}, {"in_shutdown": True}])
def test_a_fenced_or_leaving_broker_is_not_in_sync(change: dict[str, bool]) -> None:
    image = cluster()
    image.replay_entry([BrokerChangeRecord(1, 11, **change)])
    assert fit_epoch(image, 1) is None
    with pytest.raises(IneligibleReplica):
        decide(image, proposal(0, 1))
    image.replay_entry([BrokerChangeRecord(LEADER, 10, in_shutdown=True)])
    decide(image, proposal(0, 2))
    assert partition(image).in_sync_replicas == (0, 2), "a leader that leaves may name the members"


def test_a_member_counts_under_the_epoch_of_its_fetches() -> None:
    """KIP-903: it was started anew since, perhaps without its rows."""
    image = cluster(in_sync=(0, 1))
    image.replay_entry([BrokerRecord(2, b"j", broker_epoch=20)])
    with pytest.raises(IneligibleReplica):
        decide(image, proposal(0, 1, 2))
    decide(image, proposal(0, 1, 2, broker_epochs=[-1, 11, 20]))
    assert partition(image).in_sync_replicas == (0, 1, 2)


def test_an_in_sync_member_need_not_have_fetched_yet_but_no_other_joins_without_a_fetch() -> None:
    image = cluster(in_sync=(0, 1))
    decide(image, proposal(0, 1, broker_epochs=[-1, -1]))
    with pytest.raises(IneligibleReplica):
        decide(image, proposal(0, 1, 2, partition_epoch=8, broker_epochs=[-1, -1, -1]))


def test_a_replica_that_leaves_below_the_minimum_stays_eligible() -> None:
    """KIP-966: no more rows become readable, so it has all that are. (Rule 10.)"""
    image = cluster()
    decide(image, proposal(0, 1))
    assert partition(image).eligible_leader_replicas == (), "two are enough"
    decide(image, proposal(0, partition_epoch=8))
    assert partition(image).eligible_leader_replicas == (1,)
    decide(image, proposal(0, 2, partition_epoch=9))
    assert partition(image).eligible_leader_replicas == (), "more rows become readable"


def test_the_minimum_is_never_more_than_the_replicas() -> None:
    image = cluster(in_sync=(0, 1), min_in_sync=3)
    decide(image, proposal(0))
    assert partition(image).eligible_leader_replicas == (1,)
    image.replay_entry([PartitionChangeRecord(TOPIC, 0, replicas=(0, 1))])
    decide(image, proposal(0, 1, partition_epoch=9))
    assert partition(image).eligible_leader_replicas == ()
