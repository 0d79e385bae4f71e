"""Connections that have proved which other broker of this cluster is at their end.

Owns the accepting side of the proof (`wire.peer_proof`) and the one check of every request between
brokers: a node id in a request by itself proves nothing. Where brokers meet by TLS, a certificate
of that broker is asked for as well; its authority has been checked by the server.

Invariant: a connection is proved by a secret that counts now; a removed secret ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from quiverlog.core.security.principals import Kind, of_broker
from quiverlog.errors import AuthenticationFailed, InvalidConfig, InvalidRequest, NotAuthenticated
from quiverlog.node.runtime.clients import Clients
from quiverlog.node.runtime.config import LISTENER_DEFAULT, NodeConfig
from quiverlog.node.runtime.effects import ConnectionProved
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.refusals import RefusalLog
from quiverlog.types import Now
from quiverlog.wire.authentication_messages import (
    CLUSTER_SHA_256,
    AuthenticateRequest,
    AuthenticateResponse,
)
from quiverlog.wire.messages import Request
from quiverlog.wire.peer_proof import (
    NONCE_BYTES,
    Acceptor,
    ClusterSecrets,
    ProofRefused,
    broker_in,
    broker_uri,
)
from quiverlog.wire.registry import SENDERS

__all__ = ["PeerProofs"]

_WARNING_US: Final = 60_000_000
_UNPROVED: Final = "a broker takes part without proof"
_LEFT: Final = (
    "it left when it had seen this broker's proof: its secret is another, or it was stopped"
)


@dataclass(frozen=True, slots=True)
class _Proved:
    node_id: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Challenged:
    acceptor: Acceptor
    address: str


class PeerProofs:
    """`is_required`: what a connection without proof sends as a broker is refused."""

    __slots__ = (
        "_asks_for_certificates", "_certified", "_challenged", "_clients", "_cluster_id",
        "_entropy", "_listener", "_metrics", "_node_id", "_outbox", "_proved", "_refusals",
        "_seen_unproved", "_warned_us", "is_required", "secrets", "unproved",
    )  # fmt: skip

    def __init__(
        self,
        config: NodeConfig,
        clients: Clients,
        outbox: Outbox,
        metrics: NodeMetrics,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._node_id = config.node_id
        self._listener = config.inter_broker_listener
        self._clients = clients
        self._outbox = outbox
        self._metrics = metrics
        self._entropy = entropy
        self._cluster_id = ""
        self._asks_for_certificates = config.brokers_have_certificates
        self._certified: dict[int, int] = {}
        """Connection -> the node of its certificate."""
        self.secrets = config.cluster_secrets
        self.is_required = False
        self._challenged: dict[int, _Challenged] = {}
        self._proved: dict[int, _Proved] = {}
        self.unproved: set[int] = set()
        """Connections that may send nothing else before the proof: the listener is for brokers."""
        self._seen_unproved: set[int] = set()
        self._warned_us = -_WARNING_US
        self._refusals = RefusalLog(outbox, "a proof was refused")
        metrics.cluster_secrets = len(self.secrets.values)

    def begin(self, config: NodeConfig, cluster_id: str, *, recorded: bool) -> None:
        """Raises InvalidConfig: proofs are required, and this broker has no secret."""
        asked = config.proof_required
        self.is_required = recorded if asked is None else asked
        self._cluster_id = cluster_id
        if self.is_required and not self.secrets:
            raise InvalidConfig(
                "the brokers of this cluster prove that they have its secret, and"
                " `cluster.secret.file` is not given: give it, or set"
                " `cluster.secret.required` = false, which lets every program that reaches this"
                " broker speak as another one."
            )

    # --- connections ---------------------------------------------------------------------------
    def opened(self, connection_id: int, listener: str, names: Sequence[str] = ()) -> bool:
        """Return whether its certificate alone makes it a broker's."""
        assert connection_id not in self._certified, "the server never uses an id twice"
        if listener != self._listener:
            return False
        node_id = broker_in(names, self._cluster_id) if self._asks_for_certificates else None
        if node_id is not None:
            self._certified[connection_id] = node_id
        is_bare = self._asks_for_certificates and node_id is None
        if (self.is_required or is_bare) and listener != LISTENER_DEFAULT:
            self.unproved.add(connection_id)
        return node_id is not None and not self.is_required

    def drop(self, connection_id: int, now: Now) -> None:
        left = self._challenged.pop(connection_id, None)
        if left is not None:
            self._was_refused(left.address, _LEFT, now)
        self._proved.pop(connection_id, None)
        self._certified.pop(connection_id, None)
        self.unproved.discard(connection_id)
        self._seen_unproved.discard(connection_id)

    def secrets_changed(self, secrets: ClusterSecrets) -> None:
        assert secrets or not self.is_required
        self.secrets = secrets
        self._metrics.cluster_secrets = len(secrets.values)
        # A handshake that has begun with other secrets is refused at its next step.
        self._challenged.clear()
        for connection_id, proved in list(self._proved.items()):
            if proved.secret not in secrets:
                del self._proved[connection_id]
                self._outbox.close_connection(connection_id, "its secret counts no more")

    # --- the proof -----------------------------------------------------------------------------
    def take(
        self, connection_id: int, address: str, request: AuthenticateRequest, now: Now
    ) -> AuthenticateResponse:
        """Return the answer to one step of the proof.

        Args:
            address: of the connection's other end, for the log.

        Raises:
            AuthenticationFailed: the proof does not count; the log has one reason a minute.
            InvalidRequest: another mechanism, or the connection is proved.
        """
        if request.mechanism != CLUSTER_SHA_256:
            raise InvalidRequest(
                f"mechanism {request.mechanism!r}, only {CLUSTER_SHA_256} is here."
            )
        if connection_id in self._proved:
            raise InvalidRequest("the connection is proved already.")
        challenged = self._challenged.pop(connection_id, None)
        try:
            if not self.secrets:
                raise ProofRefused("this broker has no secret")
            if challenged is None:
                nonce = self._entropy(NONCE_BYTES)
                acceptor = Acceptor(self.secrets, self._cluster_id, self._node_id, nonce)
                response = AuthenticateResponse(data=acceptor.challenge(request.data))
                self._challenged[connection_id] = _Challenged(acceptor, address)
                return response
            node_id, secret = challenged.acceptor.check(request.data)
        except ProofRefused as refused:
            self._was_refused(address, str(refused), now)
            raise AuthenticationFailed(f"broker {self._node_id} refuses the proof.") from None
        self._proved[connection_id] = _Proved(node_id, secret)
        if not self._asks_for_certificates or connection_id in self._certified:
            self.unproved.discard(connection_id)
        self._outbox.emit(ConnectionProved(connection_id))
        principal = of_broker(node_id)
        self._clients.authenticated(connection_id, principal)
        return AuthenticateResponse(is_done=True, principal=str(principal))

    def _was_refused(self, address: str, why: str, now: Now) -> None:
        self._metrics.peer_proofs_refused += 1
        self._refusals.refused(address, why, now)

    # --- requests ------------------------------------------------------------------------------
    def check(self, connection_id: int, request: Request, now: Now) -> None:
        """Raises NotAuthenticated: the broker that the request names has not sent it."""
        sender: int = getattr(request, SENDERS[type(request)])
        principal = self._clients.principal_of(connection_id)
        if principal.kind is Kind.USER:
            raise NotAuthenticated(
                f"{request.API.name} in the name of node {sender}: the connection is logged in as"
                f" {principal}, which is no broker."
            )
        if self._asks_for_certificates and self._certified.get(connection_id) != sender:
            raise NotAuthenticated(
                f"{request.API.name} in the name of node {sender}: the connection has not shown a"
                f" certificate for {broker_uri(self._cluster_id, sender)}."
            )
        proved = self._proved.get(connection_id)
        if proved is not None:
            if proved.node_id == sender:
                return
            raise NotAuthenticated(
                f"{request.API.name} in the name of node {sender}: the connection has proved that"
                f" it is node {proved.node_id}."
            )
        if self.is_required:
            raise NotAuthenticated(
                f"broker {self._node_id} takes {request.API.name} only from a broker that has"
                " proved that it has the cluster's secret."
            )
        if connection_id in self._seen_unproved or self._asks_for_certificates:
            return
        self._seen_unproved.add(connection_id)
        self._metrics.peer_connections_unproved += 1
        if self.secrets and now.mono_us >= self._warned_us + _WARNING_US:
            self._warned_us = now.mono_us
            self._outbox.log("warning", _UNPROVED, node=sender, api=request.API.name)
