"""LIST_OFFSETS and its long poll, epochs, ranges, and giving rows up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.types import EARLIEST, LATEST
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, START_WALL_US, NodeDriver, batch_of
from tests.support.node import serialize_schema as serialize


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def delete_before(node: NodeDriver, topic: bytes, offset: int) -> Any:
    entry = m.DeleteRecordsPartition(topic, 0, offset)
    response, _ = node.call(m.DeleteRecordsRequest(partitions=[entry]))
    return response.partitions[0]


def poll(topic: bytes, known: int, *, at: int = LATEST, version: int = -1) -> m.Request:
    entry = m.ListOffsetsPartition(topic, 0, at=at, known_offset=known)
    return m.ListOffsetsRequest(max_wait_ms=1000, metadata_version=version, partitions=[entry])


def test_earliest_and_latest(node: NodeDriver) -> None:
    topic = node.create()
    node.produced(topic, batch_of([1] * 10))
    node.produce(topic, batch_of([2]))
    assert node.offset_of(topic, EARLIEST).offset == 0
    latest = node.offset_of(topic, LATEST)
    assert latest.offset == 10, "what is not flushed is not there yet"
    assert latest.leader_epoch == 0
    delete_before(node, topic, 4)
    assert node.offset_of(topic, EARLIEST).offset == 4
    assert node.offset_of(topic, -3).error_code == errors.InvalidRequest.code


def test_by_timestamp(node: NodeDriver) -> None:
    topic = node.create()
    for i in range(5):
        node.produced(topic, batch_of([i] * 10, at_us=START_WALL_US + i * 1_000))
    node.produce(topic, batch_of([9], at_us=START_WALL_US + 9_000))
    for at, offset in [(0, 0), (0, 0), (1, 10), (3_000, 30), (4_000, 40)]:
        result = node.offset_of(topic, START_WALL_US + at)
        assert result.offset == offset, at
    assert node.offset_of(topic, START_WALL_US + 1).timestamp_us == START_WALL_US + 1_000
    assert node.offset_of(topic, START_WALL_US + 4_001).offset == -1, "the next is not flushed"


def test_leader_epoch_is_that_of_the_row_before(node: NodeDriver) -> None:
    topic = node.create()
    node.produced(topic, batch_of([1] * 10))
    node.crash()
    assert node.offset_of(topic, LATEST).leader_epoch == 0
    node.produced(topic, batch_of([1]))
    assert node.offset_of(topic, LATEST).leader_epoch == 1
    assert node.offset_of(topic, EARLIEST).leader_epoch == -1


def test_long_poll_answers_when_the_offset_differs(node: NodeDriver) -> None:
    topic = node.create()
    response, _ = node.call(poll(topic, 7))
    assert response.partitions[0].offset == 0
    parked = node.request(poll(topic, 0))
    assert node.answer(parked) is None
    node.produce(topic, batch_of([1]))
    assert node.answer(parked) is None
    node.flush()
    answer = node.answer(parked)
    assert answer is not None
    assert answer[0].partitions[0].offset == 1


def test_long_poll_of_earliest_wakes_on_deleted_records(node: NodeDriver) -> None:
    topic = node.create()
    node.produced(topic, batch_of([1] * 10))
    parked = node.request(poll(topic, 0, at=EARLIEST))
    node.produced(topic, batch_of([1] * 10))
    assert node.answer(parked) is None
    delete_before(node, topic, 5)
    answer = node.answer(parked)
    assert answer is not None
    assert answer[0].partitions[0].offset == 5


def test_long_poll_answers_at_its_deadline(node: NodeDriver) -> None:
    topic = node.create()
    parked = node.request(poll(topic, 0))
    node.advance(999)
    assert node.answer(parked) is None
    node.advance(1)
    assert node.answer(parked) is not None


def test_long_poll_wakes_when_the_metadata_change(node: NodeDriver) -> None:
    topic = node.create()
    version = node.call(m.MetadataRequest())[0].metadata_version
    parked = node.request(poll(topic, 0, version=version))
    unaware = node.request(poll(topic, 0))
    alone = node.request(m.ListOffsetsRequest(max_wait_ms=1000, metadata_version=version))
    assert node.answer(parked) is None
    node.create("other")
    for correlation in (parked, alone):
        answer = node.answer(correlation)
        assert answer is not None
        assert answer[0].metadata_version == version + 1
    assert node.answer(unaware) is None
    response, _ = node.call(poll(topic, 0, version=version))
    assert response.metadata_version == version + 1, "it differs already"


def test_long_poll_of_a_deleted_topic_is_answered(node: NodeDriver) -> None:
    topic = node.create()
    parked = node.request(poll(topic, 0))
    node.call(m.DeleteTopicsRequest(names=["t"]))
    answer = node.answer(parked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.UnknownTopicId.code


def test_long_poll_ends_with_its_connection(node: NodeDriver) -> None:
    topic = node.create()
    version = node.call(m.MetadataRequest())[0].metadata_version
    node.request(poll(topic, 0, version=version), connection=2)
    node.close_connection(2)
    broker = node.node.broker
    assert (broker.metadata.waiters, broker.replicas[topic, 0].waiters) == ({}, {})
    node.create("other")
    node.advance(2000)


def test_epoch_end_offsets(node: NodeDriver) -> None:
    """Rule 2 of docs/replication-rules.md."""
    topic = node.create()
    node.produced(topic, batch_of([1] * 10))
    node.crash()
    node.produced(topic, batch_of([1] * 5))
    entries = [m.EpochEndOffsetsPartition(topic, 0, epoch=e) for e in (0, 1, 9, -2)]
    response, _ = node.call(m.EpochEndOffsetsRequest(partitions=entries))
    got = [(r.error_code, r.epoch, r.end_offset) for r in response.partitions]
    assert got == [
        (0, 0, 10),
        (0, 1, 15),
        (0, -1, -1),
        (errors.InvalidRequest.code, -1, -1),
    ]


def test_ranges(node: NodeDriver) -> None:
    topic = node.create()
    size = len(batch_of([0] * 10))
    for i in range(4):
        node.produced(topic, batch_of([i] * 10, at_us=START_WALL_US + i))

    def ask(start: int, end: int, bytes_max: int = -1) -> Any:
        entry = m.RangePartition(topic, 0, start, end, bytes_max)
        response, _ = node.call(m.DescribeRangesRequest(partitions=[entry]))
        return response.partitions[0]

    for arguments, expected in [
        ((EARLIEST, -1), (40, 4 * size, START_WALL_US)),
        ((0, 20), (20, 2 * size, START_WALL_US)),
        ((5, 15), (15, 2 * size, START_WALL_US)),
        ((10, 15), (15, size, START_WALL_US + 1)),
        ((0, -1, 1), (10, size, START_WALL_US)),
        ((25, -1, 3 * size), (40, 2 * size, START_WALL_US + 2)),
        ((0, -1, 3 * size), (30, 3 * size, START_WALL_US)),
        ((7, 7), (7, 0, -1)),
        ((40, -1), (40, 0, -1)),
    ]:
        result = ask(*arguments)
        assert result.error_code == 0, result.error_message
        found = result.end_offset, result.byte_count, result.first_row_us
        assert found == expected, arguments
    for arguments in [(41, -1), (0, 41), (20, 10), (-5, 10)]:
        assert ask(*arguments).error_code == errors.OffsetOutOfRange.code, arguments
    assert "from offset 20 cannot end at 10" in ask(20, 10).error_message


def test_deleted_records_stay_deleted(node: NodeDriver) -> None:
    topic = node.create()
    for i in range(4):
        node.produced(topic, batch_of([i] * 10))
    assert delete_before(node, topic, 15).log_start_offset == 15
    assert delete_before(node, topic, 3).log_start_offset == 15, "asking for less changes nothing"
    assert node.fetched(topic, 14)[0].error_code == errors.OffsetOutOfRange.code
    assert node.fetched(topic, 15)[0].error_code == 0
    node.crash()
    assert node.offset_of(topic, EARLIEST).offset == 15
    assert delete_before(node, topic, -1).log_start_offset == 40
    for offset in (41, -2):
        result = delete_before(node, topic, offset)
        assert result.error_code == errors.OffsetOutOfRange.code
    assert node.produced(topic, batch_of([1])).base_offset == 40


def test_schemas_are_returned_by_topic_id(node: NodeDriver) -> None:
    topic = node.create()
    response, _ = node.call(m.TopicSchemasRequest(topic_id=topic))
    assert [(s.schema_id, s.schema) for s in response.schemas] == [(1, serialize(SCHEMA))]
    response, _ = node.call(m.TopicSchemasRequest(topic_id=b"x"))
    assert response.error_code == errors.UnknownTopicId.code
