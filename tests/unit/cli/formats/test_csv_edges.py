"""CSV whose edges are not as usual: every row is taken, or the file is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from quiverlog.batch.schema_text import parse_schema
from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.formats.read_files import open_source

SCHEMA = parse_schema("id long, name string")
ROWS = [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}]


def rows_of(tmp_path: Path, content: bytes, *, schema: pa.Schema | None = None) -> list[dict]:
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    with open_source(str(file), schema=schema) as source:
        return pa.Table.from_batches(list(source.batches), source.schema).to_pylist()


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["inferred", "of the topic"])
@pytest.mark.parametrize(
    "content",
    [
        b"id,name\r1,x\r2,y\r",
        b"id,name\r1,x\r2,y",
        b'"id","name"\r1,"x"\r2,"y"\r',
        b"id,name\r1,x\n2,y\r\n",
        b"\nid,name\n1,x\n2,y\n",
        b"\r\n\r\nid,name\r\n1,x\r\n\r\n2,y",
        b"\r\rid,name\r1,x\r2,y",
        b"\xef\xbb\xbf\nid,name\n1,x\n2,y\n",
        b"\xef\xbb\xbfid,name\n\n1,x\n2,y\n\n",
    ],
    ids=repr,
)
def test_no_row_is_lost(tmp_path: Path, content: bytes, schema: pa.Schema | None) -> None:
    assert rows_of(tmp_path, content, schema=schema) == ROWS


@pytest.mark.parametrize("content", [b"\n", b"\r\n\r\n", b"\r", b"\xef\xbb\xbf\n"], ids=repr)
def test_empty_lines_alone_are_no_rows(tmp_path: Path, content: bytes) -> None:
    assert rows_of(tmp_path, content, schema=SCHEMA) == []


def test_a_name_may_hold_a_line_s_end(tmp_path: Path) -> None:
    assert rows_of(tmp_path, b'"a\rb","c\nd"\r1,2\r') == [{"a\rb": 1, "c\nd": 2}]


@pytest.mark.parametrize(
    "content", [b'id,name\n1,"x\n2,y\n', b'id,name\n1,x\n2,"y', b'id,"name\n1,x\n'], ids=repr
)
def test_a_text_that_ends_within_quotes_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that was cut off, or a stray quote, which would swallow all rows behind it."""
    with pytest.raises(CommandFailed, match="ends within quotes: a closing quote is missing"):
        rows_of(tmp_path, content, schema=SCHEMA)


@pytest.mark.parametrize(("kind", "number"), [("double", "1e400"), ("float", "-1e39")])
def test_a_number_that_is_too_large_is_no_infinity(tmp_path: Path, kind: str, number: str) -> None:
    content = f"id,n\n1,inf\n2,{number}\n".encode()
    for schema in (parse_schema(f"id long, n {kind}"), None)[: 2 if kind == "double" else 1]:
        with pytest.raises(CommandFailed, match=f"column 'n': {number} is too large for {kind}"):
            rows_of(tmp_path, content, schema=schema)


def test_infinity_may_be_written(tmp_path: Path) -> None:
    texts = ("inf", "-inf", "Infinity", "-Infinity", "")
    content = "n\n" + "\n".join(texts) + "\n"
    rows = rows_of(tmp_path, content.encode(), schema=parse_schema("n double"))
    assert [row["n"] for row in rows] == [*map(float, texts[:4]), None]


@pytest.mark.parametrize("number", ["9223372036854775808", "-18446744073709551616"])
def test_whole_numbers_that_no_integer_holds_are_not_rounded(tmp_path: Path, number: str) -> None:
    """The type of these columns was not given as double."""
    content = f"n,x\n1,a\n{number},b\n".encode()
    with pytest.raises(CommandFailed, match="column 'n' has whole numbers of more than 64 bits"):
        rows_of(tmp_path, content)
    exact = rows_of(tmp_path, content, schema=parse_schema("n decimal(38,0), x string"))
    assert [int(row["n"]) for row in exact] == [1, int(number)]
    rounded = rows_of(tmp_path, content, schema=parse_schema("n double, x string"))
    assert [row["n"] for row in rounded] == [1.0, float(number)]


def test_a_large_number_among_fractions_is_a_double(tmp_path: Path) -> None:
    assert rows_of(tmp_path, b"n\n1.5\n9223372036854775808\n") == [{"n": 1.5}, {"n": 2.0**63}]
    assert rows_of(tmp_path, b"n\n1e300\ninf\n") == [{"n": 1e300}, {"n": float("inf")}]


@pytest.mark.parametrize("content", [b"id", b"id\n", b"\nid", b"\xef\xbb\xbfid\r\n"], ids=repr)
def test_a_single_name_is_a_header_without_rows(tmp_path: Path, content: bytes) -> None:
    """Without a line's end, too."""
    file = tmp_path / "rows.csv"
    file.write_bytes(content)
    with open_source(str(file)) as source:
        assert (source.schema.names, list(source.batches)) == (["id"], [])
    assert rows_of(tmp_path, content, schema=SCHEMA) == []
