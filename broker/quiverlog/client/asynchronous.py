"""The asyncio driver: one multiplexed connection per broker and lane.

Owns connections, their timeouts and the mapping of the system's errors to ours; decides nothing.
Replies are matched by correlation id, so a parked fetch does not hold up what comes after it.
Everything here belongs to the event loop on which it was first used.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Sequence
from typing import TypeVar, assert_never

from quiverlog.errors import (
    ClientClosed,
    ConnectionClosed,
    ConnectionFailed,
    ForkedClient,
    QuiverlogError,
    RequestTimedOut,
)
from quiverlog.version import VERSION
from quiverlog.wire import frames
from quiverlog.wire.connection import ClientConnection
from quiverlog.wire.messages import Request

from .blocking import _reason
from .commands import (
    Abandon,
    Buffer,
    Call,
    CallMany,
    Command,
    Finish,
    FinishAny,
    Operation,
    Reply,
    Sleep,
    Start,
    Ticket,
)
from .results import Address
from .routing import Settings, check

__all__ = ["AsyncConnection", "AsyncDriver"]

T = TypeVar("T")

JOIN_BYTES_MAX = 64 * 1024
"""Up to here head and body are joined: one system call costs more than the copy."""

HELLO_ID = 1
"""Correlation ids start at 1, and HELLO is the first request of a connection."""


class AsyncConnection(asyncio.BufferedProtocol):
    """One socket with the protocol's state. `request` is what drivers use, after `hello`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.closed = False
        self._receiver = frames.FrameReceiver(own_bodies=True)
        self._protocol = ClientConnection()
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    # --- asyncio's side -------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._receiver.buffer_updated(nbytes):
                correlation_id, response, body = self._protocol.receive(frame)
                waiting = self._pending.pop(correlation_id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(Reply(response, body))
        except QuiverlogError as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"The connection to {self.address} broke: {_reason(exc)}." if exc else ""
        self._end(ConnectionClosed(why or f"{self.address} closed the connection."))

    # --- the driver's side ----------------------------------------------------------------------
    async def hello(self, settings: Settings, timeout_s: float) -> None:
        """Introduce ourselves; no request may go out before."""
        head = self._protocol.hello(settings.client_id, VERSION)
        reply = await self._transmit(HELLO_ID, head, (), timeout_s)
        check(reply.response)

    def request(
        self, request: Request, body: Sequence[Buffer], timeout_s: float
    ) -> asyncio.Future[Reply]:
        """Send a request; the future brings its reply, or ConnectionClosed, or RequestTimedOut."""
        if self.closed:
            raise ConnectionClosed(f"The connection to {self.address} is closed.")
        body_bytes = sum(memoryview(b).nbytes for b in body)
        correlation_id, head = self._protocol.send(request, body_bytes)
        return self._transmit(correlation_id, head, body, timeout_s, body_bytes)

    def close(self) -> None:
        self._end(ConnectionClosed("The client closed the connection."))

    def _transmit(
        self,
        correlation_id: int,
        head: bytes,
        body: Sequence[Buffer],
        timeout_s: float,
        body_bytes: int = 0,
    ) -> asyncio.Future[Reply]:
        assert self._transport is not None
        waiting: asyncio.Future[Reply] = self._loop.create_future()
        self._pending[correlation_id] = waiting
        timer = self._loop.call_later(timeout_s, self._timed_out, waiting)
        waiting.add_done_callback(lambda _: timer.cancel())
        if body_bytes <= JOIN_BYTES_MAX:
            self._transport.write(b"".join([head, *body]))
        else:
            self._transport.write(head)
            for buffer in body:
                self._transport.write(buffer)
        return waiting

    def _timed_out(self, waiting: asyncio.Future[Reply]) -> None:
        if not waiting.done():
            waiting.set_exception(RequestTimedOut(f"{self.address} did not answer in time."))
            # A broker that is silent about one request is not to be trusted with the next.
            self.close()

    def _end(self, error: QuiverlogError) -> None:
        if self.closed:
            return
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            if not waiting.done():
                waiting.set_exception(error)


class AsyncTicket:
    """A started request."""

    __slots__ = ("call", "waiting")

    def __init__(self, call: Call, waiting: asyncio.Future[Reply]) -> None:
        self.call = call
        self.waiting = waiting


class AsyncDriver:
    """Performs the commands of operations on the running loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._connections: dict[tuple[Address, str], AsyncConnection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[AsyncConnection]] = {}
        self._closed = False

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation to its end and return its result."""
        self.check_usable()
        answer: object = None
        failure: QuiverlogError | None = None
        while True:
            try:
                if failure is None:
                    command: Command = operation.send(answer)
                else:
                    command = operation.throw(failure)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer, failure = None, None
            try:
                answer = await self._perform(command)
            except QuiverlogError as error:
                failure = error

    @property
    def is_closed(self) -> bool:
        """`close` was called."""
        return self._closed

    def check_usable(self) -> None:
        """Raise unless this process may use the client."""
        if os.getpid() != self._pid:
            raise ForkedClient("This client was opened before the process forked.")
        if self._closed:
            raise ClientClosed("The client is closed.")

    async def close(self) -> None:
        """Close all connections; requests under way fail with ConnectionClosed."""
        self._closed = True
        opening, self._opening = self._opening, {}
        for task in opening.values():
            task.cancel()
        await asyncio.gather(*opening.values(), return_exceptions=True)
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()
        await asyncio.sleep(0)  # lets the transports see their abort before the loop may end

    # --- commands -------------------------------------------------------------------------------
    async def _perform(self, command: Command) -> object:
        match command:
            case Call():
                return await (await self.start(command)).waiting
            case Start(call):
                return await self.start(call)
            case Finish(ticket):
                assert isinstance(ticket, AsyncTicket)
                return await ticket.waiting
            case FinishAny(tickets, timeout_s):
                return await self._finish_any(tickets, timeout_s)
            case CallMany(calls):
                return await self._call_many(calls)
            case Abandon(ticket):
                self.abandon(ticket)
                return None
            case Sleep(seconds):
                await asyncio.sleep(seconds)
                return None
            case _:
                assert_never(command)

    async def start(self, call: Call) -> AsyncTicket:
        """Send a request, over a new connection if there is none."""
        connection = await self.connection(call.address, call.lane, call.timeout_s)
        return AsyncTicket(call, connection.request(call.request, call.body, call.timeout_s))

    def abandon(self, ticket: Ticket) -> None:
        """Whatever becomes of the reply is of no interest; the connection stays."""
        assert isinstance(ticket, AsyncTicket)
        ticket.waiting.add_done_callback(_ignore)

    async def _call_many(self, calls: Iterable[Call]) -> list[Reply | QuiverlogError]:
        async def one(call: Call) -> Reply | QuiverlogError:
            try:
                return await (await self.start(call)).waiting
            except QuiverlogError as error:
                return error

        return list(await asyncio.gather(*(one(call) for call in calls)))

    async def _finish_any(self, tickets: Sequence[Ticket], timeout_s: float) -> Ticket | None:
        by_future = {t.waiting: t for t in tickets if isinstance(t, AsyncTicket)}
        if not by_future:
            await asyncio.sleep(timeout_s)
            return None
        done, _ = await asyncio.wait(
            by_future, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        return next((t for f, t in by_future.items() if f in done), None)

    # --- connections ----------------------------------------------------------------------------
    def ready(self, address: Address, lane: str) -> AsyncConnection | None:
        """The connection to a broker, if it is open."""
        known = self._connections.get((address, lane))
        return None if known is None or known.closed else known

    async def connection(self, address: Address, lane: str, timeout_s: float) -> AsyncConnection:
        """The connection to a broker; opened once, however many ask for it at the same time."""
        key = (address, lane)
        known = self._connections.get(key)
        if known is not None and not known.closed:
            return known
        if self._closed:
            raise ClientClosed("The client is closed.")
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(address, timeout_s))
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        # Shielded: the others who wait for it must not suffer when one of them is cancelled.
        return await asyncio.shield(task)

    def _opened(self, key: tuple[Address, str], task: asyncio.Task[AsyncConnection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled() and task.exception() is None:
            self._connections[key] = task.result()

    async def _open(self, address: Address, timeout_s: float) -> AsyncConnection:
        timeout_s = min(timeout_s, self._settings.connect_timeout_s)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: AsyncConnection(address), address.host, address.port
                )
        except TimeoutError as error:
            raise ConnectionFailed(f"{address} did not answer within {timeout_s:g} s.") from error
        except (OSError, UnicodeError) as error:
            raise ConnectionFailed(f"Cannot connect to {address}: {_reason(error)}.") from error
        try:
            await connection.hello(self._settings, timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection


def _ignore(waiting: asyncio.Future[Reply]) -> None:
    if not waiting.cancelled():
        waiting.exception()
