"""Brokers that leave for good: what the controller decides of them. Pure functions of the image."""

from __future__ import annotations

import pytest

from quiverlog.core.controller import decommissioning
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.reassignment import reassign
from quiverlog.core.controller.records import (
    UNKNOWN_BROKER_EPOCH,
    BrokerChangeRecord,
    BrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    TopicRecord,
    decode_entry,
    encode_entry,
)
from quiverlog.core.controller.registrations import Registrations
from quiverlog.errors import (
    BrokerAlive,
    BrokerInUse,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidVoterChange,
    ThrottledBroker,
    TooFewBrokers,
    UnknownBroker,
)
from quiverlog.limits import FEATURE_LEVEL_MAX
from tests.support.controller import alter

TOPIC = bytes(16)
VOTERS = {1, 2, 3}


def image_of(*records: Record, brokers: int = 4) -> Image:
    """Brokers 1 to `brokers`, and a topic with two replicas."""
    image = Image({})
    own = [
        BrokerRecord(n, b"life", f"h{n}", 9292, broker_epoch=n, directory_id=f"d{n}")
        for n in range(1, brokers + 1)
    ]
    image.replay_entry([*own, TopicRecord(TOPIC, "t", 1, 2), *records], version=50)
    return image


def held_by(*replicas: int) -> PartitionRecord:
    return PartitionRecord(TOPIC, 0, replicas, replicas, replicas[0])


def apply(image: Image, records: list[Record]) -> None:
    """As an entry of the log, which is what another node reads."""
    image.replay_entry(decode_entry(encode_entry(records)), version=image.version + 1)


def fence(image: Image, node_id: int) -> None:
    broker = image.brokers[node_id]
    apply(image, [BrokerChangeRecord(node_id, broker.broker_epoch, fenced=True)])


def test_a_leaving_broker_gets_no_replicas_until_that_is_called_off() -> None:
    image = image_of(held_by(1, 2), brokers=3)
    topic = image.topics["t"]
    apply(image, decommissioning.begin(image, 3, VOTERS))
    assert image.brokers[3].decommissioning
    assert decommissioning.begin(image, 3, VOTERS) == [], "it is so already"
    with pytest.raises(InvalidReplicaAssignment, match="broker 3 is being decommissioned"):
        reassign(image, topic, topic.partitions[0], [1, 3])
    placed = [r.replicas for r in alter(image, "t", partitions=9) if isinstance(r, PartitionRecord)]
    assert placed
    assert not any(3 in replicas for replicas in placed)
    apply(image, decommissioning.cancel(image, 3))
    assert decommissioning.cancel(image, 3) == []
    assert reassign(image, topic, topic.partitions[0], [1, 3])


def test_a_topic_finds_no_place_on_brokers_that_leave() -> None:
    image = image_of(brokers=2)
    apply(image, decommissioning.begin(image, 2, VOTERS))
    with pytest.raises(InvalidReplicationFactor, match="brokers that can take one: 1"):
        alter(image, "t", partitions=1)


def test_it_leaves_still_when_it_was_started_anew() -> None:
    image = image_of()
    apply(image, decommissioning.begin(image, 4, VOTERS))
    machine = Registrations(1, b"own", 2_000_000)
    level = FEATURE_LEVEL_MAX
    again = BrokerRecord(4, b"later", "h4", 9292, directory_id="d4", feature_level_max=level)
    apply(image, machine.register(image, again, b"", 1))
    assert (image.brokers[4].incarnation, image.brokers[4].decommissioning) == (b"later", True)
    assert machine.register(image, again, b"", 2) == [], "a repeated request is that registration"


def test_an_unregistered_broker_that_comes_back_is_new() -> None:
    image = image_of()
    machine = Registrations(1, b"own", 2_000_000)
    fence(image, 4)
    apply(image, decommissioning.begin(image, 4, VOTERS))
    apply(image, decommissioning.unregister(image, 4, VOTERS))
    assert 4 not in image.brokers
    level = FEATURE_LEVEL_MAX
    again = BrokerRecord(4, b"x", "h", 1, directory_id="d", feature_level_max=level)
    apply(image, machine.register(image, again, b"", 1))
    assert not image.brokers[4].decommissioning
    assert image.brokers[4].fenced


def test_too_few_would_stay() -> None:
    image = image_of(held_by(1, 2), brokers=3)
    apply(image, decommissioning.begin(image, 3, VOTERS))
    with pytest.raises(
        TooFewBrokers, match=r"t-0 has 2 replicas, and without broker 2 there are 1"
    ):
        decommissioning.begin(image, 2, VOTERS)
    apply(image, decommissioning.cancel(image, 3))
    assert decommissioning.begin(image, 2, VOTERS)


def test_a_controller_alone_takes_no_partitions_of_those_that_leave() -> None:
    image = image_of(held_by(1, 2), brokers=2)
    apply(image, [BrokerRecord(9, b"c", "h9", 1, takes_partitions=False, broker_epoch=60)])
    with pytest.raises(TooFewBrokers):
        decommissioning.begin(image, 2, VOTERS)
    assert decommissioning.begin(image, 9, VOTERS), "it holds nothing"


def test_replicas_that_a_move_removes_need_no_place() -> None:
    moving = PartitionRecord(TOPIC, 0, (1, 2, 3), (1, 2, 3), 1, removing_replicas=(3,))
    image = image_of(moving, brokers=3)
    assert decommissioning.begin(image, 3, VOTERS)


def test_the_last_controller_stays() -> None:
    with pytest.raises(InvalidVoterChange, match="broker 1 is the last controller"):
        decommissioning.begin(image_of(), 1, {1})
    assert decommissioning.begin(image_of(), 2, {1})


@pytest.mark.parametrize("step", ["begin", "cancel", "unregister"])
def test_an_unknown_node_id_is_refused(step: str) -> None:
    wanted = getattr(decommissioning, step)
    more = () if step == "cancel" else (VOTERS,)
    with pytest.raises(UnknownBroker, match=r"there is no broker 9; there are: 1, 2, 3, 4\."):
        wanted(image_of(), 9, *more)


def test_a_broker_that_registers_just_now_is_checked_again() -> None:
    image = image_of()
    image.replay(BrokerRecord(5, b"n", "h5", 1))
    assert image.brokers[5].broker_epoch == UNKNOWN_BROKER_EPOCH
    with pytest.raises(ThrottledBroker):
        decommissioning.begin(image, 5, VOTERS)


def test_what_keeps_a_broker_registered() -> None:
    image = image_of(held_by(1, 4))
    with pytest.raises(BrokerAlive, match="broker 4, at h4:9292, is alive"):
        decommissioning.unregister(image, 4, VOTERS)
    fence(image, 4)
    with pytest.raises(BrokerInUse, match=r"broker 4 holds replicas of 1 partition\."):
        decommissioning.unregister(image, 4, VOTERS)
    apply(image, [PartitionChangeRecord(TOPIC, 0, in_sync_replicas=(1,), replicas=(1, 2))])
    with pytest.raises(BrokerInUse, match="broker 4 is a voter"):
        decommissioning.unregister(image, 4, {*VOTERS, 4})
    apply(image, decommissioning.unregister(image, 4, VOTERS))
    assert sorted(image.brokers) == [1, 2, 3]


def test_a_snapshot_keeps_leaving_brokers_and_drops_those_that_have_left() -> None:
    image = image_of()
    fence(image, 4)
    apply(image, decommissioning.unregister(image, 4, VOTERS))
    apply(image, decommissioning.begin(image, 3, VOTERS))
    again = Image({})
    again.replay_entry(image.snapshot_records(), version=image.version)
    assert again.brokers == image.brokers
    assert again.brokers[3].decommissioning
