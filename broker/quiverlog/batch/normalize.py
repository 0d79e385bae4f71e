"""Casts into a schema, for producers' and for readers' columns.

A value that does not fit is refused. A narrower float type would round without an error: callers
refuse it before.
"""

from __future__ import annotations

import pyarrow as pa

from quiverlog.errors import IncompatibleSchema

from .numbers import integers

__all__ = ["cast_array", "conform"]


def conform(data: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return stored data in a reader's schema: widened, null-filled, reordered, surplus columns
    dropped.

    The caller has called `evolution.check_readable`, or the schemas are of one topic's history.
    Raises IncompatibleSchema.
    """
    if data.schema is schema or data.schema.equals(schema, check_metadata=True):
        return data
    if not len(schema):
        return data.select([])  # A batch made of no arrays would have no rows.
    nulls = _Nulls(data.num_rows)
    columns = [_reader_column(data, field, nulls) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Nulls:
    """Columns of nulls, one per type: many added columns cost no more memory than one."""

    __slots__ = ("_by_type", "_row_count")

    def __init__(self, row_count: int) -> None:
        self._row_count = row_count
        self._by_type: dict[pa.DataType, pa.Array] = {}

    def of(self, data_type: pa.DataType) -> pa.Array:
        found = self._by_type.get(data_type)
        if found is None:
            found = self._by_type[data_type] = pa.nulls(self._row_count, data_type)
        return found


def _reader_column(data: pa.RecordBatch, field: pa.Field, nulls: _Nulls) -> pa.Array:
    index = data.schema.get_field_index(field.name)
    if index < 0:
        if field.nullable:
            return nulls.of(field.type)
        raise IncompatibleSchema(
            f"column {field.name!r} is not in the stored rows and is NOT NULL in the schema."
        )
    try:
        return _shown(data.column(index), field.type, nulls)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise IncompatibleSchema(f"column {field.name!r}: {error}.") from None


def _shown(array: pa.Array, data_type: pa.DataType, nulls: _Nulls) -> pa.Array:
    if pa.types.is_null(array.type):
        return nulls.of(data_type)
    if not (pa.types.is_struct(array.type) and pa.types.is_struct(data_type)):
        return cast_array(array, data_type)
    if array.type.equals(data_type, check_metadata=True) or not data_type.num_fields:
        return array
    children = []
    for field in data_type:
        index = array.type.get_field_index(field.name)
        child = None if index < 0 else _shown(array.field(index), field.type, nulls)
        children.append(nulls.of(field.type) if child is None else child)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(data_type), mask=mask)


def cast_array(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return `array` as `data_type`; raises pyarrow's errors when a value does not fit."""
    if array.type.equals(data_type, check_metadata=True):
        return array
    # The stored type is that of the storage.
    if isinstance(array, pa.ExtensionArray):
        return cast_array(array.storage, data_type)
    if pa.types.is_run_end_encoded(array.type):
        return cast_array(_run_ends_decoded(array), data_type)
    plain = _castable(array)
    try:
        return plain.cast(data_type)
    except pa.ArrowInvalid:
        if not pa.types.is_nested(plain.type):
            raise
        # The cast of a slice includes the items beside it, and one of them may not fit.
        return pa.concat_arrays([plain, plain.slice(0, 0)]).cast(data_type)


def _castable(array: pa.Array) -> pa.Array:
    """Return the array in a layout that pyarrow's casts support, at any depth.

    The cast makes invalid arrays of list views, and polars' categories are dictionaries of views.
    """
    if not _needs_help(array.type):
        return array
    if pa.types.is_dictionary(array.type):
        values = array.dictionary
        plain = pa.large_binary() if pa.types.is_binary_view(values.type) else pa.large_string()
        return values.cast(plain).take(array.indices)
    if pa.types.is_run_end_encoded(array.type):
        return _castable(_run_ends_decoded(array))
    if pa.types.is_struct(array.type):
        fields = [_castable(array.field(i)) for i in range(array.type.num_fields)]
        names = [field.name for field in array.type]
        return pa.StructArray.from_arrays(fields, names, mask=array.is_null())
    if pa.types.is_map(array.type):
        raise TypeError(f"{array.type} is not supported inside of maps: convert it first")
    import pyarrow.compute as pc

    ends = pc.cumulative_sum(pc.list_value_length(array).fill_null(0)).cast(pa.int32())
    offsets = pa.concat_arrays([integers([0], pa.int32()), ends])
    values = _castable(array.flatten())
    return pa.ListArray.from_arrays(offsets, values, mask=array.is_null())


def _run_ends_decoded(array: pa.Array) -> pa.Array:
    # Its import takes as long as all of pyarrow, and a starting broker does not need it.
    import pyarrow.compute as pc

    return pc.run_end_decode(array)


def _needs_help(data_type: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(data_type):
        value_type = data_type.value_type
        return bool(types.is_string_view(value_type) or types.is_binary_view(value_type))
    if (
        types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
        or types.is_run_end_encoded(data_type)
    ):
        return True
    children = (data_type.field(i) for i in range(data_type.num_fields))
    return types.is_nested(data_type) and any(_needs_help(child.type) for child in children)
