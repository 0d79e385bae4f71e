"""process.roles: a controller need not hold partitions, and a broker need not be a controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.errors import InvalidReplicaAssignment, InvalidReplicationFactor, NotController
from quiverlog.roles import ROLE_BROKER, ROLE_CONTROLLER
from quiverlog.wire import messages as m
from quiverlog.wire.reassignment_messages import PartitionTarget, ReassignPartitionsRequest
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, NodeDriver, batch_of
from tests.unit.node.metadata.test_voters import voters

CONTROLLERS, BROKERS = (1, 2, 3), (4, 5, 6)


@pytest.fixture
def members(tmp_path: Path) -> Members:
    """Three that decide and hold nothing, and three that hold partitions and decide nothing."""
    found = Members(tmp_path)
    found.add(1, roles=(ROLE_CONTROLLER,), joins_quorum=True)
    for node_id in (*CONTROLLERS[1:], *BROKERS):
        role = ROLE_CONTROLLER if node_id in CONTROLLERS else ROLE_BROKER
        joined = found.add(node_id, seeds=CONTROLLERS, roles=(role,), joins_quorum=True)
        found.run_until(lambda joined=joined: joined.started)
    found.run_until(lambda: voters(found.by_id[1]) == set(CONTROLLERS))
    found.run_until(lambda: live(found.by_id[1]) == [*CONTROLLERS, *BROKERS])
    return found


def live(node: Member) -> list[int]:
    return sorted(one.node_id for one in node.node.broker.metadata.image.live_brokers())


def create(members: Members, name: str, replication_factor: int = 3) -> m.TopicResult:
    """Return what the controller answers, when its decision has had its effects."""
    (leader,) = members.leaders
    leader.call(m.HelloRequest())
    new = m.NewTopic(name, serialize_schema(SCHEMA), 6, replication_factor)
    asked = leader.request(m.CreateTopicsRequest(topics=[new]))
    members.run_until(lambda: leader.answer(asked) is not None)
    answer = leader.answer(asked)
    assert answer is not None
    members.run(1_000)
    assert isinstance(answer[0].topics[0], m.TopicResult)
    return answer[0].topics[0]


def test_controllers_alone_decide_and_hold_nothing(members: Members) -> None:
    created = create(members, "t")
    assert created.error_code == 0
    image = members.by_id[1].node.broker.metadata.image
    for partition in image.topics["t"].partitions:
        assert set(partition.replicas) == set(partition.in_sync_replicas) == set(BROKERS)
    assert not any(members.by_id[n].node.broker.replicas for n in CONTROLLERS)
    leader = members.by_id[image.topics["t"].partitions[0].leader_id]
    leader.call(m.HelloRequest())
    asked = leader.produce(created.topic_id, batch_of([1, 2]))
    members.run_until(lambda: leader.answer(asked) is not None)
    answer = leader.answer(asked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == 0


def test_more_copies_than_brokers_are_refused_however_many_controllers_there_are(
    members: Members,
) -> None:
    refused = create(members, "t", len(BROKERS) + 1)
    assert refused.error_code == InvalidReplicationFactor.code
    assert "brokers that can take one: 3" in refused.error_message


def test_another_controller_decides_when_one_is_lost(members: Members) -> None:
    members.down.add(1)
    members.run_until(lambda: bool(members.leaders))
    (leader,) = members.leaders
    assert leader.config.node_id in CONTROLLERS
    members.run_until(lambda: live(leader) == [2, 3, *BROKERS])
    assert create(members, "t").error_code == 0


def test_clients_are_sent_to_a_controller_that_is_no_broker(members: Members) -> None:
    broker = members.by_id[4]
    broker.call(m.HelloRequest())
    answer = broker.call(m.DeleteTopicsRequest(names=["nothing"]))[0]
    assert answer.topics[0].error_code == NotController.code
    assert answer.controller == m.BrokerEndpoint(1, "host-1", 9292, "")


def test_a_controller_that_is_no_broker_hands_over_and_stops(members: Members) -> None:
    members.by_id[1].stop()
    members.down.add(1)
    assert members.run_until(lambda: bool(members.leaders)) < 500
    assert live(members.leaders[0]) == [2, 3, *BROKERS]


def test_nothing_is_moved_to_a_controller_that_is_no_broker(members: Members) -> None:
    assert create(members, "t").error_code == 0
    first = members.by_id[1]
    move = PartitionTarget(0, [1, 4, 5])
    answer = first.call(ReassignPartitionsRequest(name="t", partitions=[move]))[0]
    assert answer.error_code == InvalidReplicaAssignment.code
    assert "controller alone" in answer.error_message


def test_a_broker_that_becomes_only_a_controller_keeps_its_partitions_and_gets_no_more(
    tmp_path: Path,
) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create()
    node.restart(roles=(ROLE_CONTROLLER,))
    assert node.produced(topic, batch_of([1])).error_code == 0
    new = m.NewTopic("more", serialize_schema(SCHEMA), 1, 1)
    refused = node.call(m.CreateTopicsRequest(topics=[new]))[0].topics[0]
    assert refused.error_code == InvalidReplicationFactor.code
    node.restart(roles=(ROLE_BROKER, ROLE_CONTROLLER))
    assert node.call(m.CreateTopicsRequest(topics=[new]))[0].topics[0].error_code == 0
