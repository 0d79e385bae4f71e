"""FETCH with `file_ranges`: the same rows as places in files (docs/adr/0068)."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from quiverlog.batch.codec import split_batches
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.node.apis.fetch import FILE_RANGE_BYTES_MIN
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of

SEGMENT_BYTES = 1 << 20
ROWS = (10, 3_000, 20_000)
"""Of a batch: some hundred bytes, some ten thousand, more than `FILE_RANGE_BYTES_MIN`."""


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def filled(node: NodeDriver, draw: random.Random, batches: int = 40) -> bytes:
    topic = node.create(**{"segment.bytes": str(SEGMENT_BYTES)})
    for number in range(batches):
        node.produced(topic, batch_of([number] * draw.choice(ROWS)))
    return topic


def read(ranges: list[m.FileRange]) -> bytes:
    found = b""
    for one in ranges:
        path = Path(one.path)
        assert path.is_absolute()
        assert (path.stat().st_dev, path.stat().st_ino) == (one.device, one.inode)
        found += path.read_bytes()[one.position : one.position + one.byte_count]
    return found


def last_headers(ranges: list[m.FileRange]) -> list[bytes]:
    """Return the header of the last batch in each range, found by walking over it."""
    found = []
    for one in ranges:
        *_, (_, last) = split_batches(memoryview(read([one])))
        found.append(bytes(last[:BATCH_HEADER_BYTES]))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_ranges_have_the_bytes_that_would_have_been_sent(node: NodeDriver, seed: int) -> None:
    draw = random.Random(seed)
    topic = filled(node, draw)
    end = node.broker_end(topic)
    ranges_count = segments_max = 0
    for _ in range(60):
        options: dict[str, Any] = {
            "offset": draw.randrange(end),
            "entry_bytes_max": draw.choice((1, 70_000, 300_000, 5 << 20)),
            "end_offset": draw.choice((-1, draw.randrange(end))),
        }
        sent, body = node.fetched(topic, **options)
        result, rest = node.fetched(topic, **options, file_ranges=True)
        assert result.batch_bytes == sent.batch_bytes == len(body)
        assert result.high_watermark == sent.high_watermark
        if len(body) < FILE_RANGE_BYTES_MIN:
            assert (result.file_ranges, rest) == ([], body)
            continue
        assert rest == b""
        assert read(result.file_ranges) == body
        assert [one.last_header for one in result.file_ranges] == last_headers(result.file_ranges)
        ranges_count += 1
        segments_max = max(segments_max, len(result.file_ranges))
    assert ranges_count > 10
    assert segments_max > 1, "of several segments"


def test_rows_in_many_small_files_are_sent(node: NodeDriver) -> None:
    """Opening them all would take longer, and their names need room in the answer."""
    topic = node.create(**{"segment.bytes": str(FILE_RANGE_BYTES_MIN)})
    small = batch_of([1] * 5_000)
    for _ in range(3):
        node.produced(topic, small)
    assert FILE_RANGE_BYTES_MIN < 2 * len(small) < 2 * FILE_RANGE_BYTES_MIN
    result, body = node.fetched(topic, bytes_max=1 << 20, file_ranges=True)
    assert (result.batch_bytes, result.file_ranges) == (3 * len(small), [])
    assert len(body) == 3 * len(small)


def test_no_client_gets_file_ranges_unasked(node: NodeDriver) -> None:
    topic = filled(node, random.Random(1))
    result, body = node.fetched(topic, bytes_max=1 << 20)
    assert result.file_ranges == []
    assert len(body) == result.batch_bytes >= FILE_RANGE_BYTES_MIN
    assert node.metrics.local_read_bytes == 0


def test_bounds_count_what_lies_in_files(node: NodeDriver) -> None:
    """Of the request, over several partitions; and so do the counters."""
    topic = node.create(partitions=3)
    for partition in range(3):
        for _ in range(3):
            node.produced(topic, batch_of([7] * 20_000), partition=partition)
    entries = [m.FetchPartition(topic, p) for p in range(3)]
    size = len(batch_of([7] * 20_000))
    asked = {"bytes_max": 5 * size, "partitions": entries}
    sent, body = node.call(m.FetchRequest(**asked))
    answer, rest = node.call(m.FetchRequest(**asked, file_ranges=True))
    sizes = [result.batch_bytes for result in answer.partitions]
    assert sizes == [result.batch_bytes for result in sent.partitions] == [3 * size, 2 * size, 0]
    assert rest == b""
    assert b"".join(read(result.file_ranges) for result in answer.partitions) == body
    assert node.metrics.local_read_bytes == 5 * size
    assert node.metrics.topics["t"].bytes_out == 10 * size


def test_a_long_poll_is_answered_by_rows_in_files(node: NodeDriver) -> None:
    topic = node.create()
    parked = node.request(node.fetch_request(topic, 0, max_wait_ms=1000, file_ranges=True))
    node.produced(topic, batch_of([1] * 20_000))
    answer = node.answer(parked)
    assert answer is not None
    response, body = answer
    assert body == b""
    assert read(response.partitions[0].file_ranges) == node.fetched(topic)[1]


def test_rows_above_the_high_watermark_are_in_no_range(node: NodeDriver) -> None:
    topic = node.create()
    node.produced(topic, batch_of([1] * 20_000))
    node.produce(topic, batch_of([2] * 20_000))  # not flushed
    result, _ = node.fetched(topic, file_ranges=True)
    assert result.high_watermark == 20_000
    assert sum(one.byte_count for one in result.file_ranges) == len(batch_of([1] * 20_000))


def test_a_file_whose_name_is_no_text_is_not_sent_as_a_range(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path / "caf\udce9")
    topic = node.create()
    node.produced(topic, batch_of([1] * 20_000))
    result, body = node.fetched(topic, file_ranges=True)
    assert result.file_ranges == []
    assert len(body) == result.batch_bytes


def test_a_working_directory_that_is_gone_hides_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create()
    node.produced(topic, batch_of([1] * 20_000))
    segment = node.node.broker.replicas[topic, 0].log.reader.segments[0]
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    segment.file.path = os.path.relpath(segment.file.path)
    working.rmdir()
    result, body = node.fetched(topic, file_ranges=True)
    assert result.file_ranges == []
    assert len(body) == result.batch_bytes


def test_a_relative_data_directory_is_sent_as_a_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node = NodeDriver(Path("here"))
    topic = node.create()
    node.produced(topic, batch_of([1] * 20_000))
    result, _ = node.fetched(topic, file_ranges=True)
    assert Path(result.file_ranges[0].path).is_relative_to(tmp_path)


def test_a_data_directory_behind_a_link_is_sent_as_the_system_finds_it(tmp_path: Path) -> None:
    """`..` behind a link leads to where the link points, and not to where it lies."""
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "deep")
    node = NodeDriver(tmp_path / "link" / ".." / "data")
    topic = node.create()
    node.produced(topic, batch_of([1] * 20_000))
    result, _ = node.fetched(topic, file_ranges=True)
    assert read(result.file_ranges) == node.fetched(topic)[1]


def test_rows_that_do_not_fit_behind_others_are_not_sent_as_ranges(node: NodeDriver) -> None:
    topic = node.create(partitions=2)
    for partition in range(2):
        node.produced(topic, batch_of([7] * 20_000), partition=partition)
    size = len(batch_of([7] * 20_000))
    entries = [m.FetchPartition(topic, p) for p in range(2)]
    asked = m.FetchRequest(bytes_max=size + 100, partitions=entries, file_ranges=True)
    answer, _ = node.call(asked)
    assert [result.batch_bytes for result in answer.partitions] == [size, 0]
    assert [len(result.file_ranges) for result in answer.partitions] == [1, 0]
