"""Requests of one connection: from frames to decoded requests; the backlog for the next turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from quiverlog.errors import CorruptFrame, QuiverlogError
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.wire.connection import BROKER_SOFTWARE
from quiverlog.wire.frames import Frame, decode_request, peek_preamble
from quiverlog.wire.messages import FetchRequest, HelloRequest

__all__ = ["Backlog", "RequestFeed", "Unreadable", "is_brokers_hello"]


Unreadable = tuple[QuiverlogError, int, int]
"""(error, API, correlation id) of a request; 0 where they cannot be read."""


def is_brokers_hello(header: memoryview) -> bool:
    """Return whether this is a HELLO that claims to be a broker's."""
    try:
        request = decode_request(header)
    except QuiverlogError:
        return False
    return isinstance(request, HelloRequest) and request.software == BROKER_SOFTWARE


class RequestFeed:
    __slots__ = ("_metrics", "may_read_files", "taken", "unreadable")

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self.may_read_files = False
        """The client is on this machine: answers may name byte ranges of log files."""
        self.taken = 0
        """Frames that the last `events` yielded."""
        self.unreadable: Unreadable | None = None
        """The request that ended the last `events`."""

    def take_unreadable(self) -> Unreadable:
        unreadable, self.unreadable = self.unreadable, None
        assert unreadable is not None
        return unreadable

    def events(
        self,
        connection_id: int,
        in_flight: dict[int, int],
        frames: Sequence[Frame],
        received_ns: int,
        deadline_ns: int,
    ) -> Iterator[RequestReceived]:
        """Decode requests until the deadline, or the first that is `unreadable`.

        Args:
            in_flight: correlation id -> when it was received; every yielded request is entered.
        """
        assert self.unreadable is None, "the connection was not ended"
        requests = self._metrics.requests
        self.taken = 0
        started_ns = time.perf_counter_ns()
        assert started_ns >= received_ns, "the clock only grows"
        for header, body in frames:
            try:
                request = decode_request(header)
            except QuiverlogError as error:
                self.unreadable = (error, *_preamble(header))
                return
            correlation_id = request.correlation_id
            if correlation_id in in_flight:
                # One entry for both would let a client pass the bound on unanswered requests.
                again = CorruptFrame(f"correlation id {correlation_id} is still in flight.")
                self.unreadable = (again, int(request.api), correlation_id)
                return
            if not self.may_read_files and isinstance(request, FetchRequest):
                request.file_ranges = False
            in_flight[correlation_id] = received_ns
            self.taken += 1
            yield RequestReceived(connection_id, request, body, len(header))
            ended_ns = time.perf_counter_ns()
            counters = requests[request.api]
            counters.queue.observe((started_ns - received_ns) // 1000)
            counters.handling.observe((ended_ns - started_ns) // 1000)
            if ended_ns >= deadline_ns:
                return
            started_ns = ended_ns


def _preamble(header: memoryview) -> tuple[int, int]:
    """Return (api, correlation id) of a request that cannot be decoded; (0, 0): there is no id."""
    try:
        api, _version, correlation_id = peek_preamble(header)
    except CorruptFrame:
        return 0, 0
    return (api, correlation_id) if correlation_id else (0, 0)


class Backlog:
    __slots__ = ("_frames", "_received_ns", "byte_count")

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._received_ns = 0
        self.byte_count = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def keep(self, frames: Sequence[Frame], received_ns: int, *, fresh: bool) -> None:
        """`fresh`: the frames are views of the shared receive buffer."""
        assert frames
        assert not self._frames, "the connection reads nothing while requests wait"
        # The next read of any connection overwrites that buffer.
        self._frames = [_own(frame) for frame in frames] if fresh else list(frames)
        self._received_ns = received_ns
        self.byte_count = sum(len(header) + len(body) for header, body in frames)

    def take(self) -> tuple[list[Frame], int]:
        frames = self._frames
        self.clear()
        return frames, self._received_ns

    def clear(self) -> None:
        self._frames = []
        self.byte_count = 0


def _own(frame: Frame) -> Frame:
    return Frame(memoryview(bytes(frame.header)), memoryview(bytearray(frame.body)))
