"""Internal topics: how they are made, what of them may change, and how their replicas follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from quiverlog.core.controller import elections, topics
from quiverlog.core.controller.configs import CONFIG_DEFS
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.internal_topics import partitions_at_creation
from quiverlog.core.controller.reassignment import arrived, reassign
from quiverlog.core.controller.records import (
    FeatureLevelRecord,
    PartitionChangeRecord,
    Record,
    decode_entry,
    encode_entry,
)
from quiverlog.core.controller.replication_factor import (
    check_factor,
    factors_follow,
    internal_few,
    raise_internal,
)
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.controller.topics import (
    check_topic_name,
    delete_topic,
    ensure_internal_topics,
    internal_factor,
)
from quiverlog.errors import (
    CoordinatorNotReady,
    FeatureNotFinalised,
    InternalTopic,
    InvalidPartitions,
    InvalidTopicName,
    PolicyViolation,
)
from quiverlog.limits import PARTITIONS_PER_BROKER_MAX
from quiverlog.types import Durability
from tests.support.controller import alter, create, entropy, register

NAMES = ["__transactions", "__staged"]


def cluster(count: int, *, level: int = 2, defaults: dict[str, str] | None = None) -> Image:
    image = Image(defaults or {})
    register(image, range(count))
    if level > 1:
        image.replay(FeatureLevelRecord(level))
    return image


def ensured(image: Image, staged: int = 0) -> list[Record]:
    return ensure_internal_topics(image, staged=staged, now_us=1_000, entropy=entropy)


def replay(image: Image, records: list[Record]) -> None:
    """As another broker has them from the log."""
    assert records
    image.replay_entry(decode_entry(encode_entry(records)))


def made(count: int, **options: Any) -> Image:
    image = cluster(count, **options)
    replay(image, ensured(image))
    return image


def change(image: Image, node_id: int, **states: bool) -> None:
    image.brokers[node_id] = replace(image.brokers[node_id], **states)


def join(image: Image, brokers: Sequence[int]) -> None:
    register(image, brokers)


def arrive(image: Image) -> None:
    """All copies are in sync, and all moves end."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            partition.in_sync_replicas = partition.replicas
            partition.note_out_of_sync(None, None)
            while partition.moves:
                records = arrived(topic, partition, partition.in_sync_replicas)
                replay(image, [*records, *factors_follow(image, records)])


def levels(topic: TopicImage) -> tuple[int, Durability, int]:
    return (
        topic.replication_factor,
        topic.config.durability,
        topic.config.min_in_sync_replicas,
    )


# --- made ----------------------------------------------------------------------------------------
def test_below_their_level_none_is_made() -> None:
    with pytest.raises(FeatureNotFinalised, match="needs feature level 2, the cluster has 1"):
        ensured(cluster(3, level=1))


def test_both_are_made_in_one_entry_and_once() -> None:
    image = made(3)
    assert list(image.topics) == NAMES
    assert all(one.is_internal for one in image.topics.values())
    assert ensured(image) == []
    replay(image, create(image, "flights", brokers=range(3)))
    assert not image.topics["flights"].is_internal


def test_what_is_missing_alone_is_made() -> None:
    image = cluster(3)
    replay(image, ensured(image)[: 1 + len(CONFIG_DEFS) + 1 + 16])
    assert list(image.topics) == NAMES[:1]
    before = image.topics["__transactions"].topic_id
    replay(image, ensured(image))
    assert list(image.topics) == NAMES
    assert image.topics["__transactions"].topic_id == before


def test_their_columns() -> None:
    image = made(1)
    assert image.topics["__transactions"].schema.equals(
        pa.schema(
            [
                pa.field("kind", pa.int8(), nullable=False),
                pa.field("transactional_id", pa.string(), nullable=False),
                pa.field("value", pa.binary(), nullable=False),
            ]
        )
    )
    staged = image.topics["__staged"].schema
    assert [(one.name, str(one.type)) for one in staged] == [
        ("kind", "int8"),
        ("transactional_id", "string"),
        ("epoch", "int64"),
        ("sequence", "int64"),
        ("attempt", "binary"),
        ("topic_id", "binary"),
        ("partition", "int32"),
        ("row_count", "int32"),
        ("batch", "binary"),
    ]
    assert not any(one.nullable for one in staged)


@pytest.mark.parametrize(
    ("brokers", "decided", "staged"),
    [
        (1, (1, Durability.FLUSHED, 1), (1, Durability.FLUSHED, 1)),
        (2, (2, Durability.REPLICATED_FLUSHED, 2), (2, Durability.REPLICATED, 2)),
        (3, (3, Durability.REPLICATED_FLUSHED, 2), (3, Durability.REPLICATED, 2)),
        (4, (3, Durability.REPLICATED_FLUSHED, 2), (3, Durability.REPLICATED, 2)),
    ],
)
def test_replicas_and_levels_follow_from_the_brokers(
    brokers: int, decided: tuple[Any, ...], staged: tuple[Any, ...]
) -> None:
    image = made(brokers)
    assert levels(image.topics["__transactions"]) == decided
    assert levels(image.topics["__staged"]) == staged


def test_no_default_of_a_broker_counts() -> None:
    others = {
        "retention.ms": "1000",
        "retention.bytes": "65536",
        "segment.bytes": "65536",
        "segment.ms": "1000",
        "max.message.bytes": "1024",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "1",
        "message.timestamp.after.max.ms": "1",
        "durability": "memory",
        "min.insync.replicas": "3",
        "unclean.leader.election.enable": "true",
        "compression.type": "zstd",
        "validation": "full",
        "index.interval.bytes": "512",
    }
    assert others.keys() == set(CONFIG_DEFS), "a new key needs a value for internal topics"
    plain, under_others = made(3), made(3, defaults=others)
    for name in NAMES:
        topic = under_others.topics[name]
        assert topic.config == plain.topics[name].config
        assert topic.configs.keys() == set(CONFIG_DEFS)
        assert (topic.config.retention_ms, topic.config.retention_bytes) == (-1, -1)
        assert not topic.config.unclean_leader_election
        assert (topic.config.behind_ms_max, topic.config.ahead_ms_max) == (-1, -1)
    staged = under_others.topics["__staged"].config
    assert (staged.segment_bytes, staged.batch_bytes_max) == (64 << 20, 32 << 20)


@pytest.mark.parametrize(
    ("live", "staged", "expected"),
    [
        (1, 0, 4),
        (2, 0, 4),
        (3, 0, 6),
        (127, 0, 254),
        (128, 0, 256),
        (129, 0, 256),
        (1, 4, 4),
        (200, 5, 5),
        (1, 256, 256),
    ],
)
def test_how_many_partitions(live: int, staged: int, expected: int) -> None:
    assert partitions_at_creation("__staged", staged, live) == expected
    assert partitions_at_creation("__transactions", staged, live) == 16


def test_partitions_in_the_image_are_those() -> None:
    image = cluster(3)
    replay(image, ensured(image, staged=9))
    assert [len(image.topics[name].partitions) for name in NAMES] == [16, 9]


@pytest.mark.parametrize(("live", "of"), [(0, 1), (1, 2), (2, 3), (2, 4)])
def test_they_wait_until_enough_brokers_live(live: int, of: int) -> None:
    image = cluster(of)
    for node_id in range(live, of):
        change(image, node_id, fenced=True)
    with pytest.raises(CoordinatorNotReady, match=f"with {min(3, of)} replicas, and {live} "):
        ensured(image)
    change(image, live, fenced=False)
    replay(image, ensured(image))


def test_brokers_that_take_no_partitions_or_leave_do_not_count() -> None:
    image = cluster(5)
    change(image, 0, takes_partitions=False)
    change(image, 1, decommissioning=True)
    assert internal_factor(image) == 3
    change(image, 2, decommissioning=True)
    assert internal_factor(image) == 2
    replay(image, ensured(image))
    assert all(
        set(one.replicas) <= {3, 4} for topic in image.topics.values() for one in topic.partitions
    )


@pytest.mark.parametrize("brokers", [2, 3, 5])
def test_their_leaders_are_spread(brokers: int) -> None:
    for topic in made(brokers).topics.values():
        led = Counter(one.leader_id for one in topic.partitions)
        assert max(led.values()) - min(led[n] for n in range(brokers)) <= 1


def test_room_on_a_broker_is_that_for_both() -> None:
    image = cluster(1)
    image.replica_counts[0] = PARTITIONS_PER_BROKER_MAX - 20
    assert ensured(image)
    image.replica_counts[0] += 1
    with pytest.raises(PolicyViolation, match=r"20 more\s+would exceed"):
        ensured(image)


def test_they_count_among_the_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    image = cluster(1)
    replay(image, create(image))
    monkeypatch.setattr(topics, "TOPICS_MAX", 3)
    assert ensured(image)
    monkeypatch.setattr(topics, "TOPICS_MAX", 2)
    with pytest.raises(PolicyViolation, match="most allowed"):
        ensured(image)


# --- refused and allowed -------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_no_request_creates_or_deletes_one(name: str) -> None:
    with pytest.raises(InternalTopic, match="the controller makes it"):
        check_topic_name(name)
    with pytest.raises(InternalTopic):
        create(Image({}), name)
    with pytest.raises(InternalTopic, match="cannot be deleted"):
        delete_topic(made(1).topics[name])


def test_other_names_of_that_kind_name_no_topic() -> None:
    for name in ("__", "__other", "__transactions2"):
        with pytest.raises(InvalidTopicName):
            check_topic_name(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "changes",
    [
        {"set_configs": {"retention.ms": "1000"}},
        {"set_configs": {"retention.ms": "-1"}},
        {"delete_configs": ["retention.ms"]},
        {"schema": b"any"},
        {"set_configs": {"segment.bytes": "65536"}, "partitions": 20},
    ],
)
def test_no_request_changes_schema_or_configuration(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InternalTopic, match="schema and configuration are fixed"):
        alter(made(1), name, **changes)


@pytest.mark.parametrize("partitions", [15, 16, 17])
def test_the_partitions_of_transactions_are_fixed(partitions: int) -> None:
    with pytest.raises(InternalTopic, match="number of its partitions is fixed"):
        alter(made(1), "__transactions", partitions=partitions)
    assert alter(made(1), "__transactions") == []


def test_staged_gets_more_partitions_up_to_the_most() -> None:
    image = made(1)
    with pytest.raises(InvalidPartitions, match="cannot shrink"):
        alter(image, "__staged", partitions=3)
    assert alter(image, "__staged", partitions=4) == []
    assert len(alter(image, "__staged", partitions=255)) == 251
    with pytest.raises(InvalidPartitions, match=r"257 .* the most are 256"):
        alter(image, "__staged", partitions=257)
    replay(image, alter(image, "__staged", partitions=256))
    assert len(image.topics["__staged"].partitions) == 256


def test_other_topics_have_as_many_partitions_as_ever() -> None:
    image = Image({})
    replay(image, create(image))
    assert len(alter(image, partitions=300)) == 298


def test_they_are_moved_and_elected_on_request() -> None:
    image = made(4)
    topic = image.topics["__transactions"]
    one = topic.partitions[0]
    (other,) = {0, 1, 2, 3} - set(one.replicas)
    assert reassign(image, topic, one, (other, *one.replicas[:2]))
    key = (topic.topic_id, 0)
    for node_id in one.replicas:
        change(image, node_id, fenced=True)
        replay(image, elections.broker_fenced(image, node_id))
    assert key in image.leaderless, "no unclean election by itself"
    change(image, one.replicas[0], fenced=False)
    assert elections.unclean_leader(image, *key, {}), "on request it is one"


# --- raised --------------------------------------------------------------------------------------
def test_a_cluster_that_has_grown_gets_more_replicas() -> None:
    image = made(1)
    assert internal_few(image) == []
    join(image, range(3))
    assert [one.name for one in internal_few(image)] == NAMES
    replay(image, raise_internal(image))
    for topic in image.topics.values():
        assert levels(topic) == (1, Durability.FLUSHED, 1), "until all copies are there"
        assert {len(one.replicas) for one in topic.partitions} == {3}
    assert raise_internal(image) == [], "they move already"
    arrive(image)
    assert levels(image.topics["__transactions"]) == (3, Durability.REPLICATED_FLUSHED, 2)
    assert levels(image.topics["__staged"]) == (3, Durability.REPLICATED, 2)
    assert internal_few(image) == []
    assert raise_internal(image) == []
    for topic in image.topics.values():
        first = Counter(one.replicas[0] for one in topic.partitions)
        assert max(first.values()) - min(first[n] for n in range(3)) <= 1, "all brokers lead"


@pytest.mark.parametrize(("brokers", "factor"), [(2, 2), (3, 3), (4, 3)])
def test_they_are_raised_up_to_three(brokers: int, factor: int) -> None:
    image = made(1)
    join(image, range(brokers))
    replay(image, raise_internal(image))
    arrive(image)
    assert {one.replication_factor for one in image.topics.values()} == {factor}
    assert all(
        len(one.replicas) == factor for topic in image.topics.values() for one in topic.partitions
    )


def test_they_are_raised_when_all_that_are_needed_live() -> None:
    image = made(1)
    join(image, range(3))
    change(image, 2, fenced=True)
    assert raise_internal(image) == []
    change(image, 2, fenced=False)
    assert raise_internal(image)
    change(image, 2, decommissioning=True)
    targets = [one for one in raise_internal(image) if isinstance(one, PartitionChangeRecord)]
    assert {tuple(sorted(one.replicas or ())) for one in targets} == {(0, 1)}


def test_a_partition_without_a_leader_is_raised_later() -> None:
    image = made(1)
    join(image, range(3))
    first = image.topics["__transactions"].partitions[0]
    first.leader_id = -1
    numbers = [
        one.partition
        for one in raise_internal(image)
        if isinstance(one, PartitionChangeRecord)
        and one.topic_id == image.topics["__transactions"].topic_id
    ]
    assert numbers == list(range(1, 16))


def test_a_topic_that_moves_is_raised_later() -> None:
    image = made(1)
    join(image, range(3))
    staged = image.topics["__staged"]
    replay(image, reassign(image, staged, staged.partitions[0], (1,)))
    raised = {one.topic_id for one in raise_internal(image)}  # type: ignore[union-attr]
    assert raised == {image.topics["__transactions"].topic_id}


def test_more_replicas_on_request_stay() -> None:
    image = made(2)
    join(image, range(5))
    staged = image.topics["__staged"]
    replay(
        image,
        reassign(image, staged, staged.partitions[0], (0, 1, 2, 3), changes_count=True),
    )
    arrive(image)
    replay(image, raise_internal(image))
    arrive(image)
    assert [len(one.replicas) for one in staged.partitions] == [4, 3, 3, 3]


def test_other_topics_are_not_raised() -> None:
    image = made(1)
    replay(image, create(image, brokers=range(3)))
    others = {one.topic_id for one in raise_internal(image)}  # type: ignore[union-attr]
    assert image.topics["flights"].topic_id not in others


def test_fewer_replicas_on_request_have_the_level_of_fewer() -> None:
    image = made(3)
    for topic in image.topics.values():
        check_factor(image, topic, 1)
        for one in topic.partitions:
            replay(image, reassign(image, topic, one, one.replicas[:1], changes_count=True))
    arrive(image)
    for topic in image.topics.values():
        assert levels(topic) == (1, Durability.FLUSHED, 1)
    restored = Image({})
    restored.replay_entry(image.snapshot_records())
    assert [levels(one) for one in restored.topics.values()] == [(1, Durability.FLUSHED, 1)] * 2
