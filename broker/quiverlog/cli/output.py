"""What commands print: tables for people, JSON for programs.

Owns the look; knows nothing of what the values mean. JSON goes to stdout in one piece and
contains no colour; tables fall back to plain text when stdout is not a terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from quiverlog.cli.terminal import printable, unshielded

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "console",
    "counted",
    "human_bytes",
    "human_count",
    "print_fields",
    "print_json",
    "print_table",
]

_PIPE_WIDTH: Final = 1 << 20
"""A table is no wider than its cells; a line that is broken is nothing to search in."""
_BETWEEN: Final = "   "
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,;+/=()%-]*", re.ASCII).fullmatch
"""Cells without a character that rich gives a meaning to or counts otherwise."""
_STYLED: Final = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"})
"""With one of these rich may take a pipe for a terminal."""


def console(*, stderr: bool = False) -> Console:
    """A rich console. Piped output is as wide as it needs to be, so that nothing is cut."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    soft_wrap = not stream.isatty()
    return Console(file=unshielded(stream), width=width, highlight=False, soft_wrap=soft_wrap)


def print_json(value: object) -> None:
    """One JSON document on stdout, indented, with a line break at its end."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # JSON has escapes of its own
        import json

        text = json.dumps(json.loads(text), indent=2)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """A table without lines between its rows. `right` names the columns of numbers."""
    table_rows = [[_cell(value) for value in row] for row in rows]
    plain = _plain_table([_cell(name) for name in columns], table_rows, right)
    if plain is not None:
        sys.stdout.write(plain)
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(_cell(name), justify="right" if name in right else "left", overflow="fold")
    for row in table_rows:
        table.add_row(*row)
    console().print(table)


def _plain_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]
) -> str | None:
    """What rich makes of the table for a pipe, if that is plain: its import takes 30 ms."""
    has_lines = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    if sys.stdout.isatty() or not has_lines or not _STYLED.isdisjoint(os.environ):
        return None
    if not all(_PLAIN(cell) for row in (columns, *rows) for cell in row):
        return None
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    total = sum(widths) + len(_BETWEEN) * (len(widths) - 1)
    if total > _PIPE_WIDTH:
        return None
    places = [
        f"{{:{'>' if name in right else '<'}{width}}}"
        for name, width in zip(columns, widths, strict=True)
    ]
    lines = [_BETWEEN.join(places).format(*row) for row in (columns, *rows)]
    return "\n".join([lines[0], "─" * total, *lines[1:], ""])


def print_fields(fields: Mapping[str, object]) -> None:
    """One `name  value` line per field."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {_cell(value, markup=False)}")


def _cell(value: Any, *, markup: bool = True) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = printable(str(value))
    return text.replace("[", "\\[") if markup else text


def human_count(value: float) -> str:
    """`1234567` -> `1,234,567`."""
    return f"{value:,.0f}"


def counted(count: int, one: str, more: str) -> str:
    """`1 partition`, `1,234 partitions`."""
    return f"{count:,} {one if count == 1 else more}"


def human_bytes(value: float) -> str:
    """`1536` -> `1.5 KiB`."""
    if value < 1024:
        return f"{value:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            return f"{value:.1f} {unit}"
    raise AssertionError("unreachable")
