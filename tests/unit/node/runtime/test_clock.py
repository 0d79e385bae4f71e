"""Retention and a wall clock that is wrong: what vouches for it, and for how long it is doubted."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.node.runtime.events import Tick
from quiverlog.storage.directory.data_directory import ClockNote
from quiverlog.types import EARLIEST
from tests.support.node import NodeDriver, batch_of

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path, retention_check_ms=5_000)


def set_ahead(node: NodeDriver, ms: int) -> None:
    node.wall_us += ms * 1000


def put(node: NodeDriver, topic: bytes, rows: int = 10) -> None:
    node.produced(topic, batch_of([1] * rows, at_us=node.wall_us))


def pass_time(node: NodeDriver, ms: int) -> None:
    """Time passes, and no flush is left undone."""
    node.advance(ms)
    while node.syncs:
        node.flush()


def start_of(node: NodeDriver, topic: bytes) -> int:
    return int(node.offset_of(topic, EARLIEST).offset)


@pytest.mark.parametrize("how", ["crash", "restart"])
@pytest.mark.parametrize("off_ms", [0, DAY_MS])
def test_a_row_of_a_clock_that_is_ahead_does_not_vouch_for_it(
    node: NodeDriver, how: str, off_ms: int
) -> None:
    topic = node.create(retention_ms=str(7 * DAY_MS))
    put(node, topic)
    pass_time(node, 15_000)
    set_ahead(node, 8 * DAY_MS)
    put(node, topic, rows=1)
    set_ahead(node, off_ms)
    getattr(node, how)()
    put(node, topic, rows=1)
    getattr(node, how)()
    pass_time(node, 59 * 60_000)
    assert start_of(node, topic) == 0
    # After an hour of the monotonic clock it was right after all.
    pass_time(node, 2 * 60_000)
    assert start_of(node, topic) == 10


def test_a_clock_that_is_doubted_and_jumps_again_is_doubted_for_another_hour(
    node: NodeDriver,
) -> None:
    topic = node.create(retention_ms=str(7 * DAY_MS))
    put(node, topic)
    node.restart()
    pass_time(node, 15_000)
    set_ahead(node, HOUR_MS)  # As one that was an hour behind, and is set right.
    pass_time(node, 50 * 60_000)
    set_ahead(node, 8 * DAY_MS)
    pass_time(node, 59 * 60_000)
    assert start_of(node, topic) == 0
    pass_time(node, 2 * 60_000)
    assert start_of(node, topic) == 10


def test_a_doubted_clock_that_goes_part_of_the_way_back_waits_no_longer(node: NodeDriver) -> None:
    topic = node.create(retention_ms=str(DAY_MS))
    put(node, topic)
    node.restart()
    pass_time(node, 15_000)
    set_ahead(node, 8 * DAY_MS)
    pass_time(node, 30 * 60_000)
    set_ahead(node, -4 * DAY_MS)
    pass_time(node, 28 * 60_000)
    assert start_of(node, topic) == 0
    pass_time(node, 3 * 60_000)
    assert start_of(node, topic) == 10


@pytest.mark.parametrize(
    ("how", "after_ms"),
    [
        ("crash", 2 * HOUR_MS),
        pytest.param("", 5 * 60_000, marks=pytest.mark.long),
        pytest.param("restart", 5 * 60_000, marks=pytest.mark.long),
        pytest.param("", 2 * HOUR_MS, marks=pytest.mark.long),
        pytest.param("crash", 5 * 60_000, marks=pytest.mark.long),
        pytest.param("restart", 2 * HOUR_MS, marks=pytest.mark.long),
    ],
)
def test_rows_of_a_clock_that_was_behind_are_kept_from_their_arrival(
    node: NodeDriver, how: str, after_ms: int
) -> None:
    """A machine that boots in 1970 and asks a time server a minute later: what it was sent
    meanwhile by its own programs is as old as the minute, not as 56 years."""
    node.wall_us -= node.wall_us - HOUR_MS * 1000
    topic = node.create(retention_ms=str(DAY_MS))
    put(node, topic)
    pass_time(node, 60_000)
    set_ahead(node, 20_000 * DAY_MS)
    pass_time(node, after_ms)
    if how:
        getattr(node, how)()
    put(node, topic, rows=1)
    pass_time(node, 20 * HOUR_MS)
    assert start_of(node, topic) == 0
    pass_time(node, 5 * HOUR_MS)
    assert start_of(node, topic) == 11


@pytest.mark.parametrize("days", [8, -8])
def test_a_wrong_clock_forgets_no_producers(node: NodeDriver, days: int) -> None:
    """Nor does it once it is believed: a producer that wrote an hour ago was not silent for a
    day."""
    topic = node.create()
    node.produced(topic, batch_of([1], at_us=node.wall_us, producer=(5, 0, 0)))
    pass_time(node, 15_000)
    set_ahead(node, days * DAY_MS)
    pass_time(node, 2 * HOUR_MS)
    replica = next(iter(node.node.broker.replicas.values()))
    assert len(replica.producers) == 1
    node.produced(topic, batch_of([1], at_us=node.wall_us, producer=(5, 0, 1)))
    pass_time(node, DAY_MS + HOUR_MS)
    assert len(replica.producers) == 0, "silent for a day by the monotonic clock"


def test_rows_do_not_vouch_for_a_clock_that_jumps_while_the_broker_runs(node: NodeDriver) -> None:
    topic = node.create(retention_ms=str(7 * DAY_MS))
    put(node, topic)
    pass_time(node, 15_000)
    set_ahead(node, 8 * DAY_MS)
    for _ in range(58):
        put(node, topic, rows=1)
        pass_time(node, 60_000)
    assert start_of(node, topic) == 0
    set_ahead(node, -8 * DAY_MS)
    pass_time(node, 2 * HOUR_MS)
    assert start_of(node, topic) == 0


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_after_a_weekend_rows_go_an_hour_after_the_start(node: NodeDriver, how: str) -> None:
    topic = node.create(retention_ms=str(DAY_MS))
    put(node, topic)
    pass_time(node, 15_000)
    node.stop()
    set_ahead(node, 60 * HOUR_MS)
    node.start()
    put(node, topic)  # Rows of Monday change nothing.
    pass_time(node, 59 * 60_000)
    assert start_of(node, topic) == 0
    pass_time(node, 2 * 60_000)
    assert start_of(node, topic) == 10
    # From then on a restart waits for nothing.
    getattr(node, how)()
    pass_time(node, DAY_MS)
    assert start_of(node, topic) == 20
    assert len([line for line in node.lines if "far ahead" in line.event]) == 1


def test_an_idle_broker_that_runs_deletes_in_time(node: NodeDriver) -> None:
    topic = node.create(retention_ms=str(DAY_MS))
    put(node, topic)
    pass_time(node, 3 * DAY_MS)
    assert start_of(node, topic) == 10
    assert not [line for line in node.lines if line.level == "warning"]


@pytest.mark.parametrize("note", [None, b"", b"damaged", bytes(28)])
def test_without_a_note_retention_by_time_waits_an_hour(
    node: NodeDriver, note: bytes | None
) -> None:
    """As where the note was lost or damaged."""
    topic = node.create(retention_ms="60000")
    put(node, topic)
    node.stop()
    path = Path(node.config.data_dir) / "clock"
    path.unlink()
    if note is not None:
        path.write_bytes(note)
    set_ahead(node, 5 * 60_000)
    node.start()
    pass_time(node, 59 * 60_000)
    assert start_of(node, topic) == 0
    pass_time(node, 2 * 60_000)
    assert start_of(node, topic) == 10
    assert len([line for line in node.lines if "no note confirms" in line.event]) == 1


@pytest.mark.parametrize("how", ["crash", "restart"])
@pytest.mark.parametrize("weekend", [False, True])
def test_the_hour_goes_on_over_restarts(node: NodeDriver, weekend: bool, how: str) -> None:
    """A broker that is restarted every twenty minutes deletes by time in the end."""
    topic = node.create(retention_ms=str(DAY_MS))
    put(node, topic)
    node.stop()
    if not weekend:
        (Path(node.config.data_dir) / "clock").unlink()
    set_ahead(node, 60 * HOUR_MS)
    node.start()
    for life in range(3):
        assert start_of(node, topic) == 0
        pass_time(node, 19 * 60_000)
        if how == "restart":
            node.stop()
        set_ahead(node, 60_000 if life else 30 * 60_000)  # It is down for this long.
        if how == "restart":
            node.start()
        else:
            node.crash()
    assert start_of(node, topic) == 0
    pass_time(node, 6 * 60_000)
    assert start_of(node, topic) == 10
    lines = [line for line in node.lines if "retention by time waits" in line.event]
    assert len({line.event for line in lines}) == 1, "what it began without stays as it is"
    left_ms = [line.fields["left_ms"] for line in lines]
    assert left_ms == sorted(left_ms, reverse=True)
    assert left_ms[-1] <= 6 * 60_000
    years = 10 * 365 * DAY_MS
    assert all(ms < years for line in lines for ms in line.fields.values())


def test_another_clock_than_the_doubted_one_begins_the_hour_anew(node: NodeDriver) -> None:
    topic = node.create(retention_ms=str(DAY_MS))
    put(node, topic)
    node.stop()
    set_ahead(node, 60 * HOUR_MS)
    node.start()
    pass_time(node, 50 * 60_000)
    set_ahead(node, 2 * HOUR_MS)
    node.restart()
    pass_time(node, 59 * 60_000)
    assert start_of(node, topic) == 0
    pass_time(node, 2 * 60_000)
    assert start_of(node, topic) == 10


def test_the_note_is_written_now_and_then_and_follows_what_is_believed(node: NodeDriver) -> None:
    directory = node.node.broker.directory
    began_us = node.wall_us
    assert directory.noted_clock() == ClockNote(began_us)
    node.advance(HOUR_MS)
    noted = directory.noted_clock()
    assert noted is not None
    assert node.wall_us - 10 * 60_000_000 <= noted.believed_us <= node.wall_us
    set_ahead(node, 8 * DAY_MS)
    node.advance(30 * 60_000)
    node.send(Tick())
    noted = directory.noted_clock()
    assert noted is not None
    assert noted.believed_us <= began_us + 2 * HOUR_MS * 1000, "not the clock that is doubted"


def test_a_note_that_cannot_be_written_is_logged_and_fails_no_request(node: NodeDriver) -> None:
    topic = node.create()
    path = Path(node.config.data_dir) / "clock.tmp"
    path.mkdir()
    node.advance(HOUR_MS)
    assert any(line.event == "clock not noted" for line in node.lines)
    put(node, topic)
    path.rmdir()
    node.lines.clear()
    node.advance(HOUR_MS)
    assert not any(line.event == "clock not noted" for line in node.lines)
