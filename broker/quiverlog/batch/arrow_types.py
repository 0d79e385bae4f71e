"""The Arrow types that a topic stores, and the types converted to them.

They are types that Spark uses in Arrow: stored batches can go to Spark unchanged. Other layouts of
the same values are converted; other types are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from quiverlog.limits import SCHEMA_NESTING_MAX

__all__ = ["normalize_field", "normalize_type", "refused_types", "with_times_as"]

DECIMAL_PRECISION_MAX: Final = 38
_UTC: Final = pa.timestamp("us", tz="UTC")
_DROPPED_METADATA: Final = (b"ARROW:extension:name", b"ARROW:extension:metadata")

_SCALARS: Final = frozenset(
    {
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        _UTC,
        pa.timestamp("us"),
        pa.duration("us"),
        pa.time64("ns"),  # Spark's TIME, from 4.1 on; older ones refuse the column by name.
    }
)

_WHY_REFUSED: Final[tuple[tuple[str, str], ...]] = (
    ("uint", "Spark has no unsigned types: use the next larger signed one"),
    ("halffloat", "Spark has no 16-bit floats: use float32"),
    ("decimal", "a decimal has at most 38 digits and a scale from 0 to its precision"),
    ("month_day_nano", "Spark cannot read this interval: use a duration"),
    ("union", "use a struct with one nullable field per alternative"),
    ("sparse_union", "use a struct with one nullable field per alternative"),
    ("dense_union", "use a struct with one nullable field per alternative"),
)


def normalize_type(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if data_type in _SCALARS:
        return data_type
    if isinstance(data_type, pa.BaseExtensionType):
        return normalize_type(data_type.storage_type)
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return normalize_type(data_type.value_type)
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if (
        types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
        or types.is_fixed_size_binary(data_type)
    ):
        return pa.binary()
    if types.is_timestamp(data_type):
        # Spark keeps instants in UTC; the zone only changes how they are shown.
        return pa.timestamp("us") if data_type.tz is None else _UTC
    if types.is_duration(data_type):
        return pa.duration("us")
    if types.is_time(data_type):
        return pa.time64("ns")
    if types.is_date64(data_type):
        return pa.date32()
    if types.is_decimal(data_type):
        return _normalize_decimal(data_type)
    return _normalize_nested(data_type)


def _normalize_decimal(data_type: pa.DataType) -> pa.DataType:
    # decimal256 with at most 38 digits fits decimal128; wider ones stay and are refused.
    if data_type.precision > DECIMAL_PRECISION_MAX:
        return data_type
    return pa.decimal128(data_type.precision, data_type.scale)


def _normalize_nested(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if (
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
        or types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
    ):
        # Spark names items "element", and compares field names.
        return pa.list_(normalize_field(data_type.value_field).with_name("element"))
    if types.is_map(data_type):
        return pa.map_(
            normalize_field(data_type.key_field).with_name("key"),
            normalize_field(data_type.item_field).with_name("value"),
        )
    if types.is_struct(data_type):
        return pa.struct([normalize_field(field) for field in data_type])
    return data_type


def normalize_field(field: pa.Field) -> pa.Field:
    metadata = field.metadata
    if metadata and any(key in metadata for key in _DROPPED_METADATA):
        kept = {k: v for k, v in metadata.items() if k not in _DROPPED_METADATA}
        field = field.with_metadata(kept or None)
    data_type = normalize_type(field.type)
    # `==` calls list<item: T> and list<element: T> equal; Spark does not.
    return field if data_type is field.type else field.with_type(data_type)


def refused_types(field: pa.Field, path: str = "", depth: int = 0) -> Iterator[str]:
    path = f"{path}.{field.name}" if path else field.name
    data_type = field.type
    if depth > SCHEMA_NESTING_MAX:
        yield f"column {path[:80]!r} is nested deeper than {SCHEMA_NESTING_MAX} levels"
    elif data_type in _SCALARS or _is_stored_decimal(data_type):
        return
    elif pa.types.is_list(data_type):
        yield from refused_types(data_type.value_field, path, depth + 1)
    elif pa.types.is_map(data_type):
        yield from refused_types(data_type.key_field, path, depth + 1)
        yield from refused_types(data_type.item_field, path, depth + 1)
    elif pa.types.is_struct(data_type):
        names = [child.name for child in data_type]
        if len(set(names)) != len(names):
            yield f"column {path!r} has two fields of the same name"
        for child in data_type:
            yield from refused_types(child, path, depth + 1)
    else:
        yield f"column {path!r} is {data_type}: {_why_refused(data_type)}"


def _is_stored_decimal(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(data_type)) and 0 <= data_type.scale <= data_type.precision


def _why_refused(data_type: pa.DataType) -> str:
    name = str(data_type)
    return next((why for start, why in _WHY_REFUSED if name.startswith(start)), "not supported")


def with_times_as(kind: pa.DataType, time: pa.DataType) -> pa.DataType:
    def field(inner: pa.Field) -> pa.Field:
        return inner.with_type(with_times_as(inner.type, time))

    if pa.types.is_time(kind):
        return time
    if pa.types.is_null(kind):
        # Arrow 25 reads out of bounds when it casts a list of nulls to its own type.
        return pa.int8()
    if pa.types.is_map(kind):
        return pa.map_(field(kind.key_field), field(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([field(inner) for inner in kind])
    return kind
