"""When a connection is overdue, with a clock made of numbers."""

from __future__ import annotations

from quiverlog.server.config import load_config
from quiverlog.server.connections import ConnectionLimits, ConnectionState, overdue

LIMITS = ConnectionLimits(
    connections_max=10,
    lingering_max=1,
    idle_us=1_000,
    frame_us=100,
    write_stall_us=200,
    write_buffer_bytes=1,
    in_flight_max=1,
    frame_bytes_max=1,
)

LIMITS_BY_DEFAULT = ConnectionLimits.from_config(load_config(), connections_max=9, lingering_max=1)


def talking(now_us: int = 0) -> ConnectionState:
    """A connection whose first request was complete at `now_us`."""
    state = ConnectionState(now_us)
    state.frame_since_us = 0
    return state


def verdict(state: ConnectionState, now_us: int, sent: int = 0, waiting: int = 0) -> str | None:
    return overdue(state, LIMITS, now_us, sent=sent, waiting=waiting)


def test_one_that_never_says_anything_counts_as_a_slow_request() -> None:
    state = ConnectionState(50)
    assert verdict(state, 150) is None
    assert verdict(state, 151) == "frame"


def test_one_that_drips_a_request() -> None:
    state = talking()
    state.frame_since_us = 500
    state.last_read_us = 599  # a byte came just now: that does not help
    assert verdict(state, 600) is None
    assert verdict(state, 601) == "frame"


def test_idle_unless_something_is_in_flight() -> None:
    state = talking(7)
    assert verdict(state, 1_007) is None
    assert verdict(state, 1_008) == "idle"
    state.in_flight[1] = 99
    assert verdict(state, 1_000_000) is None


def test_a_reply_that_nobody_takes() -> None:
    state = talking()
    assert verdict(state, 10, sent=100, waiting=60) is None
    assert verdict(state, 210, sent=100, waiting=60) is None
    assert verdict(state, 211, sent=100, waiting=60) == "write"


def test_a_slow_taker_that_takes_is_left_alone() -> None:
    state = talking()
    for step in range(50):
        # More is sent while it takes, so that what waits never shrinks.
        assert verdict(state, 10 + 190 * step, sent=100 + step, waiting=60) is None
    assert verdict(state, 10 + 190 * 49 + 201, sent=149, waiting=60) == "write"


def test_stalls_do_not_add_up() -> None:
    state = talking()
    assert verdict(state, 150, sent=100, waiting=60) is None
    assert verdict(state, 300, sent=100, waiting=0) is None
    assert verdict(state, 400, sent=200, waiting=60) is None
    assert verdict(state, 600, sent=200, waiting=60) is None
    assert verdict(state, 601, sent=200, waiting=60) == "write"


def test_short_limits_are_looked_at_often() -> None:
    config = load_config(flags={"connections.frame.timeout.ms": 200})
    assert ConnectionLimits.from_config(config, connections_max=9, lingering_max=1).check_s == 0.05
    assert LIMITS_BY_DEFAULT.check_s == 1.0
