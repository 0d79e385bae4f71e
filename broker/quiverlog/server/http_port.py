"""The HTTP port from the first moment of a start, before anything can answer there.

Owns when answering begins: when the broker is ready, or at the first connection before that.
aiohttp is imported only then, and without the certificates that its client reads (as long as 300
logs take to open).

Must not know: paths, requests.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

from quiverlog.server.net.listener import begin_to_listen
from quiverlog.server.observe.logs import Logger

if TYPE_CHECKING:
    from quiverlog.server.http import HttpServer

__all__ = ["HttpPort", "http_server_class"]


_BACKLOG: Final = 64


class Serving(Protocol):
    """Who answers on the port."""

    async def close(self) -> None:
        """Stop, and close the socket."""


class HttpPort:
    """The HTTP port from the first moment of a start, before anything can answer there.

    Args:
        sock: bound.
        serve: begins to accept on the socket. Called once, and must not hold the loop.

    Raises:
        AddressInUse: another program listens there.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        serve: Callable[[socket.socket], Awaitable[Serving]],
        *,
        log: Logger,
    ) -> None:
        begin_to_listen(sock, _BACKLOG)
        self._loop = loop
        self._socket = sock
        self._serve = serve
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._serving: Serving | None = None
        self._is_closed = False
        loop.add_reader(sock, self.begin)

    def begin(self) -> None:
        """Serve from now on. A second call does nothing."""
        if self._task is None and not self._is_closed:
            self._loop.remove_reader(self._socket)
            self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """Stop serving, or never begin: nobody waits there any more. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._task is None:
            self._loop.remove_reader(self._socket)
        else:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._serving is not None:
            await self._serving.close()
        else:
            self._socket.close()

    async def _run(self) -> None:
        try:
            self._serving = await self._serve(self._socket)
        except Exception as error:
            # Refused, rather than left to wait; the broker serves its clients all the same.
            self._socket.close()
            self._log.error("HTTP cannot be served", error=repr(error))


# Importing the HTTP server with what it needs, and no more.
_CERTIFICATES: Final = "SSL_CERT_FILE"
"""Where OpenSSL looks for them."""


def http_server_class() -> type[HttpServer]:
    """Imported when somebody has connected, or the broker is ready. May run in any thread.

    No other thread changes the environment or reads certificates.
    """
    before = os.environ.get(_CERTIFICATES)
    os.environ[_CERTIFICATES] = os.devnull
    try:
        from quiverlog.server.http import HttpServer
    finally:
        if before is None:
            del os.environ[_CERTIFICATES]
        else:
            os.environ[_CERTIFICATES] = before
    return HttpServer
