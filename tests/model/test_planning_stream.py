"""The driver of a stream against a simulated log and Spark's own order of calls, with crashes."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog.errors import DataLoss, UnknownTopic
from tests.support.simlog import ROW_BYTES, SimLog, SimulatedQuery

CRASHES = ("", "", "plan", "log", "write", "commit")


def log_with(*rows: int) -> SimLog:
    """Topic `t`; `rows` lists the rows of each partition."""
    log = SimLog()
    log.create("t", len(rows))
    for partition, count in enumerate(rows):
        log.append("t", partition, count)
    return log


def expected(log: SimLog, starts: dict[int, int] | None = None) -> list[tuple[int, int]]:
    """(partition, value) of all rows from the starts on."""
    return sorted(
        (p, value)
        for p, part in enumerate(log.topics["t"].partitions)
        for _, value in part.rows[(starts or {}).get(p, 0) :]
    )


def got(stream: SimulatedQuery) -> list[tuple[int, int]]:
    return sorted((partition, value) for _, partition, _, value in stream.rows)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 12)),
        st.tuples(st.just("trigger"), st.sampled_from(CRASHES)),
        st.tuples(st.just("epoch"), st.integers(0, 2)),
        st.just(("partition",)),
        st.just(("other topic",)),
    ),
    max_size=40,
)
limits = st.sampled_from(
    [
        {},
        {"maxOffsetsPerTrigger": "5"},
        {"maxBytesPerTrigger": "60"},
        {"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "50"},
        {"minOffsetsPerTrigger": "6", "maxTriggerDelay": "1s"},
    ]
)


@settings(max_examples=200)
@given(steps, limits, st.sampled_from(["earliest", "latest", "default"]))
def test_no_row_is_lost_or_doubled_whatever_crashes(
    script: list[Any], options: dict[str, str], starting: str
) -> None:
    log = log_with(3, 0, 5)
    if starting != "default":
        options = options | {"startingOffsets": starting}
    stream = SimulatedQuery(log, **options)
    for step in script:
        play(log, stream, step)
    stream.now += 2
    stream.drain()
    stream.now += 2
    stream.drain()
    logged = [json.loads(stream.offsets[number]) for number in range(len(stream.offsets))]
    assert len({end["_id"] for end in logged}) == 1, "a restarted query is the same one"
    first = logged[0]["_first"]["t"]["partitions"]
    starts = {int(p): offset for p, (offset, _) in first.items()}
    if starting == "earliest":
        assert set(starts.values()) == {0}
    assert got(stream) == expected(log, starts)
    ordered = [(p, offset) for _, p, offset, _ in stream.rows]
    for partition in range(len(log.topics["t"].partitions)):
        offsets = [o for p, o in ordered if p == partition]
        assert offsets == sorted(offsets)


def play(log: SimLog, stream: SimulatedQuery, step: Any) -> None:
    match step:
        case ("append", partition, count):
            log.append("t", partition, count)
        case ("trigger", crash_at):
            stream.now += 0.2
            stream.trigger(crash_at)
        case ("epoch", partition):
            log.new_leader("t", partition)
        case ("partition",):
            log.add_partitions("t", 1)
            log.append("t", len(log.topics["t"].partitions) - 1)
        case ("other topic",):
            log.version += 1


def test_each_checkpoint_has_an_id_of_its_own() -> None:
    """Also one of a release that wrote none: from its next batch on."""
    log = log_with(3)
    one, other = (SimulatedQuery(log, startingOffsets="earliest") for _ in range(2))
    for stream in (one, other):
        stream.drain()
    found = [json.loads(stream.offsets[0])["_id"] for stream in (one, other)]
    assert found[0] != found[1]
    without = json.loads(one.offsets[0])
    del without["_id"]
    one.offsets[0] = json.dumps(without, separators=(",", ":"))
    for _ in range(2):
        one.start()
        log.append("t", 0, 2)
        one.drain()
    ids = [json.loads(text)["_id"] for text in list(one.offsets.values())[1:]]
    assert len(ids) == 2
    assert ids[0] == ids[1] not in found


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6), limits)
def test_available_now_reads_what_was_there_and_ends(
    appends: list[tuple[int, int]], options: dict[str, str]
) -> None:
    log = log_with(4, 9)
    stream = SimulatedQuery(log, startingOffsets="earliest", **options)
    for first, second in [(0, 0), *appends]:
        stream.start()
        assert stream.planner is not None
        stream.planner.prepare_available_now()
        there = expected(log)
        log.append("t", 0, first)
        log.append("t", 1, second)
        log.add_partitions("t", 1)
        stream.drain()
        assert got(stream) == there


# --- the traps, one by one ------------------------------------------------------------------------
def test_latest_start_counts_from_the_first_look_not_from_the_last() -> None:
    """Spark asks for the initial offset twice and plans with the second answer."""
    log = log_with(10)
    stream = SimulatedQuery(log)
    stream.start()
    assert stream.planner is not None
    stream.planner.initial_offset()
    log.append("t", 0, 5)  # between the start of the query and its first trigger
    stream.trigger("log")
    log.append("t", 0, 3)
    stream.trigger()
    assert [offset for _, _, offset, _ in stream.sink[0]] == [10, 11, 12, 13, 14]
    stream.drain()
    assert [offset for _, _, offset, _ in stream.rows] == list(range(10, 18))


def test_an_empty_topic_still_makes_its_start_durable() -> None:
    log = log_with(10)
    stream = SimulatedQuery(log)
    assert stream.trigger("log")  # batch 0 has no rows, and is logged
    log.append("t", 0, 5)
    stream.drain()
    assert [offset for _, _, offset, _ in stream.rows] == [10, 11, 12, 13, 14]


def test_an_idle_trigger_hands_back_the_same_text_and_costs_one_request() -> None:
    log = log_with(3)
    stream = SimulatedQuery(log, startingOffsets="earliest")
    stream.drain()
    assert stream.planner is not None
    for _ in range(3):
        before = log.requests
        offset = json.loads(stream.offsets[max(stream.offsets)])
        assert stream.planner.latest_offset(offset, unlimited=True) is offset
        assert log.requests == before + 1


def test_a_trigger_costs_one_request_and_planning_none() -> None:
    log = log_with(3, 3)
    stream = SimulatedQuery(log, startingOffsets="earliest")
    stream.drain()
    for _ in range(3):
        log.append("t", 0, 2)
        before = log.requests
        assert stream.trigger()
        assert log.requests == before + 1


def test_limits_hold_and_are_shared() -> None:
    log = log_with(100, 100)
    stream = SimulatedQuery(log, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    stream.trigger()
    assert sorted(p for _, p, _, _ in stream.sink[0]) == [0] * 5 + [1] * 5
    stream = SimulatedQuery(log, startingOffsets="earliest", maxBytesPerTrigger=str(20 * ROW_BYTES))
    stream.trigger()
    assert 8 <= len(stream.sink[0]) <= 20
    stream.trigger(unlimited=True)  # Trigger.Once: all that is there, whatever the options are
    assert len(stream.rows) == 200


def test_minimum_rows_wait_for_the_delay_and_no_longer() -> None:
    log = log_with(0)
    stream = SimulatedQuery(
        log, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="60s"
    )
    stream.drain()
    log.append("t", 0, 4)
    assert not stream.trigger()
    stream.now += 61
    assert stream.trigger()
    assert len(stream.rows) == 4
    log.append("t", 0, 10)
    assert stream.trigger()
    assert len(stream.rows) == 14


def test_a_new_topic_of_the_pattern_is_read_from_its_first_row() -> None:
    log = log_with(2)
    stream = SimulatedQuery(log, subscribePattern="t|u.*", startingOffsets="latest")
    del stream.raw["subscribe"]
    stream.drain()
    log.create("users")
    log.append("users", 0, 3)
    log.create("xusers")
    log.append("xusers", 0, 3)
    stream.drain()
    assert [offset for _, _, offset, _ in stream.rows] == [0, 1, 2]


def test_a_pattern_leaves_internal_topics_out_and_their_name_does_not() -> None:
    log = SimLog()
    log.create("t")
    log.append("t", 0, 2)
    log.create("__staged")
    log.append("__staged", 0, 3)
    for options, expected in (({"subscribePattern": ".*"}, 2), ({"subscribe": "__staged"}, 3)):
        stream = SimulatedQuery(log, startingOffsets="earliest", **options)
        if "subscribe" not in options:
            del stream.raw["subscribe"]
        stream.drain()
        assert len(stream.rows) == expected


def test_a_pattern_that_matches_nothing_yet_waits() -> None:
    log = SimLog()
    stream = SimulatedQuery(log, subscribePattern="t")
    del stream.raw["subscribe"]
    stream.drain()
    log.create("t")
    log.append("t", 0, 3)
    stream.drain()
    assert len(stream.rows) == 3


def test_a_topic_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnknownTopic, match="'t'"):
        SimulatedQuery(SimLog()).trigger()


# --- data loss ------------------------------------------------------------------------------------
def retention(log: SimLog) -> None:
    log.trim("t", 0, 25)


def truncation(log: SimLog) -> None:
    log.truncate("t", 0, 7)


def truncation_and_new_rows(log: SimLog) -> None:
    log.truncate("t", 0, 7)
    log.append("t", 0, 40)


def recreation(log: SimLog) -> None:
    log.delete("t")
    log.create("t", 1)
    log.append("t", 0, 50)


def deletion(log: SimLog) -> None:
    log.delete("t")


LOSSES = [
    (retention, r"t-0: rows \[20, 25\) are no longer kept", list(range(25, 35))),
    (truncation, r"t-0: rows \[7, 20\) were read and have been truncated", []),
    (truncation_and_new_rows, r"t-0: rows \[7, 20\) were read", list(range(7, 47))),
    (
        recreation,
        r"topic 't' \(id 0+1\) was created anew: partition 0 from offset 20",
        [*range(50)],
    ),
    (deletion, r"topic 't' \(id 0+1\) was deleted: partition 0 from offset 20 on", []),
]


# Retention behind a running driver's back is not its business: the executor's fetch notices.
CASES = [(r, *loss) for loss in LOSSES for r in (False, True) if r or loss[0] is not retention]


@pytest.mark.parametrize(
    ("restart", "loss", "message", "rest"), CASES, ids=lambda x: getattr(x, "__name__", "")
)
def test_lost_rows_are_named_never_skipped_in_silence(
    loss: Any, message: str, rest: list[int], restart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for fail in ("true", "false"):
        log = log_with(20)
        stream = SimulatedQuery(log, startingOffsets="earliest", failOnDataLoss=fail)
        stream.drain()
        if loss is retention:
            log.append("t", 0, 15)
        loss(log)
        if restart:
            stream.start()
        if fail == "true":
            with pytest.raises(DataLoss, match=message):
                stream.trigger()
            continue
        with caplog.at_level(logging.WARNING, "pyspark_quiverlog"):
            stream.drain()
        found = [offset for _, _, offset, _ in stream.rows[20:]]
        assert found == rest
        warnings = [r.getMessage() for r in caplog.records]
        assert len(warnings) == 1, warnings
        assert "data loss, going on" in warnings[0]


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize(
    ("loss", "message", "rest"),
    [
        (retention, r"t-0: rows \[20, 25\) are no longer kept", list(range(25, 35))),
        (
            recreation,
            r"'t' \(id 0+1\) was deleted or created anew: partition 0, rows \[20, 35\)",
            [*range(50)],
        ),
    ],
)
def test_a_replayed_batch_is_checked_too(
    loss: Any, message: str, rest: list[int], fail: bool
) -> None:
    """Spark runs a logged batch again after a crash, without asking for offsets first."""
    log = log_with(20)
    stream = SimulatedQuery(log, startingOffsets="earliest", failOnDataLoss=str(fail).lower())
    stream.drain()
    log.append("t", 0, 15)
    stream.trigger("log")
    loss(log)
    if fail:
        with pytest.raises(DataLoss, match=message):
            stream.trigger()
        return
    stream.drain()
    assert [offset for _, _, offset, _ in stream.rows[20:]] == rest


def test_a_replayed_batch_whose_rows_were_replaced_is_refused() -> None:
    log = log_with(20)
    stream = SimulatedQuery(log, startingOffsets="earliest")
    stream.drain()
    log.append("t", 0, 15)
    stream.trigger("log")
    log.truncate("t", 0, 30)
    log.append("t", 0, 10)
    with pytest.raises(DataLoss, match=r"t-0: rows \[30, 35\) have been truncated"):
        stream.trigger()


def test_a_new_leader_without_loss_is_no_loss() -> None:
    log = log_with(20)
    stream = SimulatedQuery(log, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    for _ in range(6):
        stream.trigger()
        log.new_leader("t", 0)
        log.append("t", 0, 5)
        stream.trigger()
        stream.start()
    stream.drain()
    assert got(stream) == expected(log)


def test_an_end_between_two_epochs_carries_the_epoch_of_its_own_rows() -> None:
    log = log_with(6)
    for _ in range(3):
        log.new_leader("t", 0, 2)
        log.append("t", 0, 6)
    stream = SimulatedQuery(log, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    stream.drain()
    ends = [json.loads(text)["topics"]["t"]["partitions"]["0"] for text in stream.offsets.values()]
    assert ends == [[4, 0], [8, 2], [12, 2], [16, 4], [20, 6], [24, 6]]


def test_the_first_batch_does_not_wait_for_rows() -> None:
    stream = SimulatedQuery(log_with(0))
    assert stream.trigger()
    assert stream.now == 0
    stream.trigger()
    assert stream.now > 0, "a broker that answers a long poll at once must not be asked in a loop"


def test_older_spark_without_a_starting_offset() -> None:
    """PySpark 4.0 and 4.1 call `latestOffset()`; after a restart no bound may then apply."""
    log = log_with(20)
    stream = SimulatedQuery(log, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    stream.start()
    planner = stream.planner
    assert planner is not None
    start = planner.initial_offset()
    end = planner.latest_offset(None, unlimited=False)
    assert [(r.start, r.end) for r in planner.ranges(start, end)] == [(0, 5)]
    later = planner.latest_offset(None, unlimited=False)
    assert [(r.start, r.end) for r in planner.ranges(end, later)] == [(5, 10)]
    log.add_partitions("t", 1)
    log.append("t", 1, 2)
    stream.start()
    planner = stream.planner
    restarted = planner.latest_offset(None, unlimited=False)
    ranges = {(r.partition, r.start, r.end) for r in planner.ranges(later, restarted)}
    assert ranges == {(0, 10, 20), (1, 0, 2)}


def test_older_spark_without_a_start_reports_the_rows_of_a_deleted_topic() -> None:
    """By their end's offset; the report named a position with its epoch."""
    log = log_with(20)
    stream = SimulatedQuery(log)
    stream.start()
    planner = stream.planner
    assert planner is not None
    end = planner.latest_offset(None, unlimited=False)
    log.delete("t")
    nowhere = {"v": 1, "topics": {}}
    with pytest.raises(DataLoss, match=r"^t-0 is gone, and its rows before 20\."):
        planner.ranges(nowhere, end)


def test_a_replayed_batch_that_was_trimmed_beyond_its_end_has_no_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = log_with(20)
    stream = SimulatedQuery(log, startingOffsets="earliest", failOnDataLoss="false")
    stream.trigger("log")
    log.append("t", 0, 15)
    log.trim("t", 0, 30)
    with caplog.at_level(logging.WARNING, "pyspark_quiverlog"):
        stream.trigger()
    assert stream.rows == []
    assert [r.getMessage() for r in caplog.records] == [
        "data loss, going on (failOnDataLoss=false): t-0: rows [0, 20) are no longer kept"
    ]
