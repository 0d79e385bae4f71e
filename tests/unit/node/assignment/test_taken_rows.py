"""What retention took: every partition is named with its rows, in few lines of bounded length."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quiverlog.errors import UnknownTopicId
from quiverlog.node.assignment.retention import TAKEN_CHARS_MAX, TakenRows
from quiverlog.node.runtime.effects import LogLine
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.server.observe.logs import LineRate
from quiverlog.types import Now, TopicPartition
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of

PARTITIONS = 300


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path, retention_check_ms=5_000)


def taken_lines(lines: list[LogLine]) -> list[dict[str, Any]]:
    return [dict(line.fields) for line in lines if line.event == "retention took rows"]


def rows_named(lines: list[dict[str, Any]]) -> Counter[tuple[str, int, int]]:
    """Each row that a line names: (topic, partition, offset), how often."""
    found: Counter[tuple[str, int, int]] = Counter()
    for line in lines:
        for entry in line["taken"].split():
            partition, rows = entry.split(":")
            first, end = map(int, rows.split("-"))
            found.update((line["topic"], int(partition), offset) for offset in range(first, end))
    return found


def test_every_partition_that_expires_is_named_with_its_rows(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS, retention_ms="1000", durability="memory")
    for partition in range(PARTITIONS):
        node.produce(topic, bytes(batch_of([1] * 10)), partition=partition)
    node.flush()
    node.advance(25_000)
    lines = taken_lines(node.lines)
    rate = LineRate()
    written = [line for line in lines if rate.admit("retention took rows", 0.0)]
    every = {("t", p, offset) for p in range(PARTITIONS) for offset in range(10)}
    assert rows_named(written) == Counter(every)
    assert sum(line["partitions"] for line in lines) == PARTITIONS
    assert sum(line["rows"] for line in lines) == 10 * PARTITIONS
    assert len(lines) < 25, "one in a second at most"
    assert sum(line["bytes"] for line in lines) == node.metrics.retention_bytes_deleted > 0


def test_what_was_taken_before_a_stop_is_logged_by_it(node: NodeDriver) -> None:
    topic = node.create(retention_ms="1000", durability="memory")
    node.produced(topic, batch_of([1] * 10))
    while not node.metrics.retention_bytes_deleted:
        node.advance(100)
    assert taken_lines(node.lines) == []
    node.stop()
    (line,) = taken_lines(node.lines)
    assert line["taken"] == "0:0-10"


def test_a_line_stays_short_and_nothing_is_lost() -> None:
    outbox = Outbox(NodeMetrics())
    taken = TakenRows(outbox)
    far = 2**62
    for partition in range(1_000):
        name = TopicPartition("t", partition)
        taken.add(name, far, far + 3, segments=1, byte_count=7, now=Now(0, 0))
    taken.write()
    lines = taken_lines([line for line in outbox.take() if isinstance(line, LogLine)])
    assert max(len(line["taken"]) for line in lines) <= TAKEN_CHARS_MAX
    assert sum(rows_named(lines).values()) == 3_000
    assert sum(line["segments"] for line in lines) == 1_000


def test_one_line_names_a_partition_that_was_taken_from_twice() -> None:
    outbox = Outbox(NodeMetrics())
    taken = TakenRows(outbox)
    for first, end in ((5, 7), (7, 11)):
        taken.add(TopicPartition("t", 3), first, end, segments=1, byte_count=1, now=Now(9, 9))
    assert taken.due_us == 1_000_009
    taken.write()
    (line,) = taken_lines([line for line in outbox.take() if isinstance(line, LogLine)])
    assert (line["taken"], line["rows"], line["partitions"]) == ("3:5-11", 6, 1)
    assert taken.due_us is None


def test_rows_whose_topic_was_deleted_before_they_were_taken_are_not_logged(
    node: NodeDriver,
) -> None:
    topic = node.create(retention_ms="1000", durability="memory")
    node.produce(topic, bytes(batch_of([1] * 10)))
    node.flush()
    node.hold_jobs = True
    while not any(start.job.kind == "trim" for start in node.jobs):
        node.advance(1_000)
    (trim,) = (start for start in node.jobs if start.job.kind == "trim")
    node.jobs.remove(trim)
    deleted = node.request(m.DeleteTopicsRequest(names=["t"]))
    node.hold_jobs = False
    node.run_until_idle()
    assert node.answer(deleted) is not None
    node._run(trim)
    node.advance(10_000)
    assert taken_lines(node.lines) == []
    assert not [line for line in node.lines if line.level == "error"]


def test_deleting_rows_of_a_topic_that_is_deleted_meanwhile_is_refused(node: NodeDriver) -> None:
    topic = node.create()
    node.produced(topic, bytes(batch_of([1] * 10)))
    node.hold_jobs = True
    entry = m.DeleteRecordsPartition(topic, 0, before_offset=5)
    asked = node.request(m.DeleteRecordsRequest(partitions=[entry]))
    trim = node.jobs.pop()
    assert trim.job.kind == "trim"
    node.request(m.DeleteTopicsRequest(names=["t"]))
    node.hold_jobs = False
    node.run_until_idle()
    node._run(trim)
    node.run_until_idle()
    answer = node.answer(asked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == UnknownTopicId.code


def test_rows_between_two_that_retention_took_are_not_logged_as_taken() -> None:
    """A client deleted them, or they are of an older topic of that name."""
    outbox = Outbox(NodeMetrics())
    taken = TakenRows(outbox)
    for first, end in ((0, 10), (25, 30), (0, 4)):
        taken.add(TopicPartition("t", 0), first, end, segments=1, byte_count=1, now=Now(0, 0))
    taken.write()
    lines = taken_lines([line for line in outbox.take() if isinstance(line, LogLine)])
    assert [(line["taken"], line["rows"]) for line in lines] == [
        ("0:0-10", 10), ("0:25-30", 5), ("0:0-4", 4),
    ]  # fmt: skip
