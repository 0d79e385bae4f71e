"""DESCRIBE_PRODUCER: what the leaders remember of one producer id."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from quiverlog.errors import InvalidRequest
from quiverlog.types import PRODUCER_IDS_END, Durability
from quiverlog.wire import messages as m
from quiverlog.wire.producer_messages import (
    DescribeProducerRequest,
    DescribeProducerResponse,
    ProducerPartition,
)
from tests.support.node import NodeDriver, batch_of
from tests.unit.node.replication.test_reassignment import World


def ask(node: NodeDriver, request: m.Request) -> Any:
    """Return the answer, when it has come."""
    asked = node.request(request)
    while node.answer(asked) is None:
        node.advance(1)
    answer = node.answer(asked)
    assert answer is not None
    return answer[0]


def new_id(node: NodeDriver) -> int:
    producer_id: int = ask(node, m.InitProducerIdRequest()).producer_id
    return producer_id


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def test_a_leader_reports_epoch_sequence_and_last_row_of_each_partition(node: NodeDriver) -> None:
    topics = [node.create(name, partitions=2) for name in ("b", "a", "none")]
    producer_id = new_id(node)
    for topic_id in topics[:2]:
        node.produced(topic_id, batch_of([1, 2, 3]))
        node.produced(topic_id, batch_of([4, 5], producer=(producer_id, 0, 0)))
    node.advance(7_000)
    response = ask(node, DescribeProducerRequest(producer_id=producer_id))
    assert isinstance(response, DescribeProducerResponse)
    assert (response.error_code, response.newest_epoch, response.next_name) == (0, 0, "")
    assert [topic.name for topic in response.topics] == ["a", "b"]
    assert [topic.topic_id for topic in response.topics] == [topics[1], topics[0]]
    for topic in response.topics:
        (one,) = topic.partitions
        assert 7_000 <= one.idle_ms < 8_000
        assert one == ProducerPartition(0, 0, 2, 4, one.idle_ms)
    named = ask(node, DescribeProducerRequest(producer_id=producer_id, names=["b", "gone"]))
    assert [topic.name for topic in named.topics] == ["b"]
    assert ask(node, DescribeProducerRequest(producer_id=producer_id, names=[])).topics == []


def test_the_newest_epoch_is_the_one_given_out_not_the_one_written(node: NodeDriver) -> None:
    topic_id = node.create()
    producer_id = new_id(node)
    node.produced(topic_id, batch_of([1], producer=(producer_id, 0, 0)))
    assert (
        ask(node, m.InitProducerIdRequest(producer_id=producer_id, producer_epoch=0)).producer_epoch
        == 1
    )
    response = ask(node, DescribeProducerRequest(producer_id=producer_id))
    assert response.newest_epoch == 1
    assert response.topics[0].partitions[0].producer_epoch == 0


def test_an_id_that_was_never_given_out_has_no_epoch(node: NodeDriver) -> None:
    node.create()
    producer_id = new_id(node)
    for unknown in (producer_id + 1, PRODUCER_IDS_END - 1):
        response = ask(node, DescribeProducerRequest(producer_id=unknown))
        assert (response.error_code, response.newest_epoch, response.topics) == (0, -1, [])
    for wrong in (-1, PRODUCER_IDS_END):
        response = ask(node, DescribeProducerRequest(producer_id=wrong))
        assert response.error_code == InvalidRequest.code
        assert str(wrong) in response.error_message


def test_pages_hold_every_partition_once(node: NodeDriver) -> None:
    names = [f"t{number}" for number in range(7)]
    producer_id = new_id(node)
    for name in names:
        node.produced(node.create(name), batch_of([1], producer=(producer_id, 0, 0)))
    found: list[str] = []
    first_name, pages = "", 0
    with mock.patch("quiverlog.node.runtime.tasks.REPLY_PAGE_BYTES", 60):
        while pages == 0 or first_name:
            response = ask(
                node, DescribeProducerRequest(producer_id=producer_id, first_name=first_name)
            )
            found += [topic.name for topic in response.topics]
            first_name = response.next_name
            pages += 1
    assert found == names
    assert 2 < pages < len(names)


def test_only_the_leader_reports_a_replicated_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, replicas=2)
    producer_id = new_id(world.one)
    leader = world.leader
    assert leader is not None
    is_assigned = leader.node.broker.producer_ids.may_be_assigned
    world.members.run_until(lambda: is_assigned(producer_id))
    # The controller gave the id out already; the leader may be another broker.
    monkeypatch.setattr(leader, "_give_out", lambda *_: None)
    rows = batch_of([1, 2], producer=(producer_id, 0, 0))
    asked = leader.produce(world.topic_id, rows, durability=Durability.REPLICATED)
    world.members.run_until(lambda: leader.answer(asked) is not None)
    produced = leader.answer(asked)
    assert produced is not None
    assert produced[0].partitions[0].error_code == 0, produced[0]
    reported = {}
    for node_id in world.partition.replicas:
        member = world.members.by_id[node_id]
        replica = member.node.broker.assignment.find((world.topic_id, 0))
        assert replica is not None
        assert replica.producers.progress(producer_id, 0), "the follower remembers it, too"
        reported[node_id] = len(
            ask(member, DescribeProducerRequest(producer_id=producer_id)).topics
        )
    assert reported == {n: int(n == world.partition.leader_id) for n in world.partition.replicas}
