"""A copy that begins where its leader's rows do has the producers of those that were given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import OutOfOrderSequence
from quiverlog.node.runtime.events import Tick
from quiverlog.node.runtime.peers import Answer
from quiverlog.wire import messages as m
from quiverlog.wire.replica_messages import ReplicaFetchResponse
from tests.support.node import NodeDriver, batch_of
from tests.unit.node.apis.test_replica_fetch import LEADER, Copier, change, led


def header(sequence: int, rows: int = 1, *, pid: int = 0) -> BatchHeader:
    return BatchHeader.unpack(batch_of([7] * rows, producer=(pid, 0, sequence)))


def stamped(number: int) -> tuple[BatchHeader, memoryview]:
    """The batch as the leader has it."""
    view = memoryview(batch_of([number], producer=(0, 0, number)))
    stamp(view, 0, number, 3)
    return BatchHeader.unpack(view), view


class Skipping(Copier):
    """What it is answered goes to the node's own machine of the copy."""

    def take(self, correlation: int) -> list[int]:
        answer = self.leader.answer(correlation)
        assert answer is not None, "no answer yet"
        response, body = answer
        assert isinstance(response, ReplicaFetchResponse)
        replication = self.node.node.broker.replication
        replication._answered(
            self.fetcher, Answer(response, memoryview(bytearray(body))), None, self.node.now
        )
        self.node.send(Tick())
        self.fetcher.mark_news(self.key, 0)
        return [result.error_code for result in response.partitions]

    def __init__(self, tmp_path: Path, leader: NodeDriver, topic: bytes) -> None:
        super().__init__(tmp_path, leader, topic)
        self.fetcher.remove(self.key)
        self.follower = self.node.node.broker.replication._copies[self.key].follower
        self.fetcher.add(self.key, self.follower, 0)


def trimmed_to(tmp_path: Path, start: int) -> tuple[NodeDriver, bytes]:
    """A leader with rows of two producers, that has given up those before `start`."""
    leader, topic = led(tmp_path)
    change(leader, topic, in_sync_replicas=(LEADER,))
    for pid in (0, 1):
        leader.give_out(pid, 0)
    for number in range(8):
        leader.produced(topic, batch_of([number], producer=(0, 0, number)))
    leader.produced(topic, batch_of([8, 8], producer=(1, 0, 0)))
    leader.produced(topic, batch_of([9], producer=(0, 0, 8)))
    entry = m.DeleteRecordsPartition(topic, 0, start)
    leader.request(m.DeleteRecordsRequest(partitions=[entry], timeout_ms=0))
    while leader.syncs:
        leader.flush()
    assert leader.node.broker.replicas[topic, 0].log.log_start_offset == start
    return leader, topic


@pytest.fixture
def trimmed(tmp_path: Path) -> tuple[NodeDriver, bytes]:
    """All but the last row of the first producer is given up."""
    return trimmed_to(tmp_path, 10)


def copied(
    tmp_path: Path, leader: NodeDriver, topic: bytes, *, before: int = 0, start: int = 10
) -> Skipping:
    """A copy of it that had the first `before` rows."""
    copier = Skipping(tmp_path, leader, topic)
    rows = [stamped(number) for number in range(before)]
    if rows:
        copier.replica.append_copied(rows, copier.node.now)
        copier.node.send(Tick())
        while copier.node.syncs:
            copier.node.flush()
    for _ in range(3):
        copier.copy()
    assert copier.replica.log.log_start_offset == start
    assert copier.replica.log.log_end_offset == 11
    return copier


@pytest.mark.parametrize("before", [0, 3])
def test_a_copy_that_begins_later_has_the_producers_of_earlier_rows(
    tmp_path: Path, trimmed: tuple[NodeDriver, bytes], before: int
) -> None:
    """Rule 21 of docs/replication-rules.md."""
    leader, topic = trimmed
    producers = copied(tmp_path, leader, topic, before=before).replica.producers
    assert producers.check(header(9)) is None, "the next one"
    assert producers.check(header(8)) == 10, "a repetition of a row that is here"
    assert producers.check(header(7)) == 7, "and of one that was given up"
    assert producers.check(header(0, 2, pid=1)) == 8, "all rows of it were"
    with pytest.raises(OutOfOrderSequence):
        producers.check(header(3))
    known = leader.node.broker.replicas[topic, 0].producers
    for pid in (0, 1):
        assert producers.newest_epoch(pid) == known.newest_epoch(pid) == 0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_copy_that_begins_inside_of_a_batch_takes_it_once(
    tmp_path: Path, is_restarted: bool
) -> None:
    """The batch comes with the rows, and the leader sends what lies before it."""
    leader, topic = trimmed_to(tmp_path, 9)
    copier = copied(tmp_path, leader, topic, start=9)
    if is_restarted:
        while copier.node.syncs:
            copier.node.flush()
        copier.node.crash()
        replica = copier.node.node.broker.assignment.find(copier.key)
        assert replica is not None
    else:
        replica = copier.replica
    assert replica.log.log_end_offset == 11
    producers, known = replica.producers, leader.node.broker.replicas[topic, 0].producers
    assert producers.check(header(0, 2, pid=1)) == 8, "a repetition of the batch around the start"
    assert producers.check(header(7)) == 7
    assert producers.check(header(9)) is None
    assert sorted(producers._producers) == sorted(known._producers) == [0, 1]
    assert producers._producers[1].batches == known._producers[1].batches


def test_producers_in_a_later_format_do_not_stop_copying(
    tmp_path: Path, trimmed: tuple[NodeDriver, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, topic = trimmed
    monkeypatch.setattr(ProducerStates, "snapshot_below", lambda _self, _offset: b"later")
    producers = copied(tmp_path, leader, topic, before=3).replica.producers
    assert producers.check(header(8)) == 10, "what the rows show"
