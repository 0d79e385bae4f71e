"""The 64 bytes in front of every stored batch.

Owns the layout; everything is little-endian (docs/storage-format.md has the same drawing):

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
from typing import Final, NamedTuple

from quiverlog.limits import BATCH_HEADER_BYTES

MAGIC: Final = 1

FLAG_CONTROL: Final = 0x01
FLAG_TRANSACTIONAL: Final = 0x02
FLAG_CODEC_SHIFT: Final = 2
FLAG_CODEC_MASK: Final = 0x0C
"""Two bits: `types.Compression`."""
FLAGS_KNOWN: Final = FLAG_CONTROL | FLAG_TRANSACTIONAL | FLAG_CODEC_MASK

SIZE_OFFSET: Final = 12
SIZE_END: Final = 16
"""`size` counts the bytes from here on: a whole batch is `SIZE_END + size` bytes."""
CRC_OFFSET: Final = 16
CRC_START: Final = 20

_HEADER: Final = struct.Struct("<qiIIBBhqiIIIqq")
_STAMP: Final = struct.Struct("<qi")
_PEEK: Final = struct.Struct("<qiI")
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
    "peek",
    "stamp",
]


class BatchHeader(NamedTuple):
    """The header's fields, in the order in which they lie."""

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
        """Read a header at byte `at`; 64 bytes must be there (`struct.error` otherwise)."""
        return cls._make(_HEADER.unpack_from(buffer, at))

    def pack_into(self, buffer: bytearray | memoryview, at: int = 0) -> None:
        """Write the header at byte `at`."""
        _HEADER.pack_into(buffer, at, *self)

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole batch, header and padding included."""
        return SIZE_END + self.size

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last row."""
        return self.base_offset + self.row_count


def stamp(buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Write what the leader decides. Both fields lie before the CRC, which stays good."""
    _STAMP.pack_into(buffer, at, base_offset, leader_epoch)


def peek(buffer: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int, int]:
    """(base_offset, leader_epoch, total_bytes) at byte `at`; 16 bytes must be there."""
    base_offset, leader_epoch, size = _PEEK.unpack_from(buffer, at)
    return base_offset, leader_epoch, SIZE_END + size
