"""FETCH with `file_ranges` of rows that are not in memory: the client reads them, the broker reads
headers only (docs/adr/0068).

The disk of these tests refuses a read on the loop of what is not in memory.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.limits import KIB, MIB
from quiverlog.node.apis.fetch import FILE_RANGE_BYTES_MIN
from quiverlog.storage.segment import reading
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of

ROWS = (1, 10, 500, 3_000, 20_000)
"""Of a batch: some hundred bytes to more than `FILE_RANGE_BYTES_MIN`."""
HEADERS_BYTES_MAX = 6 * (64 + 8) * KIB
"""Around the first batch and the last ones: what lies between two index entries, and a window."""


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def read(ranges: list[m.FileRange]) -> bytes:
    parts = [Path(r.path).read_bytes()[r.position : r.position + r.byte_count] for r in ranges]
    return b"".join(parts)


def cold_fetch(node: NodeDriver, topic: bytes, **options: Any) -> tuple[Any, bytes, list[Any]]:
    """As `fetch`, where nothing is in memory."""
    node.disk.evict()
    return fetch(node, topic, **options)


def fetch(node: NodeDriver, topic: bytes, **options: Any) -> tuple[Any, bytes, list[Any]]:
    """Return the result, its body, and the jobs that were needed."""
    node.hold_jobs = True
    asked = node.request(node.fetch_request(topic, max_wait_ms=0, file_ranges=True, **options))
    jobs = []
    while node.jobs or node.node.next_deadline_us() == 0:
        if node.node.next_deadline_us() != 0:
            jobs.append(node.jobs[0].job)
        node.step()
    node.hold_jobs = False
    answer = node.answer(asked)
    assert answer is not None
    response, body = answer
    return response.partitions[0], body, jobs


def sizes(jobs: list[Any]) -> list[int]:
    return [job.size for job in jobs if job.kind == "cold read"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("interval", [None, 64 * KIB])
def test_only_headers_are_brought_into_memory(
    node: NodeDriver, seed: int, interval: int | None
) -> None:
    draw = random.Random(seed)
    configs = {"segment.bytes": str(2 * MIB)}
    if interval:
        configs["index.interval.bytes"] = str(interval)
    topic = node.create(**configs)
    for number in range(60):
        node.produced(topic, batch_of([number] * draw.choice(ROWS)))
    end = node.broker_end(topic)
    large_count = 0
    for _ in range(40):
        options: dict[str, Any] = {
            "offset": draw.randrange(end),
            "entry_bytes_max": draw.choice((70_000, 300_000, 5 << 20)),
            "end_offset": draw.choice((-1, draw.randrange(end))),
        }
        result, rest, jobs = cold_fetch(node, topic, **options)
        sent, body = node.fetched(topic, **options)
        assert result.batch_bytes == sent.batch_bytes == len(body)
        if not result.file_ranges:
            assert rest == body
            continue
        assert read(result.file_ranges) == body
        segments = len(result.file_ranges) + 1  # and one that did not fit
        assert sum(sizes(jobs)) <= segments * HEADERS_BYTES_MAX
        large_count += len(body) > 600_000
    assert large_count > 2, "of many bytes"


def test_a_long_range_needs_two_small_reads(node: NodeDriver) -> None:
    topic = node.create(**{"segment.bytes": str(64 * MIB)})
    for number in range(20):
        node.produced(topic, batch_of([number] * 60_000))
    result, _, jobs = cold_fetch(node, topic, offset=0, entry_bytes_max=8 * MIB)
    assert result.batch_bytes > 7 * MIB
    assert len(sizes(jobs)) <= 4
    assert sum(sizes(jobs)) <= HEADERS_BYTES_MAX


def test_rows_that_are_sent_are_loaded_first(node: NodeDriver) -> None:
    """Too few for a range in each file: they leave through the socket, which may not wait."""
    topic = node.create(**{"segment.bytes": str(FILE_RANGE_BYTES_MIN)})
    small = batch_of([1] * 5_000)
    for _ in range(3):
        node.produced(topic, small)
    result, body, jobs = cold_fetch(node, topic, offset=0, entry_bytes_max=MIB)
    assert (result.file_ranges, len(body)) == ([], len(small))
    assert max(sizes(jobs)) >= len(small)


def test_unchecked_rows_are_checked_before_their_file_ranges_are_sent(
    node: NodeDriver,
) -> None:
    topic = node.create()
    for number in range(6):
        node.produced(topic, batch_of([number] * 20_000))
    node.crash()
    (segment,) = node.node.broker.replicas[topic, 0].log.reader.segments
    path = Path(segment.path)
    size = len(batch_of([0] * 20_000))
    data = bytearray(path.read_bytes())
    data[64 + 2 * size + size // 2] ^= 1  # in the rows of the third batch
    path.write_bytes(bytes(data))
    node.restart()
    result, body, _ = cold_fetch(node, topic, offset=0, entry_bytes_max=8 * MIB)
    assert sum(r.byte_count for r in result.file_ranges) in (0, 2 * size)
    assert len(body) in (0, 2 * size)
    assert result.batch_bytes == 2 * size
    result, _, _ = cold_fetch(node, topic, offset=40_000, entry_bytes_max=8 * MIB)
    assert result.error_code == errors.CorruptLog.code


def test_an_answer_that_is_full_is_looked_for_once(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What did not fit then does not fit into what is left of the bound either."""
    topic = node.create()
    for number in range(6):
        node.produced(topic, batch_of([number] * 20_000))
    size = len(batch_of([0] * 20_000))
    asked = []
    real = reading.read

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(reading, "read", counted)
    for in_files in (False, True):
        asked.clear()
        result, _ = node.fetched(
            topic, offset=0, entry_bytes_max=3 * size + 100, file_ranges=in_files
        )
        assert result.batch_bytes == 3 * size
        assert len(asked) == 1


# --- what the walk looks at is in memory, wherever it leads ---------------------------------------
def test_small_batches_behind_a_large_one_need_few_reads(node: NodeDriver) -> None:
    """Where an answer ends is not known before it is known where its first batch begins."""
    topic = node.create(**{"segment.bytes": str(64 * MIB)})
    node.produced(topic, batch_of([1] * 500_000))
    for _ in range(60):
        node.produced(topic, *[batch_of([2] * 500)] * 40)
    for bytes_max in (5 * MIB, 8 * MIB, 64 * MIB):
        result, _, jobs = cold_fetch(node, topic, offset=0, entry_bytes_max=bytes_max)
        assert result.error_code == 0, result.error_message
        assert result.batch_bytes > 4 * MIB
        assert read(result.file_ranges) == node.fetched(topic, 0, entry_bytes_max=bytes_max)[1]
        assert sum(sizes(jobs)) <= HEADERS_BYTES_MAX


def test_an_answer_that_ends_where_checks_have_ended_waits_for_nothing(node: NodeDriver) -> None:
    topic = node.create()
    for number in range(40):
        node.produced(topic, batch_of([number] * 3_000))
    size = len(batch_of([0] * 3_000))
    node.restart()
    checked, _ = node.fetched(topic, 0, entry_bytes_max=9 * size)
    assert checked.batch_bytes == 9 * size
    result, _, _ = cold_fetch(node, topic, offset=0, entry_bytes_max=30 * size)
    assert sum(r.byte_count for r in result.file_ranges) == result.batch_bytes == 9 * size


def test_a_walk_from_the_beginning_of_a_damaged_segment(node: NodeDriver) -> None:
    """The index was made again without the first rows: their damage was not recorded."""
    topic = node.create()
    for number in range(6):
        node.produced(topic, batch_of([number] * 20_000))
    (path,) = Path(node.config.data_dir).glob("**/t-0/*.log")
    data = bytearray(path.read_bytes())
    data[64] ^= 1
    path.write_bytes(bytes(data))
    node.crash()
    node.produced(topic, batch_of([6] * 20_000))
    node.restart()
    result, _, _ = cold_fetch(node, topic, offset=0)
    assert result.error_code == errors.CorruptLog.code
    result, _, _ = cold_fetch(node, topic, offset=20_000)
    assert result.file_ranges


def test_few_unchecked_rows_are_not_read_on_the_loop(node: NodeDriver) -> None:
    """Checksums of few bytes take less than a job, if these are in memory: some headers are."""
    topic = node.create()
    for number in range(200):
        node.produced(topic, batch_of([number] * 100))
    size = len(batch_of([0] * 100))
    node.restart()
    cold_fetch(node, topic, offset=0, entry_bytes_max=50_000)
    offset = 100_000 // size * 100
    result, body, jobs = fetch(node, topic, offset=offset, entry_bytes_max=50_000)
    assert result.batch_bytes == len(body) > 45_000
    assert "verify" in [job.kind for job in jobs]


def test_an_index_that_leads_into_damage(node: NodeDriver) -> None:
    """Rows before the damage are sent as ranges, though its end was not looked for."""
    topic = node.create()
    for number in range(60):
        node.produced(topic, batch_of([number] * 3_000))
    size = len(batch_of([0] * 3_000))
    node.stop()
    (path,) = Path(node.config.data_dir).glob("**/t-0/*.log")
    data = bytearray(path.read_bytes())
    for number in range(30, 34):
        data[64 + number * size] ^= 1
    path.write_bytes(bytes(data))
    node.start()
    offset = 0
    while offset < 30 * 3_000:
        result, _, _ = cold_fetch(node, topic, offset=offset, entry_bytes_max=31 * size)
        assert result.batch_bytes > 0, result.error_message
        offset += result.batch_bytes // size * 3_000
    assert offset == 30 * 3_000
    result, _, _ = cold_fetch(node, topic, offset=offset)
    assert result.error_code == errors.CorruptLog.code
