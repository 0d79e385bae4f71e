"""The sockets at which clients and other brokers arrive, by the listeners' names.

Owns the acceptors. Every connection knows the name of the listener that took it: which addresses
METADATA answers, and whether the APIs between brokers are served, depends on it. (TLS would be a
property of a listener as well.)

Must not know: which listeners there are, what is spoken.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from quiverlog.addresses import Address
from quiverlog.server.acceptor import Acceptor, begin_to_listen
from quiverlog.server.context import ConnectionContext
from quiverlog.server.protocol import ClientProtocol

__all__ = ["Listeners", "socket_address"]

_BACKLOG: Final = 4_096


def socket_address(sock: socket.socket) -> Address:
    """Where a bound socket is."""
    return Address(*sock.getsockname()[:2])


class Listeners:
    """See the module docstring. `addresses`: where each listens."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._acceptors: list[Acceptor] = []
        self.addresses: dict[str, Address] = {}

    def open(self, sock: socket.socket, context: ConnectionContext) -> None:
        """Take connections from a bound socket, until `close`."""
        begin_to_listen(sock, _BACKLOG)
        self.addresses[context.listener] = socket_address(sock)
        acceptor = Acceptor(self._loop, sock, lambda: ClientProtocol(context), log=context.log)
        self._acceptors.append(acceptor)

    def close(self) -> None:
        """Accept no more. Connections that were accepted live on."""
        for acceptor in self._acceptors:
            acceptor.close()
