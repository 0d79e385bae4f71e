"""The server's connections on a real loop and real sockets; the node is a function."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from quiverlog.addresses import Address
from quiverlog.node.runtime.effects import Effect, Respond
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.server.config.config import load_config
from quiverlog.server.net.clocks import monotonic_us
from quiverlog.server.net.connection import ClientProtocol, ConnectionContext
from quiverlog.server.net.connections import ConnectionLimits, ConnectionTable
from quiverlog.server.net.listener import Listeners
from quiverlog.server.net.memory import MemoryBudget
from quiverlog.server.net.places import PlaceLimits
from quiverlog.server.net.replies import path_hider
from quiverlog.server.net.scheduler import FairScheduler
from quiverlog.server.net.tls import TlsHolder
from quiverlog.server.observe.logs import make_logger
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.server.process.broker_server import connection_limits
from quiverlog.server.process.node_runner import NodeRunner
from quiverlog.server.process.run import bind
from quiverlog.types import Now
from quiverlog.wire import messages as m
from quiverlog.wire.buffers import BufferPool
from quiverlog.wire.frames import SCRATCH_BYTES, FrameReceiver, decode_error, encode

__all__ = [
    "LIMITS",
    "PLACES",
    "Client",
    "Server",
    "StubNode",
    "echo",
    "request",
    "serving",
    "until",
]

PLACES = PlaceLimits(1_000, per_address=1_000, operators=0, brokers=2, door=2)
LIMITS = connection_limits(load_config(), places=PLACES, lingering_max=256)


class StubNode:
    """Remembers every event; `answer` makes the effects of each."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.bodies: list[bytes] = []
        self.deadline_us: int | None = None
        self.answer: Callable[[Any], list[Effect]] = echo

    def handle_many(self, events: Iterable[Any], now: Now) -> list[Effect]:
        effects: list[Effect] = []
        seen: list[Any] = []
        for event in events:
            seen.append(event)
            if isinstance(event, RequestReceived):
                self.bodies.append(bytes(event.body))
            effects += self.answer(event)
        self.calls.append(seen)
        return effects

    def next_deadline_us(self) -> int | None:
        return self.deadline_us

    def events(self, kind: type) -> list[Any]:
        return [event for call in self.calls for event in call if isinstance(event, kind)]


def echo(event: Any) -> list[Effect]:
    if not isinstance(event, RequestReceived):
        return []
    response = m.MetadataResponse(cluster_id=str(event.request.correlation_id))
    return [Respond(event.connection_id, response, event.request.correlation_id)]


class Server:
    def __init__(self, limits: ConnectionLimits, memory_bytes: int) -> None:
        self.node = StubNode()
        self.metrics = ServerMetrics()
        self.log = io.StringIO()
        self.table = ConnectionTable(limits)
        log = make_logger(level="info", format="logfmt", stream=self.log)
        self.runner = NodeRunner(
            asyncio.get_running_loop(),
            self.node,  # type: ignore[arg-type]
            self.table,
            metrics=self.metrics,
            log=log,
            audit=None,
            flush_threads=1,
            work_threads=1,
        )
        self.memory = MemoryBudget(
            memory_bytes, lambda: list(self.table.by_id.values()), now_us=monotonic_us
        )
        self.scheduler = FairScheduler(asyncio.get_running_loop(), now_us=monotonic_us)
        self.context = ConnectionContext(
            runner=self.runner,
            connections=self.table,
            metrics=self.metrics,
            log=log,
            scheduler=self.scheduler,
            memory=self.memory,
            scratch=bytearray(SCRATCH_BYTES),
            pool=BufferPool(),
            hide_paths=path_hider("/srv/quiverlog"),
        )
        self.port = 0
        self.clients: list[Client] = []

    async def connect(self, **more: Any) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **more)
        self.clients.append(Client(reader, writer))
        return self.clients[-1]


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.receiver = FrameReceiver(own_bodies=True)
        self.responses: list[m.Response] = []

    async def receive(self, count: int) -> list[m.Response]:
        """Wait for this many more responses, or for the end."""
        async with asyncio.timeout(10):
            while len(self.responses) < count:
                data = await self.reader.read(1 << 16)
                if not data:
                    break
                while data:
                    room = self.receiver.get_buffer()
                    n = min(len(room), len(data))
                    room[:n] = data[:n]
                    data = data[n:]
                    frames = self.receiver.buffer_updated(n)
                    self.responses += [decode_error(frame.header) for frame in frames]
        found, self.responses = self.responses[:count], self.responses[count:]
        return found

    async def ended(self) -> bool:
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                return await self.reader.read() == b""
        return True


@contextlib.asynccontextmanager
async def serving(
    *,
    memory_bytes: int = 1 << 30,
    serves_brokers: bool = False,
    tls: TlsHolder | None = None,
    **limits: Any,
) -> AsyncIterator[Server]:
    server = Server(dataclasses.replace(LIMITS, **limits), memory_bytes)
    server.context = server.context._replace(serves_brokers=serves_brokers)
    loop = asyncio.get_running_loop()
    listener: asyncio.Server | Listeners
    if tls is None:
        listener = await loop.create_server(lambda: ClientProtocol(server.context), "127.0.0.1", 0)
        server.port = listener.sockets[0].getsockname()[1]
    else:
        listener = Listeners(loop)
        listener.open(bind(Address("127.0.0.1", 0), "listen"), server.context, tls)
        server.port = listener.addresses["default"].port
    try:
        yield server
    finally:
        listener.close()
        for client in server.clients:
            client.writer.transport.abort()
        await until(lambda: not server.table.by_id and not server.table.lingering)
        server.runner.close(1.0)


def request(correlation_id: int, body: bytes = b"") -> bytes:
    return encode(m.MetadataRequest(), correlation_id, len(body)) + body


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it is others who make it true
            await asyncio.sleep(0.005)
