"""The notation of values that JSON lines and CSV share, and reading it.

One notation per stored type, which is read back as the same value:

    boolean, integers        as they are            date           "2024-05-06"
    float, double            a number, or "NaN",    timestamp      "2024-05-06T07:08:09.5Z"
                             "Infinity", "-Infinity"  timestamp_ntz  the same without a zone
    decimal                  "12.50"                time           "07:08:09.000000001"
    string                   as it is               duration       "PT1.5S" (ISO 8601)
    binary                   base64                 array          a list
    struct                   an object              map            a list of [key, value]

Values without a notation (years before 1 and after 9999) are refused. Reading refuses what would be
cut or is of another type; only floats are rounded. Decimals may also be numbers, and maps with text
keys objects.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as t

__all__ = ["decode_column", "from_text", "is_text_in_csv", "lines_decoder"]

_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?", re.ASCII)
_MICROSECOND: Final = timedelta(microseconds=1)
_SHOWN_CHARS: Final = 60

Convert = Callable[[Any], Any]


def lines_decoder(kinds: Iterable[pa.DataType]) -> msgspec.json.Decoder[Any]:
    # A decimal that is written as a number must lose no digit.
    exact = any(_has_decimal(kind) for kind in kinds)
    return msgspec.json.Decoder(float_hook=Decimal if exact else None)


def _has_decimal(kind: pa.DataType) -> bool:
    if t.is_decimal(kind):
        return True
    return any(_has_decimal(kind.field(i).type) for i in range(kind.num_fields))


def is_text_in_csv(kind: pa.DataType) -> bool:
    """Return False where pyarrow itself reads the cells."""
    return bool(t.is_nested(kind) or t.is_binary(kind) or t.is_duration(kind))


def from_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    texts = column.to_pylist()
    if t.is_nested(kind):
        decoder = lines_decoder([kind])
        return decode_column([None if x is None else _json(decoder, x) for x in texts], kind)
    return decode_column(texts, kind)


def _json(decoder: msgspec.json.Decoder[Any], text: str) -> Any:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{_shown(text)} is no JSON") from error


def decode_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Raises ValueError, TypeError, OverflowError: a value is not of this type."""
    convert = _decoder(kind)
    found = set(map(type, values))
    if not found <= _taken_as_it_is(kind):
        values = [None if value is None else convert(value) for value in values]
    try:
        array = pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(_why_not(values, kind) or str(error)) from error
    if t.is_float32(kind) and found & {float, int, Decimal}:
        _check_float32(values, array)
    return array


def _why_not(values: Sequence[Any], kind: pa.DataType) -> str | None:
    """Return the reason without Arrow's names of C types; None where Arrow's text is better."""
    bits = kind.bit_width if t.is_integer(kind) else 0
    for value in values:
        if bits and isinstance(value, int) and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            wider = "a decimal column holds it" if bits == 64 else "a wider column holds it"
            return f"{_shown(value)} does not fit into {bits} bits ({wider}, or text)"
        if isinstance(value, Decimal) and t.is_decimal(kind):
            try:
                pa.array([value], kind)
            except pa.ArrowException:
                return (
                    f"{_shown(value)} has more than {kind.precision} digits, or more than "
                    f"{kind.scale} behind the point"
                )
    return None


def _taken_as_it_is(kind: pa.DataType) -> set[type]:
    """Return the Python types that `pa.array` converts exactly."""
    nothing = {type(None)}
    if t.is_integer(kind):
        return nothing | {int}
    if t.is_floating(kind):
        return nothing | {int, float}
    if t.is_boolean(kind):
        return nothing | {bool}
    if t.is_string(kind):
        return nothing | {str}
    return nothing


def _check_float32(values: Sequence[Any], array: pa.Array) -> None:
    """Refuse a double too large for a float: Arrow would silently store an infinity."""
    # The import takes as long as that of all pyarrow.
    import pyarrow.compute as pc

    if pc.any(pc.is_inf(array)).as_py():
        for value, stored in zip(values, array.to_pylist(), strict=True):
            if stored is not None and math.isinf(stored) and not math.isinf(value):
                raise ValueError(f"{value!r} is too large")


def _decoder(kind: pa.DataType) -> Convert:
    for matches, convert in _SCALARS:
        if matches(kind):
            return convert
    if t.is_timestamp(kind):
        return _zoned if kind.tz is not None else _local
    if t.is_list(kind):
        item = _decoder(kind.value_type)
        return lambda value: [
            None if x is None else item(x) for x in _expect(value, list, "a list")
        ]
    if t.is_map(kind):
        return _map_decoder(kind)
    if t.is_struct(kind):
        return _struct_decoder(kind)
    assert t.is_null(kind), kind
    return lambda value: _refuse(value, "nothing but null")


def _map_decoder(kind: pa.DataType) -> Convert:
    of_key, of_item = _decoder(kind.key_type), _decoder(kind.item_type)
    text_keys = t.is_string(kind.key_type)

    def pairs(value: Any) -> Any:
        if isinstance(value, dict) and text_keys:
            value = list(value.items())
        found = []
        for pair in _expect(value, list, "a list of [key, value]"):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                _refuse(pair, "a pair [key, value]")
            key, item = pair
            found.append((of_key(key), None if item is None else of_item(item)))
        return found

    return pairs


def _struct_decoder(kind: pa.DataType) -> Convert:
    decoders = {field.name: _decoder(field.type) for field in kind}

    def struct(value: Any) -> Any:
        fields = _expect(value, dict, "an object")
        if unknown := sorted(fields.keys() - decoders.keys()):
            raise ValueError(f"there is no field {unknown[0]!r} in {kind}")
        return {
            name: None if (inner := fields.get(name)) is None else decode(inner)
            for name, decode in decoders.items()
        }

    return struct


def _expect(value: Any, wanted: type, what: str) -> Any:
    return value if type(value) is wanted else _refuse(value, what)


def _refuse(value: Any, what: str) -> Any:
    raise ValueError(f"{_shown(value)} is not {what}")


def _shown(value: Any) -> str:
    text = repr(str(value)) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _integer(value: Any) -> int:
    if type(value) in (float, Decimal) and value == int(value):
        return int(value)
    return int(_expect(value, int, "a whole number"))


def _float(value: Any) -> float:
    if isinstance(value, str):
        if value in _NON_FINITE:
            return _NON_FINITE[value]
    elif isinstance(value, Decimal):
        number = float(value)
        if math.isinf(number):  # `float` makes an infinity of a number that is too large.
            raise ValueError(f"{value} is too large for a double")
        return number
    elif type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    raise ValueError(f"{_shown(value)} is not a number")


def _decimal(value: Any) -> Decimal:
    try:
        if isinstance(value, str | Decimal) or type(value) is int:
            return Decimal(value)
        if isinstance(value, float):
            return Decimal(repr(value))
    except ArithmeticError:
        pass
    raise ValueError(f"{_shown(value)} is not a decimal number")


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(_expect(value, str, "text in base64"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{_shown(value)} is not base64") from error


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(_expect(value, str, "a date"))
    except ValueError as error:
        raise ValueError(f"{_shown(value)} is not a date like 2024-05-06") from error


def _moment(value: Any, what: str) -> datetime:
    text = _expect(value, str, what)
    digits = text.replace(",", ".").partition(".")[2]
    count = next((i for i, c in enumerate(digits) if not c.isdigit()), len(digits))
    if count > 6 and digits[6:count].strip("0"):
        raise ValueError(f"{_shown(value)} has more digits than microseconds")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{_shown(value)} is not {what}") from error


def _zoned(value: Any) -> datetime:
    moment = _moment(value, "a timestamp like 2024-05-06T07:08:09Z")
    if moment.tzinfo is None:
        raise ValueError(f"{_shown(value)} names no time zone, as 2024-05-06T07:08:09Z does")
    return moment


def _local(value: Any) -> datetime:
    moment = _moment(value, "a timestamp like 2024-05-06T07:08:09")
    if moment.tzinfo is not None:
        raise ValueError(f"{_shown(value)} names a time zone, and the column has none")
    return moment


def _time(value: Any) -> int:
    match = _TIME.fullmatch(_expect(value, str, "a time"))
    if match is None:
        raise ValueError(f"{_shown(value)} is not a time like 07:08:09.5")
    hours, minutes, seconds, fraction = match.groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def _duration(value: Any) -> int:
    # Microseconds: pyarrow refuses timedeltas at the range's end.
    try:
        return msgspec.convert(_expect(value, str, "a duration"), timedelta) // _MICROSECOND
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"{_shown(value)} is not a duration like PT1.5S") from error


_SCALARS: Final[tuple[tuple[Callable[[pa.DataType], bool], Convert], ...]] = (
    (t.is_boolean, lambda value: _expect(value, bool, "true or false")),
    (t.is_integer, _integer),
    (t.is_floating, _float),
    (t.is_decimal, _decimal),
    (t.is_string, lambda value: _expect(value, str, "text")),
    (t.is_binary, _binary),
    (t.is_date, _date),
    (t.is_time, _time),
    (t.is_duration, _duration),
)
