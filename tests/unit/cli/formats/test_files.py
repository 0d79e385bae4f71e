"""What `produce` reads and `consume` writes, format by format, without a broker."""

from __future__ import annotations

import base64
import gzip
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from quiverlog.batch.schema_text import parse_schema
from quiverlog.cli.console.failures import CommandFailed, report
from quiverlog.cli.console.output import print_fields, print_table
from quiverlog.cli.formats.formats import kind_of
from quiverlog.cli.formats.read_files import open_source
from quiverlog.cli.formats.write_files import open_sink
from quiverlog.errors import QuiverlogError

SCHEMA = parse_schema(
    "id long, name string, price decimal(10,2), at timestamp, day date, ok boolean, blob binary"
)
ROWS = [
    {
        "id": 1,
        "name": "plain",
        "price": Decimal("12.50"),
        "at": datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
        "day": date(2024, 5, 6),
        "ok": True,
        "blob": b"\x00\xff",
    },
    {"id": 2, "name": 'with, "quotes"\nand a line', "price": None, "at": None, "day": None,
     "ok": None, "blob": None},
]  # fmt: skip
BATCH = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


def written(file_format: str, path: Path, *batches: pa.RecordBatch, schema=SCHEMA) -> bytes:
    with open_sink(str(path), file_format, schema) as sink:
        for batch in batches:
            sink.write(batch)
            sink.flush()
    return path.read_bytes()


def format_of(path: str) -> str:
    found = kind_of(path, option="--format").format
    assert found is not None
    return found


def read(path: Path | str, file_format: str = "auto", **options) -> pa.Table:
    with open_source(str(path), file_format, **options) as source:
        return pa.Table.from_batches(list(source.batches), source.schema)


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".arrow"])
def test_what_is_written_is_read_back(tmp_path: Path, suffix: str):
    path = tmp_path / f"rows{suffix}"
    written(format_of(str(path)), path, BATCH, BATCH)
    assert read(path, schema=SCHEMA).to_pylist() == ROWS + ROWS


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet", ".arrow"])
def test_no_rows_are_a_valid_file_too(tmp_path: Path, suffix: str):
    path = tmp_path / f"rows{suffix}"
    written(format_of(str(path)), path)
    if suffix == ".json":
        assert path.read_bytes() == b""
    else:
        assert read(path, schema=SCHEMA).num_rows == 0


def test_csv_that_others_can_read(tmp_path: Path):
    path = tmp_path / "rows.csv"
    written("csv", path, BATCH)
    plain = SCHEMA.remove(6)
    table = csv.read_csv(
        path,
        convert_options=csv.ConvertOptions(
            column_types={f.name: f.type for f in plain},
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
        parse_options=csv.ParseOptions(newlines_in_values=True),
    )
    assert table.drop_columns("blob").to_pylist() == [
        {k: v for k, v in row.items() if k != "blob"} for row in ROWS
    ]
    assert table["blob"].to_pylist() == [base64.b64encode(b"\x00\xff").decode(), None]


def test_nested_values_are_json_in_csv(tmp_path: Path):
    schema = parse_schema("tags array<string>, point struct<x: int, y: int>, m map<string, int>")
    batch = pa.RecordBatch.from_pylist(
        [{"tags": ["a", None], "point": {"x": 1, "y": None}, "m": [("k", 1)]}], schema=schema
    )
    text = written("csv", tmp_path / "n.csv", batch, schema=schema).decode()
    assert text == ('"tags","point","m"\n"[""a"",null]","{""x"":1,""y"":null}","[[""k"",1]]"\n')


def test_json_lines_keep_bytes_decimals_and_moments(tmp_path: Path):
    first, second = written("json", tmp_path / "r.json", BATCH).splitlines()
    assert json.loads(first) == {
        "id": 1, "name": "plain", "price": "12.50", "at": "2024-05-06T07:08:09.123456Z",
        "day": "2024-05-06", "ok": True, "blob": "AP8=",
    }  # fmt: skip
    assert json.loads(second)["blob"] is None


@pytest.mark.parametrize(("is_cut", "last"), [(True, "x" * 39 + "…"), (False, "x" * 60)])
def test_a_table_is_aligned_and_harmless_and_cut_on_a_terminal_alone(tmp_path: Path, is_cut, last):
    schema = parse_schema("n long, text string")
    batch = pa.RecordBatch.from_pylist(
        [{"n": 5, "text": "a\x1b[31mred"}, {"n": 12345, "text": "x" * 60}], schema=schema
    )
    with open_sink(str(tmp_path / "t"), "table", schema, is_cut=is_cut) as sink:
        sink.write(batch)
    lines = (tmp_path / "t").read_text().splitlines()
    assert lines[0] == "    n  text"
    assert lines[1] == "    5  a\\x1b[31mred"
    assert lines[2] == "12345  " + last


def test_a_number_is_not_rounded_off_a_terminal(tmp_path: Path):
    schema = parse_schema("x double")
    batch = pa.record_batch([[0.1234567890123456]], schema=schema)
    assert b"0.1234567890123456" in written("table", tmp_path / "t", batch, schema=schema)


def test_a_column_name_does_not_steer_the_terminal(tmp_path: Path):
    schema = pa.schema([("a\x1b[2J\x07b", pa.int64())])
    batch = pa.record_batch([[1]], schema=schema)
    text = written("table", tmp_path / "t", batch, schema=schema).decode()
    assert text.splitlines()[0].strip() == "a\\x1b[2J\\x07b"
    assert "\x1b" not in text
    assert "\x07" not in text


def test_csv_is_read_with_the_topics_types(tmp_path: Path):
    path = tmp_path / "r.csv"
    path.write_text("id,code,at\n1,007,2013-01-01T06:00:00Z\n2,NA,\n")
    schema = parse_schema("id int, code string, at timestamp")
    table = read(path, schema=schema, null_values=("", "NA"))
    assert table.schema == schema
    assert table["code"].to_pylist() == ["007", None]
    inferred = read(path)
    assert inferred.schema.field("code").type == pa.string()
    assert inferred.schema.field("id").type == pa.int64()


def test_chosen_columns_only(tmp_path: Path):
    (tmp_path / "r.csv").write_text("a,b,c\n1,2,3\n")
    (tmp_path / "r.json").write_text('{"a":1,"b":2,"c":3}\n')
    table = pa.table({"a": [1], "b": [2], "c": [3]})
    pq.write_table(table, tmp_path / "r.parquet")
    with pa.ipc.new_file(str(tmp_path / "r.arrow"), table.schema) as writer:
        writer.write_table(table)
    for name in ("r.csv", "r.json", "r.parquet", "r.arrow"):
        assert read(tmp_path / name, columns=["c", "a"]).to_pylist() == [{"c": 3, "a": 1}], name
        with pytest.raises((CommandFailed, pa.ArrowException)):
            read(tmp_path / name, columns=["nope"])


def test_a_column_that_the_topic_lacks_is_kept_for_the_producer_to_refuse(tmp_path: Path):
    (tmp_path / "r.csv").write_text("id,more\n1,2\n")
    assert read(tmp_path / "r.csv", schema=parse_schema("id long")).schema.names == ["id", "more"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a,b\n1,2\n", [{"a": 1, "b": 2}]),
        (b'{"a": 1, "b": 2}\n', [{"a": 1, "b": 2}]),
    ],
)
def test_text_formats_are_recognised_by_content(tmp_path: Path, content, expected):
    path = tmp_path / "unnamed"
    path.write_bytes(content)
    assert read(path).to_pylist() == expected
    with gzip.open(tmp_path / "unnamed.gz", "wb") as packed:
        packed.write(content)
    assert read(tmp_path / "unnamed.gz").to_pylist() == expected


def test_binary_formats_are_recognised_by_content(tmp_path: Path):
    table = pa.table({"a": [1, 2]})
    pq.write_table(table, tmp_path / "p")
    with pa.ipc.new_file(str(tmp_path / "f"), table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(str(tmp_path / "s"), table.schema) as writer:
        writer.write_table(table)
    for name in ("p", "f", "s"):
        assert read(tmp_path / name).to_pylist() == table.to_pylist(), name


class Pipe(io.BufferedReader):
    """stdin as a pipe is: not seekable."""

    def __init__(self, content: bytes) -> None:
        super().__init__(_Unseekable(content))  # type: ignore[arg-type]


class _Unseekable(io.RawIOBase):
    def __init__(self, content: bytes) -> None:
        self._inner = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        return self._inner.readinto(buffer)


@pytest.mark.parametrize("name", ["p", "f", "s", "c", "j"])
def test_stdin(tmp_path: Path, monkeypatch, name):
    table = pa.table({"a": [1, 2]})
    pq.write_table(table, tmp_path / "p")
    with pa.ipc.new_file(str(tmp_path / "f"), table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(str(tmp_path / "s"), table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "c").write_bytes(b"a\n1\n2\n")
    (tmp_path / "j").write_bytes(b'{"a":1}\n{"a":2}\n')
    stdin = io.TextIOWrapper(Pipe((tmp_path / name).read_bytes()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert read("-").to_pylist() == table.to_pylist()


def test_lines_become_values(tmp_path: Path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"first\r\nsecond\n\nlast")
    table = read(path, "lines")
    assert table["value"].to_pylist() == [b"first", b"second", b"", b"last"]
    text = read(path, "lines", schema=parse_schema("key binary, value string"))
    assert text["value"].to_pylist() == ["first", "second", "", "last"]
    with pytest.raises(CommandFailed, match="column `value`"):
        read(path, "lines", schema=parse_schema("id long"))


@pytest.mark.parametrize(
    ("name", "content", "file_format"),
    [
        ("bad.csv", b"a,b\n1\n", "auto"),
        ("bad.json", b'{"a": 1\n', "auto"),
        ("bad.parquet", b"PAR1 and nothing else", "auto"),
        ("bad.arrow", b"ARROW1 and nothing else", "auto"),
        ("csv.txt", b"a,b\n", "parquet"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name, content, file_format):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CommandFailed, match=name) as caught:
        read(path, file_format)
    assert "\n" not in str(caught.value)


def test_a_value_that_does_not_fit_is_refused(tmp_path: Path):
    (tmp_path / "r.csv").write_text("id\nseven\n")
    with pytest.raises(CommandFailed, match="seven"):
        read(tmp_path / "r.csv", schema=parse_schema("id long"))
    (tmp_path / "r.json").write_text('{"blob": "not base64!"}\n')
    with pytest.raises(CommandFailed, match=r"line 1, column 'blob' \(binary\): .* is not base64"):
        read(tmp_path / "r.json", schema=parse_schema("blob binary"))


def test_progress_is_known(tmp_path: Path):
    table = pa.table({"a": list(range(1000))})
    pq.write_table(table, tmp_path / "r.parquet")
    (tmp_path / "r.csv").write_text("a\n" + "1\n" * 1000)
    for name, total, is_rows in (("r.parquet", 1000, True), ("r.csv", 2002, False)):
        with open_source(str(tmp_path / name)) as source:
            assert (source.total, source.total_is_rows) == (total, is_rows)
            list(source.batches)
            assert source.progress.done == total


NARROW = pa.schema([("id", pa.int32()), ("name", pa.string())])
GROWN = pa.schema([*NARROW, ("extra", pa.float64())])
WIDER = NARROW.set(0, pa.field("id", pa.int64()))


def evolved(schema: pa.Schema) -> list[pa.RecordBatch]:
    """Rows of a topic whose schema changes while a consumer follows it."""
    row = {"id": 7, "name": "n", "extra": 0.5}
    return [pa.RecordBatch.from_pylist([row], schema=kind) for kind in (NARROW, schema)]


@pytest.mark.parametrize("file_format", ["csv", "arrow", "parquet", "table"])
def test_a_column_that_a_topic_gains_is_left_out_of_a_file(tmp_path: Path, file_format: str):
    """`consume --follow` ended as a bug of its own when a column was added."""
    path = tmp_path / "rows"
    text = written(file_format, path, *evolved(GROWN), schema=NARROW)
    if file_format == "table":
        assert text.split() == b"id name 7 n 7 n".split()
    else:
        types = NARROW if file_format == "csv" else None
        found = read(path, file_format, schema=types)
        assert found.to_pylist() == [{"id": 7, "name": "n"}] * 2


def test_a_column_that_a_topic_gains_is_in_json(tmp_path: Path):
    lines = written("json", tmp_path / "rows", *evolved(GROWN), schema=NARROW).splitlines()
    assert [len(json.loads(line)) for line in lines] == [2, 3]


@pytest.mark.parametrize("file_format", ["csv", "arrow", "parquet"])
def test_a_column_that_becomes_wider_ends_a_file_with_a_reason(tmp_path: Path, file_format: str):
    with pytest.raises(CommandFailed, match="'id' is int64 now and was int32"):
        written(file_format, tmp_path / "rows", *evolved(WIDER), schema=NARROW)


def test_names_in_tables_and_fields_do_not_steer_the_terminal(capsys):
    print_fields({"KEY": "a\x1b[2Jb"})
    print_table(["COLUMN"], [["a\x1b]0;title\x07b"]])
    report(QuiverlogError("no column 'a\x1b[2Jb'"))
    shown = "".join(capsys.readouterr())
    assert shown.count("a\\x1b[2Jb") == 2
    assert "a\\x1b]0;title\\x07b" in shown
    assert "\x1b" not in shown


def test_a_file_in_memory_has_a_suffix_and_a_device_has_none() -> None:
    in_memory = kind_of("/dev/shm/rows.csv", option="--format")
    assert in_memory == kind_of("rows.csv", option="--format")
    assert kind_of("/dev/fd/1.csv", option="--format").format is None
