"""Schemas typed on the command line: the grammar, its inverse and its refusals."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.batch.schema_text import (
    SchemaSyntaxError,
    format_schema,
    parse_schema,
)
from quiverlog.cli.formats.schema_file import load_schema

SIMPLE = st.sampled_from(
    [
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
        pa.duration("us"), pa.time64("ns"),
    ]
)  # fmt: skip
DECIMALS = st.integers(1, 38).flatmap(
    lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))
)
NAMES = st.text(min_size=1, max_size=8)


def _fields(types):
    columns = st.lists(
        st.tuples(NAMES, types, st.booleans()), max_size=4, unique_by=lambda column: column[0]
    )
    return columns.map(lambda made: [pa.field(n, t, nullable=null) for n, t, null in made])


TYPES = st.recursive(
    SIMPLE | DECIMALS,
    lambda inner: (
        st.tuples(inner, st.booleans()).map(
            lambda t: pa.list_(pa.field("element", t[0], nullable=t[1]))
        )
        | st.tuples(inner, inner, st.booleans()).map(
            lambda t: pa.map_(
                pa.field("key", t[0], nullable=False), pa.field("value", t[1], nullable=t[2])
            )
        )
        | _fields(inner).map(pa.struct)
    ),
    max_leaves=6,
)


@given(_fields(TYPES).filter(bool))
def test_what_describe_prints_is_read_back(fields):
    schema = pa.schema(fields)
    assert parse_schema(format_schema(schema)).equals(schema)


@given(st.text(max_size=60) | st.text("abid `<>,():0123 longdecimalnot null", max_size=60))
def test_any_text_is_a_schema_or_a_syntax_error(text):
    with contextlib.suppress(SchemaSyntaxError):
        schema = parse_schema(text)
        assert parse_schema(format_schema(schema)).equals(schema)


def test_the_example_of_the_help_text():
    schema = parse_schema("id long, name string not null, price decimal(10,2), at timestamp")
    assert schema == pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("name", pa.string(), nullable=False),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", "UTC")),
        ]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a column name at the end"),
        ("id", "expected a type"),
        ("id longg", "expected a type .* at character 4, found 'longg'"),
        ("id long,", "expected a column name at the end"),
        ("id long name string", "expected ',' or the end at character 9, found 'name'"),
        ("id long, id int", "column 'id' is given twice"),
        ("p decimal(39,0)", "decimal.39,0.: the precision is 1 to 38"),
        ("p decimal(5,6)", "the scale 0 to it"),
        ("a array<long", "expected '>' at the end"),
        ("m map<long>", "expected ',' at character"),
        ("id long not", "expected 'null' after 'not'"),
        ("a " + "array<" * 40 + "long" + ">" * 40, "nested deeper than 32"),
        ("; drop", "expected a column name at character 1"),
    ],
)
def test_an_error_names_the_place(text, message):
    with pytest.raises(SchemaSyntaxError, match=message):
        parse_schema(text)


def test_schema_files(tmp_path: Path):
    schema = pa.schema({"id": pa.int64(), "tags": pa.list_(pa.field("element", pa.string()))})
    table = schema.empty_table()
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), schema):
        pass
    with pa.ipc.new_stream(str(tmp_path / "b.arrow"), schema):
        pass
    (tmp_path / "a.json").write_text(json.dumps({"id": "long", "tags": "array<string>"}))
    (tmp_path / "b.json").write_text(
        json.dumps(
            {"fields": [{"name": "id", "type": "long"}, {"name": "tags", "type": "array<string>"}]}
        )
    )
    (tmp_path / "a.sql").write_text("id long,\n tags array<string>\n")
    for name in ("a.parquet", "a.arrow", "b.arrow", "a.json", "b.json", "a.sql"):
        assert load_schema(tmp_path / name).equals(schema), name
    (tmp_path / "bad.json").write_text("[1, 2]")
    with pytest.raises(SchemaSyntaxError, match="a JSON schema is an object"):
        load_schema(tmp_path / "bad.json")
