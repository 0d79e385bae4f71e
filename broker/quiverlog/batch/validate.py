"""The gate: what a broker checks before it stores a client's batch.

A bad batch is refused whole, with the reason. What has passed can be handed to every reader without
being looked at again; that is why the rows' layout is checked here, once, and not by each reader.

Compressed rows are not decompressed here unless `full` is asked for (it would stall the broker's
loop): their readers check the layout when they decompress.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from quiverlog.errors import BatchTooLarge, CorruptBatch, InvalidTimestamp, UnknownSchema
from quiverlog.limits import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_HEADER_BYTES,
    BATCH_ROWS_MAX,
    TIMESTAMP_AHEAD_MS_MAX,
)
from quiverlog.types import Compression

from .checksum import crc32c
from .header import (
    CRC_START,
    FLAG_CONTROL,
    FLAG_TRANSACTIONAL,
    FLAGS_KNOWN,
    MAGIC,
    BatchHeader,
)
from .structure import check_layout, check_structure, check_values

__all__ = ["validate_batch"]

_REFUSED_FLAGS: Final = ~FLAGS_KNOWN | FLAG_CONTROL | FLAG_TRANSACTIONAL
_TIMESTAMP_AHEAD_US_MAX: Final = TIMESTAMP_AHEAD_MS_MAX * 1_000
_PADDING: Final = bytes(BATCH_ALIGNMENT_BYTES)


def validate_batch(
    view: memoryview,
    *,
    schemas: Mapping[int, pa.Schema],
    bytes_max: int,
    full: bool,
    now_wall_us: int,
) -> BatchHeader:
    """Check one whole batch from a client.

    Args:
        schemas: the topic's schemas by id.
        bytes_max: the topic's `max.message.bytes`.
        full: check the values too (UTF-8, decimal digits), and look inside compressed rows.
        now_wall_us: the broker's clock, microseconds UTC.

    Raises:
        CorruptBatch: bytes, header and rows do not fit together.
        BatchTooLarge: above `bytes_max`.
        UnknownSchema: no such schema id.
        InvalidTimestamp: too far in the broker's future.
    """
    size = len(view)
    if size > bytes_max:
        raise BatchTooLarge(f"a batch of {size} bytes is above {bytes_max}.")
    if size < BATCH_HEADER_BYTES:
        raise CorruptBatch(f"a batch of {size} bytes has no header.")
    header = BatchHeader.unpack(view)
    _check_header(header, size)
    if crc32c(view[CRC_START:]) != header.crc32c:
        raise CorruptBatch("the batch's CRC does not match its bytes.")
    _check_meaning(header, now_wall_us)
    schema = schemas.get(header.schema_id)
    if schema is None:
        raise UnknownSchema(f"the topic has no schema {header.schema_id}.")
    message = view[BATCH_HEADER_BYTES:]
    metadata = check_structure(message, header, schema)
    end = metadata.body_at + metadata.body_bytes
    if message[end:] != _PADDING[: -end % BATCH_ALIGNMENT_BYTES]:
        raise CorruptBatch("the batch is not zero-padded to a multiple of 64 bytes.")
    if full:
        check_values(message, schema)
    elif metadata.compression is Compression.NONE:
        check_layout(message, schema)
    return header


def _check_header(header: BatchHeader, size: int) -> None:
    """What must hold before the CRC means anything."""
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic} is not {MAGIC}: not a batch, or a newer format.")
    if header.total_bytes != size:
        raise CorruptBatch(f"the batch claims {header.total_bytes} bytes and has {size}.")


def _check_meaning(header: BatchHeader, now_wall_us: int) -> None:
    if header.flags & _REFUSED_FLAGS or header.reserved:
        raise CorruptBatch(
            f"flags {header.flags:#04x} or reserved field {header.reserved}: not for clients."
        )
    if not 0 < header.row_count <= BATCH_ROWS_MAX:
        raise CorruptBatch(f"a batch holds 1 to {BATCH_ROWS_MAX} rows, not {header.row_count}.")
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    if min(producer) < 0 and producer != (-1, -1, -1):
        raise CorruptBatch(f"producer id, epoch and sequence {producer} do not go together.")
    if not 0 <= header.timestamp_min_us <= header.timestamp_max_us:
        raise CorruptBatch(
            f"timestamps {header.timestamp_min_us} to {header.timestamp_max_us} are no time span."
        )
    ahead_us = header.timestamp_max_us - now_wall_us
    if ahead_us > _TIMESTAMP_AHEAD_US_MAX:
        raise InvalidTimestamp(f"the newest row is {ahead_us // 1_000_000} s in the future.")
