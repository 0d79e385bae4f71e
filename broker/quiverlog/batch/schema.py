"""A topic's schema: its bytes, its checks, and the schema for opaque payloads.

Re-exports the main names of `evolution` and `normalize`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pyarrow as pa

from quiverlog.errors import InvalidSchema
from quiverlog.limits import SCHEMA_BYTES_MAX, SCHEMA_FIELDS_MAX

from .arrow_types import normalize_field, refused_types
from .evolution import SchemaHistory, can_widen, check_readable, evolve
from .normalize import conform

__all__ = [
    "RAW_SCHEMA",
    "SchemaHistory",
    "can_widen",
    "check_readable",
    "check_schema",
    "conform",
    "deserialize_schema",
    "deserialize_stored",
    "evolve",
    "normalize_schema",
    "serialize_schema",
]

_DROPPED_METADATA: Final = (b"pandas",)

RAW_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(
                pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
        ),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
"""Shaped like a Kafka record."""


def serialize_schema(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes()  # type: ignore[no-any-return]


def deserialize_schema(data: bytes | memoryview) -> pa.Schema:
    # Before Arrow parses it.
    if len(data) > SCHEMA_BYTES_MAX:
        raise InvalidSchema(f"the schema takes {len(data)} bytes, allowed are {SCHEMA_BYTES_MAX}.")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        _check_text(schema)
    except UnicodeDecodeError as error:
        raise InvalidSchema(f"a name or time zone in the schema is not UTF-8: {error}.") from None
    except (pa.ArrowException, ValueError, OSError, MemoryError) as error:
        raise InvalidSchema(f"not an Arrow schema message: {error}.") from None
    return schema


def _check_text(schema: pa.Schema) -> None:
    """Raise UnicodeDecodeError when a name or time zone, at any depth, is not UTF-8.

    pyarrow reads such a schema and raises only when the text is used.
    """
    for field in schema:
        _ = field.name
        _check_text_of(field.type)


def _check_text_of(data_type: pa.DataType) -> None:
    if isinstance(data_type, pa.BaseExtensionType):
        _check_text_of(data_type.storage_type)
    elif pa.types.is_dictionary(data_type):
        _check_text_of(data_type.value_type)
    elif pa.types.is_timestamp(data_type):
        _ = data_type.tz
    else:
        for index in range(data_type.num_fields):
            child = data_type.field(index)
            _ = child.name
            _check_text_of(child.type)


def deserialize_stored(data: bytes | memoryview) -> pa.Schema:
    """Read a schema under which stored rows can be decoded safely.

    Another type than those of topics, such as a dictionary, would bring unchecked indices from an
    untrusted sender. Raises InvalidSchema.
    """
    schema = deserialize_schema(data)
    check_schema(schema)
    return schema


def normalize_schema(schema: pa.Schema) -> pa.Schema:
    metadata = {k: v for k, v in (schema.metadata or {}).items() if k not in _DROPPED_METADATA}
    return pa.schema([normalize_field(field) for field in schema], metadata=metadata or None)


def check_schema(schema: pa.Schema) -> None:
    """Raise InvalidSchema for every column that cannot be stored, with what to use instead."""
    names = schema.names
    if not names:
        raise InvalidSchema("a schema needs at least one column.")
    if any(not name for name in names):
        raise InvalidSchema("every column needs a name.")
    fields = sum(_count_fields(field.type) for field in schema)
    if fields > SCHEMA_FIELDS_MAX:
        raise InvalidSchema(f"{fields} columns and nested fields, allowed are {SCHEMA_FIELDS_MAX}.")
    if len(set(names)) < len(names):
        doubles = sorted(name for name, count in Counter(names).items() if count > 1)
        raise InvalidSchema(f"column names must differ; used twice: {', '.join(doubles)}.")
    refused = [reason for field in schema for reason in refused_types(field)]
    if refused:
        types = "docs/python-client.md lists the types that a topic may hold."
        raise InvalidSchema(f"{'; '.join(refused)}. {types}")


def _count_fields(data_type: pa.DataType) -> int:
    children = (data_type.field(i).type for i in range(data_type.num_fields))
    return 1 + sum(_count_fields(child) for child in children)
