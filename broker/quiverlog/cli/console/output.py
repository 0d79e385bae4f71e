"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from quiverlog.cli.console.terminal import printable, unshielded
from quiverlog.client.base.arguments import counted

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "console",
    "counted",
    "human_bytes",
    "human_count",
    "join",
    "print_change",
    "print_fields",
    "print_json",
    "print_table",
]

_GAP: Final = 3
"""Blanks between two columns of a table."""
_RICH_ROWS_MAX: Final = 500
_PIPE_WIDTH: Final = 1 << 20
"""No line is broken: grep needs whole ones."""


def console(*, stderr: bool = False) -> Console:
    """A pipe gets lines of any width; nothing is cut."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    soft_wrap = not stream.isatty()
    return Console(file=unshielded(stream), width=width, highlight=False, soft_wrap=soft_wrap)


def print_json(value: object) -> None:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # JSON's own escapes are ASCII.
        import json

        text = json.dumps(json.loads(text), indent=2)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_change(output_format: str, fields: object, sentence: str) -> None:
    """Confirm what a command has changed: fields for programs, a sentence for a person."""
    if output_format == "json":
        print_json(fields)
        return
    click.echo(sentence, err=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """`right` names the columns that are aligned right: numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text  # In a plain string rich interprets [red] and :smile:.

    cells = [[_cell(value) for value in row] for row in rows]
    # rich would lay thousands of rows out for seconds.
    if len(cells) > _RICH_ROWS_MAX:
        _print_plain([_cell(name) for name in columns], cells, [name in right for name in columns])
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    least = _GAP * (len(columns) - 1)
    for number, name in enumerate(columns):
        column = [_cell(name), *(row[number] for row in cells)]
        # A narrow terminal breaks cells at blanks only: half a number is another number.
        width = max(cell_len(word) for text in column for word in text.split(" "))
        table.add_column(
            Text(column[0]),
            justify="right" if name in right else "left",
            min_width=width,
            no_wrap=not any(" " in text for text in column),
        )
        least += width
    for row in cells:
        table.add_row(*map(Text, row))
    target = console()
    target.width = max(target.width, least)
    target.print(table, crop=False)


def _print_plain(
    columns: Sequence[str], rows: Sequence[Sequence[str]], are_right: Sequence[bool]
) -> None:
    """As rich writes a table into a pipe."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    out = console().file

    def line(cells: Sequence[str]) -> str:
        padded: list[str] = []
        for text, width, is_right in zip(cells, widths, are_right, strict=True):
            blanks = " " * (width - cell_len(text))
            padded.append(blanks + text if is_right else text + blanks)
        return (" " * _GAP).join(padded) + "\n"

    out.write(line(columns))
    out.write("─" * (sum(widths) + _GAP * (len(widths) - 1)) + "\n")
    out.writelines(map(line, rows))
    out.flush()


def print_fields(fields: Mapping[str, object]) -> None:
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {_cell(value)}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def human_count(value: float) -> str:
    return f"{value:,.0f}"


def human_bytes(value: float) -> str:
    if value < 1024:
        return f"{value:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            return f"{value:.1f} {unit}"
    raise AssertionError("unreachable")


def join(values: Any) -> str:
    """Join with commas, the form in which options take several values."""
    return ",".join(str(value) for value in values)
