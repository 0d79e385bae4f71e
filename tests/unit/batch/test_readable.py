"""What the door takes for readable by its metadata alone, Arrow reads, whatever the numbers are."""

from __future__ import annotations

import struct
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.batch import rows, structure
from quiverlog.batch.codec import encode_batch, write_crc
from quiverlog.batch.header import FLAG_CODEC_SHIFT, BatchHeader
from quiverlog.batch.structure import check_structure, plan_of
from quiverlog.errors import CorruptBatch, QuiverlogError
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.types import Compression
from tests.support.batches import validate_batch

NOW = 1_700_000_000_000_000
COUNT = 9
NUMBERS = pa.schema(
    [
        ("i", pa.int64()),
        ("b", pa.bool_()),
        ("f", pa.float32()),
        ("u", pa.uint8()),
        pa.field("t", pa.timestamp("ns", tz="UTC"), nullable=False),
    ]
)
COLUMNS = [pa.array([0] * COUNT).cast(field.type) for field in NUMBERS]


def encoded(columns: list[pa.Array] = COLUMNS, **options: object) -> bytearray:
    batch = pa.RecordBatch.from_arrays(columns, schema=NUMBERS)
    return encode_batch(batch, **{"schema_id": 1, "timestamp_us": NOW, **options})  # type: ignore[arg-type]


def looked_at(batch: bytearray, schema: pa.Schema = NUMBERS) -> tuple[bool, bool]:
    """(the metadata is good, it proves that the rows can be read)."""
    message = memoryview(batch)[BATCH_HEADER_BYTES:]
    try:
        metadata = check_structure(message, BatchHeader.unpack(batch), schema)
    except QuiverlogError:
        return False, False
    return True, metadata.surely_readable


def test_plain_numbers_are_not_read_at_the_door() -> None:
    batch = encoded()
    assert looked_at(batch) == (True, True)
    with mock.patch.object(rows, "_read_bare", side_effect=AssertionError("it was read")):
        validate_batch(
            memoryview(batch), schemas={1: NUMBERS}, bytes_max=1 << 20, full=False, now_wall_us=NOW
        )


def test_nulls_and_compression_are_read() -> None:
    with_null = [pa.array([None] + [0] * (COUNT - 1), pa.int64()), *COLUMNS[1:]]
    assert looked_at(encoded(with_null)) == (True, False)
    assert looked_at(encoded(compression=Compression.ZSTD)) == (True, False)


@pytest.mark.parametrize(
    "data_type",
    [
        pa.string(),
        pa.binary(),
        pa.decimal128(3, 0),
        pa.date64(),
        pa.time32("s"),
        pa.time64("us"),
        pa.list_(pa.int8()),
        pa.struct([("a", pa.int8())]),
        pa.null(),
    ],
    ids=str,
)
def test_types_of_which_some_bits_are_no_value_are_read(data_type: pa.DataType) -> None:
    schema = pa.schema([("i", pa.int64()), ("x", data_type)])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.nulls(1, pa.null()).cast(data_type)], schema=schema
    )
    raw = encode_batch(batch, schema_id=1, timestamp_us=NOW)
    assert plan_of(schema).bit_widths is None
    assert looked_at(raw, schema) == (True, False)


def _places() -> list[int]:
    """Positions of the metadata's numbers in the batch: those that are not as in other rows."""
    batch = encoded()
    message = memoryview(batch)[BATCH_HEADER_BYTES:]
    metadata = check_structure(message, BatchHeader.unpack(batch), NUMBERS)
    flat = bytes(message[: metadata.body_at])
    numbers = {metadata.body_bytes, metadata.row_count, *metadata.nodes, *metadata.buffers}
    return [
        BATCH_HEADER_BYTES + at
        for at in range(8, len(flat) - 8, 8)
        if struct.unpack_from("<q", flat, at)[0] in numbers
    ]


PLACES = _places()
NUMBER = st.one_of(
    st.integers(-1, 400),
    st.sampled_from([2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)]),
    st.integers(-(2**63), 2**63 - 1),
)


@given(st.lists(st.tuples(st.sampled_from(PLACES), NUMBER), min_size=1, max_size=3))
def test_whatever_the_numbers_are_what_is_taken_for_readable_is(
    changes: list[tuple[int, int]],
) -> None:
    batch = encoded()
    for at, number in changes:
        struct.pack_into("<q", batch, at, number)
    write_crc(batch)
    good, sure = looked_at(batch)
    if not sure:
        return
    assert good
    message = memoryview(batch)[BATCH_HEADER_BYTES:]
    metadata = check_structure(message, BatchHeader.unpack(batch), NUMBERS)
    assert rows.read_rows(message, metadata, NUMBERS).num_rows == COUNT


def test_a_column_that_is_a_byte_short_is_not_taken_for_readable() -> None:
    """The test can be red: without the bound this batch passes the door and no reader reads it."""
    refused = 0
    for at in PLACES:
        batch = encoded()
        (number,) = struct.unpack_from("<q", batch, at)
        if number <= 0:
            continue
        struct.pack_into("<q", batch, at, number - 1)
        write_crc(batch)
        good, sure = looked_at(batch)
        if not good or sure:
            continue
        message = memoryview(batch)[BATCH_HEADER_BYTES:]
        metadata = check_structure(message, BatchHeader.unpack(batch), NUMBERS)
        with pytest.raises(CorruptBatch):
            rows.check_rows(message, metadata, NUMBERS, full=False)
        refused += 1
    assert refused >= len(NUMBERS), "every column's bytes are counted"


# --- what has passed is remembered ----------------------------------------------------------------
def test_metadata_that_has_passed_is_not_walked_again() -> None:
    batch = encoded()
    assert looked_at(batch) == (True, True)
    with mock.patch.object(structure, "_checked", side_effect=AssertionError("walked again")):
        assert looked_at(batch) == (True, True)


def test_what_is_not_in_the_metadata_is_compared_each_time() -> None:
    """Bytes that have passed prove nothing of another header, length or schema."""
    batch = encoded()
    assert looked_at(batch) == (True, True)
    header = BatchHeader.unpack(batch)
    message = memoryview(batch)[BATCH_HEADER_BYTES:]
    metadata = check_structure(message, header, NUMBERS)
    other_rows = header._replace(row_count=COUNT + 1)
    compressed = header._replace(flags=Compression.ZSTD << FLAG_CODEC_SHIFT)
    cut = message[: metadata.body_at + metadata.body_bytes - 8]
    for rest, changed in ((message, other_rows), (message, compressed), (cut, header)):
        with pytest.raises(CorruptBatch):
            check_structure(rest, changed, NUMBERS)
    other = pa.schema(list(NUMBERS)[:-1])
    with pytest.raises(CorruptBatch):
        check_structure(message, header, other)


def test_a_required_column_is_not_excused_by_a_schema_where_it_is_not() -> None:
    """Both schemas have the same metadata, byte for byte."""
    with_null = pa.array([None] + [0] * (COUNT - 1), pa.int64())
    nullable = pa.schema([("n", pa.int64())])
    required = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([with_null], schema=nullable)
    raw = encode_batch(batch, schema_id=1, timestamp_us=NOW)
    assert looked_at(raw, nullable)[0]
    assert not looked_at(raw, required)[0]


def test_what_is_remembered_is_bounded() -> None:
    with mock.patch.object(structure, "_PASSED_MAX", 3), mock.patch.dict(structure._passed, {}):
        for rows_count in range(1, 10):
            columns = [pa.array([0] * rows_count).cast(field.type) for field in NUMBERS]
            assert looked_at(encoded(columns)) == (True, True)
            assert 0 < len(structure._passed) <= 3
