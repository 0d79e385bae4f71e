"""A port listens at once; what answers there is brought in at the first connection, or later."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from quiverlog.errors import AddressInUse
from quiverlog.server.net.listener import EarlyPort

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Log:
    """Keeps what was logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def error(self, event: str, **fields: object) -> None:
        self.lines.append(f"{event} {fields}")


class Web:
    """Serves: greets each client, as soon as it may."""

    def __init__(self) -> None:
        self.begun = 0
        self.may = asyncio.Event()
        self.error: Exception | None = None

    async def serve(self, sock: socket.socket) -> Web:
        self.begun += 1
        await self.may.wait()
        if self.error is not None:
            raise self.error
        sock.setblocking(False)
        self.task = asyncio.create_task(self._greet(sock))
        return self

    async def close(self) -> None:
        assert not self.task.done(), "closed once"
        self.task.cancel()
        await asyncio.wait((self.task,))

    async def _greet(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            accepted, _ = await loop.sock_accept(sock)
            await loop.sock_sendall(accepted, b"hello")
            accepted.close()


@pytest.fixture
def bound() -> Any:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock


async def turn() -> None:
    """Let the loop run what is due, and poll its sockets."""
    for _ in range(5):
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def connected(to: socket.socket) -> Any:
    with socket.socket() as client:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, to.getsockname())
        yield client


async def received(client: socket.socket) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 100), 10)


Case = Callable[[EarlyPort, Web, Log, socket.socket], Awaitable[None]]


async def early_caller(port: EarlyPort, web: Web, log: Log, bound: socket.socket) -> None:
    """A connection before the broker is ready starts the import, and waits for it."""
    await turn()
    assert web.begun == 0
    async with connected(bound) as first, connected(bound) as second:
        await turn()
        assert web.begun == 1
        port.begin()
        web.may.set()
        assert await received(first) == await received(second) == b"hello"
    assert web.begun == 1
    assert log.lines == []


async def without_callers(port: EarlyPort, web: Web, log: Log, bound: socket.socket) -> None:
    """Nothing is imported until a client connects, however late."""
    web.may.set()
    await turn()
    assert web.begun == 0
    async with connected(bound) as client:
        assert await received(client) == b"hello"
    assert web.begun == 1
    await port.close()
    assert web.task.done()


async def closed_before(port: EarlyPort, web: Web, log: Log, bound: socket.socket) -> None:
    """A start that fails leaves no client waiting, and nothing begins after."""
    where = bound.getsockname()
    await port.close()
    await port.close()
    port.begin()
    await turn()
    assert web.begun == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where).close()


async def closed_between(port: EarlyPort, web: Web, log: Log, bound: socket.socket) -> None:
    """The broker stops while the import is under way: a connected client sees the end."""
    async with connected(bound) as client:
        await turn()
        assert web.begun == 1
        await port.close()
        with contextlib.suppress(ConnectionResetError):
            assert await received(client) == b""
    web.may.set()
    await turn()
    assert not hasattr(web, "task")
    assert log.lines == []


async def broken(port: EarlyPort, web: Web, log: Log, bound: socket.socket) -> None:
    """A failed import is logged, and clients are refused."""
    where = bound.getsockname()
    web.error = ImportError("no such module")
    web.may.set()
    port.begin()
    await turn()
    assert len(log.lines) == 1
    assert "no such module" in log.lines[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where).close()
    await port.close()


@pytest.mark.parametrize(
    "case", [early_caller, without_callers, closed_before, closed_between, broken]
)
@pytest.mark.parametrize("loop_name", LOOPS)
def test_an_early_port(loop_name: str, case: Case, bound: socket.socket) -> None:
    async def run() -> None:
        web, log = Web(), Log()
        port = EarlyPort(asyncio.get_running_loop(), bound, web.serve, log=log)  # type: ignore[arg-type]
        await case(port, web, log, bound)
        await port.close()

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(run())


def test_an_address_in_use_is_an_error_at_once(bound: socket.socket) -> None:
    async def run() -> None:
        web = Web()
        with socket.socket() as other:
            for sock in (bound, other):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with socket.socket() as first:
                first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                first.bind(("127.0.0.1", 0))
                other.bind(first.getsockname())
                first.listen()
                with pytest.raises(AddressInUse):
                    EarlyPort(asyncio.get_running_loop(), other, web.serve, log=Log())  # type: ignore[arg-type]
        assert web.begun == 0

    asyncio.run(run())
