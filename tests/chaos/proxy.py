"""A TCP proxy in front of each broker: it cuts, delays, blackholes and throttles single links.

Owns the links. A link is the way from one connecting side (a client or a broker, by the name in its
HELLO) to one broker; a fault is a property of a link and holds for its connections of now and for
those that come. Held bytes go on when the fault ends, as the network's own repetition would bring
them; those of a connection that is cut are lost.

Not here: requests, beyond the name in the first bytes of a connection; which process is behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Connection", "Direction", "Link", "LinkFault", "Proxy"]

_CHUNK_BYTES: Final = 64 * 1024
_NAME: Final = re.compile(rb"(?:broker|client)-[a-z0-9-]+")
_GREETING_S: Final = 5.0
"""A connection without a HELLO after this time is closed: its link is unknown."""


class Direction:
    """The two halves of a connection."""

    THERE: Final = 0
    """Requests: from the connecting side to the broker."""
    BACK: Final = 1
    """Answers."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """What is wrong with a link. The default is nothing.

    Args:
        is_cut: connections are reset, new ones too.
        held: directions in which no byte passes (both: a blackhole; one: one-way).
        delay_s: before each piece of up to 64 KiB passes.
        bytes_per_s: in each direction of each connection; 0 for no bound.
    """

    is_cut: bool = False
    held: frozenset[int] = frozenset()
    delay_s: float = 0.0
    bytes_per_s: int = 0


@dataclass(slots=True, eq=False)
class Link:
    """All connections from one name to one broker."""

    fault: LinkFault = LinkFault()
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[Connection] = field(default_factory=set)

    def set_fault(self, fault: LinkFault) -> None:
        """From now on, for connections that are open and for those that come."""
        self.fault = fault
        self.changed.set()
        self.changed = asyncio.Event()
        if fault.is_cut:
            for connection in list(self.connections):
                connection.reset()

    async def passes(self, direction: int, size: int) -> None:
        """Return when a piece of `size` bytes may go on."""
        while direction in self.fault.held:
            await self.changed.wait()
        pause_s = self.fault.delay_s
        if self.fault.bytes_per_s:
            pause_s += size / self.fault.bytes_per_s
        if pause_s:
            # A fault that ends lets go what it has slowed down.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), pause_s)


@dataclass(slots=True, eq=False)
class Connection:
    """Both halves of one connection through the proxy."""

    writers: tuple[asyncio.StreamWriter, ...]

    def reset(self) -> None:
        """Both sides see a reset; what was held is lost."""
        for writer in self.writers:
            _reset(writer)


class Proxy:
    """Fronts of brokers, by node id. For one event loop."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, int], Link] = {}
        self._servers: dict[int, asyncio.Server] = {}
        self._targets: dict[int, tuple[str, int]] = {}
        self._faults: dict[tuple[str, int], LinkFault] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()

    async def open_front(self, node_id: int) -> str:
        """Listen for connections to a broker that may not run yet. Returns host:port."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            with contextlib.suppress(asyncio.CancelledError):
                await self._serve(node_id, reader, writer)
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2 * _CHUNK_BYTES)
        self._servers[node_id] = server
        host, port = server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def set_target(self, node_id: int, address: tuple[str, int]) -> None:
        """Where the broker really listens."""
        self._targets[node_id] = address

    def link(self, source: str, node_id: int) -> Link:
        """The way from a name to a broker; made when it is first asked for."""
        found = self._links.get((source, node_id))
        if found is None:
            found = self._links[source, node_id] = Link(self._fault_of(source, node_id))
        return found

    def set_fault(self, source: str, node_id: int, fault: LinkFault) -> None:
        """`source` is a name, or `client` for all clients."""
        self._faults[source, node_id] = fault
        for (name, target), link in self._links.items():
            if target == node_id and name.startswith(source):
                link.set_fault(self._fault_of(name, target))

    def heal(self) -> None:
        """No link has a fault any more."""
        self._faults.clear()
        for link in self._links.values():
            link.set_fault(LinkFault())

    async def close(self) -> None:
        """End all connections."""
        for server in self._servers.values():
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- parts ---------------------------------------------------------------------------------
    def _fault_of(self, name: str, node_id: int) -> LinkFault:
        for source in (name, name.partition("-")[0]):
            if (source, node_id) in self._faults:
                return self._faults[source, node_id]
        return LinkFault()

    async def _serve(
        self, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            first = await asyncio.wait_for(reader.read(_CHUNK_BYTES), _GREETING_S)
        except (OSError, TimeoutError):
            return
        name = _NAME.search(first)
        if name is None:
            self.counts["nameless"] += 1
            return
        link = self.link(name.group().decode(), node_id)
        if link.fault.is_cut:
            self.counts["refused"] += 1
            _reset(writer)
            return
        try:
            await link.passes(Direction.THERE, len(first))
            there_reader, there = await asyncio.open_connection(
                *self._targets[node_id], limit=2 * _CHUNK_BYTES
            )
        except OSError:
            return  # The broker is down.
        connection = Connection((writer, there))
        link.connections.add(connection)
        self.counts["connections"] += 1
        try:
            there.write(first)
            await self._both(link, (reader, there), (there_reader, writer))
        finally:
            link.connections.discard(connection)
            for one in connection.writers:
                one.close()  # What has passed is still sent.

    async def _both(
        self,
        link: Link,
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        back: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Until either half has ended, and its end could pass."""
        halves = [
            asyncio.create_task(self._pump(link, Direction.THERE, *there)),
            asyncio.create_task(self._pump(link, Direction.BACK, *back)),
        ]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)

    async def _pump(
        self,
        link: Link,
        direction: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            while True:
                piece = await reader.read(_CHUNK_BYTES)
                await link.passes(direction, len(piece))
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()
        except OSError:
            # A reset passes a held link as little as anything else does.
            await link.passes(direction, 0)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:  # Else it has ended by itself.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
