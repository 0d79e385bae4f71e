"""The checks of tests under load find lost, doubled and disordered rows."""

from __future__ import annotations

from tests.support.row_places import Place, Row, disorder, misfits

ROWS: dict[Place, Row] = {
    (0, 0): ("busy", 0),
    (0, 1): ("busy", 1),
    (0, 2): ("patient", 0),
    (1, 0): ("busy", 2),
    (1, 1): ("patient", 1),
}


def test_what_was_acknowledged_and_is_there_once_is_right() -> None:
    assert misfits(ROWS, reversed(ROWS.items())) == []
    assert disorder(ROWS) == []


def test_lost_rows_side_by_side_are_reported_as_one() -> None:
    found = {place: row for place, row in ROWS.items() if place not in {(0, 0), (0, 1), (1, 1)}}
    assert misfits(ROWS, found.items()) == [
        "lost: partition 0, offsets 0-1: busy 0-1",
        "lost: partition 1, offsets 1-1: patient 1-1",
    ]


def test_a_row_that_is_found_twice() -> None:
    """At its own place, as by a reader that repeats, or at another, as by a broker that does."""
    again: list[tuple[Place, Row]] = [((1, 1), ("patient", 1))]
    assert misfits(ROWS, [*ROWS.items(), *again]) == [
        "found twice: partition 1, offsets 1-1: patient 1-1"
    ]
    elsewhere: list[tuple[Place, Row]] = [((1, 2), ("patient", 1))]
    assert misfits(ROWS, [*ROWS.items(), *elsewhere]) == [
        "never acknowledged: partition 1, offsets 2-2: patient 1-1"
    ]


def test_two_rows_that_have_changed_places() -> None:
    assert misfits(ROWS, (ROWS | {(0, 0): ("busy", 1), (0, 1): ("busy", 0)}).items()) == [
        "not the acknowledged: partition 0, offsets 0-0: busy 1-1",
        "not the acknowledged: partition 0, offsets 1-1: busy 0-0",
    ]


def test_rows_that_were_acknowledged_in_another_order() -> None:
    assert disorder(ROWS | {(0, 3): ("busy", 0)}) == ["busy 0 at 0/3 comes after 1"]
