"""The words of `--from` and `--to`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from quiverlog.cli.where_to_read import parse_point

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0=5", {0: 5}),
        ("17", 17),
        ("-1h", NOON - timedelta(hours=1)),
        ("2h ago", NOON - timedelta(hours=2)),
        ("1d 12h ago", NOON - timedelta(hours=36)),
        ("-90s", NOON - timedelta(seconds=90)),
        ("-500ms", NOON - timedelta(milliseconds=500)),
        ("0=5, 12=0", {0: 5, 12: 0}),
        ("2024-05-06", datetime(2024, 5, 6, tzinfo=UTC)),
        ("2024-05-06T07:08:09Z", datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
        (
            "2024-05-06T07:08:09+02:00",
            datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone(timedelta(hours=2))),
        ),
    ],
)
def test_where_to_begin(text, start):
    assert parse_point(text, "--from", now=NOON) == start


@pytest.mark.parametrize(
    "text",
    ["", "first", "0=", "=5", "0=5,1", "-1=5", "0=-5", "٣=1", "-5", "1h", "-1h ago", "-999999999w"],
)
def test_where_not_to_begin(text):
    with pytest.raises(click.BadParameter):
        parse_point(text, "--from")
