"""What follows from a broker that comes or goes: one entry, or several that are sound each."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from quiverlog.core.controller.elections import broker_fenced, broker_unfenced, disk_lost
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    NO_LEADER,
    BrokerChangeRecord,
    BrokerRecord,
    PartitionChangeRecord,
    Record,
    encode_entry,
    in_entries,
)
from quiverlog.limits import PARTITIONS_PER_BROKER_MAX
from quiverlog.node.metadata.metadata import ENTRY_BYTES_MAX
from tests.support.controller import create, register

SMALL = 200
BROKERS = (0, 1, 2)
GONE = 1


@functools.cache
def creation(partitions: int, replication_factor: int) -> list[Record]:
    return create(
        Image({}), brokers=BROKERS, partitions=partitions, replication_factor=replication_factor
    )


def image_of(partitions: int, replication_factor: int = 2) -> Image:
    image = Image({})
    register(image, BROKERS)
    image.replay_entry(creation(partitions, replication_factor))
    return image


def is_sound(image: Image) -> bool:
    live = {one.node_id for one in image.live_brokers()}
    partitions = [p for topic in image.topics.values() for p in topic.partitions]
    return all(p.leader_id in live or p.leader_id == NO_LEADER for p in partitions)


def fenced(image: Image) -> list[Record]:
    epoch = image.brokers[GONE].broker_epoch
    return [BrokerChangeRecord(GONE, epoch, fenced=True), *broker_fenced(image, GONE)]


def replaced(image: Image) -> list[Record]:
    newcomer = BrokerRecord(GONE, b"next", "host-1", fenced=True)
    return [newcomer, *disk_lost(image, GONE)]


def test_all_that_a_broker_may_hold_is_one_entry() -> None:
    changes: list[Record] = [
        PartitionChangeRecord(
            bytes(16), number, leader_id=2, leader_epoch=70_000, in_sync_replicas=(2, 3),
            eligible_leader_replicas=(),
        )
        for number in range(PARTITIONS_PER_BROKER_MAX)
    ]  # fmt: skip
    records = [BrokerChangeRecord(1, 0, fenced=True), *changes]
    assert in_entries(records, ENTRY_BYTES_MAX) == [records]


@pytest.mark.parametrize("made", [fenced, replaced])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_no_fenced_broker_leads_between_two_entries(
    made: Callable[[Image], list[Record]], factor: int
) -> None:
    records = made(image_of(60, factor))
    entries = in_entries(records, SMALL)
    assert len(entries) > 3
    assert sorted(map(repr, records)) == sorted(repr(one) for entry in entries for one in entry)
    for lost_after in range(len(entries) + 1):
        image = image_of(60, factor)
        for entry in entries[:lost_after]:
            assert len(encode_entry(entry)) <= SMALL
            image.replay_entry(entry)
            assert is_sound(image)
        # The next controller decides the same of what it finds.
        if lost_after < len(entries):
            assert not image.brokers[GONE].fenced
            image.replay_entry(made(image))
        assert is_sound(image)
        assert image.brokers[GONE].fenced
        topics = image.topics.values()
        assert not any(GONE in p.in_sync_replicas for t in topics for p in t.partitions)


def test_no_broker_leads_before_it_is_unfenced() -> None:
    image = image_of(60, 1)
    image.replay_entry(fenced(image))
    epoch = image.brokers[GONE].broker_epoch
    records = [BrokerChangeRecord(GONE, epoch, fenced=False), *broker_unfenced(image, GONE)]
    entries = in_entries(records, SMALL)
    assert len(entries) > 3
    for entry in entries:
        image.replay_entry(entry)
        assert is_sound(image)
    assert not image.leaderless


def test_the_registrations_order_would_leave_partitions_with_a_fenced_leader() -> None:
    """The order of earlier proposals: the broker's record came first."""
    image = image_of(60)
    register_first, *_ = fenced(image)
    image.replay_entry([register_first])
    assert not is_sound(image)
