"""The image takes a partition away from this broker, or its leadership: what clients get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.core.controller.records import LEADER_GONE, PartitionChangeRecord, Record
from quiverlog.core.partition.progress import FollowerReport
from quiverlog.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
    OutOfOrderSequence,
    RequestTimedOut,
    ThrottledBroker,
)
from quiverlog.limits import PRODUCER_BATCHES_REMEMBERED
from quiverlog.node.runtime.events import Tick
from quiverlog.storage.metadata.metadata_log import MetadataLog
from quiverlog.types import LATEST, Durability
from quiverlog.wire import messages as m
from tests.support.node import START_WALL_US, NodeDriver, batch_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def reconcile(node: NodeDriver, topic: bytes) -> None:
    """As when records have changed the image."""
    broker = node.node.broker
    broker.assignment.reconcile(broker.metadata.image, {topic: None}, node.now)


def test_a_partition_that_goes_elsewhere_is_not_led_here(node: NodeDriver) -> None:
    """UNKNOWN_TOPIC_ID would mean to the producer that its topic was deleted, NOT_LEADER that its
    rows
    were not stored."""
    topic = node.create(partitions=2)
    counters = node.metrics.topics["t"]
    stored = node.produce(topic, batch_of([1]))
    node.node.broker.metadata.image.topics["t"].partitions[0].replicas = (7,)
    node.node.broker.metadata.image.topics["t"].partitions[0].leader_id = 7
    reconcile(node, topic)
    node.send(Tick())
    answer = node.answer(stored)
    assert answer is not None
    assert answer[0].partitions[0].error_code == NotEnoughReplicasAfterAppend.code
    assert node.metrics.topics["t"] is counters, "the other partition counts on"


def test_no_long_poll_stays_with_a_replica_that_leads_no_more(node: NodeDriver) -> None:
    topic = node.create()
    replica = node.node.broker.replicas[topic, 0]
    polls = [
        node.request(node.fetch_request(topic, 0, max_wait_ms=60_000, min_bytes=1))
        for _ in range(3)
    ]
    assert len(replica.waiters) == 3
    node.node.broker.metadata.image.topics["t"].partitions[0].leader_id = 7
    reconcile(node, topic)
    node.send(Tick())
    for poll in polls:
        answer = node.answer(poll)
        assert answer is not None
        assert answer[0].partitions[0].error_code == NotLeader.code
    assert not replica.waiters


# --- by records ---------------------------------------------------------------------------------
HERE, OTHER = 0, 7


def change(node: NodeDriver, topic: bytes, partition: int = 0, **fields: Any) -> None:
    """Decide it, as a controller will; returns when it holds and this broker has acted on it."""
    outcomes: list[BaseException | None] = []
    record: Record = PartitionChangeRecord(topic, partition, **fields)
    broker = node.node.broker
    broker.propose([record], node.now, lambda _result, error, _now: outcomes.append(error))
    node.send(Tick())
    assert outcomes == [None]


def code_of(node: NodeDriver, correlation: int) -> int:
    answer = node.answer(correlation)
    assert answer is not None
    return int(answer[0].partitions[0].error_code)


def described(node: NodeDriver) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """(leader, epoch, replicas, in-sync replicas) as in METADATA."""
    (topic,) = node.call(m.MetadataRequest())[0].topics
    p = topic.partitions[0]
    return p.leader_id, p.leader_epoch, tuple(p.replicas), tuple(p.in_sync_replicas)


def copied(values: list[int], offset: int, epoch: int, **options: Any) -> bytearray:
    batch = batch_of(values, **options)
    stamp(memoryview(batch), 0, offset, epoch)
    return batch


def test_a_partition_is_led_followed_led_again_and_removed(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create(retention_ms="1000")
    both = (HERE, OTHER)
    node.produced(topic, batch_of([1, 2]))
    change(node, topic, replicas=both, in_sync_replicas=both, leader_id=OTHER, leader_epoch=3)
    assert described(node) == (OTHER, 3, both, both)
    broker = node.node.broker
    replica = broker.assignment.find((topic, 0))
    assert replica is not None
    assert not replica.state.leads
    assert code_of(node, node.produce(topic, batch_of([9]))) == NotLeader.code
    # It copies what the leader has, and its producers' state.
    node.give_out(5, 0)
    batch = copied([3, 4, 5], 2, 3, producer=(5, 0, 0))
    replica.append_copied([(BatchHeader.unpack(batch), memoryview(batch))], node.now)
    once = replica.producers.blank()
    once.record(BatchHeader.unpack(batch), 2, node.now.wall_us)
    assert replica.producers.snapshot() == once.snapshot(), "each batch counts once"
    assert (replica.state.log_end_offset, replica.state.high_watermark) == (5, 2)
    replica.state.on_leader_high_watermark(4)
    assert replica.state.high_watermark == 4
    # Retention is the leader's.
    node.advance(60_000)
    assert replica.state.log_start_offset == 0
    # A snapshot of the metadata has the same.
    monkeypatch.setattr(MetadataLog, "wants_compaction", True)
    change(node, topic, in_sync_replicas=(OTHER,))
    monkeypatch.undo()
    node.restart()
    assert described(node) == (OTHER, 3, both, (OTHER,))
    broker = node.node.broker
    assert (topic, 0) not in broker.replicas
    # It leads again, and remembers the producer.
    change(node, topic, leader_id=HERE, leader_epoch=4, in_sync_replicas=(HERE,))
    while node.syncs:
        node.flush()
    repeated = batch_of([3, 4, 5], producer=(5, 0, 0), at_us=START_WALL_US)
    result = node.produced(topic, repeated)
    assert (result.duplicate, result.base_offset) == (True, 2)
    assert code_of(node, node.produce(topic, batch_of([1], producer=(5, 0, 7)))) == (
        OutOfOrderSequence.code
    )
    node.advance(60_000)
    assert broker.replicas[topic, 0].state.log_start_offset == 5, "and retention is its own"
    # No replica leads.
    change(node, topic, leader_id=LEADER_GONE, leader_epoch=5)
    assert described(node)[:2] == (-1, 5)
    assert code_of(node, node.produce(topic, batch_of([9]))) == NotLeader.code
    # It goes, with its files, and comes back without any.
    change(node, topic, replicas=(OTHER,), in_sync_replicas=(OTHER,), leader_id=OTHER)
    directory = Path(node.config.data_dir) / "data" / "t-0"
    assert not directory.exists()
    assert broker.assignment.all_open() == []
    node.restart()
    assert not directory.exists()
    change(node, topic, replicas=(HERE,), in_sync_replicas=(HERE,), leader_id=HERE, leader_epoch=6)
    assert node.produced(topic, batch_of([1])).base_offset == 0
    assert [line for line in node.lines if line.level == "error"] == []
    assert node.metrics.internal_errors == 0


def test_a_follower_remembers_as_many_batches_of_a_producer_as_its_leader(
    node: NodeDriver,
) -> None:
    """Each counted twice, half of the five would be forgotten, and refused after a failover.

    Rule 21 of docs/replication-rules.md.
    """
    topic = node.create()
    node.give_out(0, 0)
    change(node, topic, replicas=(HERE, OTHER), leader_id=OTHER, leader_epoch=1)
    replica = node.node.broker.assignment.find((topic, 0))
    assert replica is not None
    count = PRODUCER_BATCHES_REMEMBERED
    for number in range(count):
        batch = copied([number], number, 1, producer=(0, 0, number))
        replica.append_copied([(BatchHeader.unpack(batch), memoryview(batch))], node.now)
    change(node, topic, leader_id=HERE, leader_epoch=2, in_sync_replicas=(HERE,))
    for number in range(count):
        result = node.produced(topic, batch_of([number], producer=(0, 0, number)))
        assert (result.duplicate, result.base_offset) == (True, number)


def test_a_partition_does_not_come_back_while_it_is_on_its_way_out(node: NodeDriver) -> None:
    """What removes its directory would take the new one."""
    topic = node.create()
    node.produced(topic, batch_of([1]))
    broker = node.node.broker
    node.hold_jobs = True
    nobody: Any = lambda _result, _error, _now: None  # noqa: E731
    away: Record = PartitionChangeRecord(topic, 0, leader_id=OTHER, replicas=(OTHER,))
    back: Record = PartitionChangeRecord(topic, 0, leader_id=HERE, replicas=(HERE,))
    broker.propose([away], node.now, nobody)
    node.send(Tick())
    refused = 0
    for _ in range(10):
        try:
            broker.propose([back], node.now, nobody)
            break
        except ThrottledBroker:
            refused += 1
        node.step()
    assert refused >= 2, "decided and not true, true and not removed"
    node.hold_jobs = False
    node.send(Tick())
    assert node.produced(topic, batch_of([1])).base_offset == 0


def test_a_partition_that_went_before_a_crash_is_removed_by_the_next_start(
    node: NodeDriver,
) -> None:
    topic = node.create(partitions=2)
    node.produced(topic, batch_of([1]))
    node.hold_jobs = True
    record: Record = PartitionChangeRecord(topic, 0, leader_id=OTHER, replicas=(OTHER,))
    node.node.broker.propose([record], node.now, lambda _result, _error, _now: None)
    while not any(start.job.kind == "remove directories" for start in node.jobs):
        node.send(Tick())
        if node.jobs[0].job.kind != "remove directories":
            node.step()
    node.hold_jobs = False
    node.crash()
    names = {path.name for path in (Path(node.config.data_dir) / "data").iterdir()}
    assert names == {"t-1"}
    assert node.produced(topic, batch_of([1]), partition=1).base_offset == 0


class AllFit:
    def fit_epoch(self, broker_id: int) -> int | None:
        return 1


def follower_at(node: NodeDriver, topic: bytes, end: int) -> None:
    """As when the follower asks for more."""
    replica = node.node.broker.replicas[topic, 0]
    state = replica.state
    assert state.leadership is not None
    report = FollowerReport(OTHER, 1, end, 0, 0, state.leader_epoch)
    state.leadership.fetched(report, None, state.log_end_offset, AllFit(), node.mono_us)
    state.followers_moved()
    replica.answers.advance(state, node.now)
    node.send(Tick())


def test_a_replicated_row_is_acknowledged_when_the_in_sync_followers_have_it(
    node: NodeDriver,
) -> None:
    topic = node.create()
    replica = node.node.broker.replicas[topic, 0]
    both = (HERE, OTHER)
    change(node, topic, replicas=both, in_sync_replicas=both)
    replica.state.set_durability(Durability.REPLICATED)
    first = node.produce(topic, batch_of([1]), timeout_ms=5_000)
    second = node.produce(topic, batch_of([2]), timeout_ms=5_000)
    while node.syncs:
        node.flush()
    node.advance(6_000)
    assert replica.state.high_watermark == 0
    third = node.produce(topic, batch_of([3]))
    follower_at(node, topic, 2)
    assert (code_of(node, first), code_of(node, second)) == (RequestTimedOut.code,) * 2
    assert node.answer(third) is None
    assert replica.state.high_watermark == 2
    follower_at(node, topic, 3)
    assert code_of(node, third) == 0
    fourth = node.produce(topic, batch_of([4]))
    assert node.answer(fourth) is None
    change(node, topic, in_sync_replicas=(HERE,))
    assert code_of(node, fourth) == 0, "the follower is out of sync: nothing waits for it"


def test_rows_that_wait_when_too_few_replicas_stay_in_sync_are_of_unknown_fate(
    node: NodeDriver,
) -> None:
    """Behind them, rows of a weaker level are answered as ever, in their order.

    Rule 6 of docs/replication-rules.md.
    """
    topic = node.create(min_insync_replicas="2")
    image = node.node.broker.metadata.image.topics["t"]
    image.replication_factor = 2
    node.call(m.AlterTopicRequest(name="t", set_configs={"durability": "memory"}))
    both = (HERE, OTHER)
    change(node, topic, replicas=both, in_sync_replicas=both)
    replicated = node.produce(topic, batch_of([1]), durability=Durability.REPLICATED)
    flushed = node.produce(topic, batch_of([2]), durability=Durability.FLUSHED)
    change(node, topic, in_sync_replicas=(HERE,))
    assert code_of(node, replicated) == NotEnoughReplicasAfterAppend.code
    assert node.answer(flushed) is None
    node.flush()
    assert code_of(node, flushed) == 0
    refused = node.produce(topic, batch_of([3]), durability=Durability.REPLICATED)
    assert code_of(node, refused) == NotEnoughReplicas.code
    assert node.broker_end(topic) == 2, "it was refused before it was stored"
    assert code_of(node, node.produce(topic, batch_of([3]))) == 0


@pytest.mark.parametrize("leader_id", [OTHER, LEADER_GONE])
def test_rows_that_wait_when_another_leads_are_of_unknown_fate(
    node: NodeDriver, leader_id: int
) -> None:
    """The next leader may have them; after NOT_LEADER a client numbers others in their place."""
    topic = node.create()
    both = (HERE, OTHER)
    change(node, topic, replicas=both, in_sync_replicas=both)
    node.node.broker.replicas[topic, 0].state.set_durability(Durability.REPLICATED)
    waiting = node.produce(topic, batch_of([1]))
    assert node.answer(waiting) is None
    change(node, topic, leader_id=leader_id, leader_epoch=1)
    assert code_of(node, waiting) == NotEnoughReplicasAfterAppend.code
    assert code_of(node, node.produce(topic, batch_of([2]))) == NotLeader.code, "not stored"


def deleted(node: NodeDriver, topic: bytes, before: int) -> m.DeleteRecordsPartitionResult:
    response, _ = node.call(
        m.DeleteRecordsRequest(partitions=[m.DeleteRecordsPartition(topic, 0, before)])
    )
    assert isinstance(response, m.DeleteRecordsResponse)
    return response.partitions[0]


def test_a_new_leader_reports_its_end_once_it_is_certain(node: NodeDriver) -> None:
    """Rule 5 of docs/replication-rules.md."""
    topic = node.create()
    node.produced(topic, batch_of([1, 2]))
    both = (HERE, OTHER)
    change(node, topic, leader_id=OTHER, leader_epoch=3, replicas=both, in_sync_replicas=both)
    replica = node.node.broker.assignment.find((topic, 0))
    assert replica is not None
    batch = copied([3], 2, 3)
    replica.append_copied([(BatchHeader.unpack(batch), memoryview(batch))], node.now)
    change(node, topic, leader_id=HERE, leader_epoch=4)
    assert node.offset_of(topic, LATEST).error_code == OffsetNotAvailable.code
    for before in (3, LATEST):
        code = deleted(node, topic, before).error_code
        assert code == OffsetNotAvailable.code, "readers may have seen these rows"
    follower_at(node, topic, 3)
    while node.syncs:
        node.flush()  # Its list of epochs, too.
    assert node.offset_of(topic, LATEST).offset == 3
