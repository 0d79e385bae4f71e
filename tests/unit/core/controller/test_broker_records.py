"""Brokers in the metadata log: registrations, their changes, and the image of both."""

from __future__ import annotations

import msgspec
import pytest

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    UNKNOWN_BROKER_EPOCH,
    BrokerChangeRecord,
    BrokerRecord,
    Record,
    SnapshotRecord,
    decode_entry,
    encode_entry,
    topic_of,
)

FIRST, SECOND = b"\x01" * 16, b"\x02" * 16
ENDPOINTS = (("default", "one.example", 9292), ("peers", "10.0.0.1", 9293))


def registered(
    node_id: int = 1, incarnation: bytes = FIRST, *, fenced: bool = True
) -> BrokerRecord:
    return BrokerRecord(node_id, incarnation, "one.example", 9292, "r1", ENDPOINTS, fenced=fenced)


def image_of(*entries: list[Record]) -> Image:
    image = Image({})
    for version, records in enumerate(entries, start=7):
        image.replay_entry(records, version=version)
    return image


# What a broker without registrations has written: five fields.
OLD = bytes.fromhex(
    "91960200c4100f0e0d0c0b0a09080706050403020100ae62726f6b65722e6578616d706c65cd2328a27231"
)


def test_a_record_from_before_registrations_is_that_of_a_broker_that_is_not_fenced() -> None:
    (record,) = decode_entry(OLD)
    assert record == BrokerRecord(0, bytes(range(15, -1, -1)), "broker.example", 9000, "r1")
    image = image_of([record])
    assert [one.node_id for one in image.live_brokers()] == [0]
    assert image.brokers[0].broker_epoch == 7
    assert image.brokers[0].listeners == ()


def test_a_broker_from_before_registrations_reads_the_record_of_a_newer_one() -> None:
    """Fields are appended, so a reader of the first five still finds these."""

    class OldRecord(msgspec.Struct, array_like=True, tag=2):
        node_id: int
        incarnation: bytes
        host: str = ""
        port: int = 0
        rack: str = ""

    (old,) = msgspec.msgpack.decode(encode_entry([registered()]), type=list[OldRecord])
    assert old == OldRecord(1, FIRST, "one.example", 9292, "r1")


def test_the_broker_epoch_is_the_version_of_the_entry() -> None:
    image = image_of([registered()], [registered(2, SECOND), registered(3, SECOND)])
    assert {n: one.broker_epoch for n, one in image.brokers.items()} == {1: 7, 2: 8, 3: 8}
    assert image.brokers[1].listeners == ENDPOINTS
    assert (image.brokers[1].host, image.brokers[1].rack) == ("one.example", "r1")


def test_a_change_changes_what_it_names() -> None:
    image = image_of([registered()])
    assert image.live_brokers() == []
    image.replay_entry([BrokerChangeRecord(1, 7, fenced=False)], version=8)
    assert [one.node_id for one in image.live_brokers()] == [1]
    assert not image.brokers[1].in_shutdown
    image.replay_entry([BrokerChangeRecord(1, 7, in_shutdown=True)], version=9)
    assert image.brokers[1].in_shutdown
    assert not image.brokers[1].fenced
    assert image.brokers[1].broker_epoch == 7, "a change is no registration"


def test_a_broker_that_registers_anew_is_fenced_and_no_longer_about_to_stop() -> None:
    image = image_of(
        [registered()], [BrokerChangeRecord(1, 7, fenced=False, in_shutdown=True)],
        [registered(incarnation=SECOND)],
    )  # fmt: skip
    assert image.brokers[1].broker_epoch == 9
    assert image.brokers[1].fenced
    assert not image.brokers[1].in_shutdown


def test_a_change_of_an_earlier_registration_is_a_bug_of_the_controller() -> None:
    image = image_of([registered()], [registered(incarnation=SECOND)])
    with pytest.raises(AssertionError):
        image.replay(BrokerChangeRecord(1, 7, fenced=False))


def test_while_its_entry_has_no_place_a_registration_has_no_epoch() -> None:
    """Further decisions rest on it: no request can have an epoch that is not decided."""
    pending = image_of([registered()])
    again = [registered(incarnation=SECOND)]
    pending.replay_entry(again)
    assert pending.brokers[1].broker_epoch == UNKNOWN_BROKER_EPOCH
    pending.decided(again, 12)
    assert pending.brokers[1].broker_epoch == 12


def test_a_registration_that_was_replaced_before_it_was_decided_gives_no_broker_its_epoch() -> None:
    pending = Image({})
    first, second = [registered()], [registered(incarnation=SECOND)]
    pending.replay_entry(first)
    pending.replay_entry(second)
    pending.decided(first, 12)
    assert pending.brokers[1].broker_epoch == UNKNOWN_BROKER_EPOCH
    pending.decided(second, 13)
    assert pending.brokers[1].broker_epoch == 13


def test_a_snapshot_has_the_brokers_as_they_are() -> None:
    image = image_of(
        [registered()], [registered(2, SECOND)],
        [BrokerChangeRecord(1, 7, fenced=False)],
        [BrokerChangeRecord(1, 7, in_shutdown=True)],
    )  # fmt: skip
    again = Image({})
    again.replay_entry(decode_entry(encode_entry(image.snapshot_records())), version=10)
    assert again.brokers == image.brokers
    assert again.brokers[1].broker_epoch == 7


def test_an_old_snapshot_gives_its_brokers_its_version() -> None:
    image = Image({})
    old = decode_entry(OLD)
    image.replay_entry([SnapshotRecord(40), *old], version=40)
    assert image.brokers[0].broker_epoch == 40


def test_brokers_are_about_no_topic() -> None:
    assert topic_of(registered()) is None
    assert topic_of(BrokerChangeRecord(1, 7, fenced=True)) is None
