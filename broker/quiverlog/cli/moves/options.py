"""Options of all commands that move partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from quiverlog.cli.console.options import Rate

__all__ = [
    "WAIT_S_MAX",
    "moving_options",
    "node_id_type",
]

WAIT_S_MAX: Final = 30 * 86_400.0
_Command = TypeVar("_Command", bound=Callable[..., Any])

node_id_type: Final = click.IntRange(0, 2**31 - 1)


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
            type=Rate(),
            default="none",
            metavar="RATE",
            help="A broker copies no more in a second, e.g. 20MB/s; it ends with the move.",
        ),
        click.option("--dry-run", is_flag=True, help="Show what would move, and move nothing."),
    ):
        command = option(command)
    return command
