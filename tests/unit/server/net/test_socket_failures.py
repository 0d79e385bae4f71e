"""System calls on clients' sockets that fail: the connection is served or closed, no more."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any
from unittest import mock

import pytest

from quiverlog.errors import AddressInUse
from quiverlog.node.runtime.effects import Respond
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.server.net import peer
from quiverlog.server.net.listener import begin_to_listen
from quiverlog.wire import messages as m
from tests.support.server import Server, echo, request, serving, until

BROKEN = [
    BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)),
    ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
    OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS)),
]
"""Failures of the world: nothing in the broker is to be mended."""
BUGS = [RuntimeError("the handler is closed"), MemoryError()]


async def test_a_socket_that_takes_no_option_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the system is short of buffers (ENOBUFS), or the peer has gone already (EINVAL)."""
    refused = (socket.SOL_SOCKET, 9_999, 1)
    monkeypatch.setattr(peer, "_KEEPALIVE", (refused, *peer._KEEPALIVE))
    async with serving() as server:
        client = await server.connect()
        client.writer.write(request(1))
        (response,) = await client.receive(1)
        assert not response.error_code
        assert server.metrics.node.internal_errors == 0


class Broken:
    """A transport one method of which fails; everything else is the real one's."""

    def __init__(self, transport: Any, name: str, error: Exception) -> None:
        self._transport = transport
        self._name = name
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            return mock.Mock(side_effect=self._error)
        return getattr(self._transport, name)


def break_transport(server: Server, connection_id: int, name: str, error: Exception) -> None:
    connection: Any = server.table.by_id[connection_id]
    connection._transport = Broken(connection._transport, name, error)


@pytest.mark.parametrize("error", BROKEN + BUGS, ids=repr)
async def test_a_write_that_fails_costs_that_connection_alone(error: Exception) -> None:
    """Answers to several clients go out together, when one flush of the disk is back."""
    async with serving() as server:
        server.node.answer = lambda event: []
        clients = [await server.connect() for _ in range(3)]
        for number, client in enumerate(clients, 1):
            client.writer.write(request(number))
        await until(lambda: len(server.node.bodies) == 3)
        break_transport(server, 2, "write", error)
        events = server.node.events(RequestReceived)
        server.runner.perform([effect for event in events for effect in echo(event)])
        server.runner.flush()
        bad = next(e.request.correlation_id for e in events if e.connection_id == 2) - 1
        for number, client in enumerate(clients):
            if number != bad:
                assert [a.correlation_id for a in await client.receive(1)] == [number + 1]
        assert await clients[bad].ended()
        await until(lambda: len(server.table) == 2)
        assert server.memory.used_bytes == 0
        assert server.metrics.node.internal_errors == (error in BUGS)
        assert server.log.getvalue().count("internal error") == (error in BUGS)


async def test_what_is_done_to_all_connections_is_done_to_those_behind_a_broken_one() -> None:
    async with serving() as server:
        for _ in range(3):
            await server.connect()
        await until(lambda: len(server.table) == 3)
        error = RuntimeError("the handler is closed")
        break_transport(server, 1, "write_eof", error)
        assert server.table.for_each(lambda c: c.close_soon("by the test")) == [error]
        server.table.by_id[1].abort("gone")
        for client in server.clients:
            assert await client.ended()


async def test_a_client_that_hung_up_while_reading_is_paused_is_noticed() -> None:
    async with serving(in_flight_max=4) as server:
        server.node.answer = lambda event: []
        client, other = await server.connect(), await server.connect()
        client.writer.write(b"".join(map(request, range(1, 9))))
        other.writer.write(request(1))
        await until(lambda: len(server.node.bodies) == 5)
        held = server.table.by_id[server.node.calls[0][0].connection_id]
        assert not held.is_abandoned
        client.writer.write_eof()
        await until(lambda: held.is_abandoned)
        assert [c.is_abandoned for c in server.table.by_id.values()].count(True) == 1
        held.abort("gone")
        await until(lambda: len(server.table) == 1)


@pytest.mark.parametrize("refused", [OSError(errno.ENOTCONN, "gone"), None], ids=repr)
async def test_a_peer_that_the_system_cannot_name_has_no_name(refused: Any) -> None:
    asked = mock.Mock(side_effect=refused, return_value=None)
    transport = mock.Mock(spec=asyncio.Transport, get_extra_info=asked)
    assert peer.peer_name(transport) == "?"
    if refused is None:
        peer.keep_alive(transport)
        assert not peer.has_hung_up(transport)


def test_an_address_that_another_has_just_taken_is_named() -> None:
    """Both could bind; one listens first."""
    with socket.socket() as first, socket.socket() as second:
        for sock in (first, second):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind(("127.0.0.1", 0))
        second.bind(first.getsockname())
        begin_to_listen(first, 1)
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{first.getsockname()[1]}: another"):
            begin_to_listen(second, 1)
        broken = mock.Mock(listen=mock.Mock(side_effect=OSError(errno.ENOBUFS, "no room")))
        with pytest.raises(OSError, match="no room"):
            begin_to_listen(broken, 1)


@pytest.mark.parametrize("error", [BROKEN[1], BUGS[0]], ids=repr)
@pytest.mark.parametrize(
    "name",
    ["pause_reading", "resume_reading", "set_write_buffer_limits", "writelines", "write_eof"],
)
async def test_what_a_transport_refuses_costs_no_others(name: str, error: Exception) -> None:
    """A conversation that makes each of its calls: one of them fails, for ever."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with serving(in_flight_max=4) as server:
        server.node.answer = lambda event: []
        client, other = await server.connect(), await server.connect()
        client.writer.write(request(1))
        await until(lambda: len(server.node.bodies) == 1)
        number = server.node.calls[0][0].connection_id
        break_transport(server, number, name, error)
        server.table.for_each(lambda c: c.limits_changed())
        client.writer.write(b"".join(map(request, range(2, 9))))
        await until(lambda: len(server.node.bodies) >= 4 or number not in server.table.by_id)
        big = [memoryview(bytes(100_000))]
        effects = [Respond(number, m.FetchResponse(), i, big) for i in range(1, 5)]
        server.runner.perform(list(effects))
        server.runner.flush()
        client.writer.write(bytes(64))  # no frame: the error is sent, then the end
        server.node.answer = echo
        other.writer.write(request(77))
        assert [a.correlation_id for a in await other.receive(1)] == [77]
        client.writer.transport.abort()

        def is_gone() -> bool:
            for connection in list(server.table.by_id.values()):
                if connection.is_abandoned:  # as the server asks every second
                    connection.abort("gone")
            return len(server.table) == 1

        await until(is_gone)
        assert server.memory.used_bytes == 0
        assert not server.table.lingering
