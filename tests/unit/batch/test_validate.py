"""The gate: every way in which a batch can be wrong is refused with its reason."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

from quiverlog.batch.codec import decode_batch, decoded_bytes, encode_batch, write_crc
from quiverlog.batch.header import BatchHeader
from quiverlog.batch.ipc_metadata import read_ipc_metadata
from quiverlog.batch.schema import SchemaHistory, normalize_schema
from quiverlog.batch.validate import ROWS_COST_INLINE_MAX, check_batch
from quiverlog.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidTimestamp,
    QuiverlogError,
    UnknownSchema,
)
from quiverlog.limits import BATCH_DECODED_BYTES_MAX, TIMESTAMP_AHEAD_MS_DEFAULT
from quiverlog.types import Compression
from tests.support.batches import validate_batch

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
    write_crc(batch)
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
        (
            {"timestamp_max_us": NOW + TIMESTAMP_AHEAD_MS_DEFAULT * 1000 + 1},
            InvalidTimestamp,
            "future",
        ),
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
    check(changed(timestamp_max_us=NOW + TIMESTAMP_AHEAD_MS_DEFAULT * 1000))


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
    write_crc(batch)
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
    write_crc(batch)
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
    write_crc(batch)
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
    write_crc(batch)
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
    write_crc(batch)
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


@pytest.mark.parametrize("compression", Compression)
def test_a_lie_is_caught_at_the_door_and_by_its_reader(compression: Compression) -> None:
    """A hostile broker may send what no broker of ours has let in."""
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
    batch = encode_batch(lying, schema_id=1, timestamp_us=NOW, compression=compression)
    header = BatchHeader.unpack(batch)
    for full in (False, True):
        with pytest.raises(CorruptBatch):
            check(batch, full=full)
    for columns in (None, ["text"]):
        with pytest.raises(CorruptBatch):
            decode_batch(memoryview(batch), header, HISTORY, columns)
    if compression:
        # Columns not asked for stay compressed and is not looked at.
        assert decode_batch(memoryview(batch), header, HISTORY, ["id"]).num_rows == 3


# --- what no reader could use ---------------------------------------------------------------------
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_broken_compression_under_a_good_checksum(compression: Compression) -> None:
    def scramble(batch: bytearray, body_at: int, buffers: tuple[int, ...]) -> None:
        at, length = body_at + buffers[2 * 4], buffers[2 * 4 + 1]  # the text's bytes
        batch[at : at + 8] = (1 << 20).to_bytes(8, "little")
        batch[at + 8 : at + length] = b"\xa5" * (length - 8)

    batch = tampered(compression, scramble)
    with pytest.raises(CorruptBatch):
        check(batch)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_buffer_that_decompresses_to_another_size(
    compression: Compression, difference: int
) -> None:
    rows = pa.record_batch([pa.array(["a" * 4_000] * 30)], names=["x"])
    batch = encode_batch(rows, schema_id=1, timestamp_us=NOW, compression=compression)
    metadata = read_ipc_metadata(memoryview(batch)[64:])
    at = 64 + metadata.body_at + metadata.buffers[2 * 2]
    assert int.from_bytes(batch[at : at + 8], "little") == 120_000
    batch[at : at + 8] = (120_000 + difference).to_bytes(8, "little")
    write_crc(batch)
    schemas = SchemaHistory({1: rows.schema})
    with pytest.raises(CorruptBatch):
        validate_batch(
            memoryview(batch), schemas=schemas, bytes_max=1 << 20, full=False, now_wall_us=NOW
        )
    with pytest.raises(CorruptBatch):
        decode_batch(memoryview(batch), BatchHeader.unpack(batch), schemas)


MAP = normalize_schema(pa.schema([("m", pa.map_(pa.string(), pa.int32()))]))
ENTRY = pa.struct([("key", pa.binary()), ("value", pa.int32())])


def map_batch(entries: pa.StructArray, compression: Compression) -> bytearray:
    """What Arrow would not put together as a map: the same buffers as a list of structs."""
    lists = pa.ListArray.from_arrays(pa.array([0, len(entries)], pa.int32()), entries)
    data = pa.record_batch([lists], names=["m"])
    return encode_batch(data, schema_id=1, timestamp_us=NOW, compression=compression)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("what", ["null key", "null entry"])
def test_a_map_that_no_reader_could_put_together(compression: Compression, what: str) -> None:
    keys = pa.array([b"a", None if what == "null key" else b"b"])
    mask = pa.array([False, what == "null entry"])
    values = pa.array([1, 2], pa.int32())
    entries = pa.StructArray.from_arrays([keys, values], names=["key", "value"], mask=mask)
    batch = map_batch(entries, compression)
    schemas = SchemaHistory({1: MAP})
    for full in (False, True):
        with pytest.raises(CorruptBatch, match="map"):
            validate_batch(
                memoryview(batch), schemas=schemas, bytes_max=1 << 20, full=full, now_wall_us=NOW
            )
    with pytest.raises(CorruptBatch, match="map"):
        decode_batch(memoryview(batch), BatchHeader.unpack(batch), schemas)
    good_map = map_batch(pa.array([(b"a", 1), (b"b", None)], ENTRY), compression)
    validate_batch(
        memoryview(good_map), schemas=schemas, bytes_max=1 << 20, full=True, now_wall_us=NOW
    )
    got = decode_batch(memoryview(good_map), BatchHeader.unpack(good_map), schemas)
    assert got.to_pylist() == [{"m": [("a", 1), ("b", None)]}]


STRUCT = pa.struct([pa.field("a", pa.string(), nullable=False), ("b", pa.int8())])
LIST = pa.list_(pa.field("element", pa.string(), nullable=False))


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("parent_null", [True, False])
@pytest.mark.parametrize("shape", ["struct", "list", "list of struct", "map value"])
def test_nested_nulls_where_none_may_be(
    compression: Compression, parent_null: bool, shape: str
) -> None:
    """Under a null parent a child may hold anything, which Arrow's writers make use of."""
    mask = pa.array([parent_null, False])
    child = pa.array([None, "x"])
    plain = pa.StructArray.from_arrays([child, pa.array([1, 2], pa.int8())], ["a", "b"], mask=mask)
    offsets = pa.array([0, 1, 2], pa.int32())
    strict_map = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    stored, array = {
        "struct": (STRUCT, plain),
        "list": (LIST, pa.ListArray.from_arrays(offsets, child, mask=mask)),
        "list of struct": (
            pa.list_(pa.field("element", STRUCT)),
            pa.ListArray.from_arrays(offsets, plain),
        ),
        "map value": (
            strict_map,
            pa.ListArray.from_arrays(
                offsets,
                pa.StructArray.from_arrays([pa.array(["k", "l"]), child], ["key", "value"]),
                mask=mask,
            ),
        ),
    }[shape]
    schemas = SchemaHistory({1: pa.schema([("x", stored)])})
    data = pa.record_batch([array], names=["x"])
    batch = encode_batch(data, schema_id=1, timestamp_us=NOW, compression=compression)
    decode_batch(memoryview(batch), BatchHeader.unpack(batch), schemas).validate(full=True)

    def at_the_door() -> None:
        validate_batch(
            memoryview(batch), schemas=schemas, bytes_max=1 << 20, full=False, now_wall_us=NOW
        )

    if parent_null:
        at_the_door()
    else:
        with pytest.raises(CorruptBatch, match="may not be null"):
            at_the_door()


def test_lists_that_do_not_begin_at_their_first_value() -> None:
    """Our encoder writes no such offsets, a stranger's may."""
    inner = pa.map_(pa.string(), pa.field("value", STRUCT, nullable=False))
    rows = [[[], [("k", {"a": "x", "b": 1})]], [[("l", {"a": "y", "b": 2})]]]
    schema = normalize_schema(pa.schema([("x", pa.list_(pa.list_(inner)))]))
    data = pa.record_batch([pa.array([[r] for r in rows], schema[0].type)], schema=schema)
    batch = encode_batch(data, schema_id=1, timestamp_us=NOW)
    metadata = read_ipc_metadata(memoryview(batch)[64:])
    for buffer in (1, 3):  # offsets of the outer and of the middle lists
        at = 64 + metadata.body_at + metadata.buffers[2 * buffer]
        batch[at : at + 4] = (1).to_bytes(4, "little")
    write_crc(batch)
    schemas = SchemaHistory({1: schema})
    validate_batch(
        memoryview(batch), schemas=schemas, bytes_max=1 << 20, full=True, now_wall_us=NOW
    )
    got = decode_batch(memoryview(batch), BatchHeader.unpack(batch), schemas)
    assert got.to_pylist() == [{"x": []}, {"x": [rows[1]]}]


def test_buffers_of_views_are_refused() -> None:
    views = pa.record_batch([pa.array(["long enough to lie outside"], pa.string_view())], ["x"])
    batch = encode_batch(views, schema_id=1, timestamp_us=NOW)
    schemas = SchemaHistory({1: pa.schema([("x", pa.string())])})
    with pytest.raises(CorruptBatch, match="variadic"):
        validate_batch(
            memoryview(batch), schemas=schemas, bytes_max=1 << 20, full=False, now_wall_us=NOW
        )


def test_the_cost_of_checking_rows_is_known_before() -> None:
    ints = pa.record_batch([pa.array(range(100_000))], names=["x"])
    schemas = SchemaHistory({1: ints.schema})

    def cost(compression: Compression, *, full: bool) -> int:
        batch = encode_batch(ints, schema_id=1, timestamp_us=NOW, compression=compression)
        found = check_batch(
            memoryview(batch), schemas=schemas, bytes_max=1 << 25, full=full, now_wall_us=NOW
        )
        assert decoded_bytes(memoryview(batch), found.header, ints.schema) == (
            800_000 if compression else 0
        )
        return found.rows_cost

    for compression in (Compression.LZ4, Compression.ZSTD):
        assert cost(compression, full=False) > 800_000 > ROWS_COST_INLINE_MAX
    assert cost(Compression.NONE, full=False) < cost(Compression.NONE, full=True) < 800_000


@pytest.mark.parametrize(
    "element",
    [pa.null(), pa.struct([]), pa.struct([("a", pa.struct([("b", pa.null())]))])],
    ids=str,
)
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_values_without_bytes_are_bounded(element: pa.DataType, compression: Compression) -> None:
    """A batch of 256 bytes took 16 GiB of a reader once its nulls were shown as int64."""
    schema = pa.schema([("id", pa.int64()), ("a", pa.list_(pa.field("element", element)))])

    def batch(count: int) -> bytearray:
        offsets = pa.array([0, count], pa.int32()).buffers()[1]
        a = pa.Array.from_buffers(
            schema.field("a").type, 1, [None, offsets], children=[_weightless(element, count)]
        )
        data = pa.RecordBatch.from_arrays([pa.array([1]), a], schema=schema)
        return encode_batch(data, schema_id=1, timestamp_us=NOW, compression=compression)

    def passes(encoded: bytearray) -> None:
        validate_batch(
            memoryview(encoded),
            schemas={1: schema},
            bytes_max=1 << 20,
            full=False,
            now_wall_us=NOW,
        )

    passes(batch(1_000_000))
    for count in (BATCH_DECODED_BYTES_MAX + 1, 2**31 - 1):
        with pytest.raises(CorruptBatch, match="take no bytes"):
            passes(batch(count))


def _weightless(data_type: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_null(data_type):
        return pa.nulls(count)
    children = [_weightless(field.type, count) for field in data_type]
    return pa.Array.from_buffers(data_type, count, [None], children=children)


def test_columns_that_the_rows_lack_share_their_memory() -> None:
    """Rows times added columns are not bounded by the bytes of a batch."""
    stored = pa.schema([("id", pa.bool_()), ("nothing", pa.null())])
    newer = pa.schema([*stored, *((f"c{i}", pa.int64()) for i in range(200))])
    newer = newer.set(1, pa.field("nothing", pa.int64()))
    inside = pa.struct([("a", pa.bool_()), *((f"x{i}", pa.int64()) for i in range(200))])
    stored = stored.append(pa.field("s", pa.struct([("a", pa.bool_())])))
    newer = newer.insert(2, pa.field("s", inside))
    rows = 1 << 20
    s = pa.StructArray.from_arrays(
        [pa.array([True] * rows)], ["a"], mask=pa.array([False, True] * (rows // 2))
    )
    data = pa.RecordBatch.from_arrays(
        [pa.nulls(rows, pa.bool_()), pa.nulls(rows), s], schema=stored
    )
    batch = encode_batch(data, schema_id=1, timestamp_us=NOW, compression=Compression.ZSTD)
    history = SchemaHistory({1: stored, 2: newer})
    before = pa.total_allocated_bytes()
    found = decode_batch(memoryview(batch), BatchHeader.unpack(batch), history)
    assert pa.total_allocated_bytes() - before < 3 * 8 * rows
    assert found.schema == newer
    assert found.column("c199").null_count == found.column("nothing").null_count == rows
    found.validate(full=True)
    shown = {"a": True, **{f"x{i}": None for i in range(200)}}
    assert found.column("s").slice(rows - 2).to_pylist() == [shown, None]
