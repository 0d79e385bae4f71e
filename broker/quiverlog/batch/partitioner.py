"""The partition of a row by its key columns, the same in every client.

docs/protocol.md ("Key partitioning") defines it for other languages, with test vectors. Equal
integers hash equally in each width, and so do floats (as float64) and decimals (without trailing
zeros). The integer 1 and the float 1.0 hash differently.

A change of any value's hash separates equal keys of existing topics: the golden vectors must never
change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from .checksum import crc32c
from .numbers import integer, integers

__all__ = ["hash_rows", "partition_rows"]

NULL_BITS: Final = 0xA5A5_5A5A_C3C3_3C3C
"""Any constant would do; this one is an unlikely value."""
NAN_BITS: Final = 0x7FF8_0000_0000_0000
_INCREMENT: Final = 0x9E37_79B9_7F4A_7C15
_MULTIPLIER_1: Final = 0xBF58_476D_1CE4_E5B9
_MULTIPLIER_2: Final = 0x94D0_49BB_1331_11EB


def _u64(value: int) -> pa.Scalar:
    return integer(value, pa.uint64())


_INCREMENT_U64: Final = _u64(_INCREMENT)
_MULTIPLIER_1_U64: Final = _u64(_MULTIPLIER_1)
_MULTIPLIER_2_U64: Final = _u64(_MULTIPLIER_2)
_NULL_U64: Final = _u64(NULL_BITS)
_NAN_U64: Final = _u64(NAN_BITS)
_30: Final = _u64(30)
_27: Final = _u64(27)
_31: Final = _u64(31)
_32: Final = _u64(32)


def partition_rows(
    data: pa.RecordBatch, key_columns: Sequence[str], partitions: int
) -> list[tuple[int, pa.RecordBatch]]:
    assert key_columns, "rows without a key are spread by the producer"
    if partitions == 1 or data.num_rows == 0:
        return [(0, data)] if data.num_rows else []
    numbers = _scale(hash_rows(data, key_columns), partitions)
    bounds = pc.min_max(numbers)
    first = bounds["min"].as_py()
    if first == bounds["max"].as_py():
        return [(first, data)]
    # The sort is stable: rows with equal keys keep their order.
    gathered = data.take(pc.array_sort_indices(numbers))
    counts = sorted((count["values"], count["counts"]) for count in _counts(numbers))
    parts = []
    at = 0
    for partition, count in counts:
        parts.append((partition, gathered.slice(at, count)))
        at += count
    return parts


def _counts(numbers: pa.Array) -> list[dict[str, int]]:
    return pc.value_counts(numbers).to_pylist()  # type: ignore[no-any-return]


def _scale(hashes: pa.Array, partitions: int) -> pa.Array:
    # The upper half times the count stays below 2^64: a product in place of a modulo.
    upper = pc.shift_right(hashes, _32)
    return pc.shift_right(pc.multiply(upper, _u64(partitions)), _32).cast(pa.uint16())


def hash_rows(data: pa.RecordBatch, key_columns: Sequence[str]) -> pa.Array:
    hashes: pa.Array | None = None
    for name in key_columns:
        bits = _bits_of(data.column(name))
        hashes = _mix(bits if hashes is None else pc.bit_wise_xor(hashes, bits))
    return hashes


def _mix(x: pa.Array) -> pa.Array:
    """SplitMix64's step: every input bit affects every output bit."""
    x = pc.add(x, _INCREMENT_U64)
    x = pc.multiply(pc.bit_wise_xor(x, pc.shift_right(x, _30)), _MULTIPLIER_1_U64)
    x = pc.multiply(pc.bit_wise_xor(x, pc.shift_right(x, _27)), _MULTIPLIER_2_U64)
    return pc.bit_wise_xor(x, pc.shift_right(x, _31))


def _bits_of(column: pa.Array) -> pa.Array:
    bits = _bits_of_values(column)
    return pc.fill_null(bits, _NULL_U64) if bits.null_count else bits


def _bits_of_values(column: pa.Array) -> pa.Array:
    types = pa.types
    data_type = column.type
    if types.is_dictionary(data_type):
        # Of the values: a dictionary's order must not matter.
        return pc.take(_bits_of_values(column.dictionary), column.indices)
    if types.is_int64(data_type) or types.is_timestamp(data_type) or types.is_duration(data_type):
        return column.view(pa.uint64())
    if types.is_time64(data_type):
        return column.view(pa.uint64())
    if types.is_date32(data_type):
        # By the value in 64 bits, as integers.
        return column.view(pa.int32()).cast(pa.int64()).view(pa.uint64())
    if types.is_integer(data_type) or types.is_boolean(data_type):
        return column.cast(pa.int64()).view(pa.uint64())
    if types.is_floating(data_type):
        return _bits_of_floats(column.cast(pa.float64()))
    return _bits_of_uniques(column)


def _bits_of_floats(column: pa.Array) -> pa.Array:
    column = pc.add(column, 0.0)  # -0.0 becomes 0.0: the two are equal and must hash equally.
    # NaNs have many bit patterns.
    return pc.if_else(pc.is_nan(column), _NAN_U64, column.view(pa.uint64()))


def _bits_of_uniques(column: pa.Array) -> pa.Array:
    encoded = column.dictionary_encode()
    values: Iterable[bytes]
    if pa.types.is_decimal(column.type):
        values = map(_decimal_text, encoded.dictionary.to_pylist())
    else:
        # The bytes of text: equal to those of a binary column.
        values = encoded.dictionary.cast(pa.binary()).to_pylist()
    # Each distinct value is hashed once, as Python code is slow per value.
    bits = integers(map(crc32c, values), pa.uint64())
    return pc.take(bits, encoded.indices)


def _decimal_text(value: Decimal) -> bytes:
    """Return `<digits>e<exponent>` without trailing zeros: 1.5 and 1.50 are the same."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    if not kept:
        return b"0e0"
    return f"{'-' if sign else ''}{kept}e{exponent + len(text) - len(kept)}".encode()
