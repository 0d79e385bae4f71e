"""Batches: rows come back as they were, in any codec, sliced, projected and evolved."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog.batch import codec
from quiverlog.batch.checksum import crc32c
from quiverlog.batch.codec import decode_batch, encode_batch, split_batches
from quiverlog.batch.header import CRC_START, BatchHeader, stamp
from quiverlog.batch.schema import RAW_SCHEMA, SchemaHistory, normalize_schema
from quiverlog.client.producer.identity import restamp
from quiverlog.errors import (
    BatchTooLarge,
    CorruptBatch,
    IncompatibleSchema,
    InvalidArgument,
    UnknownSchema,
)
from quiverlog.limits import BATCH_BYTES_MAX, BATCH_HEADER_BYTES
from quiverlog.types import Compression

UTC = dt.UTC

EVERY_TYPE = normalize_schema(
    pa.schema(
        [
            ("bool", pa.bool_()),
            ("i8", pa.int8()),
            ("i16", pa.int16()),
            ("i32", pa.int32()),
            ("i64", pa.int64()),
            ("f32", pa.float32()),
            ("f64", pa.float64()),
            ("text", pa.string()),
            ("bytes", pa.binary()),
            ("day", pa.date32()),
            ("instant", pa.timestamp("us", tz="UTC")),
            ("wall", pa.timestamp("us")),
            ("span", pa.duration("us")),
            ("money", pa.decimal128(20, 4)),
            ("nothing", pa.null()),
            ("list", pa.list_(pa.string())),
            ("map", pa.map_(pa.string(), pa.list_(pa.int32()))),
            ("struct", pa.struct([("x", pa.decimal128(5, 2)), ("y", pa.list_(pa.binary()))])),
        ]
    )
)
ROW = {
    "bool": True, "i8": -8, "i16": 16, "i32": -32, "i64": 2**62, "f32": 0.5, "f64": -1e300,
    "text": "grüße", "bytes": b"\x00\xff", "day": dt.date(2013, 1, 1),
    "instant": dt.datetime(2013, 1, 1, 5, 15, tzinfo=UTC), "wall": dt.datetime(2013, 1, 1, 5),  # noqa: DTZ001
    "span": dt.timedelta(minutes=3), "money": Decimal("-12.3456"), "nothing": None,
    "list": ["a", None, ""], "map": [("k", [1, None]), ("l", None)],
    "struct": {"x": Decimal("1.50"), "y": [b"z"]},
}  # fmt: skip
NULLS = dict.fromkeys(ROW)
ROWS = pa.RecordBatch.from_pylist([ROW, NULLS, ROW], schema=EVERY_TYPE)
HISTORY = SchemaHistory({1: EVERY_TYPE})


def encoded(data: pa.RecordBatch, **options: object) -> tuple[memoryview, BatchHeader]:
    options = {"schema_id": 1, "timestamp_us": 1_000, **options}
    view = memoryview(encode_batch(data, **options))
    return view, BatchHeader.unpack(view)


@pytest.mark.parametrize("compression", Compression)
def test_every_type_comes_back(compression: Compression) -> None:
    view, header = encoded(ROWS, compression=compression)
    got = decode_batch(view, header, HISTORY)
    assert got.equals(ROWS)
    assert got.schema.equals(EVERY_TYPE, check_metadata=True)
    got.validate(full=True)
    for name in EVERY_TYPE.names:
        one = decode_batch(view, header, HISTORY, [name])
        assert one.equals(ROWS.select([name]))
    assert decode_batch(view, header, HISTORY, ["struct", "i8"]).equals(
        ROWS.select(["struct", "i8"])
    )


@pytest.mark.parametrize("compression", Compression)
@settings(max_examples=40, deadline=None)
@given(start=st.integers(0, 2900), length=st.integers(1, 60))
def test_a_slice_travels_alone(compression: Compression, start: int, length: int) -> None:
    data = pa.RecordBatch.from_pylist([ROW, NULLS] * 1500, schema=EVERY_TYPE)
    part = data.slice(start, length)
    view, header = encoded(part, compression=compression)
    assert decode_batch(view, header, HISTORY).equals(part)
    few = pa.RecordBatch.from_pylist([ROW, NULLS] * 31, schema=EVERY_TYPE)
    same = few.slice(start % 2, part.num_rows)
    assert abs(len(view) - len(encoded(same, compression=compression)[0])) <= 4096, (
        "nothing else came along"
    )


@pytest.mark.parametrize("columns", [EVERY_TYPE.names, ["i8"], ["i64", "text"], ["list", "struct"]])
def test_a_batch_that_is_made_in_place_has_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, columns: list[str]
) -> None:
    data = pa.RecordBatch.from_pylist([ROW, NULLS] * 150, schema=EVERY_TYPE).select(columns)
    empty = pa.RecordBatch.from_pylist([NULLS] * 10 + [ROW] * 9_000, schema=EVERY_TYPE)
    slices = [data.slice(start, length) for start in (0, 3) for length in (1, 2, 8, 9, 64, 200)]
    slices.append(empty.select(columns).slice(0, 10))  # its lists bring nothing of the others
    joined = [encode_batch(part, schema_id=1, timestamp_us=1_000) for part in slices]
    monkeypatch.setattr(codec, "_IN_PLACE_BYTES_MIN", 0)
    for before, part in zip(joined, slices, strict=True):
        batch = encode_batch(part, schema_id=1, timestamp_us=1_000)
        assert isinstance(batch, memoryview)
        assert bytes(batch) == bytes(before)
        restamp(batch, 7, 1, 42)
        header = BatchHeader.unpack(batch)
        assert (header.producer_id, header.base_sequence) == (7, 42)
        assert header.crc32c == crc32c(batch[CRC_START:])


def test_a_large_batch_is_made_in_place_and_bounded() -> None:
    rows = pa.record_batch({"x": pa.array(range(100_000), pa.int64())})
    assert isinstance(encode_batch(rows, schema_id=1, timestamp_us=1), memoryview)
    huge = pa.record_batch({"x": pa.array([b"x" * (BATCH_BYTES_MAX // 2)] * 2)})
    with pytest.raises(BatchTooLarge):
        encode_batch(huge, schema_id=1, timestamp_us=1)


def test_the_header_holds_the_requested_fields() -> None:
    view, header = encoded(
        ROWS,
        schema_id=7,
        compression=Compression.ZSTD,
        timestamp_us=(5, 9),
        producer_id=11,
        producer_epoch=2,
        base_sequence=33,
    )
    assert header == BatchHeader(
        base_offset=0, leader_epoch=0, size=len(view) - 16, crc32c=crc32c(view[20:]), magic=1,
        flags=2 << 2, producer_epoch=2, producer_id=11, base_sequence=33, row_count=3, schema_id=7,
        reserved=0, timestamp_min_us=5, timestamp_max_us=9,
    )  # fmt: skip
    assert len(view) % 64 == 0


def test_stamping_leaves_the_checksum_good() -> None:
    view, _ = encoded(ROWS)
    stamp(view, 0, 1_000_000, 5)
    header = BatchHeader.unpack(view)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (
        1_000_000,
        5,
        1_000_003,
    )
    assert decode_batch(view, header, HISTORY).equals(ROWS)


def test_uncompressed_rows_are_not_copied() -> None:
    data = pa.record_batch({"x": pa.array(range(1000), pa.int64())})
    view, header = encoded(data)
    before = pa.total_allocated_bytes()
    got = decode_batch(view, header, SchemaHistory({1: data.schema}))
    assert pa.total_allocated_bytes() == before
    start = pa.py_buffer(view).address
    assert start <= got.column(0).buffers()[1].address < start + len(view)


def test_columns_not_asked_for_stay_compressed() -> None:
    big = pa.array([bytes(1000)] * 1000)
    data = pa.record_batch({"x": pa.array(range(1000), pa.int64()), "big": big})
    view, header = encoded(data, compression=Compression.ZSTD)
    before = pa.total_allocated_bytes()
    got = decode_batch(view, header, SchemaHistory({1: data.schema}), ["x"])
    assert got.column(0).to_pylist() == list(range(1000))
    assert pa.total_allocated_bytes() - before < 100_000


def test_batches_are_walked() -> None:
    views = [encoded(ROWS.slice(0, n))[0] for n in (1, 2, 3)]
    body = memoryview(b"".join(views))
    assert [(h.row_count, bytes(v)) for h, v in split_batches(body)] == [
        (n + 1, bytes(view)) for n, view in enumerate(views)
    ]
    assert list(split_batches(memoryview(b""))) == []
    for cut in (1, 63, 64, len(views[0]) + 20, len(body) - 1):
        with pytest.raises(CorruptBatch):
            list(split_batches(body[:cut]))
    lying = bytearray(views[0])
    lying[12:16] = (10).to_bytes(4, "little")
    with pytest.raises(CorruptBatch):
        list(split_batches(memoryview(lying)))


def test_what_cannot_be_a_batch() -> None:
    with pytest.raises(InvalidArgument):
        encoded(ROWS.slice(0, 0))
    with pytest.raises(BatchTooLarge):
        encoded(pa.record_batch({"x": pa.array([bytes(BATCH_BYTES_MAX)])}))
    lots = pa.record_batch({"x": pa.array([bytes(64 << 20)] * 5)})
    with pytest.raises(BatchTooLarge):
        encoded(lots, compression=Compression.ZSTD)


# --- readers --------------------------------------------------------------------------------------
def test_readers_see_the_newest_schema() -> None:
    old = pa.schema(
        [("a", pa.int8()), ("b", pa.decimal128(4, 1)), ("s", pa.struct([("x", pa.int32())]))]
    )
    new = pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.decimal128(10, 2)),
            ("s", pa.struct([("x", pa.int64()), ("y", pa.string())])),
            ("c", pa.list_(pa.string())),
        ]
    )
    old, new = normalize_schema(old), normalize_schema(new)
    rows = [{"a": 1, "b": Decimal("1.5"), "s": {"x": 5}}, {"a": None, "b": None, "s": None}]
    view, header = encoded(pa.RecordBatch.from_pylist(rows, schema=old))
    history = SchemaHistory({1: old, 2: new})
    got = decode_batch(view, header, history)
    assert got.schema.equals(new)
    assert got.to_pylist() == [
        {"a": 1, "b": Decimal("1.50"), "s": {"x": 5, "y": None}, "c": None},
        {"a": None, "b": None, "s": None, "c": None},
    ]
    assert decode_batch(view, header, history, ["c", "a"]).to_pylist() == [
        {"c": None, "a": 1},
        {"c": None, "a": None},
    ]
    assert decode_batch(view, header, history, ["c"]).num_rows == 2
    assert decode_batch(view, header, history, reader_schema=old).schema.equals(old)


@pytest.mark.parametrize("compression", Compression)
def test_only_added_columns(compression: Compression) -> None:
    old = pa.schema([("a", pa.int8())])
    new = pa.schema([("a", pa.int8()), ("b", pa.string())])
    view, header = encoded(
        pa.record_batch([pa.array([1, 2], pa.int8())], schema=old), compression=compression
    )
    got = decode_batch(view, header, SchemaHistory({1: old, 2: new}), ["b"])
    assert got.to_pylist() == [{"b": None}, {"b": None}]


def test_readers_errors_name_the_column() -> None:
    schema = pa.schema([("a", pa.int64())])
    view, header = encoded(pa.record_batch([pa.array([2**40])], schema=schema))
    history = SchemaHistory({1: schema})
    with pytest.raises(InvalidArgument, match="'nope'"):
        decode_batch(view, header, history, ["nope"])
    with pytest.raises(InvalidArgument, match="twice"):
        decode_batch(view, header, history, ["a", "a"])
    with pytest.raises(IncompatibleSchema, match="'a'"):
        decode_batch(view, header, history, reader_schema=pa.schema([("a", pa.int32())]))
    needs = pa.schema([pa.field("b", pa.int32(), nullable=False)])
    with pytest.raises(IncompatibleSchema, match="'b'"):
        decode_batch(view, header, history, reader_schema=needs)
    with pytest.raises(UnknownSchema):
        decode_batch(view, header._replace(schema_id=9), history)


def test_a_flipped_bit_is_noticed() -> None:
    view, header = encoded(ROWS)
    for at in range(CRC_START, len(view), 37):
        view[at] ^= 0x10
        with pytest.raises(CorruptBatch, match="CRC"):
            decode_batch(view, header, HISTORY)
        view[at] ^= 0x10
    assert BATCH_HEADER_BYTES == 64


def test_raw_rows() -> None:
    now = dt.datetime(2026, 1, 2, tzinfo=UTC)
    rows = [
        {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}], "timestamp": now},
        {"key": None, "value": b"", "headers": None, "timestamp": None},
    ]
    view, header = encoded(pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA))
    assert decode_batch(view, header, SchemaHistory({1: RAW_SCHEMA})).to_pylist() == rows


def test_crc32c_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
    assert crc32c(b"") == 0
