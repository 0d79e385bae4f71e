"""Text that comes by and by, in blocks of any size, and the errors for unreadable text."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pytest

from quiverlog.batch.schema_text import parse_schema
from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.formats import read_text
from quiverlog.cli.formats.read_files import open_source


class Trickle(io.RawIOBase):
    """A pipe that has a few bytes at a time."""

    def __init__(self, content: bytes, size: int) -> None:
        self._inner = io.BytesIO(content)
        self._size = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = self._inner.read(min(self._size, len(buffer)))
        buffer[: len(data)] = data
        return len(data)


def trickled(monkeypatch, content: bytes, size: int, file_format: str = "auto", **options):
    pipe = io.BufferedReader(Trickle(content, size))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(pipe))
    with open_source("-", file_format, **options) as source:
        batches = list(source.batches)
        return pa.Table.from_batches(batches, source.schema), len(batches)


CSV = b'id,name\r\n1,"a\nb"\r\n\r\n2,"c ""d"", e"\r\n3,5" pipe\r\n4,"x"y\r\n5,last'
ROWS = [(1, "a\nb"), (2, 'c "d", e'), (3, '5" pipe'), (4, "xy"), (5, "last")]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1000])
@pytest.mark.parametrize("schema", [None, parse_schema("id long, name string")])
def test_csv_may_come_in_pieces_of_any_size(monkeypatch, size: int, schema):
    table, _ = trickled(monkeypatch, CSV, size, "csv", schema=schema)
    assert table.to_pylist() == [{"id": i, "name": name} for i, name in ROWS]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_csv_of_one_column_may_have_rows_without_a_value(monkeypatch, size: int):
    table, _ = trickled(monkeypatch, b"id\n1\n\n3\n", size, schema=parse_schema("id long"))
    assert table["id"].to_pylist() == [1, None, 3]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("file_format", ["json", "lines"])
def test_lines_may_come_in_pieces_of_any_size(monkeypatch, size: int, file_format: str):
    content = b'{"a":1}\n{"a":2}\n{"a":3}'
    table, _ = trickled(monkeypatch, content, size, file_format)
    found = table.column(0).to_pylist()
    assert found == ([1, 2, 3] if file_format == "json" else content.split(b"\n"))


def test_what_has_come_through_a_pipe_is_not_held_back(monkeypatch):
    """Three lines that arrive one after the other are three batches, not one at the end."""
    for content, file_format in (
        (b"a\n1\n2\n3\n", "csv"), (b'{"a":1}\n' * 3, "json"), (b"1\n2\n3\n", "lines"),
    ):  # fmt: skip
        size = 2 if file_format != "json" else 8
        _, count = trickled(monkeypatch, content, size, file_format)
        assert count == 3, file_format


def test_no_text_is_no_rows(monkeypatch, tmp_path: Path):
    for file_format in ("auto", "csv", "json", "lines"):
        table, _ = trickled(monkeypatch, b"", 1, file_format, schema=parse_schema("value string"))
        assert table.num_rows == 0
    for name in ("empty.csv", "empty.json", "empty.tsv", "empty"):
        (tmp_path / name).touch()
        with open_source(str(tmp_path / name)) as source:
            assert list(source.batches) == []


def test_a_row_without_end_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("quiverlog.cli.formats.read_text.RECORD_BYTES_MAX", 1000)
    for content, file_format in ((b'a\n"' + b"x\n" * 2000, "csv"), (b"x" * 2000, "lines")):
        with pytest.raises(CommandFailed, match="a row takes more than"):
            trickled(monkeypatch, content, 100, file_format)


SCHEMA = parse_schema(
    "a int, b decimal(5,2), c binary, d array<date>, e timestamp, f map<int, int>"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"a": "1"}', "column 'a' (int32): '1' is not a whole number"),
        ('{"a": 1.5}', "column 'a' (int32): '1.5' is not a whole number"),
        ('{"a": true}', "column 'a'"),
        ('{"a": 3000000000}', "column 'a'"),
        ('{"b": "1.234"}', "column 'b'"),
        ('{"b": 12345}', "column 'b'"),
        ('{"b": "NaN"}', "column 'b'"),
        ('{"c": "%"}', "column 'c' (binary): '%' is not base64"),
        ('{"d": "2024-05-06"}', "column 'd'"),
        ('{"d": ["2024-13-06"]}', "is not a date like 2024-05-06"),
        ('{"e": "2024-05-06T07:08:09"}', "names no time zone"),
        ('{"e": "2024-05-06T07:08:09.1234567Z"}', "more digits than microseconds"),
        ('{"f": [[1]]}', "is not a pair [key, value]"),
        ('{"f": {"1": 1}}', "is not a list of [key, value]"),
        ('{"g": 1}', "has a column 'g', which the topic does not have"),
        ('{"a": 1', "is no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "is no object"),
        ('{"a": 1}}', "is no JSON"),
        ("\x00", "is no JSON"),
        ('{"a": "\\ud800"}', "is half of a surrogate pair"),
    ],
)
def test_json_that_cannot_be_read_is_named_by_line_and_column(
    tmp_path: Path, line: str, expected: str
):
    path = tmp_path / "rows.json"
    path.write_text('{"a": 1}\n\n' + line + '\n{"a": 2}\n')
    with (
        pytest.raises(CommandFailed) as caught,
        open_source(str(path), schema=SCHEMA) as source,
    ):
        list(source.batches)
    assert "line 3" in str(caught.value)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 600


def test_numbers_are_not_rounded(tmp_path: Path):
    path = tmp_path / "rows.json"
    path.write_text('{"d": 12345678901234567890.12, "i": 9007199254740993}\n')
    with open_source(str(path), schema=parse_schema("d decimal(30,2), i long")) as source:
        (batch,) = source.batches
    assert [str(v) for v in batch.to_pylist()[0].values()] == [
        "12345678901234567890.12", "9007199254740993",
    ]  # fmt: skip


def test_the_types_of_json_are_inferred_zone_included(tmp_path: Path):
    path = tmp_path / "rows.json"
    row = {
        "z": "2024-05-06T07:08:09Z", "n": "2024-05-06T07:08:09", "d": "2024-05-06", "s": "2024-x",
        "i": 1, "f": 1.5, "l": [1], "b": True, "o": {"x": None},
    }  # fmt: skip
    path.write_text(json.dumps(row) + "\n" + json.dumps({"i": None}) + "\n")
    with open_source(str(path)) as source:
        kinds = {f.name: str(f.type) for f in source.schema}
        (batch,) = source.batches
    assert kinds == {
        "z": "timestamp[us, tz=UTC]", "n": "timestamp[us]", "d": "date32[day]", "s": "string",
        "i": "int64", "f": "double", "l": "list<item: int64>", "b": "bool", "o": "struct<x: null>",
    }  # fmt: skip
    assert batch.num_rows == 2


def test_csv_names_the_column(tmp_path: Path, monkeypatch):
    path = tmp_path / "rows.csv"
    path.write_text("id,price\n1,2\n3,x\n")
    schema = parse_schema("id long, price double")
    with (
        pytest.raises(CommandFailed, match="column 'price': not double: invalid value 'x'"),
        open_source(str(path), schema=schema) as source,
    ):
        list(source.batches)
    with pytest.raises(CommandFailed, match="column 'price'"):
        trickled(monkeypatch, path.read_bytes(), 4, "csv", schema=schema)
    with pytest.raises(CommandFailed, match="row 2"):
        trickled(monkeypatch, b"a,b\n1,2\n3\n", 4, "csv")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("In CSV column #1: CSV conversion error to double: bad 'x'", "column 'price': not double"),
        (
            "In CSV column #1: Row #3: CSV conversion error to double: bad 'x'",
            "row 3: column 'price': not double",
        ),
    ],
)
def test_csv_names_the_column_with_and_without_a_row_from_pyarrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, expected: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,price\n1,2\n")

    real = csv.read_csv

    def fails(text: object, **options: Any) -> pa.Table:
        if "convert_options" in options:  # without them it is the header
            raise pa.ArrowInvalid(message)
        return real(text, **options)

    monkeypatch.setattr("pyarrow.csv.read_csv", fails)
    with pytest.raises(CommandFailed, match=expected), open_source(str(path)) as source:
        list(source.batches)


def test_a_file_of_many_blocks_keeps_its_order_and_counts_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nearly every block ends within quotes: only the row that it breaks off waits for the next.
    monkeypatch.setattr(read_text, "RECORD_BYTES_MAX", 5 << 20)
    path = tmp_path / "rows.csv"
    numbers = range(15_000)  # three blocks of 4 MiB
    filler = "x" * 900
    path.write_text("n,text\n" + "".join(f'{n},"a\n{n % 7}{filler}"\n' for n in numbers))
    with open_source(str(path)) as source:
        table = pa.Table.from_batches(source.batches)
    assert table["n"].equals(pa.chunked_array([pa.array(numbers)]))
    assert table["text"][8].as_py() == f"a\n1{filler}"
    with path.open("a") as file:
        file.write("15000,x\nno number,x\n")
    with (
        pytest.raises(CommandFailed, match="row 15002: column 'n'"),
        open_source(str(path)) as source,
    ):
        for _ in source.batches:
            pass
