"""`produce` of text that is not UTF-8: read with `--encoding`, or refused by its place."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest

from quiverlog.batch.schema_text import parse_schema
from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.formats.read_files import open_source
from tests.unit.cli.formats.test_text import trickled

NAMES = ["Åsa", "José", "Zoë"]
TEXTS = {
    "csv": "id,größe\n" + "".join(f"{i},{name}\n" for i, name in enumerate(NAMES)),
    "json": "".join(f'{{"id":{i},"größe":"{name}"}}\n' for i, name in enumerate(NAMES)),
}
ROWS = [{"id": i, "größe": name} for i, name in enumerate(NAMES)]
TYPES = parse_schema("id long, name string")


def rows_of(path: Path, content: bytes, **options: Any) -> list[dict[str, Any]]:
    path.write_bytes(content)
    with open_source(str(path), **options) as source:
        return pa.Table.from_batches(list(source.batches), source.schema).to_pylist()


@pytest.mark.parametrize(
    "encoding", ["latin1", "cp1252", "utf-16", "utf-16-le", "UTF8", "utf-8-sig"]
)
@pytest.mark.parametrize("suffix", TEXTS)
def test_text_is_read_in_its_encoding(tmp_path: Path, suffix: str, encoding: str) -> None:
    content = TEXTS[suffix].encode(encoding)
    assert rows_of(tmp_path / f"rows.{suffix}", content, encoding=encoding) == ROWS


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("file_format", ["auto", "csv"])
def test_it_may_come_through_a_pipe(monkeypatch, size: int, file_format: str) -> None:
    content = TEXTS["csv"].encode("utf-16-le")
    table, _ = trickled(monkeypatch, content, size, file_format, encoding="utf-16-le")
    assert table.to_pylist() == ROWS


@pytest.mark.parametrize(
    ("name", "content", "schema", "place"),
    [
        ("a.csv", b"id,name\n1,a\n2,J\xfcrgen\n", None, "row 2: column 'name': byte 0xfc"),
        ("a.csv", b"id,name\n1,a\n2,J\xfcrgen\n", TYPES, "row 2: column 'name': byte 0xfc"),
        ("a.csv", b"id,n\xe4me\n1,a\n", None, "names of the columns: byte 0xe4"),
        ("a.csv", b"id,n\xe4me\n1,a\n", TYPES, "names of the columns: byte 0xe4"),
        ("a.json", b'{"name":"a"}\n{"name":"\xe9"}\n', None, "line 2: byte 0xe9"),
        ("a.json", b'{"name":"a"}\n{"name":"\xe9"}\n', TYPES, "line 2: byte 0xe9"),
        ("a.json", b'{"n\xe4me":1}\n', None, "line 1: byte 0xe4"),
    ],
)  # fmt: skip
def test_other_bytes_are_refused_by_their_place(
    tmp_path: Path, name: str, content: bytes, schema: pa.Schema | None, place: str
) -> None:
    with pytest.raises(CommandFailed) as caught:
        rows_of(tmp_path / name, content, schema=schema)
    assert f"{place} is no UTF-8: --encoding names its encoding, e.g." in str(caught.value)


@pytest.mark.parametrize("schema", [None, TYPES], ids=["inferred", "of the topic"])
def test_the_row_is_counted_over_all_blocks(tmp_path: Path, schema: pa.Schema | None) -> None:
    rows = 700_000  # 9 MB: more than two blocks
    content = b"id,name\n" + b"12345,abcdef\n" * rows + b"1,\xff\n"
    with pytest.raises(CommandFailed, match=f"row {rows + 1}: column 'name': byte 0xff is no UTF"):
        rows_of(tmp_path / "a.csv", content, schema=schema)


def test_a_topic_s_own_bytes_are_still_base64(tmp_path: Path) -> None:
    schema = parse_schema("id long, name binary")
    rows = rows_of(tmp_path / "a.csv", b"id,name\n1,/w==\n", schema=schema)
    assert rows == [{"id": 1, "name": b"\xff"}]
    with pytest.raises(CommandFailed, match="column 'name': byte 0xff is no UTF-8"):
        rows_of(tmp_path / "a.csv", b"id,name\n1,\xff\n", schema=schema)


def test_lines_of_a_column_of_text_are_looked_at_too(tmp_path: Path) -> None:
    content = b"one\n\xe4\n"
    path = tmp_path / "a.log"
    text = parse_schema("value string")
    with pytest.raises(CommandFailed, match="line 2: byte 0xe4 is no UTF-8"):
        rows_of(path, content, file_format="lines", schema=text)
    read = rows_of(path, content, file_format="lines", schema=text, encoding="latin1")
    assert read == [{"value": "one"}, {"value": "ä"}]
    kept = rows_of(path, content, file_format="lines", schema=parse_schema("value binary"))
    assert kept == [{"value": b"one"}, {"value": b"\xe4"}]


def test_text_that_is_not_in_the_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="ascii"):
        rows_of(tmp_path / "a.csv", b"id\n\xe4\n", encoding="ascii")
    with pytest.raises(CommandFailed, match="truncated"):
        rows_of(tmp_path / "a.csv", "id\n1\n".encode("utf-16-le")[:-1], encoding="utf-16-le")


def test_the_error_for_utf16_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"UTF-16.*--encoding utf-16"):
        rows_of(tmp_path / "a.csv", TEXTS["csv"].encode("utf-16"))


@pytest.mark.parametrize("encoding", ["latin-99", "", "base64", "rot13", "hex", "nul\0", "é"])
def test_what_is_no_encoding_of_text(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(click.UsageError, match="--encoding"):
        rows_of(tmp_path / "a.csv", b"id\n1\n", encoding=encoding)


def test_what_is_no_text_has_no_encoding(tmp_path: Path) -> None:
    sink = io.BytesIO()
    table = pa.table({"id": [1]})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write(table)
    with pytest.raises(click.UsageError, match="--encoding is for text"):
        rows_of(tmp_path / "a.arrow", sink.getvalue(), encoding="latin1")


# --- JSON that is no lines ----------------------------------------------------------------------
@pytest.mark.parametrize("content", [b'[{"a":1},{"a":2}]', b'[\n {"a":1}\n]\n', b" [ ]", b"["])
@pytest.mark.parametrize("name", ["a.json", "a"])
def test_the_error_for_an_array_of_rows_names_the_command_that_makes_lines(
    tmp_path: Path, name: str, content: bytes
) -> None:
    """Without a suffix, too: it is not taken for the names of the columns of a CSV file."""
    with pytest.raises(CommandFailed, match=r"it is one array.*jq -c '\.\[\]'"):
        rows_of(tmp_path / name, content)


def test_the_error_for_objects_of_several_lines_names_the_command_that_makes_lines(
    monkeypatch,
) -> None:
    """As a pipe brings them, where the end of a line is the end of what can be read."""
    with pytest.raises(CommandFailed, match=r"line 1 is no JSON: .*jq -c \."):
        trickled(monkeypatch, b'{\n "a": 1\n}\n', 3, "json")
