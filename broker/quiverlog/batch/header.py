"""The 64 bytes in front of every stored batch.

Little-endian:

```
 0  i64 base_offset      stamped by the leader  } outside the CRC: a leader stamps a batch
 8  i32 leader_epoch     stamped by the leader  } without reading its rows again
12  u32 size             bytes that follow this field
16  u32 crc32c           over bytes 20..end
20  u8  magic = 1        21 u8 flags           22 i16 producer_epoch
24  i64 producer_id      32 i32 base_sequence  36 u32 row_count
40  u32 schema_id        44 u32 reserved (0)
48  i64 timestamp_min_us 56 i64 timestamp_max_us
64  Arrow IPC encapsulated record-batch message (no schema), zero-padded to a multiple of 64
```

A batch covers the offsets [base_offset, base_offset + row_count): offsets count rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from quiverlog.batch.checksum import crc32c
from quiverlog.limits import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    BATCH_ROWS_MAX,
)

MAGIC: Final = 1

FLAG_CONTROL: Final = 0x01
FLAG_TRANSACTIONAL: Final = 0x02
FLAG_CODEC_SHIFT: Final = 2
FLAG_CODEC_MASK: Final = 0x0C
FLAGS_KNOWN: Final = FLAG_CONTROL | FLAG_TRANSACTIONAL | FLAG_CODEC_MASK

SIZE_OFFSET: Final = 12
SIZE_END: Final = 16
CRC_OFFSET: Final = 16
CRC_START: Final = 20

_HEADER: Final = struct.Struct("<qiIIBBhqiIIIqq")
_STAMP: Final = struct.Struct("<qi")
_PEEK: Final = struct.Struct("<qiI")
_LINK: Final = struct.Struct("<qiI20xI")
_MAGIC_AT: Final = 20
assert _HEADER.size == BATCH_HEADER_BYTES

__all__ = [
    "CRC_OFFSET",
    "CRC_START",
    "FLAGS_KNOWN",
    "FLAG_CODEC_MASK",
    "FLAG_CODEC_SHIFT",
    "FLAG_CONTROL",
    "FLAG_TRANSACTIONAL",
    "MAGIC",
    "SIZE_END",
    "SIZE_OFFSET",
    "BatchHeader",
    "link",
    "magic_positions",
    "peek",
    "stamp",
    "stamp_times",
    "whole_batch",
]


class BatchHeader(NamedTuple):
    base_offset: int
    leader_epoch: int
    size: int
    crc32c: int
    magic: int
    flags: int
    producer_epoch: int
    producer_id: int
    base_sequence: int
    row_count: int
    schema_id: int
    reserved: int
    timestamp_min_us: int
    timestamp_max_us: int

    @classmethod
    def unpack(cls, buffer: bytes | bytearray | memoryview, at: int = 0) -> BatchHeader:
        # Like `_make`, without its call and its count of the fields.
        return tuple.__new__(cls, _HEADER.unpack_from(buffer, at))

    def pack_into(self, buffer: bytearray | memoryview, at: int = 0) -> None:
        _HEADER.pack_into(buffer, at, *self)

    @property
    def total_bytes(self) -> int:
        return SIZE_END + self.size

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.row_count

    @property
    def is_compressed(self) -> bool:
        return bool(self.flags & FLAG_CODEC_MASK)

    @property
    def is_plausible(self) -> bool:
        """True when a broker could have stored this, for bytes without a checked checksum."""
        return (
            self.magic == MAGIC
            and not self.flags & ~FLAGS_KNOWN
            and not self.reserved
            and 0 < self.row_count <= BATCH_ROWS_MAX
            and BATCH_HEADER_BYTES <= self.total_bytes <= BATCH_BYTES_MAX
            and not self.total_bytes % BATCH_ALIGNMENT_BYTES
            and self.base_offset >= 0
            and self.leader_epoch >= -1
            and 0 <= self.timestamp_min_us <= self.timestamp_max_us
            # All three belong to an idempotent producer, or none.
            and (self.producer_id >= 0) == (self.producer_epoch >= 0) == (self.base_sequence >= 0)
        )


# --- batch after batch ------------------------------------------------------------------------
def whole_batch(header: BatchHeader, offset: int, room: int) -> bool:
    return (
        header.base_offset == offset
        and header.magic == MAGIC
        and BATCH_HEADER_BYTES <= header.total_bytes <= room
        and not header.total_bytes % BATCH_ALIGNMENT_BYTES
        and 0 < header.row_count <= BATCH_ROWS_MAX
    )


def link(buffer: bytes | bytearray | memoryview, at: int, offset: int, room: int) -> int:
    """Return (rows << 32 | bytes) of the batch at byte `at` that begins with row `offset`; 0: none.

    40 bytes must be there, and the whole batch must fit `room` bytes.
    """
    base_offset, _, after, rows = _LINK.unpack_from(buffer, at)
    total: int = SIZE_END + after
    if base_offset != offset or not rows or not BATCH_HEADER_BYTES <= total <= room:
        return 0
    if total % BATCH_ALIGNMENT_BYTES:
        return 0
    return int(rows) << 32 | total


def magic_positions(chunk: bytes | memoryview) -> Iterator[int]:
    magics = bytes(chunk[_MAGIC_AT::BATCH_ALIGNMENT_BYTES])
    found = magics.find(MAGIC)  # One search in C over every 64th byte.
    while found >= 0:
        yield found * BATCH_ALIGNMENT_BYTES
        found = magics.find(MAGIC, found + 1)


def stamp(buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Write the leader's fields. Both are before the CRC's range, and the CRC stays valid."""
    _STAMP.pack_into(buffer, at, base_offset, leader_epoch)


def stamp_times(view: memoryview, header: BatchHeader, at_us: int) -> BatchHeader:
    """Set the time of all rows, which is in the CRC's range: the CRC is computed again."""
    timed = header._replace(timestamp_min_us=at_us, timestamp_max_us=at_us)
    timed.pack_into(view)
    # After `pack_into`: the CRC covers the new times.
    stamped = timed._replace(crc32c=crc32c(view[CRC_START:]))
    stamped.pack_into(view)
    return stamped


def peek(buffer: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int, int]:
    """Return (base_offset, leader_epoch, total_bytes); 16 bytes must be there."""
    base_offset, leader_epoch, size = _PEEK.unpack_from(buffer, at)
    return base_offset, leader_epoch, SIZE_END + size
