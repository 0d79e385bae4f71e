"""One connection to another broker: bytes out, answers in, HELLO first.

Owns the frames of one connection (the client's side of the protocol) and the tokens under which
requests went out. It lives from the moment that the socket is connected until its end, which it
tells once; whether there is a next one is the link's affair.

Must not know: addresses, backoff, what waits behind what was sent.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, cast

from quiverlog.errors import PeerUnreachable, QuiverlogError, error_from_code
from quiverlog.node.runtime.effects import NO_TOKEN, SendToPeer
from quiverlog.server.peer import keep_alive
from quiverlog.server.peer_queue import body_bytes
from quiverlog.version import VERSION
from quiverlog.wire.connection import BROKER_SOFTWARE, ClientConnection, ConnectionState
from quiverlog.wire.frames import FrameReceiver
from quiverlog.wire.messages import HelloResponse, Response

__all__ = ["Conversation", "Listener"]

_JOIN_BYTES_MAX: Final = 64 * 1024
"""Up to here head and body are joined: one write costs more than the copy."""


class Listener(Protocol):
    """Who is told of what happens on the connection."""

    def greeted(self, hello: HelloResponse) -> None:
        """The broker has said who it is. Raises QuiverlogError: it is somebody else."""

    def answered(self, answers: list[tuple[int, Response, memoryview]]) -> None:
        """(token, response, body) of requests, in the order in which they came."""

    def heard(self) -> None:
        """Bytes have come."""

    def has_room(self) -> None:
        """More may be sent."""

    def ended(self, conversation: Conversation, error: QuiverlogError) -> None:
        """The connection is gone, or of no use any more; nothing else is told after this."""


class Conversation(asyncio.BufferedProtocol):
    """See the module docstring.

    Args:
        client_id: how we call ourselves.
    """

    def __init__(self, listener: Listener, client_id: str) -> None:
        self._listener = listener
        self._client_id = client_id
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._receiver = FrameReceiver(own_bodies=True)
        self._protocol = ClientConnection()
        self._tokens: dict[int, int] = {}
        self._is_paused = self.is_over = False
        self.was_quiet = False
        """The other side ended it while nothing was under way: say, after a long idleness."""

    # --- the transport's calls -----------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say HELLO; nothing else is sent before it is answered."""
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport)
        self._write([self._protocol.hello(self._client_id, VERSION, BROKER_SOFTWARE)])

    def get_buffer(self, sizehint: int) -> Any:
        """Where the transport is to receive into."""
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were received: tell the answers that are now complete."""
        if self.is_over:
            return
        self._listener.heard()
        error: QuiverlogError | None = None
        answers: list[tuple[int, Response, memoryview]] = []
        try:
            for frame in self._receiver.buffer_updated(nbytes):
                number, response, body = self._protocol.receive(frame)
                if isinstance(response, HelloResponse) and number not in self._tokens:
                    self._greet(response)
                else:
                    answers.append((self._tokens.pop(number), response, body))
            error = self._receiver.error
        except QuiverlogError as failure:
            error = failure
        if answers:
            self._listener.answered(answers)
        if error is not None:
            self.end(error)
        elif self.is_ready:
            self._listener.has_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other broker, or the network, has ended it."""
        self.was_quiet = self.is_ready and not self.in_flight
        why = f": {exc}" if exc is not None else ""
        self.end(PeerUnreachable(f"the connection ended{why}."))

    def pause_writing(self) -> None:
        """Enough waits to be taken."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The other broker has taken enough."""
        self._is_paused = False
        if self.is_ready:
            self._listener.has_room()

    # --- the link's calls ----------------------------------------------------------------------
    @property
    def is_ready(self) -> bool:
        """The other broker has said who it is, and may be asked."""
        return not self.is_over and self._protocol.state is ConnectionState.READY

    @property
    def may_send(self) -> bool:
        """There is room for one more request."""
        return self.is_ready and not self._is_paused

    @property
    def in_flight(self) -> int:
        """Requests without an answer, HELLO among them."""
        return self._protocol.in_flight

    @property
    def held_bytes(self) -> int:
        """What the connection makes us hold."""
        if self.is_over:
            return 0
        return self._receiver.buffered_bytes + self._transport.get_write_buffer_size()

    def send(self, effect: SendToPeer) -> None:
        """Send a request.

        Raises:
            QuiverlogError: the other broker does not speak it, or not of this size.
        """
        assert self.may_send
        number, head = self._protocol.send(effect.request, body_bytes(effect.body))
        self._tokens[number] = effect.token
        self._write([head, *effect.body])

    def end(self, error: QuiverlogError) -> None:
        """Close, and tell so. A second call does nothing."""
        if not self.is_over:
            self.is_over = True
            self._protocol.close()
            self._receiver.release()
            self._transport.abort()
            self._listener.ended(self, error)

    def take_tokens(self) -> tuple[int, ...]:
        """The tokens of requests that will never be answered; asked once, at the end."""
        tokens = tuple(token for token in self._tokens.values() if token != NO_TOKEN)
        self._tokens.clear()
        return tokens

    def _greet(self, hello: HelloResponse) -> None:
        if hello.error_code:
            raise error_from_code(hello.error_code, hello.error_message)
        self._listener.greeted(hello)

    def _write(self, parts: list[bytes | memoryview]) -> None:
        if body_bytes(parts) <= _JOIN_BYTES_MAX:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)
