"""The columns that may be a topic's key.

Apart from partitioner.py, whose import takes a third of a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from quiverlog.errors import InvalidSchema

__all__ = ["check_key_columns"]


def check_key_columns(schema: pa.Schema, key_columns: Sequence[str]) -> None:
    for index, name in enumerate(key_columns):
        if name not in schema.names:
            raise InvalidSchema(f"key column {name!r} is not in the schema.")
        if name in key_columns[:index]:
            raise InvalidSchema(f"key column {name!r} is named twice.")
        data_type = schema.field(name).type
        if pa.types.is_nested(data_type) or pa.types.is_null(data_type):
            raise InvalidSchema(f"column {name!r} is {data_type} and cannot be part of a key.")
