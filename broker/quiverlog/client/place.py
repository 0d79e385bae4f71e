"""The four columns that say where a row was: `_topic`, `_partition`, `_offset`, `_timestamp`.

Owns their names, types and values. They are no columns of the topic: whoever reads adds them. A
column of the topic's own goes before a place of that name, so that names are never there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from quiverlog.batch.numbers import integer, text

from .consumer_batch import ConsumerBatch

__all__ = [
    "OFFSET",
    "PARTITION",
    "PLACE_NAMES",
    "PLACE_SCHEMA",
    "TIMESTAMP",
    "placed",
    "places_beside",
    "table_schema",
    "with_place",
]

PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
PLACE_SCHEMA: Final = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
)
PLACE_NAMES: Final = tuple(PLACE_SCHEMA.names)


def places_beside(columns: pa.Schema) -> pa.Schema:
    """The places whose names the columns leave free."""
    return pa.schema([field for field in PLACE_SCHEMA if field.name not in columns.names])


def with_place(schema: pa.Schema) -> pa.Schema:
    """The schema with the columns that say where a row was."""
    return pa.schema([*schema, *places_beside(schema)])


def table_schema(current: pa.Schema) -> pa.Schema:
    """A topic as a table: its columns, and the places that are not the same for all rows."""
    return pa.schema([*current, *(f for f in places_beside(current) if f.name != "_topic")])


def placed(batch: ConsumerBatch) -> pa.RecordBatch:
    """The rows with these columns."""
    rows = batch.data.num_rows
    values: dict[str, Callable[[], pa.Array]] = {
        "_topic": lambda: pa.repeat(text(batch.topic), rows),
        PARTITION: lambda: pa.repeat(integer(batch.partition, pa.int32()), rows),
        OFFSET: lambda: batch.offsets,
        TIMESTAMP: lambda: batch.timestamps,
    }
    places = [values[name]() for name in places_beside(batch.data.schema).names]
    return pa.RecordBatch.from_arrays(
        [*batch.data.columns, *places], schema=with_place(batch.data.schema)
    )
