"""Arrow rows to stored batches and back.

A batch is encoded once, by its producer. Decoded arrays point into the bytes of an uncompressed
batch, which must stay unchanged as long as the arrays live. A decoder trusts no earlier check of
what its own safety needs (docs/adr/0012).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from quiverlog.errors import BatchTooLarge, CorruptBatch, InvalidArgument
from quiverlog.limits import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_BYTES_MAX,
    BATCH_DECODED_BYTES_MAX,
    BATCH_HEADER_BYTES,
    BATCH_ROWS_MAX,
    KIB,
)
from quiverlog.types import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Compression,
)

from . import rows
from .checksum import crc32c
from .evolution import SchemaHistory, project
from .header import (
    CRC_OFFSET,
    CRC_START,
    FLAG_CODEC_MASK,
    FLAG_CODEC_SHIFT,
    MAGIC,
    SIZE_END,
    BatchHeader,
    peek,
)
from .held_values import first_wrong_value
from .normalize import conform
from .structure import check_structure, plan_of

__all__ = [
    "Encoded",
    "check_crc",
    "decode_batch",
    "decoded_bytes",
    "encode_batch",
    "split_batches",
]

_PADDING: Final = bytes(BATCH_ALIGNMENT_BYTES)
_OVERHEAD_BYTES: Final = 4_096
_OVERHEAD_COLUMN_BYTES: Final = 256
"""A message larger than its rows' bytes plus this has rows of other slices."""
_IN_PLACE_BYTES_MIN: Final = 256 * KIB
"""Below this, copying the message after its header is faster than encoding in place."""
_COLUMN_BYTES_PARALLEL: Final = 64 * KIB
"""Below this, a column's way to another thread takes longer than compressing it."""
_OPTIONS: Final = {
    (compression, threads): pa.ipc.IpcWriteOptions(
        compression=pa.Codec(name, compression_level=level), use_threads=threads
    )
    for compression, name, level in (
        (Compression.LZ4, "lz4", None),
        (Compression.ZSTD, "zstd", 1),
    )
    for threads in (False, True)
}


Encoded = bytearray | memoryview


# --- encoding -------------------------------------------------------------------------------------
def encode_batch(
    data: pa.RecordBatch,
    *,
    schema_id: int,
    timestamp_us: int | tuple[int, int],
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> Encoded:
    """Encode rows, which must already have the schema of `schema_id`.

    The result is writable: a retry may need other sequence numbers and another checksum.
    `timestamp_us`: when the batch was closed, or the first and last moment of its rows.

    Raises InvalidArgument: no rows, or more than a batch may hold; BatchTooLarge: above the hard
    bound, compressed or not.
    """
    row_count = data.num_rows
    if not 0 < row_count <= BATCH_ROWS_MAX:
        raise InvalidArgument(f"a batch holds 1 to {BATCH_ROWS_MAX} rows, not {row_count}.")
    # Otherwise a small batch could cost every reader any amount of memory.
    if compression and data.nbytes > BATCH_DECODED_BYTES_MAX:
        raise BatchTooLarge(
            f"{row_count} rows take {data.nbytes} bytes before they are compressed."
        )
    batch = _body(data, compression)
    total = len(batch)
    if total > BATCH_BYTES_MAX:
        raise BatchTooLarge(
            f"{row_count} rows take {total} bytes, a batch at most {BATCH_BYTES_MAX}."
        )
    low, high = (timestamp_us, timestamp_us) if isinstance(timestamp_us, int) else timestamp_us
    header = BatchHeader(
        base_offset=0,
        leader_epoch=0,
        size=total - SIZE_END,
        crc32c=0,
        magic=MAGIC,
        flags=compression << FLAG_CODEC_SHIFT,
        producer_epoch=producer_epoch,
        producer_id=producer_id,
        base_sequence=base_sequence,
        row_count=row_count,
        schema_id=schema_id,
        reserved=0,
        timestamp_min_us=low,
        timestamp_max_us=high,
    )
    header.pack_into(batch)  # Before the checksum, which covers most of it.
    write_crc(batch)
    return batch


def write_crc(batch: Encoded) -> None:
    crc = crc32c(memoryview(batch)[CRC_START:])
    batch[CRC_OFFSET:CRC_START] = crc.to_bytes(4, "little")


def _body(data: pa.RecordBatch, compression: Compression) -> Encoded:
    if compression is Compression.NONE and data.nbytes >= _IN_PLACE_BYTES_MIN:
        size = pa.ipc.get_record_batch_size(data)
        return _in_place(_trimmed(data) if _is_foreign(data, size) else data)
    message = _serialize(data, compression)
    if _is_foreign(data, len(message)):
        message = _serialize(_trimmed(data), compression)
    padding = -len(message) % BATCH_ALIGNMENT_BYTES
    batch = bytearray().join((bytes(BATCH_HEADER_BYTES), message, _PADDING[:padding]))
    assert len(batch) == BATCH_HEADER_BYTES + len(message) + padding
    return batch


def _in_place(data: pa.RecordBatch) -> memoryview:
    """Encode in Arrow's warm memory, with the header's room in front.

    pyarrow writes a message to a given place only in streams: the stream's schema message goes
    where the header will be, and before it.
    """
    schema_bytes = data.schema.serialize().size
    size = pa.ipc.get_record_batch_size(data)
    total = BATCH_HEADER_BYTES + size + -size % BATCH_ALIGNMENT_BYTES
    before = BATCH_HEADER_BYTES + -schema_bytes % BATCH_ALIGNMENT_BYTES
    begin = before + schema_bytes - BATCH_HEADER_BYTES
    memory = memoryview(pa.allocate_buffer(begin + total + BATCH_ALIGNMENT_BYTES)).cast("B")
    sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory[before:]))
    with pa.ipc.new_stream(sink, data.schema) as stream:
        stream.write_batch(data)
        assert before + sink.tell() == begin + BATCH_HEADER_BYTES + size
    batch = memory[begin : begin + total]
    batch[:BATCH_HEADER_BYTES] = bytes(BATCH_HEADER_BYTES)
    batch[BATCH_HEADER_BYTES + size :] = bytes(total - BATCH_HEADER_BYTES - size)
    return batch


def _is_foreign(data: pa.RecordBatch, size: int) -> bool:
    own = data.nbytes + _OVERHEAD_BYTES + _OVERHEAD_COLUMN_BYTES * data.num_columns
    # Below the overhead, the metadata alone may be larger than the rows.
    return size > _OVERHEAD_BYTES and size > own


def _trimmed(data: pa.RecordBatch) -> pa.RecordBatch:
    """pyarrow trims slices when it writes them, except nested columns whose rows in the slice are
    all empty: then the whole child of the original array would be written."""
    columns = [
        pa.concat_arrays([column, column.slice(0, 0)])
        if pa.types.is_nested(column.type)
        else column
        for column in data.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=data.schema)


def _serialize(data: pa.RecordBatch, compression: Compression) -> memoryview:
    if compression is Compression.NONE:
        return memoryview(data.serialize())
    # pyarrow compresses only in its stream writer: write a stream, use its second message.
    sink = pa.BufferOutputStream()
    options = _OPTIONS[compression, data.nbytes > _COLUMN_BYTES_PARALLEL * data.num_columns]
    with pa.ipc.new_stream(sink, data.schema, options=options) as writer:
        writer.write_batch(data)
        end = sink.tell()
    start = data.schema.serialize().size
    return memoryview(sink.getvalue())[start:end]


# --- decoding -------------------------------------------------------------------------------------
def split_batches(body: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    at, end = 0, len(body)
    while at < end:
        if end - at < BATCH_HEADER_BYTES:
            raise CorruptBatch(f"{end - at} bytes are left, a batch has {BATCH_HEADER_BYTES}.")
        _, _, total = peek(body, at)
        if total < BATCH_HEADER_BYTES or total > end - at:
            raise CorruptBatch(f"a batch claims {total} bytes where {end - at} are left.")
        yield BatchHeader.unpack(body, at), body[at : at + total]
        at += total


def check_crc(batch: memoryview, header: BatchHeader) -> None:
    if crc32c(batch[CRC_START:]) != header.crc32c:
        raise CorruptBatch(f"CRC mismatch in the batch at offset {header.base_offset}.")


def decode_batch(
    batch: memoryview,
    header: BatchHeader,
    schemas: SchemaHistory,
    columns: Sequence[str] | None = None,
    *,
    verify_crc: bool = True,
    reader_schema: pa.Schema | None = None,
    start: int = 0,
    stop: int | None = None,
) -> pa.RecordBatch:
    """Decode one stored batch, or rows of it, into the reader's schema.

    `columns`: only these, in this order. `reader_schema`: None is the topic's newest. Rows [start,
    stop) are counted in the batch.

    Raises CorruptBatch: the CRC does not match, the bytes contradict the header, or a row has a
    value that its stored type does not hold (`column`, `row`); UnknownSchema; InvalidArgument: no
    such column; IncompatibleSchema: the schema does not widen to `reader_schema`.
    """
    assert len(batch) == header.total_bytes, "one batch, whole, and its own header"
    if verify_crc:
        check_crc(batch, header)
    # Unknown flags may change the meaning of the rows, so they are refused, never ignored.
    if header.flags & ~FLAG_CODEC_MASK:
        raise CorruptBatch(f"its flags {header.flags:#04x} are unknown to this version.")
    stored = schemas.schema(header.schema_id)
    if columns is None:
        target = schemas.current if reader_schema is None else reader_schema
    elif reader_schema is None:
        target = schemas.projected(columns)
    else:
        target = project(reader_schema, columns)
    # Before the rows: an unreadable schema fails without decoding anything.
    if reader_schema is not None:
        schemas.check_readable(header.schema_id, reader_schema)
    data = read_rows(batch, header, stored, target)
    if start or (stop is not None and stop < header.row_count):
        data = data.slice(start, None if stop is None else stop - start)
    _check_values(data, stored, target, start)
    return conform(data, target)


def _check_values(data: pa.RecordBatch, stored: pa.Schema, target: pa.Schema, start: int) -> None:
    """Check values before the cast: in a wider type a wrong value may look right."""
    wanted = set(target.names)
    for name in plan_of(stored).questionable & wanted:
        column = data.column(name) if name in data.schema.names else None
        wrong = None if column is None else first_wrong_value(column)
        if column is not None and wrong is not None:
            row = start + wrong.row
            raise CorruptBatch(
                f"column {name!r} ({column.type}) of row {row} holds {wrong.shown}, which "
                f"{wrong.why}.",
                column=name,
                row=row,
            )


def read_rows(
    batch: memoryview, header: BatchHeader, stored: pa.Schema, target: pa.Schema
) -> pa.RecordBatch:
    # Again, although the broker has checked it: the file may have been damaged since.
    message = batch[BATCH_HEADER_BYTES:]
    metadata = check_structure(message, header, stored)
    if target.equals(stored):
        return rows.read_rows(message, metadata, stored)
    wanted = set(target.names)
    columns = [index for index, name in enumerate(stored.names) if name in wanted]
    if not columns or len(columns) == len(stored):
        return rows.read_rows(message, metadata, stored)
    return rows.read_rows(message, metadata, stored, columns)


def decoded_bytes(batch: memoryview, header: BatchHeader, stored: pa.Schema) -> int:
    """Return the bytes that decoding will allocate: 0 for an uncompressed batch."""
    return check_structure(batch[BATCH_HEADER_BYTES:], header, stored).decoded_bytes
