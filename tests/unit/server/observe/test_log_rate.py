"""Log lines by kind: a flood leaves few lines and a true count, other kinds are not touched."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from quiverlog.server.observe.logs import (
    CLIENT_LINES_PER_WINDOW,
    KINDS_MAX,
    LINES_PER_WINDOW,
    WINDOW_S,
    LeftOut,
    LineRate,
    LogControl,
    make_logger,
)


def test_a_flood_of_one_kind_leaves_others_alone() -> None:
    rate = LineRate()
    admitted = [rate.admit("protocol error", 1.0) for _ in range(1_000)]
    assert sum(found is not None for found in admitted) == CLIENT_LINES_PER_WINDOW
    assert rate.admit("fsync failed", 1.0) == LeftOut("fsync failed", 0)
    assert rate.admit("protocol error", 1.0 + WINDOW_S) == LeftOut("protocol error", 990)
    assert rate.left_out_total == 990


def test_the_count_is_logged_when_the_kind_has_stopped() -> None:
    rate = LineRate()
    for _ in range(LINES_PER_WINDOW + 7):
        rate.admit("topic created", 0.0)
    assert rate.ended(WINDOW_S - 0.1) == []
    assert rate.ended(WINDOW_S) == [LeftOut("topic created", 7)]
    assert rate.ended(WINDOW_S * 9) == []


def test_kinds_without_end_are_bounded() -> None:
    rate = LineRate()
    admitted = sum(rate.admit(f"kind {n}", 0.0) is not None for n in range(3 * KINDS_MAX))
    assert admitted == KINDS_MAX + LINES_PER_WINDOW


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 4)), max_size=300))
def test_every_line_is_written_or_counted_once(steps: list[tuple[str, float]]) -> None:
    rate = LineRate()
    now_s = 0.0
    written = counted = 0
    for kind, passed_s in steps:
        now_s += passed_s
        found = rate.admit(kind, now_s)
        if found is not None:
            written += 1
            counted += found.lines
    counted += sum(left.lines for left in rate.ended(now_s + WINDOW_S))
    assert written + counted == len(steps)
    assert counted == rate.left_out_total


def test_a_logger_leaves_lines_out_counts_them_and_changes_its_level() -> None:
    now_s = 0.0
    stream = io.StringIO()
    control = LogControl("info", clock_s=lambda: now_s)
    log = make_logger(level="info", format="logfmt", stream=stream, control=control)
    for number in range(50):
        log.warning("protocol error", number=number)
    assert stream.getvalue().count("\n") == CLIENT_LINES_PER_WINDOW
    now_s = WINDOW_S
    log.warning("protocol error", number=50)
    assert "left_out=40" in stream.getvalue().splitlines()[-1]
    for _ in range(12):
        log.warning("protocol error")
    now_s += WINDOW_S
    control.write_left_out(log)
    assert 'kind="protocol error" count=3' in stream.getvalue().splitlines()[-1]
    control.set_level("error")
    before = stream.getvalue()
    log.warning("fsync failed")
    assert stream.getvalue() == before
    log.error("fsync failed")
    assert stream.getvalue() != before


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    make_logger(level="info", format="logfmt", stream=Broken()).error("fsync failed")
    closed = io.StringIO()
    closed.close()
    make_logger(level="info", format="logfmt", stream=closed).error("fsync failed")


def test_what_a_client_sends_does_not_steer_the_terminal() -> None:
    stream = io.StringIO()
    make_logger(level="info", format="logfmt", stream=stream).info("x", name="a\x1b[2Jb\r\x07")
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
    assert "\\x1b" in stream.getvalue()


def test_lines_that_name_lost_rows_are_never_left_out() -> None:
    """Three hundred partitions expired, or were found torn: two hundred were not named."""
    for kind in ("retention took rows", "torn tail cut", "damaged rows found"):
        rate = LineRate()
        admitted = [rate.admit(kind, 0.0) for _ in range(10 * LINES_PER_WINDOW)]
        assert None not in admitted
        assert rate.left_out_total == 0
