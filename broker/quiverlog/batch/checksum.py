"""CRC-32C (Castagnoli), as iSCSI defines it: the checksum of stored bytes.

The only module that imports the library for it (docs/adr/0002).
"""

from __future__ import annotations

from fastcrc.crc32 import iscsi

__all__ = ["crc32c"]


def crc32c(buffer: bytes | bytearray | memoryview, initial: int = 0) -> int:
    """Return the checksum of `buffer`; `initial` is the checksum of the bytes before it."""
    return iscsi(buffer, initial)
