"""The records of the controller: their bytes, then and now, and eligible replicas in the image."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdBlockRecord,
    Record,
    TopicRecord,
    decode_entry,
    encode_entry,
)
from quiverlog.errors import CorruptLog, UnsupportedFormat
from tests.support.controller import create, described


def test_entries_survive_their_encoding() -> None:
    records: list[Record] = [
        TopicRecord(b"i" * 16, "t", 5, 1, ("k",)),
        PartitionRecord(b"i" * 16, 0, (0,), (0,), 0),
        PartitionChangeRecord(b"i" * 16, 0, leader_epoch=1),
        ProducerIdBlockRecord(1000),
    ]
    assert decode_entry(encode_entry(records)) == records


def test_golden_bytes_of_an_entry() -> None:
    entry = encode_entry([ProducerIdBlockRecord(1000), PartitionChangeRecord(b"\1\2", 3, 4, 5)])
    assert entry.hex() == "92" + "92" + "09cd03e8" + "9f" + "05" + "c4020102" + (
        "030405" + "c0c0" + "c0c2" + "c0c0" + "c0ffc2" + "c0"
    )
    # Of older writers: before replicas could change, any were eligible, partitions could move.
    older_writers = ("9605c4020102030405c0", "9705c4020102030405c0c0", "9905c4020102030405c0c0c0c2")
    for older in older_writers:
        assert decode_entry(bytes.fromhex("929209cd03e8" + older)) == decode_entry(entry)
    assert decode_entry(bytes.fromhex("919305c402010203")) == [PartitionChangeRecord(b"\1\2", 3)]


def test_golden_bytes_of_eligible_replicas() -> None:
    """A partition as it was written before any were eligible has none."""
    fields = (b"\1\2", 0, (1, 2), (1,), 1, 4, 9)
    entry = encode_entry([PartitionRecord(*fields, (2,))])
    assert entry.hex() == "91" + "dc0010" + "04" + "c4020102" + "00" + "920102" + "9101" + (
        "010409" + "9102" + "9090" + "90ffc2" + "00" + "90"
    )
    older = bytes.fromhex("919804c4020102" + "00" + "920102" + "9101" + "010409")
    assert decode_entry(older) == [PartitionRecord(*fields)]
    older = bytes.fromhex("919904c4020102" + "00" + "920102" + "9101" + "010409" + "9102")
    assert decode_entry(older) == [PartitionRecord(*fields, (2,))]
    change = PartitionChangeRecord(
        b"\1\2", 0, 2, 5, (2,), eligible_leader_replicas=(), unclean=True
    )
    assert encode_entry([change]).hex() == "91" + "9f" + "05" + "c4020102" + "000205" + "9102" + (
        "c0" + "90" + "c3" + "c0c0" + "c0ffc2" + "c0"
    )


def changed(image: Image, **fields: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """In-sync and eligible replicas after a change of the topic's first partition."""
    topic = image.topics["flights"]
    image.replay_entry([PartitionChangeRecord(topic.topic_id, 0, **fields)])
    partition = topic.partitions[0]
    return partition.in_sync_replicas, partition.eligible_leader_replicas


def test_eligible_replicas_are_those_out_of_sync_and_survive_a_snapshot() -> None:
    image = Image({})
    image.replay_entry(create(image, replication_factor=3, brokers=[0, 1, 2], partitions=1))
    found = changed(image, leader_id=0, in_sync_replicas=(0,), eligible_leader_replicas=(1, 2))
    assert found == ((0,), (1, 2))
    assert changed(image, leader_epoch=1) == ((0,), (1, 2)), "what is not given stays"
    again = Image({})
    again.replay_entry(decode_entry(encode_entry(image.snapshot_records())))
    assert described(again) == described(image)
    copy = image.topics["flights"].copy()
    assert copy.partitions[0].eligible_leader_replicas == (1, 2)
    assert changed(image, in_sync_replicas=(0, 1)) == ((0, 1), (2,)), "not both"
    assert changed(image, replicas=(0, 1)) == ((0, 1), ()), "nor one that holds nothing"
    assert changed(image, in_sync_replicas=(0,), eligible_leader_replicas=(1,)) == ((0,), (1,))
    assert changed(image, eligible_leader_replicas=()) == ((0,), ())


def test_bad_entries_have_their_own_errors() -> None:
    with pytest.raises(CorruptLog):
        decode_entry(b"\xc1")
    with pytest.raises(CorruptLog):
        decode_entry(msgspec.msgpack.encode([[3, "not bytes"]]))
    with pytest.raises(UnsupportedFormat):
        decode_entry(msgspec.msgpack.encode([[77, "new"]]))
