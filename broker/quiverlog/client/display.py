"""How results show themselves: one line for `print`, a table for notebooks.

Owns the bounds of what is shown and the escaping of what becomes HTML. Rows are data of others:
nothing of them reaches a page as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "NAMES_SHOWN_MAX",
    "ROWS_SHOWN_MAX",
    "cells",
    "counted",
    "html_table",
    "names",
    "partitions_of",
]

ROWS_SHOWN_MAX: Final = 20
CELL_CHARS_MAX: Final = 80
NAMES_SHOWN_MAX: Final = 8


def names(all_names: Sequence[str]) -> str:
    """Names in a row; of many the first ones and how many more there are."""
    assert NAMES_SHOWN_MAX > 0, "somebody must be named"
    more = len(all_names) - NAMES_SHOWN_MAX
    shown = ", ".join(all_names[:NAMES_SHOWN_MAX])
    return f"{shown} and {more} more" if more > 0 else shown


def counted(count: int, one: str, more: str) -> str:
    """`1 partition`, `1,234 partitions`."""
    return f"{count:,} {one if count == 1 else more}"


def partitions_of(topic: str, count: int) -> str:
    """Which partitions a topic has, in a sentence: `Topic 't' has 4 partitions, 0 to 3`."""
    those = "1 partition, 0" if count == 1 else f"{count:,} partitions, 0 to {count - 1}"
    return f"Topic {topic!r} has {those}"


def cells(column: pa.Array) -> list[str]:
    """The texts of a column's values, short ones."""
    return [_cut(_text(value)) for value in column]


def html_table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, left_out: int = 0
) -> str:
    """A table of HTML without style and without script."""
    assert left_out >= 0, left_out
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = []
    for row in rows:
        assert len(row) == len(head), "a cell for every title"
        lines.append(f"<tr>{''.join(f'<td>{escape(_cut(str(cell)))}</td>' for cell in row)}</tr>")
    more = f"<p>and {left_out:,} more</p>" if left_out else ""
    return (
        f"<div><p>{escape(caption)}</p><table><thead><tr>{titles}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>{more}</div>"
    )


def _text(value: Any) -> str:
    try:
        found = value.as_py()
    except (ValueError, OverflowError):  # nanoseconds, or a year that Python does not have
        return f"{getattr(value, 'value', '?')} as {value.type}"
    return "null" if found is None else str(found)


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 1]}…"
