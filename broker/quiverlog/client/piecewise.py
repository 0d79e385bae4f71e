"""Large requests to a transport piece by piece, as the socket takes them.

Owns what is not handed over yet. A transport of asyncio copies what the socket does not take at
once, all of it, into memory that is new and cold; given one small piece at a time it copies little.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from .commands import Buffer

__all__ = ["PiecewiseWriter"]

PIECE_BYTES: Final = 256 * 1024


class PiecewiseWriter:
    """The way out of one connection. `pause` and `resume` are for its protocol to pass on."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._unsent: deque[memoryview] = deque()
        self._must_wait = False
        """The transport holds what the socket did not take."""
        transport.set_write_buffer_limits(high=0)

    def write(self, buffers: Iterable[Buffer]) -> None:
        """Send these after all that came before; they must not change until the answer is in."""
        self._unsent.extend(memoryview(buffer).cast("B") for buffer in buffers)
        self._write_on()

    def pause(self) -> None:
        """The transport is full."""
        self._must_wait = True

    def resume(self) -> None:
        """The transport is empty again."""
        self._must_wait = False
        self._write_on()

    def drop(self) -> None:
        """Forget what was not handed over: the connection is at its end."""
        self._unsent.clear()

    def _write_on(self) -> None:
        unsent = self._unsent
        while unsent and not self._must_wait and not self._transport.is_closing():
            piece = unsent.popleft()
            if len(piece) > PIECE_BYTES:
                unsent.appendleft(piece[PIECE_BYTES:])
                piece = piece[:PIECE_BYTES]
            self._transport.write(piece)
