"""REPLICA_FETCH on a whole node: a follower's machines copy a log byte for byte.

Two nodes have the same records, so the one leads and the other follows. What carries requests from
machine to node is in the test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quiverlog.batch.codec import split_batches
from quiverlog.core.controller.records import PartitionChangeRecord, Record
from quiverlog.core.replication.follower import Cut, Take
from quiverlog.core.replication.peer_fetcher import PeerFetcher
from quiverlog.errors import (
    InvalidFetchSession,
    InvalidRequest,
    LogTruncated,
    NotLeader,
    StaleBrokerEpoch,
    WrongListener,
)
from quiverlog.limits import REPLICA_FETCH_WATERMARK_WAIT_MS
from quiverlog.node.replication.follower import Copy
from quiverlog.node.runtime.events import Tick
from quiverlog.node.runtime.purgatory import Waiter
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import NO_EPOCH, Durability
from quiverlog.wire.replica_messages import (
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from tests.support.node import NodeDriver, batch_of

LEADER, COPY = 0, 1
BOTH = (LEADER, COPY)


def change(node: NodeDriver, topic: bytes, **fields: Any) -> None:
    results: list[BaseException | None] = []
    record: Record = PartitionChangeRecord(topic, 0, **fields)
    node.node.broker.propose([record], node.now, lambda _result, error, _now: results.append(error))
    node.send(Tick())
    assert results == [None]


def led(tmp_path: Path) -> tuple[NodeDriver, bytes]:
    """A node that leads a partition with a follower, both in sync; rows need both."""
    node = NodeDriver(tmp_path / "leader", node_id=LEADER, cluster_id="c")
    topic = node.create(durability="memory")
    node.node.broker.metadata.image.topics["t"].replication_factor = 2
    change(node, topic, replicas=BOTH, in_sync_replicas=BOTH, leader_id=LEADER, leader_epoch=3)
    return node, topic


class Copier:
    """The follower's node, with its machines."""

    def __init__(self, tmp_path: Path, leader: NodeDriver, topic: bytes) -> None:
        self.leader = leader
        self.key = (topic, 0)
        self.node = NodeDriver(tmp_path / "copy", node_id=COPY, cluster_id="c")
        assert self.node.create(durability="memory") == topic
        change(
            self.node, topic, replicas=BOTH, in_sync_replicas=BOTH, leader_id=LEADER, leader_epoch=3
        )
        found = self.node.node.broker.assignment.find(self.key)
        assert found is not None
        self.replica = found
        self.follower = Copy(self.key, found).follower
        self.follower.led_by(3, has_leader=True)
        self.fetcher = PeerFetcher()
        self.fetcher.add(self.key, self.follower, 0)

    def ask(self, *, max_wait_ms: int = 0) -> int:
        plan = self.fetcher.next_fetch(self.leader.mono_us)
        assert plan is not None
        return self.leader.request(
            ReplicaFetchRequest(
                replica_id=COPY,
                broker_epoch=7,
                session_id=plan.session_id,
                session_epoch=plan.session_epoch,
                max_wait_ms=max_wait_ms,
                partitions=plan.entries,
                forgotten=plan.forgotten,
            )
        )

    def take(self, correlation: int) -> list[int]:
        """Act on the answer; the error codes of its results."""
        answer = self.leader.answer(correlation)
        assert answer is not None, "no answer yet"
        response, body = answer
        assert isinstance(response, ReplicaFetchResponse)
        self.fetcher.answered(response.session_id)
        at = 0
        for result in response.partitions:
            rows = memoryview(bytearray(body[at : at + result.batch_bytes]))
            at += result.batch_bytes
            action = self.fetcher.result(result, 0)
            if isinstance(action, Take):
                if rows:
                    self.replica.append_copied(list(split_batches(rows)), self.node.now)
                    self.fetcher.mark_news(self.key, 0)
                self.replica.state.on_leader_high_watermark(result.high_watermark)
            elif isinstance(action, Cut):
                while self.node.syncs:
                    self.node.flush()
                job = self.replica.log.begin_truncate(action.offset)
                if job is not None:
                    end = self.replica.log.complete_truncate(job, job.run())
                    self.replica.state.truncated(end)
                self.follower.cut()
                self.fetcher.mark_news(self.key, 0)
        return [result.error_code for result in response.partitions]

    def copy(self) -> list[int]:
        return self.take(self.ask())


def stored(node: NodeDriver) -> bytes:
    """Return the bytes of all batches in the first partition's log."""
    data = Path(node.config.data_dir) / "data" / "t-0"
    # The header of a segment has the time at which the file was made.
    return b"".join(path.read_bytes()[SEGMENT_HEADER_BYTES:] for path in sorted(data.glob("*.log")))


def test_a_copy_is_equal_byte_for_byte(tmp_path: Path) -> None:
    """Rule 32 of docs/replication-rules.md."""
    leader, topic = led(tmp_path)
    copier = Copier(tmp_path, leader, topic)
    leader.give_out(0, 0)
    for number in range(20):
        leader.produce(topic, batch_of([number] * (1 + number % 3), producer=(0, 0, number)))
    state = leader.node.broker.replicas[topic, 0].state
    assert state.high_watermark == 0, "rows need both"
    copier.copy()
    assert copier.replica.log.log_end_offset == leader.broker_end(topic)
    assert state.high_watermark == 0, "it has not reported them"
    copier.copy()
    assert state.high_watermark == leader.broker_end(topic)
    copier.copy()
    assert copier.replica.state.high_watermark == leader.broker_end(topic)
    assert stored(copier.node) == stored(leader) != b""
    assert copier.replica.log.epochs.entries() == [(3, 0)]


def test_a_fetch_waits_for_rows_and_for_the_high_watermark(tmp_path: Path) -> None:
    leader, topic = led(tmp_path)
    copier = Copier(tmp_path, leader, topic)
    copier.copy()
    waiting = copier.ask(max_wait_ms=500)
    assert leader.answer(waiting) is None
    asked = leader.produce(topic, batch_of([1]), durability=Durability.REPLICATED)
    copier.take(waiting)
    assert copier.replica.log.log_end_offset == 1
    assert leader.answer(asked) is None
    correlation = copier.ask(max_wait_ms=500)
    answer = leader.answer(asked)
    assert answer is not None
    assert not answer[0].partitions[0].error_code, "acknowledged by the very fetch"
    assert leader.answer(correlation) is None, "no reader waits for the high watermark"
    leader.advance(REPLICA_FETCH_WATERMARK_WAIT_MS)
    copier.take(correlation)
    assert copier.replica.state.high_watermark == 1
    waiting = copier.ask(max_wait_ms=500)
    leader.advance(499)
    assert leader.answer(waiting) is None
    leader.advance(2)
    assert copier.take(waiting) == [], "no news, and the partition is not mentioned"


def test_a_high_watermark_that_readers_wait_for_is_sent_at_once(tmp_path: Path) -> None:
    leader, topic = led(tmp_path)
    copier = Copier(tmp_path, leader, topic)
    copier.copy()
    waiting = copier.ask(max_wait_ms=500)
    leader.produce(topic, batch_of([1]))
    copier.take(waiting)
    copier.replica.watch(Waiter(1, 1, 0), 0)
    copier.take(copier.ask(max_wait_ms=500))
    assert copier.replica.state.high_watermark == 1


def test_a_high_watermark_that_lags_comes_with_rows_before_its_time(tmp_path: Path) -> None:
    leader, topic = led(tmp_path)
    copier = Copier(tmp_path, leader, topic)
    copier.copy()
    leader.produce(topic, batch_of([1]))
    copier.copy()
    waiting = copier.ask(max_wait_ms=500)
    assert leader.answer(waiting) is None
    leader.produce(topic, batch_of([2]))
    copier.take(waiting)
    assert copier.replica.state.high_watermark == 1
    assert copier.replica.log.log_end_offset == 2
    assert not leader.node.broker.copy_sessions._parked, "the fetch was answered"


def test_lagging_partitions_are_sent_when_the_wait_is_ended(tmp_path: Path) -> None:
    leader, topic = led(tmp_path)
    copier = Copier(tmp_path, leader, topic)
    copier.copy()
    leader.produce(topic, batch_of([1]))
    copier.copy()
    waiting = copier.ask(max_wait_ms=500)
    (session,) = leader.node.broker.copy_sessions._parked
    assert list(session.lagging) == [copier.key]
    leader.node.broker.copy_sessions.end_wait(COPY, session.session_id, leader.now)
    leader.send(Tick())
    copier.take(waiting)
    assert copier.replica.state.high_watermark == 1
    assert not session.lagging


def test_rows_that_the_leader_does_not_have_are_cut(tmp_path: Path) -> None:
    leader, topic = led(tmp_path)
    copier = Copier(tmp_path, leader, topic)
    leader.produce(topic, batch_of([1]))
    copier.copy()
    alone = batch_of([7, 8])
    change(copier.node, topic, leader_id=COPY, leader_epoch=4)
    copier.node.produce(topic, alone)
    for node in (leader, copier.node):
        epoch = {"leader_epoch": 5}
        change(node, topic, leader_id=LEADER, **epoch)
    copier.follower.led_by(5, has_leader=True)
    copier.fetcher.mark_news(copier.key, 0)
    leader.produce(topic, batch_of([2, 3]))
    assert copier.replica.log.log_end_offset == 3
    assert copier.copy() == [LogTruncated.code]
    assert copier.replica.log.log_end_offset == 1
    assert leader.node.broker.replicas[topic, 0].state.high_watermark == 0, "it did not count"
    copier.copy()
    copier.copy()
    assert leader.node.broker.replicas[topic, 0].state.high_watermark == 3
    assert stored(copier.node) == stored(leader)
    assert copier.replica.log.epochs.entries() == [(3, 0), (5, 1)]


# --- refusals -----------------------------------------------------------------------------------
def asked(leader: NodeDriver, topic: bytes, **fields: Any) -> ReplicaFetchResponse:
    entry = ReplicaFetchPartition(topic, 0, fields.pop("epoch", 3), fields.pop("offset", 0))
    entry.saved_epoch = fields.pop("saved_epoch", NO_EPOCH)
    request = ReplicaFetchRequest(
        **{"replica_id": COPY, "broker_epoch": 7, "partitions": [entry], **fields}
    )
    response, _ = leader.call(request)
    assert isinstance(response, ReplicaFetchResponse)
    return response


def test_a_broker_that_is_no_replica_or_comes_late_is_refused(tmp_path: Path) -> None:
    leader, topic = led(tmp_path)
    (result,) = asked(leader, topic, replica_id=5).partitions
    assert result.error_code == NotLeader.code
    session = asked(leader, topic).session_id
    assert asked(leader, topic, session_id=session, session_epoch=2).error_code == (
        InvalidFetchSession.code
    )
    assert asked(leader, topic, session_id=session + 9).error_code == InvalidFetchSession.code
    assert asked(leader, topic, broker_epoch=6).error_code == StaleBrokerEpoch.code
    assert asked(leader, topic, broker_epoch=-1).error_code == InvalidRequest.code
    assert asked(leader, topic, offset=-1).error_code == InvalidRequest.code
    assert asked(leader, topic, saved_epoch=-3).error_code == InvalidRequest.code
    assert asked(leader, topic, saved_epoch=2**31 - 1).error_code == 0, "a broker may report it"
    many = [ReplicaFetchPartition(topic, n) for n in range(1_001)]
    assert asked(leader, topic, partitions=many).error_code == InvalidRequest.code
    sessions = leader.node.broker.copy_sessions.sessions
    sessions._session_entries_max = 999
    assert asked(leader, topic, partitions=many[:1_000]).error_code == InvalidFetchSession.code


def test_a_session_ends_what_waited_in_it(tmp_path: Path) -> None:
    leader, topic = led(tmp_path)
    copier = Copier(tmp_path, leader, topic)
    copier.copy()
    waiting = copier.ask(max_wait_ms=500)
    entry = ReplicaFetchPartition(topic, 0, 3, 0)
    again = ReplicaFetchRequest(
        replica_id=COPY,
        broker_epoch=7,
        session_id=copier.fetcher._session_id,
        session_epoch=2,
        max_wait_ms=500,
        partitions=[entry],
    )
    leader.request(again)
    assert copier.take(waiting) == [], "answered at once: the follower has more to report"


def test_only_brokers_are_served(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path / "other", inter_broker_listener="internal")
    response, _ = node.call(ReplicaFetchRequest(replica_id=COPY, broker_epoch=7))
    assert response.error_code == WrongListener.code


def test_news_of_a_partition_whose_rows_are_being_read_asks_the_disk_for_nothing_more(
    tmp_path: Path,
) -> None:
    """What was asked for is not there yet: the disk may hold more."""
    node = NodeDriver(tmp_path, node_id=LEADER, cluster_id="c")
    topic = node.create(durability="memory", **{"segment.ms": "1000"})
    for value in range(3):
        node.produced(topic, batch_of([value]))
        node.advance(2_000)
    node.restart()
    if not node.node.broker.quorum_inbox.is_served:
        node.node.broker.quorum_inbox.serve(lambda messages, now: None)
    node.node.broker.metadata.image.topics["t"].replication_factor = 2
    change(node, topic, replicas=BOTH, in_sync_replicas=BOTH, leader_id=LEADER, leader_epoch=30)
    node.hold_jobs = True
    entry = ReplicaFetchPartition(topic, 0, 30, 0, -1, 0, 0)
    request = ReplicaFetchRequest(
        replica_id=COPY, broker_epoch=7, max_wait_ms=10_000, partitions=[entry]
    )
    correlation = node.request(request)
    for value in range(20):
        node.produce(topic, batch_of([100 + value]))
        while node.node.next_deadline_us() == 0:
            node.step()
    loads = [start for start in node.jobs if start.job.kind in ("load index", "cold read")]
    assert len(loads) == 1
    assert node.answer(correlation) is None
    node.hold_jobs = False
    node.run_until_idle()
    response, body = node.answer(correlation) or (None, b"")
    assert isinstance(response, ReplicaFetchResponse)
    assert not response.partitions[0].error_code
    assert next(iter(split_batches(memoryview(body))))[0].base_offset == 0
    assert not [line for line in node.lines if line.level == "error"]
