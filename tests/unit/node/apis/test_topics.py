"""Metadata and the administration of topics through the whole node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiverlog import errors
from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.configs import CONFIG_DEFS
from quiverlog.types import Compression, Durability
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of

NOT_UTF8 = serialize_schema(pa.schema([("column", pa.int64())])).replace(b"column", b"\xb0olumn")


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path, advertised_host="broker.example", advertised_port=9000, rack="r1")


def directories(node: NodeDriver) -> set[str]:
    """Partition directories, wherever the storage keeps them."""
    return {path.parent.name for path in Path(node.config.data_dir).rglob("partition.json")}


def alter(node: NodeDriver, **fields: Any) -> Any:
    return node.call(m.AlterTopicRequest(name="t", **fields))[0]


def describe(node: NodeDriver, name: str = "t") -> m.TopicDescription:
    response, _ = node.call(m.DescribeTopicsRequest(names=[name]))
    described: m.TopicDescription = response.topics[0]
    return described


# --- metadata -----------------------------------------------------------------------------------
def test_metadata_of_everything(node: NodeDriver) -> None:
    topic = node.create(partitions=2, compression_type="lz4")
    response, _ = node.call(m.MetadataRequest())
    assert response.cluster_id
    assert response.controller_id == 0
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port, broker.rack) == (
        0,
        "broker.example",
        9000,
        "r1",
    )
    (found,) = response.topics
    assert (found.name, found.topic_id, found.schema_id) == ("t", topic, 1)
    assert found.durability == Durability.FLUSHED
    assert found.compression == Compression.LZ4
    assert [(p.partition, p.leader_id, p.leader_epoch) for p in found.partitions] == [
        (0, 0, 0),
        (1, 0, 0),
    ]


def test_metadata_by_name_and_id(node: NodeDriver) -> None:
    topic = node.create()
    node.create("other")
    response, _ = node.call(m.MetadataRequest(topics=["t", "nope"], topic_ids=[topic, b"?" * 16]))
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("t", 0),
        ("nope", errors.UnknownTopic.code),
        ("t", 0),
        ("", errors.UnknownTopicId.code),
    ]
    assert node.call(m.MetadataRequest(topics=[]))[0].topics == []


def test_metadata_follow_every_change(node: NodeDriver) -> None:
    node.create()
    versions = [node.call(m.MetadataRequest())[0].metadata_version]
    for change in [{"partitions": 2}, {"set_configs": {"durability": "memory"}}]:
        alter(node, **change)
        response, _ = node.call(m.MetadataRequest())
        versions.append(response.metadata_version)
    assert len(response.topics[0].partitions) == 2
    assert response.topics[0].durability == Durability.MEMORY
    node.crash()
    response, _ = node.call(m.MetadataRequest())
    versions.append(response.metadata_version)
    assert [p.leader_epoch for p in response.topics[0].partitions] == [1, 1]
    assert sorted(set(versions)) == versions


# --- create -------------------------------------------------------------------------------------
def test_each_topic_is_created_or_refused_on_its_own(node: NodeDriver) -> None:
    schema = serialize_schema(SCHEMA)
    topics = [
        m.NewTopic("a", schema),
        m.NewTopic("a", schema),
        m.NewTopic("bad/name", schema),
        m.NewTopic("b", schema, replication_factor=3),
        m.NewTopic("c", schema, partitions=0),
        m.NewTopic("d", b""),
        m.NewTopic("not-utf8", NOT_UTF8),
        m.NewTopic("e", schema, 3, 1, ["n"], {"retention.ms": "5000"}),
    ]
    response, _ = node.call(m.CreateTopicsRequest(topics=topics))
    assert [r.error_code for r in response.topics] == [
        0,
        errors.TopicExists.code,
        errors.InvalidTopicName.code,
        errors.InvalidReplicationFactor.code,
        errors.InvalidPartitions.code,
        errors.InvalidSchema.code,
        errors.InvalidSchema.code,
        0,
    ]
    assert node.metrics.internal_errors == 0
    assert directories(node) == {"a-0", "e-0", "e-1", "e-2"}


def test_validating_creates_nothing(node: NodeDriver) -> None:
    new = m.NewTopic("a", serialize_schema(SCHEMA))
    response, _ = node.call(m.CreateTopicsRequest(topics=[new], validate_only=True))
    assert response.topics[0].error_code == 0
    assert node.call(m.MetadataRequest())[0].topics == []
    assert directories(node) == set()


def test_topics_are_there_after_a_restart(node: NodeDriver) -> None:
    topic = node.create(partitions=2, retention_ms="5000")
    before = describe(node)
    node.restart()
    after = describe(node)
    assert after.topic_id == topic
    assert (before.configs, before.schemas) == (after.configs, after.schemas)
    assert [p.leader_epoch for p in after.partitions] == [0, 0], "a clean stop loses nothing"
    node.crash()
    assert [p.leader_epoch for p in describe(node).partitions] == [1, 1]


# --- delete -------------------------------------------------------------------------------------
def test_deleted_is_gone_with_its_files(node: NodeDriver) -> None:
    topic = node.create(partitions=2)
    node.produced(topic, batch_of([1]))
    response, _ = node.call(m.DeleteTopicsRequest(names=["t", "nope"]))
    assert [r.error_code for r in response.topics] == [0, errors.UnknownTopic.code]
    assert response.topics[0].topic_id == topic
    assert directories(node) == set()
    assert "t" not in node.metrics.topics
    assert node.metrics.partitions_led == 0
    answer = node.answer(node.produce(topic, batch_of([1])))
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.UnknownTopicId.code
    assert node.fetched(topic)[0].error_code == errors.UnknownTopicId.code


def test_a_name_is_deleted_only_while_it_has_the_given_topic_id(node: NodeDriver) -> None:
    old = node.create()
    node.call(m.DeleteTopicsRequest(names=["t"], topic_ids=[old]))
    new = node.create()
    request = m.DeleteTopicsRequest(names=["t", "none", "t"], topic_ids=[old, old, b""])
    response, _ = node.call(request)
    assert [r.error_code for r in response.topics] == [
        errors.UnknownTopicId.code,
        errors.UnknownTopic.code,
        0,
    ]
    assert response.topics[2].topic_id == new
    response, _ = node.call(m.DeleteTopicsRequest(names=["t"], topic_ids=[old, old]))
    assert response.error_code == errors.InvalidRequest.code


def test_many_partitions_are_removed_a_few_at_a_time(node: NodeDriver) -> None:
    """One job at a time, a few partitions each: flushes must not wait behind thousands of files."""
    node.create(partitions=100)
    node.hold_jobs = True
    node.request(m.DeleteTopicsRequest(names=["t"]))
    while not any(start.job.kind == "remove directories" for start in node.jobs):
        node.step()
    removals = 0
    while node.jobs:
        assert [start.job.kind for start in node.jobs] == ["remove directories"]
        before = len(directories(node))
        node._run(node.jobs.pop(0))
        assert 0 < before - len(directories(node)) <= 16
        removals += 1
    assert removals == 7
    assert directories(node) == set()


def test_a_name_that_is_wanted_is_freed_at_once(node: NodeDriver) -> None:
    node.create("t", partitions=3)
    node.hold_jobs = True
    deleted = node.request(m.DeleteTopicsRequest(names=["t"]))
    while node.answer(deleted) is None:
        node.step()
    new = m.NewTopic("t", serialize_schema(SCHEMA), 2)
    created = node.request(m.CreateTopicsRequest(topics=[new]))
    assert directories(node) == {"t-0", "t-1", "t-2"}, "their removal has not begun"
    node.hold_jobs = False
    node.run_until_idle()
    answer = node.answer(created)
    assert answer is not None
    topic = answer[0].topics[0].topic_id
    node.produced(topic, batch_of([1, 2]))
    assert directories(node) == {"t-0", "t-1"}
    assert node.offset_of(topic, -1).offset == 2


def test_a_stop_leaves_the_rest_to_the_next_start(node: NodeDriver) -> None:
    node.create(partitions=100)
    node.call(m.DeleteTopicsRequest(names=["t"]))
    node.restart()
    assert directories(node) == set()


def test_a_topic_created_again_is_another_one(node: NodeDriver) -> None:
    old = node.create()
    node.produced(old, batch_of([1, 2, 3]))
    node.call(m.DeleteTopicsRequest(names=["t"]))
    new = node.create()
    assert new != old
    assert node.offset_of(new, -1).offset == 0
    assert node.offset_of(old, -1).error_code == errors.UnknownTopicId.code
    node.crash()
    assert node.offset_of(new, -1).offset == 0


def test_deleting_while_a_flush_runs_waits_for_it_with_the_files(node: NodeDriver) -> None:
    topic = node.create()
    waiting = node.produce(topic, batch_of([1]))
    node.call(m.DeleteTopicsRequest(names=["t"]))
    answer = node.answer(waiting)
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.UnknownTopicId.code
    again = m.CreateTopicsRequest(topics=[m.NewTopic("t", serialize_schema(SCHEMA))])
    assert node.call(again)[0].topics[0].error_code == errors.ThrottledBroker.code
    node.flush()
    assert directories(node) == set()
    assert node.call(again)[0].topics[0].error_code == 0


def test_what_a_crash_left_behind_is_removed_at_start(node: NodeDriver) -> None:
    topic = node.create()
    node.produced(topic, batch_of([1]))
    (path,) = Path(node.config.data_dir).rglob("t-0")
    for name in ("ghost-0", "t-1"):
        node.node.broker.directory.data.create_partition(name, b"?" * 16)
    (path.parent / f"{'3f' * 16}-deadbeef.deleted").mkdir()
    node.crash()
    (path,) = Path(node.config.data_dir).rglob("t-0")
    assert [p.name for p in path.parent.iterdir() if p.is_dir()] == ["t-0"]
    assert len(node.headers(topic)) == 1


# --- alter --------------------------------------------------------------------------------------
def test_more_partitions(node: NodeDriver) -> None:
    topic = node.create()
    assert alter(node, partitions=3).error_code == 0
    assert node.produced(topic, batch_of([1]), partition=2).base_offset == 0
    assert alter(node, partitions=2).error_code == errors.InvalidPartitions.code
    node.crash()
    assert node.offset_of(topic, -1, partition=2).offset == 1


def test_schema_evolution(node: NodeDriver) -> None:
    topic = node.create()
    wider = SCHEMA.append(pa.field("m", pa.int64()))
    assert alter(node, schema=serialize_schema(wider)).schema_id == 2
    node.produced(topic, batch_of([1], schema_id=2, schema=wider))
    node.produced(topic, batch_of([1], schema_id=1))
    response, _ = node.call(m.TopicSchemasRequest(topic_id=topic))
    assert [s.schema_id for s in response.schemas] == [1, 2]
    refused = alter(node, schema=serialize_schema(pa.schema([("x", pa.string())])))
    assert refused.error_code == errors.IncompatibleSchema.code
    assert alter(node, schema=NOT_UTF8).error_code == errors.InvalidSchema.code
    assert node.metrics.internal_errors == 0
    node.crash()
    node.produced(topic, batch_of([1], schema_id=2, schema=wider))


def test_alter_is_all_or_nothing(node: NodeDriver) -> None:
    node.create()
    response = alter(node, partitions=5, set_configs={"retention.ms": "nope"})
    assert response.error_code == errors.InvalidConfig.code
    assert len(describe(node).partitions) == 1
    response = alter(node, partitions=5, validate_only=True)
    assert response.error_code == 0
    assert len(describe(node).partitions) == 1
    response, _ = node.call(m.AlterTopicRequest(name="nope"))
    assert response.error_code == errors.UnknownTopic.code


def test_durability_may_change_both_ways(node: NodeDriver) -> None:
    topic = node.create(durability="memory")
    node.produced(topic, batch_of([1]))
    alter(node, set_configs={"durability": "flushed"})
    assert len(node.headers(topic)) == 1, "what was visible stays visible"
    node.flush()
    assert describe(node).partitions[0].flushed_offset == 1
    correlation = node.produce(topic, batch_of([2]))
    assert node.answer(correlation) is None
    parked = node.request(node.fetch_request(topic, 1, max_wait_ms=1000))
    alter(node, set_configs={"durability": "memory"})
    assert node.answer(parked) is not None


# --- describe -----------------------------------------------------------------------------------
def test_describe(node: NodeDriver) -> None:
    topic = node.create(retention_ms="5000")
    batch = batch_of([1, 2, 3])
    node.produced(topic, batch)
    node.produce(topic, batch)
    described = describe(node)
    assert described.topic_id == topic
    assert [entry.key for entry in described.configs] == list(CONFIG_DEFS)
    by_key = {entry.key: (entry.value, entry.source) for entry in described.configs}
    assert by_key["retention.ms"] == ("5000", "topic")
    assert by_key["durability"] == ("flushed", "default")
    (partition,) = described.partitions
    assert (partition.high_watermark, partition.log_end_offset) == (3, 6)
    assert partition.flushed_offset == 3
    assert partition.size_bytes >= 2 * len(batch)
    assert partition.segments == 1
    assert describe(node, "nope").error_code == errors.UnknownTopic.code
    node.create("other")
    response, _ = node.call(m.DescribeTopicsRequest())
    assert [t.name for t in response.topics] == ["t", "other"]


def test_the_brokers_defaults_apply_where_the_topic_sets_nothing(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, topic_defaults={"durability": "memory"}, partitions_default=3)
    response, _ = node.call(
        m.CreateTopicsRequest(topics=[m.NewTopic("t", serialize_schema(SCHEMA))])
    )
    described = describe(node)
    assert len(described.partitions) == 3
    by_key = {entry.key: (entry.value, entry.source) for entry in described.configs}
    assert by_key["durability"] == ("memory", "default")
    result = node.produced(response.topics[0].topic_id, batch_of([1]))
    assert result.durability == Durability.MEMORY
