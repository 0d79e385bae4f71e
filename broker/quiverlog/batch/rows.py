"""The decoder of rows, for broker and readers: from a batch's bytes to safe Arrow arrays.

Unless the metadata alone prove that, rows are decoded as bare bytes first (`structure.Plan.layout`:
strings as binary, maps as lists of structs), whose layout Arrow checks completely. With good
offsets, lengths and null counts the buffers get their types, without a copy.

The order matters: an array whose offsets lead outside of its buffers is a wild read at its first
use, and Arrow aborts the process when it builds a map with a null key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from quiverlog.errors import CorruptBatch
from quiverlog.types import Compression

from .ipc_metadata import IpcMetadata
from .structure import Plan, plan_of

__all__ = ["check_nested_nulls", "check_rows", "read_rows"]

_REFUSALS: Final = (pa.ArrowException, ValueError, OSError, MemoryError)


def read_rows(
    message: memoryview,
    metadata: IpcMetadata,
    stored: pa.Schema,
    columns: Sequence[int] | None = None,
) -> pa.RecordBatch:
    """`columns`: ascending numbers; the others stay compressed. An uncompressed message gives all.

    Raises CorruptBatch: the bytes cannot be decompressed, or no reader could use them safely.
    """
    plan = plan_of(stored)
    try:
        if metadata.compression is Compression.NONE:
            if not metadata.surely_readable:
                _read_bare(message, plan)
            data = pa.ipc.read_record_batch(pa.py_buffer(message), stored)
        else:
            data = _decompress(message, plan, columns)
    except _REFUSALS as error:
        raise _refused(error) from None
    return data


def check_rows(
    message: memoryview, metadata: IpcMetadata, stored: pa.Schema, *, full: bool
) -> None:
    """Raise CorruptBatch unless `read_rows` will give the rows, with no nulls in NOT NULL fields.

    Nested nulls are checked here only, as they harm no reader. `full`: check the values, too.
    """
    if metadata.surely_readable:
        # Wide, flat tables of numbers: the check would be a sixth of a small request's cost.
        return
    plan = plan_of(stored)
    try:
        bare = _read_bare(message, plan)
        if plan.has_required_inside:
            for column in bare.columns:
                check_nested_nulls(column)
        if full:
            _with_meaning(bare, stored).validate(full=True)
    except _REFUSALS as error:
        raise _refused(error) from None


def _refused(error: BaseException) -> CorruptBatch:
    return CorruptBatch(f"Arrow refuses the rows: {str(error)[:300]}.")


def _read_bare(message: memoryview, plan: Plan) -> pa.RecordBatch:
    bare = pa.ipc.read_record_batch(pa.py_buffer(message), plan.layout)
    # Full: offsets, lengths and null counts of every row, not only of the first and last.
    bare.validate(full=True)
    if plan.has_maps:  # Only now: the offsets that lead to the keys are good.
        for column, field in zip(bare.columns, plan.schema, strict=True):
            _check_maps(column, field.type)
    return bare


def _decompress(message: memoryview, plan: Plan, columns: Sequence[int] | None) -> pa.RecordBatch:
    stored = plan.schema
    if columns is None:
        return _with_meaning(_read_bare(message, plan), stored)
    # Only the stream reader leaves unselected columns compressed.
    options = pa.ipc.IpcReadOptions(included_fields=list(columns))
    stream = _TwoPieces(memoryview(plan.layout.serialize()), message)
    with pa.PythonFile(stream, mode="r") as source:
        bare = pa.ipc.open_stream(source, options=options).read_next_batch()
    bare.validate(full=True)
    fields = [stored.field(number) for number in columns]
    for array, field in zip(bare.columns, fields, strict=True):
        _check_maps(array, field.type)
    return _with_meaning(bare, pa.schema(fields, metadata=stored.metadata))


class _TwoPieces:
    """Two buffers, read as one file; each read is within one of them and copies nothing."""

    closed = False

    def __init__(self, *pieces: memoryview) -> None:
        self._pieces = list(pieces)

    def read(self, size: int) -> memoryview:
        while self._pieces and not self._pieces[0]:
            del self._pieces[0]
        if not self._pieces:
            return memoryview(b"")
        piece = self._pieces[0]
        self._pieces[0] = piece[size:]
        return piece[:size]

    def close(self) -> None:
        self.closed = True


# --- from layout to meaning -----------------------------------------------------------------------
def _with_meaning(bare: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(bare.columns, schema, strict=True)
    arrays = [_typed(array, field.type) for array, field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    types = pa.types
    if not types.is_nested(data_type):
        # Strings and decimals differ from their layout by name only.
        return array if array.type is data_type else array.view(data_type)
    if types.is_struct(data_type):
        children = [
            _typed(array.field(number), data_type.field(number).type)
            for number in range(data_type.num_fields)
        ]
        return _assembled(array, data_type, 1, children)
    assert types.is_list(data_type) or types.is_map(data_type), data_type
    inner = (
        pa.struct([data_type.key_field, data_type.item_field])
        if types.is_map(data_type)
        else data_type.value_type
    )
    return _assembled(array, data_type, 2, [_typed(array.values, inner)])


def _assembled(
    array: pa.Array, data_type: pa.DataType, buffer_count: int, children: list[pa.Array]
) -> pa.Array:
    # Arrays from IPC begin at 0; a slice would need its children sliced as well.
    assert array.offset == 0
    return pa.Array.from_buffers(
        data_type, len(array), array.buffers()[:buffer_count], array.null_count, 0, children
    )


# --- nulls where none may be ----------------------------------------------------------------------
def _check_maps(array: pa.Array, data_type: pa.DataType) -> None:
    """Refuse null keys and entries before Arrow builds a map of them, which aborts the process."""
    types = pa.types
    if types.is_struct(data_type):
        for number in range(data_type.num_fields):
            _check_maps(array.field(number), data_type.field(number).type)
    elif types.is_list(data_type):
        _check_maps(array.values, data_type.value_type)
    elif types.is_map(data_type):
        entries = array.values
        keys, values = entries.field(0), entries.field(1)
        if entries.null_count or keys.null_count:
            raise ValueError("a map has null keys or null entries")
        _check_maps(keys, data_type.key_type)
        _check_maps(values, data_type.item_type)


def check_nested_nulls(array: pa.Array) -> None:
    """Raise ValueError where NOT NULL fields below `array` have nulls under valid parents.

    Maps are visited only where `array` is of a layout type, in which they are lists.
    """
    data_type = array.type
    if pa.types.is_struct(data_type):
        for number, field in enumerate(data_type):
            child = array.field(number)
            if not field.nullable and child.null_count:
                # Its import takes as long as all of pyarrow; few rows come here.
                import pyarrow.compute as pc

                under_value = pc.and_(child.is_null(), array.is_valid())
                _refuse_nulls(field, bool(pc.any(under_value).as_py()))
            check_nested_nulls(child)
    elif pa.types.is_list(data_type):
        inside = array.flatten()  # Leaves out the items of null lists.
        field = data_type.value_field
        _refuse_nulls(field, not field.nullable and inside.null_count > 0)
        check_nested_nulls(inside)


def _refuse_nulls(field: pa.Field, there_are: bool) -> None:
    if there_are:
        raise ValueError(f"nested field {field.name!r} has nulls and may not be null")
