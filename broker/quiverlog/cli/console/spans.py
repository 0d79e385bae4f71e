"""Spans of time on the command line: `2s`, `1m 30s`, `500ms`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import click

from quiverlog.cli.console.options import SECONDS_MAX

__all__ = ["SPAN", "Span", "total", "watch_option"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "sec": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_DIGITS_MAX: Final = 9
SPAN: Final = re.compile(r"(\d{1,9})\s*(ms|sec|min|s|m|h|d|w)", re.ASCII)


def total(word: str) -> timedelta:
    """Return the sum of the spans in a text of small letters."""
    spans = SPAN.findall(word)
    return sum((int(count) * _UNITS[unit] for count, unit in spans), timedelta())


class Span(click.ParamType[float]):
    """A time span (`2s`, `1m 30s`, `500ms`) or a number of seconds, as seconds."""

    name = "span"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        word = str(value).strip().lower()
        found = total(word).total_seconds() if not SPAN.sub("", word).strip() else None
        if word.isascii() and word.isdigit() and len(word) <= _DIGITS_MAX:
            found = float(word)
        if not found or found > SECONDS_MAX:
            self.fail(f"{value!r} is no time span: write 2s, 1m or 500ms.", param, ctx)
        return found


def watch_option(command: _Command) -> _Command:
    return click.option(
        "--watch",
        type=Span(),
        is_flag=False,
        flag_value="2s",
        metavar="[SPAN]",
        help="Ask again after this time (2s if it is left out; 1m, 500ms), until Ctrl-C.",
    )(command)
