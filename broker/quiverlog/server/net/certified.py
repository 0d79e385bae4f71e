"""Open connections whose other end has shown a certificate: they end when it would be refused now.

    open ──it, or one of its chain, has expired─────────▶ ended
     └─────its authority was taken out of the file──────▶ ended

One registry a listener; that of the listener where brokers meet has this broker's links, too.
Invariant: after `trust` no connection of another authority is served.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Final, Protocol

from quiverlog.tls import Verified, verified

__all__ = ["Certified"]

_LOOK_S_MAX: Final = 600.0
"""The clock of dates may be set meanwhile."""


class _Connection(Protocol):
    def certificate_ended(self, why: str) -> None:
        """End; nothing more is served to the other end. May come after the connection's end."""


class Certified:
    """`authorities`: as `quiverlog.tls.authorities_in`. All methods are for the loop."""

    __slots__ = ("_authorities", "_open", "_timer")

    def __init__(self, authorities: frozenset[bytes]) -> None:
        self._authorities = authorities
        self._open: dict[_Connection, Verified] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: _Connection, tls: ssl.SSLObject | None) -> None:
        """Watch a connection, if its other end has shown a certificate."""
        shown = verified(tls)
        if shown is None:
            return
        self._open[connection] = shown
        # The authority may have been taken out during the handshake.
        if shown.authority in self._authorities:
            self._wait(shown.ends_s)
        else:
            self._look()

    def remove(self, connection: _Connection) -> None:
        self._open.pop(connection, None)

    def trust(self, authorities: frozenset[bytes]) -> None:
        """End the connections of all other authorities."""
        self._authorities = authorities
        self._look()

    def close(self) -> None:
        self._open.clear()
        self._stop_timer()

    def _look(self) -> None:
        loop, now_s = asyncio.get_running_loop(), time.time()
        self._stop_timer()
        for connection, shown in list(self._open.items()):
            if shown.authority not in self._authorities:
                why = "the authority of its certificate was taken out"
            elif shown.ends_s <= now_s:
                why = "its certificate has expired"
            else:
                continue
            del self._open[connection]
            # A callback each: one that fails stops none of the others.
            loop.call_soon(connection.certificate_ended, why)
        if self._open:
            self._wait(min(shown.ends_s for shown in self._open.values()))

    def _wait(self, ends_s: float) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + min(max(0.0, ends_s - time.time()), _LOOK_S_MAX)
        if self._timer is None or due_s < self._timer.when():
            self._stop_timer()
            self._timer = loop.call_at(due_s, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
