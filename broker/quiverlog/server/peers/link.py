"""One link to another broker: queue, connection, HELLO, proof, backoff. At most one connection per
link.

    idle ──something to send──▶ connecting ──HELLO fits, and the proof──▶ open ──▶ idle
     ▲                               │                                     │
     └───────── backoff ◀────────────┴──────────── any failure ────────────┘

A full queue drops the oldest request without a waiter, else refuses the new one. A failure ends
every waiting request with PeerClosed. Invariants: a token ends exactly once, in a call of its own,
never while the node runs; where proofs are required, nothing of the node is sent before the other
broker has proved that it is the one that is meant.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from quiverlog.addresses import Address
from quiverlog.errors import (
    AuthenticationFailed,
    DuplicateNodeId,
    NotAuthenticated,
    PeerUnreachable,
    QuiverlogError,
    TlsRequired,
    UnknownApi,
    WrongCluster,
    WrongListener,
    WrongNode,
    error_class,
    error_from_code,
)
from quiverlog.limits import (
    FORWARD_QUEUE_BYTES_MAX,
    PEER_BACKOFF_MS_MAX,
    PEER_BACKOFF_MS_MIN,
    PEER_CONNECT_MS,
    PEER_IN_FLIGHT_MAX,
    PEER_LOG_INTERVAL_MS,
    PEER_QUEUE_BYTES_MAX,
    PEER_QUEUE_REQUESTS_MAX,
    PEER_SILENCE_MS,
    PEER_WRONG_BACKOFF_MS,
)
from quiverlog.node.runtime.effects import NO_TOKEN, Peer, Purpose, SendToPeer
from quiverlog.node.runtime.events import Event, PeerClosed, ResponseReceived
from quiverlog.server.net.certified import Certified
from quiverlog.server.net.memory import MemoryBudget
from quiverlog.server.net.peer import keep_alive
from quiverlog.server.net.tls import TlsHolder
from quiverlog.server.net.tls_writer import TlsWriter
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.tls import peer_names, why_failed
from quiverlog.version import VERSION
from quiverlog.wire.authentication_messages import (
    CLUSTER_SHA_256,
    AuthenticateRequest,
    AuthenticateResponse,
)
from quiverlog.wire.connection import BROKER_SOFTWARE, ClientConnection, ConnectionState
from quiverlog.wire.frames import FrameReceiver
from quiverlog.wire.messages import Api, HelloResponse, Response
from quiverlog.wire.peer_proof import (
    NONCE_BYTES,
    ClusterSecrets,
    Connector,
    Parties,
    ProofRefused,
    broker_in,
    broker_uri,
)
from quiverlog.wire.quorum_messages import QuorumResponse

__all__ = [
    "Backoff",
    "Conversation",
    "LinkContext",
    "Listener",
    "PeerLink",
    "PeerQueue",
    "PeerSecrets",
    "body_bytes",
]


_QUEUE_BYTES_MAX: Final = {Purpose.ROWS: FORWARD_QUEUE_BYTES_MAX}
"""Where the sender bounds what is under way: a request that is refused waits for its next try."""
_REQUEST_BYTES: Final = 512
"""More than a request takes without its body."""


def body_bytes(body: Sequence[bytes | memoryview]) -> int:
    return sum(memoryview(part).nbytes for part in body)


class PeerQueue:
    __slots__ = ("_bytes_max", "_dropped", "_waiting", "byte_count")

    def __init__(self, bytes_max: int = PEER_QUEUE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[SendToPeer, int]] = deque()
        self.byte_count = 0
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, effect: SendToPeer) -> bool:
        """Keep a request. False: there is no room, and a caller waits for the answer."""
        cost = _REQUEST_BYTES + body_bytes(effect.body)
        while self._waiting and self._is_over(cost):
            if not self._drop_oldest():
                break
        if self._waiting and self._is_over(cost):
            if effect.token != NO_TOKEN:
                return False
            self._dropped += 1
            return True
        self._waiting.append((effect, cost))
        self.byte_count += cost
        return True

    def take(self) -> SendToPeer:
        effect, cost = self._waiting.popleft()
        self.byte_count -= cost
        assert self.byte_count >= 0
        return effect

    def clear(self) -> tuple[int, ...]:
        """Drop all; return the tokens for which callers wait."""
        tokens = tuple(e.token for e, _ in self._waiting if e.token != NO_TOKEN)
        self._dropped += len(self._waiting) - len(tokens)
        self._waiting.clear()
        self.byte_count = 0
        return tokens

    def take_dropped(self) -> int:
        """Return the number of dropped requests without a waiter since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _is_over(self, cost: int) -> bool:
        return (
            len(self._waiting) >= PEER_QUEUE_REQUESTS_MAX
            or self.byte_count + cost > self._bytes_max
        )

    def _drop_oldest(self) -> bool:
        for at, (effect, cost) in enumerate(self._waiting):
            if effect.token == NO_TOKEN:
                del self._waiting[at]
                self.byte_count -= cost
                self._dropped += 1
                return True
        return False


class Backoff:
    """Exponential backoff with jitter."""

    __slots__ = ("_failures", "_random")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self._failures = 0

    def failed(self) -> float:
        """Return the seconds until the next try."""
        delay_ms = min(PEER_BACKOFF_MS_MAX, PEER_BACKOFF_MS_MIN << min(self._failures, 16))
        self._failures += 1
        # Brokers that failed together must not all come back together.
        return delay_ms / 1000 * self._random.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        self._failures = 0


_JOIN_BYTES_MAX: Final = 64 * 1024
"""Up to here head and body are joined: one write costs more than the copy."""


class Listener(Protocol):
    def greeted(
        self, hello: HelloResponse, *, can_prove: bool, names: Sequence[str]
    ) -> Connector | None:
        """Handle the answer to HELLO; return what is to be proved, None where nothing is.

        Args:
            names: those of the other broker's certificate; empty: there is no TLS.

        Raises:
            QuiverlogError: another broker has answered, or one without the proof that is required.
        """

    def answered(self, answers: list[tuple[int, Response, memoryview]]) -> None:
        """Handle (token, response, body) in the order of arrival."""

    def received(self) -> None:
        """Bytes have arrived."""

    def has_room(self) -> None:
        """More requests may be sent."""

    def ended(self, conversation: Conversation, error: QuiverlogError) -> None:
        """The connection has ended; the last call."""


class Conversation(asyncio.BufferedProtocol):
    """One connection to another broker. Nothing but HELLO is sent before HELLO is answered."""

    def __init__(self, listener: Listener, client_id: str, certified: Certified | None) -> None:
        self._listener = listener
        self._client_id = client_id
        self._certified = certified
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._receiver = FrameReceiver(own_bodies=True)
        self._protocol = ClientConnection()
        self._tokens: dict[int, int] = {}
        self._connector: Connector | None = None
        self._proof_number = 0
        """Correlation id of the AUTHENTICATE under way; 0: none is."""
        self._is_paused = self.is_over = False
        self._names: tuple[str, ...] = ()
        self._writer: TlsWriter | None = None
        self.was_quiet = False
        """Nothing was in flight when it ended, as after a long idle time: no failure."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport)
        shown = transport.get_extra_info("peercert")
        if shown is not None and self._certified is not None:
            self._names = peer_names(shown)
            self._writer = TlsWriter(self._transport)
            self._certified.add(self, transport.get_extra_info("ssl_object"))
        self._write([self._protocol.hello(self._client_id, VERSION, BROKER_SOFTWARE)])

    def get_buffer(self, sizehint: int) -> Any:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_over:
            return
        self._listener.received()
        error: QuiverlogError | None = None
        answers: list[tuple[int, Response, memoryview]] = []
        try:
            for frame in self._receiver.buffer_updated(nbytes):
                number, response, body = self._protocol.receive(frame)
                if isinstance(response, HelloResponse) and number not in self._tokens:
                    self._greet(response)
                elif number == self._proof_number:
                    self._prove(response)
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
        self.was_quiet = self.is_ready and not self.in_flight
        why = f": {exc}" if exc is not None else ""
        self.end(PeerUnreachable(f"the connection ended{why}."))

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._writer is not None:
            self._writer.is_blocked = True

    def resume_writing(self) -> None:
        if self._writer is not None:
            self._writer.is_blocked = False
            self._push(self._writer)
            if self._writer.byte_count:
                return
        self._is_paused = False
        if self.is_ready:
            self._listener.has_room()

    @property
    def is_ready(self) -> bool:
        is_greeted = self._protocol.state is ConnectionState.READY
        return is_greeted and not self._proof_number and not self.is_over

    def rests_on(self, secrets: ClusterSecrets) -> bool:
        """Return whether it may live on with these secrets. One without a proof may."""
        return self._connector is None or self._connector.secret in secrets

    def certificate_ended(self, why: str) -> None:
        self.end(PeerUnreachable(f"the connection ends: {why}."))

    @property
    def may_send(self) -> bool:
        return self.is_ready and not self._is_paused

    @property
    def in_flight(self) -> int:
        return self._protocol.in_flight

    @property
    def held_bytes(self) -> int:
        if self.is_over:
            return 0
        queued = 0 if self._writer is None else self._writer.byte_count
        return self._receiver.buffered_bytes + self._transport.get_write_buffer_size() + queued

    def send(self, effect: SendToPeer) -> None:
        """Raises QuiverlogError: the other broker lacks the API, or takes no frame of this size."""
        assert self.may_send
        number, head = self._protocol.send(effect.request, body_bytes(effect.body))
        self._tokens[number] = effect.token
        self._write([head, *effect.body])

    def end(self, error: QuiverlogError) -> None:
        if not self.is_over:
            self.is_over = True
            if self._certified is not None:
                self._certified.remove(self)
            self._protocol.close()
            self._receiver.release()
            self._transport.abort()
            self._listener.ended(self, error)

    def take_tokens(self) -> tuple[int, ...]:
        """Return, once, the tokens of requests that will never be answered."""
        tokens = tuple(token for token in self._tokens.values() if token != NO_TOKEN)
        self._tokens.clear()
        return tokens

    def _greet(self, hello: HelloResponse) -> None:
        if hello.error_code:
            raise error_from_code(hello.error_code, hello.error_message)
        can_prove = self._protocol.offers(Api.AUTHENTICATE)
        self._connector = self._listener.greeted(hello, can_prove=can_prove, names=self._names)
        if self._connector is not None:
            self._authenticate(self._connector.opening)

    def _authenticate(self, data: bytes) -> None:
        request = AuthenticateRequest(mechanism=CLUSTER_SHA_256, data=data)
        self._proof_number, head = self._protocol.send(request)
        self._write([head])

    def _prove(self, response: Response) -> None:
        if response.error_code:
            raise error_from_code(response.error_code, response.error_message)
        assert isinstance(response, AuthenticateResponse)
        assert self._connector is not None
        self._proof_number = 0
        if response.is_done:
            if not self._connector.secret:
                raise AuthenticationFailed("the broker has taken our proof and given none.")
            return
        if self._connector.secret:
            raise AuthenticationFailed("the broker asks for more than one proof.")
        try:
            proof = self._connector.answer(response.data)
        except ProofRefused as refused:
            raise AuthenticationFailed(
                f"the broker is refused: {refused}. Give both the same `cluster.secret.file`."
            ) from None
        self._authenticate(proof)

    def _push(self, writer: TlsWriter) -> None:
        """Encrypt one step of what waits, and the next in a later turn of the loop."""
        if self.is_over:
            writer.clear()
            return
        writer.push()
        if writer.byte_count:
            self._is_paused = True
            if not writer.is_blocked:
                asyncio.get_running_loop().call_soon(self._push_on, writer)

    def _push_on(self, writer: TlsWriter) -> None:
        self._push(writer)
        if not writer.byte_count and not writer.is_blocked and self._is_paused:
            self._is_paused = False
            if self.is_ready:
                self._listener.has_room()

    def _write(self, parts: list[bytes | memoryview]) -> None:
        if self._writer is not None:
            self._writer.add(parts, body_bytes(parts))
            self._push(self._writer)
        elif body_bytes(parts) <= _JOIN_BYTES_MAX:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)


_WRONG: Final = (WrongCluster, WrongNode)
"""Another broker has the address: only an operator can change that, so the backoff is long."""
_UNPROVED: Final = (NotAuthenticated, AuthenticationFailed)
"""The other broker asks for a proof that this one has not given."""


def _reason(error: Exception) -> str:
    # asyncio replaces the system's text by one with the address.
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class PeerSecrets:
    """What links prove, and what they ask of the other side.

    Args:
        node_id: this broker's own.
        nonce: returns that number of random bytes.
        is_required: a broker without proof is sent nothing.
    """

    __slots__ = ("_node_id", "_nonce", "is_required", "secrets")

    def __init__(
        self,
        node_id: int,
        secrets: ClusterSecrets,
        nonce: Callable[[int], bytes],
        *,
        is_required: bool,
    ) -> None:
        assert secrets or not is_required
        self._node_id = node_id
        self._nonce = nonce
        self.secrets = secrets
        self.is_required = is_required

    def connector(self, cluster_id: str, node_id: int) -> Connector:
        parties = Parties(cluster_id, self._node_id, node_id)
        return Connector(self.secrets, parties, self._nonce(NONCE_BYTES))


class LinkContext(NamedTuple):
    """What all links share.

    `deliver` gives events to the node now, `later` when the node is not running. `may_open` is
    False when all descriptors for peers are in use.
    """

    loop: asyncio.AbstractEventLoop
    cluster_id: str
    client_id: str
    proof: PeerSecrets
    deliver: Callable[..., None]
    later: Callable[[Event], None]
    may_open: Callable[[], bool]
    memory: MemoryBudget
    metrics: ServerMetrics
    log: Logger
    tls: TlsHolder | None
    """Of the listener where brokers meet; None: links are plain."""


class PeerLink:
    """The link to another broker for one purpose; it connects when there is something to send."""

    def __init__(
        self, peer: Peer, address: Address, context: LinkContext, rng: random.Random
    ) -> None:
        self.peer = peer
        self.address = address
        self.held_bytes = 0
        self._context = context
        self._queue = PeerQueue(_QUEUE_BYTES_MAX.get(peer.purpose, PEER_QUEUE_BYTES_MAX))
        self._backoff = Backoff(rng)
        self._is_tls_required = False
        self._conversation: Conversation | None = None
        self._begun: Conversation | None = None
        """Connected, but `_connect` has not resumed yet."""
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Ends the backoff, or the wait for an answer."""
        self._retry_at_s = 0.0
        self._last_received_s = 0.0
        self._held_since_us = 0
        self._logged_s: dict[int, float] = {}
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """True if a descriptor is, or is about to be, in use."""
        return self._conversation is not None or self._connecting is not None

    def send(self, effect: SendToPeer) -> None:
        """Send it when there is a connection with room."""
        has_room = self._queue.add(effect)
        self._context.metrics.peer_requests_dropped += self._queue.take_dropped()
        if not has_room:
            full = PeerUnreachable(f"too much waits to be sent to node {self.peer.node_id}.")
            self._context.later(PeerClosed(self.peer, (effect.token,), full))
        self._go_on()

    def give_up(self, why: str) -> None:
        if self._conversation is not None or self._queue:
            self._failed(PeerUnreachable(f"the connection was given up: {why}."))

    def moved(self, address: Address) -> None:
        self.address = address
        if self.is_open or self._queue:
            self._failed(PeerUnreachable(f"node {self.peer.node_id} is at {address} now."))
        self._backoff.succeeded()
        self._retry_at_s = 0.0

    def close(self) -> None:
        self._is_closed = True
        self._failed(PeerUnreachable("the broker ends its connections."))
        self._stop_timer()

    def _go_on(self) -> None:
        """Send, connect, or wait for the end of the backoff."""
        conversation = self._conversation
        if conversation is not None:
            while self._queue and conversation.may_send:
                if conversation.in_flight >= PEER_IN_FLIGHT_MAX:
                    break
                self._send_next(conversation)
                if self._conversation is not conversation:
                    return  # Sending failed, and ended it.
        elif self._queue and self._connecting is None and not self._is_closed:
            self._connect_soon()
        self._watch()
        self._report()

    def _send_next(self, conversation: Conversation) -> None:
        effect = self._queue.take()
        if not conversation.in_flight:
            # Silence is measured from the request: an idle connection is not silent.
            self._last_received_s = self._context.loop.time()
        try:
            conversation.send(effect)
        except UnknownApi:
            self._not_spoken(conversation, effect)
        except QuiverlogError as error:
            # The broker may have the API after its next start: a new HELLO lists them again.
            if effect.token != NO_TOKEN:
                self._context.later(PeerClosed(self.peer, (effect.token,), error))
            conversation.end(error)
        except OSError as error:  # Its token is among those in flight, which `end` ends.
            conversation.end(PeerUnreachable(f"it cannot be written to: {_reason(error)}."))

    def _not_spoken(self, conversation: Conversation, effect: SendToPeer) -> None:
        error = WrongListener(
            f"{self.address} serves no {effect.request.API.name}: its broker is still starting, or"
            " this is not the listener where brokers meet, or it was started without `cluster.id`"
            f" and is a cluster of its own (`cluster.id` = {self._context.cluster_id!r} lets others"
            " join)."
        )
        if effect.token != NO_TOKEN:
            self._context.later(PeerClosed(self.peer, (effect.token,), error))
        conversation.end(error)

    def _connect_soon(self) -> None:
        loop = self._context.loop
        if loop.time() < self._retry_at_s:
            return  # `_look` calls again at the end of the backoff.
        if not self._context.may_open():
            self._failed(PeerUnreachable("no descriptor is left for connections to brokers."))
            return
        self._last_received_s = loop.time()
        self._connecting = loop.create_task(self._connect())

    async def _connect(self) -> None:
        address = self.address
        try:
            async with asyncio.timeout(PEER_CONNECT_MS / 1000):
                _, conversation = await self._context.loop.create_connection(
                    self._begin, *address, **self._secured()
                )
        except TimeoutError:
            error = PeerUnreachable(f"{address} did not answer within {PEER_CONNECT_MS} ms.")
        except (OSError, ValueError, QuiverlogError) as failure:
            error = PeerUnreachable(f"cannot connect to {address}: {self._why(failure)}.")
        else:
            self._connecting = self._begun = None
            self._conversation = conversation
            self._context.metrics.peers_open += 1
            self._go_on()
            return
        self._connecting = None
        self._is_tls_required = False
        self._failed(error)

    def _secured(self) -> dict[str, Any]:
        tls = self._tls
        if tls is None:
            return {}
        return {
            "ssl": tls.contexts.client,
            "server_hostname": self.address.host,
            "ssl_handshake_timeout": PEER_CONNECT_MS / 1000,
        }

    @property
    def _tls(self) -> TlsHolder | None:
        """With which it connects now; None: without TLS."""
        tls = self._context.tls
        # While a running cluster gets TLS, a broker that requires it refuses a plain connection.
        return tls if tls is None or tls.settings.is_required or self._is_tls_required else None

    def _why(self, failure: Exception) -> str:
        of_handshake = (ssl.SSLError, ConnectionResetError, ConnectionAbortedError)
        if self._tls is not None and isinstance(failure, of_handshake):
            return why_failed(failure)
        return _reason(failure)

    def _begin(self) -> Conversation:
        certified = self._context.tls.certified if self._context.tls is not None else None
        self._begun = Conversation(self, self._context.client_id, certified)
        return self._begun

    def greeted(
        self, hello: HelloResponse, *, can_prove: bool, names: Sequence[str]
    ) -> Connector | None:
        cluster_id, node_id = self._context.cluster_id, self.peer.node_id
        if hello.cluster_id != cluster_id:
            raise WrongCluster(
                f"{self.address} is of {hello.cluster_id!r}, this of {cluster_id!r}."
            )
        if hello.node_id != node_id:
            raise WrongNode(f"{self.address} is node {hello.node_id}, not {node_id}.")
        if self._tls is not None and broker_in(names, cluster_id) != node_id:
            raise AuthenticationFailed(
                f"{self.address} shows no certificate for {broker_uri(cluster_id, node_id)}."
            )
        self._context.log.debug(
            "peer connected", node=node_id, purpose=str(self.peer.purpose), at=str(self.address)
        )
        proof = self._context.proof
        if proof.secrets and can_prove:
            return proof.connector(cluster_id, node_id)
        unproved = NotAuthenticated(
            f"{self.address} does not prove that it is node {node_id}: it has no secret, or serves"
            " no brokers yet."
        )
        if proof.is_required:
            raise unproved
        if self._tls is not None and self._tls.settings.is_required:
            return None  # Its certificate has proved it.
        self._context.metrics.peer_links_unproved += 1
        if proof.secrets:
            self._log(unproved)
        return None

    def secrets_changed(self) -> None:
        secrets = self._context.proof.secrets
        # A handshake under way has begun with the earlier ones, and ends as well.
        for one in (self._conversation, self._begun):
            if one is not None and not one.rests_on(secrets):
                one.end(PeerUnreachable("the connection ends with the secret that has proved it."))

    def answered(self, answers: list[tuple[int, Response, memoryview]]) -> None:
        kinds = [error_class(response.error_code) for _, response, _ in answers]
        if not any(kind in _UNPROVED for kind in kinds):
            self._backoff.succeeded()
        events: list[Event] = []
        for (token, response, body), kind in zip(answers, kinds, strict=True):
            if token != NO_TOKEN:
                events.append(ResponseReceived(self.peer, token, response, body))
            if response.error_code and (
                token == NO_TOKEN
                or kind in _UNPROVED
                # A second broker with this node id is reported by the caller.
                or (isinstance(response, QuorumResponse) and kind is not DuplicateNodeId)
            ):
                self._refused(response)
        if events:
            self._context.deliver(*events)

    def received(self) -> None:
        self._last_received_s = self._context.loop.time()

    def has_room(self) -> None:
        self._go_on()

    def ended(self, conversation: Conversation, error: QuiverlogError) -> None:
        if conversation is self._conversation:
            self._conversation = None
            self._context.metrics.peers_open -= 1
        elif conversation is not self._begun:
            return  # `give_up` ended it before.
        self._is_tls_required = isinstance(error, TlsRequired)
        tokens = conversation.take_tokens()
        if tokens:
            self._context.later(PeerClosed(self.peer, tokens, error))
        if conversation.was_quiet and not self._queue:
            self._stop_timer()
            self._report()
        else:
            self._failed(error)

    def _refused(self, response: Response) -> None:
        kind = error_class(response.error_code)
        error = kind(response.error_message)
        if kind in (*_WRONG, *_UNPROVED) and self._conversation is not None:
            self._conversation.end(error)
        else:
            self._log(error)

    def _failed(self, error: QuiverlogError) -> None:
        """End all waiting requests, and back off."""
        context = self._context
        if self._conversation is not None:
            self._conversation.end(error)  # `ended` calls this method again.
            return
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._begun = None
        self._stop_timer()
        tokens = self._queue.clear()
        context.metrics.peer_requests_dropped += self._queue.take_dropped()
        if tokens:
            context.later(PeerClosed(self.peer, tokens, error))
        if not self._is_closed:
            delay_s = self._backoff.failed()
            if isinstance(error, _WRONG):
                delay_s = max(delay_s, PEER_WRONG_BACKOFF_MS / 1000)
            self._retry_at_s = context.loop.time() + delay_s
            context.metrics.count_peer_failure(error.code_name().lower())
            self._log(error)
        self._report()

    def _log(self, error: QuiverlogError) -> None:
        # Once per error code and interval: each try at a broker that is down fails.
        now_s = self._context.loop.time()
        last_s = self._logged_s.get(error.code)
        if last_s is None or now_s - last_s >= PEER_LOG_INTERVAL_MS / 1000:
            self._logged_s[error.code] = now_s
            is_double = isinstance(error, DuplicateNodeId)
            log = self._context.log
            (log.error if is_double else log.warning)(
                "another broker has this node id" if is_double else "peer cannot be asked",
                node=self.peer.node_id,
                purpose=str(self.peer.purpose),
                at=str(self.address),
                error=str(error),
            )

    # --- time ----------------------------------------------------------------------------------
    def _watch(self) -> None:
        """Schedule `_look` for the end of the backoff, or of the wait for an answer."""
        if self._timer is None and not self._is_closed:
            due_s = self._due_s()
            if due_s is not None:
                self._timer = self._context.loop.call_at(due_s, self._look)

    def _due_s(self) -> float | None:
        if self._conversation is not None:
            if self._conversation.in_flight:
                return self._last_received_s + PEER_SILENCE_MS / 1000
        elif self._connecting is None and self._queue:
            return self._retry_at_s
        return None

    def _look(self) -> None:
        self._timer = None
        due_s, conversation = self._due_s(), self._conversation
        is_late = due_s is not None and self._context.loop.time() >= due_s
        if conversation is not None and is_late:
            silent = PeerUnreachable(f"{self.address} was silent for {PEER_SILENCE_MS} ms.")
            conversation.end(silent)
        self._go_on()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def measure(self) -> tuple[int, int]:
        held_bytes = self._queue.byte_count
        if self._conversation is not None:
            held_bytes += self._conversation.held_bytes
        now_us = round(self._context.loop.time() * 1e6)
        if not held_bytes:
            self._held_since_us = 0
        elif not self._held_since_us:
            self._held_since_us = now_us
        return held_bytes, self._held_since_us or now_us

    def evict(self) -> None:
        self.give_up("memory")

    def _report(self) -> None:
        held_bytes, _ = self.measure()
        if held_bytes != self.held_bytes:
            self._context.memory.report(self, held_bytes)
