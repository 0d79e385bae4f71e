"""CRC-32C (Castagnoli), as iSCSI defines it: the checksum of every stored byte.

The only module that knows which library computes it (docs/adr/0002 says why this one).
"""

from __future__ import annotations

from fastcrc.crc32 import iscsi

__all__ = ["crc32c"]


def crc32c(buffer: bytes | bytearray | memoryview, initial: int = 0) -> int:
    """Checksum of `buffer`; `initial` is the checksum of the bytes in front of it."""
    return iscsi(buffer, initial)
