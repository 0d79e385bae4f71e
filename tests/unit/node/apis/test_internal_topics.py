"""Internal topics over whole nodes: made on request of a handler, refused to clients, raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.errors import (
    CoordinatorNotReady,
    CorruptBatch,
    DiskFull,
    FeatureNotFinalised,
    InternalTopic,
    InvalidTopicName,
    NotController,
    QuiverlogError,
)
from quiverlog.limits import INTERNAL_RAISE_MS, INTERNAL_RAISE_RETRY_MS
from quiverlog.node.apis.topics import make_internal_topics
from quiverlog.node.broker import Broker
from quiverlog.node.controller import elections
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.types import Durability, PublishId
from quiverlog.wire import messages as m
from quiverlog.wire.reassignment_messages import PartitionTarget, ReassignPartitionsRequest
from quiverlog.wire.transaction_messages import ForwardPartition, ForwardRequest
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, NodeDriver, batch_of
from tests.unit.node.test_joining import lines

NAMES = ["__transactions", "__staged"]


def ask(node: NodeDriver) -> tuple[int, list[QuiverlogError]]:
    """Have a handler call it, as that of OPEN_TRANSACTION does; returns the request and the list
    that gets its error."""
    refused: list[QuiverlogError] = []

    def handle(broker: Broker, call: Call) -> Steps:
        try:
            yield from make_internal_topics(broker, call)
        except QuiverlogError as error:
            refused.append(error)
        return m.InitProducerIdResponse()

    node.call(m.HelloRequest())
    node.node._steps_handlers[m.InitProducerIdRequest] = handle
    return node.request(m.InitProducerIdRequest()), refused


def made(node: NodeDriver) -> QuiverlogError | None:
    asked, refused = ask(node)
    assert node.answer(asked) is not None
    return refused[0] if refused else None


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def topic_of(node: NodeDriver, name: str) -> TopicImage:
    return node.node.broker.metadata.image.topics[name]


def test_a_broker_makes_both_and_opens_them(node: NodeDriver) -> None:
    assert node.call(m.MetadataRequest())[0].topics == []
    assert made(node) is None
    metadata, _ = node.call(m.MetadataRequest())
    found = {one.name: one for one in metadata.topics}
    assert {name: len(one.partitions) for name, one in found.items()} == {
        "__transactions": 16,
        "__staged": 4,
    }
    assert all(one.is_internal for one in metadata.topics)
    described, _ = node.call(m.DescribeTopicsRequest(names=NAMES))
    assert [one.is_internal for one in described.topics] == [True, True]
    assert [one.partitions[0].high_watermark for one in described.topics] == [0, 0]
    assert made(node) is None, "they are there"
    assert len([one for one in node.lines if one.event == "internal topics created"]) == 1
    node.create("flights")
    answer, _ = node.call(m.MetadataRequest(topics=["flights"]))
    assert [one.is_internal for one in answer.topics] == [False]


def test_two_that_ask_at_once_get_the_same(node: NodeDriver) -> None:
    node.hold_jobs = True
    asked = [ask(node), ask(node)]
    assert [node.answer(one) for one, _ in asked] == [None, None]
    node.hold_jobs = False
    node.run_until_idle()
    node.flush()
    assert all(node.answer(one) is not None and not refused for one, refused in asked)
    assert len([one for one in node.lines if one.event == "internal topics created"]) == 1


def test_they_are_there_after_a_restart(node: NodeDriver) -> None:
    made(node)
    before = {name: topic_of(node, name).topic_id for name in NAMES}
    node.restart()
    assert {name: topic_of(node, name).topic_id for name in NAMES} == before
    assert all(topic_of(node, name).is_internal for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_another_broker_forwards_never_enter_one(tmp_path: Path, name: str) -> None:
    """Such rows ended the service of a coordinator: none of its rows could be read any more."""
    node = NodeDriver(tmp_path, cluster_id="c")
    made(node)
    topic = topic_of(node, name).topic_id
    number = PublishId(5, 2, 1).pack()
    batch = bytes(batch_of(range(2), producer=(number, 77, 0)))
    leader_epoch = node.node.broker.replicas[topic, 0].state.leader_epoch
    end = node.broker_end(topic)
    entry = ForwardPartition(topic, 0, leader_epoch, Durability.FLUSHED, number, 0, len(batch))
    asked = node.request(ForwardRequest(broker_id=2, partitions=[entry]), batch)
    assert node.broker_end(topic) == end
    answer = node.answer(asked)
    assert answer is not None
    assert not answer[0].error_code, answer[0].error_message
    assert answer[0].partitions[0].error_code == InternalTopic.code


def test_as_many_staged_partitions_as_configured(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, staged_partitions=7)
    made(node)
    assert len(topic_of(node, "__staged").partitions) == 7


def test_below_the_level_none_is_made(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, feature_level_max=1)
    assert isinstance(made(node), FeatureNotFinalised)
    assert node.node.broker.metadata.image.topics == {}


def test_a_full_disk_refuses_them(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, disk_reserve_bytes=1_000)
    node.disk_space(0)
    assert isinstance(made(node), DiskFull)
    node.disk_space(1 << 40)
    assert made(node) is None


def test_clients_neither_create_alter_delete_write_nor_trim_them(node: NodeDriver) -> None:
    made(node)
    schema = serialize_schema(SCHEMA)
    for name in NAMES:
        new = m.NewTopic(name, schema, 1, 1, [], {})
        created, _ = node.call(m.CreateTopicsRequest(topics=[new]))
        assert created.topics[0].error_code == InternalTopic.code
        deleted, _ = node.call(m.DeleteTopicsRequest(names=[name]))
        assert deleted.topics[0].error_code == InternalTopic.code
        for changes in ({"schema": schema}, {"set_configs": {"retention.ms": "1000"}}):
            altered, _ = node.call(m.AlterTopicRequest(name=name, **changes))
            assert altered.error_code == InternalTopic.code
        topic = topic_of(node, name)
        batch = batch_of([1], schema=SCHEMA)
        produced, _ = node.call(
            m.ProduceRequest(
                partitions=[m.ProducePartition(topic.topic_id, 0, -1, len(batch))],
            ),
            bytes(batch),
        )
        result = produced.partitions[0]
        if name == "__staged":  # Takes what its own checks let in.
            assert result.error_code == CorruptBatch.code
        else:
            assert result.error_code == InternalTopic.code
            assert "only brokers write it" in result.error_message
        trimmed, _ = node.call(
            m.DeleteRecordsRequest(partitions=[m.DeleteRecordsPartition(topic.topic_id, 0, -1)])
        )
        assert trimmed.partitions[0].error_code == InternalTopic.code
        assert topic_of(node, name) is topic
    assert set(node.node.broker.metadata.image.topics) == set(NAMES)
    new = m.NewTopic("__other", schema, 1, 1, [], {})
    other, _ = node.call(m.CreateTopicsRequest(topics=[new]))
    assert other.topics[0].error_code == InvalidTopicName.code


def test_a_request_with_rows_for_others_too_stores_those(node: NodeDriver) -> None:
    made(node)
    topic_id = node.create("flights")
    batch = bytes(batch_of([1]))
    entries = [
        m.ProducePartition(topic_of(node, "__transactions").topic_id, 0, -1, len(batch)),
        m.ProducePartition(topic_id, 0, -1, len(batch)),
    ]
    asked = node.request(m.ProduceRequest(partitions=entries), batch + batch)
    node.flush()
    answer = node.answer(asked)
    assert answer is not None
    codes = [one.error_code for one in answer[0].partitions]
    assert codes == [InternalTopic.code, 0]


def test_they_are_read_and_get_partitions_where_they_may(node: NodeDriver) -> None:
    made(node)
    staged = topic_of(node, "__staged").topic_id
    fetched, body = node.fetched(staged)
    assert (fetched.error_code, body) == (0, b"")
    grown, _ = node.call(m.AlterTopicRequest(name="__staged", partitions=6))
    assert grown.error_code == 0
    assert len(topic_of(node, "__staged").partitions) == 6
    fixed, _ = node.call(m.AlterTopicRequest(name="__transactions", partitions=17))
    assert fixed.error_code == InternalTopic.code
    assert len(topic_of(node, "__transactions").partitions) == 16


# --- several brokers -----------------------------------------------------------------------------
def grown_to(members: Members, count: int, **config: Any) -> list[Member]:
    """Brokers 1 to `count`, of which the first decides."""
    for node_id in range(len(members.by_id) + 1, count + 1):
        member = members.add(node_id, seeds=(1,) if node_id > 1 else (), **config)
        members.run_until(lambda member=member: member.started)
        if node_id > 1:
            members.run_until(lambda n=node_id: not _image(members).brokers[n].fenced)
    return list(members.by_id.values())


def _image(members: Members) -> Any:
    return members.by_id[1].node.broker.metadata.image


def factors(members: Members) -> list[int]:
    return [_image(members).topics[name].replication_factor for name in NAMES]


def made_by(members: Members, member: Member) -> QuiverlogError | None:
    asked, refused = ask(member)
    members.run_until(lambda: member.answer(asked) is not None)
    return refused[0] if refused else None


def until(members: Members, condition: Callable[[], bool]) -> None:
    members.run_until(condition, 20_000)


def test_three_brokers_hold_and_lead_them_evenly(tmp_path: Path) -> None:
    members = Members(tmp_path)
    first, second, third = grown_to(members, 3)
    third.stop()
    members.down.add(3)
    members.run_until(lambda: _image(members).brokers[3].fenced)
    refused = made_by(members, first)
    assert isinstance(refused, CoordinatorNotReady)
    assert "made with 3 replicas, and 2 brokers are live" in refused.message
    assert isinstance(made_by(members, second), NotController)
    members.down.clear()
    third.restart()
    members.run_until(lambda: not _image(members).brokers[3].fenced)
    assert made_by(members, first) is None
    assert factors(members) == [3, 3]
    for topic in _image(members).topics.values():
        led = Counter(one.leader_id for one in topic.partitions)
        assert max(led.values()) - min(led.values()) <= 1
        assert len(led) == 3
    members.run_until(lambda: set(third.node.broker.metadata.image.topics) == set(NAMES), 10_000)


def test_they_are_raised_five_minutes_after_the_last_registration(tmp_path: Path) -> None:
    members = Members(tmp_path)
    (first,) = grown_to(members, 1)
    assert made_by(members, first) is None
    parts = first.node.broker.internal_raises
    assert parts.next_us() is None
    grown_to(members, 2)
    due_us = parts.next_us()
    assert due_us is not None
    members.run(50)
    new = m.NewTopic("flights", serialize_schema(SCHEMA), 1, 1, [], {})
    first.request(m.CreateTopicsRequest(topics=[new]))
    members.run_until(lambda: "flights" in _image(members).topics)
    assert parts.next_us() == due_us, "no broker has registered"
    grown_to(members, 3)
    later_us = parts.next_us()
    assert later_us is not None
    assert later_us > due_us, "another one has registered"
    skip_to(members, later_us - 20_000)
    members.run(10)
    assert factors(members) == [1, 1]
    assert not lines(first, "internal topics get replicas")
    until(members, lambda: factors(members) == [3, 3])
    assert len(lines(first, "internal topics get replicas")) == 1
    others = [one for one in members.by_id.values() if one is not first]
    assert not any(one.node.broker.internal_raises.next_us() for one in others)
    assert not any(lines(one, "internal topics get replicas") for one in others)
    for topic in [_image(members).topics[name] for name in NAMES]:
        assert {len(one.in_sync_replicas) for one in topic.partitions} == {3}
        assert topic.config.min_in_sync_replicas == 2
        assert topic.config.durability.label.startswith("replicated")
        assert not topic.config.unclean_leader_election
    skip_to(members, later_us + INTERNAL_RAISE_RETRY_MS * 1_000)
    members.run(20)
    assert parts.next_us() is None, "all is done"


def test_a_raise_waits_for_brokers_that_are_down(tmp_path: Path) -> None:
    members = Members(tmp_path)
    (first,) = grown_to(members, 1)
    assert made_by(members, first) is None
    _, _, third = grown_to(members, 3)
    third.stop()
    members.down.add(3)
    members.run_until(lambda: _image(members).brokers[3].fenced)
    parts = first.node.broker.internal_raises
    due_us = parts.next_us()
    assert due_us is not None
    skip_to(members, due_us)
    members.run(20)
    assert factors(members) == [1, 1]
    again_us = parts.next_us()
    assert again_us is not None
    assert due_us < again_us <= due_us + 2 * INTERNAL_RAISE_RETRY_MS * 1_000
    members.down.clear()
    third.restart()
    members.run_until(lambda: not _image(members).brokers[3].fenced)
    due_us = parts.next_us()
    assert due_us is not None
    assert due_us > first.mono_us + (INTERNAL_RAISE_MS - 10_000) * 1_000, "it has registered"
    skip_to(members, due_us)
    until(members, lambda: factors(members) == [3, 3])


def test_another_controller_raises_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker registers at the new one."""
    members = Members(tmp_path)
    (first,) = grown_to(members, 1, joins_quorum=True)
    assert made_by(members, first) is None
    grown_to(members, 3, joins_quorum=True)
    members.run_until(lambda: len(first.quorum.raft.voters) == 3)
    monkeypatch.setattr(elections, "INTERNAL_RAISE_MS", 3_000)
    members.cut = {frozenset((1, 2)), frozenset((1, 3))}
    others = [members.by_id[2], members.by_id[3]]
    members.run_until(lambda: any(one.quorum.is_leading for one in others))
    (other,) = [one for one in others if one.quorum.is_leading]
    members.cut.clear()
    members.run_until(lambda: factors(members) == [3, 3], 20_000)
    assert len(lines(other, "internal topics get replicas")) == 1
    assert not lines(first, "internal topics get replicas")
    assert first.node.broker.internal_raises.next_us() is None


def test_they_move_on_request(tmp_path: Path) -> None:
    members = Members(tmp_path)
    (first,) = grown_to(members, 1)
    assert made_by(members, first) is None
    grown_to(members, 2)
    targets = [PartitionTarget(number, [1, 2]) for number in range(4)]
    asked = first.request(
        ReassignPartitionsRequest(name="__staged", partitions=targets, changes_count=True)
    )
    members.run_until(lambda: first.answer(asked) is not None)
    until(members, lambda: factors(members) == [1, 2])
    config = _image(members).topics["__staged"].config
    assert (config.durability.label, config.min_in_sync_replicas) == ("replicated", 2)


def skip_to(members: Members, mono_us: int) -> None:
    """All clocks at once, without what is due on the way: sessions would end."""
    registrar = members.by_id[1].node.broker.membership.registrar
    machine = registrar._machine
    assert machine is not None
    for one in members.up:
        one.set_clock(mono_us)
    for node_id in _image(members).brokers:
        if node_id != 1 and node_id not in members.down:
            machine.sessions.renew(node_id, mono_us, _image(members).version)
