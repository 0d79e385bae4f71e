"""Batches as tests encode and check them: in one call each."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from quiverlog.batch.codec import encode_batch
from quiverlog.batch.header import BatchHeader
from quiverlog.batch.validate import check_batch, check_rows
from quiverlog.types import Compression

__all__ = ["NO_PRODUCER", "encode_data", "validate_batch"]

NO_PRODUCER = (-1, -1, -1)


def encode_data(
    data: pa.RecordBatch,
    *,
    at_us: int,
    schema_id: int = 1,
    producer: tuple[int, int, int] = NO_PRODUCER,
    compression: Compression = Compression.NONE,
) -> bytearray:
    """One batch as it is sent; `producer` is (id, epoch, base sequence)."""
    producer_id, epoch, sequence = producer
    return encode_batch(
        data,
        schema_id=schema_id,
        timestamp_us=at_us,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def validate_batch(
    view: memoryview,
    *,
    schemas: Mapping[int, pa.Schema],
    bytes_max: int,
    full: bool,
    now_wall_us: int,
) -> BatchHeader:
    """Both steps of the broker's check at once, as for a small batch."""
    batch = check_batch(
        view, schemas=schemas, bytes_max=bytes_max, full=full, now_wall_us=now_wall_us
    )
    check_rows(batch, full=full)
    return batch.header
