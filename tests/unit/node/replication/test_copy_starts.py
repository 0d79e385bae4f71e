"""Log starts of copies: they follow the leader's, and DELETE_RECORDS waits for those that live."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.core.controller.records import (
    LEADER_GONE,
    BrokerChangeRecord,
    PartitionChangeRecord,
)
from quiverlog.core.replication.follower import Phase
from quiverlog.errors import (
    DiskFull,
    NotEnoughReplicas,
    NotLeader,
    RequestTimedOut,
    StorageFault,
)
from quiverlog.limits import REPLICA_LAG_MS_MAX
from quiverlog.node.controller.log_ends import log_end
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import Shutdown, Tick
from quiverlog.storage.log.jobs import TrimJob
from quiverlog.wire import messages as m
from quiverlog.wire.replica_messages import (
    PartitionLogEnd,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReportLogEndsRequest,
    ReportLogEndsResponse,
)
from tests.support.node import NodeDriver, batch_of
from tests.unit.node.apis.test_replica_fetch import change

from .test_in_sync import COPY, LEADER, OTHER, Cluster


class Following(Cluster):
    """Both followers have all rows, and report where they begin."""

    def report_start(self, broker_id: int, start: int) -> None:
        end = self.state.log_end_offset
        entry = ReplicaFetchPartition(
            self.topic, 0, self.state.leader_epoch, end, self.state.leader_epoch, 0, start
        )
        request = ReplicaFetchRequest(
            replica_id=broker_id, broker_epoch=self.epoch(broker_id), partitions=[entry]
        )
        response, _ = self.node.call(request)
        assert not response.error_code

    def lose(self, *gone: int) -> None:
        """These brokers are taken for dead."""
        stay = tuple(one for one in self.in_sync if one not in gone)
        self.decide(
            *(BrokerChangeRecord(one, self.epoch(one), fenced=True) for one in gone),
            PartitionChangeRecord(self.topic, 0, in_sync_replicas=stay),
        )

    def delete(self, before: int, *, timeout_ms: int = 5_000) -> int:
        entry = m.DeleteRecordsPartition(self.topic, 0, before)
        request = m.DeleteRecordsRequest(partitions=[entry], timeout_ms=timeout_ms)
        return self.node.request(request)


def following(tmp_path: Path) -> Following:
    cluster = Following(tmp_path)
    for number in range(5):
        cluster.write(number)
    for one in (COPY, OTHER):
        cluster.report_start(one, 0)
    assert cluster.state.high_watermark == 5
    return cluster


def test_deleted_rows_are_gone_everywhere_before_the_answer(tmp_path: Path) -> None:
    """Rule 20 of docs/replication-rules.md."""
    cluster = following(tmp_path)
    asked = cluster.delete(3)
    assert cluster.state.log_start_offset == 3
    assert cluster.node.answer(asked) is None
    cluster.report_start(COPY, 3)
    cluster.report_start(OTHER, 2)
    assert cluster.node.answer(asked) is None
    cluster.report_start(OTHER, 4)
    assert cluster.code(asked) == 0
    assert cluster.code(cluster.delete(2)) == 0, "they are gone already"
    assert cluster.node.answer(cluster.delete(-1)) is None


def test_a_silent_copy_costs_the_timeout(tmp_path: Path) -> None:
    cluster = following(tmp_path)
    asked = cluster.delete(3, timeout_ms=2_000)
    cluster.report_start(COPY, 3)
    cluster.node.advance(1_999)
    assert cluster.node.answer(asked) is None
    cluster.node.advance(2)
    assert cluster.code(asked) == RequestTimedOut.code
    again = cluster.delete(3, timeout_ms=2_000)
    cluster.report_start(OTHER, 3)
    assert cluster.code(again) == 0


def test_a_dead_copy_is_not_waited_for(tmp_path: Path) -> None:
    cluster = following(tmp_path)
    asked = cluster.delete(3)
    cluster.report_start(COPY, 3)
    cluster.lose(OTHER)
    assert cluster.code(asked) == 0


def test_nothing_is_deleted_while_too_few_are_in_sync(tmp_path: Path) -> None:
    """Rule 20 of docs/replication-rules.md: an absent replica may lead next, with the rows."""
    cluster = following(tmp_path)
    asked = cluster.delete(2)
    cluster.lose(COPY, OTHER)
    assert cluster.node.answer(asked) is None, "no possible next leader has it"
    cluster.node.advance(5_001)
    assert cluster.code(asked) == RequestTimedOut.code
    assert cluster.code(cluster.delete(3)) == NotEnoughReplicas.code
    assert cluster.state.log_start_offset == 2


def test_a_follower_that_still_has_deleted_rows_does_not_join(tmp_path: Path) -> None:
    """Rule 20 of docs/replication-rules.md: it would bring them back as soon as it leads."""
    cluster = following(tmp_path)
    cluster.lose(OTHER)
    asked = cluster.delete(3)
    cluster.report_start(COPY, 3)
    assert cluster.code(asked) == 0
    cluster.decide(BrokerChangeRecord(OTHER, cluster.epoch(OTHER), fenced=False))
    cluster.report_start(OTHER, 0)
    assert cluster.in_sync == (LEADER, COPY)
    cluster.report_start(OTHER, 3)
    assert cluster.in_sync == (LEADER, COPY, OTHER)


def test_waiting_requests_fail_when_the_leader_changes_or_stops(tmp_path: Path) -> None:
    cluster = following(tmp_path)
    asked = cluster.delete(3)
    cluster.change(leader_epoch=4)
    assert cluster.node.answer(asked) is None, "it leads on, and knows less"
    change(cluster.node, cluster.topic, leader_id=COPY, leader_epoch=5)
    assert cluster.code(asked) == NotLeader.code
    other = following(tmp_path / "stopping")
    asked = other.delete(3)
    other.node.send(Shutdown())
    other.node.advance(0)  # It hands over first, which is a decision.
    assert other.code(asked) == NotLeader.code


@pytest.mark.parametrize("returns", [False, True])
def test_a_former_leader_promises_nothing_when_its_own_start_is_written(
    tmp_path: Path, returns: bool
) -> None:
    """A replica that leads by then begins where it did, and the rows would come back. (Rule 20.)"""
    cluster = following(tmp_path)
    node = cluster.node
    node.hold_jobs = True
    asked = cluster.delete(3)
    writing = list(node.jobs)
    assert [type(one.job) for one in writing] == [TrimJob]
    node.jobs.clear()
    node.hold_jobs = False
    change(node, cluster.topic, leader_id=COPY, leader_epoch=5)
    if returns:
        change(node, cluster.topic, leader_id=LEADER, leader_epoch=6)
    assert node.answer(asked) is None, "its start is being written"
    node.jobs.extend(writing)
    node.run_until_idle()
    if not returns:
        assert cluster.code(asked) == NotLeader.code
        return
    assert node.answer(asked) is None, "it leads again, and the copies are asked"
    for one in (COPY, OTHER):
        cluster.report_start(one, 3)
    assert cluster.code(asked) == 0


def test_a_single_replica_waits_for_no_other(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create(durability="memory")
    node.produce(topic, batch_of([1, 2, 3]))
    entry = m.DeleteRecordsPartition(topic, 0, 2)
    response, _ = node.call(m.DeleteRecordsRequest(partitions=[entry], timeout_ms=0))
    assert response.partitions[0].error_code == 0
    assert node.node.next_deadline_us() != 0


# --- the copy's side -----------------------------------------------------------------------------
@pytest.fixture
def copy(tmp_path: Path) -> tuple[NodeDriver, Replica]:
    """A copy with four rows that its leader has shown."""
    node = NodeDriver(tmp_path, node_id=COPY)
    topic = node.create(durability="memory")
    for number in range(4):
        node.produce(topic, batch_of([number]))
    both = (LEADER, COPY)
    change(node, topic, replicas=both, in_sync_replicas=both, leader_id=LEADER, leader_epoch=3)
    replica = node.node.broker.assignment.find((topic, 0))
    assert replica is not None
    assert not replica.state.leads
    return node, replica


def follow_start(node: NodeDriver, replica: Replica, start: int, saved: int) -> None:
    node.node.broker.replication._starts.follow(replica, start, saved, node.now)
    node.send(Tick())


def test_a_copy_follows_what_retention_takes_without_a_write(
    copy: tuple[NodeDriver, Replica],
) -> None:
    node, replica = copy
    node.hold_jobs = True
    follow_start(node, replica, 2, 0)
    assert replica.log.log_start_offset == 2
    assert replica.log.start_saved == 0
    assert not node.jobs


def test_a_copy_writes_down_what_was_promised(copy: tuple[NodeDriver, Replica]) -> None:
    node, replica = copy
    follow_start(node, replica, 2, 2)
    assert replica.log.start_saved == 2
    follow_start(node, replica, 9, 9)
    assert replica.log.log_start_offset == 4, "as far as there are rows"
    assert replica.state.log_start_offset == 4


def test_a_copy_that_cannot_follow_asks_again(copy: tuple[NodeDriver, Replica]) -> None:
    node, replica = copy
    found = node.node.broker.replication._copies[replica.topic.topic_id, 0]
    node.hold_jobs = True
    follow_start(node, replica, 2, 2)
    (trim,) = node.jobs
    node.jobs.clear()
    node._run(trim, DiskFull("no room"))
    assert replica.log.log_start_offset == 0
    assert found.follower.phase is Phase.FAILED
    node.hold_jobs = False
    node.advance(1_000)
    assert found.follower.phase is Phase.ASKING
    follow_start(node, replica, 2, 2)
    assert replica.log.start_saved == 2


def test_a_copy_is_not_trimmed_while_it_is_cut(copy: tuple[NodeDriver, Replica]) -> None:
    node, replica = copy
    replica.cutting = True
    follow_start(node, replica, 2, 2)
    assert replica.log.log_start_offset == 0
    replica.cutting = False
    node.node.broker.replication._starts.go_on(replica, node.now)
    node.send(Tick())
    assert replica.log.start_saved == 2


def test_retention_and_clients_take_nothing_from_a_copy(copy: tuple[NodeDriver, Replica]) -> None:
    """Rule 20 of docs/replication-rules.md."""
    node, replica = copy
    topic = replica.topic.topic_id
    node.call(m.AlterTopicRequest(name="t", set_configs={"retention.ms": "1000"}))
    entry = m.DeleteRecordsPartition(topic, 0, 1)
    response, _ = node.call(m.DeleteRecordsRequest(partitions=[entry]))
    assert response.partitions[0].error_code == NotLeader.code
    node.advance(20 * REPLICA_LAG_MS_MAX + 2 * node.config.retention_check_ms)
    assert replica.log.log_start_offset == 0


# --- logs without a leader -----------------------------------------------------------------------
def test_a_log_without_a_leader_gives_up_rows_that_another_reports_deleted(
    tmp_path: Path,
) -> None:
    """Rule 20 of docs/replication-rules.md, after a total power failure."""
    cluster = following(tmp_path)
    node, topic = cluster.node, cluster.topic
    broker = node.node.broker
    epoch = cluster.state.leader_epoch
    none = PartitionChangeRecord(topic, 0, LEADER_GONE, epoch + 1, (), eligible_leader_replicas=())
    cluster.decide(none)
    end = PartitionLogEnd(topic, 0, epoch + 1, epoch, 4, log_start_offset=3)
    answers: list[object] = []
    for one in (OTHER, COPY):
        request = ReportLogEndsRequest(
            broker_id=one, broker_epoch=cluster.epoch(one), partitions=[end]
        )
        broker.membership.log_end_decisions.decide(
            request, lambda answer, _error, _now: answers.append(answer), node.now
        )
    replica = broker.assignment.find((topic, 0))
    assert replica is not None
    assert answers == [ReportLogEndsResponse(starts=[])] * 2, "their own logs begin there"
    node.advance(1_000)
    assert replica.log.start_saved == 3
    assert replica.state.leads, "it is the longest, and without those rows"
    assert cluster.state.log_start_offset == 3


def test_a_log_whose_disk_has_failed_is_reported_with_its_rows(
    copy: tuple[NodeDriver, Replica],
) -> None:
    _, replica = copy
    whole = log_end(replica)
    assert (whole.end_offset, whole.is_offline) == (4, False)
    replica.fault = StorageFault("an append failed")
    assert log_end(replica) == whole._replace(is_offline=True)
