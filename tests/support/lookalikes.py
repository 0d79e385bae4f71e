"""Batches whose payload holds bytes that are whole batches: header, offset, epoch, checksum right.

Owns the ways in which such bytes can imitate the log around them: batches that would follow their
carrier, or lie inside of it and lead on to the true next one, or lie at every place where a wrong
size could lead.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import CRC_START, BatchHeader
from tests.support.batches import encode_data

__all__ = ["KINDS", "SCHEMA", "batch_of_rows", "carrier", "imitation"]

SCHEMA: Final = pa.schema([("value", pa.int64()), ("bytes", pa.binary())])
KINDS: Final = ("none", "follow", "inside", "joined", "copies", "carpet", "carpet of rows")
_TIME_US: Final = 1_000_000_000_000_000
_MARKER: Final = b"the payload begins here"


def imitation(offset: int, rows: int, epoch: int, blocks: int = 1) -> bytes:
    """A batch without Arrow rows, good enough for code that looks at headers and checksums."""
    data = bytearray(b"\xab" * (64 * blocks))
    size = len(data) - 16
    fields = (offset, epoch, size, 0, 1, 0, -1, -1, -1, rows, 1, 0, _TIME_US, _TIME_US)
    BatchHeader._make(fields).pack_into(data)
    header = BatchHeader._make(fields)._replace(crc32c=crc32c(memoryview(data)[CRC_START:]))
    header.pack_into(data)
    return bytes(data)


def batch_of_rows(first_value: int, rows: int, payload: bytes = b"") -> bytearray:
    """A stored batch; `payload` lies at a multiple of 64 and ends where the batch does."""
    values = pa.array(range(first_value, first_value + rows), pa.int64())

    def encoded(data: bytes) -> bytearray:
        columns = [values, pa.array([data] + [b""] * (rows - 1), pa.binary())]
        return bytearray(encode_data(pa.record_batch(columns, schema=SCHEMA), at_us=_TIME_US))

    if not payload:
        return encoded(bytes([first_value % 251]) * (first_value % 180))
    at = bytes(encoded(_MARKER)).index(_MARKER)
    batch = encoded(bytes(-at % 64) + payload)
    assert bytes(batch).index(payload) % 64 == 0
    return batch


def carrier(
    kind: str, first_value: int, rows: int, offset: int, epoch: int, blocks: int
) -> bytearray:
    """A batch of `rows` rows that will be stored at `offset`, with imitations in its payload."""
    behind = offset + rows
    if kind == "none":
        payload = b""
    elif kind == "follow":  # As if the batch ended earlier, and the log went on.
        payload = b"".join(imitation(behind + n, 1, epoch, 2) for n in range(blocks))
    elif kind == "inside":
        payload = imitation(offset + 1, 1, epoch) + imitation(offset + 2, 1, epoch, blocks)
        payload += b"\x07" * 192
    elif kind == "joined":  # The chain goes on with the batch that truly follows.
        payload = b"".join(imitation(offset + n, 1, epoch, blocks) for n in range(1, rows))
    elif kind == "copies":
        payload = imitation(offset + 1, rows, epoch, 2) * blocks
    elif kind == "carpet":
        payload = imitation(behind, 1, epoch) * (8 * blocks)
    else:
        assert kind == "carpet of rows"
        payload = b"".join(imitation(behind + n, 1, epoch) for n in range(8 * blocks))
    return batch_of_rows(first_value, rows, payload)
