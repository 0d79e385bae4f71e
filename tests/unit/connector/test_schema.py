"""Arrow to Spark and back: types, merged topics, and batches exactly as Spark wants them."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_quiverlog._compat import to_arrow_schema
from pyspark_quiverlog.reader import coalesce, metadata_columns
from pyspark_quiverlog.schema import (
    Normalizer,
    merge_schemas,
    query_columns,
    spark_schema,
)
from quiverlog.batch.schema import check_schema, normalize_schema
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.errors import IncompatibleSchema, InvalidOption, InvalidSchema

NESTED = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.string())])
EVERY_TYPE = pa.schema(
    [
        pa.field("boolean", pa.bool_()),
        pa.field("byte", pa.int8()),
        pa.field("short", pa.int16()),
        pa.field("int", pa.int32(), nullable=False),
        pa.field("long", pa.int64()),
        pa.field("float", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("decimal", pa.decimal128(38, 18)),
        pa.field("string", pa.string()),
        pa.field("binary", pa.binary()),
        pa.field("date", pa.date32()),
        pa.field("instant", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("interval", pa.duration("us")),
        pa.field("time", pa.time64("ns")),
        pa.field("list", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        pa.field("struct", NESTED),
        pa.field("map", pa.map_(pa.string(), NESTED)),
        pa.field("deep", pa.list_(pa.struct([pa.field("m", pa.map_(pa.int32(), NESTED))]))),
    ]
)


def test_every_stored_type_goes_to_spark_and_comes_back_the_same() -> None:
    stored = normalize_schema(EVERY_TYPE)
    check_schema(stored)
    expected = to_arrow_schema(spark_schema(stored))
    for field, back in zip(stored, expected, strict=True):
        assert back.type.equals(field.type), field.name
        assert back.nullable


@pytest.mark.parametrize(
    "data_type",
    [
        pa.large_string(),
        pa.string_view(),
        pa.large_binary(),
        pa.binary(7),
        pa.dictionary(pa.int32(), pa.string()),
        pa.timestamp("ns", tz="Europe/Paris"),
        pa.timestamp("ms"),
        pa.duration("s"),
        pa.large_list(pa.int32()),
        pa.decimal64(10, 2),
    ],
)
def test_other_layouts_become_what_spark_expects(data_type: pa.DataType) -> None:
    schema = pa.schema([pa.field("a", data_type)])
    target = to_arrow_schema(spark_schema(schema))
    stored = normalize_schema(schema).field("a").type
    assert target.field("a").type.equals(stored)


def test_a_type_that_spark_does_not_have_is_refused_by_column() -> None:
    with pytest.raises(InvalidSchema, match=r"column 'u' cannot be read in Spark.*uint8"):
        spark_schema(pa.schema([("u", pa.uint8())]))


# --- several topics -------------------------------------------------------------------------------
def test_topics_merge_by_name_and_widen() -> None:
    merged = merge_schemas(
        {
            "b": pa.schema([("id", pa.int64()), ("only_b", pa.string())]),
            "a": pa.schema([("id", pa.int32()), ("only_a", pa.float32())]),
        }
    )
    assert merged.names == ["id", "only_a", "only_b"]
    assert merged.field("id").type == pa.int64()


def test_topics_that_disagree_are_refused_by_column_and_name() -> None:
    with pytest.raises(IncompatibleSchema, match="'id' is int64 in topic 'a' and string in topic"):
        merge_schemas({"a": pa.schema([("id", pa.int64())]), "b": pa.schema([("id", pa.string())])})


def test_columns_are_taken_in_the_order_asked_for() -> None:
    schemas = {"t": pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.uint8())])}
    assert query_columns(schemas, ("b", "a"), metadata=False).names == ["b", "a"]
    with pytest.raises(InvalidOption, match="`columns`: no column 'z' in t"):
        query_columns(schemas, ("a", "z"), metadata=False)


@pytest.mark.parametrize("empty", [pa.null(), pa.list_(pa.null()), pa.struct([("x", pa.null())])])
def test_a_column_that_holds_nulls_alone_is_left_out_with_a_warning(
    empty: pa.DataType, caplog: pytest.LogCaptureFixture
) -> None:
    """A column that was never written to does not refuse the whole topic."""
    schemas = {"t": pa.schema([("a", pa.int64()), ("later", empty)])}
    assert query_columns(schemas, None, metadata=True).names[:2] == ["a", "_topic"]
    assert "'later'" in caplog.text
    typed = {"u": pa.schema([("later", pa.null()), ("a", pa.int64())])}
    typed["v"] = pa.schema([("later", pa.string())])
    assert query_columns(typed, None, metadata=False).field("later").type == pa.string()


def test_a_column_that_holds_nulls_alone_is_refused_where_nothing_else_is_read() -> None:
    named = query_columns(
        {"t": pa.schema([("a", pa.int64()), ("n", pa.null())])}, ("n",), metadata=False
    )
    alone = query_columns({"t": pa.schema([("n", pa.null())])}, None, metadata=False)
    for columns in (named, alone):
        with pytest.raises(InvalidSchema, match="column 'n' cannot be read in Spark"):
            spark_schema(columns)


def test_metadata_columns_do_not_hide_the_topics_own() -> None:
    schemas = {"t": pa.schema([("_offset", pa.int64()), ("a", pa.int64())])}
    assert query_columns(schemas, ("a",), metadata=True).names == [
        *("a", "_topic", "_partition", "_offset", "_timestamp")
    ]
    with pytest.raises(InvalidOption, match="a column '_offset' of its own"):
        query_columns(schemas, None, metadata=True)


# --- batches --------------------------------------------------------------------------------------
def test_a_batch_that_agrees_passes_through_untouched() -> None:
    batch = pa.record_batch({"a": pa.array([1, 2]), "b": pa.array(["x", None])})
    assert Normalizer(batch.schema)(batch) is batch


def test_metadata_columns_are_where_the_schema_has_them() -> None:
    target = pa.schema([("_partition", pa.int32()), ("b", pa.int64()), ("_offset", pa.int64())])
    normalizer = Normalizer(target, metadata=True)
    assert normalizer.stored_target.names == ["b"]
    batch = pa.record_batch({"b": pa.array([7], pa.int64())})
    metadata = {"_partition": pa.array([3], pa.int32()), "_offset": pa.array([9], pa.int64())}
    out = normalizer(batch, metadata)
    assert out.schema.equals(target)
    assert out.to_pylist() == [{"_partition": 3, "b": 7, "_offset": 9}]


def test_metadata_alone_keeps_its_rows() -> None:
    normalizer = Normalizer(pa.schema([("_offset", pa.int64())]), metadata=True)
    no_columns = pa.record_batch({"a": pa.array([1, 2])}).select([])
    out = normalizer(no_columns, {"_offset": pa.array([4, 5], pa.int64())})
    assert out.to_pylist() == [{"_offset": 4}, {"_offset": 5}]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (pa.field("a", pa.int32()), "'a' is int64 in topic 't', and int32 in the query's schema"),
        (pa.field("b", pa.int16(), nullable=False), "'b' may hold nulls in topic 't'.*NOT NULL"),
        (pa.field("c", pa.int16(), nullable=False), "'c' is not in topic 't'.*NOT NULL"),
    ],
)
def test_a_query_schema_that_the_topic_cannot_fill_is_refused(
    wanted: pa.Field, message: str
) -> None:
    topic = pa.schema([("a", pa.int64()), ("b", pa.int16())])
    with pytest.raises(IncompatibleSchema, match=message):
        Normalizer(pa.schema([wanted])).check("t", topic)
    Normalizer(pa.schema([("a", pa.int64()), ("b", pa.int32()), ("c", pa.string())])).check(
        "t", topic
    )


def test_metadata_columns_follow_the_batch() -> None:
    data = pa.record_batch({"a": pa.array([1, 2, 3])})
    stored = ConsumerBatch(data, "flights", 4, 100, 0, 1_500_000)
    columns = metadata_columns(["_topic", "_partition", "_offset", "_timestamp"], stored)
    assert columns["_offset"].to_pylist() == [100, 101, 102]
    assert columns["_topic"].to_pylist() == ["flights"] * 3
    assert columns["_partition"].type == pa.int32()
    assert columns["_timestamp"].to_pylist()[0] == datetime.datetime(
        1970, 1, 1, 0, 0, 1, 500_000, tzinfo=datetime.UTC
    )


def batches(*sizes: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"a": pa.array(range(n), pa.int64())}) for n in sizes]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10, 10, 10, 10], [30, 10]),
        ([100, 100], [100, 100]),
        ([10, 100, 10], [10, 100, 10]),
        ([0, 5, 0], [5]),
        ([], []),
        ([29, 1, 1], [30, 1]),
    ],
)
def test_small_batches_are_gathered(sizes: list[int], expected: list[int]) -> None:
    out = list(coalesce(iter(batches(*sizes)), 30, 1 << 30))
    assert [b.num_rows for b in out] == expected


def test_large_batches_are_not_copied_and_bytes_count_too() -> None:
    large = batches(50)[0]
    assert next(coalesce([large], 50, 1 << 30)) is large
    assert [b.num_rows for b in coalesce(batches(10, 10, 10), 1 << 30, 160)] == [20, 10]


def test_all_rows_come_out_in_order() -> None:
    values = list(range(500))
    pieces = [pa.record_batch({"a": pa.array(values[i : i + 7])}) for i in range(0, 500, 7)]
    out = coalesce(pieces, 64, 1 << 30)
    assert [v for b in out for v in b.column(0).to_pylist()] == values


def rows_of_every_type() -> list[dict[str, Any]]:
    nested = {"x": 5, "y": "why"}
    full = {
        "boolean": True,
        "byte": -128,
        "short": 32767,
        "int": 1,
        "long": -(2**63),
        "float": 0.5,
        "double": 1e300,
        "decimal": decimal.Decimal("12345678901234567890.123456789012345678"),
        "string": "zażółć 🏹",
        "binary": b"\x00\xff",
        "date": datetime.date(1582, 10, 15),
        "instant": datetime.datetime(2013, 3, 10, 2, 30, tzinfo=datetime.UTC),
        "local": datetime.datetime(2013, 3, 10, 2, 30),  # noqa: DTZ001
        "interval": datetime.timedelta(days=-1, microseconds=1),
        "time": datetime.time(23, 59, 59, 999999),
        "list": [1, 2, 3],
        "struct": nested,
        "map": [("k", nested)],
        "deep": [{"m": [(1, nested)]}, None, {"m": []}],
    }
    empty = dict.fromkeys(full) | {"int": 2}
    return [full, empty]


def test_the_example_rows_fit_every_type() -> None:
    batch = pa.RecordBatch.from_pylist(rows_of_every_type(), schema=normalize_schema(EVERY_TYPE))
    assert batch.num_rows == 2
