"""Record batches as files: what `consume` writes.

Owns the output formats. A sink knows its columns before the first row, so an empty result still is
a valid file of its format. A topic may gain columns while it is followed: JSON shows them, because
each of its lines stands alone, the other formats leave them out. A column that becomes wider ends a
file whose format holds its type. Text formats write a value that they have no notation for as JSON
has it: bytes as base64, moments in ISO 8601, nested values as JSON.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import pyarrow as pa

from quiverlog.cli.failures import CommandFailed
from quiverlog.cli.terminal import ShieldedBytes, printable
from quiverlog.errors import QuiverlogError

__all__ = ["Sink", "format_of", "open_sink"]

_BY_SUFFIX = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".parquet": "parquet",
}
_TEXT_FORMATS = ("table", "json", "csv")
_CELL_CHARS_MAX = 40


class Sink(Protocol):
    """Takes rows; `flush` makes what was written visible to whoever reads along."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def format_of(output: str) -> str:
    """The format that a file's name stands for; `table` when it says nothing."""
    return _BY_SUFFIX.get(Path(output).suffix.lower(), "table")


@contextlib.contextmanager
def open_sink(output: str, file_format: str, schema: pa.Schema) -> Iterator[Sink]:
    """Open `output` (`-` is stdout) for rows of `schema`.

    Raises:
        OSError: the file cannot be written.
    """
    kinds: dict[str, type[Any]] = {
        "table": _TableSink,
        "json": _JsonSink,
        "csv": _CsvSink,
        "arrow": _ArrowSink,
        "parquet": _ParquetSink,
    }
    with contextlib.ExitStack() as stack:
        target: IO[bytes]
        target = sys.stdout.buffer if output == "-" else stack.enter_context(open(output, "wb"))
        if output != "-" and target.isatty() and file_format in _TEXT_FORMATS:
            shielded: Any = ShieldedBytes(target, "utf-8")
            target = shielded
        sink: Sink = kinds[file_format](target, schema)
        try:
            yield sink
        except (KeyboardInterrupt, CommandFailed, QuiverlogError):
            sink.close()  # what was written so far shall be a readable file
            raise
        sink.close()
        target.flush()


def _plain(value: Any) -> Any:
    """A value that JSON has a notation for (what msgspec does not know by itself)."""
    if isinstance(value, tuple):
        return list(value)
    return str(value)


def _in_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the columns that a file began with.

    Raises:
        CommandFailed: a column's type has changed, or it has got nulls that it could not have.
    """
    if batch.schema.equals(schema):
        return batch
    columns = [batch.column(name) for name in schema.names]
    for column, field in zip(columns, schema, strict=True):
        if column.type != field.type or (column.null_count and not field.nullable):
            raise CommandFailed(
                f"The topic's schema has changed: column {field.name!r} is {column.type} now and"
                f" was {field.type} when the output began. Run the command again."
            )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


class _JsonSink:
    """One object per line."""

    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        self._target = target

    def write(self, batch: pa.RecordBatch) -> None:
        self._target.write(_ENCODER.encode_lines(batch.to_pylist()))

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        pass


class _CsvSink:
    """RFC 4180 with a header line; no value is an empty field."""

    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow.csv as csv

        self._target = target
        self._rows_schema = schema
        self._schema = pa.schema([_text_field(field) for field in schema])
        self._writer = csv.CSVWriter(target, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [
            column if column.type == field.type else _as_text(column)
            for column, field in zip(
                _in_columns(batch, self._rows_schema).columns, self._schema, strict=True
            )
        ]
        self._writer.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        self._writer.close()


def _text_field(field: pa.Field) -> pa.Field:
    kind = field.type
    written_as_text = (
        pa.types.is_nested(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    )
    return field.with_type(pa.string()) if written_as_text else field


def _as_text(column: pa.Array) -> pa.Array:
    texts: list[str | None] = []
    for value in column.to_pylist():
        if value is None:
            texts.append(None)
            continue
        encoded = _ENCODER.encode(value).decode()
        texts.append(encoded[1:-1] if encoded.startswith('"') else encoded)
    return pa.array(texts, pa.string())


class _ArrowSink:
    """The IPC stream format: readable from a pipe and while it grows."""

    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        self._target = target
        self._schema = schema
        self._writer = pa.ipc.new_stream(target, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(_in_columns(batch, self._schema))

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        self._writer.close()


class _ParquetSink:
    """A Parquet file, its batches joined to row groups of a useful size."""

    _GROUP_ROWS = 131_072

    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._schema = schema
        self._writer = pq.ParquetWriter(pa.PythonFile(target, mode="w"), schema)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(_in_columns(batch, self._schema))
        self._rows += batch.num_rows
        if self._rows >= self._GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows = [], 0

    def flush(self) -> None:
        """A row group is the smallest thing that Parquet can show."""

    def close(self) -> None:
        self._write_group()
        self._writer.close()


class _TableSink:
    """Aligned columns, as wide as the first batch needs; longer cells are cut with an ellipsis."""

    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        self._target = target
        self._names = schema.names
        self._heads = [printable(name) for name in schema.names]
        self._right = [
            pa.types.is_integer(f.type)
            or pa.types.is_floating(f.type)
            or pa.types.is_decimal(f.type)
            for f in schema
        ]
        self._widths: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        shown = batch.select(self._names)
        rows = [[_cell(value) for value in row.values()] for row in shown.to_pylist()]
        if not self._widths and rows:
            columns = zip(self._heads, zip(*rows, strict=True), strict=True)
            self._widths = [max(len(name), *map(len, cells)) for name, cells in columns]
            self._line(self._heads)
        for row in rows:
            self._line(row)

    def _line(self, cells: list[str]) -> None:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, self._widths, self._right, strict=True)
        )
        self._target.write(("  ".join(aligned).rstrip() + "\n").encode())

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        if not self._widths:
            self._widths = [len(name) for name in self._heads]
            self._line(self._heads)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, float):
        text = f"{value:.10g}"
    else:
        text = _ENCODER.encode(value).decode()
        text = text[1:-1] if text.startswith('"') else text
    text = printable(text)
    return text if len(text) <= _CELL_CHARS_MAX else text[: _CELL_CHARS_MAX - 1] + "…"
