"""Arrow arrays and scalars made without pandas.

`pa.array` of a list and `pa.scalar` import pandas, if installed, at their first call: a third of a
second and 40 MB in every process.
"""

from __future__ import annotations

import array
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

__all__ = ["integer", "integers", "text"]

_TYPECODES: Final = {pa.int32(): "i", pa.int64(): "q", pa.uint64(): "Q"}


def integers(values: Iterable[int], data_type: pa.DataType) -> pa.Array:
    code = "q" if pa.types.is_timestamp(data_type) else _TYPECODES[data_type]
    packed = array.array(code, values)
    assert packed.itemsize * 8 == data_type.bit_width, "a C int has 32 bits, a long long 64"
    return pa.Array.from_buffers(data_type, len(packed), [None, pa.py_buffer(packed)])


def integer(value: int, data_type: pa.DataType) -> pa.Scalar:
    return integers([value], data_type)[0]


def text(value: str) -> pa.Scalar:
    encoded = value.encode()
    offsets = array.array("i", [0, len(encoded)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded)]
    return pa.Array.from_buffers(pa.string(), 1, buffers)[0]
