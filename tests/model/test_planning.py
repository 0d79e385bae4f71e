"""Properties of the planner: what is admitted, and how ranges are split into Spark tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_quiverlog.planning.ranges import (
    Backlog,
    Range,
    admit_bytes,
    admit_rows,
    enough_rows,
    share_bytes,
    split_ranges,
)


@st.composite
def backlog_lists(draw: st.DrawFn, rows_max: int = 10_000) -> list[Backlog]:
    rows = draw(st.lists(st.integers(0, rows_max), min_size=1, max_size=20))
    starts = draw(st.lists(st.integers(0, 10**12), min_size=len(rows), max_size=len(rows)))
    return [
        Backlog(("t", i), start, start + n)
        for i, (start, n) in enumerate(zip(starts, rows, strict=True))
    ]


def taken(backlogs: list[Backlog], ends: dict[tuple[str, int], int]) -> list[int]:
    return [ends[b.key] - b.start for b in backlogs]


@given(backlog_lists(), st.integers(1, 100_000))
def test_admission_by_rows_is_exact_and_stays_within_what_waits(
    backlogs: list[Backlog], rows_max: int
) -> None:
    rows = taken(backlogs, admit_rows(backlogs, rows_max))
    assert sum(rows) == min(rows_max, sum(b.rows for b in backlogs))
    assert all(0 <= n <= b.rows for n, b in zip(rows, backlogs, strict=True))


@given(backlog_lists(), st.integers(20, 100_000))
def test_no_partition_with_rows_goes_without_while_there_are_enough(
    backlogs: list[Backlog], rows_max: int
) -> None:
    rows = taken(backlogs, admit_rows(backlogs, rows_max))
    assert all(n >= 1 for n, b in zip(rows, backlogs, strict=True) if b.rows)


@given(backlog_lists(rows_max=1_000_000), st.integers(20, 100_000))
def test_shares_are_in_proportion(backlogs: list[Backlog], rows_max: int) -> None:
    waiting = sum(b.rows for b in backlogs)
    if waiting <= rows_max:
        return
    rows = taken(backlogs, admit_rows(backlogs, rows_max))
    for n, backlog in zip(rows, backlogs, strict=True):
        fair = backlog.rows * rows_max / waiting
        assert fair - len(backlogs) - 1 < n < fair + 2


@given(st.integers(2, 12), st.integers(1, 12), st.integers(0, 11))
def test_with_fewer_rows_than_partitions_no_partition_starves(
    partitions: int, rows_max: int, rich: int
) -> None:
    """The rich partition grows for ever; each of the others has one row, once."""
    rich %= partitions
    positions = [0] * partitions
    for _ in range(60 * partitions):
        backlogs = [
            Backlog(("t", i), position, position + 10_000 if i == rich else 1)
            for i, position in enumerate(positions)
        ]
        ends = admit_rows(backlogs, rows_max)
        positions = [ends["t", i] for i in range(partitions)]
        if all(positions):
            return
    pytest.fail(f"starved: {positions}")


def test_a_log_that_went_backwards_admits_nothing_and_never_steps_back() -> None:
    backlogs = [Backlog(("t", 0), 10, 4), Backlog(("t", 1), 0, 100)]
    assert admit_rows(backlogs, 5) == {("t", 0): 10, ("t", 1): 5}
    assert admit_rows(backlogs, None) == {("t", 0): 10, ("t", 1): 100}


@given(backlog_lists(), st.integers(1, 50), st.integers(1, 300), st.integers(1, 500_000))
def test_admission_by_bytes(
    backlogs: list[Backlog], row_bytes: int, batch_rows: int, bytes_max: int
) -> None:
    """Against a log whose batches hold `batch_rows` rows of `row_bytes` each."""
    sizes = {b.key: b.rows * row_bytes for b in backlogs}
    shares = share_bytes(backlogs, sizes, bytes_max)
    assert sum(shares.values()) <= bytes_max
    reached = {}
    for backlog in backlogs:
        if backlog.key in shares:
            rows = max(batch_rows, shares[backlog.key] // row_bytes // batch_rows * batch_rows)
            rows = min(rows, backlog.rows)
            reached[backlog.key] = (backlog.start + rows, rows * row_bytes)
    ends = admit_bytes(backlogs, reached, bytes_max)
    rows_taken = taken(backlogs, ends)
    assert all(0 <= n <= b.rows for n, b in zip(rows_taken, backlogs, strict=True))
    served = [n for n in rows_taken if n]
    assert sum(served) * row_bytes <= bytes_max or len(served) == 1
    if any(b.rows for b in backlogs):
        assert served, "something is always admitted, or the query would stand still"


@st.composite
def range_lists(draw: st.DrawFn) -> list[Range]:
    return [
        Range("t", "00" * 16, i, b.start, b.end, 3) for i, b in enumerate(draw(backlog_lists()))
    ]


bounds = st.one_of(st.none(), st.integers(1, 3_000))


@given(range_lists(), bounds, bounds, st.integers(0, 2_000))
def test_a_split_keeps_every_row_once_and_in_order(
    ranges: list[Range], tasks_min: int | None, rows_max: int | None, rows_min: int
) -> None:
    tasks = split_ranges(ranges, tasks_min=tasks_min, rows_max=rows_max, rows_min=rows_min)
    pieces = [piece for task in tasks for piece in task]
    assert all(piece.rows > 0 for piece in pieces)
    for whole in ranges:
        position = whole.start
        for piece in pieces:
            if piece.partition == whole.partition:
                assert piece.start == position
                assert piece.epoch == (3 if position == whole.start else -1)
                position = piece.end
        assert position == whole.end


@given(range_lists(), bounds, bounds, st.integers(0, 2_000))
def test_a_split_keeps_its_bounds(
    ranges: list[Range], tasks_min: int | None, rows_max: int | None, rows_min: int
) -> None:
    tasks = split_ranges(ranges, tasks_min=tasks_min, rows_max=rows_max, rows_min=rows_min)
    rows = sum(r.rows for r in ranges)
    if rows_max is not None:
        assert all(sum(p.rows for p in task) <= rows_max for task in tasks)
    assert len(tasks) >= min(tasks_min or 0, rows)
    for task in tasks:
        assert len(task) == 1 or sum(p.rows for p in task) <= rows_min


@given(range_lists())
def test_without_bounds_each_partition_is_a_task(ranges: list[Range]) -> None:
    assert split_ranges(ranges) == [[r] for r in ranges if r.rows]


@pytest.mark.parametrize(
    ("sizes", "kwargs", "expected"),
    [
        ([10], {"tasks_min": 3}, [[3], [3], [4]]),
        ([90, 10], {"tasks_min": 4}, [[30], [30], [30], [10]]),
        ([5, 5, 5], {"rows_min": 10}, [[5, 5], [5]]),
        ([5, 100, 5], {"rows_min": 10}, [[5], [100], [5]]),
        ([5, 5, 5], {"rows_min": 10, "tasks_min": 3}, [[5], [5], [5]]),
        ([100], {"rows_max": 40}, [[33], [33], [34]]),
        ([1], {"tasks_min": 8}, [[1]]),
        ([0, 0], {"tasks_min": 8}, []),
        ([3, 3], {"rows_max": 4, "rows_min": 100}, [[3], [3]]),
    ],
)
def test_splits_by_example(
    sizes: list[int], kwargs: dict[str, int], expected: list[list[int]]
) -> None:
    ranges = [Range("t", "00" * 16, i, 100, 100 + n, -1) for i, n in enumerate(sizes)]
    tasks = split_ranges(ranges, **kwargs)
    assert [[p.rows for p in task] for task in tasks] == expected


@pytest.mark.parametrize(
    ("rows", "rows_min", "waited", "expected"),
    [
        (0, None, 0, True),
        (5, 10, 1, False),
        (10, 10, 0, True),
        (5, 10, 60, True),
        (0, 10, 60, False),
    ],
)
def test_minimum_rows_wait_no_longer_than_the_delay(
    rows: int, rows_min: int | None, waited: float, expected: bool
) -> None:
    assert enough_rows(rows, rows_min, waited, 60) is expected
