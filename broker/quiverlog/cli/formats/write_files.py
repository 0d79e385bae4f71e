"""Record batches as files: what `consume` writes.

A sink gets its columns before the first row, so an empty result is a valid file. Only JSON shows
columns that a followed topic gains; in CSV, Arrow and Parquet a column that changes its type ends
the output. With the same schema `produce` reads all but tables and templates back.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Protocol

import pyarrow as pa

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.interrupts import interrupts_held
from quiverlog.cli.console.terminal import ShieldedBytes
from quiverlog.cli.formats.json_encode import json_lines, to_text
from quiverlog.cli.formats.json_values import is_text_in_csv
from quiverlog.cli.formats.output_file import is_special, open_new
from quiverlog.cli.formats.template import Part, TemplateSink
from quiverlog.cli.formats.write_table import TableSink
from quiverlog.errors import QuiverlogError
from quiverlog.limits import FILE_BATCH_BYTES

__all__ = ["Sink", "open_sink", "open_template"]

_TEXT_FORMATS = ("table", "json", "csv", "tsv", "lines")


class Sink(Protocol):
    """Takes rows; `flush` makes them visible to the output's reader."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def open_sink(
    output: str,
    file_format: str,
    schema: pa.Schema,
    *,
    compression: str | None = None,
    is_cut: bool = False,
    force: bool = False,
) -> contextlib.AbstractContextManager[Sink]:
    """Open `output` (`-` is stdout) for rows of `schema`.

    Args:
        file_format: `table` or a key of `_SINKS`.
        compression: a codec of pyarrow around the whole file.
        is_cut: a table shortens long values.
    """

    def sink(target: IO[bytes]) -> Sink:
        if file_format == "table":
            return TableSink(target, schema, is_cut=is_cut)
        return _SINKS[file_format](target, schema)

    if file_format != "table":
        _check_names(schema)

    is_text = file_format in _TEXT_FORMATS
    return _opened(output, sink, is_text=is_text, compression=compression, force=force)


def open_template(
    output: str,
    schema: pa.Schema,
    parts: Sequence[Part],
    *,
    key: Sequence[str],
    own: Sequence[str],
    compression: str | None = None,
    force: bool = False,
) -> contextlib.AbstractContextManager[Sink]:
    def sink(target: IO[bytes]) -> Sink:
        return TemplateSink(target, schema, parts, key=key, own=own)

    return _opened(output, sink, is_text=True, compression=compression, force=force)


@contextlib.contextmanager
def _opened(
    output: str,
    make: Callable[[IO[bytes]], Sink],
    *,
    is_text: bool,
    compression: str | None,
    force: bool,
) -> Iterator[Sink]:
    with contextlib.ExitStack() as stack:
        sink: Sink | None = None
        try:
            # Ctrl-C waits until a new file has its first bytes: an empty one is no Parquet file.
            with contextlib.nullcontext() if is_special(output) else interrupts_held():
                target: IO[bytes] = sys.stdout.buffer
                if output != "-":
                    target = stack.enter_context(open_new(output, force=force))
                if output != "-" and target.isatty() and is_text:
                    shielded: Any = ShieldedBytes(target, "utf-8")
                    target = shielded
                if compression is not None:
                    packed: Any = pa.CompressedOutputStream(pa.PythonFile(target, "w"), compression)
                    target = stack.enter_context(packed)
                sink = make(target)
                if not is_text or compression is not None or _is_regular(target):
                    sink = _Unbroken(sink)
            yield sink
        except (KeyboardInterrupt, GeneratorExit, CommandFailed, QuiverlogError):
            if sink is not None:
                sink.close()  # Completes the file: what was written is readable.
            raise
        sink.close()
        target.flush()


def _is_regular(target: IO[bytes]) -> bool:
    """Return False for a pipe or a terminal, whose reader may be slow."""
    try:
        return stat.S_ISREG(os.fstat(target.fileno()).st_mode)
    except (OSError, ValueError):
        return True


def _check_names(schema: pa.Schema) -> None:
    # Readers and JSON objects find values by name.
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise CommandFailed(
            f"Column {twice[0]!r} is there more than once: give each a name of its own "
            "(`select ... as ...`), or write a table."
        )


class _Unbroken:
    """Ctrl-C does not interrupt its writes: half a row group is no Parquet file."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        with interrupts_held():
            self._sink.write(batch)

    def flush(self) -> None:
        with interrupts_held():
            self._sink.flush()

    def close(self) -> None:
        with interrupts_held():
            self._sink.close()


def _in_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns that the file began with. Raises CommandFailed: one has changed."""
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


class _JsonSink:
    def __init__(self, target: IO[bytes], _schema: pa.Schema) -> None:
        self._target = target

    def write(self, batch: pa.RecordBatch) -> None:
        self._target.write(json_lines(batch))

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        pass


class _CsvSink:
    """RFC 4180 with a header line; null is an empty field, and empty text is quoted."""

    delimiter = ","

    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow.csv as csv

        self._target = target
        self._rows_schema = schema
        self._schema = pa.schema([_text_field(field) for field in schema])
        self._writer = csv.CSVWriter(
            target, self._schema, write_options=csv.WriteOptions(delimiter=self.delimiter)
        )

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [
            column if column.type == field.type else to_text(column, field.name)
            for column, field in zip(
                _in_columns(batch, self._rows_schema).columns, self._schema, strict=True
            )
        ]
        self._writer.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        self._writer.close()


class _TsvSink(_CsvSink):
    delimiter = "\t"


def _text_field(field: pa.Field) -> pa.Field:
    kind = field.type
    as_pyarrow_reads_it = not (
        is_text_in_csv(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    )
    return field if as_pyarrow_reads_it else field.with_type(pa.string())


class _LinesSink:
    """The bytes of the column `value`, or of the only column."""

    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        self._target = target
        self._name = _line_column(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name != self._name and column.null_count < len(column):
                raise self._refusal(name, "has values, and a line holds one column")
        values = batch.column(self._name).cast(pa.binary())
        if values.null_count:
            raise self._refusal(self._name, "has rows without a value, and an empty line is one")
        lines: list[bytes] = values.to_pylist()
        if any(b"\n" in line or line.endswith(b"\r") for line in lines):
            raise self._refusal(self._name, "has values that hold the end of a line")
        if lines:
            self._target.write(b"\n".join(lines) + b"\n")

    def _refusal(self, name: str, why: str) -> CommandFailed:
        return CommandFailed(
            f"Column {name!r} {why}: use --format json, or choose with --columns {self._name}."
            if name != self._name
            else f"Column {name!r} {why}: use --format json."
        )

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        pass


def _line_column(schema: pa.Schema) -> str:
    name: str = "value" if "value" in schema.names or len(schema) != 1 else schema.names[0]
    kind = schema.field(name).type if name in schema.names else None
    if kind is None or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        raise CommandFailed(
            f"Lines are the values of a column of text or bytes, `value` or the only one; the "
            f"columns are {', '.join(schema.names)}: choose one with --columns, or use json."
        )
    return name


class _ArrowSink:
    """The IPC stream format: readable from a pipe and while it grows."""

    open_writer: Callable[..., Any] = staticmethod(pa.ipc.new_stream)

    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        self._target = target
        self._schema = schema
        self._writer = self.open_writer(target, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(_in_columns(batch, self._schema))

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        self._writer.close()


class _ParquetSink:
    """Joins batches to row groups of a useful size."""

    _GROUP_ROWS = 131_072

    def __init__(self, target: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._schema = schema
        self._writer = pq.ParquetWriter(pa.PythonFile(target, mode="w"), schema)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(_in_columns(batch, self._schema))
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= self._GROUP_ROWS or self._bytes >= FILE_BATCH_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows, self._bytes = [], 0, 0

    def flush(self) -> None:
        """Do nothing: a row group is a Parquet file's smallest part."""

    def close(self) -> None:
        self._write_group()
        self._writer.close()


class _ArrowFileSink(_ArrowSink):
    """The IPC file format: the stream between two magics, with a table of contents at the end."""

    open_writer = staticmethod(pa.ipc.new_file)


_SINKS: dict[str, Callable[[IO[bytes], pa.Schema], Sink]] = {
    "json": _JsonSink,
    "csv": _CsvSink,
    "tsv": _TsvSink,
    "lines": _LinesSink,
    "arrow": _ArrowSink,
    "arrow-file": _ArrowFileSink,
    "parquet": _ParquetSink,
}
