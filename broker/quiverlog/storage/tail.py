"""Torn or damaged: what a checksum that does not match at the end of a file means.

Owns one judgement. A write that a crash interrupted leaves the file shorter than it should be or,
on some file systems, with zeros where sectors never arrived. Bytes that are there but wrong were
damaged later: they may have been acknowledged, so they are reported and kept, never cut
(replication rule 13).
"""

from __future__ import annotations

from typing import Final

from quiverlog.storage.byte_source import BufferBytes, ByteSource

__all__ = ["SECTOR_BYTES", "looks_unwritten"]

SECTOR_BYTES: Final = 512
_UNWRITTEN_BYTES_MIN: Final = 128
"""More zeros than padding (63 bytes) can explain."""


def looks_unwritten(source: ByteSource | memoryview, start: int, end: int) -> bool:
    """True when the bytes [start, end) are zero, all or from their last sector boundary on."""
    if isinstance(source, memoryview):
        source = BufferBytes(source)
    assert 0 <= start < end, "no bytes look like anything"
    last = (end - 1) // SECTOR_BYTES * SECTOR_BYTES
    if end - last < _UNWRITTEN_BYTES_MIN:
        last -= SECTOR_BYTES
    start = max(start, last)
    return not any(source.read(start, end - start))
