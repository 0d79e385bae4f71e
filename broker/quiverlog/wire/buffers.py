"""Memory for large frames, reused once no view of it is left (decoded Arrow arrays keep views).

A new buffer of a mebibyte costs as much in page faults as receiving into it.

Anonymous mappings get real pages only as bytes arrive: a peer that announces 64 MiB and sends
nothing costs almost nothing.
"""

from __future__ import annotations

import mmap
import sys
from typing import Final, Protocol

from quiverlog.limits import KIB, MIB

__all__ = ["BufferPool", "Memory"]

BUFFER_BYTES_MIN: Final = 64 * KIB
BUFFERS_MAX: Final = 16


class Memory(Protocol):
    def take(self, size: int) -> memoryview:
        """Return a writable view of at least `size` bytes, the caller's while any view of it
        lives."""
        ...


class BufferPool:
    """A few buffers of one thread.

    Args:
        bytes_max: bound on the bytes kept for reuse; buffers in use are not bounded.
    """

    __slots__ = ("_buffers", "_bytes", "_bytes_max")

    def __init__(self, *, bytes_max: int = 64 * MIB) -> None:
        self._buffers: list[mmap.mmap] = []
        self._bytes = 0
        self._bytes_max = bytes_max

    def take(self, size: int) -> memoryview:
        """Return a page-aligned view, as `Memory.take`, with arbitrary content."""
        assert size > 0
        buffers = self._buffers
        for index in range(len(buffers)):
            capacity = len(buffers[index])
            # Not a much larger one: it would be missing for a large frame.
            if size <= capacity <= 8 * max(size, BUFFER_BYTES_MIN) and _is_free(buffers, index):
                return memoryview(buffers[index])
        # Powers of two, so that frames of similar size share buffers.
        capacity = max(BUFFER_BYTES_MIN, 1 << (size - 1).bit_length())
        assert capacity >= size
        buffer = _mapped(capacity)
        self._keep(buffer)
        return memoryview(buffer)

    def _keep(self, buffer: mmap.mmap) -> None:
        """Keep a new buffer if there is room, in place of older idle ones."""
        buffers = self._buffers
        room = self._bytes_max - len(buffer)
        index = len(buffers) - 1
        # From the end, so that a removal moves none of those still to come.
        while index >= 0 and (self._bytes > room or len(buffers) >= BUFFERS_MAX):
            if _is_free(buffers, index):
                self._bytes -= len(buffers[index])
                del buffers[index]
            index -= 1
        if self._bytes <= room and len(buffers) < BUFFERS_MAX:
            buffers.append(buffer)
            self._bytes += len(buffer)
        assert 0 <= self._bytes <= self._bytes_max
        assert len(buffers) <= BUFFERS_MAX


def _mapped(size: int) -> mmap.mmap:
    # Private: pages of a shared mapping belong to tmpfs, cost half as much again, and are never
    # huge.
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _references(buffers: list[mmap.mmap], index: int) -> int:
    # A view holds a reference to its object; so do the arrays made of a view.
    return sys.getrefcount(buffers[index])


# Measured, because the count of an unused object depends on the interpreter.
_REFERENCES_WHEN_FREE: Final = _references([_mapped(1)], 0)


def _is_free(buffers: list[mmap.mmap], index: int) -> bool:
    return _references(buffers, index) == _REFERENCES_WHEN_FREE
