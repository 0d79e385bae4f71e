"""CSV as record batches: RFC 4180 with a header line.

pyarrow parses blocks of whole records. Its own streaming reader returns a pipe's row only when the
next has arrived, and without the text that the checks of infinities and leading zeros need.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.types as t

from quiverlog.cli.formats.csv_columns import Padded, column_names, is_number, with_advice
from quiverlog.cli.formats.encodings import no_utf8
from quiverlog.cli.formats.json_values import from_text, is_text_in_csv
from quiverlog.cli.formats.read_text import (
    BOM,
    Batches,
    CountingFile,
    TextOptions,
    blocks_of,
    check_record,
)

__all__ = ["read_csv"]

_PIECE_BYTES: Final = 1 << 20
"""The part of a block that one processor parses."""
_LINE_ENDS: Final = b"\r\n"
_COLUMN: Final = re.compile(r"In CSV column #(\d+): (Row #\d+: )?(?:CSV conversion error to )?")
"""pyarrow does not always name the row."""
_LINE_END: Final = re.compile(rb"\r\n?|\n")
_ROW: Final = re.compile(r"[Rr]ow #(\d+)")
_NO_TYPES: Final[Mapping[str, pa.DataType]] = MappingProxyType({})
_NO_UTF8: Final = "invalid UTF8"


def read_csv(source: CountingFile, options: TextOptions) -> tuple[pa.Schema, Batches]:
    text_types = {name: k for name, k in options.types().items() if is_text_in_csv(k)}
    reader = _Reader(options, text_types)
    schema, batches = reader.read(source)
    if not len(schema) and options.schema is not None:
        schema = pa.schema(options.types())
    shown = pa.schema([f.with_type(text_types.get(f.name, f.type)) for f in schema])
    return shown, (_with_values(batch, shown, text_types) for batch in batches)


def _with_values(
    batch: pa.RecordBatch, schema: pa.Schema, text_types: dict[str, pa.DataType]
) -> pa.RecordBatch:
    if not text_types:
        return batch
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = text_types.get(name)
        columns.append(column if kind is None else _value_column(column, name, kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value_column(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    errors = (ValueError, TypeError, ArithmeticError, LookupError)
    try:
        return from_text(column, kind)
    except errors as error:
        for value in column:
            try:
                from_text(pa.array([value.as_py()], pa.string()), kind)
            except errors as one:
                raise pa.ArrowInvalid(f"column {name!r} ({kind}): {one}") from one
        raise pa.ArrowInvalid(f"column {name!r} ({kind}): {error}") from error


class _Reader:
    def __init__(self, options: TextOptions, text_types: dict[str, pa.DataType]) -> None:
        self._options = options
        self._names: list[str] = []
        self._rows_before = 0
        self._has_types = False
        """`_types` has all columns: types that were not given are inferred from the first rows."""
        self._types = {
            name: pa.string() if name in text_types else kind
            for name, kind in options.types().items()
        }
        self._records = _Records(options.delimiter)
        self._padded = Padded(options.delimiter)
        self._watched: dict[str, pa.DataType] = {}
        """Number columns without a warning about a leading zero so far."""

    def read(self, source: CountingFile) -> tuple[pa.Schema, Batches]:
        blocks = self._whole_records(blocks_of(source, self._options))
        first = self._first_rows(blocks)
        if first is None:
            return pa.schema({}), iter(())
        self._types |= {f.name: f.type for f in first.schema}
        self._has_types = True
        return first.schema, self._batches(first, blocks)

    def _first_rows(self, blocks: Iterator[bytes]) -> pa.Table | None:
        """Return the first block; without a topic it must have a row, to infer types from."""
        text = b""
        for block in blocks:
            text = (text + block).removeprefix(BOM)  # pyarrow skips it only where a file begins.
            check_record(len(text))
            end = self._records.first_end(text)
            if not text[:end].strip(b"\r\n"):
                continue
            with self._errors():
                self._names = self._header(text[:end])
                if text[end:].strip(b"\r\n") or self._options.schema is not None:
                    return self._checked(self._table(text[end:]), text[end:])
        with self._errors():
            return self._table(b"") if self._names else None

    def _checked(self, first: pa.Table, text: bytes) -> pa.Table:
        """Refuse types that pyarrow infers wrongly: floats for whole numbers beyond 64 bits, bytes
        for text in another encoding."""
        given = dict(self._types)
        _check_utf8(first, given)
        numbers = {
            f.name: f.type for f in first.schema if f.name not in given and is_number(f.type)
        }
        if padded := self._padded_columns(text, numbers):
            for name, found in padded.items():
                self._options.warn(
                    f"column {name!r} is taken as text, because of {found}; --schema overrides it"
                )
            self._types |= dict.fromkeys(padded, pa.string())
            first = self._table(text)
        # Where the type was given, only whole numbers lose a zero.
        self._watched = {
            f.name: f.type
            for f in first.schema
            if (t.is_integer(f.type) if f.name in given else is_number(f.type))
        }
        self._warn_of_lost_zeros(text)
        rounded = [
            f.name
            for f, column in zip(first.schema, first.columns, strict=True)
            if f.name not in given and t.is_float64(f.type) and _is_beyond_integers(column)
        ]
        if rounded:
            written = self._parsed(text, self._conversion(dict.fromkeys(rounded, pa.string())))
            for name in rounded:
                _check_whole(name, written.column(name))
        return first

    def _batches(self, first: pa.Table, blocks: Iterator[bytes]) -> Batches:
        self._rows_before = first.num_rows
        yield from first.to_batches()
        with self._errors():
            for block in blocks:
                # pyarrow refuses a block of empty lines; in a single column they are rows.
                if len(self._names) > 1 and block[0] in _LINE_ENDS and not block.strip(_LINE_ENDS):
                    continue
                table = self._table(block)
                self._warn_of_lost_zeros(block)
                self._rows_before += table.num_rows
                yield from table.to_batches()

    def _whole_records(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        parts: list[bytes] = []
        waiting = 0
        inside = False
        for block in blocks:
            end, inside = self._records.last_end(block, inside)
            if end:
                yield b"".join([*parts, block[:end]]) if parts or end < len(block) else block
                parts, waiting = [], 0
            if end < len(block):
                parts.append(block[end:])
                waiting += len(block) - end
                check_record(waiting)
        if inside:  # pyarrow would take everything after the quote as one value.
            raise pa.ArrowInvalid("the text ends within quotes: a closing quote is missing")
        if parts:
            yield b"".join(parts)

    def _padded_columns(self, text: bytes, columns: Mapping[str, pa.DataType]) -> dict[str, str]:
        """Return columns with leading zeros or plus signs -> an example."""
        if not columns or not self._padded.may_be_in(text):
            return {}
        conversion = self._conversion(dict.fromkeys(columns, pa.string()))
        conversion.include_columns = list(columns)
        written = self._by_arrow(text, conversion)
        found = {name: self._padded.first(written.column(name)) for name in columns}
        return {name: one for name, one in found.items() if one is not None}

    def _warn_of_lost_zeros(self, text: bytes) -> None:
        # Once a column: it is watched no longer.
        for name, found in self._padded_columns(text, dict(self._watched)).items():
            kind = self._watched.pop(name)
            self._options.warn(
                f"column {name!r} is {kind}, which does not keep what is in front of {found}: "
                "text (string) does"
            )

    def _header(self, line: bytes) -> list[str]:
        if (wrong := no_utf8(line)) is not None:
            raise pa.ArrowInvalid(f"the line with the names of the columns: {wrong}")
        # Without a line end pyarrow takes a single value for empty text.
        header = csv.read_csv(io.BytesIO(line + b"\n"), parse_options=self._parsing())
        names, notes = column_names(
            header.column_names, self._options.schema, self._options.columns
        )
        for note in notes:
            self._options.warn(note)
        return names

    def _table(self, text: bytes) -> pa.Table:
        if not text:
            empty = pa.schema({n: self._types.get(n, pa.null()) for n in self._wanted()})
            return empty.empty_table()
        table = self._parsed(text, self._conversion())
        infinite = [i for i, column in enumerate(table.columns) if _has_infinity(column)]
        if infinite:
            texts = {table.schema.names[i]: pa.string() for i in infinite}
            written = self._parsed(text, self._conversion(texts))
            for i in infinite:
                _check_infinities(table.schema.names[i], table.column(i), written.column(i))
        return table

    def _parsed(self, text: bytes, conversion: csv.ConvertOptions) -> pa.Table:
        try:
            return self._by_arrow(text, conversion)
        except pa.ArrowInvalid as error:
            if _NO_UTF8 in str(error):  # Arrow's error names no byte, and not always the row.
                texts = [name for name, kind in self._types.items() if t.is_string(kind)]
                as_bytes = self._conversion(dict.fromkeys(texts, pa.binary()))
                _check_utf8(self._by_arrow(text, as_bytes))
            raise

    def _by_arrow(self, text: bytes, conversion: csv.ConvertOptions) -> pa.Table:
        if len(text) > _PIECE_BYTES and self._has_types:
            # On all processors. A failure names no row, or is due to a record longer than a piece:
            # it is repeated in one piece below.
            with contextlib.suppress(pa.ArrowInvalid):
                return self._pieces_by_arrow(text, conversion, _PIECE_BYTES)
        return self._pieces_by_arrow(text, conversion, len(text))

    def _pieces_by_arrow(
        self, text: bytes, conversion: csv.ConvertOptions, piece_bytes: int
    ) -> pa.Table:
        return csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(
                column_names=self._names,
                use_threads=piece_bytes < len(text),
                block_size=max(piece_bytes, _PIECE_BYTES),
            ),
            parse_options=self._parsing(has_quotes=b'"' in text),
            convert_options=conversion,
        )

    def _wanted(self) -> list[str]:
        return self._names if self._options.columns is None else self._options.columns

    def _parsing(self, *, has_quotes: bool = True) -> csv.ParseOptions:
        return csv.ParseOptions(
            delimiter=self._options.delimiter,
            # Both cost time: off where the text has no quotes.
            quote_char='"' if has_quotes else False,
            newlines_in_values=has_quotes,
            # In a single column an empty line is a row with a null.
            ignore_empty_lines=len(self._names) != 1,
        )

    def _conversion(self, types: Mapping[str, pa.DataType] = _NO_TYPES) -> csv.ConvertOptions:
        return csv.ConvertOptions(
            column_types={**self._types, **types},
            include_columns=self._options.columns,
            null_values=list(self._options.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Replace pyarrow's column numbers by names, a block's row numbers by the file's."""
        try:
            yield
        except pa.ArrowInvalid as error:
            text = with_advice(_COLUMN.sub(self._column_name, str(error)))
            raise pa.ArrowInvalid(_ROW.sub(self._row_number, text)) from error

    def _column_name(self, match: re.Match[str]) -> str:
        number = int(match[1])
        name = repr(self._names[number]) if number < len(self._names) else f"#{number}"
        return f"{(match[2] or '').lower()}column {name}: not "

    def _row_number(self, match: re.Match[str]) -> str:
        return f"row {int(match[1]) + self._rows_before}"


def _has_infinity(column: pa.ChunkedArray) -> bool:
    if not t.is_floating(column.type):
        return False
    # Not by pyarrow.compute: its import makes a function of each kernel, 25 ms.
    from pyarrow._compute import call_function

    total = call_function("sum", [column]).as_py()
    if total is None or math.isfinite(total):
        return False  # With an infinity the sum is not finite; it is faster than both extremes.
    extremes = call_function("min_max", [column]).as_py()
    return math.inf in (-extremes["min"], extremes["max"])


def _check_infinities(name: str, column: pa.ChunkedArray, written: pa.ChunkedArray) -> None:
    """Refuse a number that pyarrow reads as an infinity."""
    import pyarrow.compute as pc

    texts = written.filter(pc.is_inf(column))
    numbers = texts.filter(pc.match_substring_regex(texts, "[0-9]"))
    if len(numbers):
        raise pa.ArrowInvalid(f"column {name!r}: {numbers[0]} is too large for {column.type}")


def _check_utf8(table: pa.Table, given: Container[str] = ()) -> None:
    for name, column in zip(table.schema.names, table.columns, strict=True):
        is_wrong = t.is_binary(column.type) and name not in given
        values = column.to_pylist() if is_wrong else ()
        for number, value in enumerate(values, 1):
            if value is not None and (wrong := no_utf8(value)) is not None:
                raise pa.ArrowInvalid(f"row #{number}: column {name!r}: {wrong}")


def _is_beyond_integers(column: pa.ChunkedArray) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.greater_equal(pc.abs(column), 2.0**63), min_count=0).as_py())


def _check_whole(name: str, written: pa.ChunkedArray) -> None:
    import pyarrow.compute as pc

    if pc.all(pc.match_substring_regex(written, r"^\s*[+-]?[0-9]+\s*$"), min_count=0).as_py():
        raise pa.ArrowInvalid(
            f"column {name!r} has whole numbers of more than 64 bits: give its type by --schema, "
            f"decimal(38,0) keeps them and double rounds them"
        )


class _Records:
    """Finds record ends as pyarrow's parser does."""

    def __init__(self, delimiter: str) -> None:
        self._before = frozenset((b"", b"\r", b"\n", delimiter.encode()))
        """Before an opening quote; elsewhere a quote is an ordinary character."""
        mark = re.escape(delimiter.encode())
        self._close = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')
        """Possessive: the first of two quotes in a row must never close a field."""
        self._rest = re.compile(rb"(?:(?!" + mark + rb")[^\r\n])*")

    def ends_inside(self, text: bytes, inside: bool) -> bool:
        """Return whether the end of `text` is within quotes; `inside`: its beginning is."""
        return self.last_end(text, inside)[1]

    def last_end(self, text: bytes, inside: bool) -> tuple[int, bool]:
        """Return (end of the last whole record or 0, whether the text ends within quotes)."""
        if not inside and b'"' not in text:
            return len(text), False
        at = end = 0
        while True:
            if inside:
                close = self._close.match(text, at)
                if close is None:
                    return end, True
                rest = self._rest.match(text, close.end())
                assert rest is not None
                at = rest.end()
            quote = text.find(b'"', at)
            while quote >= 0 and text[max(0, quote - 1) : quote] not in self._before:
                quote = text.find(b'"', quote + 1)
            if quote < 0:
                return len(text), False
            end = text.rfind(b"\n", at, quote) + 1 or end
            at, inside = quote + 1, True

    def first_end(self, text: bytes) -> int:
        """Return the end of the first record, behind its line end: as for pyarrow, CR alone is
        one."""
        start = end = len(text) - len(text.lstrip(b"\r\n"))
        inside = False
        while found := _LINE_END.search(text, end):
            inside = self.ends_inside(text[end : found.end()], inside)
            end = found.end()
            if not inside:
                return end
        return len(text) if start < len(text) else 0
