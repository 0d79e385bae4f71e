"""Checksums of many megabytes are computed by jobs, for every caller, and never on the loop.

What a read has not seen before is verified, and a segment in which a read meets damage is scanned
once. Both are bounded here by the bytes that are looked at inside `Node.handle_many`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog import errors
from quiverlog.batch.header import BatchHeader
from quiverlog.limits import KIB, MIB
from quiverlog.storage.log.log import Log
from quiverlog.types import EARLIEST
from quiverlog.wire import messages as m
from tests.support.node import START_WALL_US, NodeDriver, batch_of, rows_of

ROWS = 131_072
BATCHES = 36
LOOKED_AT_MAX = 1024 * KIB
"""Of a segment of more than 32 MiB: some headers, some windows."""


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def log_of(node: NodeDriver, topic: bytes) -> Log:
    return node.node.broker.replicas[topic, 0].log


def fill(node: NodeDriver) -> bytes:
    """One segment of 36 MiB; the rows' times rise by a second from batch to batch."""
    topic = node.create()
    for number in range(BATCHES):
        at_us = START_WALL_US + number * 1_000_000
        node.produced(topic, bytes(batch_of(range(ROWS), at_us=at_us)))
    log = log_of(node, topic)
    assert log.reader.segment_count == 1
    assert log.reader.size_bytes > 32 * MIB
    return topic


def change_byte(node: NodeDriver, topic: bytes, batch: int, at: int) -> None:
    """Damage one byte of a batch behind the broker's back."""
    path = log_of(node, topic).reader.segments[0].path
    with open(path, "r+b") as file:
        position = 64
        for _ in range(batch):
            file.seek(position)
            position += BatchHeader.unpack(file.read(64)).total_bytes
        file.seek(position + at)
        (byte,) = file.read(1)
        file.seek(position + at)
        file.write(bytes([byte ^ 0x10]))


def damage_of(result: m.FetchPartitionResult) -> tuple[int, int]:
    assert result.error_code == errors.CorruptLog.code, result.error_message
    return result.damage_start_offset, result.damage_end_offset


@pytest.mark.parametrize("cold", [False, True])
def test_a_read_that_meets_damage_scans_nothing_on_the_loop(node: NodeDriver, cold: bool) -> None:
    topic = fill(node)
    change_byte(node, topic, 17, 0)  # The base offset: the headers do not join up any more.
    if cold:
        node.disk.evict()
    node.disk.bytes_on_loop = 0
    bad = range(17 * ROWS, 18 * ROWS)
    result, body = node.fetched(topic, bad.start)
    assert (damage_of(result), body) == ((bad.start, bad.stop), b"")
    result, body = node.fetched(topic, bad.stop)
    assert rows_of(body)[0] == (bad.stop, ROWS)
    assert node.disk.bytes_on_loop < LOOKED_AT_MAX


def test_lookups_by_time_and_range_scan_nothing_on_the_loop(node: NodeDriver) -> None:
    topic = fill(node)
    change_byte(node, topic, 17, 0)
    node.disk.bytes_on_loop = 0
    found = node.offset_of(topic, START_WALL_US + 17_000_000)
    assert (found.error_code, found.offset) == (0, 18 * ROWS)
    start = 17 * ROWS - 5
    entry = m.RangePartition(topic, 0, start_offset=start, end_offset=18 * ROWS + 1)
    response, _ = node.call(m.DescribeRangesRequest(partitions=[entry]))
    assert response.partitions[0].error_code == 0
    assert node.disk.bytes_on_loop < LOOKED_AT_MAX


def test_the_first_read_after_a_restart_verifies_nothing_on_the_loop(node: NodeDriver) -> None:
    topic = fill(node)
    node.restart()
    node.disk.bytes_on_loop = 0
    result, body = node.fetched(topic, 0, entry_bytes_max=48 * MIB, bytes_max=48 * MIB)
    assert result.error_code == 0
    assert len(rows_of(body)) == BATCHES
    assert node.disk.bytes_on_loop < LOOKED_AT_MAX
    node.disk.bytes_on_loop = 0
    node.hold_jobs = True
    again = node.request(node.fetch_request(topic, 0, entry_bytes_max=48 * MIB))
    assert not node.jobs, "what was verified once is not verified again"
    assert node.answer(again) is not None


def test_rows_in_front_of_damage_are_read_after_a_restart(node: NodeDriver) -> None:
    topic = fill(node)
    node.restart()
    change_byte(node, topic, 17, 4_000)  # In the rows: only the checksum shows it.
    node.disk.bytes_on_loop = 0
    big = 48 * MIB
    result, body = node.fetched(topic, 0, entry_bytes_max=big, bytes_max=big)
    assert (result.error_code, len(rows_of(body))) == (0, 17)
    result, body = node.fetched(topic, 17 * ROWS, entry_bytes_max=big, bytes_max=big)
    assert damage_of(result) == (17 * ROWS, 18 * ROWS)
    result, body = node.fetched(topic, 18 * ROWS, entry_bytes_max=big, bytes_max=big)
    assert (result.error_code, len(rows_of(body))) == (0, BATCHES - 18)
    assert node.disk.bytes_on_loop < LOOKED_AT_MAX


def test_readers_of_many_places_do_not_undo_each_others_checks(node: NodeDriver) -> None:
    topic = fill(node)
    node.restart()
    batch_bytes = (log_of(node, topic).reader.size_bytes - 64) // BATCHES
    options = {"entry_bytes_max": batch_bytes, "bytes_max": batch_bytes, "max_wait_ms": 0}
    offsets = [number * ROWS for number in range(0, BATCHES, 4)]
    for offset in offsets:
        assert rows_of(node.fetched(topic, offset, **options)[1]) == [(offset, ROWS)]
    node.hold_jobs = True
    for offset in offsets:
        node.request(node.fetch_request(topic, offset, **options))
        assert not node.jobs


def test_memory_that_loses_rows_at_once_does_not_make_checks_go_round(node: NodeDriver) -> None:
    topic = fill(node)
    node.restart()
    change_byte(node, topic, 2, 4_000)
    node.disk.evict()
    node.disk.forgetful = True
    result, body = node.fetched(topic, 0)
    assert (result.error_code, rows_of(body)[0]) == (0, (0, ROWS))
    result, _ = node.fetched(topic, 2 * ROWS)
    assert damage_of(result) == (2 * ROWS, 3 * ROWS)


def test_the_oldest_row_s_time_is_found_behind_damage_by_jobs(node: NodeDriver) -> None:
    topic = fill(node)
    node.stop()
    node.start()
    change_byte(node, topic, 0, 0)
    node.disk.bytes_on_loop = 0
    log = log_of(node, topic)
    log.reader._oldest_us = None
    node.advance(600_000)  # Retention looks.
    assert log.reader._oldest_us == START_WALL_US + 1_000_000
    assert node.offset_of(topic, EARLIEST).offset == 0
    assert node.disk.bytes_on_loop < LOOKED_AT_MAX


def test_a_lookup_by_time_walks_over_a_segment_of_older_rows_in_a_job(node: NodeDriver) -> None:
    """A row of the future was given up; the index by time does not cover the older ones behind."""
    topic = node.create()
    node.produced(topic, bytes(batch_of([1], at_us=START_WALL_US + 3_600_000_000)))
    for at in range(0, 8_000, 200):
        batches = [bytes(batch_of([1], at_us=START_WALL_US + at + n)) for n in range(200)]
        node.produced(topic, *batches)
    entry = m.DeleteRecordsPartition(topic, 0, before_offset=1)
    node.call(m.DeleteRecordsRequest(partitions=[entry]))
    log = log_of(node, topic)
    assert log.reader.segment_count == 1
    assert log.reader.size_bytes > 3 * LOOKED_AT_MAX // 2
    for sought, expected in ((START_WALL_US + 7_900, 7_901), (START_WALL_US + 1_000_000, -1)):
        node.disk.bytes_on_loop = 0
        found = node.offset_of(topic, sought)
        assert (found.error_code, found.offset) == (0, expected)
        assert node.disk.bytes_on_loop < LOOKED_AT_MAX
    node.disk.evict()
    assert node.offset_of(topic, START_WALL_US + 7_900).offset == 7_901
