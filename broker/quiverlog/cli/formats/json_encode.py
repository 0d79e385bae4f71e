"""Values written in the notation of json_values.py, for JSON, CSV, tables and templates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from quiverlog.batch.arrow_types import with_times_as
from quiverlog.cli.console.failures import CommandFailed, first_line

__all__ = ["encodable", "has_time", "json_lines", "json_text", "to_text"]

Convert = Callable[[Any], Any]


def encodable(column: pa.Array, name: str) -> list[Any]:
    """Return values for msgspec. Raises CommandFailed: a value has no notation."""
    try:
        # Python's datetime has no nanoseconds: Arrow makes the text.
        plain = column
        if has_time(column.type):
            plain = column.cast(with_times_as(column.type, pa.string()))
        values: list[Any] = plain.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _unwritable(name, column.type, error) from error
    if t.is_floating(column.type):
        if pc.all(pc.is_finite(column), min_count=0).as_py():
            return values
        return [_plain_float(value) for value in values]
    convert = _encoder(column.type)
    return values if convert is None else [convert(value) for value in values]


def json_lines(batch: pa.RecordBatch) -> bytes:
    names = batch.schema.names
    if not names:
        return b"{}\n" * int(batch.num_rows)
    columns = [encodable(column, name) for name, column in zip(names, batch.columns, strict=True)]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    lines: bytes = _ENCODER.encode_lines(rows)
    return lines


def json_text(value: Any) -> str:
    text = _ENCODER.encode(value).decode()
    return text[1:-1] if text.startswith('"') else text


def _unwritable(name: str, kind: pa.DataType, error: Exception) -> CommandFailed:
    return CommandFailed(
        f"Column {name!r} ({kind}) has a value that text formats have no notation for "
        f"({first_line(error)}): write Arrow or Parquet (-o rows.arrow), or leave it out with "
        "--columns."
    )


def to_text(column: pa.Array, name: str) -> pa.Array:
    values = encodable(column, name)
    return pa.array([None if x is None else json_text(x) for x in values], pa.string())


def has_time(kind: pa.DataType) -> bool:
    if t.is_time(kind):
        return True
    return any(has_time(kind.field(i).type) for i in range(kind.num_fields))


def _encoder(kind: pa.DataType) -> Convert | None:
    if t.is_floating(kind):
        return _plain_float
    if t.is_list(kind):
        return _over_items(_encoder(kind.value_type))
    if t.is_map(kind):
        return _over_pairs(_encoder(kind.key_type), _encoder(kind.item_type))
    if t.is_struct(kind):
        converts = {field.name: _encoder(field.type) for field in kind}
        changing = {name: convert for name, convert in converts.items() if convert is not None}
        if not changing:
            return None

        def struct(value: Any) -> Any:
            if value is None:
                return None
            return value | {name: convert(value[name]) for name, convert in changing.items()}

        return struct
    return None


def _plain_float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _over_items(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else [convert(item) for item in value]


def _over_pairs(key: Convert | None, item: Convert | None) -> Convert | None:
    if key is None and item is None:
        return None
    of_key, of_item = key or _same, item or _same
    return lambda value: None if value is None else [(of_key(k), of_item(v)) for k, v in value]


def _same(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    return str(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain)
