"""The words of `--from` and `--to`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from quiverlog.cli.formats.output_file import output_kind
from quiverlog.cli.rows.read_range import parse_point

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
        ("2147483647=0,2147483648=1", {2147483647: 0, 2147483648: 1}),
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


@pytest.mark.parametrize(
    "offset", ["start", "End", "stored", "0", "17", "-2", "+5", "5:10", "@0:10", "s@1700000000000"]
)
def test_what_is_advised_in_place_of_an_offset_is_taken(offset: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        output_kind(offset, None, reads_offsets=True)
    message = caught.value.message
    advised = [one.rstrip(".") for one in re.findall(r"--from ([^\s,]+)", message)]
    assert advised
    for one in advised:
        parse_point(one, "--from")
    assert output_kind(f"./{offset}", "csv", reads_offsets=True).format == "csv"
    assert f"./{offset}, with --format" in message
