"""What the text formats write is read back as it was, or is refused by the column's name.

A property over schemas and values: any rows that a topic may hold go through every pair of formats.
"""

from __future__ import annotations

import math
import tempfile
from datetime import UTC, date
from decimal import Context, Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiverlog.cli.console.failures import CommandFailed
from quiverlog.cli.formats.json_encode import encodable
from quiverlog.cli.formats.read_files import open_source
from quiverlog.cli.formats.write_files import open_sink

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
I64 = 2**63
CONTEXT = Context(prec=60)


def fields(kinds, least: int):
    return st.lists(
        st.tuples(TEXT, kinds, st.booleans()), min_size=least, max_size=4, unique_by=lambda f: f[0]
    ).map(
        lambda found: [
            pa.field(name, kind, nullable=null or pa.types.is_null(kind))
            for name, kind, null in found
        ]
    )


SCALARS = st.sampled_from(
    [
        pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(),
        pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"),
        pa.timestamp("us"), pa.duration("us"), pa.time64("ns"), pa.decimal128(10, 2),
        pa.decimal128(38, 38), pa.decimal128(38, 0), pa.decimal128(1, 0),
    ]
)  # fmt: skip
KEYS = SCALARS.filter(lambda kind: not pa.types.is_null(kind))
TYPES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        fields(inner, 0).map(pa.struct),
        st.tuples(KEYS, inner).map(
            lambda pair: pa.map_(
                pa.field("key", pair[0], nullable=False), pa.field("value", pair[1])
            )
        ),
    ),
    max_leaves=4,
)


def values(kind: pa.DataType, nullable: bool = True):
    found = _values(kind)
    return st.one_of(st.none(), found) if nullable else found


def _values(kind: pa.DataType):
    t = pa.types
    if t.is_null(kind):
        return st.none()
    if t.is_boolean(kind):
        return st.booleans()
    if t.is_integer(kind):
        return st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    if t.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if t.is_string(kind):
        return TEXT
    if t.is_binary(kind):
        return st.binary(max_size=12)
    if t.is_date(kind):
        return st.dates() | st.dates(date(1, 1, 1), date(99, 1, 1))
    if t.is_timestamp(kind):
        return st.datetimes(timezones=st.just(UTC) if kind.tz else st.none())
    if t.is_duration(kind):
        return st.integers(-I64, I64 - 1)
    if t.is_time(kind):
        return st.integers(0, 86_400 * 10**9 - 1)
    if t.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-kind.scale, CONTEXT))
    if t.is_list(kind):
        return st.lists(values(kind.value_type), max_size=3)
    if t.is_map(kind):
        return st.lists(st.tuples(values(kind.key_type, False), values(kind.item_type)), max_size=3)
    assert t.is_struct(kind)
    return st.fixed_dictionaries({f.name: values(f.type, f.nullable) for f in kind})


@st.composite
def batches(draw) -> pa.RecordBatch:
    schema = pa.schema(draw(fields(TYPES, 1)))
    columns = []
    rows = draw(st.integers(0, 4))
    for f in schema:
        found = draw(st.lists(values(f.type, f.nullable), min_size=rows, max_size=rows))
        columns.append(pa.array(found, f.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def through(batch: pa.RecordBatch, file_format: str) -> pa.RecordBatch:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "rows")
        with open_sink(path, file_format, batch.schema) as sink:
            sink.write(batch)
        with open_source(path, file_format, schema=batch.schema) as source:
            table = pa.Table.from_batches(list(source.batches), source.schema)
    if batch.num_rows:
        assert [(f.name, f.type) for f in table.schema] == [(f.name, f.type) for f in batch.schema]
    return table.combine_chunks().to_batches()[0] if table.num_rows else batch.slice(0, 0)


def same(left, right) -> bool:
    """Equality by NaN and by the sign of zero."""
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and left == right


def comparable(batch: pa.RecordBatch) -> list:
    return [encodable(column, "column") for column in batch.columns]


PAIRS = [("csv", "json"), ("json", "tsv"), ("tsv", "csv"), ("json", "json")]
"""Each is written first and second."""


@pytest.mark.parametrize(("first", "second"), PAIRS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=batches())
def test_any_rows_come_back_from_every_pair_of_formats(first: str, second: str, batch):
    again = through(through(batch, first), second)
    assert again.num_rows == batch.num_rows
    assert same(comparable(again), comparable(batch))


@pytest.mark.parametrize("file_format", ["csv", "tsv"])
@pytest.mark.parametrize("name", ['"', '"\n', 'a"b\nc', '\n"', '"\nA', '\t"\n', ',"\r\n"', '""\n'])
def test_quotes_and_line_ends_in_a_name_or_a_value_come_back(file_format: str, name: str) -> None:
    """Two quotes in a row are one character; the first of them closes no field."""
    batch = pa.RecordBatch.from_pydict({name: [name, "x"], "other": ["y", name * 2]})
    again = through(batch, file_format)
    assert again.schema.names == [name, "other"]
    assert again.to_pylist() == batch.to_pylist()


LINES = pa.schema([pa.field("value", pa.binary())])
LINE = st.binary(max_size=8).filter(lambda value: b"\n" not in value and value[-1:] != b"\r")


@pytest.mark.parametrize("other", ["csv", "json", "lines"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(found=st.lists(LINE, max_size=5))
def test_lines_come_back(other: str, found):
    batch = pa.record_batch([pa.array(found, pa.binary())], schema=LINES)
    assert through(through(batch, "lines"), other).equals(batch)
    assert through(through(batch, other), "lines").equals(batch)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"value": b"two\nlines"}], "'value'"),
        ([{"value": b"half\r"}], "'value'"),
        ([{"value": None}], "'value'"),
        ([{"value": b"x", "key": b"k"}], "'key'"),
    ],
)
def test_lines_refuse_what_they_cannot_hold(rows, expected):
    schema = pa.schema([*LINES, pa.field("key", pa.binary())])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    with pytest.raises(CommandFailed, match=expected) as caught:
        through(batch, "lines")
    assert "json" in str(caught.value)


@pytest.mark.parametrize("file_format", ["csv", "json"])
@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_years_that_have_no_notation_are_refused_by_the_columns_name(file_format, kind):
    far = pa.array([-10_000_000 if pa.types.is_date(kind) else -(2**62)], kind)
    nested = pa.array([[far[0]]], pa.list_(kind)) if pa.types.is_date(kind) else far
    for column in (far, nested):
        batch = pa.record_batch([column], names=["long ago"])
        with pytest.raises(CommandFailed, match=r"'long ago'.*Arrow or Parquet"):
            through(batch, file_format)
