"""Moments between programs and the wire: exact to the microsecond, in every century."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import hypothesis.strategies as st
import pandas
from hypothesis import example, given

from quiverlog.client.base.results import moment
from quiverlog.client.cluster.partition_questions import at_us
from quiverlog.wire.messages import MOMENT_US_MAX


@given(st.integers(min_value=0, max_value=MOMENT_US_MAX))
@example(1_075_991_436_519_107)
def test_moments_are_exact(us: int) -> None:
    """One moment in eighty was sent as the next microsecond: its rows were skipped."""
    at = moment(us)
    assert at - datetime(1970, 1, 1, tzinfo=UTC) == timedelta(microseconds=us)
    assert at_us(at) == us
    if us > 86_400_000_000:
        assert at_us(at.astimezone(timezone(timedelta(hours=-5, minutes=-30)))) == us


def test_nanoseconds_are_rounded_up() -> None:
    at = pandas.Timestamp("2024-05-06 07:08:09.123456", tz="UTC")
    whole_us = at.value // 1000
    assert at_us(at) == whole_us
    assert at_us(at + pandas.Timedelta(1, "ns")) == whole_us + 1


def test_before_1970_is_the_beginning() -> None:
    assert at_us(datetime(1969, 12, 31, tzinfo=UTC)) == 0
