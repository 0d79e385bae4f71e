"""Schemas as people type them: `id long, name string not null, price decimal(10,2)`.

Owns a small grammar, close to Spark's DDL, and its inverse, which `topic describe` prints:

    schema := column ("," column)*
    column := name [":"] type ["not null"]
    type   := simple | decimal [ "(" precision ["," scale] ")" ] | "array" "<" type ["not null"] ">"
            | "map" "<" type "," type ["not null"] ">" | "struct" "<" [column ("," column)*] ">"

Names are letters, digits and `_`, or anything between back quotes (a back quote is doubled). Types
are read without regard to case; a `timestamp` counts microseconds and is in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from quiverlog.limits import SCHEMA_BYTES_MAX, SCHEMA_FIELDS_MAX, SCHEMA_NESTING_MAX

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SchemaSyntaxError", "format_schema", "format_type", "parse_schema"]

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|([<>(),:])|(\S))")
_TYPE_HINT = (
    "boolean, byte, short, int, long, float, double, decimal(p,s), string, binary, date, "
    "timestamp, timestamp_ntz, duration, time, array<t>, map<k,v>, struct<name: t, ...>"
)


class SchemaSyntaxError(ValueError):
    """The text is not a schema."""


def _simple_types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    by_type = {
        pa.bool_(): "boolean bool",
        pa.int8(): "byte tinyint",
        pa.int16(): "short smallint",
        pa.int32(): "int integer",
        pa.int64(): "long bigint",
        pa.float32(): "float real",
        pa.float64(): "double",
        pa.string(): "string varchar",
        pa.binary(): "binary",
        pa.date32(): "date",
        pa.timestamp("us", "UTC"): "timestamp timestamp_ltz",
        pa.timestamp("us"): "timestamp_ntz",
        pa.duration("us"): "duration",
        pa.time64("ns"): "time",
    }
    return {name: kind for kind, names in by_type.items() for name in names.split()}


def parse_schema(text: str) -> pa.Schema:
    """Read a schema.

    Raises:
        SchemaSyntaxError: with what is wrong; for a token with its place, in characters from 1.
    """
    if len(text) > SCHEMA_BYTES_MAX:
        raise SchemaSyntaxError(f"a schema has at most {SCHEMA_BYTES_MAX} characters")
    return _Parser(text).schema()


class _Parser:
    """Recursive descent with bounded depth: hostile text cannot overflow the stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            (match.start(match.lastindex), match.group(match.lastindex))
            for match in _TOKEN.finditer(text)
            if match.lastindex
        ]
        self._next = 0
        self._types = _simple_types()

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        fields = self._columns(depth=1, closing=None)
        if self._peek() is not None:
            self._expected("',' or the end")
        return pa.schema(fields)

    def _columns(self, *, depth: int, closing: str | None) -> list[pa.Field]:
        fields: list[pa.Field] = []
        names: set[str] = set()
        if closing is not None and self._peek() == closing:
            return fields
        while True:
            field = self._column(depth)
            if field.name in names:
                raise SchemaSyntaxError(f"column {field.name!r} is given twice")
            names.add(field.name)
            fields.append(field)
            if len(fields) > SCHEMA_FIELDS_MAX:
                raise SchemaSyntaxError(f"a schema has at most {SCHEMA_FIELDS_MAX} columns")
            if not self._take_if(","):
                return fields

    def _column(self, depth: int) -> pa.Field:
        import pyarrow as pa

        name = self._name()
        self._take_if(":")
        return pa.field(name, self._type(depth), nullable=self._nullable())

    def _name(self) -> str:
        token = self._peek()
        if token is None or not (token[0] == "`" or re.fullmatch(r"\w+", token)):
            self._expected("a column name")
        self._next += 1
        return token[1:-1].replace("``", "`") if token[0] == "`" else token

    def _nullable(self) -> bool:
        if not self._take_if("not"):
            return True
        if not self._take_if("null"):
            self._expected("'null' after 'not'")
        return False

    def _type(self, depth: int) -> pa.DataType:
        # Each level is a recursion here and in every reader of the schema.
        if depth > SCHEMA_NESTING_MAX:
            raise SchemaSyntaxError(f"types are nested deeper than {SCHEMA_NESTING_MAX}")
        token = self._peek()
        word = (token or "").lower()
        nested: dict[str, Callable[[int], pa.DataType]] = {
            "decimal": self._decimal,
            "numeric": self._decimal,
            "array": self._array,
            "map": self._map,
            "struct": self._struct,
        }
        if word in self._types:
            self._next += 1
            return self._types[word]
        if word not in nested:
            self._expected(f"a type ({_TYPE_HINT})")
        self._next += 1
        return nested[word](depth)

    def _decimal(self, _depth: int) -> pa.DataType:
        import pyarrow as pa

        precision, scale = 10, 0  # As in Spark's DDL.
        if self._take_if("("):
            precision = self._number()
            scale = self._number() if self._take_if(",") else 0
            self._take(")")
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise SchemaSyntaxError(
                f"decimal({precision},{scale}): the precision is 1 to 38, the scale 0 to it"
            )
        return pa.decimal128(precision, scale)

    def _array(self, depth: int) -> pa.DataType:
        import pyarrow as pa

        self._take("<")
        # Spark's name for items.
        item = pa.field("element", self._type(depth + 1), nullable=self._nullable())
        self._take(">")
        return pa.list_(item)

    def _map(self, depth: int) -> pa.DataType:
        import pyarrow as pa

        self._take("<")
        key = self._type(depth + 1)
        self._take(",")
        value = pa.field("value", self._type(depth + 1), nullable=self._nullable())
        self._take(">")
        return pa.map_(pa.field("key", key, nullable=False), value)  # Arrow has no null keys.

    def _struct(self, depth: int) -> pa.DataType:
        import pyarrow as pa

        self._take("<")
        fields = self._columns(depth=depth + 1, closing=">")
        self._take(">")
        return pa.struct(fields)

    def _number(self) -> int:
        token = self._peek()
        if token is None or not (token.isascii() and token.isdigit() and len(token) <= 3):
            self._expected("a number")
        self._next += 1
        return int(token)

    def _peek(self) -> str | None:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else None

    def _take_if(self, wanted: str) -> bool:
        token = self._peek()
        if token is None or token.lower() != wanted:
            return False
        self._next += 1
        return True

    def _take(self, wanted: str) -> None:
        if not self._take_if(wanted):
            self._expected(f"{wanted!r}")

    def _expected(self, what: str) -> NoReturn:
        if self._next < len(self._tokens):
            at, token = self._tokens[self._next]
            raise SchemaSyntaxError(f"expected {what} at character {at + 1}, found {token!r}")
        raise SchemaSyntaxError(f"expected {what} at the end of {self._text!r}")


def format_schema(schema: pa.Schema) -> str:
    """Return text that `parse_schema` reads back as an equal schema, metadata and types that the
    grammar lacks (null) aside."""
    return ", ".join(_format_column(field, " ") for field in schema)


def format_type(kind: pa.DataType) -> str:
    """Return a type in the grammar above, or in Arrow's text where the grammar lacks it."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(_format_column(field, ': ') for field in kind)}>"
    if pa.types.is_map(kind):
        value = format_type(kind.item_type) + _not_null(kind.item_field)
        return f"map<{format_type(kind.key_type)}, {value}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{format_type(kind.value_type)}{_not_null(kind.value_field)}>"
    return next((name for name, known in _simple_types().items() if known == kind), str(kind))


def _format_column(field: pa.Field, separator: str) -> str:
    name = field.name
    if not re.fullmatch(r"\w+", name):
        name = "`" + name.replace("`", "``") + "`"
    return f"{name}{separator}{format_type(field.type)}{_not_null(field)}"


def _not_null(field: pa.Field) -> str:
    return "" if field.nullable else " not null"
