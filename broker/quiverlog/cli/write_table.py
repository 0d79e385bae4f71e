"""Rows as a table for people.

Owns how wide columns are and what is cut; the notation of values is that of JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import pyarrow as pa

from quiverlog.cli.json_encode import encodable, json_text
from quiverlog.cli.terminal import printable

__all__ = ["TableSink"]

_CELL_CHARS_MAX = 40
"""Where a terminal's table cuts a cell."""


class TableSink:
    """Aligned columns, as wide as the first batch needs.

    On a terminal long cells are cut with an ellipsis and long fractions rounded, unless the person
    asked for whole values; whatever else reads the table gets them whole.
    """

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
        shown = batch.select(self._names)
        columns = [
            [self._cut(cell) for cell in self._cells(column, name)]
            for name, column in zip(self._names, shown.columns, strict=True)
        ]
        if not self._widths and batch.num_rows:
            heads_and_cells = zip(self._heads, columns, strict=True)
            self._widths = [max(len(head), *map(len, cells)) for head, cells in heads_and_cells]
            self._line(self._heads)
        for row in zip(*columns, strict=True):
            self._line(row)

    def _cells(self, column: pa.Array, name: str) -> list[str]:
        return [_cell(value, is_cut=self._is_cut) for value in encodable(column, name)]

    def _cut(self, cell: str) -> str:
        if not self._is_cut or len(cell) <= _CELL_CHARS_MAX:
            return cell
        return cell[: _CELL_CHARS_MAX - 1] + "…"

    def _line(self, cells: Sequence[str]) -> None:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, self._widths, self._right, strict=True)
        )
        self._target.write(("  ".join(aligned).rstrip() + "\n").encode())

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        if not self._widths:
            self._widths = [len(name) for name in self._heads]
            self._line(self._heads)


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
