"""A client's side of one connection: correlation ids, requests in flight, HELLO first.

Does no I/O: `hello()` once, then `send()` at any time (also before HELLO is answered); `receive()`
for every frame. After an exception from `receive()`, except InvalidResponse, the connection must be
closed. The broker's side needs no machine: it answers with the request's correlation id.
"""

from __future__ import annotations

import enum
from typing import Final

from quiverlog.errors import (
    CorruptFrame,
    FrameTooLarge,
    UnknownApi,
    UnsupportedVersion,
    error_from_code,
)
from quiverlog.limits import FRAME_BYTES_MAX

from . import frames
from .messages import (
    CORRELATION_ID_MAX,
    ApiRange,
    HelloRequest,
    HelloResponse,
    Request,
    Response,
)
from .registry import ADMINISTRATION

__all__ = ["BROKER_SOFTWARE", "ClientConnection", "ConnectionState"]

SOFTWARE: Final = "quiverlog-python"
BROKER_SOFTWARE: Final = "quiverlog-broker"
"""A broker's HELLO to another one, which has a connection reserved for it."""


class ConnectionState(enum.Enum):
    """NEW -> GREETING (HELLO is sent) -> READY -> CLOSED; CLOSED from any state."""

    NEW = "new"
    GREETING = "greeting"
    READY = "ready"
    CLOSED = "closed"


class ClientConnection:
    __slots__ = ("_apis", "_frame_bytes_max", "_in_flight", "_last_id", "peer", "state")

    def __init__(self) -> None:
        self.state = ConnectionState.NEW
        self.peer: HelloResponse | None = None
        """The broker's answer to HELLO; None before it."""
        self._in_flight: dict[int, int] = {}
        self._last_id = 0
        self._apis: dict[int, ApiRange] | None = None
        self._frame_bytes_max = FRAME_BYTES_MAX

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def offers(self, api: int) -> bool:
        """Return whether the answer to HELLO has named the API."""
        return self._apis is not None and api in self._apis

    def hello(self, client_id: str, software_version: str, software: str = SOFTWARE) -> bytes:
        """Return the frame that begins the connection."""
        assert self.state is ConnectionState.NEW
        self.state = ConnectionState.GREETING
        request = HelloRequest(
            client_id=client_id, software=software, software_version=software_version
        )
        return self._send(request, 0)[1]

    def send(self, request: Request, body_bytes: int = 0) -> tuple[int, bytes]:
        """Return (correlation id, prefix and header); the body's `body_bytes` bytes follow them.

        Raises:
            UnknownApi: the broker does not offer this API.
            UnsupportedVersion: it offers no version that this client supports.
            FrameTooLarge: the broker would refuse the frame.
        """
        assert self.state in (ConnectionState.GREETING, ConnectionState.READY), self.state
        if self._apis is not None:
            self._check_spoken(request, self._apis)
        return self._send(request, body_bytes)

    def receive(self, frame: frames.Frame) -> tuple[int, Response, memoryview]:
        """Return (correlation id, response, body).

        Raises:
            CorruptFrame: the header cannot be read, or no request has its correlation id.
            InvalidResponse: a field of the answer is outside its bounds. The connection and the
                other requests are not affected.
            QuiverlogError: the broker refused the connection itself (correlation id 0).
        """
        _, _, correlation_id = frames.peek_preamble(frame.header)
        api = self._in_flight.pop(correlation_id, None)
        if api is None:
            self.state = ConnectionState.CLOSED
            raise self._unasked(frame, correlation_id)
        response = frames.decode_response(frame.header, api)
        if self.state is ConnectionState.GREETING and isinstance(response, HelloResponse):
            self._greeted(response)
        return correlation_id, response, frame.body

    def close(self) -> list[int]:
        """Close; return the ids of the requests that will never be answered."""
        self.state = ConnectionState.CLOSED
        lost = list(self._in_flight)
        self._in_flight.clear()  # Whether the broker has carried them out is unknown.
        return lost

    def _send(self, request: Request, body_bytes: int) -> tuple[int, bytes]:
        correlation_id = self._next_id()
        head = frames.encode(request, correlation_id, body_bytes)
        # `encode` has checked our own bound; a broker's may be lower.
        if len(head) + body_bytes > self._frame_bytes_max:
            raise FrameTooLarge(
                f"a frame of {len(head) + body_bytes} bytes is above the broker's "
                f"{self._frame_bytes_max}."
            )
        self._in_flight[correlation_id] = request.api
        return correlation_id, head

    def _next_id(self) -> int:
        correlation_id = self._last_id
        while True:
            correlation_id = 1 if correlation_id == CORRELATION_ID_MAX else correlation_id + 1
            # After 2^31 requests an id could still be in use.
            if correlation_id not in self._in_flight:
                self._last_id = correlation_id
                return correlation_id

    def _greeted(self, response: HelloResponse) -> None:
        # The caller raises it; the versions of a failed answer are empty.
        if response.error_code:
            return
        self.state = ConnectionState.READY
        self.peer = response
        self._apis = {api.api: api for api in response.apis}
        if response.frame_bytes_max > 0:
            # Larger frames would be refused after they were sent.
            self._frame_bytes_max = min(FRAME_BYTES_MAX, response.frame_bytes_max)

    def _check_spoken(self, request: Request, apis: dict[int, ApiRange]) -> None:
        offered = apis.get(int(request.API))
        if offered is None and request.API in ADMINISTRATION:
            return  # The listener may not serve it: the broker's refusal names the one that does.
        if offered is None:
            raise UnknownApi(f"the broker does not offer {request.API.name}.")
        if not offered.version_min <= request.VERSION <= offered.version_max:
            raise UnsupportedVersion(
                f"the broker offers {request.API.name} in versions {offered.version_min} to "
                f"{offered.version_max}, this client supports {request.VERSION}."
            )

    def _unasked(self, frame: frames.Frame, correlation_id: int) -> Exception:
        # The broker could not read a request, or has no place for the connection.
        if correlation_id == 0:
            answer = frames.decode_error(frame.header)
            if answer.error_code:
                return error_from_code(answer.error_code, answer.error_message)
        return CorruptFrame(f"no request has the correlation id {correlation_id}.")
