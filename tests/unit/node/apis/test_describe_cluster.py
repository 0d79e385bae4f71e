"""DESCRIBE_CLUSTER: what brokers report, and which broker's answer the client uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.cli.cluster.detail import cluster_json, print_cluster
from quiverlog.cli.console.cluster_health import findings
from quiverlog.cli.console.probes import Seen
from quiverlog.client.admin.cluster import describe_cluster
from quiverlog.client.base.results import Address, ClusterDetail
from quiverlog.client.cluster.answers import check_answer
from quiverlog.client.cluster.routing import Cluster, Settings
from quiverlog.core.controller.records import (
    LEADER_GONE,
    BrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from quiverlog.errors import InvalidResponse, RequestTimedOut
from quiverlog.limits import FRAME_PREFIX_BYTES
from quiverlog.node.runtime.events import DiskSpace, Load
from quiverlog.wire import messages as m
from quiverlog.wire.cluster_messages import (
    ClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from quiverlog.wire.frames import decode_response, encode
from quiverlog.wire.voters_messages import QuorumReplica
from tests.support.client_world import World
from tests.support.members import Member, Members
from tests.support.node import NodeDriver
from tests.unit.node.controller.test_elections import HERE, OTHER, TOPIC, decide
from tests.unit.node.metadata.test_voters import grow


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path)


def described(node: NodeDriver) -> Any:
    node.call(m.HelloRequest())
    asked = node.request(DescribeClusterRequest())
    answer = node.answer(asked)
    for _ in range(1_000):
        if answer is not None:
            return answer[0]
        node.advance(1)
        answer = node.answer(asked)
    raise AssertionError("no answer")


# --- what brokers report ------------------------------------------------------------------------
def test_a_single_broker_describes_the_whole_cluster(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, rack="a")
    node.create("t", partitions=3)
    found = described(node)
    assert (found.node_id, found.controller_id, found.controller_epoch) == (0, 0, 1)
    assert found.metadata_version == node.node.broker.metadata.image.version
    (broker,) = found.brokers
    assert (broker.leader_count, broker.replica_count, broker.rack) == (3, 3, "a")
    assert Address(broker.host, broker.port) == node.config.endpoint
    (voter,) = found.quorum
    assert (voter.is_voter, voter.lag, voter.silent_ms) == (True, 0, 0)
    assert (found.topic_count, found.partition_count) == (1, 3)


def test_a_broker_reports_its_own_room_and_load(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    found = described(node)
    assert (found.load_permille, found.received_bytes_per_s, found.sent_bytes_per_s) == (-1, -1, -1)
    node.send(DiskSpace(2**40, load=Load(1_250, 3, 4)))
    found = described(node)
    assert found.room_bytes == node.node.broker.admission.room_bytes > 2**39
    assert (found.load_permille, found.received_bytes_per_s, found.sent_bytes_per_s) == (
        1_250,
        3,
        4,
    )


def test_partitions_that_are_not_as_they_should_be_are_counted(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    decide(
        node,
        BrokerRecord(OTHER, b"theirs", "other", 9, fenced=True),
        TopicRecord(TOPIC, "t", 1, 2),
        PartitionRecord(TOPIC, 0, (HERE, OTHER), (HERE, OTHER), HERE),
        PartitionRecord(TOPIC, 1, (HERE, OTHER), (HERE,), HERE),
        PartitionRecord(TOPIC, 2, (OTHER, HERE), (OTHER,), OTHER),
    )
    decide(node, PartitionChangeRecord(TOPIC, 2, leader_id=LEADER_GONE, leader_epoch=1))
    found = described(node)
    assert (found.partition_count, found.under_replicated_count, found.offline_count) == (3, 2, 1)
    topic = node.node.broker.metadata.image.topics["t"]
    assert topic.config.min_in_sync_replicas == 2
    assert found.under_min_in_sync_count == 2
    assert [(b.node_id, b.leader_count, b.replica_count, b.is_fenced) for b in found.brokers] == [
        (HERE, 2, 3, False), (OTHER, 0, 3, True),
    ]  # fmt: skip


def test_what_a_restart_of_a_broker_would_cost_is_counted(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    third = OTHER + 1
    decide(
        node,
        BrokerRecord(OTHER, b"theirs", "other", 9),
        BrokerRecord(third, b"third", "third", 9),
        TopicRecord(TOPIC, "t", 1, 2),
        PartitionRecord(TOPIC, 0, (HERE, OTHER), (HERE, OTHER), HERE),
        PartitionRecord(TOPIC, 1, (HERE, OTHER, third), (HERE, OTHER, third), HERE),
        PartitionRecord(TOPIC, 2, (HERE, OTHER), (HERE,), HERE),
        # Its new copy is not in sync yet, as it has to be.
        PartitionRecord(
            TOPIC, 3, (HERE, third, OTHER), (HERE, OTHER), HERE,
            adding_replicas=(third,), removing_replicas=(OTHER,),
        ),
    )  # fmt: skip
    assert node.node.broker.metadata.image.topics["t"].config.min_in_sync_replicas == 2
    found = described(node)
    assert found.moving_count == 1
    assert [(b.node_id, b.out_of_sync_count, b.needed_count, b.moving_count)
            for b in found.brokers] == [
        (HERE, 0, 3, 1), (OTHER, 1, 2, 1), (third, 0, 0, 1),
    ]  # fmt: skip


def test_the_controller_reports_the_lag_of_the_others(members: Members) -> None:
    first = members.add(1)
    grow(members, 2, 3)
    members.run(1_000)
    found = described(first)
    assert [(one.node_id, one.lag) for one in found.quorum] == [(1, 0), (2, 0), (3, 0)]
    members.down.add(3)
    members.run(1_000)
    silent = {one.node_id: one.silent_ms for one in described(first).quorum}
    assert silent[1] == 0
    assert silent[2] < 500 <= 900 <= silent[3]


def test_the_controller_has_metadata_lag_room_and_failed_writes_of_each_broker(
    members: Members,
) -> None:
    first = members.add(1)
    grow(members, 2, 3)
    second: Member = members.by_id[2]
    members.run(1_000)
    assert [one.metadata_lag for one in described(first).brokers] == [0, 0, 0]
    second.node.broker.admission.disk_filled()
    second.metrics.partitions_with_faults = 7
    members.down.add(3)
    members.run(500)
    records = [TopicRecord(TOPIC, "t", 1, 1), PartitionRecord(TOPIC, 0, (1,), (1,), 1)]
    first.node.broker.propose(records, first.now, lambda _result, _error, _now: None)
    members.run(1_000)
    found = described(first).brokers
    assert [one.is_disk_full for one in found] == [False, True, False]
    assert [one.metadata_lag == 0 for one in found] == [True, True, False]
    assert found[2].metadata_lag > 0
    assert [one.faulted_count for one in found] == [0, 7, 0]
    first.metrics.partitions_with_faults = 8
    assert [one.faulted_count for one in described(first).brokers] == [8, 7, 0]
    brokers = described(second).brokers
    assert [one.faulted_count for one in brokers] == [0, 0, 0], "only the controller has it"
    assert [(one.metadata_lag, one.is_disk_full) for one in brokers] == [(-1, False)] * 3


def test_a_follower_names_the_controller_and_reports_no_lag(members: Members) -> None:
    members.add(1)
    grow(members, 2, 3)
    second: Member = members.by_id[2]
    members.run(1_000)
    found = described(second)
    assert (found.node_id, found.controller_id) == (2, 1)
    assert [(one.node_id, one.lag, one.silent_ms) for one in found.quorum] == [
        (1, -1, -1), (2, -1, -1), (3, -1, -1),
    ]  # fmt: skip
    assert [broker.node_id for broker in found.brokers] == [1, 2, 3]


# --- whom the client believes -------------------------------------------------------------------
ONE, TWO = Address("one", 9292), Address("two", 9292)


def answer_of(node_id: int, version: int, controller_id: int = 2) -> DescribeClusterResponse:
    brokers = [ClusterBroker(1, 5, *ONE), ClusterBroker(2, 6, *TWO)]
    return DescribeClusterResponse(
        cluster_id="c",
        node_id=node_id,
        metadata_version=version,
        controller_id=controller_id,
        brokers=brokers,
        quorum=[QuorumReplica(1, "d", "one:9292", is_voter=True)],
    )


def texts(found: ClusterDetail) -> list[str]:
    return [one.text for one in findings(found)]


def ask(answers: dict[Address, Any]) -> tuple[ClusterDetail, list[Address]]:
    """Return the outcome, and the brokers that were asked."""
    cluster = Cluster([ONE], Settings(), clock=lambda: 0.0, jitter=lambda: 0.5)
    world = World(answers)
    return world.play(describe_cluster(cluster)), world.asked


def test_the_controller_is_asked_where_another_broker_has_answered() -> None:
    found, asked = ask({ONE: answer_of(1, 10), TWO: answer_of(2, 11)})
    assert asked == [ONE, TWO]
    assert (found.reported_by, found.controller, found.metadata_version) == (2, 2, 11)
    assert texts(found) == []


def test_room_and_load_are_unknown_where_the_broker_reports_none() -> None:
    found, _ = ask({ONE: answer_of(1, 10, controller_id=1)})
    assert (found.room_bytes, found.load) == (None, None)
    assert (found.received_bytes_per_s, found.sent_bytes_per_s) == (None, None)
    reported = answer_of(1, 10, controller_id=1)
    reported.room_bytes = reported.received_bytes_per_s = reported.load_permille = 0
    reported.sent_bytes_per_s = 7
    found, _ = ask({ONE: reported})
    assert (found.room_bytes, found.load) == (0, 0.0)
    assert (found.received_bytes_per_s, found.sent_bytes_per_s) == (0, 7)


def test_a_controller_that_does_not_answer_leaves_what_is_known() -> None:
    found, asked = ask({ONE: answer_of(1, 10), TWO: RequestTimedOut("silent")})
    assert asked == [ONE, TWO]
    assert (found.reported_by, found.quorum[0].lag) == (1, None)
    (problem,) = texts(found)
    assert "The controller, broker 2, did not answer" in problem


def test_an_answer_with_older_metadata_than_the_first_is_not_used() -> None:
    found, _ = ask({ONE: answer_of(1, 10), TWO: answer_of(2, 9)})
    assert found.reported_by == 1


def test_without_a_controller_one_answer_is_enough() -> None:
    found, asked = ask({ONE: answer_of(1, 10, controller_id=-1)})
    assert asked == [ONE]
    assert found.controller is None
    assert texts(found) == [
        "There is no controller: 1 of the 1 voters have to run and to reach each other. Start "
        "those that do not."
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"brokers": [ClusterBroker(1, 5, *ONE)] * 2},
        {"brokers": [ClusterBroker(1, 5, "", 1)]},
        {"brokers": [ClusterBroker(1, 5, "h", 0)]},
        {"brokers": [ClusterBroker(1, 5, "h", 1, leader_count=-1)]},
        {"brokers": [ClusterBroker(1, 5, "h", 1, out_of_sync_count=-1)]},
        {"brokers": [ClusterBroker(1, 5, "h", 1, needed_count=-1)]},
        {"brokers": [ClusterBroker(1, 5, "h", 1, moving_count=-1)]},
        {"brokers": [ClusterBroker(1, 5, "h", 1, faulted_count=-1)]},
        {"brokers": [ClusterBroker(1, 5, "h", 1, metadata_lag=-2)]},
        {"moving_count": 1},
        {"node_id": -1},
        {"offline_count": 1},
        {"topic_count": -1},
    ],
)
def test_impossible_answers_are_refused(change: dict[str, Any]) -> None:
    answer = answer_of(1, 10)
    receive(answer)
    for name, value in change.items():
        setattr(answer, name, value)
    with pytest.raises(InvalidResponse, match="DESCRIBE_CLUSTER"):
        receive(answer)


def receive(answer: DescribeClusterResponse) -> None:
    """What a client's connection does with the answer."""
    header = encode(answer, 1)[FRAME_PREFIX_BYTES:]
    check_answer(DescribeClusterRequest(), decode_response(header, answer.API), 0)


# --- what people see ----------------------------------------------------------------------------
def test_a_problem_is_named_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(2, 11)
    answer.brokers[0].is_fenced = True
    answer.brokers[1].in_shutdown = True
    answer.brokers[1].is_disk_full, answer.brokers[1].metadata_lag = True, 73
    answer.quorum.append(QuorumReplica(2, "e", "two:9292", is_voter=True, last_index=4, lag=0))
    answer.partition_count, answer.under_min_in_sync_count, answer.offline_count = 3, 2, 1
    found, _ = ask({ONE: answer})
    print_cluster(Seen(found))
    shown = capsys.readouterr().out
    assert "fenced" in shown
    assert "stopping, disk full" in shown
    assert "73" in shown
    for words in ("Two voters", "Fenced: 1.", "without a leader: start", "room for rows: 2."):
        assert words in shown
    assert cluster_json(Seen(found))["advice"] == texts(found)
