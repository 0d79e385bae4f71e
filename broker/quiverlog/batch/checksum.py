"""CRC-32C (Castagnoli), as iSCSI defines it; only here is its library imported (docs/adr/0002)."""

from __future__ import annotations

from fastcrc.crc32 import iscsi

__all__ = ["crc32c"]


def crc32c(buffer: bytes | bytearray | memoryview, initial: int = 0) -> int:
    return iscsi(buffer, initial)
