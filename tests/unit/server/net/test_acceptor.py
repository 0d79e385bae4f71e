"""Whatever accepting a connection raises: no busy loop, no silent end, the next one is taken."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any, cast
from unittest import mock

import pytest
import uvloop

from quiverlog.addresses import Address
from quiverlog.server.net.listener import Acceptor, OwnConnections
from tests.support.ends import reset

FAILURES = [
    errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EINVAL, errno.EPERM,
    errno.EOPNOTSUPP, errno.EIO,
]  # fmt: skip
GONE = [
    errno.ECONNABORTED, errno.EPROTO, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENETUNREACH,
    errno.EHOSTUNREACH,
]  # fmt: skip
"""Errors of a connection that has ended already: an operator can mend nothing."""
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Greeter(asyncio.Protocol):
    """Sends one byte to each client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # uvloop's is of no class of asyncio's
        stream.write(b"!")
        stream.close()


class Accepts:
    """A loop whose accept fails a number of times before it works."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int, times: int) -> None:
        self._loop = loop
        self._number = number
        self._left = times
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def sock_accept(self, sock: socket.socket) -> tuple[socket.socket, Any]:
        self.calls += 1
        if self._left:
            self._left -= 1
            raise OSError(self._number, os.strerror(self._number))
        return await self._loop.sock_accept(sock)


async def end(acceptor: Acceptor) -> None:
    """Close it, and let the loop forget the socket before the test closes it."""
    acceptor.close()
    await asyncio.sleep(0.01)


async def greeted(address: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        return await asyncio.wait_for(reader.read(1), 10)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("number", FAILURES + GONE, ids=errno.errorcode.get)
async def test_a_failed_accept_is_followed_by_others(number: int) -> None:
    log = mock.Mock()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        loop: Any = Accepts(asyncio.get_running_loop(), number, 2)
        acceptor = Acceptor(loop, sock, Greeter, log=log)
        assert await greeted(sock.getsockname()) == b"!"
        await end(acceptor)
    assert log.error.call_count == (0 if number in GONE else 2)


async def test_an_accept_that_always_fails_leaves_the_loop_to_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        loop: Any = Accepts(asyncio.get_running_loop(), errno.EINVAL, 1_000_000)
        acceptor = Acceptor(loop, sock, Greeter, log=mock.Mock())
        for _ in range(1_000):  # With a busy loop, the first of these would never come back.
            await asyncio.sleep(0)
        assert loop.calls < 10
        await end(acceptor)


async def test_a_protocol_that_cannot_be_made_costs_one_connection() -> None:
    loop = asyncio.get_running_loop()
    seen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: seen.append(context))
    made = iter([ZeroDivisionError("a bug"), Greeter()])

    def make() -> asyncio.BaseProtocol:
        found = next(made)
        if isinstance(found, Exception):
            raise found
        return found

    with socket.create_server(("127.0.0.1", 0)) as sock:
        acceptor = Acceptor(loop, sock, make, log=mock.Mock())
        assert await greeted(sock.getsockname()) == b""
        assert await greeted(sock.getsockname()) == b"!"
        await end(acceptor)
    assert [type(context["exception"]) for context in seen] == [ZeroDivisionError]


OWN = Address("broker.example", 9292)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_process_connects_to_its_own_broker_by_no_listener(loop: Any) -> None:
    async def course() -> None:
        own = OwnConnections(asyncio.get_running_loop(), OWN, Greeter)
        assert own.dial(Address("other.example", 9292)) is None
        with mock.patch.object(socket, "socketpair", side_effect=OSError(errno.EMFILE, "none")):
            assert own.dial(OWN) is None
        assert await asyncio.to_thread(said_to, own) == b"!"

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(course())


async def test_an_own_connection_that_cannot_be_made_ends() -> None:
    seen: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(context))
    own = OwnConnections(loop, OWN, mock.Mock(side_effect=ZeroDivisionError("a bug")))
    assert await asyncio.to_thread(said_to, own) == b""
    assert [type(context["exception"]) for context in seen] == [ZeroDivisionError]


def said_to(own: OwnConnections) -> bytes:
    made = own.dial(OWN)
    assert made is not None
    with made:
        made.settimeout(10)
        return made.recv(1)


class Counted(asyncio.Protocol):
    """Of each connection: made, and lost."""

    def __init__(self) -> None:
        self.made = self.lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_that_is_being_accepted_at_the_end_is_closed(loop: str) -> None:
    """The protocol is closed too: where only the transport ends, the table keeps the connection."""

    class Ends(Counted):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            acceptor.close()

    counted = Ends()
    acceptor: Acceptor

    async def taken() -> None:
        nonlocal acceptor
        with socket.create_server(("127.0.0.1", 0)) as sock:
            acceptor = Acceptor(asyncio.get_running_loop(), sock, lambda: counted, log=mock.Mock())
            _, writer = await asyncio.open_connection(*sock.getsockname())
            async with asyncio.timeout(10):
                while not counted.made:  # noqa: ASYNC110 - it is others who make it true
                    await asyncio.sleep(0.005)
                writer.close()
                await writer.wait_closed()
                while not counted.lost:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(taken())
    assert (counted.made, counted.lost) == (1, 1)


@pytest.mark.parametrize("loop", LOOPS)
def test_peers_that_are_gone_before_they_are_taken(loop: str) -> None:
    """Neither their names nor their sockets' options can be had any more."""
    protocols: list[Counted] = []

    def make() -> Counted:
        protocols.append(Counted())
        return protocols[-1]

    log = mock.Mock()

    async def taken() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=64) as sock:
            for _ in range(50):
                reset(socket.create_connection(sock.getsockname()))
            acceptor = Acceptor(asyncio.get_running_loop(), sock, make, log=log)
            async with asyncio.timeout(10):
                while len(protocols) < 50 or not all(p.lost for p in protocols):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            assert {(p.made, p.lost) for p in protocols} == {(1, 1)}
            await end(acceptor)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(taken())
    assert not log.error.called
