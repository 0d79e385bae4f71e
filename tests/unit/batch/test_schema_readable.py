"""What a reader may make of stored rows: the same types or wider ones, or an error with names."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from quiverlog.batch.codec import decode_batch, encode_batch
from quiverlog.batch.header import BatchHeader
from quiverlog.batch.schema import SchemaHistory, can_widen, check_readable, normalize_schema
from quiverlog.errors import IncompatibleSchema

UTC = pa.timestamp("us", tz="UTC")
NOON = datetime.datetime(2026, 1, 1, 12)  # noqa: DTZ001

CHANGED = [
    (pa.int64(), pa.string(), 7),
    (pa.int32(), pa.bool_(), 7),
    (pa.int64(), pa.int32(), 7),
    (pa.int64(), pa.float64(), 7),
    (pa.int32(), pa.float32(), 7),
    (pa.float64(), pa.float32(), 0.1),
    (pa.float64(), pa.int64(), 7.0),
    (pa.bool_(), pa.int32(), True),
    (pa.string(), pa.int64(), "7"),
    (pa.string(), pa.binary(), "x"),
    (pa.binary(), pa.string(), b"x"),
    (pa.timestamp("us"), UTC, NOON),
    (UTC, pa.timestamp("us"), NOON.replace(tzinfo=datetime.UTC)),
    (pa.timestamp("us"), pa.date32(), NOON),
    (pa.date32(), pa.timestamp("us"), NOON.date()),
    (pa.timestamp("us"), pa.int64(), NOON),
    (pa.int64(), pa.duration("us"), 7),
    (pa.decimal128(10, 4), pa.decimal128(10, 2), decimal.Decimal("1.2300")),
    (pa.decimal128(10, 2), pa.float64(), decimal.Decimal("1.23")),
    (pa.list_(pa.int64()), pa.list_(pa.int32()), [7]),
    (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.string())]), {"a": 7}),
    (pa.struct([("a", pa.int64()), ("b", pa.int8())]), pa.struct([("a", pa.int64())]), {"a": 7}),
    (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32()), [("k", 7)]),
]


def stored(schema: pa.Schema, value: Any) -> tuple[memoryview, BatchHeader, SchemaHistory]:
    schema = normalize_schema(schema)
    row = dict.fromkeys(schema.names, value)
    batch = encode_batch(
        pa.RecordBatch.from_pylist([row], schema=schema), schema_id=1, timestamp_us=0
    )
    return memoryview(batch), BatchHeader.unpack(batch), SchemaHistory({1: schema})


def read(schema: pa.Schema, reader: pa.Schema, value: Any) -> pa.RecordBatch:
    batch, header, history = stored(schema, value)
    return decode_batch(batch, header, history, reader_schema=normalize_schema(reader))


@pytest.mark.parametrize(("old", "new", "value"), CHANGED, ids=str)
def test_no_type_changes_without_a_word(old: pa.DataType, new: pa.DataType, value: Any) -> None:
    with pytest.raises(IncompatibleSchema) as caught:
        read(pa.schema([("a", old)]), pa.schema([("a", new)]), value)
    assert caught.value.details["column"] == "a"
    assert "column 'a' is " in caught.value.message


def test_what_widens_is_read() -> None:
    old = pa.schema([("a", pa.int32()), ("gone", pa.int8())])
    new = pa.schema([("b", pa.string()), ("a", pa.int64())])
    assert read(old, new, 7).to_pylist() == [{"b": None, "a": 7}]


INNER = pa.field("x", pa.int32(), nullable=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.field("a", pa.int32()), pa.field("a", pa.int32(), nullable=False)),
        (pa.field("other", pa.int32()), pa.field("a", pa.int32(), nullable=False)),
        (pa.field("a", pa.struct([("x", pa.int32())])), pa.field("a", pa.struct([INNER]))),
        (pa.field("a", pa.struct([("y", pa.int8())])), pa.field("a", pa.struct([INNER]))),
        (pa.field("a", pa.list_(pa.int32())), pa.field("a", pa.list_(INNER))),
        (
            pa.field("a", pa.map_(pa.string(), pa.int32())),
            pa.field("a", pa.map_(pa.string(), INNER)),
        ),
    ],
    ids=["top", "missing", "struct", "new field", "list", "map"],
)
def test_not_null_is_believed_only_where_it_is_stored(old: pa.Field, new: pa.Field) -> None:
    """Spark leaves null checks out for such a column: a null would be read as a value."""
    with pytest.raises(IncompatibleSchema, match="'a'"):
        read(pa.schema([old]), pa.schema([new]), None)


def test_not_null_stays_not_null() -> None:
    schema = pa.schema([pa.field("a", pa.struct([INNER]), nullable=False)])
    assert read(schema, schema, {"x": 1}).to_pylist() == [{"a": {"x": 1}}]
    check_readable(schema, pa.schema([("a", pa.struct([INNER, ("y", pa.int8())]))]))


def test_each_batch_is_held_to_the_schema_it_was_written_with() -> None:
    """A topic that was int32 and grew to int64: the first rows are readable as int32, no more."""
    old, new = (normalize_schema(pa.schema([("a", t)])) for t in (pa.int32(), pa.int64()))
    history = SchemaHistory({1: old, 2: new})
    for schema_id, schema in history.items():
        rows = pa.RecordBatch.from_pylist([{"a": 1}], schema=schema)
        batch = memoryview(encode_batch(rows, schema_id=schema_id, timestamp_us=0))
        header = BatchHeader.unpack(batch)
        for _ in range(2):
            if schema_id == 1:
                assert decode_batch(batch, header, history, reader_schema=old).num_rows == 1
            else:
                with pytest.raises(IncompatibleSchema, match="'a' is int64"):
                    decode_batch(batch, header, history, reader_schema=old)


def test_rows_are_counted_where_no_column_is_asked_for() -> None:
    assert read(pa.schema([("a", pa.int64())]), pa.schema([]), 7).num_rows == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (pa.int8(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.float32(), pa.float64(), True),
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.int16(), pa.float32(), True),
        (pa.int32(), pa.float32(), False),
        (pa.null(), pa.string(), True),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), True),
        (pa.decimal128(10, 2), pa.decimal128(10, 4), False),
        (pa.string(), pa.binary(), False),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), True),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16()), ("b", pa.string())]), True),
        (pa.struct([("a", pa.int8()), ("b", pa.int8())]), pa.struct([("b", pa.int8())]), False),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), True),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), False),
    ],
    ids=str,
)
def test_widening(old: pa.DataType, new: pa.DataType, expected: bool) -> None:
    assert can_widen(old, new) is expected
