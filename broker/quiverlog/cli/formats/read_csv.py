"""CSV as record batches: RFC 4180 with a header line.

Owns where CSV may be cut (at the end of a record; a line end within quotes is none), blocks of
text in memory that is reused, and parsing ahead. pyarrow parses the blocks: of a file several at
a time, of a pipe each as it comes; its own streaming reader waits for some MiB before the first
row.

Invariants: results come in the order of the blocks, an error in the place of its block; a block
belongs to its reader until it is given back.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.types as t

from quiverlog.cli.formats.csv_columns import Padded, column_names, in_our_words, is_number
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

__all__ = ["FileBlocks", "done_ahead", "read_csv"]


# The text of a file in blocks that end with a line, in memory that is used again.
_BLOCK_BYTES: Final = 4 << 20


class FileBlocks:
    """The blocks of one file, in order; only the last may end within a line.

    Args:
        first_bytes: the most for the first block, if that shall be a smaller one.
    """

    def __init__(self, source: CountingFile, *, first_bytes: int | None = None) -> None:
        self._source = source
        self._first_bytes = first_bytes
        self._free: deque[bytearray] = deque()

    def __iter__(self) -> Iterator[memoryview]:
        memory, kept = self._memory(), 0
        until = self._first_bytes
        while read := self._source.readinto(memoryview(memory)[kept:until]):
            filled = kept + read
            end = memory.rfind(b"\n", kept, filled) + 1
            rest = filled - end
            check_record(rest)
            # Of a line that does not end here its end must still find room.
            following = self._memory() if rest < _BLOCK_BYTES else bytearray(2 * rest)
            following[:rest] = memoryview(memory)[end:filled]
            if end:
                yield memoryview(memory)[:end]
            memory, kept, until = following, rest, None
        if kept:
            yield memoryview(memory)[:kept]

    def give_back(self, block: memoryview) -> None:
        """Nobody looks at the block any more: another one may take its place."""
        memory = block.obj
        assert isinstance(memory, bytearray)
        if len(memory) == _BLOCK_BYTES:
            self._free.append(memory)

    def _memory(self) -> bytearray:
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(_BLOCK_BYTES)


# Work on the items of a stream, some of it ahead of who takes the results.
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def done_ahead(
    work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int
) -> Iterator[_Result]:
    """`work` of each item, in their order.

    With threads the first items are worked on from now on: whoever has something else to do before
    the results are taken does it meanwhile. Without threads nothing is done before it is asked.
    """
    if not threads:
        return map(work, items)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="quiverlog-read")
    left = iter(items)
    begun: deque[Future[_Result]] = deque()
    _begin(pool, work, left, begun, 2 * threads)
    return _results(pool, work, left, begun, 2 * threads)


def _begin(
    pool: ThreadPoolExecutor,
    work: Callable[[_Item], _Result],
    left: Iterator[_Item],
    begun: deque[Future[_Result]],
    count: int,
) -> None:
    """Have `count` results under way, or all that are left."""
    while len(begun) < count:
        try:
            begun.append(pool.submit(work, next(left)))
        except StopIteration:
            return
        except Exception as error:  # the items' own; there are no more of them
            failed: Future[_Result] = Future()
            failed.set_exception(error)
            begun.append(failed)
            return


def _results(
    pool: ThreadPoolExecutor,
    work: Callable[[_Item], _Result],
    left: Iterator[_Item],
    begun: deque[Future[_Result]],
    count: int,
) -> Iterator[_Result]:
    try:
        while begun:
            yield begun.popleft().result()
            _begin(pool, work, left, begun, count)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_THREADS_MAX: Final = 4
"""So many blocks of a file are parsed at a time: beyond that the sending is what takes long."""
_COLUMN: Final = re.compile(r"In CSV column #(\d+): (Row #\d+: )?(?:CSV conversion error to )?")
"""pyarrow names the row as well where it happens to know it."""
_HEADER_BYTES: Final = 64 << 10
"""The first block of a file whose types are known: it is parsed while nothing else happens."""
_Text = bytes | memoryview
"""Whole lines: a view where they lie in memory of `FileBlocks`, which is given back."""
_LINE_END: Final = re.compile(rb"\r\n?|\n")
_ROW: Final = re.compile(r"[Rr]ow #(\d+)")
_NO_TYPES: Final[Mapping[str, pa.DataType]] = MappingProxyType({})
_NO_UTF8: Final = "invalid UTF8"


def read_csv(source: CountingFile, options: TextOptions) -> tuple[pa.Schema, Batches]:
    """The columns, and the rows batch by batch. Text without a header has neither."""
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
    """One text, parsed with one set of options."""

    def __init__(self, options: TextOptions, text_types: dict[str, pa.DataType]) -> None:
        self._options = options
        self._names: list[str] = []
        self._rows_before = 0
        self._types = {
            name: pa.string() if name in text_types else kind
            for name, kind in options.types().items()
        }
        self._records = _Records(options.delimiter)
        self._padded = Padded(options.delimiter)
        self._watched: dict[str, pa.DataType] = {}
        """Columns of numbers of which no zero in front was seen yet."""
        self._give_back: Callable[[memoryview], None] = _forget

    def read(self, source: CountingFile) -> tuple[pa.Schema, Batches]:
        blocks = self._whole_records(self._blocks(source))
        first = self._first_rows(blocks)
        if first is None:
            return pa.schema({}), iter(())
        self._types |= {f.name: f.type for f in first.schema}
        # Of a pipe each block is parsed when it has come: the next one may take its time.
        threads = 0 if self._options.streamed else min(_THREADS_MAX, pa.cpu_count())
        tables = done_ahead(self._block_table, self._filled(blocks), threads)
        return first.schema, self._batches(first, tables)

    def _blocks(self, source: CountingFile) -> Iterator[_Text]:
        if self._options.streamed:
            return blocks_of(source, self._options)
        # Types are told by all of a block; where the topic tells them, the others need not wait.
        file = FileBlocks(source, first_bytes=_HEADER_BYTES if self._options.schema else None)
        self._give_back = file.give_back
        return iter(file)

    def _first_rows(self, blocks: Iterator[_Text]) -> pa.Table | None:
        """The first block that tells the columns; without a topic types need a row, too."""
        text = b""
        for block in blocks:
            text = (text + self._own(block)).removeprefix(BOM)  # pyarrow knows it in a first line
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
        """pyarrow by itself makes rounded numbers of whole ones that no integer type holds, and
        bytes of text in another encoding."""
        told = dict(self._types)
        _check_utf8(first, told)
        numbers = {f.name: f.type for f in first.schema if f.name not in told and is_number(f.type)}
        if padded := self._padded_columns(text, numbers):
            for name, found in padded.items():
                self._options.tell(
                    f"column {name!r} is taken as text, because of {found}; --schema says otherwise"
                )
            self._types |= dict.fromkeys(padded, pa.string())
            first = self._table(text)
        # Of a type that somebody has named it is mentioned only where whole numbers lose a zero.
        self._watched = {
            f.name: f.type
            for f in first.schema
            if (t.is_integer(f.type) if f.name in told else is_number(f.type))
        }
        self._tell_lost_zeros(text)
        rounded = [
            f.name
            for f, column in zip(first.schema, first.columns, strict=True)
            if f.name not in told and t.is_float64(f.type) and _is_beyond_integers(column)
        ]
        if rounded:
            written = self._parsed(text, self._conversion(dict.fromkeys(rounded, pa.string())))
            for name in rounded:
                _check_whole(name, written.column(name))
        return first

    def _batches(self, first: pa.Table, tables: Iterator[pa.Table]) -> Batches:
        self._rows_before = first.num_rows
        yield from first.to_batches()
        with self._errors():
            for table in tables:
                self._rows_before += table.num_rows
                yield from table.to_batches()

    def _filled(self, blocks: Iterator[_Text]) -> Iterator[_Text]:
        """pyarrow takes nothing but empty lines for an error; of one column they are rows."""
        return (b for b in blocks if len(self._names) == 1 or not _is_empty(b))

    def _whole_records(self, blocks: Iterator[_Text]) -> Iterator[_Text]:
        parts: list[bytes] = []
        waiting = 0
        inside = False
        for block in blocks:
            if not inside and not _has_quotes(block):  # nothing waits but within quotes
                yield block
                continue
            text = self._own(block)
            end, inside = self._records.last_end(text, inside)
            if end:
                yield b"".join([*parts, text[:end]])
                parts, waiting = [], 0
            if end < len(text):
                parts.append(text[end:])
                waiting += len(text) - end
                check_record(waiting)
        if inside:  # pyarrow would make one value of all that follows the quote
            raise pa.ArrowInvalid("the text ends within quotes: a closing quote is missing")
        if parts:
            yield b"".join(parts)

    def _own(self, block: _Text) -> bytes:
        """The block as bytes that stay; its memory may be used again."""
        if isinstance(block, bytes):
            return block
        text = bytes(block)
        self._give_back(block)
        return text

    def _padded_columns(self, text: _Text, columns: Mapping[str, pa.DataType]) -> dict[str, str]:
        """Those of the columns with numbers that begin with a zero or a plus sign, with one."""
        has_quotes = isinstance(text, bytes) and b'"' in text
        if not columns or not self._padded.may_be_in(text, has_quotes=has_quotes):
            return {}
        conversion = self._conversion(dict.fromkeys(columns, pa.string()))
        conversion.include_columns = list(columns)
        written = self._by_arrow(text, conversion)
        found = {name: self._padded.first(written.column(name)) for name in columns}
        return {name: one for name, one in found.items() if one is not None}

    def _tell_lost_zeros(self, text: _Text) -> None:
        """Once a column, from whichever thread finds it."""
        for name, found in self._padded_columns(text, dict(self._watched)).items():
            kind = self._watched.pop(name, None)
            if kind is not None:
                self._options.tell(
                    f"column {name!r} is {kind}, which does not keep what is in front of {found}: "
                    "text (string) does"
                )

    def _block_table(self, block: _Text) -> pa.Table:
        table = self._table(block)
        self._tell_lost_zeros(block)
        if isinstance(block, memoryview):
            self._give_back(block)  # pyarrow has copied what it keeps
        return table

    def _header(self, line: bytes) -> list[str]:
        if (wrong := no_utf8(line)) is not None:
            raise pa.ArrowInvalid(f"the line with the names of the columns: {wrong}")
        # Of one value without a line's end pyarrow says that the text is empty.
        header = csv.read_csv(io.BytesIO(line + b"\n"), parse_options=self._parsing())
        names, notes = column_names(
            header.column_names, self._options.schema, self._options.columns
        )
        for note in notes:
            self._options.tell(note)
        return names

    def _table(self, text: _Text) -> pa.Table:
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

    def _parsed(self, text: _Text, conversion: csv.ConvertOptions) -> pa.Table:
        try:
            return self._by_arrow(text, conversion)
        except pa.ArrowInvalid as error:
            if _NO_UTF8 in str(error):  # without the byte, and sometimes without the row
                texts = [name for name, kind in self._types.items() if t.is_string(kind)]
                as_bytes = self._conversion(dict.fromkeys(texts, pa.binary()))
                _check_utf8(self._by_arrow(text, as_bytes))
            raise

    def _by_arrow(self, text: _Text, conversion: csv.ConvertOptions) -> pa.Table:
        return csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=max(len(text), 1 << 20)
            ),
            # What `_whole_records` leaves a view has none.
            parse_options=self._parsing(has_quotes=isinstance(text, bytes) and b'"' in text),
            convert_options=conversion,
        )

    def _wanted(self) -> list[str]:
        return self._names if self._options.columns is None else self._options.columns

    def _parsing(self, *, has_quotes: bool = True) -> csv.ParseOptions:
        return csv.ParseOptions(
            delimiter=self._options.delimiter,
            # Both cost time where there are none.
            quote_char='"' if has_quotes else False,
            newlines_in_values=has_quotes,
            # Of a single column an empty line is a row without a value.
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
        """pyarrow counts columns from 0 and, in a block, rows from its beginning."""
        try:
            yield
        except pa.ArrowInvalid as error:
            text = in_our_words(_COLUMN.sub(self._column_name, str(error)))
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
    # Not by pyarrow.compute: it makes a function of each of its kernels, 25 ms of a start.
    from pyarrow._compute import call_function

    total = call_function("sum", [column]).as_py()
    if total is None or math.isfinite(total):
        return False  # Infinity leaves no finite sum, which is found faster than both extremes.
    extremes = call_function("min_max", [column]).as_py()
    return math.inf in (-extremes["min"], extremes["max"])


def _check_infinities(name: str, column: pa.ChunkedArray, written: pa.ChunkedArray) -> None:
    """pyarrow makes infinity of a number that is too large, which is another value."""
    import pyarrow.compute as pc

    texts = written.filter(pc.is_inf(column))
    numbers = texts.filter(pc.match_substring_regex(texts, "[0-9]"))
    if len(numbers):
        raise pa.ArrowInvalid(f"column {name!r}: {numbers[0]} is too large for {column.type}")


def _check_utf8(table: pa.Table, told: Container[str] = ()) -> None:
    """Where nobody has told that bytes are wanted, those are found that are no text."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        is_wrong = t.is_binary(column.type) and name not in told
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
            f"column {name!r} has whole numbers of more than 64 bits: say its type by --schema, "
            f"decimal(38,0) keeps them and double rounds them"
        )


def _forget(_: memoryview) -> None:
    """Of a pipe no memory is used again."""


def _has_quotes(text: _Text) -> bool:
    if isinstance(text, memoryview):
        memory = text.obj
        assert isinstance(memory, bytearray)  # a view is searched byte by byte, this by the line
        return memory.find(b'"', 0, len(text)) >= 0
    return b'"' in text


def _is_empty(text: _Text) -> bool:
    return not bytes(text[:1]).strip(b"\r\n") and not bytes(text).strip(b"\r\n")


class _Records:
    """Finds out whether a line's end lies within quotes, as pyarrow's parser sees them."""

    def __init__(self, delimiter: str) -> None:
        self._before = frozenset((b"", b"\r", b"\n", delimiter.encode()))
        """A quote opens a field only at its beginning; elsewhere it is a character as any."""
        mark = re.escape(delimiter.encode())
        self._close = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')
        """Possessive: the first of two quotes in a row never closes a field."""
        self._rest = re.compile(rb"(?:(?!" + mark + rb")[^\r\n])*")

    def ends_inside(self, text: bytes, inside: bool) -> bool:
        """Whether the end of `text` is within a quoted field; `inside` says it of its beginning."""
        return self.last_end(text, inside)[1]

    def last_end(self, text: bytes, inside: bool) -> tuple[int, bool]:
        """Where the last record ends that ends in `text` (0: none does), and as `ends_inside`."""
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
        """Where the first record of `text` ends, its line's end and empty lines before included.

        A line may end with CR alone, as pyarrow's parser has it.
        """
        start = end = len(text) - len(text.lstrip(b"\r\n"))
        inside = False
        while found := _LINE_END.search(text, end):
            inside = self.ends_inside(text[end : found.end()], inside)
            end = found.end()
            if not inside:
                return end
        return len(text) if start < len(text) else 0
