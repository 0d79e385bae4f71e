"""The asyncio driver: one multiplexed connection per broker and channel.

Replies are matched by correlation id, so a parked fetch delays no later request. `IoThread` is the
loop for the producers of a blocking client: a daemon, so that a process which never closes its
client can end.

Invariant: everything belongs to the event loop on which it was first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, assert_never, cast

from quiverlog.client.base.commands import (
    Abandon,
    Buffer,
    Call,
    CallMany,
    Command,
    Finish,
    FinishAny,
    Operation,
    PendingReply,
    Reply,
    Sleep,
    Start,
)
from quiverlog.client.base.login import LOGIN_S, Credentials, renewed_in_s
from quiverlog.client.base.results import Address
from quiverlog.client.cluster.answers import check_answer
from quiverlog.client.cluster.metadata import check
from quiverlog.client.cluster.routing import Settings
from quiverlog.errors import (
    BrokerNotProved,
    ClientClosed,
    ConnectionClosed,
    ConnectionFailed,
    ForkedClient,
    InvalidResponse,
    QuiverlogError,
    RequestTimedOut,
)
from quiverlog.version import VERSION
from quiverlog.wire import frames
from quiverlog.wire.authentication_messages import AuthenticateRequest, AuthenticateResponse
from quiverlog.wire.connection import ClientConnection
from quiverlog.wire.messages import HelloRequest, Request, Response

from .blocking import ArrowMemory, client_tls_of, system_reason
from .name_lookup import late_reason, lookup, numeric

if TYPE_CHECKING:
    from .tls import ClientTls

__all__ = ["AsyncConnection", "AsyncDriver", "IoThread"]


T = TypeVar("T")
logger = logging.getLogger("quiverlog")

# Up to here head and body are joined: one system call costs more than the copy.
JOIN_BYTES_MAX = 64 * 1024

# Correlation ids start at 1, and HELLO is the first request of a connection.
HELLO_ID = 1


class AsyncConnection(asyncio.BufferedProtocol):
    """A socket with the protocol's state. Call `hello` once, then `request`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.closed = False
        self._receiver = frames.FrameReceiver(own_bodies=True, pool=ArrowMemory())
        self._protocol = ClientConnection()
        self._pending: dict[int, tuple[Request, asyncio.Future[Reply]]] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._login_ends_s = 0.0
        self._renewal: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    # --- asyncio's side -------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # By what it can do, not by its type: uvloop's transports inherit from nothing.
        self._transport = cast(asyncio.Transport, transport)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # Doing without is no error.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._receiver.buffer_updated(nbytes):
                self._take(frame)
            if self._receiver.error is not None:
                self._end(self._receiver.error)
        except QuiverlogError as error:
            self._end(error)

    def _take(self, frame: frames.Frame) -> None:
        try:
            correlation_id, response, body = self._protocol.receive(frame)
        except InvalidResponse as error:
            asked = self._pending.pop(frames.peek_preamble(frame.header)[2], None)
            if asked is not None and not asked[1].done():
                asked[1].set_exception(error)
            return
        asked = self._pending.pop(correlation_id, None)
        if asked is not None and not asked[1].done():
            self._answer(*asked, response, body)

    def _answer(
        self,
        request: Request,
        waiting: asyncio.Future[Reply],
        response: Response,
        body: memoryview,
    ) -> None:
        try:
            check_answer(request, response, len(body))
        except QuiverlogError as error:
            waiting.set_exception(error)
            return
        waiting.set_result(Reply(response, body))

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"The connection to {self.address} broke: {system_reason(exc)}." if exc else ""
        closed = ConnectionClosed(why or f"{self.address} closed the connection.")
        closed.__cause__ = exc
        self._end(closed)

    async def hello(self, settings: Settings, timeout_s: float) -> None:
        head = self._protocol.hello(settings.client_id, VERSION)
        reply = await self._transmit(HELLO_ID, HelloRequest(), head, (), timeout_s)
        check(reply.response)

    async def log_in(self, credentials: Credentials, timeout_s: float = LOGIN_S) -> None:
        """Log in, where it is needed, and again before the login expires.

        Args:
            timeout_s: of each step.
        """
        peer = self._protocol.peer
        assert peer is not None, "HELLO was answered"
        login = credentials.begin(self.address, peer)
        if login is None:
            return
        request: AuthenticateRequest | None = login.request
        while request is not None:
            response = (await self.request(request, (), timeout_s)).response
            assert isinstance(response, AuthenticateResponse)
            request = login.answer(response)
        if login.expires_ms >= 0 and not self.closed:
            left_s = login.expires_ms / 1000
            self._login_ends_s = self._loop.time() + left_s
            self._renewal = self._loop.call_later(renewed_in_s(left_s), self._renew, credentials)

    def _renew(self, credentials: Credentials) -> None:
        self._renewing = self._loop.create_task(self.log_in(credentials))
        self._renewing.add_done_callback(lambda done: self._renewed(done, credentials))

    def _renewed(self, done: asyncio.Task[None], credentials: Credentials) -> None:
        error = None if done.cancelled() else done.exception()
        if self.closed or not isinstance(error, QuiverlogError):
            return
        # Never the error itself: to a request under way it would be the broker's answer, "not
        # stored". The next connection raises it.
        if isinstance(error, BrokerNotProved):
            self._end(ConnectionClosed(f"The connection is closed: {error.message}"))
            return
        logger.warning("the login at %s is not renewed: %s", self.address, error.message)
        left_s = self._login_ends_s - self._loop.time()
        if left_s > 0:  # Until then it counts; then the broker ends the connection.
            again_s = renewed_in_s(left_s, has_failed=True)
            self._renewal = self._loop.call_later(again_s, self._renew, credentials)

    def request(
        self, request: Request, body: Sequence[Buffer], timeout_s: float
    ) -> asyncio.Future[Reply]:
        """Send; the future gets the reply, or ConnectionClosed, or RequestTimedOut."""
        if self.closed:
            raise ConnectionClosed(f"The connection to {self.address} is closed.")
        body_bytes = sum(memoryview(b).nbytes for b in body)
        correlation_id, head = self._protocol.send(request, body_bytes)
        return self._transmit(correlation_id, request, head, body, timeout_s, body_bytes)

    def close(self, why: str = "The client closed the connection.") -> None:
        self._end(ConnectionClosed(why))

    def _transmit(
        self,
        correlation_id: int,
        request: Request,
        head: bytes,
        body: Sequence[Buffer],
        timeout_s: float,
        body_bytes: int = 0,
    ) -> asyncio.Future[Reply]:
        assert self._transport is not None
        waiting: asyncio.Future[Reply] = self._loop.create_future()
        self._pending[correlation_id] = (request, waiting)
        timer = self._loop.call_later(timeout_s, self._timed_out, waiting)

        def is_over(done: asyncio.Future[Reply]) -> None:
            timer.cancel()
            if not done.cancelled():
                done.exception()  # Retrieved: the caller may have abandoned all its requests.

        waiting.add_done_callback(is_over)
        if self._transport.is_closing():
            pass  # It broke: `connection_lost` follows, and fails what is pending.
        elif body_bytes <= JOIN_BYTES_MAX:
            self._transport.write(b"".join([head, *body]))
        else:
            self._transport.write(head)
            for buffer in body:
                self._transport.write(buffer)
        return waiting

    def _timed_out(self, waiting: asyncio.Future[Reply]) -> None:
        if not waiting.done():
            waiting.set_exception(RequestTimedOut(f"{self.address} did not answer in time."))
            # A broker that is silent about one request may be about the next.
            self.close()

    def _end(self, error: QuiverlogError) -> None:
        if self.closed:
            return
        self.closed = True
        if self._renewal is not None:
            self._renewal.cancel()
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, {}
        for _, waiting in pending.values():
            if not waiting.done():
                # One error each: receivers add the partitions of their requests.
                own = type(error)(error.message, **error.details)
                own.__cause__ = error.__cause__
                waiting.set_exception(own)


class AsyncReply:
    __slots__ = ("call", "waiting")

    def __init__(self, call: Call, waiting: asyncio.Future[Reply]) -> None:
        self.call = call
        self.waiting = waiting


class AsyncDriver:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tls = client_tls_of(settings.security)
        self._credentials = Credentials(settings.security)
        self._pid = os.getpid()
        self._connections: dict[tuple[Address, str], AsyncConnection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Task[AsyncConnection]] = {}
        self._closed = False

    async def run(self, operation: Operation[T]) -> T:
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
    def is_own_process(self) -> bool:
        return os.getpid() == self._pid

    @property
    def is_usable(self) -> bool:
        return self.is_own_process and not self._closed

    def check_usable(self) -> None:
        if not self.is_own_process:
            raise ForkedClient("This client was opened before the process forked.")
        if self._closed:
            raise ClientClosed("The client is closed: open a new one.")

    async def close(self) -> None:
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
            case Start(call, within_s):
                return await self.start(call, within_s)
            case Finish(pending):
                assert isinstance(pending, AsyncReply)
                return await pending.waiting
            case FinishAny(pending_many, timeout_s):
                return await self._finish_any(pending_many, timeout_s)
            case CallMany(calls):
                return await self._call_many(calls)
            case Abandon(pending):
                self.abandon(pending)
                return None
            case Sleep(seconds):
                await asyncio.sleep(seconds)
                return None
            case _:
                assert_never(command)

    async def start(self, call: Call, within_s: float | None = None) -> AsyncReply:
        loop = asyncio.get_running_loop()
        reply_by_s = loop.time() + call.timeout_s
        connect_s = call.timeout_s if within_s is None else min(within_s, call.timeout_s)
        connection = await self.connection(call.address, call.channel, connect_s)
        left_s = max(0.0, reply_by_s - loop.time())
        return AsyncReply(call, connection.request(call.request, call.body, left_s))

    def abandon(self, pending: PendingReply) -> None:
        assert isinstance(pending, AsyncReply)
        pending.waiting.add_done_callback(_ignore)

    def leave(self, address: Address, channel: str, why: str) -> None:
        connection = self._connections.pop((address, channel), None)
        if connection is not None:
            connection.close(why)

    async def _call_many(self, calls: Iterable[Call]) -> list[Reply | QuiverlogError]:
        async def one(call: Call) -> Reply | QuiverlogError:
            try:
                return await (await self.start(call)).waiting
            except QuiverlogError as error:
                return error

        return list(await asyncio.gather(*(one(call) for call in calls)))

    async def _finish_any(
        self, pending_many: Sequence[PendingReply], timeout_s: float
    ) -> PendingReply | None:
        by_future = {p.waiting: p for p in pending_many if isinstance(p, AsyncReply)}
        if not by_future:
            await asyncio.sleep(timeout_s)
            return None
        done, _ = await asyncio.wait(
            by_future, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        return next((p for f, p in by_future.items() if f in done), None)

    # --- connections ----------------------------------------------------------------------------
    def ready(self, address: Address, channel: str) -> AsyncConnection | None:
        known = self._connections.get((address, channel))
        return None if known is None or known.closed else known

    async def connection(self, address: Address, channel: str, timeout_s: float) -> AsyncConnection:
        key = (address, channel)
        known = self._connections.get(key)
        if known is not None and not known.closed:
            return known
        if self._closed:
            raise ClientClosed("The client is closed: open a new one.")
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(address, timeout_s))
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        # Callers share one attempt. Shielded: the cancellation of one must not reach the others.
        # Nor may one wait longer than its own timeout because the first had more.
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise ConnectionFailed(late_reason(address, timeout_s)) from error

    def _opened(self, key: tuple[Address, str], task: asyncio.Task[AsyncConnection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled() and task.exception() is None:
            self._connections[key] = task.result()

    async def _open(self, address: Address, timeout_s: float) -> AsyncConnection:
        timeout_s = min(timeout_s, self._settings.connect_timeout_s)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                connection = await _connected(address, self._tls, timeout_s)
        except TimeoutError as error:
            raise ConnectionFailed(late_reason(address, timeout_s)) from error
        except (OSError, ValueError) as error:
            raise ConnectionFailed(
                f"Cannot connect to {address}: {system_reason(error)}."
            ) from error
        try:
            await connection.hello(self._settings, max(0.0, end_s - loop.time()))
        except ConnectionClosed as error:
            connection.close()
            if self._tls is None:
                raise
            # In TLS 1.3 the broker judges our certificate after our handshake is over.
            raise self._tls.early_close_error(address, error) from error
        except BaseException:
            connection.close()
            raise
        try:
            login_s = max(LOGIN_S, end_s - loop.time())
            await connection.log_in(self._credentials, login_s)
        except BaseException:
            connection.close()
            raise
        return connection


async def _connected(address: Address, tls: ClientTls | None, timeout_s: float) -> AsyncConnection:
    # asyncio's own lookup runs in an executor's thread, for which the end of the loop, or of the
    # process, would wait.
    loop = asyncio.get_running_loop()
    found = numeric(address)
    if found is None:
        found = await asyncio.wrap_future(lookup(address))
    secured: dict[str, Any] = {}
    if tls is not None:
        name = tls.server_name(address)
        secured = {"ssl": tls.current(), "server_hostname": name}
        secured["ssl_handshake_timeout"] = timeout_s
    failure: Exception = OSError(f"no address of {address.host} is known")
    for *_, where in found:
        try:
            _, connection = await loop.create_connection(
                lambda: AsyncConnection(address), where[0], where[1], **secured
            )
        except OSError as error:
            failure = error if tls is None else tls.handshake_error(address, error)
        else:
            return connection
    raise failure


def _ignore(waiting: asyncio.Future[Reply]) -> None:
    if not waiting.cancelled():
        waiting.exception()


STOP_TIMEOUT_S = 10.0


class IoThread:
    def __init__(self, settings: Settings) -> None:
        try:
            self.loop = asyncio.new_event_loop()
        except OSError as error:
            why = system_reason(error)
            raise ConnectionFailed(f"No event loop can be made for producers: {why}.") from error
        self.driver = AsyncDriver(settings)
        self._thread = threading.Thread(target=self._main, name="quiverlog-io", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        self.run(self.driver.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), "the I/O thread does not end"

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
