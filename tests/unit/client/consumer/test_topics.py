"""A consumer of several topics: the requests, their order, and what callers see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client.consumer.core import Assigned, ConsumerCore
from quiverlog.client.consumer.topics import Turns
from quiverlog.types import TopicPartition
from tests.model.test_assigned_partitions import options
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker
from tests.support.topics_world import TopicsWorld

A, B = b"a" * 16, b"b" * 16


def test_topics_take_turns_and_so_do_the_partitions_of_each() -> None:
    turns = Turns().added([(A, 0), (A, 1), (A, 2), (B, 0)])
    assert list(turns) == [(A, 0), (B, 0), (A, 1), (A, 2)]
    turns = turns.served((A, 0))
    assert list(turns) == [(B, 0), (A, 1), (A, 2), (A, 0)]
    turns = turns.served((B, 0))
    assert list(turns) == [(A, 1), (B, 0), (A, 2), (A, 0)]
    assert list(turns.without({(B, 0), (A, 2)})) == [(A, 1), (A, 0)]
    assert len(turns) == 4


def several(world: TopicsWorld) -> ConsumerCore:
    by_topic = {name: options() for name in world.ids}
    core = ConsumerCore(world.cluster, by_topic, options())
    world.run(core.open())
    return core


def test_a_leader_gets_one_fetch_for_all_topics() -> None:
    world = TopicsWorld({"a": 2, "b": 2})
    core = several(world)
    assert world.run(core.next(0.3)) is None
    asked = {node: [p.topic_id[0] for p in one.partitions] for node, one in world.fetches}
    assert asked == {1: [1, 2], 2: [1, 2]}
    assert len(world.fetches) == 2


def test_a_topic_with_many_partitions_does_not_keep_another_waiting() -> None:
    world = TopicsWorld({"wide": 40, "narrow": 1})
    for key in world.logs:
        for _ in range(20):
            world.produce(key, 3)
    core = several(world)
    core._fetches._bytes_max = 3_000  # type: ignore[misc]  # some batches
    topics = [world.run(core.next(1.0)).topic for _ in range(60)]
    assert topics.count("narrow") > 8, topics


def test_a_fetch_in_flight_of_a_removed_partition_is_ignored_when_it_comes_back() -> None:
    world = TopicsWorld({"a": 1})
    (key,) = world.logs
    core = ConsumerCore(world.cluster, {}, options())
    assigned = Assigned("a", *key, 0, 0)
    world.run(core.assign([assigned], []))
    assert world.run(core.next(0.1)) is None
    (before,) = core.requests
    world.run(core.assign([assigned], [key]))
    assert before not in core.requests, "nothing of it is read any more"
    world.produce(key, 2)
    assert world.run(core.next(1.0)).next_offset == 2


def test_a_paused_partition_is_not_fetched() -> None:
    world = TopicsWorld({"a": 1, "b": 1})
    core = several(world)
    core.pause(("a", 0))
    for key in world.logs:
        world.produce(key, 1)
    assert world.run(core.next(1.0)).topic == "b"
    asked = {entry.topic_id for _, one in world.fetches for entry in one.partitions}
    assert asked == {world.ids["b"]}


def test_a_part_of_a_fetch_in_flight_is_ignored_and_the_rest_is_read() -> None:
    world = TopicsWorld({"a": 1, "b": 1})
    keys = list(world.logs)
    core = ConsumerCore(world.cluster, {}, options())
    world.run(core.assign([Assigned(n, *k, 0) for n, k in zip("ab", keys, strict=True)], []))
    assert world.run(core.next(0.1)) is None
    world.run(core.assign([], keys[:1]))
    for key in keys:
        world.produce(key, 1)
    batch = world.run(core.next(1.0))
    assert batch.topic == "b"
    assert world.run(core.next(1.0)) is None
    assert core.positions == {("b", 0): 1}


def test_a_deleted_topic_ends_its_partitions_where_others_assign_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = TopicsWorld({"a": 1, "b": 1})
    keys = list(world.logs)
    core = ConsumerCore(world.cluster, {}, options())
    world.run(core.assign([Assigned(n, *k, 0) for n, k in zip("ab", keys, strict=True)], []))
    world.delete("a")
    world.produce(keys[1], 1)
    assert [world.run(core.next(2.0)) is not None for _ in range(2)] == [True, False]
    assert core.positions == {("b", 0): 1}
    assert "a: its partitions are not read" in caplog.text
    world.run(core.assign([Assigned("a", *keys[0], 0)], []))
    assert core.positions == {("b", 0): 1}


# --- both clients ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker, quiverlog.connect(broker.bootstrap) as client:
        for name, schema in (("a", SCHEMA), ("b", SCHEMA), ("c", pa.schema([("x", pa.int64())]))):
            client.create_topic(name, schema, partitions=2)
        for name in "ab":
            with client.producer(name) as producer:
                for partition in (0, 1):
                    producer.send(rows(3), partition=partition).result()
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Any:
    with connect(request.param, broker.bootstrap) as client:
        yield client


def test_all_rows_of_a_list_of_topics(client: Any) -> None:
    with client.consumer(["a", "b"]) as consumer:
        assert consumer.topics == ["a", "b"]
        assert consumer.schema == SCHEMA
        found = {(one.topic, one.partition): len(one) for one in consumer}
        assert found == {(topic, p): 3 for topic in "ab" for p in (0, 1)}
        assert consumer.positions == found
    with client.consumer(["a"], start={("a", 0): 3, ("a", 1): 1}) as consumer:
        # One name in a list is a list.
        assert consumer.positions == {("a", 0): 3, ("a", 1): 1}


def test_positions_of_one_topic_are_numbers(client: Any) -> None:
    with client.consumer("a", partitions=[1], start={1: 2}) as consumer:
        assert consumer.positions == {1: 2}
        consumer.seek(1, 0)
        assert consumer.positions == {1: 0}


def test_parts_of_several_topics(client: Any) -> None:
    chosen = [("a", 0), TopicPartition("b", 1)]
    start, end = {("a", 0): 1}, {("a", 0): 2, ("b", 1): 3}
    with client.consumer(["a", "b"], partitions=chosen, start=start, end=end) as consumer:
        assert consumer.positions == {("a", 0): 1, ("b", 1): 0}
        assert sum(len(batch) for batch in consumer) == 1 + 3
        consumer.seek(("b", 1), 2)
        assert consumer.poll(5.0).base_offset == 2


def test_pause_and_resume(client: Any) -> None:
    with client.consumer("a", follow=True) as consumer:
        assert consumer.poll(5.0) is not None
        for partition in (0, 1):
            consumer.pause(partition)
            consumer.pause(partition)
        assert consumer.poll(0.1) is None
        done = consumer.positions
        left = next(p for p, offset in done.items() if offset == 0)
        consumer.resume(left)
        consumer.resume(left)
        batch = consumer.poll(5.0)
        assert (batch.partition, batch.base_offset) == (left, 0)
        with pytest.raises(quiverlog.UnknownPartition, match=r"a-7 is not read here; \[0, 1\]"):
            consumer.pause(7)


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({"topic": []}, quiverlog.InvalidArgument, "topics is empty"),
        ({"topic": ["a", "a"]}, quiverlog.InvalidArgument, "'a' is named twice"),
        ({"topic": ["a", "none"]}, quiverlog.UnknownTopic, "'none'"),
        ({"topic": ["a"], "start": {0: 0}}, quiverlog.InvalidArgument, "0 is not a pair of"),
        ({"topic": ["a"], "end": {("b", 0): 0}}, quiverlog.InvalidArgument, "topic that is not"),
        ({"topic": ["a"], "partitions": [0]}, quiverlog.InvalidArgument, "0 is not a pair of"),
        (
            {"topic": ["a", "b"], "partitions": [("a", 0)]},
            quiverlog.InvalidArgument,
            "has none of topic 'b'",
        ),
        ({"topic": ["a"], "start": {("a", 5): 0}}, quiverlog.UnknownPartition, "5 is not one of"),
        ({"topic": "a", "start": {("a", 0): 0}}, quiverlog.InvalidArgument, "are numbers"),
        ({"topic": "a", "partitions": [("a", 0)]}, quiverlog.InvalidArgument, "list of numbers"),
    ],
)
def test_what_is_refused(
    client: Any, arguments: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        client.consumer(**arguments).poll(0)


def test_partitions_are_named_as_they_were_opened(client: Any) -> None:
    with client.consumer(["a", "c"]) as consumer:
        with pytest.raises(quiverlog.InvalidArgument, match="0: partitions of this consumer are"):
            consumer.seek(0, 0)
        with pytest.raises(quiverlog.UnknownPartition, match="b-0 is not read here"):
            consumer.seek(("b", 0), 0)
        with pytest.raises(quiverlog.InvalidArgument, match="no schema of all"):
            _ = consumer.schema
