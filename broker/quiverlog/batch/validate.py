"""A broker's checks of a client's batch before it stores it.

A bad batch is refused as a whole: stored, it would stop all readers of its partition. The broker
checks the rows with the functions that readers use.

`check_batch` costs as much as a CRC and returns what `check_rows`, which decompresses, will cost.
Both are pure: the second may run off the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa

from quiverlog.errors import BatchTooLarge, CorruptBatch, InvalidTimestamp, UnknownSchema
from quiverlog.limits import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_HEADER_BYTES,
    BATCH_ROWS_MAX,
    KIB,
    TIMESTAMP_AHEAD_MS_DEFAULT,
)

from . import rows
from .checksum import crc32c
from .header import (
    CRC_START,
    FLAG_CODEC_MASK,
    MAGIC,
    BatchHeader,
)
from .ipc_metadata import IpcMetadata
from .structure import check_structure

__all__ = ["ROWS_COST_INLINE_MAX", "CheckedBatch", "check_batch", "check_rows"]

ROWS_COST_INLINE_MAX: Final = 256 * KIB
"""A quarter of a millisecond with Zstandard, the slowest codec."""
_LAYOUT_COST_PART: Final = 32
_VALUES_COST_PART: Final = 4
"""Checking is this many times faster than decompressing, without and with the values."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PADDING: Final = bytes(BATCH_ALIGNMENT_BYTES)


class CheckedBatch(NamedTuple):
    header: BatchHeader
    message: memoryview
    metadata: IpcMetadata
    schema: pa.Schema
    rows_cost: int
    """In bytes decompressed or equivalent work."""


def check_batch(
    view: memoryview,
    *,
    schemas: Mapping[int, pa.Schema],
    bytes_max: int,
    full: bool,
    now_wall_us: int,
    behind_ms_max: int = -1,
    ahead_ms_max: int = TIMESTAMP_AHEAD_MS_DEFAULT,
) -> CheckedBatch:
    """Check one whole batch from a client, except its rows. Costs as much as its CRC.

    Args:
        full: whether `check_rows` will check values; only the cost depends on it.
        behind_ms_max, ahead_ms_max: how far rows may be from the broker's clock; -1: any distance.

    Raises:
        CorruptBatch: bytes, header and metadata contradict each other.
        BatchTooLarge: above `bytes_max`.
        UnknownSchema: no such schema id.
        InvalidTimestamp: too far from the broker's clock.
    """
    size = len(view)
    # Cheap checks first: an oversized batch must not cost a CRC.
    if size > bytes_max:
        raise BatchTooLarge(f"a batch of {size} bytes is above {bytes_max}.")
    if size < BATCH_HEADER_BYTES:
        raise CorruptBatch(f"a batch of {size} bytes has no header.")
    header = BatchHeader.unpack(view)
    _check_header(header, size)
    if crc32c(view[CRC_START:]) != header.crc32c:
        raise CorruptBatch("the batch's CRC does not match its bytes.")
    _check_meaning(header)
    _check_times(header, now_wall_us, behind_ms_max, ahead_ms_max)
    schema = schemas.get(header.schema_id)
    if schema is None:
        raise UnknownSchema(f"the topic has no schema {header.schema_id}.")
    message = view[BATCH_HEADER_BYTES:]
    metadata = check_structure(message, header, schema)
    end = metadata.body_at + metadata.body_bytes
    # Other bytes would be stored and sent, and belong to no row.
    if message[end:] != _PADDING[: -end % BATCH_ALIGNMENT_BYTES]:
        raise CorruptBatch("the batch is not zero-padded to a multiple of 64 bytes.")
    body_bytes = metadata.decoded_bytes or metadata.body_bytes
    cost = metadata.decoded_bytes + body_bytes // (_VALUES_COST_PART if full else _LAYOUT_COST_PART)
    return CheckedBatch(header, message, metadata, schema, cost)


def check_rows(batch: CheckedBatch, *, full: bool) -> None:
    """Check that readers can decode the rows (docs/adr/0012). Pure: may run in any thread."""
    rows.check_rows(batch.message, batch.metadata, batch.schema, full=full)


def _check_header(header: BatchHeader, size: int) -> None:
    # Magic and size come before the CRC: with others, it would cover the wrong bytes.
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic} is not {MAGIC}: not a batch, or a newer format.")
    if header.total_bytes != size:
        raise CorruptBatch(f"the batch claims {header.total_bytes} bytes and has {size}.")


def _check_meaning(header: BatchHeader) -> None:
    # No client writes control or transactional batches yet.
    if header.flags & ~FLAG_CODEC_MASK or header.reserved:
        raise CorruptBatch(
            f"flags {header.flags:#04x} or reserved field {header.reserved}: not for clients."
        )
    if not 0 < header.row_count <= BATCH_ROWS_MAX:
        raise CorruptBatch(f"a batch holds 1 to {BATCH_ROWS_MAX} rows, not {header.row_count}.")
    # All three, or none.
    if header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0:
        producer = (header.producer_id, header.producer_epoch, header.base_sequence)
        if producer != (-1, -1, -1):
            raise CorruptBatch(f"producer id, epoch and sequence {producer} do not go together.")
    if not 0 <= header.timestamp_min_us <= header.timestamp_max_us:
        raise CorruptBatch(
            f"timestamps {header.timestamp_min_us} to {header.timestamp_max_us} are no time span."
        )


def _check_times(
    header: BatchHeader, now_wall_us: int, behind_ms_max: int, ahead_ms_max: int
) -> None:
    ahead_us = header.timestamp_max_us - now_wall_us
    if ahead_us > ahead_ms_max * 1000 and ahead_ms_max >= 0:
        raise InvalidTimestamp(
            f"the batch's newest row has the time {_moment(header.timestamp_max_us)},"
            f" {ahead_us / 1e6:.3f} s in the future of the broker's clock ({_moment(now_wall_us)});"
            f" message.timestamp.after.max.ms of the topic is {ahead_ms_max}."
        )
    behind_us = now_wall_us - header.timestamp_min_us
    if behind_us > behind_ms_max * 1000 and behind_ms_max >= 0:
        raise InvalidTimestamp(
            f"the batch's oldest row has the time {_moment(header.timestamp_min_us)},"
            f" {behind_us / 1e6:.3f} s in the past of the broker's clock ({_moment(now_wall_us)});"
            f" message.timestamp.before.max.ms of the topic is {behind_ms_max}."
        )


def _moment(at_us: int) -> str:
    try:
        return f"{_EPOCH + timedelta(microseconds=at_us):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:  # Beyond the years of Python's datetime.
        return f"{at_us} us after 1970"
