"""Consumers of groups against a real node: what programs see, with both clients."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import quiverlog
from quiverlog.client.groups.base import GroupBatch
from quiverlog.wire import group_messages as g
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker

PARTITIONS = 4
BOUND_S = 30.0
"""What a loaded machine may take."""


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    broker.heal()
    with connect(request.param, broker.bootstrap) as client:
        yield client
    broker.heal()


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(broker: ScriptedBroker) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    with quiverlog.connect(broker.bootstrap) as client:
        client.create_topic(name, SCHEMA, partitions=PARTITIONS)
        produce(broker, name)
    return name


def produce(broker: ScriptedBroker, topic: str, count: int = 3) -> None:
    with quiverlog.connect(broker.bootstrap) as client, client.producer(topic) as producer:
        for partition in range(PARTITIONS):
            producer.send(rows(count), partition=partition).result()


def until(is_true: Callable[[], bool], *consumers: Any) -> list[Any]:
    """Have the consumers' programs go on until then; return what they got."""
    found = []
    end_s = time.monotonic() + BOUND_S
    while not is_true():
        assert time.monotonic() < end_s, [one.assignment for one in consumers]
        found += [batch for one in consumers if (batch := one.poll(0.02)) is not None]
    return found


def read(consumer: Any, count: int = PARTITIONS) -> list[Any]:
    found: list[Any] = []
    end_s = time.monotonic() + BOUND_S
    while len(found) < count:
        assert time.monotonic() < end_s, found
        if (batch := consumer.poll(0.5)) is not None:
            found.append(batch)
    return found


def test_a_group_goes_on_where_it_was(
    client: Any, broker: ScriptedBroker, topic: str, group: str
) -> None:
    with client.consumer(topic, group=group) as consumer:
        batches = read(consumer)
        assert {(one.topic, one.partition, len(one)) for one in batches} == {
            (topic, p, 3) for p in range(PARTITIONS)
        }
        assert repr(batches[0]).startswith(f"GroupBatch({topic}-")
        assert consumer.assignment == [(topic, p) for p in range(PARTITIONS)]
        assert consumer.poll(0) is None, "now the last one counts as processed"
    produce(broker, topic, count=2)
    with client.consumer([topic], group=group) as consumer:
        again = read(consumer)
        assert [(one.base_offset, len(one)) for one in again] == [(3, 2)] * PARTITIONS
        assert consumer.lag() == {(topic, p): 0 for p in range(PARTITIONS)}


def test_an_error_in_the_loop_commits_nothing_of_its_batch(
    client: Any, topic: str, group: str
) -> None:
    seen = []
    with (
        contextlib.suppress(ZeroDivisionError),
        client.consumer(topic, group=group) as consumer,
    ):
        for batch in consumer:
            seen.append(batch.partition)
            if len(seen) == 2:
                raise ZeroDivisionError
    with client.consumer(topic, group=group) as consumer:
        left = [one.partition for one in read(consumer, PARTITIONS - 1)]
        assert seen[0] not in left
        assert seen[1] in left


def test_done_counts_the_last_batch(client: Any, topic: str, group: str) -> None:
    with client.consumer(topic, group=group) as consumer:
        batch = read(consumer, 1)[0]
        assert isinstance(batch, GroupBatch)
        batch.done()
    with client.consumer(topic, group=group) as consumer:
        left = {one.partition for one in read(consumer, PARTITIONS - 1)}
        assert left == {*range(PARTITIONS)} - {batch.partition}


def test_manual_commits(client: Any, topic: str, group: str) -> None:
    with client.consumer(topic, group=group, commit="manual") as consumer:
        read(consumer)
        assert consumer.poll(0) is None
        where = [(topic, p) for p in range(PARTITIONS)]
        assert consumer.committed() == dict.fromkeys(where)
        consumer.commit({where[0]: 1})
        assert consumer.committed() == dict.fromkeys(where) | {where[0]: 1}
        consumer.commit()
        assert consumer.committed() == dict.fromkeys(where, 3)
        with pytest.raises(quiverlog.UnknownPartition, match="is not read here"):
            consumer.commit({(topic, 99): 1})
        with pytest.raises(quiverlog.InvalidArgument, match="-1 is not an offset"):
            consumer.commit({where[0]: -1})
        consumer.seek(where[0], 0)
        assert read(consumer, 1)[0].base_offset == 0
    with client.consumer(topic, group=group, commit="manual") as consumer:
        until(lambda: len(consumer.assignment) == PARTITIONS, consumer)
        assert consumer.positions == dict.fromkeys(where, 3)


def test_partitions_are_handed_over(
    client: Any, broker: ScriptedBroker, topic: str, group: str
) -> None:
    told: list[Any] = []
    thread = threading.current_thread()
    with client.consumer(
        topic,
        group=group,
        on_assigned=lambda some: told.append(("+", some)),
        on_revoked=lambda some: told.append(("-", some, threading.current_thread() is thread)),
        on_lost=lambda some: told.append(("lost", some)),
    ) as one:
        read(one)
        with client.consumer(topic, group=group) as two:
            found = until(lambda: len(two.assignment) == 2, one, two)
            assert not found, "what the first has processed was committed before"
            assert sorted(one.assignment + two.assignment) == [(topic, p) for p in range(4)]
            produce(broker, topic, count=1)
            found = until(lambda: sum(len(b) for b in got) == 4, *(got := Got(one, two)).each)
        until(lambda: len(one.assignment) == PARTITIONS, one)
    assert [entry[0] for entry in told] == ["+", "-", "+"]
    assert told[0][1] == [(topic, p) for p in range(PARTITIONS)]
    assert len(told[1][1]) == 2


class Got(list[Any]):
    """Consumers that keep what they return."""

    def __init__(self, *consumers: Any) -> None:
        super().__init__()
        self.each = [_Kept(one, self) for one in consumers]


class _Kept:
    def __init__(self, consumer: Any, kept: Got) -> None:
        self.consumer, self.kept = consumer, kept

    @property
    def assignment(self) -> Any:
        return self.consumer.assignment

    def poll(self, timeout: float) -> Any:
        batch = self.consumer.poll(timeout)
        self.kept += [] if batch is None else [batch]
        return batch


def test_a_fenced_member_gets_on_lost_and_joins_anew(
    client: Any, broker: ScriptedBroker, topic: str, group: str
) -> None:
    told: list[Any] = []
    with client.consumer(topic, group=group, on_lost=told.append) as consumer:
        read(consumer)
        assert consumer.poll(0) is None
        consumer.commit()
        broker.fault(g.GroupHeartbeatRequest, quiverlog.UnknownMember("gone."))
        until(lambda: bool(told), consumer)
        assert told == [[(topic, p) for p in range(PARTITIONS)]]
        assert not until(lambda: len(consumer.assignment) == PARTITIONS, consumer)
    assert len(told) == 1


def test_a_program_that_does_not_come_back_loses_its_partitions(
    client: Any, topic: str, group: str
) -> None:
    told: list[Any] = []
    with client.consumer(topic, group=group, processing_timeout=0.2, on_lost=told.append) as slow:
        assert slow.poll(BOUND_S) is not None
        with client.consumer(topic, group=group) as other:
            # The first one's program does nothing meanwhile.
            assert len({one.partition for one in read(other)}) == PARTITIONS
            with pytest.raises(quiverlog.ProcessingTimedOut, match=r"for 0\.2 s"):
                slow.poll(0)
            assert told == [[(topic, p) for p in range(PARTITIONS)]]
            until(lambda: len(slow.assignment) == 2, slow, other)


def test_what_callbacks_raise_is_raised_from_the_loop(client: Any, topic: str, group: str) -> None:
    def refuse(_: Any) -> None:
        raise ZeroDivisionError

    with client.consumer(topic, group=group, on_assigned=refuse) as consumer:
        with pytest.raises(ZeroDivisionError):
            consumer.poll(BOUND_S)
        assert len(read(consumer)) == PARTITIONS


def test_topics_by_a_pattern(client: Any, broker: ScriptedBroker, topic: str, group: str) -> None:
    with client.consumer(pattern=f"{topic}|{topic}-b", group=group) as consumer:
        assert {one.topic for one in read(consumer)} == {topic}
    with pytest.raises(quiverlog.InvalidArgument, match="no regular expression"):
        client.consumer(pattern="(", group=group)


def test_committed_rows_that_are_gone(client: Any, topic: str, group: str) -> None:
    with client.consumer(topic, group=group) as consumer:
        read(consumer)
        consumer.commit({(topic, p): 1 for p in range(PARTITIONS)})
        consumer.pause((topic, 0))
    client.delete_records(topic, dict.fromkeys(range(PARTITIONS), 2))
    with client.consumer(topic, group=group) as consumer:
        with pytest.raises(quiverlog.OffsetOutOfRange, match="valid offsets are 2 to 3"):
            consumer.poll(BOUND_S)
        consumer.commit({(topic, p): 1 for p in range(PARTITIONS)})
    with client.consumer(topic, group=group, on_gone="earliest") as consumer:
        assert [one.base_offset for one in read(consumer)] == [2] * PARTITIONS


def test_a_static_member_keeps_its_partitions_over_a_restart(
    client: Any, topic: str, group: str
) -> None:
    told: list[Any] = []
    with client.consumer(topic, group=group) as other:
        with client.consumer(topic, group=group, instance_id="one") as first:
            until(lambda: len(first.assignment) == 2, first, other)
            had = first.assignment
            with pytest.raises(quiverlog.FencedInstance):
                client.consumer(topic, group=group, instance_id="one").poll(BOUND_S)
        with client.consumer(topic, group=group, instance_id="one") as again:
            until(lambda: len(again.assignment) == 2, again, other)
            assert again.assignment == had
            again.leave()
        until(lambda: len(other.assignment) == PARTITIONS, other)
    assert not told


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dropped_consumer_leaves(broker: ScriptedBroker, topic: str, group: str) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        dropped = client.consumer(topic, group=group)
        assert dropped.poll(BOUND_S) is not None
        with client.consumer(topic, group=group) as other:
            del dropped
            gc.collect()
            assert len(read(other)) == PARTITIONS


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"topic": []}, "topics is empty"),
        ({"topic": ["a"], "pattern": "b"}, "topics or a pattern: give one"),
        ({}, "topics or a pattern: give one"),
        ({"topic": "a", "partitions": [0]}, "Leave partitions out"),
        ({"topic": "a", "end": "latest"}, "Leave end out"),
        ({"topic": "a", "start": {0: 1}}, "`seek` goes to an offset"),
        ({"topic": "a", "instance_id": "x" * 256}, "has 256 characters, allowed are 255"),
        ({"topic": "a", "group": "__x"}, "group: '__x' is no name"),
        ({"topic": "a", "group": ""}, "group: '' is no name"),
        ({"topic": "__groups"}, "is internal"),
        ({"topic": ["a", "a"]}, "named twice"),
        ({"topic": "a", "session_timeout": 5.9}, "session_timeout=5.9: give 6 to 1800"),
        ({"topic": "a", "session_timeout": 1800.1}, "session_timeout=1800.1: give 6 to 1800"),
        ({"topic": "a", "rebalance_timeout": 0.9}, "rebalance_timeout=0.9: give 1 to 3600"),
        ({"topic": "a", "processing_timeout": 301.0}, "at most rebalance_timeout, 300"),
        ({"topic": "a", "processing_timeout": 0.0}, "give seconds above 0"),
        ({"topic": "a", "commit": "auto"}, "'processed' or 'manual'"),
        ({"topic": "a", "on_gone": "never"}, "'earliest' or 'latest'"),
        ({"topic": "a", "on_lost": 5}, "a function of a list"),
    ],
)
def test_what_is_refused(client: Any, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(quiverlog.InvalidArgument, match=why):
        client.consumer(**{"group": "g", **arguments})


def test_a_pattern_needs_a_group(client: Any) -> None:
    with pytest.raises(quiverlog.InvalidArgument, match="needs a group"):
        client.consumer(pattern="a.*")
