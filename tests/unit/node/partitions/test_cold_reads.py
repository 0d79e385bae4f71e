"""Rows that are not in memory: a job reads them, for every caller, and the loop waits for no disk.

The disk of these tests refuses a read on the loop of what is not in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.node.partitions.replica import Replica
from quiverlog.storage.log.reader import LogReader
from quiverlog.storage.segment.segment_files import SegmentFiles
from quiverlog.types import LATEST
from quiverlog.wire import messages as m
from tests.support.node import START_WALL_US, NodeDriver, batch_of, rows_of

FOREVER = 300_000


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def wide_fetch(topic: bytes, count: int, offset: int = 0, **options: Any) -> m.FetchRequest:
    entries = [m.FetchPartition(topic_id=topic, partition=p, offset=offset) for p in range(count)]
    return m.FetchRequest(partitions=entries, **{"max_wait_ms": FOREVER, **options})


def replica_of(node: NodeDriver, topic: bytes, partition: int = 0) -> Replica:
    return node.node.broker.replicas[topic, partition]


def read_kinds(node: NodeDriver) -> Iterator[str]:
    """Run what waits, one by one, and return the kinds of the jobs."""
    while node.jobs or node.node.next_deadline_us() == 0:
        kind = node.jobs[0].job.kind if node.node.next_deadline_us() != 0 else ""
        node.step()
        if kind:
            yield kind


def segments(node: NodeDriver, topic: bytes, count: int, rows: int = 200) -> None:
    """Fill this many segments; the rows' times rise by a second from batch to batch."""
    number = 0
    log = replica_of(node, topic).log
    while len(log.reader.segments) < count:
        at_us = START_WALL_US + number * 1_000_000
        node.produced(topic, bytes(batch_of(range(rows), at_us=at_us)))
        number += 1


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("min_bytes", [0, 1])
def test_a_woken_fetch_has_its_rows_loaded(node: NodeDriver, count: int, min_bytes: int) -> None:
    topic = node.create(partitions=count)
    waiting = node.request(wide_fetch(topic, count, min_bytes=max(1, min_bytes)))
    body = bytes(batch_of([1, 2]))
    node.produce(topic, body, partition=count - 1)
    node.disk.evict()
    node.flush()
    answer = node.answer(waiting)
    assert answer is not None
    assert rows_of(answer[1]) == [(0, 2)]


@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_fetch_at_its_deadline_has_its_rows_loaded(node: NodeDriver, count: int) -> None:
    topic = node.create(partitions=count)
    for partition in range(count):
        node.produced(topic, bytes(batch_of([1])), partition=partition)
    waiting = node.request(wide_fetch(topic, count, min_bytes=2**30, max_wait_ms=1_000))
    assert node.answer(waiting) is None
    node.disk.evict()
    node.advance(1_001)
    answer = node.answer(waiting)
    assert answer is not None
    assert rows_of(answer[1]) == [(0, 1)] * count


@pytest.mark.parametrize("count", [1, 40])
def test_a_fetch_of_cold_rows_waits_for_jobs(node: NodeDriver, count: int) -> None:
    topic = node.create(partitions=count)
    for partition in range(count):
        node.produced(topic, bytes(batch_of([1])), partition=partition)
    node.disk.evict()
    node.hold_jobs = True
    asked = node.request(wide_fetch(topic, count, max_wait_ms=0))
    assert list(read_kinds(node)) == ["cold read"] * count
    answer = node.answer(asked)
    assert answer is not None
    assert rows_of(answer[1]) == [(0, 1)] * count


def test_rows_behind_the_bound_of_an_answer_are_not_loaded(node: NodeDriver) -> None:
    topic = node.create(partitions=40)
    body = bytes(batch_of(range(1_000)))
    for partition in range(40):
        node.produced(topic, body, partition=partition)
    node.disk.evict()
    node.hold_jobs = True
    asked = node.request(wide_fetch(topic, 40, max_wait_ms=0, bytes_max=3 * len(body)))
    assert len(list(read_kinds(node))) <= 4
    answer = node.answer(asked)
    assert answer is not None
    assert rows_of(answer[1]) == [(0, 1_000)] * 3
    assert len(answer[0].partitions) == 40


@pytest.mark.parametrize("count", [1, 40])
def test_memory_that_loses_rows_at_once_is_answered_all_the_same(
    node: NodeDriver, count: int
) -> None:
    topic = node.create(partitions=count)
    for partition in range(count):
        node.produced(topic, bytes(batch_of([1])), partition=partition)
    node.disk.evict()
    node.disk.forgetful = True
    asked = node.request(wide_fetch(topic, count, max_wait_ms=0))
    answer = node.answer(asked)
    assert answer is not None
    assert rows_of(answer[1]) == [(0, 1)] * count


def test_a_second_segment_is_not_read_because_the_first_was_loaded(node: NodeDriver) -> None:
    topic = node.create(segment_bytes=str(64 * 1024))
    segments(node, topic, 3, rows=2_000)
    node.disk.evict()
    first_end = replica_of(node, topic).log.reader.segments[0].end_offset
    result, body = node.fetched(topic, 0, entry_bytes_max=2**26, bytes_max=2**26)
    assert result.error_code == 0
    base, rows = rows_of(body)[-1]
    assert base + rows == first_end


# --- times and ranges ---------------------------------------------------------------------------
def test_offsets_by_time_are_looked_up_by_jobs(node: NodeDriver) -> None:
    topic = node.create(segment_bytes=str(64 * 1024))
    segments(node, topic, 4)
    expected = node.offset_of(topic, START_WALL_US + 70_000_000).offset
    assert expected == 70 * 200
    for segment in replica_of(node, topic).log.reader.segments:
        segment.release_index()
    node.disk.evict()
    assert node.offset_of(topic, START_WALL_US + 70_000_000).offset == expected


def test_a_parked_lookup_by_time_is_woken_without_waiting_for_the_disk(node: NodeDriver) -> None:
    topic = node.create()
    entry = m.ListOffsetsPartition(topic, 0, at=START_WALL_US + 5_000_000, known_offset=-1)
    waiting = node.request(m.ListOffsetsRequest(partitions=[entry], max_wait_ms=FOREVER))
    node.produced(topic, bytes(batch_of([1])))
    assert node.answer(waiting) is None
    node.produce(topic, bytes(batch_of([2], at_us=START_WALL_US + 6_000_000)))
    node.disk.evict()
    node.flush()
    answer = node.answer(waiting)
    assert answer is not None
    assert answer[0].partitions[0].offset == 1


def test_a_parked_lookup_by_time_at_its_deadline(node: NodeDriver) -> None:
    topic = node.create()
    node.produced(topic, bytes(batch_of([1])))
    entries = [
        m.ListOffsetsPartition(topic, 0, at=START_WALL_US, known_offset=0),
        m.ListOffsetsPartition(topic, 0, at=LATEST, known_offset=1),
    ]
    waiting = node.request(m.ListOffsetsRequest(partitions=entries, max_wait_ms=1_000))
    assert node.answer(waiting) is None
    node.disk.evict()
    node.advance(1_001)
    answer = node.answer(waiting)
    assert answer is not None
    assert [result.offset for result in answer[0].partitions] == [0, 1]


@pytest.mark.parametrize("bytes_max", [-1, 1, 40_000, 150_000])
def test_ranges_are_measured_by_jobs(node: NodeDriver, bytes_max: int) -> None:
    topic = node.create(segment_bytes=str(64 * 1024))
    segments(node, topic, 4)
    entry = m.RangePartition(topic, 0, start_offset=250, end_offset=-1, bytes_max=bytes_max)
    warm, _ = node.call(m.DescribeRangesRequest(partitions=[entry]))
    for segment in replica_of(node, topic).log.reader.segments:
        segment.release_index()
    node.disk.evict()
    cold, _ = node.call(m.DescribeRangesRequest(partitions=[entry]))
    assert cold.partitions == warm.partitions
    assert cold.partitions[0].byte_count > 0


def test_a_walk_over_more_indexes_than_memory_holds_goes_on_where_it_was(node: NodeDriver) -> None:
    """Every index that is loaded drives out the one before; once it began again each time."""
    topic = node.create(segment_bytes=str(64 * 1024))
    segments(node, topic, 12)
    log = replica_of(node, topic).log
    entry = m.RangePartition(topic, 0, start_offset=0, end_offset=-1)
    warm, _ = node.call(m.DescribeRangesRequest(partitions=[entry]))
    log.reader.indexes._bytes_max = 1
    for segment in log.reader.segments:
        log.reader.indexes.discard(segment)
        segment.release_index()
    node.hold_jobs = True
    asked = node.request(m.DescribeRangesRequest(partitions=[entry]))
    kinds = list(read_kinds(node))
    assert 11 <= kinds.count("load index") <= 2 * 12
    answer = node.answer(asked)
    assert answer is not None
    assert answer[0].partitions == warm.partitions


def test_an_index_that_memory_loses_at_once_is_a_typed_error(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create(segment_bytes=str(64 * 1024))
    segments(node, topic, 2)
    log = replica_of(node, topic).log
    log.reader.segments[0].release_index()
    monkeypatch.setattr(LogReader, "complete_load", lambda *_: None)
    result, body = node.fetched(topic, 0)
    assert (result.error_code, body) == (errors.ThrottledBroker.code, b"")
    assert node.offset_of(topic, START_WALL_US).error_code == errors.ThrottledBroker.code


def test_retention_looks_at_cold_logs_by_jobs(node: NodeDriver) -> None:
    topic = node.create(segment_bytes=str(64 * 1024), retention_ms="600000")
    segments(node, topic, 3)
    log = replica_of(node, topic).log
    for segment in log.reader.segments:
        segment.release_index()
    log.reader._oldest_us = None
    node.disk.evict()
    node.advance(700_000)
    while node.syncs:
        node.flush()
    assert log.log_start_offset == log.log_end_offset
    assert not [line for line in node.lines if line.level == "error"]


# --- jobs that come to nothing ------------------------------------------------------------------
def unload(node: NodeDriver, topic: bytes) -> None:
    """No index and no row is in memory."""
    for segment in replica_of(node, topic).log.reader.segments:
        segment.release_index()
    node.disk.evict()


def give_up(node: NodeDriver, topic: bytes, before: int) -> None:
    """Delete rows with their files, while other jobs wait."""
    held, node.jobs = node.jobs, []
    node.hold_jobs = False
    entry = m.DeleteRecordsPartition(topic, 0, before_offset=before)
    response, _ = node.call(m.DeleteRecordsRequest(partitions=[entry]))
    assert response.partitions[0].error_code == 0
    node.run_until_idle()
    node.jobs = held


def test_a_cold_lookup_that_a_trim_overtakes_is_answered(node: NodeDriver) -> None:
    topic = node.create(segment_bytes=str(64 * 1024))
    segments(node, topic, 4)
    log = replica_of(node, topic).log
    kept = log.reader.segments[2].base_offset
    unload(node, topic)
    node.hold_jobs = True
    entry = m.ListOffsetsPartition(topic, 0, at=START_WALL_US)
    asked = node.request(m.ListOffsetsRequest(partitions=[entry]))
    assert [start.job.kind for start in node.jobs] == ["load index"]
    give_up(node, topic, kept)
    node.run_until_idle()
    answer = node.answer(asked)
    assert answer is not None
    result = answer[0].partitions[0]
    assert (result.error_code, result.offset) == (0, kept)


def test_a_cold_fetch_that_a_trim_overtakes_is_out_of_range(node: NodeDriver) -> None:
    topic = node.create(segment_bytes=str(64 * 1024))
    segments(node, topic, 4)
    unload(node, topic)
    node.hold_jobs = True
    asked = node.request(node.fetch_request(topic, 0))
    assert node.jobs
    give_up(node, topic, replica_of(node, topic).log.reader.segments[2].base_offset)
    node.run_until_idle()
    answer = node.answer(asked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.OffsetOutOfRange.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnsupportedFormat("written by a newer one."), errors.StorageFault.code),
        (OSError(5, "Input/output error"), errors.StorageFault.code),
        (OSError(24, "Too many open files"), errors.ThrottledBroker.code),
    ],
    ids=["format", "disk", "descriptors"],
)
def test_an_index_that_cannot_be_loaded_gives_its_error(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    topic = node.create(segment_bytes=str(64 * 1024))
    segments(node, topic, 2)
    unload(node, topic)

    def failing(_self: object) -> None:
        raise error

    monkeypatch.setattr(SegmentFiles, "read_index", failing)
    result, body = node.fetched(topic, 0)
    assert (result.error_code, body) == (code, b"")
    if code != errors.ThrottledBroker.code:
        assert node.offset_of(topic, START_WALL_US).error_code == code


def test_a_bug_in_a_cold_read_is_in_the_log(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create()
    node.produced(topic, bytes(batch_of(range(10))))
    unload(node, topic)

    def broken(*_: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(LogReader, "complete_read", broken)
    result, body = node.fetched(topic, 0)
    assert (result.error_code, body) == (errors.QuiverlogError.code, b"")
    assert node.metrics.internal_errors == 1
    assert any("planted" in str(line.fields.get("trace")) for line in node.lines)


@pytest.mark.parametrize("bytes_max", [1, 70_000])
def test_a_newest_batch_beyond_the_bound_is_loaded_whole(node: NodeDriver, bytes_max: int) -> None:
    """A first batch goes out in any case: no byte of it may wait for the disk."""
    topic = node.create()
    body = bytes(batch_of(range(20_000)))
    node.produced(topic, body)
    node.disk.evict()
    _, found = node.fetched(topic, entry_bytes_max=bytes_max)
    assert found == body > bytes(bytes_max)
