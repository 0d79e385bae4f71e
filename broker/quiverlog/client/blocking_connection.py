"""One blocking connection to a broker: a socket with the protocol's state.

Owns connecting, the deadline of the request under way, and the mapping of the system's errors to
ours. Belongs to one thread at a time; who that is, is up to the driver (blocking.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Final

from quiverlog.errors import ConnectionClosed, ConnectionFailed, QuiverlogError, RequestTimedOut
from quiverlog.version import VERSION
from quiverlog.wire import frames
from quiverlog.wire.connection import ClientConnection
from quiverlog.wire.messages import FetchRequest, FetchResponse, HelloRequest, Request, Response

from .answers import check_answer
from .commands import Buffer, Call, Reply
from .file_rows import FileRows
from .foreign import HEAD_BYTES, foreign_protocol
from .local_reads import FileReading, LocalReads, asks_for_ranges, has_ranges
from .name_lookup import late_reason, lookup, numeric
from .receive_memory import ArrowMemory
from .results import Address
from .routing import Settings, check

__all__ = ["BlockingConnection", "readable", "system_reason"]

IOV_MAX = 512
"""Buffers of one `sendmsg`."""
_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
)


class BlockingConnection:
    """One socket with the protocol's state; HELLO has been answered when it is made."""

    def __init__(
        self, address: Address, settings: Settings, timeout_s: float, local_reads: LocalReads
    ) -> None:
        self.address = address
        self._local_reads = local_reads
        self._asks_for_ranges = False
        """Of the request under way: its rows may be in files of this machine."""
        self._reading: tuple[FetchResponse, FileReading] | None = None
        """The answer that has come, some of whose rows are being read from files."""
        self.is_spent = False
        """More than the answer has come: no request may use this connection any more."""
        self._memory = ArrowMemory()
        self._receiver = frames.FrameReceiver(own_bodies=True, pool=self._memory)
        self._head = b""
        """How the server's first answer begins."""
        self._protocol = ClientConnection()
        self._request: Request = HelloRequest()
        self._deadline_s = time.monotonic() + timeout_s
        self._socket = _connect(address, timeout_s)
        self._is_on_this_machine = _is_on_this_machine(self._socket)
        try:
            self._send_all([self._protocol.hello(settings.client_id, VERSION)])
            check(self.receive().response)
        except QuiverlogError as error:
            self.close()
            foreign = foreign_protocol(self._head, address)
            if foreign is not None:
                raise ConnectionFailed(foreign) from error
            raise
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """The socket's descriptor; -1 after `close`."""
        return self._socket.fileno()

    def is_stale(self) -> bool:
        """Bytes or an end wait on an idle connection: either way it is of no more use."""
        try:
            return bool(readable([self], 0))
        except ConnectionClosed:
            return True

    def send(self, call: Call, send_by_s: float, reply_by_s: float) -> None:
        """Send a request; both bounds are moments of the monotonic clock."""
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
        """The reply to the request, waiting until the request's deadline."""
        while True:
            # After the deadline what has arrived is still taken: the caller may have been away.
            self._socket.settimeout(max(0.0, self.left_s))
            try:
                reply = self._receive_some()
            except BlockingIOError:
                raise self._late() from None
            if reply is not None:
                return reply

    @property
    def has_answer(self) -> bool:
        """The answer has come, and needs no more of the socket: its rows are in files."""
        return self._reading is not None

    def advance(self) -> Reply | None:
        """What has arrived, without waiting: rows in files are read by a thread from now on."""
        assert self._reading is None, "there is no more to come"
        self._socket.settimeout(0.0)
        try:
            return self._receive_some(is_ahead=True)
        except BlockingIOError:
            return None

    def receive_ready(self) -> Reply | None:
        """What has arrived, without waiting: the reply once all of it is there.

        Raises:
            RequestTimedOut: the request's deadline has passed.
        """
        self._socket.settimeout(0.0)
        try:
            return self._receive_some()
        except BlockingIOError:
            if self.left_s <= 0:
                raise self._late() from None
            return None

    @property
    def left_s(self) -> float:
        """Seconds until the request's deadline; negative after it."""
        return self._deadline_s - time.monotonic()

    def close(self) -> None:
        """Close the socket. A second call does nothing."""
        self._socket.close()

    def _receive_some(self, *, is_ahead: bool = False) -> Reply | None:
        if self._reading is not None:
            return self._with_file_rows(*self._reading)
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
        # One request at a time: whatever follows its answer was not asked for.
        receiver = self._receiver
        self.is_spent = len(found) > 1 or receiver.partial or receiver.error is not None
        _, response, body = self._protocol.receive(found[0])
        if not (
            self._asks_for_ranges and isinstance(response, FetchResponse) and has_ranges(response)
        ):
            return self._checked(response, body)
        reading = FileReading(FileRows(response, body, self._memory))
        if not is_ahead:
            return self._with_file_rows(response, reading)
        self._reading = response, reading
        self._local_reads.read_ahead(reading)
        return None

    def _with_file_rows(self, response: FetchResponse, reading: FileReading) -> Reply | None:
        """The reply; None: its rows have to be sent, and are asked for."""
        self._reading = None
        try:
            body = reading.finish()
        except OSError as error:
            self._local_reads.failed(self.address, error)
            self._ask_for_rows()
            return None
        return self._checked(response, body)

    def _checked(self, response: Response, body: memoryview) -> Reply:
        check_answer(self._request, response, len(body))
        return Reply(response, body)

    def _ask_for_rows(self) -> None:
        """Ask again, by the same deadline, for rows in the answer."""
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
    """Try what the name resolves to, one after the other, within one timeout."""
    end_s = time.monotonic() + timeout_s
    try:
        found = numeric(address) or lookup(address).result(timeout_s)
    except TimeoutError as error:
        raise ConnectionFailed(late_reason(address, timeout_s)) from error
    except (OSError, ValueError) as error:  # ValueError: a name no resolver would take
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
    """Both ends have one address: a broker here, or the end of a tunnel, whose files are tried."""
    try:
        return bool(connected.getpeername()[0] == connected.getsockname()[0])
    except OSError:
        return False


def readable(connections: Sequence[BlockingConnection], timeout_s: float) -> list[int]:
    """Descriptors of the connections that have bytes, or an end, after at most `timeout_s`.

    Raises:
        ConnectionClosed: the system cannot wait for them.
    """
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
    """The system's own words; asyncio puts the address in their place."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
