"""One client's connection on the loop: bytes in, requests to the node, replies out.

Owns flow control. Reading stops while too many requests are unanswered or too many bytes wait to be
taken; requests that were already received then wait in a backlog (copied: the receive buffer is
shared by all connections), which never holds more than one read brought.

A client that breaks the protocol gets one error response; what it still sends is thrown away for a
moment, because closing at once would make the kernel discard the answer (RST).

Must not know: what a request means, which of them are related.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from quiverlog.errors import CorruptFrame, QuiverlogError, TooManyConnections
from quiverlog.limits import HEADER_BYTES_MAX
from quiverlog.node.events import ConnectionClosed, RequestReceived
from quiverlog.server.connections import ConnectionState, ConnectionTable
from quiverlog.server.logs import Logger
from quiverlog.server.metrics import ServerMetrics
from quiverlog.server.performer import Performer, read_clocks
from quiverlog.types import Now
from quiverlog.wire.buffers import BufferPool
from quiverlog.wire.frames import (
    Frame,
    FrameReceiver,
    decode_request,
    encode,
    encode_error,
    peek_preamble,
)
from quiverlog.wire.messages import Response
from quiverlog.wire.registry import APIS

__all__ = ["ClientProtocol", "Shell"]

_LINGER_S: Final = 2.0
"""After a protocol error, so long for the client to read the answer and close."""
_CHUNK_REQUESTS: Final = 64
"""Requests of one connection that go to the node together."""
_LINGERING_MAX: Final = 256
"""Connections that linger at once: beyond, they are closed without that courtesy."""
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""A peer that vanished without a word (half-open) is noticed within two minutes."""


class Shell(NamedTuple):
    """What all connections of a loop share."""

    performer: Performer
    connections: ConnectionTable
    metrics: ServerMetrics
    log: Logger
    scratch: bytearray
    pool: BufferPool


class ClientProtocol(asyncio.BufferedProtocol):
    """See the module docstring."""

    __slots__ = (
        "_backlog",
        "_blocked",
        "_bytes_sent",
        "_closing",
        "_error",
        "_has_body",
        "_linger",
        "_out_bytes",
        "_receiver",
        "_resuming",
        "_shell",
        "_transport",
        "_write_paused",
        "connection_id",
        "out",
        "peer",
        "state",
    )

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._receiver = FrameReceiver(
            frame_bytes_max=shell.connections.limits.frame_bytes_max,
            header_bytes_max=HEADER_BYTES_MAX,
            scratch=shell.scratch,
            pool=shell.pool,
        )
        self._backlog: list[Frame] = []
        self._blocked = False
        self._resuming = False
        self._write_paused = False
        self._closing = False
        self._error: tuple[QuiverlogError, int, int] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._out_bytes = 0
        self._bytes_sent = 0
        self._has_body = False
        self.out: list[bytes | memoryview] = []
        self.connection_id = -1
        self.peer = ""
        self.state = ConnectionState(0)

    # --- the transport's calls -----------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or say why not."""
        self._transport = cast("asyncio.Transport", transport)
        metrics = self._shell.metrics
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        self.connection_id = self._shell.connections.add(self)
        if self.connection_id < 0:
            metrics.connections_refused += 1
            limit = self._shell.connections.limits.connections_max
            self._refuse(TooManyConnections(f"the broker has its {limit} connections."), 0, 0)
            return
        self.state = ConnectionState(time.monotonic_ns() // 1000)
        metrics.connections_accepted += 1
        metrics.connections_open += 1
        limits = self._shell.connections.limits
        self._transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            for level, option, value in _KEEPALIVE:
                sock.setsockopt(level, option, value)

    def get_buffer(self, sizehint: int) -> Any:
        """Where the transport is to receive into."""
        if self._closing:
            return self._shell.scratch
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived: handle every request that is complete, then answer them at once."""
        self._shell.metrics.bytes_in += nbytes
        if self._closing:
            return
        received_ns = time.perf_counter_ns()
        try:
            frames = self._receiver.buffer_updated(nbytes)
        except QuiverlogError as error:
            self._protocol_error(error, 0, 0)
            return
        now = read_clocks()
        state = self.state
        state.last_read_us = now.mono_us
        if frames:
            state.frame_since_us = now.mono_us if self._receiver.partial else 0
            self._handle(frames, received_ns, now)
            self._shell.performer.flush()
        elif not state.frame_since_us:
            state.frame_since_us = now.mono_us

    def eof_received(self) -> bool:
        """The client is done; what is buffered for it is still sent (as Kafka's brokers do)."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it, and let the node forget what it waited for."""
        if self._linger is not None:
            self._linger.cancel()
            self._shell.connections.lingering -= 1
        self._closing = True
        self._backlog.clear()
        self.out.clear()
        if self.connection_id < 0:
            return
        self._shell.metrics.connections_open -= 1
        self._shell.connections.remove(self.connection_id)
        self._shell.performer.tell(ConnectionClosed(self.connection_id))

    def pause_writing(self) -> None:
        """The client is slow: take no more of its requests."""
        self._write_paused = True
        self._block()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._write_paused = False
        self._unblock_soon()

    # --- requests ------------------------------------------------------------------------------
    def _handle(self, frames: Sequence[Frame], received_ns: int, now: Now) -> None:
        """Hand requests to the node until they are done or the client must be held back.

        The requests of a chunk go in together, so that one flush of the disk serves them all; the
        chunk bounds what their answers can hold in memory before the write buffer is looked at.
        """
        performer = self._shell.performer
        limits = self._shell.connections.limits
        in_flight = self.state.in_flight
        at = 0
        while at < len(frames) and not self._closing:
            room = limits.in_flight_max - len(in_flight)
            if room <= 0:
                self._block()
            if self._blocked:
                # The views die with the next read of any connection.
                self._backlog.extend(_own(frame) for frame in frames[at:])
                return
            end = at + min(room, _CHUNK_REQUESTS)
            chunk = frames if at == 0 and end >= len(frames) else frames[at:end]
            performer.handle_many(self._events(chunk, received_ns), now)
            if self._failed():
                return
            if self._out_bytes > limits.write_buffer_bytes:
                performer.flush()
            at = end
        if len(in_flight) >= limits.in_flight_max:
            self._block()

    def _events(self, frames: Sequence[Frame], received_ns: int) -> Iterator[RequestReceived]:
        """Decode one after the other; between two of them the node handles the first."""
        requests = self._shell.metrics.requests
        in_flight = self.state.in_flight
        connection_id = self.connection_id
        started_ns = time.perf_counter_ns()
        for header, body in frames:
            try:
                request = decode_request(header)
            except QuiverlogError as error:
                self._error = (error, *_preamble(header))
                return
            correlation_id = request.correlation_id
            if correlation_id in in_flight:
                # Counted once, they would get past the bound on unanswered requests.
                again = CorruptFrame(f"correlation id {correlation_id} is still in flight.")
                self._error = (again, int(request.api), correlation_id)
                return
            in_flight[correlation_id] = received_ns
            yield RequestReceived(connection_id, request, body)
            ended_ns = time.perf_counter_ns()
            counters = requests[request.api]
            counters.queue.observe((started_ns - received_ns) // 1000)
            counters.handling.observe((ended_ns - started_ns) // 1000)
            started_ns = ended_ns

    def _failed(self) -> bool:
        """Was one of the requests unreadable? Then the connection ends here."""
        error, self._error = self._error, None
        if error is not None:
            self._protocol_error(*error)
        return error is not None

    def _block(self) -> None:
        if not self._blocked and not self._closing:
            self._blocked = True
            self._shell.metrics.reads_paused += 1
            self._transport.pause_reading()

    def _unblock_soon(self) -> None:
        """Go on in the loop's next round: this is called from within writes and handlers."""
        if self._blocked and not self._resuming and not self._closing:
            self._resuming = True
            asyncio.get_running_loop().call_soon(self._unblock)

    def _unblock(self) -> None:
        self._resuming = False
        limits = self._shell.connections.limits
        if self._closing or self._write_paused or len(self.state.in_flight) >= limits.in_flight_max:
            return
        self._blocked = False
        backlog, self._backlog = self._backlog, []
        if backlog:
            self._handle(backlog, time.perf_counter_ns(), read_clocks())
            self._shell.performer.flush()
        if not self._blocked and not self._closing:
            # It was we who did not read: the time does not count against the client.
            now_us = time.monotonic_ns() // 1000
            self.state.last_read_us = now_us
            if self.state.frame_since_us:
                self.state.frame_since_us = now_us
            self._transport.resume_reading()

    # --- replies -------------------------------------------------------------------------------
    def queue(
        self, response: Response, correlation_id: int, body: Sequence[memoryview] = ()
    ) -> None:
        """Gather a reply; `flush` sends it."""
        body_bytes = 0
        if body:
            self._has_body = True
            for view in body:
                body_bytes += view.nbytes
        try:
            head = encode(response, correlation_id, body_bytes)
        except QuiverlogError as error:  # larger than a frame may be
            api = int(response.API)
            head = encode_error(error, api=api, correlation_id=correlation_id)
            body, body_bytes = (), 0
        self.out.append(head)
        self.out.extend(body)
        self._out_bytes += len(head) + body_bytes
        metrics = self._shell.metrics
        received_ns = self.state.in_flight.pop(correlation_id, 0)
        if received_ns:
            elapsed_us = (time.perf_counter_ns() - received_ns) // 1000
            metrics.requests[response.api].total.observe(elapsed_us)
        if response.error_code:
            metrics.count_error(response.error_code)
        part_name = _PARTS[response.api]
        if part_name:
            for part in getattr(response, part_name):
                if part.error_code:
                    metrics.count_error(part.error_code)

    def flush(self) -> None:
        """Send all that has gathered, in one call."""
        out, size = self.out, self._out_bytes
        self.out, self._out_bytes = [], 0
        if self._closing or not out:
            return
        self._bytes_sent += size
        self._shell.metrics.bytes_out += size
        if self._has_body:
            self._has_body = False
            self._transport.writelines(out)
        else:
            # Small heads only: joining them is cheaper than one vector each.
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._blocked and not self._write_paused:
            self._unblock_soon()

    # --- ends ----------------------------------------------------------------------------------
    @property
    def waiting_bytes(self) -> int:
        """Sent, but not taken by the client's side of the connection."""
        return self._transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        """Handed to the transport since the connection began."""
        return self._bytes_sent

    def close_soon(self, why: str) -> None:
        """Send what has gathered, then close."""
        if not self._closing:
            self._shell.log.info("connection closed", peer=self.peer, why=why)
            self.flush()
            self._half_close()

    def abort(self, reason: str) -> None:
        """Close now and drop what was not sent: the client is overdue."""
        self._shell.metrics.count_closed(reason)
        self._shell.log.info("connection overdue", peer=self.peer, reason=reason)
        self._closing = True
        self._transport.abort()

    def _protocol_error(self, error: QuiverlogError, api: int, correlation_id: int) -> None:
        """Answer what was good so far, then the error, then close."""
        self._shell.metrics.count_closed("protocol")
        self._shell.metrics.count_error(error.code)
        self._shell.log.warning("protocol error", peer=self.peer, error=str(error))
        self._shell.performer.flush()
        self._refuse(error, api, correlation_id)

    def _refuse(self, error: QuiverlogError, api: int, correlation_id: int) -> None:
        self._transport.write(encode_error(error, api=api, correlation_id=correlation_id))
        self._half_close()

    def _half_close(self) -> None:
        """Say goodbye, and throw away what still comes for a moment (see the module docstring)."""
        self._closing = True
        self._backlog.clear()
        table = self._shell.connections
        if table.lingering >= _LINGERING_MAX:
            self._transport.close()
            return
        with contextlib.suppress(OSError, NotImplementedError):
            self._transport.write_eof()
        if self._blocked:
            self._transport.resume_reading()
        table.lingering += 1
        self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)


_PARTS: Final = tuple(
    next(
        (name for name in ("partitions", "topics") if name in APIS[api].response.__struct_fields__),
        "",
    )
    for api in range(max(APIS) + 1)
)
"""By API number: the field of a response whose parts carry errors of their own."""


def _own(frame: Frame) -> Frame:
    return Frame(memoryview(bytes(frame.header)), memoryview(bytearray(frame.body)))


def _preamble(header: memoryview) -> tuple[int, int]:
    """(api, correlation id) of a request that could not be decoded, as far as they can be read."""
    try:
        api, _version, correlation_id = peek_preamble(header)
    except CorruptFrame:
        return 0, 0
    return api, correlation_id
