"""The times that a topic takes, and the clock that stamps its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import CRC_START
from quiverlog.errors import InvalidTimestamp
from quiverlog.types import EARLIEST
from tests.support.node import START_WALL_US, NodeDriver, batch_of

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path, retention_check_ms=5_000)


def create(node: NodeDriver, **configs: str) -> bytes:
    """A topic; `type`, `before` and `after` are short for the keys about times."""
    keys = {"type": "type", "before": "before_max_ms", "after": "after_max_ms"}
    times = {f"message_timestamp_{keys[k]}": v for k, v in configs.items() if k in keys}
    return node.create(**times, **{k: v for k, v in configs.items() if k not in keys})


def refusal(node: NodeDriver, topic: bytes, off_ms: int) -> str:
    """The error for a row at this distance from the broker's clock; empty where it is taken."""
    correlation = node.produce(topic, batch_of([1], at_us=node.wall_us + off_ms * 1000))
    while node.syncs and node.answer(correlation) is None:
        node.flush()
    answer = node.answer(correlation)
    assert answer is not None
    result = answer[0].partitions[0]
    assert result.error_code in (0, InvalidTimestamp.code)
    return str(result.error_message)


@pytest.mark.parametrize(
    ("configs", "taken_ms", "refused_ms"),
    [
        ({}, (-40 * YEAR_MS, 0, HOUR_MS), (HOUR_MS + 1, YEAR_MS)),
        ({"before": "0"}, (0, HOUR_MS), (-1, -YEAR_MS)),
        ({"before": "5000"}, (-5_000,), (-5_001,)),
        ({"before": "-1"}, (-40 * YEAR_MS,), (HOUR_MS + 1,)),
        ({"after": "0"}, (-YEAR_MS, 0), (1,)),
        ({"after": "-1"}, (100 * YEAR_MS,), ()),
        ({"after": str(2**63 - 1)}, (100 * YEAR_MS,), ()),
        ({"type": "LogAppendTime", "before": "5"}, (-40 * YEAR_MS, -6, 0, YEAR_MS), ()),
    ],
)
def test_the_times_that_a_topic_takes(
    node: NodeDriver,
    configs: dict[str, str],
    taken_ms: tuple[int, ...],
    refused_ms: tuple[int, ...],
) -> None:
    topic = create(node, **configs)
    for off_ms in taken_ms:
        assert refusal(node, topic, off_ms) == ""
    for off_ms in refused_ms:
        assert refusal(node, topic, off_ms) != ""
    assert node.broker_end(topic) == len(taken_ms), "what is refused is not stored"


def test_a_refusal_names_both_times_and_the_bound(node: NodeDriver) -> None:
    topic = create(node, before="5000")
    assert START_WALL_US <= node.wall_us < START_WALL_US + 1_000_000
    assert refusal(node, topic, -7_200_000) == (
        "the batch's oldest row has the time 2023-11-14 20:13:20 UTC, 7200.000 s in the past of the"
        " broker's clock (2023-11-14 22:13:20 UTC); message.timestamp.before.max.ms of the topic is"
        " 5000."
    )
    assert refusal(node, topic, 7_200_000) == (
        "the batch's newest row has the time 2023-11-15 00:13:20 UTC, 7200.000 s in the future of"
        " the broker's clock (2023-11-14 22:13:20 UTC); message.timestamp.after.max.ms of the topic"
        " is 3600000."
    )
    assert "us after 1970" in refusal(node, topic, 2**63 // 1000 - node.wall_us // 1000 - 1)


@pytest.mark.parametrize("batches", [1, 3])
def test_the_leader_stamps_rows_of_log_append_time(node: NodeDriver, batches: int) -> None:
    topic = create(node, type="LogAppendTime", retention_ms=str(HOUR_MS))
    rows = [batch_of([n], at_us=node.wall_us - YEAR_MS * 1000) for n in range(batches)]
    node.produced(topic, *rows)
    stored = node.headers(topic)
    assert len(stored) == batches
    for header in stored:
        assert header.timestamp_min_us == header.timestamp_max_us == node.wall_us
    log = node.node.broker.replicas[topic, 0].log
    (view,) = log.reader.read(0, bytes_max=1, end_offset=1)
    assert crc32c(view[CRC_START:]) == stored[0].crc32c, "readers check it"
    assert log.reader.arrived_us(0, batches) == 0, "none is late"


def test_a_batch_that_comes_again_is_found_under_the_time_that_it_has(node: NodeDriver) -> None:
    topic = create(node, type="LogAppendTime")
    batch = batch_of([1], at_us=node.wall_us, producer=(5, 0, 0))
    first = node.produced(topic, batch)
    node.advance(1_000)
    again = node.produced(topic, batch)
    assert (again.duplicate, again.base_offset) == (True, first.base_offset)


def test_a_clock_that_was_behind_between_two_looks_takes_no_late_row(node: NodeDriver) -> None:
    """For some milliseconds, in which rows of last year came."""
    topic = node.create(retention_ms=str(HOUR_MS))
    node.advance(6_000)
    node.wall_us -= 8 * 24 * HOUR_MS * 1000
    node.produced(topic, batch_of([1] * 10, at_us=node.wall_us - YEAR_MS * 1000))
    node.wall_us += 8 * 24 * HOUR_MS * 1000
    node.advance(HOUR_MS - 60_000)
    assert node.offset_of(topic, EARLIEST).offset == 0
    node.advance(2 * 60_000)
    assert node.offset_of(topic, EARLIEST).offset == 10


def test_retention_counts_from_the_arrival_of_late_rows(node: NodeDriver) -> None:
    """A producer two hours behind, and a topic that keeps one: its rows were gone in seconds."""
    topic = node.create(retention_ms=str(HOUR_MS))
    node.produced(topic, batch_of([1] * 10, at_us=node.wall_us - 2 * HOUR_MS * 1000))
    node.advance(HOUR_MS - 60_000)
    assert node.offset_of(topic, EARLIEST).offset == 0
    node.advance(2 * 60_000)
    assert node.offset_of(topic, EARLIEST).offset == 10
