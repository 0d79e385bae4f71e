"""What a query reads, when it starts, and what becomes of that when the world or options change.

Each test names what Spark's Kafka source does, or the defect that was found.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from quiverlog.errors import DataLoss, InvalidOption, UnknownTopic
from tests.support.simlog import ROW_BYTES, SimLog, SimulatedQuery


def world(**rows: list[int]) -> SimLog:
    """Topics with the rows of each partition: `world(a=[3, 0], b=[5])`."""
    log = SimLog()
    for name, counts in rows.items():
        log.create(name, len(counts))
        for partition, count in enumerate(counts):
            log.append(name, partition, count)
    return log


def query(log: SimLog, **options: str) -> SimulatedQuery:
    stream = SimulatedQuery(log, **({"startingOffsets": "earliest"} | options))
    if "subscribe" not in options:
        del stream.raw["subscribe"]
    return stream


def select(stream: SimulatedQuery, **selection: str) -> None:
    """Restart the query with another selection."""
    for name in ("subscribe", "subscribePattern", "assign"):
        stream.raw.pop(name, None)
    stream.raw |= selection
    stream.planner = None


def offsets(stream: SimulatedQuery, log: SimLog, topic: str, partition: int = 0) -> list[int]:
    """What was read of a partition of the topic as it is now, in order."""
    topic_id = log.topics[topic].topic_id
    return [o for t, p, o, _ in stream.rows if (t, p) == (topic_id, partition)]


# --- narrowed, then widened ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ({"subscribe": "a,b"}, {"subscribe": "a"}),
        ({"subscribePattern": "[ab]"}, {"subscribePattern": "a"}),
        ({"assign": '{"a":[0],"b":[0]}'}, {"assign": '{"a":[0]}'}),
        ({"subscribe": "a,b"}, {"assign": '{"a":[0]}'}),
    ],
)
def test_what_is_selected_again_goes_on_where_it_stood(
    wide: dict[str, str], narrow: dict[str, str]
) -> None:
    """Kafka's source forgets the position, and reads such rows a second time."""
    log = world(a=[3], b=[4])
    stream = query(log, **wide)
    stream.drain()
    select(stream, **narrow)
    for _ in range(3):
        log.append("a", 0, 2)
        log.append("b", 0, 2)
        stream.drain()
        stream.start()
    assert offsets(stream, log, "a") == list(range(9))
    assert offsets(stream, log, "b") == list(range(4))
    select(stream, **wide)
    stream.drain()
    assert offsets(stream, log, "b") == list(range(10))
    kept = json.loads(stream.offsets[max(stream.offsets)])
    assert "_kept" not in kept


def test_partitions_that_are_assigned_again_go_on_where_they_stood() -> None:
    log = world(a=[3, 3, 3])
    stream = query(log, assign='{"a":[0,1]}')
    stream.drain()
    select(stream, assign='{"a":[1,2]}')
    for partition in range(3):
        log.append("a", partition, 2)
    stream.drain()
    select(stream, assign='{"a":[0,1,2]}')
    stream.drain()
    assert [offsets(stream, log, "a", p) for p in range(3)] == [list(range(5))] * 3


def test_a_crash_while_a_topic_is_selected_again_doubles_nothing() -> None:
    log = world(a=[3], b=[4])
    stream = query(log, subscribe="a,b")
    stream.drain()
    select(stream, subscribe="a")
    log.append("a", 0, 1)
    stream.drain()
    select(stream, subscribe="a,b")
    log.append("b", 0, 3)
    stream.trigger("log")
    stream.drain()
    assert offsets(stream, log, "b") == list(range(7))


def test_what_is_not_selected_is_nobodys_loss() -> None:
    """Reported as deleted, though it was only taken out of `subscribe`; and the way out that the
    guide gives for a deleted topic did not work."""
    log = world(a=[3], b=[4], c=[1])
    stream = query(log, subscribe="a,b,c")
    stream.drain()
    log.delete("c")
    select(stream, subscribe="a")  # b still exists, c does not
    log.append("a", 0, 2)
    stream.drain()
    assert offsets(stream, log, "a") == list(range(5))
    select(stream, subscribe="a,b,c")
    with pytest.raises(DataLoss, match=r"topic 'c' .* was deleted: partition 0 from offset 1 on"):
        stream.drain()


def test_a_batch_is_replayed_as_it_was_planned_whatever_is_selected_now() -> None:
    log = world(a=[3], b=[4])
    stream = query(log, subscribe="a,b")
    stream.trigger("log")
    select(stream, subscribe="a")
    stream.drain()
    assert offsets(stream, log, "b") == list(range(4))


# --- seen late ----------------------------------------------------------------------------------
@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("late", ["partition", "topic"])
def test_rows_that_were_gone_before_they_were_first_seen_are_named(
    fail: str, late: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kafka's "Added partition starts from 5 instead of 0"; they were skipped in silence."""
    log = world(a=[3])
    stream = query(log, subscribePattern=".*", failOnDataLoss=fail)
    stream.drain()
    where = ("a", 1) if late == "partition" else ("b", 0)
    if late == "partition":
        log.add_partitions("a", 1)
    else:
        log.create("b")
    log.append(*where, 8)
    log.trim(*where, 5)
    if fail == "true":
        with pytest.raises(DataLoss, match=rf"{where[0]}-{where[1]}: rows \[0, 5\) were no longer"):
            stream.drain()
        return
    with caplog.at_level(logging.WARNING, "pyspark_quiverlog"):
        stream.drain()
    assert offsets(stream, log, *where) == [5, 6, 7]
    assert "rows [0, 5)" in caplog.text


# --- bounds and gaps ----------------------------------------------------------------------------
BOUNDS = [{"maxBytesPerTrigger": str(4 * ROW_BYTES)}, {"maxOffsetsPerTrigger": "4"}]


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("trimmed", [35, 100])
def test_a_bound_steps_over_a_gap_at_once(
    bound: dict[str, str], restart: bool, trimmed: int
) -> None:
    """Bytes: OFFSET_OUT_OF_RANGE at every start. Rows: nine of fifteen micro-batches were empty."""
    log = world(t=[4])
    stream = SimulatedQuery(log, startingOffsets="earliest", failOnDataLoss="false", **bound)
    stream.drain()
    log.append("t", 0, 96)
    log.trim("t", 0, trimmed)
    if restart:
        stream.start()
    before = len(stream.commits)
    stream.drain()
    assert offsets(stream, log, "t") == [*range(4), *range(trimmed, 100)]
    batches = len(stream.commits) - before
    assert batches <= (100 - trimmed) // 4 + 2


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_new_query_whose_start_was_trimmed_gets_going(bound: dict[str, str]) -> None:
    log = world(t=[40])
    log.trim("t", 0, 30)
    stream = SimulatedQuery(log, startingOffsets='{"t":{"0":2}}', failOnDataLoss="false", **bound)
    stream.drain()
    assert offsets(stream, log, "t") == list(range(30, 40))


@pytest.mark.parametrize("bound", BOUNDS)
def test_available_now_ends_when_all_that_was_frozen_is_trimmed(bound: dict[str, str]) -> None:
    log = world(t=[40])
    stream = SimulatedQuery(log, startingOffsets="earliest", failOnDataLoss="false", **bound)
    stream.start()
    assert stream.planner is not None
    stream.planner.prepare_available_now()
    stream.trigger()
    log.append("t", 0, 10)
    log.trim("t", 0, 45)
    stream.drain()
    stream.start()
    stream.drain()
    assert offsets(stream, log, "t") == [*range(4), *range(45, 50)]


def test_partitions_that_a_topic_made_anew_no_longer_has() -> None:
    """InvalidOption for ever, also at each restart."""
    log = world(t=[3, 3])
    stream = query(log, assign='{"t":[0,1]}', failOnDataLoss="false")
    stream.drain()
    log.delete("t")
    log.create("t", 1)
    log.append("t", 0, 2)
    stream.drain()
    stream.start()
    stream.drain()
    assert offsets(stream, log, "t", 0) == [0, 1]
    log.add_partitions("t", 1)
    log.append("t", 1, 2)
    stream.drain()
    assert offsets(stream, log, "t", 1) == [0, 1]


def test_nothing_known_of_a_topic_outlives_it() -> None:
    """A topic appears whose rows are gone, and is made anew before it had others: the new one does
    not begin where the first one's rows ended."""
    log = world(a=[1])
    stream = query(log, subscribePattern="[ab]", failOnDataLoss="false")
    stream.drain()
    log.create("b", 1)
    log.append("b", 0, 3)
    log.trim("b", 0, 3)
    stream.drain()
    log.delete("b")
    log.create("b", 1)
    log.append("b", 0, 5)
    stream.drain()
    assert offsets(stream, log, "b") == list(range(5))


def test_a_new_query_must_name_partitions_that_exist() -> None:
    with pytest.raises(InvalidOption, match=r"`assign`.*2 is not one of them"):
        query(world(t=[1, 1]), assign='{"t":[0,2]}').trigger()


# --- a new query that dies before its first commit ----------------------------------------------
def grow(log: SimLog) -> None:
    log.add_partitions("t", 1)
    log.append("t", 1, 2)


def new_topic(log: SimLog) -> None:
    log.create("u")
    log.append("u", 0, 2)


def trim(log: SimLog) -> None:
    log.trim("t", 0, 1)


@pytest.mark.parametrize(
    "change", [grow, new_topic, None], ids=lambda c: getattr(c, "__name__", "")
)
@pytest.mark.parametrize(
    "start",
    [
        {"startingOffsets": '{"t":{"0":1}}'},
        {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsets": "latest"},
    ],
)
def test_a_first_batch_is_replayed_from_its_own_start(change: Any, start: dict[str, str]) -> None:
    """Spark asks for the initial offset again; the one that counts lies in the first end offset.

    Kafka's source reads it from its checkpoint, too. A start that the options no longer give
    (a partition that came in between, which the JSON does not name) was an error.
    """
    log = world(t=[5])
    stream = query(log, subscribePattern=".*", **start)
    stream.trigger("log")
    first = json.loads(stream.offsets[0])["_first"]["t"]["partitions"]["0"][0]
    if change is not None:
        change(log)
    stream.raw["startingOffsetsByTimestampStrategy"] = "error"
    log.append("t", 0, 3)
    stream.drain()
    assert offsets(stream, log, "t") == list(range(first, 8))
    if change is not None:
        assert len(stream.rows) == 8 - first + 2


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("bound", [{}, *BOUNDS])
def test_replaying_a_batch_of_a_deleted_topic_names_the_ranges(
    fail: str, bound: dict[str, str]
) -> None:
    """UNKNOWN_TOPIC instead of DATA_LOSS."""
    log = world(t=[5])
    stream = SimulatedQuery(log, startingOffsets="earliest", failOnDataLoss=fail, **bound)
    stream.trigger("log")
    log.delete("t")
    if fail == "true":
        with pytest.raises(DataLoss, match=r"'t' .*deleted.*partition 0, rows \[0, [45]\)"):
            stream.trigger()
        return
    stream.drain()
    assert stream.rows == []


def test_a_new_query_whose_topic_is_missing_fails_with_its_name() -> None:
    with pytest.raises(UnknownTopic, match="'t'"):
        SimulatedQuery(SimLog(), startingOffsets="earliest").trigger()


# --- the minimum --------------------------------------------------------------------------------
def test_a_minimum_does_not_hold_up_the_first_batch_nor_a_restart() -> None:
    """As in Kafka's source: what waits when the query starts is taken at once."""
    log = world(t=[3])
    stream = SimulatedQuery(log, startingOffsets="earliest", minOffsetsPerTrigger="10")
    assert stream.trigger()
    assert len(stream.rows) == 3
    log.append("t", 0, 2)
    assert not stream.trigger()
    stream.start()
    assert stream.trigger()
    assert len(stream.rows) == 5
