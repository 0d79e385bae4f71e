"""Files as record batches: what `produce` reads.

Owns the formats, how one is recognised, and how a column's type decides how its text is read.
Values are read with the topic's types where there is a topic; whatever does not fit is refused by
the reader or by the producer, with the column's name, never bent.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa

from quiverlog.cli.failures import PARSER_ERRORS, CommandFailed, unreadable

__all__ = ["FORMATS", "Source", "open_source"]

FORMATS = ("auto", "csv", "json", "parquet", "arrow", "lines")

_BY_SUFFIX = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_BLOCK_BYTES = 4 << 20
_LINES_PER_BATCH = 16_384
_ROWS_PER_BATCH = 65_536
_UNREADABLE = (pa.ArrowException, OSError, *PARSER_ERRORS)
"""What pyarrow raises on bytes that are not what they should be: OSError where they break off."""
_ARROW_FILE, _ARROW_STREAM, _PARQUET = b"ARROW1", b"\xff\xff\xff\xff", b"PAR1"


class CountingFile(io.RawIOBase):
    """A readable file that knows how much of it was taken, for the progress bar."""

    def __init__(self, inner: io.BufferedReader) -> None:
        self._inner = inner
        self.done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        size = self._inner.readinto(buffer)
        self.done += size
        return size


class _Progress(Protocol):
    done: int


@dataclass(slots=True)
class Source:
    """An opened file: its columns, and its rows batch by batch.

    `total` is in rows where the file says how many it has, in bytes otherwise; None if unknown.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    progress: _Progress
    total: int | None = None
    total_is_rows: bool = False


@contextlib.contextmanager
def open_source(
    path: str,
    file_format: str = "auto",
    *,
    schema: pa.Schema | None = None,
    columns: list[str] | None = None,
    null_values: tuple[str, ...] = ("",),
    delimiter: str = ",",
) -> Iterator[Source]:
    """Open a file, or stdin for `-`, for the time of a `with`.

    Args:
        path: may end in .gz, .bz2, .zst or .lz4 as well.
        file_format: one of `FORMATS`; `auto` goes by the name, then by the first bytes.
        schema: the topic's columns; None infers them from the file.
        columns: take only these columns of the file.
        null_values: CSV fields that stand for no value.

    Raises:
        OSError: the file cannot be read.
        CommandFailed: it is not what its name or the option says.
    """
    binary, size = _open_binary(path)
    try:
        if file_format == "auto":
            file_format = _recognise(path, binary)
        options = _Options(schema, columns, null_values, delimiter)
        try:
            source = _OPENERS[file_format](path, binary, options)
        except _UNREADABLE as error:
            raise _unreadable(path, file_format, error) from error
        if not source.total_is_rows:
            source.total = size
        source.batches = _guarded(source.batches, path, file_format)
        yield source
    finally:
        if path != "-":
            binary.close()


@dataclass(frozen=True, slots=True)
class _Options:
    schema: pa.Schema | None
    columns: list[str] | None
    null_values: tuple[str, ...]
    delimiter: str

    def types(self) -> dict[str, pa.DataType]:
        """The types to read the wanted columns with, as far as they are known."""
        if self.schema is None:
            return {}
        return {
            f.name: f.type for f in self.schema if self.columns is None or f.name in self.columns
        }


def _open_binary(path: str) -> tuple[io.BufferedReader, int | None]:
    if path == "-":
        return cast("io.BufferedReader", sys.stdin.buffer), None
    size = Path(path).stat().st_size
    compression = _COMPRESSIONS.get(Path(path).suffix.lower())
    if compression is None:
        return open(path, "rb"), size
    stream = pa.CompressedInputStream(pa.OSFile(path, "rb"), compression)
    return io.BufferedReader(_Readable(stream)), None


class _Readable(io.RawIOBase):
    """pyarrow's decompressed stream in the shape that `io.BufferedReader` wants."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return int(self._stream.readinto(buffer))


def _recognise(path: str, binary: io.BufferedReader) -> str:
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    named = _BY_SUFFIX.get(suffixes[-1]) if suffixes else None
    if named is not None:
        return named
    head = binary.peek(8)
    if head.startswith((_ARROW_FILE, _ARROW_STREAM)):
        return "arrow"
    if head.startswith(_PARQUET):
        return "parquet"
    return "json" if head.lstrip().startswith(b"{") else "csv"


def _unreadable(path: str, file_format: str, error: Exception) -> CommandFailed:
    name = "stdin" if path == "-" else path
    return unreadable(name, file_format, error)


def _guarded(
    batches: Iterator[pa.RecordBatch], path: str, file_format: str
) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except _UNREADABLE as error:
        raise _unreadable(path, file_format, error) from error


def _csv(path: str, binary: io.BufferedReader, options: _Options) -> Source:
    import pyarrow.csv as csv

    counting = CountingFile(binary)
    reader = csv.open_csv(
        pa.PythonFile(counting, mode="r"),
        read_options=csv.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter=options.delimiter),
        convert_options=csv.ConvertOptions(
            column_types=options.types(),
            include_columns=options.columns,
            null_values=list(options.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return Source(reader.schema, iter(reader), counting)


def _json(path: str, binary: io.BufferedReader, options: _Options) -> Source:
    import pyarrow.json as json

    # JSON has neither bytes nor dates: both are text there, as `consume` writes them.
    types = options.types()
    coded = {n: k for n, k in types.items() if pa.types.is_binary(k) or pa.types.is_date(k)}
    read_as = {name: pa.string() if name in coded else kind for name, kind in types.items()}
    unexpected = "infer" if options.columns is None or not read_as else "ignore"
    counting = CountingFile(binary)
    reader = json.open_json(
        pa.PythonFile(counting, mode="r"),
        read_options=json.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=json.ParseOptions(
            explicit_schema=pa.schema(read_as) if read_as else None,
            unexpected_field_behavior=unexpected,
        ),
    )
    found = _chosen(reader.schema, options.columns)
    schema = pa.schema([field.with_type(coded.get(field.name, field.type)) for field in found])
    batches = (_from_text(batch.select(found.names), coded) for batch in reader)
    return Source(schema, batches, counting)


def _chosen(schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    if columns is None:
        return schema.remove_metadata()
    missing = sorted(set(columns) - set(schema.names))
    if missing:
        raise pa.ArrowInvalid(f"there is no column {missing[0]!r}")
    return pa.schema([schema.field(name) for name in columns])


def _from_text(batch: pa.RecordBatch, coded: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    for position, name in enumerate(batch.schema.names):
        kind = coded.get(name)
        if kind is None:
            continue
        column = batch.column(position)
        try:
            decoded = _from_base64(column) if pa.types.is_binary(kind) else column.cast(kind)
        except (binascii.Error, pa.ArrowInvalid) as error:
            notation = "base64" if pa.types.is_binary(kind) else "a date"
            raise pa.ArrowInvalid(f"column {name!r} is {kind}, not {notation}: {error}") from error
        batch = batch.set_column(position, name, decoded)
    return batch


def _from_base64(column: pa.Array) -> pa.Array:
    decoded = (
        None if text is None else base64.b64decode(text, validate=True)
        for text in column.to_pylist()
    )
    return pa.array(decoded, pa.binary())


def _lines(path: str, binary: io.BufferedReader, options: _Options) -> Source:
    topic = options.schema
    if topic is not None and "value" not in topic.names:
        raise pa.ArrowInvalid("lines need a topic with a column `value`, as the schema `raw` has")
    kind = pa.binary() if topic is None else topic.field("value").type
    found = pa.schema({"value": kind})
    counting = CountingFile(binary)

    def batches() -> Iterator[pa.RecordBatch]:
        lines: list[bytes] = []
        for line in io.BufferedReader(counting, _BLOCK_BYTES):
            lines.append(line.rstrip(b"\r\n"))
            if len(lines) == _LINES_PER_BATCH:
                yield pa.record_batch([pa.array(lines, pa.binary()).cast(kind)], schema=found)
                lines = []
        if lines:
            yield pa.record_batch([pa.array(lines, pa.binary()).cast(kind)], schema=found)

    return Source(found, batches(), counting)


def _seekable(binary: io.BufferedReader) -> Any:
    """Formats with their table of contents at the end need a pipe to be read whole."""
    return binary if binary.seekable() else pa.BufferReader(binary.read())


class _CountedRows:
    """Progress in rows."""

    def __init__(self) -> None:
        self.done = 0

    def count(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            self.done += batch.num_rows


def _parquet(path: str, binary: io.BufferedReader, options: _Options) -> Source:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(_seekable(binary))
    schema = _chosen(file.schema_arrow, options.columns)
    batches = (
        batch.select(schema.names)
        for batch in file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=options.columns)
    )
    rows = _CountedRows()
    return Source(schema, rows.count(batches), rows, file.metadata.num_rows, True)


def _arrow(path: str, binary: io.BufferedReader, options: _Options) -> Source:
    if not binary.peek(8).startswith(_ARROW_FILE):
        counting = CountingFile(binary)
        stream = pa.ipc.open_stream(pa.PythonFile(counting, mode="r"))
        schema = _chosen(stream.schema, options.columns)
        return Source(schema, (batch.select(schema.names) for batch in stream), counting)
    file = pa.ipc.open_file(_seekable(binary))
    schema = _chosen(file.schema, options.columns)
    numbers = range(file.num_record_batches)
    rows = _CountedRows()
    batches = rows.count(file.get_batch(i).select(schema.names) for i in numbers)
    total = sum(file.get_batch(i).num_rows for i in numbers)
    return Source(schema, batches, rows, total, True)


_OPENERS: dict[str, Callable[[str, io.BufferedReader, _Options], Source]] = {
    "csv": _csv,
    "json": _json,
    "lines": _lines,
    "parquet": _parquet,
    "arrow": _arrow,
}
