"""Defaults of topics that are set while brokers run: they count at once, and everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import BrokerConfigRecord, TopicRecord
from quiverlog.node.runtime.config import Given
from quiverlog.node.runtime.events import ConfigReloaded
from quiverlog.wire import messages as m
from quiverlog.wire.config_messages import ConfigSource
from tests.support.members import Member
from tests.support.node import SCHEMA
from tests.unit.node.apis.test_configs import RETENTION, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def retention_of(member: Member, name: str) -> tuple[int, set[int]]:
    """Of the metadata, and of the logs that are here."""
    broker = member.node.broker
    topic = broker.metadata.image.topics[name]
    replicas = [*broker.assignment.replicas.values(), *broker.assignment._followed.values()]
    held = {one.log.config.retention_ms for one in replicas if one.topic.name == name}
    return topic.config.retention_ms, held


def create(world: World, name: str, *configs: tuple[str, str], replicas: int = 3) -> None:
    new = m.NewTopic(name, serialize_schema(SCHEMA), 1, replicas, configs=dict(configs))
    answer = world.ask(m.CreateTopicsRequest(topics=[new]), m.CreateTopicsResponse)
    assert answer.topics[0].error_code == 0
    world.members.run_until(
        lambda: all(
            name in one.node.broker.metadata.image.topics
            and (replicas < 3 or retention_of(one, name)[1])
            for one in world.members.up
        )
    )


def all_retain(world: World, name: str, retention_ms: int) -> bool:
    return all(
        retention_of(one, name) == (retention_ms, {retention_ms}) for one in world.members.up
    )


def test_a_default_of_topics_counts_at_once_where_a_topic_sets_nothing(world: World) -> None:
    create(world, "silent")
    create(world, "own", ("retention.ms", "77000"))
    default = world.entry(1, RETENTION)
    assert (default.value, default.source) == ("604800000", ConfigSource.DEFAULT)
    assert default.changes_live
    assert world.alter((RETENTION, "5000")) == 0
    assert all_retain(world, "silent", 5_000)
    assert all_retain(world, "own", 77_000)
    create(world, "later")
    assert all_retain(world, "later", 5_000)
    assert world.values(RETENTION) == [("5000", ConfigSource.CLUSTER)] * 3
    detail = world.ask(m.DescribeTopicsRequest(names=["silent"]), m.DescribeTopicsResponse)
    configs = {one.key: (one.value, one.source) for one in detail.topics[0].configs}
    assert configs["retention.ms"] == ("5000", "default")
    world.one.restart()
    world.one.call(m.HelloRequest())
    world.members.run_until(lambda: bool(world.members.leaders) and world.one.started)
    world.members.run_until(lambda: all_retain(world, "silent", 5_000))
    assert world.alter((RETENTION, None)) == 0
    assert all_retain(world, "silent", 604_800_000)
    assert all_retain(world, "later", 604_800_000)


def test_a_default_of_topics_is_read_again_from_a_file_unless_it_is_set(world: World) -> None:
    create(world, "t")
    two = world.members.by_id[2]
    two.send(ConfigReloaded({RETENTION: Given("8000", ConfigSource.FILE)}))
    assert retention_of(two, "t") == (8_000, {8_000})
    assert two.node.broker.metadata.pending.topics["t"].config.retention_ms == 8_000
    assert world.alter((RETENTION, "5000")) == 0
    two.send(ConfigReloaded({RETENTION: Given("9000", ConfigSource.FILE)}))
    assert all_retain(world, "t", 5_000)
    assert world.alter((RETENTION, None)) == 0
    assert retention_of(two, "t") == (9_000, {9_000})
    assert retention_of(world.one, "t")[0] == 604_800_000


def test_what_is_written_into_a_topic_at_its_creation_stays(world: World) -> None:
    key = "topic.defaults.min.insync.replicas"
    create(world, "before")
    assert world.alter((key, "3")) == 0
    create(world, "after")
    assert world.alter((key, None)) == 0
    topics = world.one.node.broker.metadata.image.topics
    assert topics["before"].config.min_in_sync_replicas == 2
    assert topics["after"].config.min_in_sync_replicas == 3
    assert topics["after"].configs == {"min.insync.replicas": "3"}


def test_defaults_that_were_not_decided_are_taken_back_from_the_view_of_decisions() -> None:
    image, pending = Image({"retention.ms": "7000"}), Image({"retention.ms": "7000"})
    topic = TopicRecord(bytes(16), "t", 1, 1)
    for one in (image, pending):
        one.replay_entry([topic], version=1)
    pending.replay_entry([BrokerConfigRecord(-1, RETENTION, "5000")])
    assert pending.topics["t"].config.retention_ms == 5_000
    pending.revert(image, [])
    assert pending.topics["t"].config.retention_ms == 7_000
    assert pending.defaults == image.defaults == {"retention.ms": "7000"}


@pytest.mark.parametrize(
    ("key", "value"),
    [("retention.ms", "4"), ("durability", "replicated"), ("retention.years", "3"), ("", "1")],
)
def test_a_default_of_another_version_is_as_if_it_was_never_set(key: str, value: str) -> None:
    image = Image({"segment.ms": "9000"})
    image.replay_entry([TopicRecord(bytes(16), "t", 1, 1)], version=1)
    image.replay_entry([BrokerConfigRecord(-1, f"topic.defaults.{key}", value)], version=2)
    assert image.defaults == {"segment.ms": "9000"}
    restored = Image({})
    restored.replay_entry(image.snapshot_records(), version=3)
    assert restored.broker_configs == image.broker_configs, "a version that reads it may follow"
