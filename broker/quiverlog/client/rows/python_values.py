"""The errors for values that Python, pandas or DuckDB do not have, in place of these packages' own.

Days and moments of years before 1 and after 9999, nanoseconds of a time of day, and maps with a key
twice.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as t

from quiverlog.batch.arrow_types import with_times_as
from quiverlog.batch.halves import first_bad_row
from quiverlog.batch.normalize import cast_array
from quiverlog.errors import UnsupportedValue

from .why_not import first_line

__all__ = ["check_maps", "data_frame", "python_rows"]

# pyarrow's, where Python or pandas have no such value.
_FAILURES: Final = (pa.ArrowException, ValueError, OverflowError)
_YEARS: Final = "Python's dates have the years 1 to 9999: cast the column to a number of"
_NANOSECONDS: Final = "Python's times have microseconds: cast the column to text or to int64"

Convert = Callable[[pa.Array], object]


def python_rows(rows: pa.RecordBatch, where: str, first_offset: int) -> list[dict[str, Any]]:
    """Convert rows of the partition `where`. Raises UnsupportedValue: names the column, the offset
    and what to do."""
    # pyarrow cuts nanoseconds of a time of day off silently.
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _has(column.type, t.is_time):
            _check_column(column, _as_microseconds, f"Column {name!r} of {where}", first_offset)
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
        return found
    except _FAILURES:
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            _check_column(column, pa.Array.to_pylist, f"Column {name!r} of {where}", first_offset)
        raise


def data_frame(table: pa.Table, topic: str, options: dict[str, Any]) -> Any:
    """Raises UnsupportedValue: names the column, the row of the table and what to do."""
    try:
        return table.to_pandas(**options)
    except _FAILURES:
        for name, column in zip(table.schema.names, table.columns, strict=True):
            rows_before = 0
            for chunk in column.chunks:
                one = f"Column {name!r} of topic {topic!r}"
                _check_column(
                    chunk, lambda part: part.to_pandas(**options), one, rows_before, "row"
                )
                rows_before += len(chunk)
        raise


def _check_column(
    column: pa.Array, convert: Convert, what: str, first: int, counted: str = "offset"
) -> None:
    def is_good(start: int, count: int) -> bool:
        try:
            convert(column.slice(start, count))
        except _FAILURES:
            return False
        return True

    if is_good(0, len(column)):
        return
    row = first_bad_row(len(column), is_good)
    try:
        convert(column.slice(row, 1))
    except _FAILURES as error:
        raise UnsupportedValue(
            f"{what} ({column.type}): the value at {counted} {first + row} cannot be had here "
            f"({first_line(error)}). {_advice(column.type)}Arrow has it: `data`, `to_arrow`.",
            column=what.split("'")[1],
            **{counted: first + row},
        ) from error


def _advice(kind: pa.DataType) -> str:
    if _has(kind, t.is_time):
        return f"{_NANOSECONDS}. "
    if _has(kind, t.is_date):
        return f"{_YEARS} days (int32); pandas takes it with `date_as_object=False`. "
    if _has(kind, t.is_timestamp):
        return f"{_YEARS} microseconds (int64). "
    return ""


def _has(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    if is_kind(kind):
        return True
    return any(_has(kind.field(number).type, is_kind) for number in range(kind.num_fields))


def _as_microseconds(column: pa.Array) -> pa.Array:
    return cast_array(column, with_times_as(column.type, pa.time64("us")))


def check_maps(rows: pa.RecordBatch, topic: str = "") -> None:
    """Refuse maps with a key twice, for DuckDB (UnsupportedValue)."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _has(column.type, t.is_map) and _has_key_twice(column):
            of_topic = f" of topic {topic!r}" if topic else ""
            raise UnsupportedValue(
                f"Column {name!r}{of_topic} ({column.type}) has a map with the same key twice, and "
                "DuckDB has no such maps: leave it out of the query, or read without SQL.",
                column=name,
            )


def _has_key_twice(array: pa.Array) -> bool:
    kind = array.type
    if not _has(kind, t.is_map):
        return False
    if array.null_count:
        array = array.drop_null()
    if t.is_struct(kind):
        return any(_has_key_twice(array.field(number)) for number in range(kind.num_fields))
    offsets = array.offsets.to_pylist()
    start, end = offsets[0], offsets[-1]
    if t.is_list(kind):
        return _has_key_twice(array.values.slice(start, end - start))
    keys, items = (part.slice(start, end - start) for part in (array.keys, array.items))
    values = keys.to_pylist() if not t.is_nested(kind.key_type) else list(map(str, keys))
    pairs = pairwise(offsets)
    if any(b - a > 1 and len(set(values[a - start : b - start])) < b - a for a, b in pairs):
        return True
    return _has_key_twice(items)
