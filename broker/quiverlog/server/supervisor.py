"""What the program that started the broker is told: ready, stopping, and that the loop turns.

Owns systemd's notification protocol (sd_notify(3)): datagrams of `NAME=VALUE` to the socket that
the environment names. Without that name nobody wants to be told, and all of this does nothing. The
variables are taken out of the environment at once: they are meant for this process alone. A
supervisor that cannot be reached is no reason for a broker to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Final

__all__ = ["Supervisor"]

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG_US: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"


class Supervisor:
    """Whoever started this process.

    Args:
        environ: where its socket is named, and how often it wants to hear that the loop turns.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        name = environ.pop(_SOCKET, "")
        watchdog_us = environ.pop(_WATCHDOG_US, "")
        watched_pid = environ.pop(_WATCHDOG_PID, "") or str(os.getpid())
        # "@" stands for the zero byte with which names begin that are no files.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._period_s = 0.0
        if watchdog_us.isdecimal() and watched_pid == str(os.getpid()):
            # Twice in the time that is allowed, as sd_watchdog_enabled(3) recommends.
            self._period_s = int(watchdog_us) / 2e6
        self._timer: asyncio.TimerHandle | None = None

    def ready(self) -> None:
        """Clients may connect."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """The end has begun; it may take as long as `shutdown.timeout.ms`."""
        self._tell("STOPPING=1")

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell from now on that the loop turns, if anybody wants to know. End it with `close`."""
        if self._period_s > 0:
            self._tell("WATCHDOG=1")
            self._timer = loop.call_later(self._period_s, self.watch, loop)

    def close(self) -> None:
        """Tell nothing more by itself."""
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, what: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError, ValueError), _datagrams() as sock:
            sock.sendto(what.encode(), self._address)


def _datagrams() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock
