"""Files as record batches: what `produce` reads.

With a topic, values are read as its types, and one that does not fit is refused.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import click
import pyarrow as pa

from quiverlog.cli.console.failures import PARSER_ERRORS, CommandFailed, unreadable
from quiverlog.cli.formats.encodings import codec_of, in_utf8, recoded
from quiverlog.cli.formats.formats import compression_of, kind_of
from quiverlog.cli.formats.memory_bound import bounded_memory, too_large
from quiverlog.cli.formats.read_text import (
    Batches,
    CountingFile,
    TextOptions,
    read_json,
    read_lines,
)
from quiverlog.limits import FILE_BATCH_BYTES, FILE_MEMORY_BYTES_MAX

__all__ = ["FORMATS", "Source", "format_by_name", "open_source"]

FORMATS = ("auto", "csv", "tsv", "json", "parquet", "arrow", "lines")

_ROWS_PER_BATCH = 65_536
_FEWER_ROWS = 16
_UNREADABLE = (pa.ArrowException, OSError, *PARSER_ERRORS)
"""Raised for malformed bytes: OSError where they end early."""
_ARROW_FILE, _ARROW_STREAM, _PARQUET = b"ARROW1", b"\xff\xff\xff\xff", b"PAR1"
_ARROW_FILE_HEAD_BYTES = 8
_OF_TEXT = ("auto", "csv", "tsv", "json")
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"BZh": "bz2",
}
_BZ2_BLOCK = b"1AY&SY"
"""Follows `BZh` and a digit; the letters alone might begin a CSV file."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_PEEK_BYTES = 16

_ReadText = Callable[[CountingFile, TextOptions], tuple[pa.Schema, Batches]]


class _Progress(Protocol):
    done: int


@dataclass(slots=True)
class Source:
    """`total`: rows where the file has their number, else bytes; None: unknown."""

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
    encoding: str = "utf-8",
    warn: Callable[[str], None] = lambda _note: None,
) -> Iterator[Source]:
    """Open a file, or stdin for `-`, for the time of a `with`.

    Args:
        file_format: one of `FORMATS`; `auto` uses the name, then the first bytes.
        schema: the topic's columns; None infers them.
        warn: called with notes for the user about the values.

    Raises:
        CommandFailed: the file is not of its format.
        FileTooLarge: its rows take more memory than a file may.
    """
    if file_format == "auto":
        file_format = format_by_name(path) or "auto"
    codec = codec_of(encoding)
    opened, size, streamed = _open_binary(path)
    options = TextOptions(schema, columns, null_values, delimiter, warn, streamed)
    # Plus the file's size: an Arrow file may be one batch.
    bytes_max = FILE_MEMORY_BYTES_MAX + (size or 0)
    try:
        with bounded_memory(_name(path), bytes_max):
            source, file_format = _source(opened, size, path, file_format, codec, options)
            source.batches = _guarded(source.batches, path, file_format, bytes_max)
            yield source
    finally:
        if path != "-":
            opened.close()


def _source(
    opened: io.BufferedReader,
    size: int | None,
    path: str,
    file_format: str,
    codec: str | None,
    options: TextOptions,
) -> tuple[Source, str]:
    binary = opened
    try:
        if file_format in _OF_TEXT:
            unpacked = _unpacked(opened, path)
            if unpacked is not None:
                binary, size = unpacked, None
        if codec is not None and file_format in (*_OF_TEXT, "lines"):
            binary, size = in_utf8(binary, codec), None
        elif file_format in _OF_TEXT:
            _check_encoding(binary, path)
        if file_format == "auto":
            file_format = _recognise(binary)
        if codec is not None and file_format not in (*_OF_TEXT, "lines"):
            raise click.UsageError(f"--encoding is for text; {path} is {file_format}.")
        source = _OPENERS[file_format](binary, options)
    except MemoryError:
        raise
    except _UNREADABLE as error:
        raise _unreadable(path, "text" if file_format == "auto" else file_format, error) from error
    if not source.total_is_rows:
        source.total = size
    return source, file_format


def _name(path: str) -> str:
    return "stdin" if path == "-" else path


def format_by_name(path: str) -> str | None:
    found = kind_of(path, option="--input-format").format
    return "arrow" if found == "arrow-file" else found


def _open_binary(path: str) -> tuple[io.BufferedReader, int | None, bool]:
    """Return (file, its size if known, whether its rows arrive over time)."""
    if path == "-":
        stdin = cast("io.BufferedReader", sys.stdin.buffer)
        return stdin, None, not stdin.seekable()
    compression = compression_of(path)
    if compression is not None:
        stream = pa.CompressedInputStream(pa.OSFile(path, "rb"), compression)
        return io.BufferedReader(_Readable(stream)), None, False
    binary = open(path, "rb")  # noqa: SIM115 - the caller closes it
    found = os.fstat(binary.fileno())
    if stat.S_ISREG(found.st_mode):
        return binary, found.st_size, False
    return binary, None, True


class _Readable(io.RawIOBase):
    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return int(self._stream.readinto(buffer))


class _AsItComes:
    """A stream for pyarrow whose `read` returns what has arrived, without waiting for `size`."""

    closed = False

    def __init__(self, binary: io.BufferedReader) -> None:
        self._binary = binary

    def read(self, size: int = -1) -> bytes:
        return self._binary.read1(size)

    def close(self) -> None:
        """Leave the stream to its opener."""


def _unpacked(binary: io.BufferedReader, path: str) -> io.BufferedReader | None:
    """Return the decompressed stream; None: the first bytes show no compression."""
    head = binary.peek(_PEEK_BYTES)
    codec = next((codec for magic, codec in _PACKED.items() if head.startswith(magic)), None)
    if codec is None or (codec == "bz2" and head[4:10] != _BZ2_BLOCK):
        return None
    # A suffix names what the file is: a compressed .csv is a mistake.
    if path != "-" and kind_of(path, option="--input-format").format is not None:
        raise CommandFailed(f"{path} is compressed with {codec}, and its name does not end so.")
    source: Any = _AsItComes(binary)
    stream = pa.CompressedInputStream(pa.PythonFile(source, mode="r"), codec)
    return io.BufferedReader(_Readable(stream))


def _check_encoding(binary: io.BufferedReader, path: str) -> None:
    if binary.peek(_PEEK_BYTES).startswith(_UTF16) and not binary.peek(4).startswith(_ARROW_STREAM):
        message = f"{_name(path)} is UTF-16, and was to be read as UTF-8: {recoded('utf-16')}."
        raise CommandFailed(message)


def _recognise(binary: io.BufferedReader) -> str:
    head = binary.peek(8)
    if head.startswith((_ARROW_FILE, _ARROW_STREAM)):
        return "arrow"
    if head.startswith(_PARQUET):
        return "parquet"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    # An array goes to the JSON reader, which refuses it with a hint; in CSV it would be a header.
    is_array = text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{", b"]")
    return "json" if is_array or text.startswith(b"{") else "csv"


def _unreadable(path: str, file_format: str, error: Exception) -> CommandFailed:
    return unreadable(_name(path), file_format, error)


def _guarded(
    batches: Iterator[pa.RecordBatch], path: str, file_format: str, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    try:
        for batch in batches:
            yield from _in_pieces(batch)
    except MemoryError as error:  # From the iterator: `produce` then reports the rows it has sent.
        raise too_large(_name(path), bytes_max) from error
    except _UNREADABLE as error:
        raise _unreadable(path, file_format, error) from error


def _csv(binary: io.BufferedReader, options: TextOptions) -> Source:
    from quiverlog.cli.formats.read_csv import read_csv

    return _text(read_csv, binary, options)


def _tsv(binary: io.BufferedReader, options: TextOptions) -> Source:
    return _csv(binary, replace(options, delimiter="\t"))


def _json(binary: io.BufferedReader, options: TextOptions) -> Source:
    return _text(read_json, binary, options)


def _lines(binary: io.BufferedReader, options: TextOptions) -> Source:
    return _text(read_lines, binary, options)


def _text(read: _ReadText, binary: io.BufferedReader, options: TextOptions) -> Source:
    counting = CountingFile(binary)
    schema, batches = read(counting, options)
    return Source(schema, batches, counting)


def _chosen(schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    if columns is None:
        return schema.remove_metadata()
    missing = sorted(set(columns) - set(schema.names))
    if missing:
        raise pa.ArrowInvalid(f"there is no column {missing[0]!r}")
    return pa.schema([schema.field(name) for name in columns])


def _seekable(binary: io.BufferedReader) -> Any:
    # A pipe is read whole: the table of contents is at the end.
    return binary if binary.seekable() else pa.BufferReader(binary.read())


class _CountedRows:
    def __init__(self) -> None:
        self.done = 0

    def count(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            self.done += batch.num_rows


def _parquet(binary: io.BufferedReader, options: TextOptions) -> Source:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(_seekable(binary))
    schema = _chosen(file.schema_arrow, options.columns)
    batches = (batch.select(schema.names) for batch in _row_groups(file, options.columns))
    rows = _CountedRows()
    return Source(schema, rows.count(batches), rows, file.metadata.num_rows, True)


def _row_groups(file: Any, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield all rows, in smaller batches after one that did not fit into memory, down to one row.

    No field of the file bounds that memory: a page may hold one long value for all its rows.
    """
    size = _ROWS_PER_BATCH
    for group in range(file.num_row_groups):
        done = 0
        while True:
            try:
                batches = file.iter_batches(batch_size=size, row_groups=[group], columns=columns)
                for batch in _behind(batches, done):
                    yield batch
                    done += batch.num_rows
                break
            except MemoryError:
                if size == 1:
                    raise
                size = max(1, size // _FEWER_ROWS)


def _behind(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows)
        rows = max(0, rows - batch.num_rows)


def _in_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    # The producer copies what it gets: not all of a large batch at once.
    pieces = max(1, -(-batch.nbytes // FILE_BATCH_BYTES))
    rows = max(1, -(-batch.num_rows // pieces))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)


def _arrow(binary: io.BufferedReader, options: TextOptions) -> Source:
    is_file = binary.peek(8).startswith(_ARROW_FILE)
    if not (is_file and binary.seekable()):
        if is_file:  # Behind its magic an Arrow file is a stream, with a table of contents.
            binary.read(_ARROW_FILE_HEAD_BYTES)
        counting = CountingFile(binary)
        stream = pa.ipc.open_stream(pa.PythonFile(counting, mode="r"))
        schema = _chosen(stream.schema, options.columns)
        return Source(schema, (batch.select(schema.names) for batch in stream), counting)
    file = pa.ipc.open_file(binary)
    schema = _chosen(file.schema, options.columns)
    numbers = range(file.num_record_batches)
    rows = _CountedRows()
    batches = rows.count(file.get_batch(i).select(schema.names) for i in numbers)
    total = sum(file.get_batch(i).num_rows for i in numbers)
    return Source(schema, batches, rows, total, True)


_OPENERS: dict[str, Callable[[io.BufferedReader, TextOptions], Source]] = {
    "csv": _csv,
    "tsv": _tsv,
    "json": _json,
    "lines": _lines,
    "parquet": _parquet,
    "arrow": _arrow,
}
