"""The controller: decisions about topics, and the image that their records add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller import elections
from quiverlog.core.controller.elections import restarted_alone
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    BrokerChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    decode_entry,
    encode_entry,
)
from quiverlog.core.controller.topics import (
    check_topic_name,
    create_topic,
    delete_topic,
    find_topic,
    find_topic_as,
    next_producer_id_block,
)
from quiverlog.core.raft.messages import ENTRY_OVERHEAD_BYTES
from quiverlog.errors import (
    IncompatibleSchema,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidSchema,
    InvalidTopicName,
    PolicyViolation,
    TopicExists,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.limits import PARTITIONS_PER_BROKER_MAX, RAFT_APPEND_BYTES_MAX
from quiverlog.types import Durability
from tests.support.controller import SCHEMA, alter, create, described, entropy, register


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


def test_a_broker_that_is_full_leaves_room_at_the_others() -> None:
    """What is counted is what a broker holds, and not what the cluster has."""
    image = Image({})
    for name in "ab":
        image.replay_entry(create(image, name, partitions=10_000))
    with pytest.raises(PolicyViolation, match="hold 20000"):
        create(image, "c", partitions=1)
    two = [0, 1]
    image.replay_entry(create(image, "c", partitions=9_000, brokers=two))
    assert image.replica_counts == {0: 20_000, 1: 9_000}
    with pytest.raises(PolicyViolation, match="1 of 2 brokers"):
        create(image, "d", partitions=1, replication_factor=2, brokers=two)
    image.replay_entry(create(image, "d", partitions=10_000, brokers=[0, 1, 2]))
    with pytest.raises(PolicyViolation, match="broker 1 holds 14000"):
        create(image, "e", partitions=10_000, brokers=two)
    image.replay_entry(delete_topic(image.topics["a"]))
    assert +image.replica_counts == {0: 10_000, 1: 14_000, 2: 5_000}


def test_a_name_can_be_asked_for_as_one_topic_and_no_other() -> None:
    image = Image({})
    image.replay_entry(create(image, "a"))
    topic = image.topics["a"]
    assert find_topic_as(image, "a", b"") is topic
    assert find_topic_as(image, "a", topic.topic_id) is topic
    with pytest.raises(UnknownTopicId):
        find_topic_as(image, "a", bytes(16))
    with pytest.raises(UnknownTopic):
        find_topic_as(image, "b", topic.topic_id)


def replicas_of(records: Sequence[Record]) -> list[tuple[int, ...]]:
    return [r.replicas for r in records if isinstance(r, PartitionRecord)]


def test_topics_begin_at_different_brokers() -> None:
    image = Image({})
    found = [
        replicas_of(create(image, partitions=3, replication_factor=2, brokers=[4, 5, 6]))
        for _ in range(3)
    ]
    assert {one[0] for one in found} == {(4, 5), (5, 6), (6, 4)}
    for one in found:
        assert sorted(one) == [(4, 5), (5, 6), (6, 4)]


def test_only_brokers_that_live_and_stay_get_partitions() -> None:
    image = Image({})
    register(image, [1, 2, 3, 4])
    image.replay(BrokerChangeRecord(2, -1, fenced=True))
    image.replay(BrokerChangeRecord(3, -1, in_shutdown=True))
    options: dict[str, Any] = {"name": "t", "schema": serialize_schema(SCHEMA), "partitions": 8}
    options |= {"key_columns": [], "configs": {}, "now_us": 1, "entropy": entropy}
    records = create_topic(image, replication_factor=2, **options)
    assert {node_id for one in replicas_of(records) for node_id in one} == {1, 4}
    with pytest.raises(InvalidReplicationFactor, match="can take one: 2"):
        create_topic(image, replication_factor=3, **options)


@pytest.mark.parametrize(
    ("brokers", "expected"), [([5], 1), ([5, 6], 2), ([5, 6, 7], 3), ([5, 6, 7, 8], 3)]
)
def test_as_many_replicas_as_brokers_and_three_at_most(brokers: list[int], expected: int) -> None:
    image = Image({})
    image.replay_entry(create(image, replication_factor=-1, brokers=brokers, partitions=4))
    topic = image.topics["flights"]
    assert {len(one.replicas) for one in topic.partitions} == {topic.replication_factor}
    assert topic.replication_factor == expected
    safe = Durability.REPLICATED if expected > 1 else Durability.FLUSHED
    assert (topic.config.durability, topic.config.min_in_sync_replicas) == (safe, min(expected, 2))


@pytest.mark.parametrize(
    "change",
    [{"fenced": True}, {"in_shutdown": True}, {"decommissioning": True}],
    ids=["fenced", "stopping", "leaving"],
)
def test_a_broker_that_can_take_no_replica_does_not_count(change: dict[str, bool]) -> None:
    image = Image({})
    register(image, [1, 2, 3])
    image.replay(BrokerChangeRecord(2, -1, **change))
    options: dict[str, Any] = {"name": "t", "schema": serialize_schema(SCHEMA), "partitions": 2}
    options |= {"key_columns": [], "configs": {}, "now_us": 1, "entropy": entropy}
    records = create_topic(image, replication_factor=-1, **options)
    assert {frozenset(one) for one in replicas_of(records)} == {frozenset((1, 3))}


def test_a_lack_of_brokers_that_can_take_a_replica_has_its_own_error() -> None:
    with pytest.raises(InvalidReplicationFactor, match="1 replicas were asked for"):
        create(Image({}), replication_factor=-1, brokers=[])


@pytest.mark.parametrize("factor", [-2, 0, 16])
def test_no_other_number_means_the_default(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactor, match=f"factor of {factor} was asked for"):
        create(Image({}), replication_factor=factor)


def test_a_topic_does_not_grow_while_too_few_brokers_are_left() -> None:
    image = Image({})
    image.replay_entry(create(image, replication_factor=3, brokers=[0, 1, 2], partitions=3))
    image.replay(BrokerChangeRecord(1, -1, fenced=True))
    with pytest.raises(InvalidReplicationFactor, match="can take one: 2"):
        alter(image, partitions=4)
    assert alter(image, partitions=3) == []
    assert alter(image, set_configs={"retention.ms": "5000"}), "what needs no broker is possible"
    register(image, [0, 1, 2, 3])
    image.replay_entry(alter(image, partitions=8))
    led = Counter(one.leader_id for one in image.topics["flights"].partitions)
    assert led == {0: 2, 1: 2, 2: 2, 3: 2}, "the broker that is new gets more of the new ones"


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
    """Rule 25 of docs/replication-rules.md."""
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
    led = [p.leader_id == 0 for p in image.topics["flights"].partitions]
    assert sum(led) == 1
    image.replay_entry(restarted_alone(image, 0))
    epochs = [p.leader_epoch for p in image.topics["flights"].partitions]
    assert epochs == [int(is_ours) for is_ours in led]


def test_version_grows_with_every_entry(image: Image) -> None:
    """Rule 31 of docs/replication-rules.md."""
    before = image.version
    image.replay_entry(alter(image, set_configs={"retention.ms": "5000"}))
    image.replay_entry(alter(image, partitions=4))
    assert image.version == before + 2


def test_snapshot_is_the_same_image(image: Image) -> None:
    wider = SCHEMA.append(pa.field("origin", pa.string()))
    image.replay_entry(alter(image, partitions=4, schema=serialize_schema(wider)))
    image.replay_entry(alter(image, set_configs={"retention.ms": "5000"}))
    image.replay_entry([next_producer_id_block(image)])
    image.replay_entry(restarted_alone(image, 0))
    image.replay_entry(create(image, "other"))
    again = Image({})
    again.replay_entry(decode_entry(encode_entry(image.snapshot_records())))
    assert described(again) == described(image)


# --- configuration and elections ----------------------------------------------------------------
def test_what_elections_go_by_is_the_topics_own() -> None:
    """Another broker may have another default, and the leader counts by its own."""
    image = Image({"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
    image.replay_entry(create(image, "one"))
    assert image.topics["one"].configs == {}
    assert image.topics["one"].config.unclean_leader_election
    image.replay_entry(create(image, "two", replication_factor=2, brokers=[0, 1]))
    two = image.topics["two"]
    assert (two.config.min_in_sync_replicas, two.config.unclean_leader_election) == (1, True)
    elsewhere = Image({})
    elsewhere.replay_entry(image.snapshot_records())
    assert elsewhere.topics["two"].config == two.config
    image.replay_entry(alter(image, "two", delete_configs=["min.insync.replicas"]))
    assert two.config.min_in_sync_replicas == 2


def test_a_lower_minimum_leaves_no_replica_out_of_sync_eligible() -> None:
    """Rows become readable from then on that it does not have."""
    image = Image({})
    image.replay_entry(create(image, replication_factor=2, brokers=[0, 1], partitions=1))
    topic = image.topics["flights"]
    leader = topic.partitions[0].leader_id
    image.replay(
        PartitionChangeRecord(
            topic.topic_id,
            0,
            in_sync_replicas=(leader,),
            eligible_leader_replicas=(1 - leader,),
        )
    )
    assert len(alter(image, set_configs={"retention.ms": "5000"})) == 1
    image.replay_entry(alter(image, set_configs={"min.insync.replicas": "1"}))
    assert topic.partitions[0].eligible_leader_replicas == ()
    assert topic.partitions[0].leader_id == leader


def test_a_broker_with_all_that_it_may_hold_is_fenced_in_one_entry() -> None:
    image = Image({})
    for name in "ab":
        options = {"partitions": 10_000, "replication_factor": 3, "brokers": [100, 101, 102]}
        image.replay_entry(create(image, name, **options))
    records = elections.broker_fenced(image, 100)
    assert len(records) == PARTITIONS_PER_BROKER_MAX
    assert len(encode_entry(records)) < RAFT_APPEND_BYTES_MAX - ENTRY_OVERHEAD_BYTES
