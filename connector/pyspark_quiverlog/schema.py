"""Arrow schemas of topics and Spark schemas of queries.

Owns three decisions: what Spark type a topic's column has, how several topics share one schema,
and how a stored batch becomes exactly what Spark expects. Spark compares the first batch's schema
with its own to the letter (types, order, nullability) and never looks at the others, so every
batch goes through `Normalizer`, which costs nothing measurable when nothing needs to change.

All top-level columns are nullable for Spark: a topic's schema may grow while a query runs, and
rows from before then have nulls. Knows nothing of offsets, connections or options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from quiverlog.batch.arrow_types import normalize_type, refused_types
from quiverlog.batch.evolution import can_widen
from quiverlog.errors import IncompatibleSchema, InvalidOption, InvalidSchema

from ._compat import to_arrow_schema

__all__ = [
    "METADATA_FIELDS",
    "METADATA_NAMES",
    "Normalizer",
    "can_widen",
    "merge_schemas",
    "query_columns",
    "spark_schema",
]

METADATA_FIELDS: tuple[pa.Field, ...] = (
    pa.field("_topic", pa.string()),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
)
METADATA_NAMES = frozenset(field.name for field in METADATA_FIELDS)


# --- Arrow -> Spark -------------------------------------------------------------------------------
def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type as Spark reads it: large, view and dictionary types plain, times in microseconds.

    Raises:
        InvalidSchema: Spark has no such type.
    """
    plain = normalize_type(data_type)
    if _holds_null(plain) or any(refused_types(pa.field("value", plain))):
        raise InvalidSchema(f"Spark has no type for {data_type}.")
    return plain


def _holds_null(data_type: pa.DataType) -> bool:
    inner = (data_type.field(number).type for number in range(data_type.num_fields))
    return bool(pt.is_null(data_type)) or any(map(_holds_null, inner))


def spark_schema(schema: pa.Schema) -> Any:
    """The StructType that a query over `schema` gets; every column nullable.

    Raises:
        InvalidSchema: a column of a type that Spark does not have, by name.
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
    """One schema over all topics: columns by name, in order of first appearance.

    A column that a topic lacks is null in its rows; types widen as in a topic's own evolution.

    Raises:
        IncompatibleSchema: two topics give a column types that do not widen into one another.
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
        return data_type  # `columns` may leave it out; `spark_schema` refuses it otherwise


def query_columns(
    schemas: Mapping[str, pa.Schema], columns: Sequence[str] | None, *, metadata: bool
) -> pa.Schema:
    """The columns of a query without a user's schema.

    Raises:
        InvalidOption: `columns` names one that no topic has, or a topic's own column has the name
            of a metadata column that was asked for.
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
    if metadata:
        clash = METADATA_NAMES & set(merged.names)
        if clash:
            raise InvalidOption(
                f"option `includeMetadata`: the topic has a column {min(clash)!r} of its own; "
                "leave it out with the option `columns`."
            )
        merged = pa.schema([*merged, *METADATA_FIELDS])
    return merged


def project_schema(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The fields named in `columns`, as far as they are there."""
    return pa.schema([schema.field(name) for name in columns if name in schema.names])


# --- stored batch -> Spark batch ----------------------------------------------------------------
class Normalizer:
    """Makes stored batches exactly what Spark expects for `schema`.

    Columns are found by name, cast where the type differs, null where a batch has none. Batches
    whose schema was seen before take a plan made then; when nothing differs but nullability, the
    plan only puts the same columns under Spark's schema (no byte is copied).
    """

    def __init__(self, schema: Any, *, metadata: bool = False) -> None:
        self.target = schema if isinstance(schema, pa.Schema) else to_arrow_schema(schema)
        reserved = METADATA_NAMES if metadata else frozenset()
        self.columns = [n for n in self.target.names if n not in reserved]
        self.metadata_names = [n for n in self.target.names if n in reserved]
        self.stored_target = pa.schema([self.target.field(n) for n in self.columns])
        """What the decoder shall make of stored rows: the target without metadata columns."""
        self._last: pa.Schema | None = None
        self._plan: list[tuple[int, pa.DataType | None]] = []
        self._as_is = False

    def check(self, topic: str, schema: pa.Schema) -> None:
        """Refuse up front what could only fail in the middle of a query.

        Raises:
            IncompatibleSchema: a column whose stored type does not become the query's type.
        """
        for field in self.stored_target:
            if field.name not in schema.names:
                continue
            stored = _plain_or_same(schema.field(field.name).type)
            if not can_widen(stored, field.type):
                raise IncompatibleSchema(
                    f"column {field.name!r} is {stored} in topic {topic!r}, the query's schema "
                    f"says {field.type}. Read it with the topic's type (or a wider one) and cast "
                    "in the query."
                )

    def __call__(
        self, batch: pa.RecordBatch, metadata: Mapping[str, pa.Array] | None = None
    ) -> pa.RecordBatch:
        """The same rows under Spark's schema. `metadata`: arrays by column name, same length."""
        schema = batch.schema
        if self._last is None or (schema is not self._last and not schema.equals(self._last)):
            self._make_plan(schema)
        if self._as_is and not metadata:
            return batch
        arrays = []
        for field, (index, cast_to) in zip(self.target, self._plan, strict=True):
            if index >= 0:
                array = batch.column(index)
                arrays.append(array if cast_to is None else _cast(array, cast_to))
            elif metadata is not None and field.name in metadata:
                arrays.append(metadata[field.name])
            else:
                arrays.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)

    def _make_plan(self, schema: pa.Schema) -> None:
        self._plan = []
        for field in self.target:
            index = schema.get_field_index(field.name)
            same = index >= 0 and schema.field(index).type.equals(field.type)
            self._plan.append((index, None if same else field.type))
        self._as_is = schema.equals(self.target)
        self._last = schema


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(target)
