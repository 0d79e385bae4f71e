"""Checks for values that pyarrow's conversion to a type would change without an error.

`pa.array([1.5], pa.int32())` is 1: pyarrow cuts off fractions, hours and nanoseconds, takes a local
time for UTC, drops a struct's keys without a field, and makes infinity of large numbers. Digits
that a 32-bit float cannot hold are no error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from types import NoneType
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as t

__all__ = ["Check", "check_of"]

Check = Callable[[Sequence[Any]], None]
"""Raises ValueError, with the reason, for the first value that would change."""

_WHOLE: Final = frozenset((int, NoneType))


def check_of(kind: pa.DataType) -> Check | None:
    """Return a check for values of a type; None: the type needs none."""
    if t.is_integer(kind):
        return _check_whole
    if t.is_floating(kind):
        return _check_single if kind.bit_width < 64 else _check_no_booleans
    if t.is_timestamp(kind):
        return _check_moments if kind.tz else _check_local
    for is_kind, check in (
        (t.is_date, _check_dates),
        (t.is_time, _check_times),
        (t.is_duration, _check_durations),
    ):
        if is_kind(kind):
            return check
    if t.is_map(kind):
        return _of_map(check_of(kind.key_type), check_of(kind.item_type))
    if t.is_list(kind):
        return _of_list(check_of(kind.value_type))
    return _of_struct(kind) if t.is_struct(kind) else None


def _of_other_kinds(values: Sequence[Any], usual: Iterable[type]) -> list[Any]:
    if set(map(type, values)) <= set(usual):
        return []
    return [v for v in values if type(v) not in usual]


def _check_whole(values: Sequence[Any]) -> None:
    for value in _of_other_kinds(values, _WHOLE):
        # Whole numbers have `__index__`, numpy's included; floats and decimals do not.
        if not hasattr(value, "__index__") and not isinstance(value, pa.Scalar):
            raise ValueError(f"a {type(value).__name__} is no whole number: convert it first")


def _check_no_booleans(values: Sequence[Any]) -> None:
    if bool in set(map(type, values)):
        raise ValueError("a bool is no number: convert it first")


def _check_single(values: Sequence[Any]) -> None:
    _check_no_booleans(values)
    for value in values:
        if isinstance(value, float):  # numpy's float64 is one
            try:
                struct.pack("<f", value)  # the native format has no bounds
            except OverflowError:
                raise ValueError("it is too large for 32 bits") from None


def _check_moments(values: Sequence[Any]) -> None:
    _check_microseconds(values, datetime)
    if any(isinstance(v, datetime) and v.tzinfo is None for v in values):
        raise ValueError("it has no time zone: write datetime(..., tzinfo=timezone.utc)")


def _check_local(values: Sequence[Any]) -> None:
    _check_microseconds(values, datetime)
    if any(isinstance(v, datetime) and v.tzinfo is not None for v in values):
        raise ValueError("it has a time zone, and the column has none")


def _check_microseconds(values: Sequence[Any], usual: type) -> None:
    """Check for digits below microseconds, which pandas' subclasses of Python's types have."""
    for value in _of_other_kinds(values, (usual, *_WHOLE)):
        if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
            raise ValueError("it has more digits than microseconds")
        _check_not_a_fraction(value)


def _check_not_a_fraction(value: Any) -> None:
    if isinstance(value, float):
        raise ValueError("a float is no time: convert it first")


def _check_dates(values: Sequence[Any]) -> None:
    for value in _of_other_kinds(values, (date, NoneType)):
        _check_not_a_fraction(value)
        if isinstance(value, datetime) and (value.tzinfo or value.time() != time()):
            raise ValueError("it has a time of day, or a zone: take its date()")


def _check_times(values: Sequence[Any]) -> None:
    for value in values:
        _check_not_a_fraction(value)
        if isinstance(value, time) and value.tzinfo is not None:
            raise ValueError("it has a time zone, and the column has none")


def _check_durations(values: Sequence[Any]) -> None:
    _check_microseconds(values, timedelta)


def _of_list(inner: Check | None) -> Check:
    def check(values: Sequence[Any]) -> None:
        if str in set(map(type, values)):
            raise ValueError("text is no list: its characters would be")
        if inner is not None:
            # All items at once: one check per column, not per row.
            inner([item for value in values if value is not None for item in value])

    return check


def _of_map(of_key: Check | None, of_item: Check | None) -> Check | None:
    if of_key is None and of_item is None:
        return None

    def check(values: Sequence[Any]) -> None:
        there = (value for value in values if value is not None)
        pairs = [p for v in there for p in (v.items() if isinstance(v, Mapping) else v)]
        if of_key is not None:
            of_key([key for key, _ in pairs])
        if of_item is not None:
            of_item([item for _, item in pairs])

    return check


def _of_struct(kind: pa.StructType) -> Check:
    names = [field.name for field in kind]
    checks = [(f.name, inner) for f in kind if (inner := check_of(f.type)) is not None]

    def fields(value: Any) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        # A tuple by position, else pairs, as pyarrow takes them.
        return dict(zip(names, value, strict=False) if isinstance(value, tuple) else value)

    def check(values: Sequence[Any]) -> None:
        rows = [fields(value) for value in values if value is not None]
        unknown = set().union(*rows).difference(names)
        if unknown:
            shown = ", ".join(sorted(map(repr, unknown))[:5])
            raise ValueError(f"the struct has no field {shown}")
        for name, of_field in checks:
            of_field([row.get(name) for row in rows])

    return check
