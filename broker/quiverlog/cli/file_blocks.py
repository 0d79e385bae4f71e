"""The text of a file in blocks that end with a line, in memory that is used again.

Owns the memory. A block that is allocated anew costs as much in page faults as reading it does,
and once more where it is cut and joined: what follows a block's last line is moved to the front of
the next block's memory instead, and the rest is read behind it.

A block is its taker's until it is given back; what is never given back is forgotten. Taking and
giving back may happen in different threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from quiverlog.cli.read_text import CountingFile, check_record

__all__ = ["FileBlocks"]

_BLOCK_BYTES: Final = 4 << 20


class FileBlocks:
    """The blocks of one file, in order; only the last may end within a line.

    Args:
        first_bytes: the most for the first block, if that shall be a smaller one.
    """

    def __init__(self, source: CountingFile, *, first_bytes: int | None = None) -> None:
        self._source = source
        self._first_bytes = first_bytes
        self._free: deque[bytearray] = deque()

    def __iter__(self) -> Iterator[memoryview]:
        memory, kept = self._memory(), 0
        until = self._first_bytes
        while read := self._source.readinto(memoryview(memory)[kept:until]):
            filled = kept + read
            end = memory.rfind(b"\n", kept, filled) + 1
            rest = filled - end
            check_record(rest)
            # Of a line that does not end here its end must still find room.
            following = self._memory() if rest < _BLOCK_BYTES else bytearray(2 * rest)
            following[:rest] = memoryview(memory)[end:filled]
            if end:
                yield memoryview(memory)[:end]
            memory, kept, until = following, rest, None
        if kept:
            yield memoryview(memory)[:kept]

    def give_back(self, block: memoryview) -> None:
        """Nobody looks at the block any more: another one may take its place."""
        memory = block.obj
        assert isinstance(memory, bytearray)
        if len(memory) == _BLOCK_BYTES:
            self._free.append(memory)

    def _memory(self) -> bytearray:
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(_BLOCK_BYTES)
