"""What a server is that was taken for a broker, and said nothing to its greeting.

Owns the two questions that other servers do answer: a line of HTTP, and the greeting of TLS. A web
server waits for a line, a server of TLS closes without a word; what speaks first, or answers a
broker's greeting with bytes of its own, the client has recognised already (client/foreign.py).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

from quiverlog.addresses import PORT_DEFAULT, Address, parse_addresses
from quiverlog.client.foreign import HEAD_BYTES, foreign_protocol

__all__ = ["recognised"]

_PATIENCE_S: Final = 1.0
_HTTP: Final = b"HEAD / HTTP/1.0\r\n\r\n"


def recognised(bootstrap: str) -> str | None:
    """A sentence about the first of the addresses that speaks another protocol; None: none does."""
    for address in parse_addresses(bootstrap, port_default=PORT_DEFAULT):
        for question in (_HTTP, _tls_greeting()):
            found = foreign_protocol(_answer(address, question), address)
            if found is not None:
                return found
    return None


def _answer(address: Address, question: bytes) -> bytes:
    """How the answer begins; nothing, where there is none in time."""
    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((address.host, address.port), _PATIENCE_S) as connection,
    ):
        connection.sendall(question)
        return connection.recv(HEAD_BYTES)
    return b""


def _tls_greeting() -> bytes:
    """What a client of TLS sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent over it, and nothing believed
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()
