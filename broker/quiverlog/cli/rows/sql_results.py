"""DuckDB's results in types that outputs can hold.

Arrow has no times with a zone, and gets bits and long integers as DuckDB's own bytes; neither text
formats nor Parquet have intervals. DuckDB casts these to text, inside lists and structs too.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from quiverlog.batch.arrow_types import normalize_type
from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.formats.json_encode import has_time

__all__ = ["as_written", "with_text", "written_schema"]

_AS_TEXT: Final = frozenset(
    ("interval", "time with time zone", "bit", "bignum", "varint", "union", "variant")
)


def with_text(relation: Any, *, keeps_spans: bool) -> Any:
    """`keeps_spans`: leave intervals, which Arrow has."""
    as_text = _AS_TEXT - {"interval"} if keeps_spans else _AS_TEXT
    casts = [_castable(kind, as_text) for kind in relation.types]
    if not any(casts):
        return relation
    columns = []
    # By number: columns may share a name.
    for number, (name, cast) in enumerate(zip(relation.columns, casts, strict=True), 1):
        column = f"cast(#{number} as {cast})" if cast else f"#{number}"
        quoted = name.replace('"', '""')
        columns.append(f'{column} as "{quoted}"')
    return relation.project(", ".join(columns))


def _castable(kind: Any, as_text: frozenset[str]) -> Any:
    import duckdb

    if kind.id in as_text or str(kind).casefold() in as_text:
        return duckdb.type("VARCHAR")
    if kind.id not in ("list", "array", "struct", "map"):
        return None
    parts = {name: part for name, part in kind.children if not isinstance(part, int)}
    casts = {name: _castable(part, as_text) for name, part in parts.items()}
    if not any(casts.values()):
        return None
    inner = {name: casts[name] or part for name, part in parts.items()}
    if kind.id == "struct":
        return duckdb.struct_type(inner)
    if kind.id == "map":
        return duckdb.map_type(*inner.values())
    (child,) = inner.values()
    return duckdb.list_type(child)


def written_schema(schema: pa.Schema, *, has_unique_names: bool) -> pa.Schema:
    """Return the schema with a topic's types in place of DuckDB's own.

    Args:
        has_unique_names: number repeated names: two joined topics both have a `_partition`.
    """
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    names = _unique(schema.names) if has_unique_names else schema.names
    return pa.schema(
        [
            f.with_name(name).with_type(wider.get(f.type) or normalize_type(f.type))
            for f, name in zip(schema, names, strict=True)
        ]
    )


def _unique(names: list[str]) -> list[str]:
    """Return `a`, `a_1`, `a_2`, without a number that makes another column's name."""
    taken: dict[str, int] = {}
    for name in names:
        new, number = name, taken.get(name, 0)
        while new in taken:
            number += 1
            new = f"{name}_{number}"
        taken[name] = number
        taken[new] = 0
    return list(taken)


def as_written(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Raises CommandFailed: a value does not fit, such as nanoseconds, or 24:00."""
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(column.cast(field.type))
            if has_time(field.type):  # Arrow's cast accepts any number as a time.
                columns[-1].validate(full=True)
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise CommandFailed(
                f"Column {field.name!r} ({column.type}) has a value that {field.type} cannot hold "
                f"({reason}): choose what is written by a cast in the query, ::timestamp or ::text."
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
