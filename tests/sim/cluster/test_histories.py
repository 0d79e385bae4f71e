"""Histories of a run, on answers that are known to be right, and on some that are wrong."""

from __future__ import annotations

import pytest

from tests.sim.bug import Bug
from tests.sim.bugs import hunt
from tests.sim.checker import Violation

from .histories import Histories, windows
from .linear import NEVER, Operation
from .planted import BUGS
from .run import simulate

KEY = (b"a topic", 0)
SEEN_BY_HISTORIES_ALONE = (
    "a new leader answers where rows end too early",
    "a decision is confirmed although its controller was deposed",
)


def rows(*batches: tuple[int, int, int], ends: tuple[tuple[int, int, int], ...]) -> Histories:
    """Batches (rows, called, returned), which lie one after the other; ends (rows, called,
    returned) that a client got.
    """
    histories = Histories()
    offset_of: dict[int, int] = {}
    for count, called_us, returned_us in batches:
        values = list(range(len(offset_of), len(offset_of) + count))
        offset_of.update({value: value for value in values})
        histories.sent(KEY, values, called_us)
        if returned_us != NEVER:
            histories.acknowledged(KEY, values[0], returned_us)
    for offset, called_us, returned_us in ends:
        histories.end(KEY, offset, called_us, returned_us)
    histories.check_log(KEY, "rows", offset_of)
    return histories


@pytest.mark.parametrize(
    "ends",
    [
        (),
        ((0, 0, 9), (2, 25, 26), (5, 60, 70)),
        ((2, 15, 16), (0, 14, 17)),
        ((5, 45, 46), (2, 31, 44)),
    ],
    ids=["none", "in order", "side by side", "shown before the answer"],
)
def test_ends_that_are_right(ends: tuple[tuple[int, int, int], ...]) -> None:
    histories = rows((2, 10, 20), (3, 30, 50), ends=ends)
    assert histories.judged > 0
    assert histories.too_long == 0


@pytest.mark.parametrize(
    "ends",
    [
        ((0, 21, 22),),
        ((2, 8, 9),),
        ((5, 35, 36), (2, 37, 38)),
        ((1, 25, 26),),
        ((5, 40, 41), (2, 60, 61)),
    ],
    ids=["stale", "early", "back again", "half a batch", "a deposed leader"],
)
def test_ends_that_are_wrong(ends: tuple[tuple[int, int, int], ...]) -> None:
    with pytest.raises(Violation, match="no order explains"):
        rows((2, 10, 20), (3, 30, 50), ends=ends)


def test_rows_without_an_answer_may_come_at_any_time_after_they_were_sent() -> None:
    rows((2, 10, NEVER), (3, 30, 50), ends=((0, 25, 26), (2, 35, 36), (5, 60, 61)))
    with pytest.raises(Violation):
        rows((2, 10, NEVER), (3, 30, 50), ends=((2, 8, 9),))


def test_unrecorded_rows_may_have_come_at_any_time() -> None:
    histories = Histories()
    histories.sent(KEY, [7, 8], 10)
    histories.acknowledged(KEY, 7, 20)
    for offset, called_us in ((0, 1), (1, 3), (3, 5), (5, 25)):
        histories.end(KEY, offset, called_us, called_us + 1)
    histories.check_log(KEY, "rows", {7: 3, 8: 4})
    histories.end(KEY, 3, 30, 31)
    with pytest.raises(Violation):
        histories.check_log(KEY, "rows", {7: 3, 8: 4})


def test_a_fault_that_may_take_rows_ends_a_history() -> None:
    histories = Histories()
    histories.end(KEY, 5, 0, 1)
    histories.end(KEY, 0, 2, 3)
    histories.forgive(KEY)
    histories.check_log(KEY, "rows", {})
    assert histories.judged == 0


def named(*operations: tuple[str, int | None, object, int, int]) -> None:
    histories = Histories()
    for one in operations:
        histories.name("t", Operation(*one))
    histories.check_names()


def test_a_name_that_is_created_and_deleted() -> None:
    named(
        ("create", None, "done", 0, 1),
        ("create", None, "refused", 2, 3),
        ("read", 5, True, 4, 5),
        ("alter", None, "done", 6, 7),
        ("delete", None, None, 8, NEVER),
        ("alter", None, "refused", 9, 10),
        ("read", 9, False, 10, 11),
        ("create", None, "done", 12, 13),
    )


@pytest.mark.parametrize(
    "last",
    [
        ("delete", None, "refused", 8, 9),
        ("create", None, "done", 8, 9),
        ("alter", None, "refused", 8, 9),
        ("read", 7, False, 8, 9),
        ("read", 4, True, 8, 9),
    ],
    ids=["lost", "created twice", "not altered", "not read", "an older version"],
)
def test_a_name_that_is_not_what_was_confirmed(
    last: tuple[str, int | None, object, int, int],
) -> None:
    with pytest.raises(Violation, match="topic t: no order"):
        named(("create", None, "done", 0, 1), ("read", 5, True, 4, 5), last)


def test_windows_end_where_nothing_is_under_way() -> None:
    history = [Operation("end", None, 0, called, called + 5) for called in (0, 3, 20, 22, 30)]
    assert [len(piece) for piece in windows(history)] == [2, 2, 1]


@pytest.mark.parametrize("name", SEEN_BY_HISTORIES_ALONE)
def test_what_only_histories_show(name: str) -> None:
    """The same seed passes when histories are not judged."""
    bug: Bug = next(bug for bug in BUGS if bug.name == name)
    caught = hunt(bug, seeds=range(8), duration_ms=6_000, run=simulate)
    assert caught.seed is not None
    assert "no order explains" in caught.report
    silent = {**dict(bug.shape), "judged": False}
    simulate(caught.seed, duration_ms=6_000, plant=bug.plant, shape=silent)
