"""The next leader is found by one rule, whatever the reason."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from quiverlog.core.controller.elections import broker_fenced, broker_shutting_down
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import alive_brokers, first_of, successor
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
REPLICAS = (2, 0, 1)


def image_of(
    in_sync: Sequence[int], eligible: Sequence[int], leader: int, fenced: Sequence[int] = ()
) -> Image:
    """Three brokers hold one partition."""
    image = Image({})
    setup: list[Record] = [
        BrokerRecord(n, b"life", "host", 1, broker_epoch=1, fenced=n in fenced) for n in REPLICAS
    ]
    setup.append(TopicRecord(TOPIC, "t", 0, 3))
    partition = PartitionRecord(
        TOPIC, 0, REPLICAS, tuple(in_sync), leader, eligible_leader_replicas=tuple(eligible)
    )
    image.replay_entry([*setup, partition], version=1)
    return image


def partition_of(image: Image) -> PartitionImage:
    return image.topics_by_id[TOPIC].partitions[0]


def subsets(members: Sequence[int]) -> list[tuple[int, ...]]:
    sizes = range(len(members) + 1)
    return [some for size in sizes for some in itertools.combinations(members, size)]


def test_a_leader_in_sync_stays_and_the_first_in_sync_follows_it() -> None:
    partition = partition_of(image_of((0, 1), (), 1))
    alive = frozenset(REPLICAS)
    assert successor(partition, alive, (0, 1), ()) == (1, (0, 1))
    assert successor(partition, alive, (0,), (2,)) == (0, (0,)), "in sync before eligible"
    assert successor(partition, {2}, (0,), (2,)) == (2, (2,)), "eligible: alone in sync"
    assert successor(partition, {1}, (0,), (2,)) == (NO_LEADER, ()), "no replica is in sync alone"


def test_a_fenced_or_stopping_broker_is_not_alive() -> None:
    image = image_of((0, 1), (), 1, fenced=(2,))
    assert alive_brokers(image) == {0, 1}
    assert first_of(REPLICAS, alive_brokers(image), (2, 1)) == 1
    assert first_of(REPLICAS, alive_brokers(image), (2,)) == NO_LEADER


@pytest.mark.parametrize("fenced", subsets((0, 2)), ids=str)
def test_the_same_one_leads_whatever_the_leader_goes_for(fenced: tuple[int, ...]) -> None:
    """The replica takes no writes, or the broker stops, or it is silent."""
    for others, left in itertools.product(subsets((0, 2)), subsets((0, 2))):
        in_sync = (1, *(n for n in others if n not in fenced))
        eligible = tuple(n for n in left if n not in in_sync)
        leaders = []
        for why in ("offline", "stops", "silent"):
            image = image_of(in_sync, eligible, 1, fenced)
            if why == "offline":
                records = replica_offline(image, 1, 1, TOPIC, 0)
            else:
                go = broker_shutting_down if why == "stops" else broker_fenced
                records = go(image, 1)
            if records:
                image.replay_entry(records, version=2)
            leaders.append(partition_of(image).leader_id)
        offline, stops, silent = leaders
        assert stops == silent
        assert offline == (stops if stops != NO_LEADER else 1), (in_sync, eligible)
