"""Options of all commands that move partitions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

__all__ = [
    "WAIT_S_MAX",
    "moving_options",
    "node_id_type",
]

WAIT_S_MAX: Final = 30 * 86_400.0
_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
# Few digits and no exponent: `float` accepts larger numbers than any rate.
_RATE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([a-z]*)(?:/s)?", re.IGNORECASE)
_Command = TypeVar("_Command", bound=Callable[..., Any])

node_id_type: Final = click.IntRange(0, 2**31 - 1)


class _Rate(click.ParamType[int]):
    """A rate as `20MB/s`, `8MiB` or `500000` (bytes per second); `none` is 0."""

    name = "RATE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        text = str(value).strip()
        if text.lower() in ("none", "0"):
            return 0
        found = _RATE.fullmatch(text)
        factor = _UNITS.get(found[2].lower()) if found else None
        rate = int(float(found[1]) * factor) if found and factor else 0
        if rate < 1:
            self.fail(f"{text!r} is no rate, such as 20MB/s, 8MiB or none.", param, ctx)
        return rate


def moving_options(command: _Command) -> _Command:
    for option in (
        click.option(
            "--ignore-room", is_flag=True, help="Move replicas even where a disk has no room."
        ),
        click.option(
            "--wait",
            "wait_s",
            type=click.FloatRange(0, WAIT_S_MAX),
            is_flag=False,
            flag_value=WAIT_S_MAX,
            default=0.0,
            metavar="[SECONDS]",
            help="Wait until nothing moves, at most this long; exit code 1 if anything still does.",
        ),
        click.option(
            "--throttle",
            type=_Rate(),
            default="none",
            metavar="RATE",
            help="A broker copies no more in a second, e.g. 20MB/s; it ends with the move.",
        ),
        click.option("--dry-run", is_flag=True, help="Show what would move, and move nothing."),
    ):
        command = option(command)
    return command
