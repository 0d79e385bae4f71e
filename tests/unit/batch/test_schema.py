"""Schemas: what is stored, what is turned into it, what is refused and why."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.batch.schema import (
    RAW_SCHEMA,
    check_schema,
    conform,
    deserialize_schema,
    normalize_schema,
    serialize_schema,
)
from quiverlog.errors import IncompatibleSchema, InvalidSchema
from quiverlog.limits import SCHEMA_BYTES_MAX, SCHEMA_FIELDS_MAX

ELEMENT = pa.field("element", pa.string())

NORMALISED = [
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(5), pa.binary()),
    (pa.timestamp("s"), pa.timestamp("us")),
    (pa.timestamp("ns"), pa.timestamp("us")),
    (pa.timestamp("ms", tz="Europe/Berlin"), pa.timestamp("us", tz="UTC")),
    (pa.duration("ns"), pa.duration("us")),
    (pa.time32("s"), pa.time64("ns")),
    (pa.time64("us"), pa.time64("ns")),
    (pa.date64(), pa.date32()),
    (pa.decimal32(5, 2), pa.decimal128(5, 2)),
    (pa.decimal256(30, 2), pa.decimal128(30, 2)),
    (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()),
    (pa.uuid(), pa.binary()),
    (pa.list_(pa.large_string()), pa.list_(ELEMENT)),
    (pa.large_list(pa.string()), pa.list_(ELEMENT)),
    (pa.list_view(pa.string()), pa.list_(ELEMENT)),
    (pa.large_list_view(pa.string()), pa.list_(ELEMENT)),
    (pa.list_(pa.string(), 3), pa.list_(ELEMENT)),
    (
        pa.struct([("a", pa.dictionary(pa.int32(), pa.large_string()))]),
        pa.struct([("a", pa.string())]),
    ),
    (pa.map_(pa.large_string(), pa.timestamp("s")), pa.map_(pa.string(), pa.timestamp("us"))),
]


@pytest.mark.parametrize(("given_type", "stored"), NORMALISED, ids=lambda t: str(t)[:40])
def test_other_layouts_become_the_stored_one(given_type: pa.DataType, stored: pa.DataType) -> None:
    schema = normalize_schema(pa.schema([("x", given_type)]))
    assert schema.field("x").type.equals(stored, check_metadata=True)
    check_schema(schema)
    assert normalize_schema(schema).equals(schema, check_metadata=True)


REFUSED = [
    (pa.uint8(), "uint8"),
    (pa.uint64(), "uint64"),
    (pa.float16(), "halffloat"),
    (pa.decimal256(50, 2), "decimal256"),
    (pa.decimal128(5, -2), "decimal128"),
    (pa.decimal128(5, 6), "decimal128"),
    (pa.month_day_nano_interval(), "month_day_nano_interval"),
    (pa.dense_union([ELEMENT]), "dense_union"),
    (pa.list_(pa.struct([("y", pa.uint16())])), r"'x\.element\.y' is uint16"),
    (pa.map_(pa.string(), pa.float16()), r"'x\.value' is halffloat"),
    (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "same name"),
]


@pytest.mark.parametrize(("data_type", "named"), REFUSED, ids=lambda t: str(t)[:40])
def test_what_spark_cannot_hold_is_refused_by_name(data_type: pa.DataType, named: str) -> None:
    with pytest.raises(InvalidSchema, match=named) as caught:
        check_schema(normalize_schema(pa.schema([("x", data_type)])))
    assert "'x" in str(caught.value)


def test_all_refused_columns_are_named_at_once() -> None:
    with pytest.raises(InvalidSchema, match=r"'a' is uint8.*'c' is halffloat"):
        check_schema(pa.schema([("a", pa.uint8()), ("b", pa.int8()), ("c", pa.float16())]))


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("", pa.int8())]),
        pa.schema([("a", pa.int8()), ("a", pa.int16())]),
        pa.schema([(f"c{i}", pa.int8()) for i in range(SCHEMA_FIELDS_MAX + 1)]),
    ],
)
def test_shapes_that_are_refused(schema: pa.Schema) -> None:
    with pytest.raises(InvalidSchema):
        check_schema(schema)


def test_nesting_is_bounded() -> None:
    data_type = pa.int8()
    for _ in range(33):
        data_type = pa.list_(pa.field("element", data_type))
    with pytest.raises(InvalidSchema, match="deeper"):
        check_schema(pa.schema([("x", data_type)]))


def test_sparks_own_types_are_stored_as_they_are() -> None:
    """What Spark itself makes of its types is exactly what is stored."""
    sql = pytest.importorskip("pyspark.sql.types", reason="the `spark` extra is not installed")
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    struct = sql.StructType().add("a", sql.IntegerType()).add("b", sql.StringType(), False)
    types = [
        sql.BooleanType(), sql.ByteType(), sql.ShortType(), sql.IntegerType(), sql.LongType(),
        sql.FloatType(), sql.DoubleType(), sql.StringType(), sql.BinaryType(), sql.DateType(),
        sql.TimestampType(), sql.TimestampNTZType(), sql.DayTimeIntervalType(),
        sql.DecimalType(38, 18), sql.NullType(), struct, sql.ArrayType(struct, False),
        sql.MapType(sql.StringType(), sql.ArrayType(sql.LongType())), sql.VariantType(),
    ]  # fmt: skip
    spark = sql.StructType([sql.StructField(f"c{i}", t) for i, t in enumerate(types)])
    arrow = to_arrow_schema(spark, timezone="UTC")
    check_schema(arrow)
    assert normalize_schema(arrow).equals(arrow, check_metadata=True)
    stored = deserialize_schema(serialize_schema(arrow))
    assert from_arrow_schema(stored, prefer_timestamp_ntz=True) == spark


# --- bytes ----------------------------------------------------------------------------------------
def test_schemas_travel_as_bytes() -> None:
    field = pa.field("x", pa.int64(), nullable=False, metadata={"unit": "m"})
    schema = pa.schema([field, ("y", RAW_SCHEMA.field("headers").type)], metadata={"k": "v"})
    assert deserialize_schema(serialize_schema(schema)).equals(schema, check_metadata=True)


def test_pandas_own_notes_are_dropped() -> None:
    schema = pa.schema([("x", pa.int8())], metadata={"pandas": "{}", "mine": "1"})
    assert normalize_schema(schema).metadata == {b"mine": b"1"}


@pytest.mark.parametrize("data", [b"", b"x", bytes(100), b"\xff" * 64, bytes(SCHEMA_BYTES_MAX + 1)])
def test_bytes_that_are_no_schema(data: bytes) -> None:
    with pytest.raises(InvalidSchema):
        deserialize_schema(data)


def test_the_prepared_raw_schema_can_be_stored() -> None:
    check_schema(RAW_SCHEMA)
    assert normalize_schema(RAW_SCHEMA).equals(RAW_SCHEMA, check_metadata=True)


# --- data -----------------------------------------------------------------------------------------
STORED = normalize_schema(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
        ]
    )
)


def test_data_of_the_schema_passes_untouched() -> None:
    data = pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}], schema=STORED)
    assert conform(data, STORED) is data
    assert conform(data, deserialize_schema(serialize_schema(STORED))) is data


def test_columns_are_matched_by_name_and_cast_without_loss() -> None:
    data = pa.record_batch(
        {
            "tags": pa.array([["x"], None], pa.large_list(pa.string_view())),
            "name": pa.array(["a", "a"]).dictionary_encode(),
            "id": pa.array([1, 2], pa.uint32()),
        }
    )
    got = conform(data, STORED)
    assert got.schema.equals(STORED, check_metadata=True)
    assert got.to_pylist() == [
        {"id": 1, "name": "a", "at": None, "tags": ["x"]},
        {"id": 2, "name": "a", "at": None, "tags": None},
    ]
    got.validate(full=True)


@pytest.mark.parametrize(
    ("given_type", "stored", "values"),
    [
        (
            pa.timestamp("ns", tz="Asia/Tokyo"),
            STORED.field("at").type,
            [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)],
        ),
        (pa.date64(), pa.date32(), [dt.date(2020, 1, 1)]),
        (pa.decimal256(20, 2), pa.decimal128(20, 2), [Decimal("1.25")]),
        (pa.binary(2), pa.binary(), [b"ab"]),
        (pa.list_(pa.int8(), 2), pa.list_(pa.field("element", pa.int64())), [[1, 2]]),
        (
            pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]),
            pa.struct([("a", pa.string()), ("b", pa.int8())]),
            [{"a": "x"}],
        ),
    ],
)
def test_casts(given_type: pa.DataType, stored: pa.DataType, values: list[object]) -> None:
    data = pa.record_batch([pa.array([*values, None], given_type)], names=["x"])
    got = conform(data, pa.schema([("x", stored)])).column(0)
    assert got.type == stored
    assert got.null_count == 1
    assert str(data.column(0)[0].as_py())[:5] in str(got[0].as_py())


@pytest.mark.parametrize(
    ("given_type", "values"),
    [
        (pa.list_view(pa.int32()), [[1, None], None, [], [2, 3]]),
        (pa.large_list_view(pa.string_view()), [["a"], None, ["b" * 40]]),
        (pa.list_(pa.list_view(pa.int32())), [[[1], None], None, [[2, 3], []]]),
        (
            pa.list_view(
                pa.list_view(pa.int32()),
            ),
            [[[1], [2, 3]], None, [None]],
        ),
        (pa.struct([("a", pa.list_view(pa.int32()))]), [{"a": [1, None]}, None, {"a": None}]),
        (pa.list_(pa.string_view()), [["a", None], None, ["b" * 40]]),
    ],
    ids=str,
)
def test_list_views_at_any_depth_become_lists(given_type: pa.DataType, values: list[Any]) -> None:
    stored = normalize_schema(pa.schema([("x", given_type)]))
    arrays = [
        pa.array(values, given_type),
        pa.array(values[::-1] + values, given_type).slice(len(values)),
        pa.array(values, given_type).slice(0, 0),
    ]
    for array in arrays:
        found = conform(pa.record_batch([array], names=["x"]), stored)
        found.validate(full=True)
        assert found.schema.equals(stored, check_metadata=True)
        assert found.column(0).to_pylist() == array.to_pylist()


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_dictionaries_of_views_are_decoded(kind: pa.DataType) -> None:
    """What polars makes of its categories."""
    words = pa.array([b"a", b"bb" * 20], pa.binary()).cast(pa.string()).cast(kind)
    indices = pa.array([1, None, 0, 1], pa.uint32())
    array = pa.DictionaryArray.from_arrays(indices, words)
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 4], pa.int32()), array)
    data = pa.record_batch([array.slice(0, 2), nested], names=["x", "y"])
    found = conform(data, normalize_schema(data.schema))
    found.validate(full=True)
    x, y = found.column("x").to_pylist(), found.column("y").to_pylist()
    big, small = (words[1].as_py(), words[0].as_py())
    assert (x, y) == ([big, None], [[big], [None, small, big]])


def test_list_views_in_maps_are_refused() -> None:
    views = pa.array([[("k", [1])]], pa.map_(pa.string(), pa.list_view(pa.int32())))
    data = pa.record_batch([views], names=["x"])
    with pytest.raises(IncompatibleSchema, match="convert it first"):
        conform(data, normalize_schema(data.schema))


def test_run_ends_are_decoded() -> None:
    column = pc.run_end_encode(pa.array([7, 7, None]))
    got = conform(pa.record_batch([column], names=["x"]), pa.schema([("x", pa.int64())]))
    assert got.column(0).to_pylist() == [7, 7, None]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pa.record_batch({"name": ["a"]}), "'id' is not in the stored rows"),
        (pa.record_batch({"id": ["no number"]}), "'id'"),
        (pa.record_batch({"id": [1.5]}), "'id'"),
        (pa.record_batch({"id": pa.array([2**64 - 1], pa.uint64())}), "'id'"),
        (pa.record_batch({"id": [1], "at": pa.array([1], pa.timestamp("ns"))}), "'at'"),
    ],
)
def test_data_that_does_not_fit(data: pa.RecordBatch, reason: str) -> None:
    with pytest.raises(IncompatibleSchema, match=reason):
        conform(data, STORED)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_schema(data: bytes) -> None:
    with pytest.raises(InvalidSchema):
        deserialize_schema(data)
