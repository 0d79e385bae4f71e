"""Encoding a batch as tests name its producer: one tuple instead of three arguments."""

from __future__ import annotations

import pyarrow as pa

from quiverlog.batch.codec import encode_batch
from quiverlog.types import Compression

__all__ = ["NO_PRODUCER", "encode_data"]

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
