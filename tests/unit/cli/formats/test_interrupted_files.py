"""Ctrl-C at any moment leaves a file that can be read, be it without a row."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from quiverlog.cli.formats import output_file, write_files

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(autouse=True)
def ctrl_c_raises() -> Iterator[None]:
    """A test run in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def read(path: Path, file_format: str) -> pa.Table:
    if file_format == "parquet":
        return pq.read_table(path)
    if file_format == "arrow":
        return pa.ipc.open_stream(path.read_bytes()).read_all()
    if file_format == "arrow-file":
        return pa.ipc.open_file(path).read_all()
    delimiter = "\t" if file_format == "tsv" else ","
    return pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(delimiter=delimiter))


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("file_format", ["parquet", "arrow", "arrow-file", "csv", "tsv"])
def test_ctrl_c_before_the_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str, compression: str | None
) -> None:
    make = write_files._SINKS[file_format]

    def interrupted(target: IO[bytes], schema: pa.Schema) -> write_files.Sink:
        signal.raise_signal(signal.SIGINT)
        return make(target, schema)

    monkeypatch.setitem(write_files._SINKS, file_format, interrupted)
    path = tmp_path / "out"
    with (
        pytest.raises(KeyboardInterrupt),
        write_files.open_sink(str(path), file_format, SCHEMA, compression=compression),
    ):
        pytest.fail("the interrupt is not forgotten")
    if compression is not None:
        unpacked = pa.input_stream(str(path), compression=compression).read()
        path.write_bytes(unpacked)
    table = read(path, file_format)
    assert table.schema.names == SCHEMA.names
    assert table.num_rows == 0


def test_a_sink_that_was_made_and_not_entered_is_closed(tmp_path: Path) -> None:
    """Ctrl-C may come when the file is ready, and before the `with` has it."""
    path = tmp_path / "out"
    opened = write_files.open_sink(str(path), "parquet", SCHEMA)
    opened.__enter__()
    del opened
    assert pq.read_table(path).num_rows == 0


def test_ctrl_c_ends_the_wait_for_the_reader_of_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def waiting(*_: object) -> IO[bytes]:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it waits for ever")

    monkeypatch.setattr(output_file, "open", waiting, raising=False)
    with pytest.raises(KeyboardInterrupt), write_files.open_sink(str(path), "parquet", SCHEMA):
        pytest.fail("without a reader")


@pytest.mark.parametrize("is_pipe", [False, True])
def test_text_for_a_pipe_ends_at_once_and_that_of_a_file_after_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_pipe: bool
) -> None:
    """A pipe's reader may have stopped: `less` does, and so does a terminal on Ctrl-S."""
    path = tmp_path / "out"
    if is_pipe:
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    is_whole = False

    def write(_sink: object, _batch: pa.RecordBatch) -> None:
        nonlocal is_whole
        signal.raise_signal(signal.SIGINT)
        is_whole = True

    monkeypatch.setattr(write_files._JsonSink, "write", write)
    with (
        pytest.raises(KeyboardInterrupt),
        write_files.open_sink(str(path), "json", SCHEMA) as sink,
    ):
        sink.write(pa.record_batch([[1], ["a"]], schema=SCHEMA))
    assert is_whole is not is_pipe
    if is_pipe:
        os.close(reader)
