"""Where a query starts and a batch ends, by the options, at a simulated log."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_quiverlog.batch_reader import batch_ranges
from pyspark_quiverlog.options import Use, parse_read_options
from pyspark_quiverlog.planning.bounds import starting
from pyspark_quiverlog.planning.log_view import LogView
from quiverlog.errors import DataLoss, InvalidOption
from tests.support.simlog import SimLog

LONG_MAX = 2**63 - 1


def log() -> SimLog:
    simulated = SimLog()
    simulated.create("t", 2)
    simulated.append("t", 0, 10)
    simulated.append("t", 1, 4)
    return simulated


def view(simulated: SimLog, use: Use, **options: str) -> LogView:
    raw = {"bootstrap.servers": "sim:1", "subscribe": "t"} | options
    if "subscribePattern" in options:
        del raw["subscribe"]
    opened = LogView(simulated, parse_read_options(raw, use))
    opened.refresh(required=True)
    return opened


def batch(simulated: SimLog, **options: str) -> list[tuple[int, int, int]]:
    ranges = batch_ranges(view(simulated, Use.BATCH_READ, **options))
    return [(r.partition, r.start, r.end) for r in ranges]


def starts(simulated: SimLog, **options: str) -> dict[str, int]:
    found = starting(view(simulated, Use.STREAM_READ, **options), Use.STREAM_READ)
    return {str(where): position.offset for where, position in found.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", {"t-0": 0, "t-1": 0}),
        ("latest", {"t-0": 10, "t-1": 4}),
        ('{"t":"earliest"}', {"t-0": 0, "t-1": 0}),
        ('{"t":"Latest"}', {"t-0": 10, "t-1": 4}),
        ('{"t":{"0":-2,"1":-1}}', {"t-0": 0, "t-1": 4}),
        ('{"t":{"0":7,"1":4}}', {"t-0": 7, "t-1": 4}),
    ],
)
def test_starts_by_topic_and_partition(text: str, expected: dict[str, int]) -> None:
    assert starts(log(), startingOffsets=text) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"t":{"0":1}}'}, "`startingOffsets` has no entry for t-1"),
        ({"startingOffsets": '{"t":{"0":1,"1":1,"2":1}}'}, "`startingOffsets` names t-2"),
        ({"startingOffsets": '{"t":{"0":11,"1":0}}'}, "ends at 10, so it has no offset 11"),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":1}}'},
            "`startingOffsetsByTimestamp` has no entry for t-1",
        ),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":1,"1":1,"7":1}}'},
            "`startingOffsetsByTimestamp` names t-7",
        ),
        ({"startingTimestamp": str(LONG_MAX)}, "`startingTimestamp`: t-0 has no row at or after"),
        (
            {"startingOffsetsByTimestamp": f'{{"t":{{"0":{LONG_MAX},"1":{LONG_MAX}}}}}'},
            "`startingOffsetsByTimestamp`: t-0 has no row at or after",
        ),
    ],
)
def test_what_the_log_cannot_give_is_refused_by_the_options_own_name(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        starts(log(), **options)


def test_ending_options_are_named_too() -> None:
    with pytest.raises(InvalidOption, match="`endingOffsetsByTimestamp` names t-7"):
        batch(log(), endingOffsetsByTimestamp='{"t":{"0":1,"1":1,"7":1}}')


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"t":{"0":7,"1":0}}', "endingOffsets": '{"t":{"0":5,"1":4}}'},
        {
            "startingTimestamp": "9",
            "startingOffsetsByTimestampStrategy": "latest",
            "endingOffsets": '{"t":{"0":5,"1":4}}',
        },
    ],
)
def test_a_batch_whose_start_lies_above_its_end_is_refused(options: dict[str, str]) -> None:
    """Such a batch answered no rows and no error."""
    with pytest.raises(InvalidOption, match=r"t-0: the batch starts at .*, above its end 5"):
        batch(log(), **options)


def test_a_batch_reads_up_to_its_ends() -> None:
    simulated = log()
    assert batch(simulated) == [(0, 0, 10), (1, 0, 4)]
    assert batch(simulated, endingOffsets='{"t":"latest"}') == [(0, 0, 10), (1, 0, 4)]
    assert batch(simulated, endingTimestamp=str(LONG_MAX)) == [(0, 0, 10), (1, 0, 4)]
    assert batch(simulated, endingOffsets='{"t":{"0":3,"1":-1}}') == [(0, 0, 3), (1, 0, 4)]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_batch_whose_rows_are_trimmed_while_it_is_planned(fail: str) -> None:
    """Between the look at the start and the look at the first row, also above the end."""
    simulated = log()
    simulated.trim("t", 0, 8)
    options = {
        "startingOffsets": '{"t":{"0":2,"1":0}}',
        "endingOffsets": '{"t":{"0":5,"1":4}}',
        "failOnDataLoss": fail,
    }
    if fail == "true":
        with pytest.raises(DataLoss, match=r"t-0: rows \[2, 8\) are no longer kept"):
            batch(simulated, **options)
    else:
        assert batch(simulated, **options) == [(0, 8, 8), (1, 0, 4)]


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("at_request", range(1, 7))
def test_a_batch_whose_topic_is_deleted_while_it_is_planned(at_request: int, fail: str) -> None:
    """At whichever request: its rows were to be read, and are not left out in silence."""
    simulated = log()
    simulated.create("u", 1)
    opened = view(simulated, Use.BATCH_READ, subscribePattern=".*", failOnDataLoss=fail)
    left = [at_request]

    def between() -> None:
        left[0] -= 1
        if left[0] == 0:
            simulated.delete("t")

    simulated.between = between
    if fail == "true" and at_request <= 3:  # the starts, the ends, the first rows
        with pytest.raises(DataLoss, match="topic 't' was deleted: partition 0"):
            batch_ranges(opened)
    else:
        # Deleted after the plan, the topic is missed by the tasks that read it.
        planned = {r.topic for r in batch_ranges(opened)}
        assert planned == ({"u"} if at_request <= 3 else {"t", "u"})


@pytest.mark.parametrize("at_request", range(1, 7))
@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "earliest"},
        {"startingOffsets": "latest"},
        {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsets": '{"t":{"0":-2,"1":-1},"u":{"0":-2}}'},
    ],
    ids=str,
)
def test_a_topic_that_goes_at_any_look_is_left_out(
    options: dict[str, str], at_request: int, comes_back: bool
) -> None:
    simulated = log()
    simulated.create("u", 1)
    opened: Any = view(simulated, Use.STREAM_READ, subscribePattern=".*", **options)
    left = [at_request]

    def between() -> None:
        left[0] -= 1
        if left[0] == 0:
            simulated.delete("t")
            if comes_back:
                simulated.create("t", 1)

    simulated.between = between
    found = starting(opened, Use.STREAM_READ)
    assert {w.topic for w in found} <= {"t", "u"}
    assert any(w.topic == "u" for w in found)
