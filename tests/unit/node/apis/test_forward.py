"""FORWARD at the leader of a target, as another broker sends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.core.controller.records import PartitionChangeRecord
from quiverlog.errors import (
    CorruptBatch,
    DiskFull,
    FencedLeaderEpoch,
    InvalidRequest,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OutOfOrderSequence,
    QuiverlogError,
    RequestTimedOut,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownSchema,
    UnknownTopicId,
)
from quiverlog.limits import FORWARD_BATCHES_MAX, FORWARD_TIMEOUT_MS, REPLICA_LAG_MS_MAX
from quiverlog.types import PRODUCER_IDS_END, Durability, PublishId
from quiverlog.wire.transaction_messages import ForwardPartition, ForwardRequest, ForwardResult
from tests.support.node import NodeDriver, batch_of
from tests.unit.node.replication.test_in_sync import COPY, OTHER, Cluster

MEMORY, FLUSHED = Durability.MEMORY, Durability.FLUSHED
REPLICATED, REPLICATED_FLUSHED = Durability.REPLICATED, Durability.REPLICATED_FLUSHED
ID = PublishId(5, 2, 1).pack()
CLUSTER = 77


def rows(*counts: int, begin: int = 0, producer_id: int = ID, **options: Any) -> list[bytes]:
    """Batches of one publish, of so many rows each."""
    found = []
    for count in counts:
        numbers = (producer_id, CLUSTER, begin)
        found.append(bytes(batch_of(range(count), producer=numbers, **options)))
        begin += count
    return found


class Sender:
    """Sends FORWARD to the only partition of a topic."""

    def __init__(self, node: NodeDriver, topic: bytes) -> None:
        self.node, self.topic = node, topic

    def forward(self, *batches: bytes, base_sequence: int = 0, **fields: Any) -> int:
        state = self.node.node.broker.replicas[self.topic, 0].state
        entry: dict[str, Any] = {
            "topic_id": self.topic, "partition": 0, "leader_epoch": state.leader_epoch,
            "durability": FLUSHED, "producer_id": ID, "base_sequence": base_sequence,
            "batch_bytes": sum(map(len, batches)),
        }  # fmt: skip
        request = ForwardRequest(
            broker_id=COPY, partitions=[ForwardPartition(**{**entry, **fields})]
        )
        return self.node.request(request, b"".join(batches))

    def result(self, correlation: int) -> ForwardResult | None:
        answer = self.node.answer(correlation)
        if answer is None:
            return None
        assert not answer[0].error_code, answer[0].error_message
        (result,) = answer[0].partitions
        assert isinstance(result, ForwardResult)
        return result

    def stored(self, *batches: bytes, **fields: Any) -> ForwardResult:
        correlation = self.forward(*batches, **fields)
        while self.node.syncs:
            self.node.flush()
        result = self.result(correlation)
        assert result is not None
        assert not result.error_code, result.error_message
        return result

    def refused(self, *batches: bytes, **fields: Any) -> tuple[int, int]:
        """The code and the expected sequence; nothing is stored."""
        end = self.end
        result = self.result(self.forward(*batches, **fields))
        assert result is not None
        assert self.end == end
        return result.error_code, result.expected_sequence

    @property
    def end(self) -> int:
        return self.node.broker_end(self.topic)


@pytest.fixture
def sender(tmp_path: Path) -> Sender:
    node = NodeDriver(tmp_path, cluster_id="c")
    return Sender(node, node.create(durability="memory"))


def test_rows_are_appended_and_answered_when_they_are_safe(sender: Sender) -> None:
    correlation = sender.forward(*rows(2, 3))
    assert sender.result(correlation) is None
    sender.node.flush()
    result = sender.result(correlation)
    assert result is not None
    assert (result.base_offset, result.end_offset, result.durability) == (0, 5, FLUSHED)


def test_rows_that_are_sent_again_are_stored_once_and_answered_when_safe(sender: Sender) -> None:
    first = sender.forward(*rows(2))
    again = sender.forward(*rows(2, 3))
    assert sender.end == 5
    assert (sender.result(first), sender.result(again)) == (None, None)
    while sender.node.syncs:
        sender.node.flush()
    result = sender.result(again)
    assert result is not None
    assert (result.base_offset, result.end_offset) == (2, 5)
    repeated = sender.stored(*rows(2, 3))
    assert (repeated.base_offset, repeated.end_offset) == (-1, 5)
    assert sender.end == 5


def test_an_older_id_is_stored_already_and_a_newer_one_begins_at_0(sender: Sender) -> None:
    newer = PublishId(5, 2, 2).pack()
    sender.stored(*rows(2, producer_id=newer), producer_id=newer)
    sender.stored(*rows(2))
    assert sender.end == 2
    third = PublishId(5, 3, 0).pack()
    batches = rows(1, begin=2, producer_id=third)
    code = OutOfOrderSequence.code
    assert sender.refused(*batches, producer_id=third, base_sequence=2) == (code, 0)


@pytest.mark.parametrize("begin", [1, 3, 5])
def test_a_gap_is_refused_with_the_sequence_that_is_expected(sender: Sender, begin: int) -> None:
    sender.stored(*rows(2))
    wanted = (OutOfOrderSequence.code, 2)
    assert sender.refused(*rows(2, begin=begin), base_sequence=begin) == wanted


@pytest.mark.parametrize(("begin", "is_stored"), [(0, True), (2, True), (3, False)])
def test_a_gap_that_the_publisher_declares_is_passed(
    sender: Sender, begin: int, is_stored: bool
) -> None:
    sender.stored(*rows(2))
    batches = rows(1, 1, begin=4)
    if is_stored:
        sender.stored(*batches, base_sequence=begin)
        assert sender.end == 4
        sender.stored(*rows(1, begin=6), base_sequence=6)
    else:
        assert sender.refused(*batches, base_sequence=begin) == (OutOfOrderSequence.code, 2)


def changed(batch: bytes, at: int) -> bytes:
    damaged = bytearray(batch)
    damaged[at] ^= 1
    return bytes(damaged)


@pytest.mark.parametrize(
    ("batches", "fields", "error"),
    [
        (rows(1), {"producer_id": PRODUCER_IDS_END - 1}, InvalidRequest),
        (rows(1, producer_id=7), {"producer_id": 7}, InvalidRequest),
        (rows(1), {"producer_id": ID + 1}, InvalidRequest),
        (rows(1), {"leader_epoch": -1}, InvalidRequest),
        (rows(1), {"leader_epoch": 99}, UnknownLeaderEpoch),
        (rows(1), {"durability": -1}, InvalidRequest),
        (rows(1), {"durability": 4}, InvalidRequest),
        (rows(1), {"base_sequence": -1}, InvalidRequest),
        (rows(1), {"base_sequence": 1}, InvalidRequest),
        (rows(1), {"topic_id": b"x" * 16}, UnknownTopicId),
        (rows(1), {"partition": 1}, UnknownPartition),
        ([*rows(1), *rows(1, begin=2)], {}, InvalidRequest),
        ([*rows(1), *rows(1, begin=1, producer_id=ID + 1)], {}, InvalidRequest),
        ([changed(rows(1)[0], -70)], {}, CorruptBatch),
        ([changed(rows(1)[0], 20)], {}, CorruptBatch),
        ([changed(rows(1)[0], 12)], {}, CorruptBatch),
        (rows(1, schema_id=2), {}, UnknownSchema),
        (rows(*[1] * (FORWARD_BATCHES_MAX + 1)), {}, InvalidRequest),
    ],
)
def test_bad_entries_are_refused(
    sender: Sender, batches: list[bytes], fields: dict[str, Any], error: type[QuiverlogError]
) -> None:
    assert sender.refused(*batches, **fields) == (error.code, -1)


def test_as_many_batches_as_are_allowed(sender: Sender) -> None:
    sender.stored(*rows(*[1] * FORWARD_BATCHES_MAX))
    assert sender.end == FORWARD_BATCHES_MAX


@pytest.mark.parametrize("batch_bytes", [63, 64, 1_000_000])
def test_entries_that_do_not_add_up_to_the_body(sender: Sender, batch_bytes: int) -> None:
    answer = sender.node.answer(sender.forward(*rows(1), batch_bytes=batch_bytes))
    assert answer is not None
    assert answer[0].error_code == InvalidRequest.code
    assert sender.end == 0


def test_bounds_that_have_shrunk_do_not_count(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, cluster_id="c")
    topic = node.create(max_message_bytes="1024", message_timestamp_before_max_ms="1000")
    Sender(node, topic).stored(*rows(1000, at_us=1))


def test_a_disk_without_room(sender: Sender) -> None:
    sender.node.node.broker.admission.disk_filled()
    assert sender.refused(*rows(1)) == (DiskFull.code, -1)


def test_an_answer_that_is_late(sender: Sender) -> None:
    correlation = sender.forward(*rows(1))
    sender.node.advance(FORWARD_TIMEOUT_MS - 1)
    assert sender.result(correlation) is None
    sender.node.advance(1)
    result = sender.result(correlation)
    assert result is not None
    assert result.error_code == RequestTimedOut.code
    sender.node.flush()
    sender.stored(*rows(1))
    assert sender.end == 1


# --- several replicas ----------------------------------------------------------------------------
@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize(
    ("asked", "level"),
    [(MEMORY, REPLICATED), (REPLICATED, REPLICATED), (REPLICATED_FLUSHED, REPLICATED_FLUSHED)],
)
def test_rows_are_at_least_replicated(cluster: Cluster, asked: int, level: int) -> None:
    sender = Sender(cluster.node, cluster.topic)
    correlation = sender.forward(*rows(1), durability=asked)
    cluster.node.flush()
    cluster.fetch(COPY, 1)
    assert sender.result(correlation) is None
    cluster.fetch(OTHER, 1, flushed=1 if level == REPLICATED_FLUSHED else 0)
    result = sender.result(correlation)
    assert result is not None
    assert (result.error_code, result.durability) == (0, level)


@pytest.mark.parametrize("asked", [MEMORY, FLUSHED, REPLICATED, REPLICATED_FLUSHED])
def test_one_replica_gives_flushed_whatever_was_asked(sender: Sender, asked: int) -> None:
    assert sender.stored(*rows(1), durability=asked).durability == FLUSHED


def test_too_few_in_sync(cluster: Cluster) -> None:
    sender = Sender(cluster.node, cluster.topic)
    correlation = sender.forward(*rows(1))
    cluster.node.advance(REPLICA_LAG_MS_MAX + 1)
    result = sender.result(correlation)
    assert result is not None
    assert result.error_code in (NotEnoughReplicasAfterAppend.code, RequestTimedOut.code)
    assert sender.refused(*rows(1, begin=1), base_sequence=1) == (NotEnoughReplicas.code, -1)


def test_another_broker_leads(cluster: Cluster) -> None:
    sender = Sender(cluster.node, cluster.topic)
    state = cluster.state
    correlation = sender.forward(*rows(1))
    epoch = state.leader_epoch
    cluster.decide(PartitionChangeRecord(cluster.topic, 0, leader_id=0, leader_epoch=epoch + 1))
    assert sender.refused(*rows(1), leader_epoch=epoch) == (FencedLeaderEpoch.code, -1)
    cluster.decide(PartitionChangeRecord(cluster.topic, 0, leader_id=COPY, leader_epoch=epoch + 2))
    result = sender.result(correlation)
    assert result is not None
    assert result.error_code == NotEnoughReplicasAfterAppend.code
    entry = ForwardPartition(cluster.topic, 0, epoch + 1, FLUSHED, ID, 0, sum(map(len, rows(1))))
    request = ForwardRequest(broker_id=COPY, partitions=[entry])
    response, _ = cluster.node.call(request, rows(1)[0])
    assert response.partitions[0].error_code == NotLeader.code
