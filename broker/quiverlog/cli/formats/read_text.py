"""JSON lines and lines as record batches, from files and from pipes.

A block of a pipe is what has arrived, up to the last whole record, so that rows of `tail -f` are
sent when written. Types are the topic's; without one the first block determines them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from quiverlog.cli.formats.encodings import no_utf8
from quiverlog.cli.formats.json_values import decode_column, lines_decoder
from quiverlog.limits import FRAME_BYTES_MAX

__all__ = [
    "BOM",
    "Batches",
    "CountingFile",
    "TextOptions",
    "blocks_of",
    "check_record",
    "read_json",
    "read_lines",
]

Batches = Iterator[pa.RecordBatch]

_BLOCK_BYTES: Final = 4 << 20
_PIPE_BYTES: Final = 1 << 20
RECORD_BYTES_MAX: Final = FRAME_BYTES_MAX
"""No frame has room for a larger row, and waiting for its end would fill the memory."""
_HALF_PAIR: Final = re.compile(
    rb"\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F])"  # the first half, without the second
    rb"|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F]\w\w"
)
_ENDS_EARLY: Final = "truncated"
_ONE_LINE: Final = " (a row is one line: `jq -c .` makes lines of objects that take several)"
BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class TextOptions:
    schema: pa.Schema | None = None
    columns: list[str] | None = None
    null_values: tuple[str, ...] = ("",)
    delimiter: str = ","
    warn: Callable[[str], None] = lambda _note: None
    """Called with notes for the user, without a full stop."""
    streamed: bool = False
    """From a pipe: do not wait for a whole block."""

    def types(self) -> dict[str, pa.DataType]:
        if self.schema is None:
            return {}
        return {
            f.name: f.type for f in self.schema if self.columns is None or f.name in self.columns
        }


class CountingFile(io.RawIOBase):
    def __init__(self, inner: io.BufferedReader) -> None:
        self._inner = inner
        self.done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        size = self._inner.readinto(buffer)
        self.done += size
        return size

    def take(self, *, streamed: bool) -> bytes:
        """Return a whole block, or what has arrived if `streamed`; empty at the end."""
        data = self._inner.read1(_PIPE_BYTES) if streamed else self._inner.read(_BLOCK_BYTES)
        self.done += len(data)
        return data


def blocks_of(source: CountingFile, options: TextOptions) -> Iterator[bytes]:
    """Yield blocks that end with a line, except for the last."""
    parts: list[bytes] = []
    waiting = 0
    while data := source.take(streamed=options.streamed):
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, memoryview(data)[:end]])
            parts, waiting = [], 0
        if end < len(data):
            parts.append(data[end:])
            waiting += len(data) - end
            check_record(waiting)
    if parts:
        yield b"".join(parts)


def check_record(size: int) -> None:
    if size > RECORD_BYTES_MAX:
        raise pa.ArrowInvalid(f"a row takes more than {RECORD_BYTES_MAX >> 20} MiB")


def read_lines(source: CountingFile, options: TextOptions) -> tuple[pa.Schema, Batches]:
    name, kind = _lines_column(options.schema)
    schema = pa.schema({name: kind})

    def batches() -> Batches:
        number = 0
        for block in blocks_of(source, options):
            lines = block.split(b"\n")
            if not lines[-1]:
                lines.pop()  # Nothing follows the last line end.
            values = pa.array([line.removesuffix(b"\r") for line in lines], pa.binary())
            if pa.types.is_string(kind):
                _check_lines(lines, number)
            yield pa.record_batch([values.cast(kind)], schema=schema)
            number += len(lines)

    return schema, batches()


def _check_lines(lines: list[bytes], before: int) -> None:
    if no_utf8(b"\n".join(lines)) is None:
        return
    for number, line in enumerate(lines, before + 1):
        if (wrong := no_utf8(line)) is not None:
            raise pa.ArrowInvalid(f"line {number}: {wrong}")


def _lines_column(topic: pa.Schema | None) -> tuple[str, pa.DataType]:
    """Return the column for lines: `value`, or the only one, if it has text or bytes."""
    if topic is None:
        return "value", pa.binary()
    names = [name for name in ("value", *topic.names[: len(topic) == 1]) if name in topic.names]
    if names:
        kind = topic.field(names[0]).type
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return names[0], kind
    raise pa.ArrowInvalid(
        "lines need a topic with a column `value` of text or bytes, as the schema `raw` has, or "
        "with such a column only"
    )


def read_json(source: CountingFile, options: TextOptions) -> tuple[pa.Schema, Batches]:
    """Read each line as an object; errors name the line and the column."""
    # By msgspec: pyarrow's reader of JSON has crashed the whole process on bad input.
    blocks = blocks_of(source, options)
    first = next(blocks, b"").removeprefix(BOM)
    if first.lstrip().startswith(b"["):
        raise pa.ArrowInvalid(
            "it is one array, and rows are read line by line, each an object: "
            "`jq -c '.[]'` makes lines of it"
        )
    blocks = _chain(first, blocks)
    if options.schema is not None:
        types = options.types()
        for name in options.columns or ():
            if name not in types:
                raise pa.ArrowInvalid(f"the topic has no column {name!r}")
        return pa.schema(types), _JsonReader(types, options.columns).batches(blocks)
    kinds = _inferred(first, options.columns)
    reader = _JsonReader(kinds, options.columns, inferred=True)
    return pa.schema(kinds), reader.batches(blocks)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


@dataclass(slots=True)
class _JsonReader:
    kinds: dict[str, pa.DataType]
    columns: list[str] | None
    inferred: bool = False
    _lines_before: int = 0
    _schema: pa.Schema = field(init=False)
    _decoder: msgspec.json.Decoder[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._schema = pa.schema(self.kinds)
        self._decoder = lines_decoder(self.kinds.values())

    def batches(self, blocks: Iterable[bytes]) -> Batches:
        for block in blocks:
            rows = self._rows(block)
            if rows:
                columns = [self._column(block, rows, name) for name in self.kinds]
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
            self._lines_before += block.count(b"\n")

    def _rows(self, block: bytes) -> list[dict[str, Any]]:
        try:
            rows: list[Any] = self._decoder.decode_lines(block)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            rows = [value for _, value in self._one_by_one(block)]  # Its error names the line.
        if not set(map(type, rows)) <= {dict}:
            line = self._line_of(block, lambda row: type(row) is not dict)
            raise pa.ArrowInvalid(f'line {line} is no object like {{"column": value}}')
        if self.columns is None:
            self._check_names(block, rows)
        return rows

    def _one_by_one(self, block: bytes) -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(block.split(b"\n"), self._lines_before + 1):
            if line.strip():
                try:
                    yield number, self._decoder.decode(line)
                except RecursionError:
                    raise pa.ArrowInvalid(f"line {number}: it is nested too deeply") from None
                except (ValueError, msgspec.MsgspecError) as error:
                    if (wrong := no_utf8(line)) is not None:
                        raise pa.ArrowInvalid(f"line {number}: {wrong}") from error
                    if half := _HALF_PAIR.search(line):
                        raise pa.ArrowInvalid(
                            f"line {number}: {half[0].decode()} is half of a surrogate pair, and "
                            "no character by itself"
                        ) from error
                    hint = _ONE_LINE if _ENDS_EARLY in str(error) else ""
                    raise pa.ArrowInvalid(f"line {number} is no JSON: {error}{hint}") from error

    def _line_of(self, block: bytes, is_it: Callable[[Any], bool]) -> int:
        return next(number for number, row in self._one_by_one(block) if is_it(row))

    def _check_names(self, block: bytes, rows: list[dict[str, Any]]) -> None:
        unknown = set().union(*rows) - self.kinds.keys()
        if unknown:
            name = min(unknown)
            line = self._line_of(block, lambda row: name in row)
            why = (
                "which the first rows do not have: name all columns with --schema"
                if self.inferred
                else f"which the topic does not have; it has {', '.join(self.kinds)}"
            )
            raise pa.ArrowInvalid(f"line {line} has a column {name!r}, {why}")

    def _column(self, block: bytes, rows: list[dict[str, Any]], name: str) -> pa.Array:
        kind = self.kinds[name]
        try:
            return decode_column([row.get(name) for row in rows], kind)
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            raise self._named_failure(block, name, error) from error

    def _named_failure(self, block: bytes, name: str, error: Exception) -> pa.ArrowInvalid:
        kind = self.kinds[name]
        for number, row in self._one_by_one(block):
            try:
                decode_column([row.get(name)], kind)
            except (ValueError, TypeError, ArithmeticError, LookupError) as one:
                hint = " (the type was taken from the first rows: --schema sets it)"
                return pa.ArrowInvalid(
                    f"line {number}, column {name!r} ({kind}): {one}{hint if self.inferred else ''}"
                )
        return pa.ArrowInvalid(f"column {name!r} ({kind}): {error}")


def _inferred(block: bytes, columns: list[str] | None) -> dict[str, pa.DataType]:
    reader = _JsonReader({}, columns=[])
    rows = reader._rows(block)
    names = list(dict.fromkeys(name for row in rows for name in row))
    if columns is not None:
        if rows and (missing := [name for name in columns if name not in names]):
            raise pa.ArrowInvalid(f"there is no column {missing[0]!r}")
        names = columns
    return {name: _infer(name, [row.get(name) for row in rows]) for name in names}


def _infer(name: str, values: Sequence[Any]) -> pa.DataType:
    present = [value for value in values if value is not None]
    if present and set(map(type, present)) == {str}:
        return _infer_text(present)
    try:
        return pa.infer_type(present)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise pa.ArrowInvalid(
            f"column {name!r} has values of several types ({error}): --schema names one"
        ) from error


def _infer_text(texts: Sequence[str]) -> pa.DataType:
    found: set[pa.DataType] = set()
    for text in texts:
        found.add(_moment_type(text))
        if pa.string() in found or len(found) > 1:
            return pa.string()
    return found.pop()


def _moment_type(text: str) -> pa.DataType:
    if not (len(text) >= 10 and text[:4].isdigit() and text[4] == "-" == text[7]):
        return pa.string()
    try:
        if len(text) == 10:
            date.fromisoformat(text)
            return pa.date32()
        zoned = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return pa.string()
    return pa.timestamp("us", "UTC") if zoned else pa.timestamp("us")
