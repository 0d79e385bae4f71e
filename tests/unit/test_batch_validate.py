"""The gate: every way in which a batch can be wrong is refused with its reason."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

from quiverlog.batch.codec import decode_batch, encode_batch, seal
from quiverlog.batch.header import BatchHeader
from quiverlog.batch.ipc_metadata import read_ipc_metadata
from quiverlog.batch.schema import SchemaHistory
from quiverlog.batch.validate import validate_batch
from quiverlog.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidTimestamp,
    QuiverlogError,
    UnknownSchema,
)
from quiverlog.limits import BATCH_DECODED_BYTES_MAX, TIMESTAMP_AHEAD_MS_MAX
from quiverlog.types import Compression

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("d", pa.decimal128(3, 0))]
)
ROWS = pa.record_batch(
    [
        pa.array([1, 2, 3]),
        pa.array(["one", "two", "three"]),
        pa.array([1, 2, None], pa.decimal128(3, 0)),
    ],
    schema=SCHEMA,
)
HISTORY = SchemaHistory({1: SCHEMA})
NOW = 1_700_000_000_000_000


def good(**options: object) -> bytearray:
    return encode_batch(ROWS, **{"schema_id": 1, "timestamp_us": NOW, **options})


def check(batch: bytearray, *, full: bool = False, bytes_max: int = 1 << 20) -> BatchHeader:
    return validate_batch(
        memoryview(batch), schemas=HISTORY, bytes_max=bytes_max, full=full, now_wall_us=NOW
    )


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("full", [False, True])
def test_good_batches_pass(compression: Compression, full: bool) -> None:
    batch = good(compression=compression, producer_id=5, producer_epoch=0, base_sequence=0)
    assert check(batch, full=full) == BatchHeader.unpack(batch)
    assert check(batch, bytes_max=len(batch)).row_count == 3


def changed(**fields: int) -> bytearray:
    batch = good()
    BatchHeader.unpack(batch)._replace(**fields).pack_into(batch)
    seal(batch)
    return batch


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"magic": 0}, CorruptBatch, "magic"),
        ({"magic": 2}, CorruptBatch, "magic"),
        ({"size": 100}, CorruptBatch, "claims"),
        ({"size": 2**32 - 1}, CorruptBatch, "claims"),
        ({"flags": 0x01}, CorruptBatch, "flags"),
        ({"flags": 0x02}, CorruptBatch, "flags"),
        ({"flags": 0x10}, CorruptBatch, "flags"),
        ({"flags": 0x80}, CorruptBatch, "flags"),
        ({"flags": 1 << 2}, CorruptBatch, "codec"),
        ({"flags": 3 << 2}, CorruptBatch, "codec"),
        ({"reserved": 1}, CorruptBatch, "reserved"),
        ({"row_count": 0}, CorruptBatch, "rows"),
        ({"row_count": 2}, CorruptBatch, "counts 2 rows"),
        ({"row_count": 4}, CorruptBatch, "counts 4 rows"),
        ({"row_count": 2**32 - 1}, CorruptBatch, "rows"),
        ({"schema_id": 2}, UnknownSchema, "schema 2"),
        ({"schema_id": 0}, UnknownSchema, "schema 0"),
        ({"timestamp_min_us": NOW + 1}, CorruptBatch, "timestamps"),
        ({"timestamp_min_us": -1}, CorruptBatch, "timestamps"),
        ({"timestamp_max_us": NOW + TIMESTAMP_AHEAD_MS_MAX * 1000 + 1}, InvalidTimestamp, "future"),
        ({"producer_id": -2}, CorruptBatch, "producer"),
        ({"producer_id": 5}, CorruptBatch, "producer"),
        ({"base_sequence": 0}, CorruptBatch, "producer"),
        ({"producer_id": 5, "producer_epoch": 0}, CorruptBatch, "producer"),
    ],
)
def test_headers_that_lie(fields: dict[str, int], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        check(changed(**fields))


def test_the_edge_of_the_future_passes() -> None:
    check(changed(timestamp_max_us=NOW + TIMESTAMP_AHEAD_MS_MAX * 1000))


def test_sizes() -> None:
    batch = good()
    with pytest.raises(BatchTooLarge):
        check(batch, bytes_max=len(batch) - 1)
    for size in (0, 1, 63):
        with pytest.raises(CorruptBatch):
            check(batch[:size])
    with pytest.raises(CorruptBatch):
        check(batch + bytes(64))


def test_every_single_bit_is_under_the_checksum() -> None:
    batch = good()
    for at in range(20, len(batch)):
        batch[at] ^= 1
        with pytest.raises(QuiverlogError):
            check(batch)
        batch[at] ^= 1
    check(batch)


def test_padding_must_be_zero() -> None:
    message = memoryview(good())[64:]
    metadata = read_ipc_metadata(message)
    end = 64 + metadata.body_at + metadata.body_bytes
    batch = good()
    assert end < len(batch)
    batch[end] = 1
    seal(batch)
    with pytest.raises(CorruptBatch, match="padded"):
        check(batch)


def rows_of_another_schema(data: pa.RecordBatch) -> bytearray:
    return encode_batch(data, schema_id=1, timestamp_us=NOW)


@pytest.mark.parametrize(
    "data",
    [
        pa.record_batch({"id": pa.array([1, 2, 3])}),
        pa.record_batch({"id": ["a"], "text": ["b"], "d": ["c"]}),
        pa.record_batch(
            {"id": pa.array([1], pa.int8()), "text": ["x"], "d": pa.array([1], pa.int8())}
        ),
        pa.record_batch({"id": pa.nulls(3, pa.int64()), "text": ROWS["text"], "d": ROWS["d"]}),
    ],
)
def test_rows_of_another_schema(data: pa.RecordBatch) -> None:
    with pytest.raises(CorruptBatch):
        check(rows_of_another_schema(data))


def test_no_other_arrow_message_passes() -> None:
    batch = good()
    schema_message = SCHEMA.serialize().to_pybytes()
    padding = bytes(-len(schema_message) % 64)
    batch = batch[:64] + schema_message + padding
    BatchHeader.unpack(batch)._replace(size=len(batch) - 16).pack_into(batch)
    seal(batch)
    with pytest.raises(CorruptBatch, match="message type 1"):
        check(batch)


# --- lies deeper down, under a good checksum ------------------------------------------------------
def tampered(
    compression: Compression, change: Callable[[bytearray, int, tuple[int, ...]], None]
) -> bytearray:
    """Change the body; `change` gets the batch, where the body begins, and the buffers."""
    batch = good(compression=compression)
    metadata = read_ipc_metadata(memoryview(batch)[64:])
    change(batch, 64 + metadata.body_at, metadata.buffers)
    seal(batch)
    return batch


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (6, 0),  # text's offsets on top of the ids
        (6, 1 << 20),  # begins outside
        (7, 1 << 40),  # ends outside
        (7, -8),
        (6, 4),  # misaligned
        (13, 1 << 10),  # the last one ends outside
    ],
)
def test_buffers_lie_in_order_inside_the_body(index: int, value: int) -> None:
    batch = good()
    buffers = read_ipc_metadata(memoryview(batch)[64:]).buffers
    at = batch.index(struct.pack(f"<{len(buffers)}q", *buffers))
    struct.pack_into("<q", batch, at + 8 * index, value)
    seal(batch)
    with pytest.raises(CorruptBatch, match="buffer"):
        check(batch)


def overlong_offset(batch: bytearray, body_at: int, buffers: tuple[int, ...]) -> None:
    offsets_at = body_at + buffers[2 * 3]  # id: validity, values; text: validity, OFFSETS, data
    struct.pack_into("<i", batch, offsets_at + 4, 2**30)


def test_offsets_inside_a_column_are_checked() -> None:
    batch = tampered(Compression.NONE, overlong_offset)
    message = pa.py_buffer(memoryview(batch)[64:])
    pa.ipc.read_record_batch(message, SCHEMA).validate()  # Arrow's cheap check lets it through
    for full in (False, True):
        with pytest.raises(CorruptBatch):
            check(batch, full=full)


def bad_utf8(batch: bytearray, body_at: int, buffers: tuple[int, ...]) -> None:
    batch[body_at + buffers[2 * 4]] = 0xFF


def too_many_digits(batch: bytearray, body_at: int, buffers: tuple[int, ...]) -> None:
    struct.pack_into("<q", batch, body_at + buffers[2 * 6], 1_000)


@pytest.mark.parametrize("change", [bad_utf8, too_many_digits])
def test_values_are_checked_when_asked(change: Callable[..., None]) -> None:
    batch = tampered(Compression.NONE, change)
    check(batch)
    with pytest.raises(CorruptBatch):
        check(batch, full=True)


@pytest.mark.parametrize("claim", [2**62, BATCH_DECODED_BYTES_MAX + 1, -2, -(2**63)])
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_no_claimed_length_is_believed(compression: Compression, claim: int) -> None:
    def lie(batch: bytearray, body_at: int, buffers: tuple[int, ...]) -> None:
        struct.pack_into("<q", batch, body_at + buffers[2 * 1], claim)

    batch = tampered(compression, lie)
    with pytest.raises(CorruptBatch, match="claim"):
        check(batch)
    with pytest.raises(CorruptBatch, match="claim"):
        decode_batch(memoryview(batch), BatchHeader.unpack(batch), HISTORY)


def test_a_bomb_is_not_lit() -> None:
    bomb = pa.record_batch([pa.array([bytes(90 << 20)] * 3)], names=["x"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, bomb.schema, options=options) as writer:
        writer.write_batch(bomb)
        end = sink.tell()
    message = memoryview(sink.getvalue())[bomb.schema.serialize().size : end]
    batch = bytearray(64) + message + bytes(-len(message) % 64)
    BatchHeader(
        0, 0, len(batch) - 16, 0, 1, Compression.ZSTD << 2, -1, -1, -1, 3, 1, 0, NOW, NOW
    ).pack_into(batch)
    seal(batch)
    del bomb, sink, message
    before = pa.default_memory_pool().max_memory()
    schemas = SchemaHistory({1: pa.schema([("x", pa.binary())])})
    with pytest.raises(CorruptBatch, match="decompressed"):
        validate_batch(
            memoryview(batch), schemas=schemas, bytes_max=1 << 20, full=True, now_wall_us=NOW
        )
    with pytest.raises(CorruptBatch, match="decompressed"):
        decode_batch(memoryview(batch), BatchHeader.unpack(batch), schemas)
    assert pa.default_memory_pool().max_memory() == before


def test_a_compressed_lie_is_caught_by_its_reader() -> None:
    lying = pa.RecordBatch.from_arrays(
        [
            ROWS["id"],
            pa.Array.from_buffers(
                pa.string(),
                3,
                [
                    None,
                    pa.py_buffer(struct.pack("<4i", 0, 2**30, 6, 11)),
                    pa.py_buffer(b"onetwothree"),
                ],
            ),
            ROWS["d"],
        ],
        schema=SCHEMA,
    )
    batch = encode_batch(lying, schema_id=1, timestamp_us=NOW, compression=Compression.LZ4)
    header = check(batch)  # basic: the rows stay compressed
    with pytest.raises(CorruptBatch):
        check(batch, full=True)
    for columns in (None, ["text"]):
        with pytest.raises(CorruptBatch):
            decode_batch(memoryview(batch), header, HISTORY, columns)
    assert decode_batch(memoryview(batch), header, HISTORY, ["id"]).num_rows == 3
