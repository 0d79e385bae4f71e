"""Tables of rows and of commands' output: what is shown, and which names are refused."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pyarrow as pa
import pytest

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.console.output import _RICH_ROWS_MAX, print_table
from quiverlog.cli.formats.write_files import open_sink
from quiverlog.cli.formats.write_table import TableSink

TWICE = pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"])


def table_of(batch: pa.RecordBatch, *, is_cut: bool = False) -> list[str]:
    target = io.BytesIO()
    sink = TableSink(target, batch.schema, is_cut=is_cut)
    sink.write(batch)
    sink.close()
    return target.getvalue().decode().splitlines()


@pytest.mark.parametrize("file_format", ["json", "csv", "tsv", "arrow", "arrow-file", "parquet"])
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, file_format: str) -> None:
    path = tmp_path / "out"
    with (
        pytest.raises(CommandFailed, match="'a' is there more than once"),
        open_sink(str(path), file_format, TWICE.schema) as sink,
    ):
        sink.write(TWICE)
    assert not path.exists()


def test_a_table_shows_it_twice() -> None:
    assert table_of(TWICE) == ["a  a", "1  2"]


@pytest.mark.parametrize("data_type", [pa.timestamp("us", "UTC"), pa.timestamp("us")], ids=str)
def test_a_moment_that_has_no_notation_does_not_end_a_table(data_type: pa.DataType) -> None:
    moments = pa.array([0, 1 << 62, None], pa.int64()).cast(data_type)
    lines = table_of(pa.record_batch([moments, pa.array([1, 2, 3])], names=["at", "n"]))
    assert [line.split()[0] for line in lines[1:3]] == [
        "1970-01-01T00:00:00" + ("Z" if data_type.tz else ""),
        "out",
    ]
    assert str(1 << 62) in lines[2]
    nested = pa.array([[1 << 62]], pa.list_(pa.int64())).cast(pa.list_(data_type))
    assert table_of(pa.record_batch([nested], names=["at"])) == ["at", "out of range"]


def test_wide_characters_take_two_columns() -> None:
    batch = pa.record_batch([["漢字", "ab", "é" * 3], ["x", "y", "z"]], names=["名", "n"])
    assert table_of(batch) == ["名    n", "漢字  x", "ab    y", "ééé   z"]
    cut = table_of(pa.record_batch([["漢" * 30, "a" * 41]], names=["v"]), is_cut=True)
    assert cut == ["v", "漢" * 19 + "…", "a" * 39 + "…"]


def test_a_pipe_gets_whole_names(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["n" * 249, "k" * 249, "c" * 249]
    print_table(["TOPIC", "KEY", "CONFIG"], [names])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split() == names


@pytest.mark.parametrize("columns", [1, 5, 20, 40, 80])
def test_no_word_is_cut_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """A number in two pieces is another one."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    heads = ["PARTITION", "TOPIC", "LAST OFFSET"]
    print_table(heads, [["7", "n" * 30, 123456789012], ["8", "-", "a b"]], right=["LAST OFFSET"])
    printed = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    lines = [line.rstrip() for line in printed.splitlines()]
    words = " ".join(lines).split()
    assert {"PARTITION", "n" * 30, "123456789012", "OFFSET", "a", "b"} <= set(words)
    assert len(max(lines, key=len)) <= max(columns, 9 + 30 + 12 + 2 * 3 + 2)


def test_a_cell_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    cells = ["[red]x[/red]", ":smile:", "\\[b]", "list<item: int32>[3]"]
    print_table(cells, [cells])
    first, _, last = capsys.readouterr().out.splitlines()
    assert first.split(maxsplit=3) == last.split(maxsplit=3) == cells


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_colours_that_are_asked_for_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_table(["NAME"], [["t"]])
    assert "\x1b[" in capsys.readouterr().out


def test_a_long_table_is_written_as_a_short_one_is_into_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heads, row = ["RULE", "名", "FROM"], (7, "漢字 x", None)
    rows = [row, (12, "\x1b", "10.0.0.0/8")] * (_RICH_ROWS_MAX // 2)
    print_table(heads, rows, right=["RULE"])
    by_rich = capsys.readouterr().out.splitlines()
    monkeypatch.setattr("rich.table.Table", None)
    print_table(heads, [*rows, row], right=["RULE"])
    assert capsys.readouterr().out.splitlines() == [*by_rich, by_rich[2]]
