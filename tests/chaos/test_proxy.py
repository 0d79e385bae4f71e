"""The proxy before an echo: each fault of a link, and that other links do not feel it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from unittest import mock

import pytest
import pytest_asyncio

from .proxy import Connection, Direction, LinkFault, Proxy

QUICK_S = 0.05
BOUND_S = 20.0
HELD = LinkFault(held=frozenset((Direction.BACK,)))


class Echo:
    """A server behind the proxy that sends back what it receives, and records it."""

    def __init__(self) -> None:
        self.proxy = Proxy()
        self.received = bytearray()
        self.address = ("", 0)
        self.connected: list[asyncio.StreamWriter] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def begin(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connected.append(writer)
            with contextlib.suppress(OSError):
                while piece := await reader.read(65_536):
                    self.received += piece
                    writer.write(piece)
            writer.close()

        self.server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, _, port = (await self.proxy.open_front(1)).rpartition(":")
        self.address = host, int(port)
        self.proxy.set_target(1, self.server.sockets[0].getsockname()[:2])

    async def connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        self.writers.append(writer)
        hello = b"\x00" + name.encode() + b"\xb0"
        writer.write(hello)
        return reader, writer

    async def greet(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection over which something has come back."""
        reader, writer = await self.connect(name)
        await asyncio.wait_for(reader.readexactly(2 + len(name)), BOUND_S)
        return reader, writer


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[Echo]:
    found = Echo()
    await found.begin()
    yield found
    await found.proxy.close()
    for writer in found.writers:
        writer.transport.abort()
    await asyncio.sleep(0)
    found.server.close()


async def is_quiet(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), QUICK_S)
    except TimeoutError:
        return True
    return False


async def test_bytes_pass_both_ways(echo: Echo) -> None:
    reader, writer = await echo.greet("broker-2")
    writer.write(b"x" * 300_000)
    assert await asyncio.wait_for(reader.readexactly(300_000), BOUND_S) == b"x" * 300_000


async def test_a_cut_link_resets_what_is_open_and_what_comes(echo: Echo) -> None:
    reader, _ = await echo.greet("broker-2")
    other, writer = await echo.greet("client-7")
    echo.proxy.set_fault("broker-2", 1, LinkFault(is_cut=True))
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(reader.readexactly(1), BOUND_S)
    again, _ = await echo.connect("broker-2")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(again.readexactly(1), BOUND_S)
    writer.write(b"y")
    assert await asyncio.wait_for(other.readexactly(1), BOUND_S) == b"y"


async def test_a_held_direction_lets_nothing_through_and_goes_on_later(echo: Echo) -> None:
    reader, writer = await echo.greet("client-7")
    before = len(echo.received)
    echo.proxy.set_fault("client", 1, HELD)
    writer.write(b"abc")
    assert await is_quiet(reader)
    assert bytes(echo.received[before:]) == b"abc", "the other direction is open"
    echo.proxy.heal()
    assert await asyncio.wait_for(reader.readexactly(3), BOUND_S) == b"abc"


async def test_an_end_does_not_pass_a_held_link(echo: Echo) -> None:
    reader, _ = await echo.greet("client-7")
    echo.proxy.set_fault("client", 1, HELD)
    echo.connected[-1].close()
    assert await is_quiet(reader)
    echo.proxy.heal()
    assert await asyncio.wait_for(reader.read(1), BOUND_S) == b""


async def test_a_fault_holds_for_connections_that_come(echo: Echo) -> None:
    echo.proxy.set_fault("client", 1, LinkFault(held=frozenset((Direction.THERE,))))
    reader, _ = await echo.connect("client-9")
    assert await is_quiet(reader)
    assert not echo.received
    echo.proxy.heal()
    assert await asyncio.wait_for(reader.readexactly(10), BOUND_S)


async def test_delay_and_throttle_let_go_when_they_end(echo: Echo) -> None:
    reader, writer = await echo.greet("client-7")
    for fault in (LinkFault(delay_s=3_600.0), LinkFault(bytes_per_s=1)):
        echo.proxy.set_fault("client", 1, fault)
        writer.write(b"z" * 5_000)
        assert await is_quiet(reader)
        echo.proxy.heal()
        assert len(await asyncio.wait_for(reader.readexactly(5_000), BOUND_S)) == 5_000


def test_a_connection_that_has_ended_by_itself_may_be_reset_too() -> None:
    """The loop that brokers are tried on has no socket any more for a transport that is closed."""
    ended = mock.Mock(get_extra_info=lambda _name: None)
    closed, open_still = mock.Mock(), mock.Mock()
    for writer, number in ((closed, -1), (open_still, 7)):
        writer.get_extra_info.return_value.fileno.return_value = number
    Connection((ended, closed, open_still)).reset()
    assert open_still.get_extra_info("socket").setsockopt.called
    assert not closed.get_extra_info("socket").setsockopt.called
    aborted = [each.transport.abort.call_count for each in (ended, closed, open_still)]
    assert aborted == [1, 1, 1]
