"""What waits to be encrypted for one connection with TLS.

The loop's TLS encrypts a write whole and at once, and does not report bytes that the socket below
has taken over: 16 MiB hold the loop for 70 ms, and 32 MiB to a client that takes nothing count as
none. So it gets `STEP_BYTES` a turn, and the next ones only when it holds none of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from quiverlog.limits import KIB

__all__ = ["STEP_BYTES", "TlsWriter"]

STEP_BYTES: Final = 256 * KIB


class TlsWriter:
    """`byte_count`: what no call has given to the transport. `is_blocked`: it holds a step."""

    __slots__ = ("_parts", "_transport", "byte_count", "is_blocked")

    def __init__(self, transport: asyncio.Transport) -> None:
        # Any byte that the transport holds blocks it, until it holds none.
        transport.set_write_buffer_limits(high=1, low=0)
        self._transport = transport
        self._parts: deque[bytes | memoryview] = deque()
        self.byte_count = 0
        self.is_blocked = False

    def add(self, parts: Sequence[bytes | memoryview], size: int) -> None:
        self._parts.extend(parts)
        self.byte_count += size

    def push(self) -> None:
        """Give one step to the transport, unless it holds one."""
        if self.byte_count and not self.is_blocked:
            self._transport.writelines(self._take(STEP_BYTES))

    def clear(self) -> None:
        self._parts.clear()
        self.byte_count = 0

    def _take(self, bytes_max: int) -> list[bytes | memoryview]:
        taken: list[bytes | memoryview] = []
        left = bytes_max
        while self._parts and left:
            part = self._parts.popleft()
            size = len(part)
            if size > left:
                view = memoryview(part)
                self._parts.appendleft(view[left:])
                part, size = view[:left], left
            taken.append(part)
            left -= size
        self.byte_count -= bytes_max - left
        assert self.byte_count >= 0
        assert bool(self._parts) == bool(self.byte_count)
        return taken
