"""Arrow arrays of Python values, made without pandas, whose import takes tenths of a second.

Only values of exactly the type's own Python type are accepted: results and refusals are pyarrow's.
Others give None, and the caller uses pyarrow.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from types import NoneType
from typing import Any, Final

import pyarrow as pa

__all__ = ["array_of", "plain_array"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_CODES: Final = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.float64(): "d",
}
_OFFSET_MAX: Final = 2**31 - 1
VALUES_MAX: Final = 500_000
"""pyarrow is several times faster: a process that has converted this many values has lost about as
much time as the import of pandas takes."""


class _Budget:
    left = VALUES_MAX


def array_of(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    if _Budget.left > 0 and "pandas" not in sys.modules:
        _Budget.left -= len(values)
        made = plain_array(values, data_type)
        if made is not None:
            return made
    return pa.array(values, data_type)


def plain_array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array | None:
    found = _MAKERS.get(data_type)
    if found is None:
        return None
    plain, filler, make = found
    kinds = set(map(type, values))
    # A subclass (bool for int, numpy types) may convert in another way: pyarrow decides.
    if not kinds <= {plain, NoneType}:
        return None
    present = [value is not None for value in values] if NoneType in kinds else None
    if present is not None:
        values = [filler if value is None else value for value in values]
    try:
        buffers = make(values, data_type)
    except (OverflowError, UnicodeEncodeError):  # pyarrow refuses them with a better message.
        return None
    if buffers is None:
        return None
    validity = None if present is None else _bits(present)
    made = pa.Array.from_buffers(data_type, len(values), [validity, *buffers])
    assert made.null_count == (0 if present is None else present.count(False))
    return made


def _bits(flags: Sequence[Any]) -> pa.Buffer:
    text = "".join("1" if flag else "0" for flag in reversed(flags))
    return pa.py_buffer(int(text or "0", 2).to_bytes((len(flags) + 7) // 8, "little"))


Buffers = list[pa.Buffer] | None


def _numbers(values: Sequence[Any], data_type: pa.DataType) -> Buffers:
    return [pa.py_buffer(array.array(_CODES[data_type], values))]


def _booleans(values: Sequence[Any], _data_type: pa.DataType) -> Buffers:
    return [_bits(values)]


def _moments(values: Sequence[Any], _data_type: pa.DataType) -> Buffers:
    if any(value.tzinfo is None for value in values):
        return None
    return [pa.py_buffer(array.array("q", [(value - _EPOCH) // _MICROSECOND for value in values]))]


def _texts(values: Sequence[Any], data_type: pa.DataType) -> Buffers:
    return _binaries([value.encode() for value in values], data_type)


def _binaries(values: Sequence[Any], _data_type: pa.DataType) -> Buffers:
    ends = array.array("q", accumulate(map(len, values), initial=0))
    if ends[-1] > _OFFSET_MAX:  # Offsets of text are 32 bits.
        return None
    return [pa.py_buffer(array.array("i", ends)), pa.py_buffer(b"".join(values))]


_Maker = Callable[[Sequence[Any], pa.DataType], Buffers]
_MAKERS: Final[dict[pa.DataType, tuple[type, Any, _Maker]]] = {
    **{kind: (int, 0, _numbers) for kind in _CODES if pa.types.is_integer(kind)},
    pa.float64(): (float, 0.0, _numbers),
    pa.bool_(): (bool, False, _booleans),
    pa.string(): (str, "", _texts),
    pa.binary(): (bytes, b"", _binaries),
    pa.timestamp("us", "UTC"): (datetime, _EPOCH, _moments),
}
"""The Python type accepted, the filler for nulls, and the maker of buffers."""
