"""Ways in which a client's connection ends, or stalls, whatever is under way on it.

Owns the sockets' options that make a kernel send what a broken peer or network would. Not here:
what the connection was used for.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final

__all__ = ["ENDS", "half_close", "reset", "send_fin"]

_LINGER_NONE: Final = struct.pack("ii", 1, 0)


def reset(sock: socket.socket) -> None:
    """RST at once: what was not sent, or not read, is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    sock.close()


def send_fin(sock: socket.socket) -> None:
    """FIN; the kernel answers with RST to what still comes."""
    sock.close()


def half_close(sock: socket.socket) -> None:
    """FIN, then take what still comes until the other side has ended it as well."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    sock.close()


ENDS: Final[dict[str, Callable[[socket.socket], None]]] = {
    "rst": reset,
    "fin": send_fin,
    "half": half_close,
}
