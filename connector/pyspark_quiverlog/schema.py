"""Arrow schemas of topics and Spark schemas of queries.

Spark compares the first batch's schema with its own exactly (types, order, nullability) and does
not check the others, so every batch goes through `Normalizer`. In a schema made from the topics'
all top-level columns are nullable: a topic's schema may grow, and its earlier rows then have nulls.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from quiverlog.batch.arrow_types import normalize_type, refused_types
from quiverlog.batch.schema import can_widen, check_readable
from quiverlog.errors import IncompatibleSchema, InvalidOption, InvalidSchema

from ._compat import to_arrow_schema

__all__ = [
    "METADATA_FIELDS",
    "METADATA_NAMES",
    "Normalizer",
    "merge_schemas",
    "query_columns",
    "spark_schema",
    "unreadable",
]

METADATA_FIELDS: tuple[pa.Field, ...] = (
    pa.field("_topic", pa.string()),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
)
METADATA_NAMES = frozenset(field.name for field in METADATA_FIELDS)

logger = logging.getLogger("pyspark_quiverlog")


# --- Arrow -> Spark -------------------------------------------------------------------------------
def plain_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type as Spark reads it.

    Raises:
        InvalidSchema: Spark has no such type.
    """
    # Large, view and dictionary types become plain, times have microseconds.
    plain = normalize_type(data_type)
    if _holds_null(plain) or any(refused_types(pa.field("value", plain))):
        raise InvalidSchema(f"Spark has no type for {data_type}.")
    return plain


def _holds_null(data_type: pa.DataType) -> bool:
    inner = (data_type.field(number).type for number in range(data_type.num_fields))
    return bool(pt.is_null(data_type)) or any(map(_holds_null, inner))


def spark_schema(schema: pa.Schema) -> Any:
    """Return the StructType of a query, with every column nullable.

    Raises:
        InvalidSchema: Spark lacks a column's type.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, plain_type(field.type), nullable=True))
        except InvalidSchema as error:
            raise InvalidSchema(
                f"column {field.name!r} cannot be read in Spark: {error.message} "
                "Leave it out with the option `columns`."
            ) from error
    return from_arrow_schema(pa.schema(fields))


# --- several topics, one schema ---------------------------------------------------------------
def merge_schemas(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return one schema for all topics: columns by name, in order of first appearance.

    Types widen as in a topic's own evolution.

    Raises:
        IncompatibleSchema: a column has two types of which neither widens to the other.
    """
    merged: dict[str, tuple[str, pa.DataType]] = {}
    for topic in sorted(schemas):
        for field in schemas[topic]:
            data_type = _plain_or_same(field.type)
            known = merged.get(field.name)
            if known is None or can_widen(known[1], data_type):
                merged[field.name] = (topic, data_type)
            elif not can_widen(data_type, known[1]):
                raise IncompatibleSchema(
                    f"column {field.name!r} is {known[1]} in topic {known[0]!r} and {data_type} in "
                    f"topic {topic!r}: read the topics separately, or leave the column out with "
                    "the option `columns`."
                )
    return pa.schema([pa.field(name, data_type) for name, (_, data_type) in merged.items()])


def _plain_or_same(data_type: pa.DataType) -> pa.DataType:
    try:
        return plain_type(data_type)
    except InvalidSchema:
        return data_type  # `columns` may leave it out; otherwise `spark_schema` refuses it


def query_columns(
    schemas: Mapping[str, pa.Schema], columns: Sequence[str] | None, *, metadata: bool
) -> pa.Schema:
    """Return the columns of a query without a user's schema.

    Columns that hold Arrow's null type are left out, with a warning, unless `columns` names them or
    there are no others.

    Raises:
        IncompatibleSchema: as `merge_schemas`.
        InvalidOption: `columns` names one that no topic has, or a topic's own column has the name
            of a requested metadata column.
    """
    if columns is not None:
        schemas = {topic: project_schema(schema, columns) for topic, schema in schemas.items()}
    merged = merge_schemas(schemas)
    if columns is not None:
        for name in columns:
            if name not in merged.names:
                raise InvalidOption(
                    f"option `columns`: no column {name!r} in {', '.join(sorted(schemas))}."
                )
        merged = pa.schema([merged.field(name) for name in columns])
    else:
        merged = _without_nulls_alone(merged)
    if metadata:
        clash = METADATA_NAMES & set(merged.names)
        if clash:
            raise InvalidOption(
                f"option `includeMetadata`: the topic has a column {min(clash)!r} of its own; "
                "leave it out with the option `columns`."
            )
        merged = pa.schema([*merged, *METADATA_FIELDS])
    return merged


def _without_nulls_alone(schema: pa.Schema) -> pa.Schema:
    typed = [field for field in schema if not _holds_null(field.type)]
    # Without any other column, `spark_schema` names the problem.
    if not typed or len(typed) == len(schema):
        return schema
    logger.warning(
        "left out, because they are of Arrow's null type, which holds nulls alone: columns %s",
        ", ".join(repr(field.name) for field in schema if _holds_null(field.type)),
    )
    return pa.schema(typed)


def project_schema(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns if name in schema.names])


# --- stored batch -> Spark batch ----------------------------------------------------------------
class Normalizer:
    """Inserts metadata columns into batches that the decoder has converted to `stored_target`,
    without a copy."""

    def __init__(self, schema: Any, *, metadata: bool = False) -> None:
        self.target = schema if isinstance(schema, pa.Schema) else to_arrow_schema(schema)
        reserved = METADATA_NAMES if metadata else frozenset()
        self.columns = [n for n in self.target.names if n not in reserved]
        self.metadata_names = [n for n in self.target.names if n in reserved]
        self.stored_target = pa.schema([self.target.field(n) for n in self.columns])

    def check(self, topic: str, schema: pa.Schema) -> None:
        """Refuse a topic that the query's schema cannot read.

        Raises:
            IncompatibleSchema: a stored type does not widen to the query's, or a column that is NOT
                NULL in the query's schema is missing or may hold nulls.
        """
        try:
            check_readable(schema, self.stored_target)
        except IncompatibleSchema as error:
            raise unreadable(error, f"topic {topic!r}") from None

    def __call__(
        self, batch: pa.RecordBatch, metadata: Mapping[str, pa.Array] | None = None
    ) -> pa.RecordBatch:
        """`metadata`: arrays by column name."""
        assert batch.schema.equals(self.stored_target), "the decoder gives what was asked of it"
        if not self.metadata_names:
            return batch
        assert metadata is not None
        arrays = [
            metadata[name] if name in metadata else batch.column(name) for name in self.target.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)


def unreadable(error: IncompatibleSchema, where: str) -> IncompatibleSchema:
    details = error.details
    column, stored, wanted = (details.get(key) for key in ("column", "stored", "wanted"))
    if stored is None:
        what = f"column {column!r} is not in {where}, and NOT NULL in the query's schema"
    elif stored == wanted:
        what = f"column {column!r} may hold nulls in {where}, and is NOT NULL in the query's schema"
    else:
        what = f"column {column!r} is {stored} in {where}, and {wanted} in the query's schema"
    return IncompatibleSchema(
        f"{what}. Read it with the topic's type (or a wider one, or nullable) and cast in the "
        "query; a query without a schema of its own takes the topic's types when it starts again.",
        **details,
    )
