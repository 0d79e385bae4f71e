"""Connections of the HTTP port: who may connect, what may be asked, how long, how it is answered.

A connection carries one request. Until its head is complete and found good, nobody hears of it;
after the head, what else the client sends is thrown away. So all that is ever asked for is a
well-formed path by GET or HEAD, without a body and without any field of the client's.

Owns the bound on connections and both timeouts (head, whole request), and the head of an answer,
which names no library and no version, quiverlog's included: what runs here is not for everybody who
can reach the port. When all places are taken, the oldest connection that has not finished its head
gives way: half a request is cheap to hold and must not keep a scraper out.

Must not know: paths, what is answered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

from quiverlog.server.logs import Logger
from quiverlog.server.metrics import ServerMetrics
from quiverlog.server.peer import peer_name

__all__ = ["HttpAnswer", "HttpGuard", "HttpLimits"]

HEAD_BYTES_MAX: Final = 8_192
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1023}) HTTP/1\.[01]")
_FIELD_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):[ \t]*([ -~\t\x80-\xff]*)")
_BODY_FIELDS: Final = frozenset((b"transfer-encoding", b"upgrade", b"expect"))
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpAnswer(NamedTuple):
    """What a request is answered with; to HEAD without the body."""

    status: int
    content_type: str
    body: bytes


class HttpLimits:
    """Bounds that a reload may change. Seconds."""

    __slots__ = ("connections_max", "head_s", "request_s")

    def __init__(self, *, connections_max: int, request_s: float) -> None:
        self.change(connections_max=connections_max, request_s=request_s)

    def change(self, *, connections_max: int, request_s: float) -> None:
        """New bounds for connections from now on."""
        assert connections_max >= 1
        self.connections_max = connections_max
        self.request_s = request_s
        self.head_s = min(5.0, request_s)


class HttpGuard:
    """Makes the protocols of the HTTP port.

    Args:
        answer: what a path is answered with.
    """

    def __init__(
        self,
        limits: HttpLimits,
        answer: Callable[[str], Awaitable[HttpAnswer]],
        *,
        metrics: ServerMetrics,
        log: Logger,
    ) -> None:
        self.limits = limits
        self.answer = answer
        self.metrics = metrics
        self.log = log
        self.open: dict[GuardedConnection, None] = {}
        """All connections, oldest first."""

    def __call__(self) -> GuardedConnection:
        return GuardedConnection(self)

    def admit(self, connection: GuardedConnection) -> bool:
        """Take the connection in, in place of an unfinished one if need be; False when full."""
        if len(self.open) >= self.limits.connections_max:
            unfinished = next((c for c in self.open if not c.head_complete), None)
            if unfinished is None:
                return False
            unfinished.cut_off("another client takes its place")
            self.open.pop(unfinished, None)
        self.open[connection] = None
        return True

    async def finish(self, patience_s: float) -> None:
        """Let requests be answered that were heard, for so long."""
        tasks = [c.answering for c in self.open if c.answering is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)

    def close(self) -> None:
        """Cut off all connections."""
        for connection in list(self.open):
            connection.cut_off("the broker stops")


class GuardedConnection(asyncio.Protocol):
    """One connection of the HTTP port; see the module docstring."""

    def __init__(self, guard: HttpGuard) -> None:
        self._guard = guard
        self._transport = cast("asyncio.Transport", None)
        self._head = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._peer = "?"
        self.answering: asyncio.Task[None] | None = None
        self.head_complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or say that there is none."""
        self._transport = cast("asyncio.Transport", transport)
        self._peer = peer_name(transport)
        if not self._guard.admit(self):
            self._refuse(503, "too many connections")
            return
        limits = self._guard.limits
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.head_s, self._refuse, 408, "no request in time")

    def data_received(self, data: bytes) -> None:
        """Gather the head; have the request answered when it is complete and good."""
        if self.head_complete:
            return
        self._head += data[: HEAD_BYTES_MAX + 1]
        end = self._head.find(b"\r\n\r\n")
        if end < 0 or end > HEAD_BYTES_MAX:
            if len(self._head) > HEAD_BYTES_MAX:
                self._refuse(431, f"a head of more than {HEAD_BYTES_MAX} bytes")
            elif not _may_become_a_request(self._head):
                self._refuse(400, "not an HTTP request")
            return
        head = bytes(self._head[:end])
        problem = _problem_of(head)
        if problem is not None:
            self._refuse(*problem)
            return
        method, target, _ = head.partition(b"\r\n")[0].split(b" ")
        self._head.clear()
        self.head_complete = True
        self._guard.metrics.http_requests += 1
        self._restart_timer()
        path = target.partition(b"?")[0].decode("ascii")
        # Kept: the loop alone would let it be collected.
        self.answering = asyncio.get_running_loop().create_task(
            self._answer(path, with_body=method != b"HEAD")
        )

    async def _answer(self, path: str, *, with_body: bool) -> None:
        try:
            status, content_type, body = await self._guard.answer(path)
        except Exception as error:  # A bug; the client need not know which.
            self._guard.log.error("http request failed", path=path, error=repr(error))
            status, content_type, body = 500, "text/plain", b"500: Internal Server Error"
        if not self._transport.is_closing():
            self._write(status, content_type, body, with_body=with_body)

    def _write(
        self,
        status: int,
        content_type: str,
        body: bytes,
        *,
        with_body: bool = True,
        fields: str = "",
    ) -> None:
        """The whole answer, the only one of its connection."""
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n{fields}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (body if with_body else b""))
        self._transport.close()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(
            self._guard.limits.request_s, self.cut_off, "not answered in time"
        )

    def eof_received(self) -> bool:
        """A client may close its sending side after a whole request and still wait."""
        return self.head_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._guard.open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.answering is not None:
            self.answering.cancel()
            self.answering = None

    def cut_off(self, why: str) -> None:
        """Close at once, whatever is under way."""
        self._guard.metrics.http_refused += 1
        self._guard.log.info("http connection cut off", peer=self._peer, why=why)
        self._transport.abort()

    def _refuse(self, status: int, why: str) -> None:
        """Say why it is not answered, and close."""
        self.head_complete = True  # whatever still comes is thrown away
        self._guard.metrics.http_refused += 1
        self._guard.log.info("http request refused", peer=self._peer, status=status, why=why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        allow = "Allow: GET, HEAD\r\n" if status == 405 else ""
        text = f"{_REASONS[status]}: {why}.\n"
        self._write(status, "text/plain", text.encode(), fields=allow)


def _may_become_a_request(head: bytearray) -> bool:
    """False as soon as the first line cannot be a request's any more."""
    line, newline, _ = bytes(head).partition(b"\r\n")
    if newline:
        return _REQUEST_LINE.fullmatch(line) is not None
    return all(0x20 <= byte < 0x7F or byte == 0x0D for byte in line)


def _problem_of(head: bytes) -> tuple[int, str] | None:
    """(status, reason) when a whole head (without its last empty line) is not to be answered."""
    first, *fields = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        return 400, "not an HTTP request"
    if match[1] not in (b"GET", b"HEAD"):
        return 405, "only GET and HEAD are answered"
    hosts = 0
    for line in fields:
        field = _FIELD_LINE.fullmatch(line)
        if field is None:
            return 400, "a header line that is none"
        name, value = field[1].lower(), field[2].strip()
        if name in _BODY_FIELDS or (name == b"content-length" and value != b"0"):
            return 413, "a request has no body here"
        hosts += name == b"host"
    if hosts > 1 or (not hosts and first.endswith(b"1.1")):
        return 400, "a request names one Host"
    return None
