"""The four columns that say where a row was: `_topic`, `_partition`, `_offset`, `_timestamp`.

Owns their names, types and values. They are no columns of the topic: whoever reads adds them.
"""

from __future__ import annotations

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


def with_place(schema: pa.Schema) -> pa.Schema:
    """The schema with the columns that say where a row was."""
    return pa.schema([*schema, *PLACE_SCHEMA])


def table_schema(current: pa.Schema) -> pa.Schema:
    """A topic as a table: its columns, and the places that are not the same for all rows.

    A column of the topic's own goes before a place of that name.
    """
    places = [f for f in PLACE_SCHEMA if f.name != "_topic" and f.name not in current.names]
    return pa.schema([*current, *places])


def placed(batch: ConsumerBatch) -> pa.RecordBatch:
    """The rows with these columns."""
    rows = batch.data.num_rows
    places = (
        pa.repeat(text(batch.topic), rows),
        pa.repeat(integer(batch.partition, pa.int32()), rows),
        batch.offsets,
        batch.timestamps,
    )
    return pa.RecordBatch.from_arrays(
        [*batch.data.columns, *places], schema=with_place(batch.data.schema)
    )
