"""The gauges of a cluster's brokers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.records import (
    LEADER_GONE,
    BrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from quiverlog.node.cluster_gauges import (
    NO_BROKER,
    ClusterGauges,
    TransactionGauges,
    cluster_gauges,
    publish_waiting_rows,
    transaction_gauges,
)
from quiverlog.node.runtime.events import Tick
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, NodeDriver, batch_of


def gauges(member: NodeDriver) -> ClusterGauges:
    return cluster_gauges(member.node, member.mono_us)


@pytest.fixture
def members(tmp_path: Path) -> Members:
    """A controller and two brokers that have joined it."""
    found = Members(tmp_path)
    found.add(1)
    for node_id in (2, 3):
        member = found.add(node_id, seeds=(1,))
        found.run_until(lambda member=member: member.started)
    found.run_until(lambda: gauges(found.by_id[1]).brokers_fenced == 0)
    found.run(500)
    return found


def create(members: Members) -> tuple[Member, Member, bytes]:
    """Return the leader and a follower, which is not the controller, of a topic on all three."""
    one = members.by_id[1]
    one.call(m.HelloRequest())
    configs = {"min.insync.replicas": "3", "durability": "memory"}
    new = m.NewTopic("t", serialize_schema(SCHEMA), 1, replication_factor=3, configs=configs)
    (created,) = one.call(m.CreateTopicsRequest(topics=[new]))[0].topics
    assert not created.error_code, created
    members.run(1_000)
    image = one.node.broker.metadata.image
    topic = image.topics["t"]
    leader = members.by_id[topic.partitions[0].leader_id]
    follower = next(n for n in members.by_id if n not in (1, leader.config.node_id))
    leader.call(m.HelloRequest())
    return leader, members.by_id[follower], topic.topic_id


def test_a_single_broker_is_its_own_controller_and_the_rest_is_zero(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create(partitions=3)
    node.produce(topic, batch_of([1]), durability=Durability.MEMORY)
    node.advance(60_000)
    term, leader = node.node.broker.quorum.raft.term, node.config.node_id
    assert gauges(node) == ClusterGauges(
        active_controller=1, brokers_registered=1, quorum_term=term, quorum_leader_id=leader
    )
    assert node.metrics.in_sync_shrinks == node.metrics.leader_epoch_changes == 0
    # It never saw a transaction.
    assert transaction_gauges(node.node, node.now) == TransactionGauges() == (0, 0, 0, 0)
    assert transaction_gauges(None, node.now) == TransactionGauges()
    assert publish_waiting_rows(node.node) == publish_waiting_rows(None) == {}
    assert set(node.metrics.transactions.values()) == {node.metrics.transactions_fenced} == {0}


def test_a_broker_that_has_not_started_has_the_default_numbers(tmp_path: Path) -> None:
    assert cluster_gauges(None, 0) == ClusterGauges()
    members = Members(tmp_path)
    waiting = members.add(2, seeds=(1, 2))
    assert gauges(waiting).quorum_leader_id == NO_BROKER
    assert gauges(waiting).active_controller == 0


def test_all_know_the_quorum_and_the_brokers_and_one_is_the_controller(members: Members) -> None:
    create(members)
    found = [gauges(member) for member in members.by_id.values()]
    assert [one.active_controller for one in found] == [1, 0, 0]
    assert {one.quorum_leader_id for one in found} == {1}
    assert len({one.quorum_term for one in found}) == 1
    for one in found:
        assert (one.brokers_registered, one.brokers_fenced) == (3, 0)
        assert (one.partitions_under_replicated, one.partitions_leaderless) == (0, 0)
        assert one.quorum_lag_entries == 0


def test_a_follower_that_is_cut_off_lags_is_fenced_and_comes_back(members: Members) -> None:
    leader, follower, topic = create(members)
    leader.produced(topic, batch_of(range(10)), durability=Durability.MEMORY)
    members.run(1_000)
    before = gauges(leader)
    assert (before.replica_lag_max_rows, before.replica_lag_max_seconds) == (0, 0)
    for node_id in members.by_id:
        if node_id != follower.config.node_id:
            members.cut.add(frozenset((node_id, follower.config.node_id)))
    leader.produced(topic, batch_of(range(30)), durability=Durability.MEMORY)
    members.run(500)
    behind = gauges(leader)
    assert behind.replica_lag_max_rows == 30
    log = leader.node.broker.replicas[topic, 0].log
    assert behind.replica_lag_max_bytes == pytest.approx(log.reader.size_bytes * 30 / 40, abs=1)
    assert 0.4 < behind.replica_lag_max_seconds < 2
    members.run_until(lambda: gauges(leader).brokers_fenced == 1)
    members.run(500)
    after = gauges(leader)
    assert after.partitions_under_replicated == after.partitions_under_min_in_sync == 1
    assert after.partitions_leaderless == 0
    assert (leader.metrics.in_sync_shrinks, leader.metrics.in_sync_expands) == (1, 0)
    assert gauges(follower).partitions_under_replicated == 0, "the leader counts it, once"
    members.cut.clear()
    members.run_until(lambda: gauges(leader).partitions_under_replicated == 0)
    members.run(500)
    assert gauges(leader) == before
    assert (leader.metrics.in_sync_shrinks, leader.metrics.in_sync_expands) == (1, 1)


def test_another_leader_is_counted_once_by_each_that_holds_the_partition(members: Members) -> None:
    _, _, topic = create(members)
    one = members.by_id[1]
    partition = one.node.broker.metadata.image.topics_by_id[topic].partitions[0]
    before = {n: member.metrics.leader_epoch_changes for n, member in members.by_id.items()}
    other = next(n for n in (1, 2, 3) if n != partition.leader_id)
    epoch = partition.leader_epoch + 1
    change = PartitionChangeRecord(topic, 0, leader_id=other, leader_epoch=epoch)
    one.node.broker.propose([change], one.now, lambda _result, _error, _now: None)
    one.send(Tick())
    members.run(1_000)
    for node_id, member in members.by_id.items():
        assert member.metrics.leader_epoch_changes == before[node_id] + 1
    gone = PartitionChangeRecord(topic, 0, leader_id=LEADER_GONE, leader_epoch=epoch + 1)
    one.node.broker.propose([gone], one.now, lambda _result, _error, _now: None)
    one.send(Tick())
    members.run(100)
    assert {gauges(member).partitions_leaderless for member in members.by_id.values()} == {1}
    assert {gauges(member).partitions_awaiting_logs for member in members.by_id.values()} == {0}


def test_the_slowest_voter_is_the_lag_of_the_quorum(members: Members) -> None:
    one, two = members.by_id[1], members.by_id[2]
    raft = one.quorum.raft
    raft.add_voter(two.key, "host-2:9292", one.mono_us, own_endpoint="host-1:9292")
    one.send(Tick())
    members.run(1_000)
    assert len(raft.voters) == 2
    assert gauges(one).quorum_lag_entries == 0
    members.cut.add(frozenset((1, 2)))
    create_records = [BrokerRecord(9, b"nine", "other", fenced=True)]
    one.node.broker.propose(create_records, one.now, lambda _result, _error, _now: None)
    one.send(Tick())
    members.run(100)
    assert gauges(one).quorum_lag_entries == 1


def test_looking_at_5000_partitions_takes_a_few_ms(tmp_path: Path) -> None:
    """In the thread that renders; the loop gets its turns meanwhile."""
    node = NodeDriver(tmp_path)
    topic = node.create(partitions=1)
    broker = node.node.broker
    broker.propose(
        [
            BrokerRecord(7, b"theirs", "other"),
            TopicRecord(b"x" * 16, "x", 1, 2),
            PartitionRecord(b"x" * 16, 0, (0, 7), (0,), 0),
        ],
        node.now,
        lambda _result, _error, _now: None,
    )
    node.send(Tick())
    replica = broker.replicas[b"x" * 16, 0]
    del broker.replicas[topic, 0]
    broker.replicas.update(((b"y" * 16, n), replica) for n in range(4_999))
    best_s = 1.0
    for _ in range(5):
        begun = time.perf_counter()
        found = gauges(node)
        best_s = min(best_s, time.perf_counter() - begun)
    assert found.partitions_under_replicated == 5_000
    print(f"{best_s * 1000:.1f} ms for 5,000 partitions")
    assert best_s < 0.1
