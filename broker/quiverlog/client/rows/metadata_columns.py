"""The metadata columns `_topic`, `_partition`, `_offset`, `_timestamp`, and `where`.

A topic's own column of such a name wins. DuckDB returns a truth value per row and never the rows,
so values stay unchanged; it reads the batch and no files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from quiverlog.batch.numbers import integer, text
from quiverlog.client.base.arguments import extra, shown
from quiverlog.errors import InvalidArgument

from .decoding import ConsumerBatch
from .python_values import check_maps
from .sql_database import connect_duckdb

__all__ = [
    "METADATA_NAMES",
    "METADATA_SCHEMA",
    "OFFSET",
    "PARTITION",
    "TIMESTAMP",
    "RowFilter",
    "SqlFilter",
    "add_metadata",
    "check_condition",
    "filter_of",
    "mentioned",
    "metadata_beside",
    "table_schema",
    "with_metadata",
]


PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
METADATA_SCHEMA: Final = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
)
METADATA_NAMES: Final = tuple(METADATA_SCHEMA.names)


def metadata_beside(columns: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in METADATA_SCHEMA if field.name not in columns.names])


def with_metadata(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, *metadata_beside(schema)])


def table_schema(current: pa.Schema) -> pa.Schema:
    """Return a topic's columns, and the metadata columns that vary."""
    return pa.schema([*current, *(f for f in metadata_beside(current) if f.name != "_topic")])


def add_metadata(batch: ConsumerBatch) -> pa.RecordBatch:
    rows = batch.data.num_rows
    values: dict[str, Callable[[], pa.Array]] = {
        "_topic": lambda: pa.repeat(text(batch.topic), rows),
        PARTITION: lambda: pa.repeat(integer(batch.partition, pa.int32()), rows),
        OFFSET: lambda: batch.offsets,
        TIMESTAMP: lambda: batch.timestamps,
    }
    places = [values[name]() for name in metadata_beside(batch.data.schema).names]
    return pa.RecordBatch.from_arrays(
        [*batch.data.columns, *places], schema=with_metadata(batch.data.schema)
    )


# `where`: rows selected by an SQL expression, or by an expression of Arrow.
# May name all columns. A product counts as well, which only costs unused columns.
_ALL_COLUMNS: Final = re.compile(r"\*|\bcolumns\b|\bU&", re.IGNORECASE)

# DuckDB's refusal of a map, without the column's name.
_KEY_TWICE: Final = "duplicate key"
# DuckDB's types of a condition; its releases name that of `null` differently.
_CONDITIONS = ("boolean", "null", "sqlnull")


class RowFilter(Protocol):
    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the condition is true, neither false nor null.

        Raises:
            InvalidArgument: it is no condition, or fails for a row.
            UnsupportedValue: the rows have a value that DuckDB lacks.
        """


class SqlFilter:
    def __init__(self, expression: str, schema: pa.Schema) -> None:
        """Raises InvalidArgument: no condition on these columns, or DuckDB is not installed."""
        self._database: Any = connect_duckdb("where: SQL")
        self._error: type[Exception] = extra("duckdb", "where: SQL").Error
        # On a line of its own, so that a comment at its end stays one.
        self._project = f"(\n{expression}\n) as chosen"
        self.chosen(_empty(schema))

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            relation = self._database.from_arrow(pa.Table.from_batches([batch]))
            projected = relation.project(self._project)
            kinds = [kind.id for kind in projected.types]
            if len(kinds) == 1 and kinds[0] not in _CONDITIONS:
                raise InvalidArgument(f"where: this is {kinds[0]}, not true or false.")
            found = pa.table(projected).column(0).combine_chunks()
        except self._error as error:
            if _KEY_TWICE in str(error):
                check_maps(batch)
            reason = str(error).splitlines()[0].removesuffix("!")
            raise InvalidArgument(f"where: {reason}.") from error
        if len(found) != batch.num_rows or len(kinds) != 1:
            raise InvalidArgument("where: give one condition on a row.")
        return batch.filter(found.cast(pa.bool_()))  # leaves out where it is null


class _ArrowFilter:
    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self._expression = expression
        self.chosen(_empty(schema))

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return batch.filter(self._expression)
        except (pa.ArrowException, TypeError) as error:
            raise InvalidArgument(f"where: {str(error).splitlines()[0]}.") from error


def check_condition(where: Any) -> None:
    if not isinstance(where, pc.Expression) and not (isinstance(where, str) and where.strip()):
        raise InvalidArgument(
            f"where={shown(where)}: give a condition in SQL, or a pyarrow.compute.Expression."
        )


def filter_of(where: str | pc.Expression, schema: pa.Schema) -> RowFilter:
    return SqlFilter(where, schema) if isinstance(where, str) else _ArrowFilter(where, schema)


def mentioned(where: Any, names: Iterable[str]) -> set[str]:
    text = str(where)
    if isinstance(where, str) and _ALL_COLUMNS.search(text):
        return set(names)
    folded = text.casefold()
    return {n for n in names if not n.isidentifier() or n.casefold() in folded}


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
