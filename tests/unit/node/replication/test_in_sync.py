"""In-sync replicas on a whole node: it leads, is the controller, and its followers come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quiverlog.core.controller.records import (
    BrokerChangeRecord,
    BrokerRecord,
    PartitionChangeRecord,
    Record,
)
from quiverlog.core.partition.partition import PartitionState
from quiverlog.errors import (
    IneligibleReplica,
    InvalidRequest,
    NotController,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    OutdatedPartitionEpoch,
    StaleBrokerEpoch,
    ThrottledBroker,
    WrongListener,
)
from quiverlog.limits import IN_SYNC_RETRY_MS, REPLICA_LAG_MS_MAX, UNFLUSHED_MS_MAX
from quiverlog.node.runtime.events import Tick
from quiverlog.node.runtime.jobs import Then
from quiverlog.types import Durability, Now
from quiverlog.wire import messages as m
from quiverlog.wire.replica_messages import (
    AlterPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from tests.support.node import NodeDriver, batch_of

LEADER, COPY, OTHER = 0, 1, 2
ALL = (LEADER, COPY, OTHER)


class Cluster:
    """A node that leads a partition and is the controller; its followers are this test."""

    def __init__(self, tmp_path: Path, *, min_in_sync: int = 2, partitions: int = 1) -> None:
        self.node = node = NodeDriver(tmp_path, node_id=LEADER)
        broker = node.node.broker
        self.topic = node.create(durability="memory", partitions=partitions)
        image = broker.metadata.image
        for one in (image, broker.metadata.pending):
            one.topics["t"].replication_factor = 3
        self.decide(*(BrokerRecord(n, bytes([n])) for n in (COPY, OTHER)))
        alter = {"min.insync.replicas": str(min_in_sync)}
        whole: dict[str, Any] = {"replicas": ALL, "in_sync_replicas": ALL, "leader_epoch": 3}
        changes = (PartitionChangeRecord(self.topic, n, LEADER, **whole) for n in range(partitions))
        self.decide(*changes)
        node.call(m.AlterTopicRequest(name="t", set_configs=alter))
        self.sessions: dict[int, tuple[int, int]] = {}

    def decide(self, *records: Record) -> None:
        outcomes: list[BaseException | None] = []
        self.node.node.broker.propose(
            list(records), self.node.now, lambda _result, error, _now: outcomes.append(error)
        )
        self.node.send(Tick())
        assert outcomes == [None]

    def change(self, number: int = 0, **fields: Any) -> None:
        self.decide(PartitionChangeRecord(self.topic, number, leader_id=LEADER, **fields))

    def epoch(self, broker_id: int) -> int:
        return self.node.node.broker.metadata.image.brokers[broker_id].broker_epoch

    @property
    def state(self) -> PartitionState:
        return self.node.node.broker.replicas[self.topic, 0].state

    @property
    def in_sync(self) -> tuple[int, ...]:
        """As in the metadata."""
        image = self.node.node.broker.metadata.image
        return image.topics_by_id[self.topic].partitions[0].in_sync_replicas

    def fetch(
        self,
        broker_id: int,
        offset: int,
        *,
        flushed: int = 0,
        epoch: int | None = None,
        max_wait_ms: int = 0,
    ) -> ReplicaFetchResponse:
        """Of a new session, each time."""
        latest = self.node.node.broker.replicas[self.topic, 0].log.epochs.latest()[0]
        entry = ReplicaFetchPartition(
            self.topic, 0, self.state.leader_epoch, offset, latest if offset else -1, flushed, 0
        )
        own = self.epoch(broker_id) if epoch is None else epoch
        request = ReplicaFetchRequest(
            replica_id=broker_id, broker_epoch=own, max_wait_ms=max_wait_ms, partitions=[entry]
        )
        response, _ = self.node.call(request)
        assert isinstance(response, ReplicaFetchResponse)
        assert not response.error_code, response
        return response

    def write(self, *values: int, level: Durability = Durability.MEMORY) -> int:
        return self.node.produce(self.topic, batch_of(values), durability=level)

    def code(self, correlation: int) -> int:
        answer = self.node.answer(correlation)
        assert answer is not None, "no answer yet"
        return int(answer[0].partitions[0].error_code)


class Slow:
    """Delays requests between a leader and the controller."""

    def __init__(self, cluster: Cluster) -> None:
        changes = cluster.node.node.broker.in_sync_changes
        self.decide = changes._ask
        changes._ask = self
        self.asked: list[tuple[AlterPartitionRequest, Then]] = []

    def __call__(self, request: AlterPartitionRequest, then: Then, now: Now) -> None:
        self.asked.append((request, then))


def test_a_follower_that_is_behind_leaves_and_comes_back(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write(1, 2)
    for _ in range(3):
        cluster.node.advance(REPLICA_LAG_MS_MAX // 2)
        cluster.fetch(COPY, cluster.state.log_end_offset)
    assert cluster.in_sync == (LEADER, COPY), "the other one has never asked"
    assert cluster.state.high_watermark == 2
    cluster.fetch(OTHER, 0)
    assert cluster.in_sync == (LEADER, COPY)
    cluster.fetch(OTHER, 2)
    assert cluster.in_sync == ALL


def test_no_follower_leaves_before_the_lag_time_is_over(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.node.advance(10 * REPLICA_LAG_MS_MAX)
    assert cluster.in_sync == (LEADER,), "no follower has fetched since the election"
    for one in (COPY, OTHER):
        cluster.fetch(one, 0)
    assert cluster.in_sync == ALL
    cluster.node.advance(10 * REPLICA_LAG_MS_MAX)
    assert cluster.in_sync == ALL, "a follower with all rows is in sync, whenever it fetched last"
    for one in (COPY, OTHER):
        cluster.fetch(one, 0)
    cluster.write(1)
    cluster.node.advance(REPLICA_LAG_MS_MAX - 1)
    assert cluster.in_sync == ALL
    cluster.node.advance(2)
    assert cluster.in_sync == (LEADER,)


def test_a_move_ends_when_the_leader_has_flushed_last(tmp_path: Path) -> None:
    """Followers at the end of the log do not name the partition again, so no fetch ends it."""
    cluster = Cluster(tmp_path)
    cluster.write(1, 2)
    for one in (COPY, OTHER):
        cluster.fetch(one, 2, flushed=2)
    replica = cluster.node.node.broker.replicas[cluster.topic, 0]
    assert replica.state.flushed_offset < 2
    assert replica.state.leadership is not None
    assert replica.state.leadership.flushed_offset(0) == 2, "two disks have them: a promise"
    cluster.change(removing_replicas=(OTHER,))
    cluster.fetch(COPY, 2, flushed=2)
    cluster.node.advance(UNFLUSHED_MS_MAX // 2)
    assert cluster.in_sync == ALL, "of those that stay, only one has them on its disk"
    cluster.node.advance(UNFLUSHED_MS_MAX)
    assert cluster.in_sync == ALL, "the leader's flush is under way"
    cluster.node.flush()
    assert replica.state.flushed_offset == 2
    assert cluster.in_sync == (LEADER, COPY)


def test_followers_that_have_all_rows_cost_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for one in (COPY, OTHER):
        cluster.fetch(one, 0)
    changes = cluster.node.node.broker.in_sync_changes
    cluster.node.advance(2 * REPLICA_LAG_MS_MAX)
    assert changes.next_us() is None
    assert not changes.is_needed


def test_a_topic_with_followers_is_deleted(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write(1, 2)
    cluster.node.call(m.DeleteTopicsRequest(names=["t"]))
    cluster.node.send(Tick())
    broker = cluster.node.node.broker
    assert broker.metrics.internal_errors == 0
    assert not broker.replicas
    assert not broker.in_sync_changes.is_needed


def test_too_few_in_sync_are_a_typed_error(tmp_path: Path) -> None:
    """Rule 6 of docs/replication-rules.md."""
    cluster = Cluster(tmp_path)
    waiting = cluster.write(1, level=Durability.REPLICATED)
    assert cluster.node.answer(waiting) is None
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    assert cluster.in_sync == (LEADER,)
    assert cluster.code(waiting) == NotEnoughReplicasAfterAppend.code
    assert cluster.code(cluster.write(2, level=Durability.REPLICATED)) == NotEnoughReplicas.code
    assert cluster.code(cluster.write(3)) == 0, "of a weaker level"
    assert cluster.state.high_watermark == 0, "and seen by no reader"
    image = cluster.node.node.broker.metadata.image
    assert image.topics["t"].partitions[0].eligible_leader_replicas == (COPY, OTHER)


def test_what_may_hold_counts_until_it_is_known(tmp_path: Path) -> None:
    """The maximal set: a member proposed for removal may have stayed."""
    cluster = Cluster(tmp_path)
    slow = Slow(cluster)
    cluster.write(1)
    cluster.fetch(COPY, 1)
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    assert len(slow.asked) == 1
    request, then = slow.asked[0]
    assert request.partitions[0].in_sync_replicas == [LEADER, COPY]
    assert request.broker_epoch == cluster.epoch(LEADER)
    assert cluster.state.high_watermark == 0
    cluster.node.advance(3 * REPLICA_LAG_MS_MAX)
    assert len(slow.asked) == 1, "one request is under way"
    slow.decide(request, then, cluster.node.now)
    cluster.node.send(Tick())
    assert cluster.in_sync == (LEADER, COPY)
    assert cluster.state.high_watermark == 1


def test_what_is_not_answered_is_asked_again_the_same(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    slow = Slow(cluster)
    cluster.write(1)
    cluster.fetch(COPY, 1)
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    first, then = slow.asked.pop()
    then(None, NotController(), cluster.node.now)
    then(None, NotController(), cluster.node.now)
    cluster.fetch(OTHER, 1)
    cluster.node.advance(IN_SYNC_RETRY_MS + 1)
    again, then = slow.asked.pop()
    assert again.partitions == first.partitions
    slow.decide(first, lambda _answer, _error, _now: None, cluster.node.now)
    slow.decide(again, then, cluster.node.now)  # The first one was applied after all.
    cluster.node.send(Tick())
    changes, then = slow.asked.pop()
    assert changes.partitions[0].in_sync_replicas == list(ALL), "it has come up meanwhile"
    slow.decide(changes, then, cluster.node.now)
    cluster.node.send(Tick())
    assert cluster.in_sync == ALL


def test_a_follower_may_fetch_again_while_a_request_is_under_way(tmp_path: Path) -> None:
    """Each time the partition is to be looked at when the answer is there: once is enough."""
    cluster = Cluster(tmp_path)
    cluster.change(in_sync_replicas=(LEADER,))
    slow = Slow(cluster)
    cluster.fetch(COPY, 0)
    for _ in range(3):
        cluster.fetch(OTHER, 0)
        cluster.node.send(Tick())
    assert not [line for line in cluster.node.lines if line.event == "internal error"]
    ((request, then),) = slow.asked
    slow.decide(request, then, cluster.node.now)
    cluster.node.send(Tick())
    assert cluster.in_sync == (LEADER, COPY)
    assert [list(one.partitions[0].in_sync_replicas) for one, _ in slow.asked[1:]] == [list(ALL)]


def test_partitions_share_a_request(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, partitions=5)
    slow = Slow(cluster)
    for number in range(5):
        cluster.node.produce(cluster.topic, batch_of([1]), partition=number)
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    request, then = slow.asked.pop()
    assert not slow.asked
    assert len(request.partitions) == 5
    slow.decide(request, then, cluster.node.now)
    cluster.node.send(Tick())
    for partition in cluster.node.node.broker.metadata.image.topics["t"].partitions:
        assert partition.in_sync_replicas == (LEADER,)


def test_a_fenced_follower_does_not_join_until_it_is_fit_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write(1)
    cluster.fetch(COPY, 1)
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    assert cluster.in_sync == (LEADER, COPY)
    cluster.decide(BrokerChangeRecord(OTHER, cluster.epoch(OTHER), fenced=True))
    cluster.fetch(OTHER, 1)
    assert cluster.in_sync == (LEADER, COPY)
    cluster.decide(BrokerChangeRecord(OTHER, cluster.epoch(OTHER), fenced=False))
    assert cluster.in_sync == ALL, "without another word of it"


def test_an_earlier_life_of_a_follower_does_not_join(tmp_path: Path) -> None:
    """Rule 8 of docs/replication-rules.md."""
    cluster = Cluster(tmp_path)
    cluster.write(1)
    cluster.fetch(COPY, 1)
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    before = cluster.epoch(OTHER)
    cluster.decide(BrokerRecord(OTHER, b"anew"))
    cluster.fetch(OTHER, 1, epoch=before)
    assert cluster.in_sync == (LEADER, COPY)
    cluster.fetch(OTHER, 1)
    assert cluster.in_sync == ALL


def test_a_refusal_by_the_controller_is_not_the_end(tmp_path: Path) -> None:
    """The leader had no metadata yet of a fenced follower."""
    cluster = Cluster(tmp_path)
    slow = Slow(cluster)
    cluster.write(1)
    for one in (COPY, OTHER):
        cluster.fetch(one, 1)
    cluster.write(2)
    cluster.fetch(COPY, 2)
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    request, then = slow.asked.pop()
    response = AlterPartitionResponse()
    slow.decide(request, lambda answer, _error, _now: None, cluster.node.now)
    cluster.node.send(Tick())
    assert cluster.in_sync == (LEADER, COPY)
    then(response, None, cluster.node.now)
    cluster.fetch(OTHER, 2)
    request, then = slow.asked.pop()
    assert request.partitions[0].in_sync_replicas == list(ALL)
    epoch = request.partitions[0].partition_epoch
    answer = AlterPartitionResponse()
    answer.partitions = [AlterPartitionResult(cluster.topic, 0, IneligibleReplica.code)]
    then(answer, None, cluster.node.now)
    assert not slow.asked
    cluster.node.advance(IN_SYNC_RETRY_MS + 1)
    request, then = slow.asked.pop()
    assert request.partitions[0].partition_epoch == epoch
    slow.decide(request, then, cluster.node.now)
    cluster.node.send(Tick())
    assert cluster.in_sync == ALL


# --- as the controller ---------------------------------------------------------------------------
def ask(
    cluster: Cluster, *entries: AlterPartition, connection: int = 1, **fields: Any
) -> AlterPartitionResponse:
    given = {"broker_id": LEADER, "broker_epoch": cluster.epoch(LEADER), **fields}
    request = AlterPartitionRequest(partitions=list(entries), **given)
    response, _ = cluster.node.call(request, connection=connection)
    assert isinstance(response, AlterPartitionResponse)
    return response


def entry(cluster: Cluster, *members: int, number: int = 0) -> AlterPartition:
    image = cluster.node.node.broker.metadata.image
    partition = image.topics["t"].partitions[number]
    return AlterPartition(
        cluster.topic,
        number,
        partition.leader_epoch,
        partition.partition_epoch,
        list(members),
        [-1] * len(members),
    )


def test_each_partition_of_a_request_is_decided_on_its_own(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, partitions=2)
    old = entry(cluster, LEADER, COPY)
    first = ask(cluster, old, entry(cluster, COPY, number=1))
    assert [one.error_code for one in first.partitions] == [0, InvalidRequest.code]
    assert first.partitions[0].in_sync_replicas == [LEADER, COPY]
    assert first.partitions[0].partition_epoch == old.partition_epoch + 1
    second = ask(cluster, old, entry(cluster, LEADER, number=1), entry(cluster, LEADER, number=1))
    codes = [one.error_code for one in second.partitions]
    assert codes == [OutdatedPartitionEpoch.code, 0, InvalidRequest.code]


def test_requests_under_another_epoch_or_listener_are_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    asked = entry(cluster, LEADER, COPY)
    assert ask(cluster, asked, broker_epoch=999).error_code == StaleBrokerEpoch.code
    node = NodeDriver(tmp_path / "other", inter_broker_listener="internal")
    response, _ = node.call(AlterPartitionRequest(broker_id=0, broker_epoch=1))
    assert response.error_code == WrongListener.code


def test_what_is_under_way_is_no_reason_for_a_last_word(tmp_path: Path) -> None:
    """What is under way may fail, and then no metadata would come to a leader that got
    "outdated"."""
    cluster = Cluster(tmp_path)
    asked = entry(cluster, LEADER, COPY)
    cluster.node.hold_jobs = True
    sent = [
        cluster.node.request(
            AlterPartitionRequest(
                broker_id=LEADER, broker_epoch=cluster.epoch(LEADER), partitions=[asked]
            )
        )
        for _ in range(2)
    ]
    cluster.node.send(Tick())
    assert cluster.node.answer(sent[0]) is None
    assert cluster.code(sent[1]) == ThrottledBroker.code
    cluster.node.hold_jobs = False
    cluster.node.run_until_idle()
    assert cluster.code(sent[0]) == 0
