"""Values outside of their type, which Arrow accepts from buffers and files unchecked: a
decimal(4,2) of 12345.67, text that is no UTF-8, a time of day beyond midnight.

Readers make different values of them, or fail. Values outside of a slice or under a null are never
read: they may be anything.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as t

from .arrow_types import DECIMAL_PRECISION_MAX
from .halves import first_bad_row

__all__ = ["WrongValue", "can_be_wrong", "first_wrong_value"]

_PIECE_BYTES = 64 << 10
"""A copy of this size stays in the processor's cache for the check."""
_ROWS_AS_BYTES_MIN = 256
"""For fewer texts, Arrow's check is faster than finding their bytes."""
_SHOWN_CHARS = 60


class WrongValue(NamedTuple):
    row: int
    shown: str
    why: str


def can_be_wrong(kind: pa.DataType) -> bool:
    if t.is_string(kind) or t.is_decimal(kind) or t.is_time(kind):
        return True
    return any(can_be_wrong(kind.field(number).type) for number in range(kind.num_fields))


def first_wrong_value(column: pa.Array) -> WrongValue | None:
    if _is_held(column):
        return None
    row = _first_wrong_row(column)
    leaf = _wrong_leaf(column.slice(row, 1))
    return WrongValue(row, *_described(leaf))


def _is_held(array: pa.Array) -> bool:
    kind = array.type
    if t.is_nested(kind):
        if not can_be_wrong(kind) or not len(array) or all(map(_is_held, _children(array))):
            return True
        # A wrong value may be under a null parent, where no reader sees it.
        return bool(array.null_count) and all(map(_is_held, _children(array.drop_null())))
    # ASCII is valid UTF-8 wherever it is cut. Its check is some 100 times faster for single
    # characters, 3 to 8 times for texts of 8 to 20, and as fast as Arrow's for texts of 100.
    if len(array) >= _ROWS_AS_BYTES_MIN and t.is_string(kind) and _is_ascii(array):
        return True
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _children(array: pa.Array) -> list[pa.Array]:
    kind = array.type
    if t.is_struct(kind):
        return [array.field(number) for number in range(kind.num_fields)]
    offsets = array.offsets
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    whole = (array.keys, array.items) if t.is_map(kind) else (array.values,)
    # Only what the slice's rows hold: items beside it are never read.
    return [child.slice(start, end - start) for child in whole]


def _is_ascii(array: pa.Array) -> bool:
    """Return whether the bytes of all texts, also of null ones, are ASCII; False proves nothing."""
    _, offsets, data = array.buffers()
    if data is None:
        return True
    ends = memoryview(offsets).cast("B").cast("i")
    first, last = ends[array.offset], ends[array.offset + len(array)]
    view = memoryview(data).cast("B")
    pieces = range(first, last, _PIECE_BYTES)
    return all(bytes(view[at : min(at + _PIECE_BYTES, last)]).isascii() for at in pieces)


def _first_wrong_row(column: pa.Array) -> int:
    return first_bad_row(len(column), lambda start, count: _is_held(column.slice(start, count)))


def _wrong_leaf(row: pa.Array) -> pa.Array:
    while t.is_nested(row.type):
        child = next(child for child in _children(row) if not _is_held(child))
        row = child.slice(_first_wrong_row(child), 1)
    return row


def _described(value: pa.Array) -> tuple[str, str]:
    kind = value.type
    if t.is_string(kind):
        shown = repr(value.view(pa.binary())[0].as_py())
        if len(shown) > _SHOWN_CHARS:
            shown = f"{shown[:_SHOWN_CHARS]}..."
        return shown, "is no UTF-8: decode it from the encoding that it is in"
    if t.is_decimal(kind):
        way = "use a wider type" if kind.precision < DECIMAL_PRECISION_MAX else "send it as text"
        digits = f"{kind.precision} digits, {kind.scale} of them behind the point"
        return format(value[0].as_py(), "f"), f"has more than {digits}: {way}"
    nanoseconds = value.view(pa.int64())[0].as_py()
    return f"{nanoseconds} ns", "is no time of day, which ends before 24:00"
