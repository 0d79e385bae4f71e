"""Why data does not fit a column, and what to do, in the caller's terms: Arrow's own errors name C
types and internal conversions."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as t

__all__ = ["first_line", "why_not_type", "why_not_value"]

_MISSING: Final = frozenset(("NaTType", "NAType"))


def why_not_type(source: pa.DataType, target: pa.DataType) -> str:
    if t.is_timestamp(target) and t.is_timestamp(source):
        if target.tz is not None:
            return (
                "its times have no time zone: give them one (pandas `.dt.tz_localize`, "
                "polars `.dt.replace_time_zone`, pyarrow.compute `assume_timezone`)"
            )
        return (
            "its times have a time zone, and the column has none: take it off (pandas "
            "`.dt.tz_localize(None)`, polars `.dt.replace_time_zone(None)`)"
        )
    if t.is_floating(source) and t.is_integer(target):
        return (
            "pandas makes floats of whole numbers where some are missing: make them whole again "
            '(pandas `.astype("Int64")`, polars and pyarrow `.cast`)'
        )
    if t.is_floating(source) and t.is_decimal(target):
        return (
            f"a float is no exact decimal number: round it to {target.scale} digits behind the "
            "point yourself (polars and pyarrow `.cast`, in Python `Decimal`)"
        )
    if t.is_floating(source) and t.is_floating(target):
        return "a narrower float loses digits: round it yourself (`.astype`, `.cast`)"
    if t.is_string(source) or t.is_large_string(source):
        return "it is text: parse it first"
    if t.is_binary(source) and t.is_string(target):
        return "bytes are no text until they are decoded: cast them if they are UTF-8"
    return "convert it first"


def why_not_value(value: Any, kind: pa.DataType, cause: str) -> str:
    """Return the reason; by default Arrow's `cause`."""
    kind_of_value = type(value).__name__
    is_nan = isinstance(value, float) and math.isnan(value) and not t.is_floating(kind)
    if is_nan or kind_of_value in _MISSING:
        return f"{value} is what pandas has for a missing value: give None"
    if isinstance(value, str):
        half = next((i for i, c in enumerate(value) if "\ud800" <= c <= "\udfff"), None)
        if half is not None:
            return f"character {half} is half of a surrogate pair, which no UTF-8 text has"
        if not t.is_string(kind) and not t.is_nested(kind):
            return f"text is no {_in_python(kind)}: parse it first"
    if isinstance(value, bool) and (t.is_integer(kind) or t.is_decimal(kind)):
        return "a bool is no number: give 0 or 1"
    if isinstance(value, int) and t.is_integer(kind):
        return f"it does not fit into {kind.bit_width} bits"
    if t.is_decimal(kind):
        if isinstance(value, float):
            return "a float is no exact decimal number: give a Decimal, such as Decimal(str(value))"
        if isinstance(value, Decimal) and not value.is_finite():
            return "no decimal column holds it: give None"
        if isinstance(value, Decimal | int):
            return (
                f"it has more than {kind.precision} digits, or more than {kind.scale} of them "
                "behind the point: round it, or give the column more"
            )
    if t.is_string(kind):
        return f"{kind_of_value} is no text: convert it first (`str`)"
    if t.is_timestamp(kind) and isinstance(value, date) and kind_of_value == "date":
        return "a date has no time of day: give a datetime"
    return cause


def _in_python(kind: pa.DataType) -> str:
    for is_kind, name in (
        (t.is_date, "date"),
        (t.is_timestamp, "datetime"),
        (t.is_duration, "timedelta"),
        (t.is_time, "time"),
        (t.is_binary, "bytes"),
        (t.is_boolean, "bool"),
    ):
        if is_kind(kind):
            return name
    return "number"


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
