"""The blocking driver: plain sockets, one request at a time per connection.

Owns connections (a pool of idle ones per broker), their timeouts and the mapping of the system's
errors to ours. Decides nothing: what is asked, of whom and how often lies in the operations.

Threads may share a driver: a connection belongs to one request from its start to its reply, then
goes back to the pool. A connection that the broker closed while it was idle is noticed when it is
taken out again, and silently replaced. After fork() the child may not touch the parent's sockets:
every entry compares the process id, which is one cached system call.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
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

__all__ = ["BlockingDriver"]

T = TypeVar("T")

IDLE_PER_BROKER_MAX = 8
IOV_MAX = 512
SEND_BUFFER_BYTES = 1 << 21


class BlockingConnection:
    """One socket with the protocol's state; HELLO has been answered when it is made."""

    def __init__(self, address: Address, settings: Settings, timeout_s: float) -> None:
        self.address = address
        self._receiver = frames.FrameReceiver(own_bodies=True)
        self._protocol = ClientConnection()
        self._replies: dict[int, Reply] = {}
        self._deadline = time.monotonic() + timeout_s
        self._socket = _connect(address, timeout_s)
        try:
            self._send_all([self._protocol.hello(settings.client_id, VERSION)])
            check(self._next_reply()[1].response)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def is_stale(self) -> bool:
        """Bytes or an end wait on an idle connection: either way it is of no more use."""
        return bool(_readable([self], 0))

    def send(self, call: Call) -> int:
        """Send a request; returns its correlation id."""
        self._deadline = time.monotonic() + call.timeout_s
        body_bytes = sum(memoryview(b).nbytes for b in call.body)
        correlation_id, head = self._protocol.send(call.request, body_bytes)
        self._send_all([head, *call.body])
        return correlation_id

    def receive(self, correlation_id: int) -> Reply:
        """The reply to a request, waiting until the request's deadline."""
        while correlation_id not in self._replies:
            number, reply = self._next_reply()
            self._replies[number] = reply
        return self._replies.pop(correlation_id)

    def close(self) -> None:
        self._socket.close()

    def _next_reply(self) -> tuple[int, Reply]:
        while True:
            self._set_timeout()
            try:
                count = self._socket.recv_into(self._receiver.get_buffer())
            except OSError as error:
                raise _mapped(error, self.address) from error
            if not count:
                raise ConnectionClosed(f"{self.address} closed the connection.")
            for frame in self._receiver.buffer_updated(count):
                # One request at a time: at most one whole frame can be there.
                correlation_id, response, body = self._protocol.receive(frame)
                return correlation_id, Reply(response, body)

    def _send_all(self, buffers: Sequence[Buffer]) -> None:
        views = [memoryview(b).cast("B") for b in buffers if len(b)]
        while views:
            self._set_timeout()
            try:
                sent = self._socket.sendmsg(views[:IOV_MAX])
            except OSError as error:
                raise _mapped(error, self.address) from error
            while views and sent >= views[0].nbytes:
                sent -= views.pop(0).nbytes
            if sent:
                views[0] = views[0][sent:]

    def _set_timeout(self) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise RequestTimedOut(f"{self.address} did not answer in time.")
        self._socket.settimeout(left_s)


class BlockingTicket:
    """A started request: the connection is its own until the reply has been taken."""

    __slots__ = ("call", "connection", "correlation_id", "failure")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.connection: BlockingConnection | None = None
        self.correlation_id = -1
        self.failure: QuiverlogError | None = None


class BlockingDriver:
    """Performs the commands of operations; safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: dict[Address, list[BlockingConnection]] = {}
        self._closed = False

    def run(self, operation: Operation[T]) -> T:
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
                answer = self._perform(command)
            except QuiverlogError as error:
                failure = error

    @property
    def is_own_process(self) -> bool:
        """False in a child that was forked after the client was opened."""
        return os.getpid() == self._pid

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

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their request ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for connection in (c for connections in idle.values() for c in connections):
            connection.close()

    # --- commands -------------------------------------------------------------------------------
    def _perform(self, command: Command) -> object:
        match command:
            case Call():
                return self.finish(self.start(command))
            case Start(call):
                return self.start(call)
            case Finish(ticket):
                return self.finish(ticket)
            case FinishAny(tickets, timeout_s):
                return self._finish_any(tickets, timeout_s)
            case CallMany(calls):
                return self._call_many(calls)
            case Abandon(ticket):
                self.abandon(ticket)
                return None
            case Sleep(seconds):
                time.sleep(seconds)
                return None
            case _:
                assert_never(command)

    def start(self, call: Call) -> BlockingTicket:
        """Send a request on a connection of its own."""
        ticket = BlockingTicket(call)
        connection = self._take(call)
        try:
            ticket.correlation_id = connection.send(call)
        except BaseException:
            connection.close()
            raise
        ticket.connection = connection
        return ticket

    def finish(self, ticket: Ticket) -> Reply:
        """Wait for the reply; the connection goes back to the pool, or is closed on a failure."""
        assert isinstance(ticket, BlockingTicket)
        if ticket.failure is not None:
            raise ticket.failure
        connection = ticket.connection
        assert connection is not None, "a ticket is finished once"
        ticket.connection = None
        try:
            reply = connection.receive(ticket.correlation_id)
        except BaseException:  # also Ctrl-C: half a reply may be waiting on this connection
            connection.close()
            raise
        self._give_back(connection)
        return reply

    def abandon(self, ticket: Ticket) -> None:
        """The reply may come at any time: only closing the connection makes sure of it."""
        assert isinstance(ticket, BlockingTicket)
        if ticket.connection is not None:
            ticket.connection.close()
            ticket.connection = None

    def _call_many(self, calls: Sequence[Call]) -> list[Reply | QuiverlogError]:
        tickets = [self._start_or_failure(call) for call in calls]
        results: list[Reply | QuiverlogError] = []
        for ticket in tickets:
            try:
                results.append(self.finish(ticket))
            except QuiverlogError as error:
                results.append(error)
        return results

    def _start_or_failure(self, call: Call) -> BlockingTicket:
        try:
            return self.start(call)
        except QuiverlogError as error:
            failed = BlockingTicket(call)
            failed.failure = error
            return failed

    def _finish_any(self, tickets: Sequence[Ticket], timeout_s: float) -> Ticket | None:
        by_fd: dict[int, Ticket] = {}
        for ticket in tickets:
            assert isinstance(ticket, BlockingTicket)
            if ticket.connection is None:
                return ticket
            by_fd[ticket.connection.fileno()] = ticket
        ready = _readable([t.connection for t in by_fd.values()], timeout_s)  # type: ignore[attr-defined]
        return by_fd[ready[0]] if ready else None

    # --- the pool -------------------------------------------------------------------------------
    def _take(self, call: Call) -> BlockingConnection:
        while True:
            with self._lock:
                idle = self._idle.get(call.address)
                connection = idle.pop() if idle else None
            if connection is None:
                timeout_s = min(call.timeout_s, self._settings.connect_timeout_s)
                return BlockingConnection(call.address, self._settings, timeout_s)
            if not connection.is_stale():
                return connection
            connection.close()

    def _give_back(self, connection: BlockingConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(connection.address, [])
            if not self._closed and len(idle) < IDLE_PER_BROKER_MAX:
                idle.append(connection)
                return
        connection.close()


def _connect(address: Address, timeout_s: float) -> socket.socket:
    try:
        connected = socket.create_connection(address, timeout_s)
    except TimeoutError as error:
        raise ConnectionFailed(f"{address} did not answer within {timeout_s:g} s.") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name no resolver would take
        raise ConnectionFailed(f"Cannot connect to {address}: {_reason(error)}.") from error
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connected


def _readable(connections: Sequence[BlockingConnection], timeout_s: float) -> list[int]:
    poll = select.poll()
    for connection in connections:
        poll.register(connection.fileno(), select.POLLIN)
    return [fd for fd, _ in poll.poll(max(0, int(timeout_s * 1000 + 0.999)))]


def _mapped(error: OSError, address: Address) -> QuiverlogError:
    if isinstance(error, TimeoutError):
        return RequestTimedOut(f"{address} did not answer in time.")
    return ConnectionClosed(f"The connection to {address} broke: {_reason(error)}.")


def _reason(error: Exception) -> str:
    """The system's own words; asyncio puts the address in their place."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
