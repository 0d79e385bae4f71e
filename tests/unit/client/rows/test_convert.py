"""What `Producer.send` takes, and how it refuses the rest."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import duckdb
import hypothesis.strategies as st
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given

from quiverlog.client.rows.convert import ROWS_AT_ONCE, Converter
from quiverlog.errors import SchemaMismatch

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)
CONVERTER = Converter(SCHEMA, "t")

ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(-(2**63), 2**63 - 1)},
        optional={
            "name": st.none() | st.text(max_size=5),
            "tags": st.none() | st.lists(st.text(max_size=3), max_size=3),
        },
    ),
    min_size=1,
    max_size=20,
)


@given(ROWS)
def test_rows_become_what_pyarrow_makes_of_them(rows: list[dict[str, Any]]) -> None:
    (batch,) = CONVERTER.batches(rows)
    assert batch.equals(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


def test_what_is_right_already_is_not_copied() -> None:
    batch = pa.RecordBatch.from_pylist([{"id": 1}], schema=SCHEMA)
    assert CONVERTER.batches(batch) == [batch]
    assert CONVERTER.batches(batch)[0].column(0).buffers()[1].address == (
        batch.column(0).buffers()[1].address
    )


def test_columns_are_matched_by_name_and_missing_ones_are_null() -> None:
    (batch,) = CONVERTER.batches(pa.table({"name": ["x"], "id": pa.array([7], pa.int8())}))
    assert batch.schema == SCHEMA
    assert batch.to_pylist() == [{"id": 7, "name": "x", "at": None, "tags": None}]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", "a"]).dictionary_encode(),
        pa.array(["a", "b", "a"], pa.large_string()),
        pa.array(["a", "b", "a"], pa.string_view()),
    ],
    ids=["dictionary", "large", "view"],
)
def test_other_shapes_of_text_are_text(column: pa.Array) -> None:
    (batch,) = CONVERTER.batches(pa.table({"id": [1, 2, 3], "name": column}))
    assert batch.column(1).to_pylist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"id": 1, "nmae": "x"}], r"no column 'nmae'; it has: id int64"),
        ([{"id": 1, "name": "x", "at": None, "tags": None}, {"id": 2, "x": 1}], "no column 'x'"),
        ([{"id": 1, "name": "x", "at": None, "tags": None, "x": 1}], "no column 'x'"),
        ([{"name": "x"}], r"'id' .*must not be null, and 1 of 1"),
        ([{"id": 1}, {"id": "two"}], r"'id' .*int64; row 1 holds 'two' \(str\)"),
        ([{"id": 2**63}], r"'id' .*row 0 holds 9223372036854775808"),
        ([{"id": 1}, 5], r"Item 1 of the list is a int"),
        (7, "Cannot send a int"),
        (pa.array([1]), "Cannot send a Int64Array .*give a pyarrow RecordBatch"),
        (pd.Series([1], name="id"), "Cannot send a Series.*give a pyarrow RecordBatch"),
        (pa.table({"id": [1], "__index_level_0__": [1]}), "no column '__index_level_0__'"),
        ("rows", "Cannot send a str"),
        (pa.table({"id": ["1"]}), r"'id' .*is int64, the data has string: it is text"),
        (pa.table({"id": [1.5]}), r"'id' .*the data has double"),
        (pa.table({"id": [True]}), r"'id' .*the data has bool"),
        (pa.table({"id": [None]}), r"'id' .*must not be null"),
        (pa.table({"id": pa.array([2**63], pa.uint64())}), r"'id' .*does not fit"),
        (
            pa.table({"id": [1], "at": [datetime(2020, 1, 1)]}),  # noqa: DTZ001
            r"'at' .*timestamp\[us, tz=UTC\], the data has timestamp\[us\]",
        ),
        (
            pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns", "UTC"))}),
            r"'at' .*does not fit",
        ),
        (pa.table({"id": [1], "name": [3]}), r"'name' .*the data has int64"),
        (pa.table({"id": [1], "tags": [[1]]}), r"'tags' .*the data has list"),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"]),
            "'id' is there twice",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(data: Any, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        CONVERTER.batches(data)


def test_the_number_of_a_bad_row_counts_from_the_start_of_the_list() -> None:
    rows: list[dict[str, Any]] = [{"id": 1}] * (ROWS_AT_ONCE + 5)
    rows[ROWS_AT_ONCE + 3] = {"id": "x"}
    with pytest.raises(SchemaMismatch, match=f"row {ROWS_AT_ONCE + 3} holds") as caught:
        CONVERTER.batches(rows)
    assert caught.value.details["column"] == "id"


def test_rows_picked_from_pandas_come_without_their_index() -> None:
    frame = pd.DataFrame({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    (batch,) = CONVERTER.batches(frame[frame.id > 1])
    assert batch.column(0).to_pylist() == [2, 3]
    (batch,) = CONVERTER.batches(frame.set_index("name"))
    assert batch.column(1).to_pylist() == ["a", "b", "c"], "a named index is a column"


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])], ids=str)
def test_polars_categories_are_text(kind: Any) -> None:
    frame = pl.DataFrame({"id": [1, 2], "name": pl.Series(["a", "b"], dtype=kind)})
    (batch,) = CONVERTER.batches(frame)
    assert batch.column(1).to_pylist() == ["a", "b"]


def test_a_duckdb_result_is_taken() -> None:
    found = duckdb.sql("select 5::bigint as id, 'x' as name")
    assert CONVERTER.batches(found)[0].to_pylist()[0]["id"] == 5


def test_nothing_gives_nothing() -> None:
    assert CONVERTER.batches([]) == []
    assert CONVERTER.batches(SCHEMA.empty_table()) == []


NESTED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("s", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
        pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False))),
    ]
)


@pytest.mark.parametrize(
    ("row", "name"), [({"id": 1, "s": {"x": None}}, "x"), ({"id": 1, "l": [1, None]}, "element")]
)
def test_a_null_inside_a_column_is_refused_before_it_travels(
    row: dict[str, Any], name: str
) -> None:
    """The broker refused the whole batch, with all its neighbours, as corrupt."""
    converter = Converter(NESTED, "t")
    with pytest.raises(SchemaMismatch, match=f"nested field '{name}' has nulls"):
        converter.batches([row, {"id": 2, "s": {"x": 1}, "l": [1]}])
    batch = pa.RecordBatch.from_pylist([{"id": None, "s": None, "l": None}, row], schema=NESTED)
    with pytest.raises(SchemaMismatch, match=f"nested field '{name}' has nulls"):
        converter.batches(batch)
    assert converter.batches(batch.slice(0, 1))[0].num_rows == 1
