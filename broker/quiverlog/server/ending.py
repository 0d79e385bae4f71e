"""The end of a connection: the error that is still to be told, and the moment after the last word.

A client that breaks the protocol gets the answers to what it asked before, then one error response.
Answers may wait for the disk or for a job; the error waits for them, but not for ever. After the
last word the connection lingers: what the client still sends is thrown away for a moment, because
closing at once would make the kernel discard the answer (RST).

Invariant: at most one timer runs; `over` stops it, however the connection ended.

Must not know: what is answered, what is wrong with the client's bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from quiverlog.server.connections import ConnectionTable
from quiverlog.server.request_feed import Unreadable

__all__ = ["Ending"]

ANSWERS_S_MAX: Final = 5.0
"""So long does the error wait for the answers to what was asked before."""
LINGER_S: Final = 2.0
"""After the last word, so long for the client to read it and close."""


class Ending:
    """See the module docstring. `bool(ending)` is true while an error is to be told."""

    __slots__ = ("_lingers", "_table", "_timer", "unreadable")

    def __init__(self, table: ConnectionTable) -> None:
        self._table = table
        self._timer: asyncio.TimerHandle | None = None
        self._lingers = False
        self.unreadable: Unreadable | None = None
        """The request that cannot be read, to be told of after the answers."""

    def __bool__(self) -> bool:
        return self.unreadable is not None

    def begin(self, unreadable: Unreadable, give_up: Callable[[], None]) -> bool:
        """An error is to be told; True if it is the first.

        One that is found later lies before it: requests of the backlog are read after the bytes
        behind them were found to be no frame. So the later one counts.

        Args:
            give_up: called when the answers have not come in time.
        """
        assert not self._lingers, "the last word was said"
        is_first = self.unreadable is None
        self.unreadable = unreadable
        if is_first:
            assert self._timer is None
            self._timer = asyncio.get_running_loop().call_later(ANSWERS_S_MAX, give_up)
        return is_first

    def linger(self, transport: asyncio.Transport) -> None:
        """The last word is said: send the end of the stream, close when the client has, or soon."""
        self.over()
        table = self._table
        if table.lingering >= table.limits.lingering_max:
            transport.close()
            return
        with contextlib.suppress(OSError, NotImplementedError):
            transport.write_eof()
        table.lingering += 1
        self._lingers = True
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def over(self) -> None:
        """The connection is gone, or about to be: nothing is told or waited for."""
        self.unreadable = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lingers:
            self._lingers = False
            self._table.lingering -= 1
