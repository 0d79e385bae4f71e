"""Rows as a table for people, in JSON's notation. A table is never read back, so values without a
notation are shown too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import pyarrow as pa

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.terminal import printable
from quiverlog.cli.formats.json_encode import encodable, json_text

__all__ = ["TableSink"]

_CELL_CHARS_MAX = 40
"""A bound on a terminal."""
_NO_NOTATION = "out of range"


class TableSink:
    """Aligned columns, as wide as the first batch needs. `is_cut`: cut long cells, round long
    fractions."""

    def __init__(self, target: IO[bytes], schema: pa.Schema, *, is_cut: bool) -> None:
        self._target = target
        self._is_cut = is_cut
        self._names = schema.names
        self._heads = [printable(name) for name in schema.names]
        self._right = [
            pa.types.is_integer(f.type)
            or pa.types.is_floating(f.type)
            or pa.types.is_decimal(f.type)
            for f in schema
        ]
        self._widths: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        # Select only if the topic has gained columns: repeated names cannot be selected.
        shown = batch if batch.schema.names == self._names else batch.select(self._names)
        columns = [
            [self._cut(cell) for cell in self._cells(column, name)]
            for name, column in zip(self._names, shown.columns, strict=True)
        ]
        if not self._widths and batch.num_rows:
            heads_and_cells = zip(self._heads, columns, strict=True)
            self._widths = [
                max(_width(head), *map(_width, cells)) for head, cells in heads_and_cells
            ]
            self._line(self._heads)
        for row in zip(*columns, strict=True):
            self._line(row)

    def _cells(self, column: pa.Array, name: str) -> list[str]:
        return [_cell(value, is_cut=self._is_cut) for value in _values(column, name)]

    def _cut(self, cell: str) -> str:
        if not self._is_cut or _width(cell) <= _CELL_CHARS_MAX:
            return cell
        kept = cell[: _CELL_CHARS_MAX - 1]
        while _width(kept) >= _CELL_CHARS_MAX:
            kept = kept[:-1]
        return kept + "…"

    def _line(self, cells: Sequence[str]) -> None:
        aligned: list[str] = []
        for cell, width, right in zip(cells, self._widths, self._right, strict=True):
            blanks = " " * (width - _width(cell))
            aligned.append(blanks + cell if right else cell + blanks)
        self._target.write(("  ".join(aligned).rstrip() + "\n").encode())

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        if not self._widths:
            self._widths = [_width(name) for name in self._heads]
            self._line(self._heads)


def _width(text: str) -> int:
    # East Asian characters take two columns each.
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return int(cell_len(text))


def _values(column: pa.Array, name: str) -> list[Any]:
    try:
        return list(encodable(column, name))
    except CommandFailed:
        if len(column) == 1:
            return [_without_notation(column)]
    return [_values(column.slice(at, 1), name)[0] for at in range(len(column))]


def _without_notation(column: pa.Array) -> str:
    # The number of a timestamp beyond year 9999: Arrow's own text for it is wrong.
    try:
        return f"{_NO_NOTATION}: {column.cast(pa.int64())[0].as_py()}"
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _NO_NOTATION


def _cell(value: Any, *, is_cut: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, float):
        text = f"{value:.10g}" if is_cut else repr(value)
    else:
        text = json_text(value)
    return printable(text)
