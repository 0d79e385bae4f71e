"""One client connection: frames in, events to the node, replies out, closing.

A client that breaks the protocol gets the answers to its earlier requests, then one error.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from quiverlog.errors import QuiverlogError, TooManyConnections
from quiverlog.limits import (
    HEADER_BYTES_MAX,
    KIB,
    LOGIN_MS,
    PROOF_MS,
    UNPROVED_FRAME_BYTES_MAX,
)
from quiverlog.node.runtime.config import LISTENER_DEFAULT
from quiverlog.node.runtime.events import ConnectionClosed, ConnectionOpened, Event, RequestsEnded
from quiverlog.server.net.certified import Certified
from quiverlog.server.net.clocks import monotonic_us, read_clocks
from quiverlog.server.net.connections import ConnectionState, ConnectionTable, Entry
from quiverlog.server.net.memory import MemoryBudget
from quiverlog.server.net.peer import (
    has_hung_up,
    is_on_this_machine,
    keep_alive,
    origin_of,
    peer_name,
)
from quiverlog.server.net.replies import Replies
from quiverlog.server.net.requests import Backlog, RequestFeed, Unreadable, is_brokers_hello
from quiverlog.server.net.scheduler import FairScheduler
from quiverlog.server.net.tls_writer import TlsWriter
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.tls import peer_names
from quiverlog.types import Now
from quiverlog.wire.buffers import BufferPool
from quiverlog.wire.frames import Frame, FrameReceiver, encode_error
from quiverlog.wire.messages import Response

__all__ = ["ClientProtocol", "ConnectionContext", "FinalError"]


ANSWERS_S_MAX: Final = 5.0
"""The longest time that the final error waits for the answers to earlier requests."""
LINGER_S: Final = 2.0
"""Time for the client to read the final error and close."""


class FinalError:
    """The error that ends a connection, and the lingering after it. True while it is unsent."""

    __slots__ = ("_lingers", "_table", "_timer", "unreadable")

    def __init__(self, table: ConnectionTable) -> None:
        self._table = table
        self._timer: asyncio.TimerHandle | None = None
        self._lingers = False
        self.unreadable: Unreadable | None = None

    def __bool__(self) -> bool:
        return self.unreadable is not None

    def begin(self, unreadable: Unreadable, give_up: Callable[[], None]) -> bool:
        """Keep an error; True if it is the first. `give_up` is called when the answers are late."""
        assert not self._lingers, "the final error was sent"
        is_first = self.unreadable is None
        # The later one replaces it: the backlog, with earlier requests, is decoded after the
        # receiver has failed at the bytes behind them.
        self.unreadable = unreadable
        if is_first:
            assert self._timer is None
            self._timer = asyncio.get_running_loop().call_later(ANSWERS_S_MAX, give_up)
        return is_first

    def linger(self, transport: asyncio.Transport) -> bool:
        """Give the client `LINGER_S` to take what was sent, and to close; False: too many have
        that."""
        self.clear()
        table = self._table
        if table.lingering >= table.limits.lingering_max:
            return False
        table.lingering += 1
        self._lingers = True
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        return True

    def clear(self) -> None:
        self.unreadable = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lingers:
            self._lingers = False
            self._table.lingering -= 1


class Runner(Protocol):
    def handle_many(self, events: Iterable[Event], now: Now) -> None:
        """Handle events that came together; answers wait for `flush`."""

    def deliver(self, *events: Event) -> None:
        """Handle events now and send the answers."""

    def flush(self) -> None:
        """Send the gathered answers."""


class ConnectionContext(NamedTuple):
    runner: Runner
    connections: ConnectionTable
    metrics: ServerMetrics
    log: Logger
    scheduler: FairScheduler
    memory: MemoryBudget
    scratch: bytearray
    """Holds small received frames until they are handled; see `FrameReceiver`."""
    pool: BufferPool
    hide_paths: Callable[[str], str]
    """Removes the broker's paths from an error message."""
    listener: str = LISTENER_DEFAULT
    serves_brokers: bool = False
    proves_brokers: bool = False
    """Other brokers must prove who they are before they send anything else."""
    needs_login: bool = False
    """So must clients."""
    local_reads: bool = True
    """False: the listener's clients read no log files themselves."""
    is_own: bool = False
    """This process itself is at the other end."""
    certified: Certified | None = None
    """None: the listener has no TLS."""


CHUNK_REQUESTS_MAX: Final = 64
"""Requests that go to the node together: their answers share one write."""
REQUESTS_PER_TURN: Final = 256
TURN_US_MAX: Final = 3_000
"""Checked after each request."""
READ_BYTES: Final = 64 * KIB
BUSY_READ_BYTES: Final = 16 * KIB
"""Bound on one read of small frames while any connection has a backlog: cutting thousands of tiny
frames from a full buffer would be a long turn."""
REPORT_BYTES: Final = 256 * KIB
"""Gathered replies are reported to the memory budget in steps of this size."""

assert CHUNK_REQUESTS_MAX <= REQUESTS_PER_TURN


class ClientProtocol(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog",
        "_busy",
        "_chunk_requests",
        "_closing",
        "_context",
        "_entry",
        "_feed",
        "_final_error",
        "_held",
        "_is_ending",
        "_is_settled",
        "_receiver",
        "_reported_bytes",
        "_transport",
        "_write_paused",
        "_writer",
        "connection_id",
        "held_bytes",
        "is_made",
        "is_scheduled",
        "peer",
        "replies",
        "sent_bytes",
        "state",
    )  # fmt: skip

    def __init__(self, context: ConnectionContext, entry: Entry | None = None) -> None:
        """`entry`: the place of a connection that was counted before its handshake."""
        self._context = context
        self._entry = entry
        self.is_made = False
        self._writer: TlsWriter | None = None
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._receiver = FrameReceiver(
            frame_bytes_max=context.connections.limits.frame_bytes_max,
            header_bytes_max=HEADER_BYTES_MAX,
            scratch=context.scratch,
            pool=context.pool,
        )
        self.replies = Replies(context.metrics, context.log, hide_paths=context.hide_paths)
        self._backlog = Backlog()
        self._chunk_requests = CHUNK_REQUESTS_MAX
        self._feed = RequestFeed(context.metrics)
        self._busy = self._held = self._write_paused = self._closing = self._is_ending = False
        self._final_error = FinalError(context.connections)
        self._reported_bytes = 0
        self.is_scheduled = self._is_settled = False
        self.held_bytes = self.sent_bytes = 0
        self.connection_id = -1
        self.peer = ""
        self.state = ConnectionState(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        context = self._context
        self.is_made = True
        self.peer = peer_name(transport)
        if self._entry is None:
            origin = origin_of(self.peer, may_be_broker=context.serves_brokers)
            self.state = ConnectionState(monotonic_us(), origin)
        else:
            origin = self._entry.origin
            self.state = ConnectionState(monotonic_us(), origin)
            self.state.place = self._entry.place
        if transport.get_extra_info("ssl_object") is not None:
            self._writer = TlsWriter(self._transport)
        self._is_settled = not origin.may_be_broker
        if context.proves_brokers and context.listener != LISTENER_DEFAULT:
            self._await_proof(PROOF_MS)  # Only brokers have anything to ask here.
        elif context.needs_login:
            self._await_proof(LOGIN_MS)
            self.state.awaits_login = True
        self.connection_id = context.connections.add(self)
        if self.connection_id < 0:
            self.refuse()
            return
        if context.certified is not None:
            context.certified.add(self, transport.get_extra_info("ssl_object"))
        names = peer_names(transport.get_extra_info("peercert"))
        context.runner.deliver(
            ConnectionOpened(self.connection_id, self.peer, context.listener, names, context.is_own)
        )
        context.metrics.connections_accepted += 1
        context.metrics.connections_open += 1
        self.limits_changed()
        keep_alive(transport)

    def get_buffer(self, sizehint: int) -> Any:
        if self._closing:
            return self._context.scratch  # A lingering connection's bytes are discarded.
        small_bytes = BUSY_READ_BYTES if self._busy or self._context.scheduler else READ_BYTES
        return self._receiver.get_buffer(sizehint, small_bytes_max=small_bytes)

    def buffer_updated(self, nbytes: int) -> None:
        context, receiver, state = self._context, self._receiver, self.state
        context.metrics.bytes_in += nbytes
        if self._closing:
            return
        received_ns = time.perf_counter_ns()
        try:
            frames = receiver.buffer_updated(nbytes)
        except QuiverlogError as error:
            if not self._final_error:
                self._protocol_error((error, 0, 0))
            return
        now = read_clocks()
        partial = receiver.partial
        state.last_read_us = now.mono_us
        if state.is_quiet:
            context.connections.mark_active(self)
        if frames and not self._is_settled and not self._settle(frames[0]):
            return
        if frames:
            state.frame_since_us = now.mono_us if partial else 0
            self._work_off(frames, received_ns, now, fresh=True)
            context.runner.flush()
        elif not state.frame_since_us:
            state.frame_since_us = now.mono_us
        if receiver.error is not None and not self._closing and not self._final_error:
            self._protocol_error((receiver.error, 0, 0))
        if self.held_bytes or partial or self._backlog.byte_count:
            self.report()

    def _settle(self, first: Frame) -> bool:
        """Choose the place by the first request; False: there is none."""
        self._is_settled = True
        is_broker = is_brokers_hello(first.header)
        if is_broker and self._context.proves_brokers:
            self._await_proof(PROOF_MS)
        if self._context.connections.settle(self, is_broker=is_broker):
            return True
        self.refuse()
        return False

    def _await_proof(self, within_ms: int) -> None:
        """Accept small frames only until `proved`, which the table waits for."""
        self.state.unproved_since_us = monotonic_us()
        self.state.proof_us = within_ms * 1000
        self._receiver.bound(UNPROVED_FRAME_BYTES_MAX)

    def proved(self) -> None:
        self.state.unproved_since_us = 0
        self._context.connections.proved(self)
        self._receiver.bound(self._context.connections.limits.frame_bytes_max)

    def eof_received(self) -> bool:
        """Return False: the transport sends what is buffered, then closes."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing, self._is_ending = True, False
        self._release()
        if self._writer is not None:
            self._writer.clear()
        context = self._context
        if context.certified is not None:
            context.certified.remove(self)
        context.memory.remove(self)
        if self.connection_id >= 0:
            context.metrics.connections_open -= 1
            context.connections.remove(self.connection_id)
            context.runner.deliver(ConnectionClosed(self.connection_id))

    def pause_writing(self) -> None:
        if self._writer is not None:
            self._writer.is_blocked = True  # `_push` decides when the client is too slow.
            return
        # A client that does not read its answers gets no more of them.
        self._write_paused = True
        self._hold()

    def resume_writing(self) -> None:
        if self._writer is not None:
            self._writer.is_blocked = False
            if self._closing:
                self._end_stream()
            else:
                self._push(self._writer)
            return
        self._write_paused = False
        self.report()
        if self._held:
            self._context.scheduler.request(self)

    # --- requests ------------------------------------------------------------------------------
    def run_turn(self) -> None:
        """Continue the backlog; without one, read again unless a limit forbids it."""
        if self._closing:
            self._end_stream()
        elif self._writer is not None and self._writer.byte_count:
            self._push(self._writer)
        if self._closing or not self._held or not self._may_go_on():
            return
        if self._backlog:
            frames, received_ns = self._backlog.take()
            self._work_off(frames, received_ns, read_clocks(), fresh=False)
            self._context.runner.flush()
            self.report()
            if self._final_error:  # The node answers what this turn has parked.
                self._context.runner.deliver(RequestsEnded(self.connection_id))
        if self._backlog or self._closing or not self._may_go_on():
            return
        if not self._final_error:
            self._release_hold()
        elif not self.state.in_flight and not self._queued_bytes:
            self._send_error()

    def _may_go_on(self) -> bool:
        in_flight_max = self._context.connections.limits.in_flight_max
        if self._write_paused or self.state.is_muted:
            return False
        return len(self.state.in_flight) < in_flight_max

    def _work_off(
        self, frames: Sequence[Frame], received_ns: int, now: Now, *, fresh: bool
    ) -> None:
        """Hand requests to the node until they, the turn or the room are used up.

        `fresh`: the frames are views of the shared receive buffer.
        """
        runner, limits = self._context.runner, self._context.connections.limits
        in_flight, feed, replies = self.state.in_flight, self._feed, self.replies
        deadline_ns = time.perf_counter_ns() + TURN_US_MAX * 1000
        at, total = 0, len(frames)
        end = min(total, REQUESTS_PER_TURN)
        while at < end and not (self._write_paused or self.state.is_muted):
            count = min(end - at, self._chunk_requests, limits.in_flight_max - len(in_flight))
            if count <= 0:
                break
            chunk = frames if count == total else frames[at : at + count]
            before_bytes = replies.gathered_bytes
            # One write and one flush of the disk serve the whole chunk.
            requests = feed.events(self.connection_id, in_flight, chunk, received_ns, deadline_ns)
            runner.handle_many(requests, now)
            at += feed.taken
            if feed.unreadable is not None:
                self._protocol_error(feed.take_unreadable())
                return
            if self._closing:
                return
            self._answered(replies.gathered_bytes - before_bytes, limits.write_buffer_bytes)
            if at < end and time.perf_counter_ns() >= deadline_ns:
                break
        self._busy = at < total
        if self._busy:
            self._backlog.keep(frames[at:], received_ns, fresh=fresh)
            self._hold()
            if self._may_go_on():
                self._context.scheduler.request(self)
        elif len(in_flight) >= limits.in_flight_max:
            self._hold()

    def _answered(self, chunk_bytes: int, write_buffer_bytes: int) -> None:
        # Down by 4, up by 2: a chunk's answers are all in memory before one of them is sent.
        if chunk_bytes * 4 > write_buffer_bytes:
            self._chunk_requests = max(1, self._chunk_requests // 4)
        elif self._chunk_requests < CHUNK_REQUESTS_MAX:
            self._chunk_requests = min(CHUNK_REQUESTS_MAX, self._chunk_requests * 2)
        if self.replies.gathered_bytes > write_buffer_bytes:
            self._context.runner.flush()

    def _hold(self) -> None:
        if not self._held and not self._closing:
            self._held = True
            self._context.metrics.reads_paused += 1
            self._transport.pause_reading()

    def _release_hold(self) -> None:
        self._forgive()
        self._transport.resume_reading()
        self._held = False

    def _forgive(self) -> None:
        # The broker paused reading: that time does not count against the client.
        now_us = monotonic_us()
        self.state.last_read_us = now_us
        if self.state.frame_since_us:
            self.state.frame_since_us = now_us

    def mute(self, *, is_muted: bool) -> None:
        self.state.is_muted = is_muted
        if is_muted:
            self._hold()
        else:
            self._forgive()
            self._context.scheduler.request(self)

    def queue(
        self, response: Response, correlation_id: int, body: Sequence[memoryview] = ()
    ) -> None:
        received_ns = self.state.in_flight.pop(correlation_id, 0)
        if self._closing:
            return
        replies = self.replies
        replies.add(response, correlation_id, body)
        if received_ns:
            elapsed_us = (time.perf_counter_ns() - received_ns) // 1000
            self._context.metrics.requests[response.api].total.observe(elapsed_us)
        if replies.copied_bytes - self._reported_bytes >= REPORT_BYTES:
            self._reported_bytes = replies.copied_bytes
            self.report()

    def flush(self) -> None:
        replies, transport = self.replies, self._transport
        if self._closing or not replies.parts:
            replies.clear()
            return
        parts, size = replies.take()
        self._reported_bytes = 0
        self.sent_bytes += size
        self._context.metrics.bytes_out += size
        writer = self._writer
        if writer is not None:
            writer.add(parts, size)
            self._push(writer)
        elif len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
        if self._held and not self._write_paused:
            self._context.scheduler.request(self)
        if self.held_bytes or (writer and writer.byte_count) or transport.get_write_buffer_size():
            self.report()
        else:
            replies.all_taken()

    def _push(self, writer: TlsWriter) -> None:
        """Encrypt one step of what waits; ask for a turn for the rest."""
        writer.push()
        if writer.byte_count and not writer.is_blocked:
            self._context.scheduler.request(self)
        waiting = self.waiting_bytes
        if waiting > self._context.connections.limits.write_buffer_bytes:
            self._write_paused = True
            self._hold()
        elif self._write_paused and not waiting:
            self._write_paused = False
            self.report()
            if self._held:
                self._context.scheduler.request(self)
        elif not waiting and self._final_error:
            self._context.scheduler.request(self)

    @property
    def _queued_bytes(self) -> int:
        return 0 if self._writer is None else self._writer.byte_count

    def measure(self) -> tuple[int, int]:
        unsent, unsent_us = self.replies.unsent(self.waiting_bytes, monotonic_us)
        since = [at for at in (self.state.frame_since_us, unsent_us) if at]
        since_us = min(since) if since else monotonic_us()
        return self._receiver.buffered_bytes + self._backlog.byte_count + unsent, since_us

    def evict(self) -> None:
        self.abort("memory")

    def report(self) -> None:
        held_bytes, _ = self.measure()
        if held_bytes != self.held_bytes:
            self._context.memory.report(self, held_bytes)

    def _release(self) -> None:
        """Release every buffer but the transport's, and the unsent error."""
        self._final_error.clear()
        self._backlog.clear()
        self.replies.clear()
        self._receiver.release()

    # --- ends ----------------------------------------------------------------------------------
    @property
    def waiting_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + self._queued_bytes

    @property
    def is_held(self) -> bool:
        return self._held or self._closing

    @property
    def is_abandoned(self) -> bool:
        return self._held and not self._write_paused and has_hung_up(self._transport)

    def limits_changed(self) -> None:
        limits = self._context.connections.limits
        if self._writer is None:
            self._transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
        may_read_files = limits.local_reads and self._context.local_reads
        self._feed.may_read_files = may_read_files and is_on_this_machine(self._transport)

    def close_soon(self, why: str) -> None:
        if not self._closing:
            self._context.log.info("connection closed", peer=self.peer, why=why)
            self.flush()
            self._half_close()

    def certificate_ended(self, why: str) -> None:
        if not self._closing:
            self._context.metrics.count_closed("certificate")
            self.close_soon(why)

    def refuse(self, error: QuiverlogError | None = None) -> None:
        if self._closing:
            return
        if error is None:
            places = self._context.connections.places
            error = places.why_refused(self.state.origin) or TooManyConnections()
        else:
            self._context.metrics.count_closed("anonymous")
        self._context.metrics.count_refused(error)
        self._context.log.warning("connection refused", peer=self.peer, why=error.message)
        self._end_with(error, 0, 0)

    def abort(self, reason: str) -> None:
        if not self._closing:
            held_bytes, _ = self.measure()
            self._context.metrics.count_closed(reason)
            self._context.log.info(
                "connection overdue", peer=self.peer, reason=reason, held_bytes=held_bytes
            )
        self._closing, self._is_ending = True, False
        self._release()
        if self._writer is not None:
            self._writer.clear()
        self.replies.all_taken()
        self._transport.abort()
        self._context.memory.remove(self)

    def _protocol_error(self, unreadable: Unreadable) -> None:
        error = unreadable[0]
        if self._final_error.begin(unreadable, self._send_error):
            self._context.metrics.count_closed("protocol")
            self._context.metrics.count_error(error.code)
            self._context.log.warning("protocol error", peer=self.peer, error=str(error))
        self.state.frame_since_us = 0
        self._receiver.fail(error)
        self._hold()
        # Long polls are answered at once: the error waits for them.
        self._context.runner.deliver(RequestsEnded(self.connection_id))
        self._context.scheduler.request(self)  # `run_turn` sends the error when all is answered.

    def _send_error(self) -> None:
        if self._final_error.unreadable is not None:
            self._end_with(*self._final_error.unreadable)

    def _end_with(self, error: QuiverlogError, api: int, correlation_id: int) -> None:
        frame = encode_error(error, api=api, correlation_id=correlation_id)
        if self._writer is not None:
            self._writer.add([frame], len(frame))  # behind the answers that wait
        else:
            self._transport.write(frame)
        self._half_close()

    def _half_close(self) -> None:
        """Send the end of the stream, and discard received bytes from now on."""
        if self.state.is_quiet:
            self._context.connections.mark_active(self)  # The client may take the error too slowly.
        self._closing = True
        self._release()
        if self._final_error.linger(self._transport):
            self._is_ending = True
            self._end_stream()
        else:
            if self._writer is not None:
                self._writer.push()
                self._writer.clear()
            self._transport.close()
        self.report()
        if self._held:
            self._transport.resume_reading()

    def _end_stream(self) -> None:
        """Send what waits, in steps, and then the end of the stream."""
        writer = self._writer
        if not self._is_ending:
            return
        if writer is not None and writer.byte_count:
            writer.push()
            if writer.byte_count:
                if not writer.is_blocked:
                    self._context.scheduler.request(self)
                return
        self._is_ending = False
        self.report()
        # Closed with unread bytes, the kernel sends a reset, which discards the error on its way.
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):
                self._transport.write_eof()
        else:  # TLS has no end of one direction: this sends the rest, and reads until the client's.
            self._transport.close()
