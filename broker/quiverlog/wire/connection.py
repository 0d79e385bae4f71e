"""A client's side of one connection: correlation ids, requests in flight, HELLO first.

Does no I/O: requests in, bytes out; frames in, responses out. The broker's side needs no machine
of its own: it answers each request with the correlation id that came with it.

Legal order: `hello()` once, then `send()` at will (also before HELLO is answered); `receive()`
for every frame. Any exception from `receive()` but InvalidResponse means that the connection must
be closed.
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
"""A broker's HELLO to another one: it has a place that is kept for brokers."""


class ConnectionState(enum.Enum):
    """NEW -> GREETING (HELLO is on its way) -> READY -> CLOSED; CLOSED from anywhere."""

    NEW = "new"
    GREETING = "greeting"
    READY = "ready"
    CLOSED = "closed"


class ClientConnection:
    """Matches responses to requests; one instance per connection."""

    __slots__ = ("_apis", "_frame_bytes_max", "_in_flight", "_last_id", "peer", "state")

    def __init__(self) -> None:
        self.state = ConnectionState.NEW
        self.peer: HelloResponse | None = None
        """What the broker said of itself; None until HELLO is answered."""
        self._in_flight: dict[int, int] = {}
        self._last_id = 0
        self._apis: dict[int, ApiRange] | None = None
        self._frame_bytes_max = FRAME_BYTES_MAX

    @property
    def in_flight(self) -> int:
        """Requests that wait for their response."""
        return len(self._in_flight)

    def hello(self, client_id: str, software_version: str, software: str = SOFTWARE) -> bytes:
        """The frame that opens the conversation."""
        assert self.state is ConnectionState.NEW
        self.state = ConnectionState.GREETING
        request = HelloRequest(
            client_id=client_id, software=software, software_version=software_version
        )
        return self._send(request, 0)[1]

    def send(self, request: Request, body_bytes: int = 0) -> tuple[int, bytes]:
        """(correlation id, prefix and header); the body's `body_bytes` bytes follow them.

        Raises:
            UnknownApi: the broker does not offer this API.
            UnsupportedVersion: it does, but not in a version that we speak.
            FrameTooLarge: the broker would refuse the frame.
        """
        assert self.state in (ConnectionState.GREETING, ConnectionState.READY), self.state
        if self._apis is not None:
            self._check_spoken(request, self._apis)
        return self._send(request, body_bytes)

    def receive(self, frame: frames.Frame) -> tuple[int, Response, memoryview]:
        """(correlation id, response, body).

        Raises:
            CorruptFrame: the header cannot be read or answers nothing that was asked.
            InvalidResponse: a field of the answer is outside its bounds. The connection is as good
                as before, and no other request is concerned.
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
        """The connection is gone: the ids of the requests that will never be answered."""
        self.state = ConnectionState.CLOSED
        lost = list(self._in_flight)
        self._in_flight.clear()
        return lost

    def _send(self, request: Request, body_bytes: int) -> tuple[int, bytes]:
        correlation_id = self._next_id()
        head = frames.encode(request, correlation_id, body_bytes)
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
            if correlation_id not in self._in_flight:
                self._last_id = correlation_id
                return correlation_id

    def _greeted(self, response: HelloResponse) -> None:
        if response.error_code:
            return
        self.state = ConnectionState.READY
        self.peer = response
        self._apis = {api.api: api for api in response.apis}
        if response.frame_bytes_max > 0:
            self._frame_bytes_max = min(FRAME_BYTES_MAX, response.frame_bytes_max)

    def _check_spoken(self, request: Request, apis: dict[int, ApiRange]) -> None:
        offered = apis.get(int(request.API))
        if offered is None and request.API in ADMINISTRATION:
            return  # The listener may not serve it: the broker's refusal says which one does.
        if offered is None:
            raise UnknownApi(f"the broker does not offer {request.API.name}.")
        if not offered.version_min <= request.VERSION <= offered.version_max:
            raise UnsupportedVersion(
                f"the broker offers {request.API.name} in versions {offered.version_min} to "
                f"{offered.version_max}, this client speaks {request.VERSION}."
            )

    def _unasked(self, frame: frames.Frame, correlation_id: int) -> Exception:
        if correlation_id == 0:
            answer = frames.decode_error(frame.header)
            if answer.error_code:
                return error_from_code(answer.error_code, answer.error_message)
        return CorruptFrame(f"nothing was asked under the correlation id {correlation_id}.")
