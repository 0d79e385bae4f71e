"""CSV as other programs write it: names that are missing or there twice, zeros in front."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from quiverlog.batch.schema_text import parse_schema
from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.formats.read_files import open_source


def read(text: str, tmp_path: Path, **options: Any) -> tuple[pa.Table, list[str]]:
    """The rows, and what is noted."""
    path, notes = tmp_path / "rows.csv", []
    path.write_text(text)
    with open_source(str(path), warn=notes.append, **options) as source:
        return pa.Table.from_batches(list(source.batches), source.schema), notes


def columns(table: pa.Table) -> dict[str, list[Any]]:
    return {name: table.column(name).to_pylist() for name in table.schema.names}


def test_an_index_of_pandas_is_a_column(tmp_path: Path) -> None:
    written = io.StringIO()
    pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).to_csv(written)
    table, notes = read(written.getvalue(), tmp_path)
    assert columns(table) == {"index": [0, 1], "a": [1, 2], "b": ["x", "y"]}
    assert len(notes) == 1
    assert "'index'" in notes[0]


def test_an_index_that_the_topic_does_not_have_is_refused_with_what_to_do(tmp_path: Path) -> None:
    topic = parse_schema("a long, b string")
    text = ",a,b\n0,1,x\n"
    with pytest.raises(CommandFailed, match=r"--columns a,b.*index=False"):
        read(text, tmp_path, schema=topic)
    table, _ = read(text, tmp_path, schema=topic, columns=["a", "b"])
    assert columns(table) == {"a": [1], "b": ["x"]}
    table, _ = read(text, tmp_path, schema=parse_schema("index long, a long, b string"))
    assert columns(table) == {"index": [0], "a": [1], "b": ["x"]}


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("a,a", ["a", "a_1"]),
        ("a,a,a_1", ["a", "a_2", "a_1"]),
        ("a,,", ["a", "column_2", "column_3"]),
        (",index,b", ["index_1", "index", "b"]),
        (",,b", ["index", "column_2", "b"]),
        ("column_2,,b", ["column_2", "column_2_1", "b"]),
        ('"a,b","a,b"', ["a,b", "a,b_1"]),
    ],
)
def test_every_column_gets_a_name_of_its_own(tmp_path: Path, header: str, names: list[str]) -> None:
    row = ",".join(str(number) for number in range(len(names)))
    table, notes = read(f"{header}\n{row}\n", tmp_path)
    assert columns(table) == {name: [number] for number, name in enumerate(names)}
    made_up = [name for name in names if name not in header.replace('"', "").split(",")]
    assert len(notes) >= len([name for name in made_up if name != "a,b"])


def test_a_name_that_is_there_twice_is_refused_where_the_topic_has_it_once(tmp_path: Path) -> None:
    topic = parse_schema("a long, b long")
    with pytest.raises(CommandFailed, match=r"'a' is there twice.*--columns"):
        read("a,a\n1,2\n", tmp_path, schema=topic)
    table, _ = read("a,b,a\n1,2,3\n", tmp_path, schema=topic, columns=["a", "b"])
    assert columns(table) == {"a": [1], "b": [2]}


def test_a_made_up_name_is_noted_only_where_its_column_is_taken(tmp_path: Path) -> None:
    text = ",a,a\n0,1,2\n"
    for columns_taken, noted in (["a"], 0), (["index", "a"], 1), (["index", "a", "a_1"], 2):
        table, notes = read(text, tmp_path, columns=columns_taken)
        assert table.schema.names == columns_taken
        assert len(notes) == noted, notes


@pytest.mark.parametrize("value", ["01234", "00", "+4912345", "007.5", "-007", "-00.5"])
@pytest.mark.parametrize("place", ["first", "middle", "quoted", "crlf"])
def test_zeros_in_front_are_kept(tmp_path: Path, value: str, place: str) -> None:
    text = {
        "first": f"z,n\n{value},1\n94110,2\n",
        "middle": f"m,z,n\n5,{value},1\n5,94110,2\n",
        "quoted": f'z,n\n"{value}",1\n94110,2\n',
        "crlf": f"z,n\r\n94110,1\r\n{value},2\r\n",
    }[place]
    table, notes = read(text, tmp_path)
    assert table.schema.field("z").type == pa.string()
    assert value in table.column("z").to_pylist()
    assert "94110" in table.column("z").to_pylist()
    assert table.schema.field("n").type == pa.int64()
    assert len(notes) == 1
    assert "column 'z' is taken as text" in notes[0]


def test_a_last_line_without_an_end_comes_too_late_to_choose_a_type(tmp_path: Path) -> None:
    table, notes = read("n,z\n1,94110\n2,01234", tmp_path)
    assert columns(table) == {"n": [1, 2], "z": [94110, 1234]}
    assert len(notes) == 1
    assert "01234" in notes[0]


def test_numbers_without_zeros_in_front_stay_numbers(tmp_path: Path) -> None:
    text = "i,f,d,s,e\n0,0.5,2024-01-05,a01,05:00:00\n10,-0.25,2024-01-06,b,06:00:00\n"
    table, notes = read(text, tmp_path)
    kinds = [pa.int64(), pa.float64(), pa.date32(), pa.string(), pa.time32("s")]
    assert table.schema.types == kinds
    assert notes == []


def test_a_given_type_counts_and_the_loss_is_noted(tmp_path: Path) -> None:
    topic = parse_schema("zip long, s string, price double")
    table, notes = read("zip,s,price\n01234,007,00.5\n5,1,2\n", tmp_path, schema=topic)
    assert columns(table) == {"zip": [1234, 5], "s": ["007", "1"], "price": [0.5, 2.0]}
    assert len(notes) == 1
    assert "column 'zip' is int64" in notes[0]
    assert "01234" in notes[0]


@pytest.mark.parametrize("schema", [None, "n long, zip long"])
def test_a_loss_in_a_later_block_is_noted_once(tmp_path: Path, schema: str | None) -> None:
    rows = "".join(f"{n},{n % 90000 + 10000}\n" for n in range(500_000))
    text = f"n,zip\n{rows}1,01234\n2,05678\n"
    assert len(text) > 5 << 20, "more than a block"
    topic = None if schema is None else parse_schema(schema)
    table, notes = read(text, tmp_path, schema=topic)
    assert table.column("zip").to_pylist()[-2:] == [1234, 5678]
    assert len(notes) == 1
    assert "01234" in notes[0] or "05678" in notes[0]


def test_a_pipe_is_read_the_same_way(tmp_path: Path) -> None:
    path, notes = tmp_path / "pipe", []
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(",zip\n0,01234\n1,5\n",))
    writer.start()
    with open_source(str(path), "csv", warn=notes.append) as source:
        table = pa.Table.from_batches(list(source.batches), source.schema)
    writer.join()
    assert columns(table) == {"index": [0, 1], "zip": ["01234", "5"]}
    assert len(notes) == 2
