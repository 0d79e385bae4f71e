"""Listening sockets by listener, and accepting their connections one at a time.

The event loop's own servers accept all waiting connections at once: a thousand clients would use up
the descriptors that a flush needs. Here each connection is counted or refused before the next is
accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

from quiverlog.addresses import Address
from quiverlog.errors import AddressInUse, TlsRequired
from quiverlog.server.net.connection import ClientProtocol, ConnectionContext
from quiverlog.server.net.connections import ClientAdmission
from quiverlog.server.net.tls import Handshakes, TlsHolder
from quiverlog.server.observe.logs import Logger
from quiverlog.wire.frames import encode_error

__all__ = [
    "Acceptor",
    "Dial",
    "EarlyPort",
    "Listeners",
    "OwnConnections",
    "begin_to_listen",
    "socket_address",
]


_GONE: Final = frozenset(
    (
        *(errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.EINTR, errno.ETIMEDOUT),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        errno.ENOPROTOOPT,
    )
)
"""The connection ended before accept(2), which returns its network error on Linux."""
_PAUSE_S: Final = 0.1
"""After an accept(2) that failed otherwise."""


def begin_to_listen(sock: socket.socket, backlog: int) -> None:
    """Raises AddressInUse: another program listens there."""
    try:
        # With SO_REUSEADDR two programs may bind one address; only listen(2) fails.
        sock.listen(backlog)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        where = Address(*sock.getsockname()[:2])
        raise AddressInUse(f"{where}: another program listens there.") from error


class Acceptor:
    """Accepts connections until `close`, each with a new protocol.

    Args:
        handshakes: get the connections of a listener with TLS; None: there is no TLS.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        log: Logger,
        handshakes: Handshakes | None = None,
    ) -> None:
        sock.setblocking(False)
        self._loop = loop
        self._socket = sock
        self._make_protocol = make_protocol
        self._handshakes = handshakes
        self._log = log
        self._is_taking = self._is_closed = False
        self._task = loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more; open connections stay."""
        self._is_closed = True
        # Cancelled while it takes a connection, uvloop closes that one without its protocol.
        if not self._is_taking:
            self._task.cancel()
        if self._handshakes is not None:
            self._handshakes.close()
        self._socket.close()

    async def _accept(self) -> None:
        while not self._is_closed:
            try:
                accepted, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno == errno.EBADF:
                    return  # closed
                if error.errno in _GONE:
                    await asyncio.sleep(0)
                else:  # No descriptor, no memory, ...: a retry at once would spin.
                    self._log.error("connections cannot be accepted", error=str(error))
                    await asyncio.sleep(_PAUSE_S)
                continue
            self._is_taking = True
            try:
                with contextlib.suppress(OSError):  # not TCP
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._handshakes is not None:
                    self._handshakes.take(accepted)
                    continue
                await self._loop.connect_accepted_socket(self._make_protocol, accepted)
            except OSError:
                accepted.close()
            except Exception as error:  # A bug ends this connection, not the acceptor.
                accepted.close()
                context = {"message": "taking a connection", "exception": error}
                self._loop.call_exception_handler(context)
            finally:
                self._is_taking = False


_BACKLOG: Final = 4_096


def socket_address(sock: socket.socket) -> Address:
    return Address(*sock.getsockname()[:2])


class Listeners:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._acceptors: list[Acceptor] = []
        self.addresses: dict[str, Address] = {}

    def open(
        self, sock: socket.socket, context: ConnectionContext, tls: TlsHolder | None = None
    ) -> None:
        begin_to_listen(sock, _BACKLOG)
        self.addresses[context.listener] = socket_address(sock)
        handshakes = None
        if tls is not None:
            context = context._replace(certified=tls.certified)
            table = context.connections
            handshakes = Handshakes(
                self._loop,
                tls,
                lambda entry: ClientProtocol(context, entry),
                ClientAdmission(table, may_be_broker=context.serves_brokers),
                plain_answer=encode_error(
                    TlsRequired(f"{self.addresses[context.listener]} takes TLS only."),
                    api=0,
                    correlation_id=0,
                ),
                metrics=context.metrics,
                log=context.log,
            )
        acceptor = Acceptor(
            self._loop,
            sock,
            lambda: ClientProtocol(context),
            log=context.log,
            handshakes=handshakes,
        )
        self._acceptors.append(acceptor)

    def close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()


Dial: TypeAlias = "Callable[[Address], socket.socket | None]"
"""Returns a connection to the address, if it is this broker's own; for other threads."""


class OwnConnections:
    """Connections of this process to its own broker, by no listener: one would ask for a login, a
    certificate, or a name that resolves.

    Args:
        address: where the broker is for clients.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        make_protocol: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._loop = loop
        self._address = address
        self._make_protocol = make_protocol
        self._making: set[asyncio.Task[None]] = set()

    def dial(self, address: Address) -> socket.socket | None:
        """See `Dial`; also None where no descriptor is left."""
        if address != self._address:
            return None
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            # The caller connects as others do then, and reports that failure in its own words.
            return None
        ours.setblocking(False)
        self._loop.call_soon_threadsafe(self._begin, ours)
        return theirs

    def _begin(self, sock: socket.socket) -> None:
        task = self._loop.create_task(self._make(sock))
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def _make(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, sock)
        except Exception as error:
            sock.close()
            context = {"message": "taking an own connection", "exception": error}
            self._loop.call_exception_handler(context)


_EARLY_BACKLOG: Final = 64


class Serving(Protocol):
    async def close(self) -> None:
        """Stop, and close the socket."""


class EarlyPort:
    """Listens at once; serves from the first connection.

    The server takes long to import (a third of a start), and many brokers are never asked.

    Args:
        serve: begins to accept on the socket. Called once, and must not block the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        serve: Callable[[socket.socket], Awaitable[Serving]],
        *,
        log: Logger,
    ) -> None:
        begin_to_listen(sock, _EARLY_BACKLOG)
        self._loop = loop
        self._socket = sock
        self._serve = serve
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._serving: Serving | None = None
        self._is_closed = False
        loop.add_reader(sock, self.begin)

    def begin(self) -> None:
        if self._task is None and not self._is_closed:
            self._loop.remove_reader(self._socket)
            self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
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
            # Connections are refused rather than left to wait.
            self._socket.close()
            self._log.error("HTTP cannot be served", error=repr(error))
