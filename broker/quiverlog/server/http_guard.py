"""Stands between the HTTP port and aiohttp: which connections, which requests, how long.

A connection carries one request. Until its head is complete and valid, aiohttp does not see it;
what comes behind the head is discarded. So aiohttp only sees GET and HEAD of a well-formed path,
without a body or any field of the client's but the choice between the two texts of `/metrics`.

Owns the bound on connections and both timeouts. When all places are taken, the oldest connection
without a complete head gives way.

Must not know: paths, answers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final, cast

from quiverlog.server.net.peer import peer_name
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics

__all__ = ["OPENMETRICS", "HttpGuard", "HttpLimits", "prefers_openmetrics"]


# Which of the two texts of `/metrics` a scraper would rather have: what its field Accept says.
OPENMETRICS: Final = "application/openmetrics-text"
_PLAIN: Final = ("text/plain", "text/*", "*/*")
"""The ranges that the plain text is one of, the most specific first."""
_WEIGHT: Final = re.compile(r"0(?:\.[0-9]*)?|1(?:\.0*)?")


def prefers_openmetrics(accept: str) -> bool:
    """True for who names OpenMetrics, and gives the plain text no greater weight.

    Args:
        accept: the field's value; of several fields all values, between commas.
    """
    weights: dict[str, float] = {}
    for entry in accept.split(","):
        name, *parameters = (part.strip() for part in entry.lower().split(";"))
        # Prometheus names each of the versions it reads: the best of them counts.
        weights[name] = max(weights.get(name, 0.0), _weight(parameters))
    plain = next((weights[name] for name in _PLAIN if name in weights), 0.0)
    wanted = weights.get(OPENMETRICS, 0.0)
    return wanted > 0 and wanted >= plain


def _weight(parameters: list[str]) -> float:
    """The parameter q; 1 where there is none, or one that is no weight."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            match = _WEIGHT.fullmatch(value.strip())
            return float(match[0]) if match else 1.0
    return 1.0


HEAD_BYTES_MAX: Final = 8_192
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,1023}) HTTP/1\.[01]")
_FIELD_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):[ \t]*([ -~\t\x80-\xff]*)")
_BODY_FIELDS: Final = frozenset((b"transfer-encoding", b"upgrade", b"expect"))
_FIELDS_HANDED_OVER: Final = b"\r\nHost: broker\r\nConnection: close\r\n"
"""In place of the client's: answers depend on one field, which is told in our own words."""
_ACCEPT: Final = re.compile(rb"\r\nAccept:([^\r]*)", re.IGNORECASE)
_ACCEPT_HANDED_OVER: Final = b"Accept: " + OPENMETRICS.encode() + b"\r\n"
_REASONS: Final = {
    400: "Bad Request",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


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
        make_handler: a protocol of the web framework, for one connection.
    """

    def __init__(
        self,
        limits: HttpLimits,
        make_handler: Callable[[], asyncio.Protocol],
        *,
        metrics: ServerMetrics,
        log: Logger,
    ) -> None:
        self.limits = limits
        self.make_handler = make_handler
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

    def close(self) -> None:
        """Cut off all connections."""
        for connection in list(self.open):
            connection.cut_off("the broker stops")


class GuardedConnection(asyncio.Protocol):
    """One connection of the HTTP port; see the module docstring."""

    def __init__(self, guard: HttpGuard) -> None:
        self._guard = guard
        self._transport = cast("asyncio.Transport", None)
        self._handler: asyncio.Protocol | None = None
        self._head = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._peer = "?"
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
        """Gather the head; hand it over when it is complete and good."""
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
        wanted = b",".join(_ACCEPT.findall(head)).decode("latin-1")
        accept = _ACCEPT_HANDED_OVER if prefers_openmetrics(wanted) else b""
        self._hand_over(head.partition(b"\r\n")[0] + _FIELDS_HANDED_OVER + accept + b"\r\n")

    def _hand_over(self, head: bytes) -> None:
        self.head_complete = True
        self._head.clear()
        self._guard.metrics.http_requests += 1
        self._restart_timer()
        self._handler = self._guard.make_handler()
        self._handler.connection_made(self._transport)
        self._handler.data_received(head)

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(
            self._guard.limits.request_s, self.cut_off, "not answered in time"
        )

    def eof_received(self) -> bool:
        """A client may close its sending side after a whole request and still wait."""
        return self.head_complete

    def pause_writing(self) -> None:
        """Passed on to the framework."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Passed on to the framework."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._guard.open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._handler is not None:
            self._handler.connection_lost(exc)
            self._handler = None

    def cut_off(self, why: str) -> None:
        """Close at once, whatever is under way."""
        self._guard.metrics.http_refused += 1
        self._guard.log.info("http connection cut off", peer=self._peer, why=why)
        self._transport.abort()

    def _refuse(self, status: int, why: str) -> None:
        """Answer without the framework, then close."""
        self.head_complete = True  # whatever still comes is thrown away
        self._guard.metrics.http_refused += 1
        self._guard.log.info("http request refused", peer=self._peer, status=status, why=why)
        allow = "Allow: GET, HEAD\r\n" if status == 405 else ""
        text = f"{_REASONS[status]}: {why}.\n"
        self._transport.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain\r\n{allow}"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
        )
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport.close()


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
