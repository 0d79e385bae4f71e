"""TCP keepalive of the clients' sockets: a peer may vanish without a word."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

__all__ = ["keep_alive"]

_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel find out that a peer vanished without a word, within two minutes."""
    for level, option, value in _KEEPALIVE:
        # The peer may be gone already, or the system short of buffers: doing without is no error.
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)
