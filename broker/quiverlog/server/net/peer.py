"""The other end of a connection, as the kernel reports it. Failed system calls are ignored."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from ipaddress import ip_address
from typing import Final

from quiverlog.addresses import Address, network_of, parse_address
from quiverlog.server.net.places import Origin

__all__ = ["has_hung_up", "is_on_this_machine", "keep_alive", "origin_of", "peer_name"]

_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
"""Linux only."""
_CLOSED_BY_PEER: Final = frozenset((7, 8))
"""TCP_CLOSE (a reset) and TCP_CLOSE_WAIT of the kernel's states."""


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return address and port; `?` when the peer has already disconnected."""
    try:
        peer = transport.get_extra_info("peername")
    except OSError:
        return "?"
    return str(Address(peer[0], peer[1])) if peer else "?"


def origin_of(peer: str, *, may_be_broker: bool) -> Origin:
    try:
        host = parse_address(peer).host
        is_loopback = ip_address(host.partition("%")[0].removeprefix("::ffff:")).is_loopback
    except ValueError:  # disconnected, or not TCP
        return Origin("", is_loopback=False, may_be_broker=may_be_broker)
    return Origin(network_of(host), is_loopback, may_be_broker)


def is_on_this_machine(transport: asyncio.BaseTransport) -> bool:
    """Return whether both ends have one address.

    A tunnel's local end has it too: this does not authorize the client.
    """
    try:
        ends = [transport.get_extra_info(name) for name in ("peername", "sockname")]
    except OSError:
        return False
    return all(ends) and ends[0][0] == ends[1][0]


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel find within two minutes that a peer vanished without closing."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family == socket.AF_UNIX:
        return
    for level, option, value in _KEEPALIVE:
        # Fails when the peer has disconnected or buffers are short; the connection works without.
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)


def has_hung_up(transport: asyncio.BaseTransport) -> bool:
    """Return whether the peer has closed its side, which a paused transport does not report."""
    sock = transport.get_extra_info("socket")
    if sock is None or _TCP_INFO is None:
        return False
    with contextlib.suppress(OSError):
        return sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] in _CLOSED_BY_PEER
    return False
