"""The blocking driver: plain sockets, one request at a time per connection.

Owns a pool of idle connections per broker. Threads may share a driver: a connection belongs to one
request until its reply. One that the broker closed while idle is replaced silently. After fork()
the child may not use the parent's sockets: every entry compares the process id.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

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
from quiverlog.client.base.security import Security
from quiverlog.client.cluster.answers import check_answer
from quiverlog.client.cluster.metadata import check
from quiverlog.client.cluster.routing import Settings
from quiverlog.errors import (
    ClientClosed,
    ConnectionClosed,
    ConnectionFailed,
    CorruptFrame,
    ForkedClient,
    FrameTooLarge,
    InvalidRequest,
    InvalidSecurity,
    QuiverlogError,
    RequestTimedOut,
)
from quiverlog.version import VERSION
from quiverlog.wire import frames
from quiverlog.wire.authentication_messages import AuthenticateRequest, AuthenticateResponse
from quiverlog.wire.connection import ClientConnection
from quiverlog.wire.messages import (
    FetchRequest,
    FetchResponse,
    HelloRequest,
    Request,
    Response,
)

from .local_reads import (
    FileRows,
    LocalReads,
    asks_for_ranges,
    has_ranges,
)
from .name_lookup import late_reason, lookup, numeric

if TYPE_CHECKING:
    from .tls import ClientTls, TlsSocket

__all__ = [
    "ArrowMemory",
    "BlockingConnection",
    "BlockingDriver",
    "client_tls_of",
    "readable",
    "system_reason",
]


logger = logging.getLogger("quiverlog")

# Of the first answer: the error about a server that is no broker shows them.
HEAD_BYTES: Final = 8
IOV_MAX = 512
_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
)


class ArrowMemory:
    """Buffers from Arrow's pool, which has the pages of freed tables at hand and counts them in
    `pyarrow.total_allocated_bytes`. With `BufferPool` in its place reads took longer."""

    __slots__ = ()

    def take(self, size: int) -> memoryview:
        """Return `size` writable bytes, aligned to 64, of arbitrary content."""
        assert size > 0
        import pyarrow as pa  # with the first large frame: commands without rows never import it

        return memoryview(pa.allocate_buffer(size)).cast("B")


class BlockingConnection:
    """One socket with the protocol's state; HELLO has been answered when it is made."""

    def __init__(
        self,
        address: Address,
        settings: Settings,
        timeout_s: float,
        local_reads: LocalReads,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
        plain: socket.socket | None = None,
    ) -> None:
        """`plain`: is connected already, to a broker that asks for nothing."""
        self.address = address
        self._credentials = credentials or Credentials(settings.security)
        # When to log in again; None: never.
        self._renew_s: float | None = None
        self._login_ends_s = 0.0
        self._local_reads = local_reads
        self._asks_for_ranges = False
        # More than the answer has arrived: the connection is not used again.
        self.is_spent = False
        self._memory = ArrowMemory()
        self._receiver = frames.FrameReceiver(own_bodies=True, pool=self._memory)
        self._head = b""
        self._protocol = ClientConnection()
        self._request: Request = HelloRequest()
        self._deadline_s = time.monotonic() + timeout_s
        self._is_on_this_machine = False
        if plain is not None:
            tls = None
        else:
            plain = _connect(address, timeout_s)
            self._is_on_this_machine = _is_on_this_machine(plain)
        self._socket: socket.socket | TlsSocket = plain
        if tls is not None:
            self._socket = tls.connect(plain, address, self._deadline_s)
        try:
            self._send_all([self._protocol.hello(settings.client_id, VERSION)])
            check(self._receive_hello(tls))
            self._log_in()
        except QuiverlogError as error:
            self.close()
            if isinstance(error, (CorruptFrame, FrameTooLarge)):
                raise ConnectionFailed(
                    f"{address} is no broker's port for clients: it answers with {self._head!r}."
                ) from error
            raise
        except BaseException:
            self.close()
            raise

    def _log_in(self) -> None:
        peer = self._protocol.peer
        assert peer is not None, "HELLO was answered"
        login = self._credentials.begin(self.address, peer)
        if login is None:
            return
        self._deadline_s = max(self._deadline_s, time.monotonic() + LOGIN_S)
        request: AuthenticateRequest | None = login.request
        while request is not None:
            self._request = request
            self._send_all([self._protocol.send(request)[1]])
            response = self.receive().response
            assert isinstance(response, AuthenticateResponse)
            request = login.answer(response)
        self._renew_s = None
        if login.expires_ms >= 0:
            left_s = login.expires_ms / 1000
            self._login_ends_s = time.monotonic() + left_s
            self._renew_s = time.monotonic() + renewed_in_s(left_s)

    def renew(self, timeout_s: float) -> bool:
        """Log in again where the login is about to expire; return whether the login counts."""
        if self._renew_s is None or time.monotonic() < self._renew_s:
            return True
        self._deadline_s = time.monotonic() + timeout_s
        try:
            self._log_in()
        except (InvalidSecurity, InvalidRequest) as error:
            # Nothing was sent, or it is another user's: the login before counts until its end.
            logger.warning("the login at %s is not renewed: %s", self.address, error.message)
            left_s = self._login_ends_s - time.monotonic()
            self._renew_s = time.monotonic() + renewed_in_s(left_s, has_failed=True)
            return left_s > 0
        except QuiverlogError as error:
            logger.warning("the login at %s is not renewed: %s", self.address, error.message)
            return False
        return True

    def _receive_hello(self, tls: ClientTls | None) -> Response:
        try:
            return self.receive().response
        except ConnectionClosed as error:
            if tls is None:
                raise
            # In TLS 1.3 the broker judges our certificate after our handshake is over.
            raise tls.early_close_error(self.address, error) from error

    def fileno(self) -> int:
        return self._socket.fileno()

    def pending(self) -> int:
        """Return the received bytes that `poll` does not report."""
        return 0 if isinstance(self._socket, socket.socket) else self._socket.pending()

    def is_stale(self) -> bool:
        # An idle connection has nothing to read, unless its end.
        try:
            if not readable([self], 0):
                return False
            return isinstance(self._socket, socket.socket) or self._socket.is_stale()
        except ConnectionClosed:
            return True

    def send(self, call: Call, send_by_s: float, reply_by_s: float) -> None:
        self._deadline_s = send_by_s
        request = call.request
        body_bytes = sum(memoryview(b).nbytes for b in call.body)
        asked, self._asks_for_ranges = request, False
        tries_files = self._is_on_this_machine and self._local_reads.are_tried(self.address)
        if tries_files and isinstance(request, FetchRequest):
            asked, self._asks_for_ranges = asks_for_ranges(request), True
        _, head = self._protocol.send(asked, body_bytes)
        self._send_all([head, *call.body])
        self._request = request
        self._deadline_s = reply_by_s

    def receive(self) -> Reply:
        while True:
            # After the deadline, what has arrived still counts: the caller may have been busy.
            self._socket.settimeout(max(0.0, self.left_s))
            try:
                reply = self._receive_some()
            except BlockingIOError:
                raise self._late() from None
            if reply is not None:
                return reply

    def receive_ready(self) -> Reply | None:
        """Read what has arrived; None: the reply is not complete."""
        self._socket.settimeout(0.0)
        try:
            return self._receive_some()
        except BlockingIOError:
            if self.left_s <= 0:
                raise self._late() from None
            return None

    @property
    def left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def close(self) -> None:
        self._socket.close()

    def _receive_some(self) -> Reply | None:
        try:
            room = self._receiver.get_buffer()
            count = self._socket.recv_into(room)
        except BlockingIOError:
            raise
        except OSError as error:
            raise _mapped(error, self.address) from error
        if not count:
            raise ConnectionClosed(f"{self.address} closed the connection.")
        if len(self._head) < HEAD_BYTES:
            self._head += bytes(room[: min(count, HEAD_BYTES)])
        found = self._receiver.buffer_updated(count)
        if not found:
            return None
        # One request at a time: nothing may follow its answer.
        receiver = self._receiver
        self.is_spent = len(found) > 1 or receiver.partial or receiver.error is not None
        _, response, body = self._protocol.receive(found[0])
        if self._asks_for_ranges and isinstance(response, FetchResponse) and has_ranges(response):
            file_rows = FileRows(response, body, self._memory)
            try:
                file_rows.read()
            except OSError as error:
                self._local_reads.failed(self.address, error)
                self._ask_for_rows()
                return None
            body = file_rows.rows
        check_answer(self._request, response, len(body))
        return Reply(response, body)

    def _ask_for_rows(self) -> None:
        # The deadline stays.
        self._asks_for_ranges = False
        _, head = self._protocol.send(self._request, 0)
        self._send_all([head])

    def _send_all(self, buffers: Sequence[Buffer]) -> None:
        views = [memoryview(b).cast("B") for b in buffers if len(b)]
        while views:
            left_s = self.left_s
            if left_s <= 0:
                raise self._late()
            self._socket.settimeout(left_s)
            try:
                sent = self._socket.sendmsg(views[:IOV_MAX])
            except OSError as error:
                raise _mapped(error, self.address) from error
            while views and sent >= views[0].nbytes:
                sent -= views.pop(0).nbytes
            if sent:
                views[0] = views[0][sent:]

    def _late(self) -> RequestTimedOut:
        return RequestTimedOut(f"{self.address} did not answer in time.")


def _connect(address: Address, timeout_s: float) -> socket.socket:
    end_s = time.monotonic() + timeout_s
    try:
        found = numeric(address) or lookup(address).result(timeout_s)
    except TimeoutError as error:
        raise ConnectionFailed(late_reason(address, timeout_s)) from error
    except (OSError, ValueError) as error:  # ValueError: a name that resolvers refuse
        raise ConnectionFailed(f"Cannot connect to {address}: {system_reason(error)}.") from error
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, where in found:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        try:
            connected = socket.socket(family, kind, protocol)
        except OSError as error:  # No descriptor is left, or the system lacks this family.
            failure = error
            continue
        try:
            connected.settimeout(left_s)
            connected.connect(where)
        except OSError as error:
            connected.close()
            failure = error
            continue
        except BaseException:
            connected.close()
            raise
        for level, option in _OPTIONS:
            with contextlib.suppress(OSError):  # Doing without is no error.
                connected.setsockopt(level, option, 1)
        return connected
    if isinstance(failure, TimeoutError):
        message = late_reason(address, timeout_s)
    else:
        message = f"Cannot connect to {address}: {system_reason(failure)}."
    raise ConnectionFailed(message) from failure


def _is_on_this_machine(connected: socket.socket) -> bool:
    # Both ends have one address: a broker here, or a tunnel.
    try:
        return bool(connected.getpeername()[0] == connected.getsockname()[0])
    except OSError:
        return False


def client_tls_of(security: Security | None) -> ClientTls | None:
    """Return what makes the connections of a client secure; None: they are plain."""
    if security is None or not security.tls:
        return None
    from .tls import ClientTls  # plain clients never import `ssl`

    return ClientTls(security)


def readable(connections: Sequence[BlockingConnection], timeout_s: float) -> list[int]:
    """Return descriptors with bytes, or an end, to read."""
    decrypted = [connection.fileno() for connection in connections if connection.pending()]
    if decrypted:
        return decrypted
    poll = select.poll()
    for connection in connections:
        poll.register(connection.fileno(), select.POLLIN)
    try:
        return [fd for fd, _ in poll.poll(max(0, int(timeout_s * 1000 + 0.999)))]
    except OSError as error:
        raise ConnectionClosed(f"Cannot wait for a reply: {system_reason(error)}.") from error


def _mapped(error: OSError, address: Address) -> QuiverlogError:
    if isinstance(error, TimeoutError):
        return RequestTimedOut(f"{address} did not answer in time.")
    return ConnectionClosed(f"The connection to {address} broke: {system_reason(error)}.")


def system_reason(error: Exception) -> str:
    """Return the system's text, which asyncio replaces by the address."""
    ssl = sys.modules.get("ssl")  # A plain client never loads it.
    if ssl is not None and isinstance(error, ssl.SSLError):
        from quiverlog.tls import why_broken

        return why_broken(error)  # Its number is OpenSSL's, and none of the system.
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


T = TypeVar("T")

IDLE_PER_BROKER_MAX = 8


class BlockingReply:
    """A started request, with a connection to itself."""

    __slots__ = ("__weakref__", "call", "connection", "failure", "reply")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.connection: BlockingConnection | None = None
        self.reply: Reply | None = None
        self.failure: QuiverlogError | None = None

    @property
    def is_ready(self) -> bool:
        return self.reply is not None or self.failure is not None


class BlockingDriver:
    """`dial`: returns a connection to an address that is not to be connected to."""

    def __init__(self, settings: Settings) -> None:
        self.dial: Callable[[Address], socket.socket | None] | None = None
        self._settings = settings
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._local_reads = LocalReads()
        self._tls = client_tls_of(settings.security)
        self._credentials = Credentials(settings.security)
        self._idle: dict[Address, list[BlockingConnection]] = {}
        # Consumers leave some under way between operations.
        self._started: weakref.WeakSet[BlockingReply] = weakref.WeakSet()
        self._operations = 0
        self._closed = False

    def run(self, operation: Operation[T]) -> T:
        self.check_usable()
        with self._lock:
            self._operations += 1
        try:
            return self._run(operation)
        finally:
            with self._lock:
                assert self._operations > 0, "this one is counted"
                self._operations -= 1
            if self._closed:
                self._close_started()

    def _run(self, operation: Operation[T]) -> T:
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
                if self._closed:  # by another thread, since the operation began
                    self.check_usable()
                answer = self._perform(command)
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

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for connection in (c for connections in idle.values() for c in connections):
            connection.close()
        self._close_started()

    def _close_started(self) -> None:
        """Close the requests under way, once no operation may wait for them."""
        with self._lock:
            left = [] if self._operations else list(self._started)
        for pending in left:
            self.abandon(pending)

    def _perform(self, command: Command) -> object:
        match command:
            case Call():
                return self.finish(self.start(command))
            case Start(call, within_s):
                return self.start(call, within_s)
            case Finish(pending):
                return self.finish(pending)
            case FinishAny(pending_many, timeout_s):
                return self._finish_any(pending_many, timeout_s)
            case CallMany(calls):
                return self._call_many(calls)
            case Abandon(pending):
                self.abandon(pending)
                return None
            case Sleep(seconds):
                time.sleep(seconds)
                return None
            case _:
                assert_never(command)

    def start(self, call: Call, within_s: float | None = None) -> BlockingReply:
        now_s = time.monotonic()
        reply_by_s = now_s + call.timeout_s
        send_by_s = reply_by_s if within_s is None else min(reply_by_s, now_s + within_s)
        pending = BlockingReply(call)
        connection = self._take(call, send_by_s - now_s)
        try:
            connection.send(call, send_by_s, reply_by_s)
        except BaseException:
            connection.close()
            raise
        pending.connection = connection
        with self._lock:
            self._started.add(pending)
        return pending

    def finish(self, pending: PendingReply) -> Reply:
        """Wait; the connection goes back to the pool, or is closed on a failure."""
        assert isinstance(pending, BlockingReply)
        if pending.failure is not None:
            raise pending.failure
        reply = pending.reply
        if reply is not None:
            return reply
        connection = pending.connection
        assert connection is not None, "a reply is taken once"
        pending.connection = None
        try:
            reply = connection.receive()
        except BaseException:  # also Ctrl-C: half a reply may be left on this connection
            connection.close()
            raise
        self._give_back(connection)
        return reply

    def abandon(self, pending: PendingReply) -> None:
        """Close the connection: the reply may arrive at any time."""
        assert isinstance(pending, BlockingReply)
        if pending.connection is not None:
            pending.connection.close()
            pending.connection = None

    def _call_many(self, calls: Sequence[Call]) -> list[Reply | QuiverlogError]:
        # The largest timeout bounds them together.
        end_s = time.monotonic() + max((call.timeout_s for call in calls), default=0.0)
        started = [self._start_or_failure(call, end_s - time.monotonic()) for call in calls]
        results: list[Reply | QuiverlogError] = []
        for pending in started:
            try:
                results.append(self.finish(pending))
            except QuiverlogError as error:
                results.append(error)
        return results

    def _start_or_failure(self, call: Call, left_s: float) -> BlockingReply:
        try:
            timeout_s = min(call.timeout_s, left_s)
            if timeout_s <= 0:
                raise RequestTimedOut(f"{call.address} was not asked in time.")
            return self.start(replace(call, timeout_s=timeout_s))
        except QuiverlogError as error:
            failed = BlockingReply(call)
            failed.failure = error
            return failed

    def _finish_any(
        self, pending_many: Sequence[PendingReply], timeout_s: float
    ) -> BlockingReply | None:
        """Read what arrives until one reply is complete; half a reply blocks no others."""
        end_s = time.monotonic() + timeout_s
        waiting: dict[int, BlockingReply] = {}
        for pending in pending_many:
            assert isinstance(pending, BlockingReply)
            if pending.is_ready or pending.connection is None:
                return pending
            waiting[pending.connection.fileno()] = pending
        while True:
            connections = [p.connection for p in waiting.values() if p.connection is not None]
            wait_s = min([end_s - time.monotonic(), *(c.left_s for c in connections)])
            ready = readable(connections, max(0.0, wait_s))
            if not ready:  # a request's time may be up, with or without bytes
                ready = [c.fileno() for c in connections if c.left_s <= 0]
            for fd in ready:
                pending = waiting[fd]
                assert pending.connection is not None
                self._receive(pending, pending.connection.receive_ready)
                if pending.is_ready:
                    return pending
            if time.monotonic() >= end_s:
                return None

    def _receive(self, pending: BlockingReply, receive: Callable[[], Reply | None]) -> None:
        """Read what has arrived; keep an error for the caller that waits for the reply."""
        connection = pending.connection
        assert connection is not None
        try:
            pending.reply = receive()
        except QuiverlogError as error:
            pending.failure = error
            connection.close()
        except BaseException:  # Ctrl-C: the caller may go on, and ask for the same rows again
            pending.failure = ConnectionClosed("Waiting for an answer was interrupted.")
            pending.connection = None
            connection.close()
            raise
        if pending.is_ready:
            pending.connection = None
            if pending.reply is not None:
                self._give_back(connection)

    def _take(self, call: Call, within_s: float) -> BlockingConnection:
        while True:
            with self._lock:
                idle = self._idle.get(call.address)
                connection = idle.pop() if idle else None
            if connection is None:
                timeout_s = min(within_s, self._settings.connect_timeout_s)
                plain = None if self.dial is None else self.dial(call.address)
                return BlockingConnection(
                    call.address,
                    self._settings,
                    timeout_s,
                    self._local_reads,
                    self._tls,
                    self._credentials,
                    plain,
                )
            if not connection.is_stale():
                try:
                    if connection.renew(min(within_s, self._settings.connect_timeout_s)):
                        return connection
                except BaseException:
                    connection.close()
                    raise
            connection.close()

    def _give_back(self, connection: BlockingConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault(connection.address, [])
            is_useful = not (self._closed or connection.is_spent)
            if is_useful and len(idle) < IDLE_PER_BROKER_MAX:
                idle.append(connection)
                return
        connection.close()
