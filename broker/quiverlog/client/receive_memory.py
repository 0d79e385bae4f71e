"""Memory that a client receives rows into: Arrow's own.

Decoded columns point into it, so a reader that keeps its rows keeps it as well. Arrow's allocator
asks for huge pages, and has those of a table that was dropped at hand for the next one: a mapping
of our own for each fetch spends as long on page faults as the kernel spends on the copy. Besides,
`pyarrow.total_allocated_bytes` counts it, as people expect of a table.
"""

from __future__ import annotations

__all__ = ["ArrowMemory"]


class ArrowMemory:
    """Buffers from Arrow's default memory pool; as `wire.buffers.Memory`."""

    __slots__ = ()

    def take(self, size: int) -> memoryview:
        """A writable view of `size` bytes, aligned to 64, of arbitrary content."""
        assert size > 0
        import pyarrow as pa  # with the first large frame: commands without rows do without

        return memoryview(pa.allocate_buffer(size)).cast("B")
