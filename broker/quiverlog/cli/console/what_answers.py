"""What a server is that was taken for a broker, and said nothing to its greeting.

Owns the two questions that other servers do answer: a line of HTTP, and the greeting of TLS. A web
server waits for a line, a server of TLS closes without a word; what speaks first, or answers a
broker's greeting with bytes of its own, the client has recognised already
(client/drivers/local_reads.py).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import Final

from quiverlog.addresses import PORT_DEFAULT, Address, parse_addresses
from quiverlog.client.drivers.local_reads import HEAD_BYTES, foreign_protocol

__all__ = ["recognised"]

_HTTP: Final = b"HEAD / HTTP/1.0\r\n\r\n"


def recognised(bootstrap: str, timeout_s: float) -> str | None:
    """A sentence about the first of the addresses that speaks another protocol; None: none does.

    All are asked at once: one that is silent takes no time from the others.
    """
    until_s = time.monotonic() + timeout_s
    asked = [
        (address, question)
        for address in parse_addresses(bootstrap, port_default=PORT_DEFAULT)
        for question in (_HTTP, _tls_greeting())
    ]
    answers: dict[int, bytes] = {}

    def ask(number: int) -> None:
        answers[number] = _answer(*asked[number], until_s)

    # Daemons: a name that does not resolve may hold one up for longer.
    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(len(asked))]
    for thread in threads:
        thread.start()
    for number, thread in enumerate(threads):
        thread.join(max(0.0, until_s - time.monotonic()))
        found = foreign_protocol(answers.get(number, b""), asked[number][0])
        if found is not None:
            return found
    return None


def _answer(address: Address, question: bytes, until_s: float) -> bytes:
    """How the answer begins; nothing, where there is none in time."""

    def left_s() -> float:
        return max(0.001, until_s - time.monotonic())

    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((address.host, address.port), left_s()) as connection,
    ):
        connection.sendall(question)
        connection.settimeout(left_s())
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
