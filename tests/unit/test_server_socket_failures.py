"""System calls on clients' sockets that fail: the connection is served or closed, no more."""

from __future__ import annotations

import socket

import pytest

from quiverlog.server import keepalive
from tests.support.server import request, serving


async def test_a_socket_that_takes_no_option_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the system is short of buffers (ENOBUFS), or the peer has gone already (EINVAL)."""
    refused = (socket.SOL_SOCKET, 9_999, 1)
    monkeypatch.setattr(keepalive, "_KEEPALIVE", (refused, *keepalive._KEEPALIVE))
    async with serving() as server:
        client = await server.connect()
        client.writer.write(request(1))
        (response,) = await client.receive(1)
        assert not response.error_code
        assert server.metrics.node.internal_errors == 0
