"""The controller: decisions about topics, and the image that their records add up to."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from quiverlog.batch.schema import serialize_schema
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
from quiverlog.core.controller.topics import (
    alter_topic,
    bump_leader_epochs,
    check_topic_name,
    create_topic,
    delete_topic,
    find_topic,
    next_producer_id_block,
)
from quiverlog.errors import (
    CorruptLog,
    IncompatibleSchema,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidSchema,
    InvalidTopicName,
    PolicyViolation,
    TopicExists,
    UnknownTopic,
    UnsupportedFormat,
)
from quiverlog.types import Durability

SCHEMA = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])
_random = itertools.count(1)


def entropy(count: int) -> bytes:
    return next(_random).to_bytes(count, "big")


def create(image: Image, name: str = "flights", **changes: Any) -> list[Record]:
    options: dict[str, Any] = {
        "schema": serialize_schema(SCHEMA),
        "partitions": 2,
        "replication_factor": 1,
        "key_columns": ["carrier"],
        "configs": {},
        "brokers": [0],
        "now_us": 1_000,
        "entropy": entropy,
    }
    return create_topic(image, name=name, **{**options, **changes})


def alter(image: Image, name: str = "flights", **changes: Any) -> list[Record]:
    options: dict[str, Any] = {
        "set_configs": {},
        "delete_configs": [],
        "partitions": -1,
        "schema": b"",
        "brokers": [0],
        "now_us": 2_000,
    }
    return alter_topic(image, find_topic(image, name), **{**options, **changes})


@pytest.fixture
def image() -> Image:
    image = Image({})
    image.replay_entry(create(image))
    return image


def test_deciding_changes_nothing() -> None:
    image = Image({})
    create(image)
    assert image.topics == {}
    assert image.version == 0


def test_a_created_topic_is_in_the_image(image: Image) -> None:
    topic = image.topics["flights"]
    assert image.topics_by_id[topic.topic_id] is topic
    assert topic.key_columns == ("carrier",)
    assert topic.schema_id == 1
    assert topic.schema.equals(SCHEMA)
    assert topic.config.durability is Durability.FLUSHED
    assert [(p.partition, p.leader_id, p.leader_epoch) for p in topic.partitions] == [
        (0, 0, 0),
        (1, 0, 0),
    ]
    assert image.partition_count == 2
    assert image.version == 1


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "_one"])
def test_good_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a/b", "a b", "ä", "a\n", "\0", "__internal", "a\u2028"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(name)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": "flights"}, TopicExists),
        ({"partitions": 0}, InvalidPartitions),
        ({"partitions": 10_001}, InvalidPartitions),
        ({"replication_factor": 0}, InvalidReplicationFactor),
        ({"replication_factor": 2}, InvalidReplicationFactor),
        ({"configs": {"durability": "replicated"}}, InvalidConfig),
        ({"configs": {"nope": "1"}}, InvalidConfig),
        ({"schema": b""}, InvalidSchema),
        ({"schema": b"garbage"}, InvalidSchema),
        ({"key_columns": ["nope"]}, InvalidSchema),
        ({"key_columns": ["carrier", "carrier"]}, InvalidSchema),
        ({"key_columns": [str(i) for i in range(17)]}, InvalidSchema),
    ],
)
def test_what_create_refuses(image: Image, changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        create(image, **{"name": "other", **changes})


def test_names_that_differ_in_dot_and_underscore_are_different_topics() -> None:
    image = Image({})
    image.replay_entry(create(image, "a.b"))
    image.replay_entry(create(image, "a_b"))
    assert set(image.topics) == {"a.b", "a_b"}


def test_a_broker_holds_so_many_partitions_and_no_more() -> None:
    image = Image({})
    image.replay_entry(create(image, "a", partitions=10_000))
    image.replay_entry(create(image, "b", partitions=9_999))
    with pytest.raises(PolicyViolation):
        create(image, "c", partitions=2)
    image.replay_entry(create(image, "c", partitions=1))
    image.replay_entry(delete_topic(image.topics["a"]))
    assert image.partition_count == 10_000


def test_replicas_go_round_the_brokers() -> None:
    image = Image({})
    records = create(image, partitions=3, replication_factor=2, brokers=[4, 5, 6])
    found = [r.replicas for r in records if isinstance(r, PartitionRecord)]
    assert found == [(4, 5), (5, 6), (6, 4)]


# --- alter --------------------------------------------------------------------------------------
def test_configs_are_set_and_deleted(image: Image) -> None:
    image.replay_entry(alter(image, set_configs={"retention.ms": "5000", "durability": "memory"}))
    assert image.topics["flights"].config.retention_ms == 5000
    assert image.topics["flights"].config.durability is Durability.MEMORY
    image.replay_entry(alter(image, delete_configs=["retention.ms"]))
    assert image.topics["flights"].configs == {"durability": "memory"}
    assert alter(image, delete_configs=["retention.ms"]) == []
    assert alter(image, set_configs={"durability": "memory"}) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"set_configs": {"retention.ms": "0"}},
        {"set_configs": {"nope": "0"}},
        {"delete_configs": ["nope"]},
        {"set_configs": {"retention.ms": "5000"}, "delete_configs": ["retention.ms"]},
        {"set_configs": {"durability": "replicated"}},
    ],
)
def test_bad_configs_are_refused(image: Image, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        alter(image, **changes)


def test_partitions_only_grow(image: Image) -> None:
    image.replay_entry(alter(image, partitions=5))
    assert [p.partition for p in image.topics["flights"].partitions] == [0, 1, 2, 3, 4]
    assert image.partition_count == 5
    assert alter(image, partitions=5) == []
    for partitions in (4, 0, -2, 10_001):
        with pytest.raises(InvalidPartitions):
            alter(image, partitions=partitions)


def test_schema_history_grows(image: Image) -> None:
    wider = SCHEMA.append(pa.field("origin", pa.string()))
    image.replay_entry(alter(image, schema=serialize_schema(wider)))
    topic = image.topics["flights"]
    assert topic.schema_id == 2
    assert set(topic.schemas) == {1, 2}
    assert alter(image, schema=serialize_schema(wider)) == [], "a repeated request"
    with pytest.raises(IncompatibleSchema):
        alter(image, schema=serialize_schema(SCHEMA))


def test_a_key_column_keeps_its_type() -> None:
    image = Image({})
    schema = pa.schema([("id", pa.int32()), ("x", pa.int32())])
    image.replay_entry(create(image, schema=serialize_schema(schema), key_columns=["id"]))
    wider_key = pa.schema([("id", pa.int64()), ("x", pa.int32())])
    with pytest.raises(IncompatibleSchema, match="key column 'id'"):
        alter(image, schema=serialize_schema(wider_key))
    wider_value = pa.schema([("id", pa.int32()), ("x", pa.int64())])
    assert alter(image, schema=serialize_schema(wider_value))


# --- other records ------------------------------------------------------------------------------
def test_delete_and_create_again_gives_another_id(image: Image) -> None:
    before = image.topics["flights"].topic_id
    image.replay_entry(delete_topic(image.topics["flights"]))
    assert before not in image.topics_by_id
    with pytest.raises(UnknownTopic):
        find_topic(image, "flights")
    image.replay_entry(create(image))
    assert image.topics["flights"].topic_id != before


def test_producer_id_blocks_do_not_overlap() -> None:
    image = Image({})
    first = next_producer_id_block(image)
    image.replay_entry([first])
    second = next_producer_id_block(image)
    assert second.next_producer_id - first.next_producer_id == first.next_producer_id


def test_leader_epochs_of_ours_are_bumped() -> None:
    image = Image({})
    image.replay_entry(create(image, partitions=2, brokers=[0, 1]))
    records = bump_leader_epochs(image, 0)
    assert [(r.partition, r.leader_epoch) for r in records] == [(0, 1)]  # type: ignore[union-attr]
    image.replay_entry(records)
    epochs = [p.leader_epoch for p in image.topics["flights"].partitions]
    assert epochs == [1, 0]


def test_version_grows_with_every_entry(image: Image) -> None:
    before = image.version
    image.replay_entry(alter(image, set_configs={"retention.ms": "5000"}))
    image.replay_entry(alter(image, partitions=4))
    assert image.version == before + 2


def described(image: Image) -> Any:
    """Everything that an image holds, as plain values."""
    return [
        image.version,
        image.next_producer_id,
        image.partition_count,
        {
            name: (
                topic.topic_id,
                topic.created_us,
                topic.configs,
                topic.config,
                topic.key_columns,
                [msgspec.to_builtins(record) for record in topic.schema_records],
                {i: schema.to_string() for i, schema in topic.schemas.items()},
                [
                    (
                        p.partition,
                        p.replicas,
                        p.in_sync_replicas,
                        p.eligible_leader_replicas,
                        p.leader_id,
                        p.leader_epoch,
                        p.partition_epoch,
                    )
                    for p in topic.partitions
                ],
            )
            for name, topic in image.topics.items()
        },
    ]


def test_snapshot_is_the_same_image(image: Image) -> None:
    wider = SCHEMA.append(pa.field("origin", pa.string()))
    image.replay_entry(alter(image, partitions=4, schema=serialize_schema(wider)))
    image.replay_entry(alter(image, set_configs={"retention.ms": "5000"}))
    image.replay_entry([next_producer_id_block(image)])
    image.replay_entry(bump_leader_epochs(image, 0))
    image.replay_entry(create(image, "other"))
    again = Image({})
    again.replay_entry(decode_entry(encode_entry(image.snapshot_records())))
    assert described(again) == described(image)


# --- bytes --------------------------------------------------------------------------------------
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
    assert entry.hex() == "92" + "92" + "09cd03e8" + "99" + "05" + "c4020102" + (
        "030405" + "c0c0" + "c0c2"
    )
    # Records of older writers: before replicas could change, and before any were eligible.
    for older in ("9605c4020102030405c0", "9705c4020102030405c0c0"):
        assert decode_entry(bytes.fromhex("929209cd03e8" + older)) == decode_entry(entry)
    assert decode_entry(bytes.fromhex("919305c402010203")) == [PartitionChangeRecord(b"\1\2", 3)]


def test_golden_bytes_of_eligible_replicas() -> None:
    """A partition as it was written before any were eligible has none."""
    fields = (b"\1\2", 0, (1, 2), (1,), 1, 4, 9)
    entry = encode_entry([PartitionRecord(*fields, (2,))])
    assert entry.hex() == "91" + "99" + "04" + "c4020102" + "00" + "920102" + "9101" + "010409" + (
        "9102"
    )
    older = bytes.fromhex("919804c4020102" + "00" + "920102" + "9101" + "010409")
    assert decode_entry(older) == [PartitionRecord(*fields)]
    change = PartitionChangeRecord(
        b"\1\2", 0, 2, 5, (2,), eligible_leader_replicas=(), unclean=True
    )
    assert encode_entry([change]).hex() == "91" + "99" + "05" + "c4020102" + "000205" + "9102" + (
        "c0" + "90" + "c3"
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
    assert changed(image, in_sync_replicas=(0,), eligible_leader_replicas=(1, 2)) == ((0,), (1, 2))
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


def test_bad_entries_are_told_apart() -> None:
    with pytest.raises(CorruptLog):
        decode_entry(b"\xc1")
    with pytest.raises(CorruptLog):
        decode_entry(msgspec.msgpack.encode([[3, "not bytes"]]))
    with pytest.raises(UnsupportedFormat):
        decode_entry(msgspec.msgpack.encode([[77, "new"]]))
