"""The secret of a cluster whose brokers prove that they are peers, and callers without that proof.

Owns the operator that replaces the secret, one node after the other, and `Unproved`: it speaks as a
broker with no proof, with one by a secret that counts nowhere any more, or with a good one of
another node id. Nothing that it asks is done, or looked at.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from quiverlog.errors import (
    AuthenticationFailed,
    BrokerShuttingDown,
    NotAuthenticated,
    WrongListener,
)
from quiverlog.wire import messages as m
from quiverlog.wire import peer_proof
from quiverlog.wire.authentication_messages import (
    CLUSTER_SHA_256,
    AuthenticateRequest,
    AuthenticateResponse,
)
from quiverlog.wire.peer_proof import NONCE_BYTES, ClusterSecrets, Connector, Parties
from quiverlog.wire.registry import SENDERS
from tests.sim.checker import Checker, Key, Violation

from .clients import _Routed
from .glue import CLUSTER_ID
from .host import ClusterHost

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Rotation", "Unproved"]

_STRANGER: Final = 90
"""A node id of no broker."""
_REFUSALS: Final = (
    NotAuthenticated.code, AuthenticationFailed.code, WrongListener.code, BrokerShuttingDown.code,
)  # fmt: skip
"""A node that starts or stops refuses before it checks the sender."""


class Rotation:
    """Which secrets the files have. `retired`: those that are in none any more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"secrets-{cluster.scenario.seed}")
        self._secret = self._make()
        self._next = b""
        self._left: list[ClusterHost] = []
        self.retired: list[bytes] = []
        for host in cluster.hosts:
            host.secrets = ClusterSecrets((self._secret,))

    def begin(self) -> None:
        self._cluster.every(self._cluster.scenario.rotate_interval_ms, self._step)

    def _make(self) -> bytes:
        return self._rng.randbytes(32).hex().encode()

    def _step(self) -> None:
        """One node gets the new secret before the old one; when all have it, the new one alone."""
        if not self._left:
            if self._next and all(len(one.secrets.values) == 1 for one in self._cluster.hosts):
                self.retired.append(self._secret)
                self._secret, self._next = self._next, b""
                self._cluster.world.events["the cluster's secret replaced"] += 1
            self._next = self._next or self._make()
            self._left = list(self._cluster.hosts)
        host = self._left[-1]
        if host.is_paused:
            return
        self._left.pop()
        is_second = len(host.secrets.values) == 2
        values = (self._next,) if is_second else (self._next, self._secret)
        host.change_secrets(ClusterSecrets(values))
        self._check(host)

    def _check(self, host: ClusterHost) -> None:
        """Raise Violation where a connection lives on by a secret that the node has lost."""
        proved = host.node.broker.proofs._proved if host.node is not None else {}
        stale = [one.node_id for one in proved.values() if one.secret not in host.secrets]
        if stale:
            raise Violation(f"{host.name} serves {stale} by a secret that counts no more")


class Unproved(_Routed):
    def __init__(self, cluster: Cluster, checker: Checker, name: str, key: Key) -> None:
        self._cluster = cluster
        self._proof = b""
        """What is sent in answer to a challenge, as a secret; empty: nothing is."""
        self._nonce = b""
        self._was_retired = False
        super().__init__(cluster.leisure, checker, name, key)  # type: ignore[arg-type]

    def act(self) -> None:
        rotation = self._cluster.rotation
        assert rotation is not None
        how = self.rng.choice(("nothing", "retired", "another name"))
        if how == "retired" and rotation.retired:
            self._begin(self.rng.choice(rotation.retired))
        elif how == "another name":
            self._begin(self.host.secrets.values[-1])
        else:
            self._pretend()

    def _begin(self, secret: bytes) -> None:
        self._proof, self._nonce = secret, self.rng.randbytes(NONCE_BYTES)
        opening = Connector(ClusterSecrets((secret,)), self._parties, self._nonce).opening
        self.ask(AuthenticateRequest(mechanism=CLUSTER_SHA_256, data=opening))

    @property
    def _parties(self) -> Parties:
        return Parties(CLUSTER_ID, _STRANGER, self._target)

    def _pretend(self) -> None:
        kind = self.rng.choice(list(SENDERS))
        request = kind()
        setattr(request, SENDERS[kind], self.rng.randrange(len(self.world.hosts)))
        self.ask(request)

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.HelloResponse):
            self.later(self.rng.randrange(1_000, 200_000))
        elif response.error_code:
            if response.error_code not in _REFUSALS:
                raise Violation(
                    f"{self.name} is no broker, and its {request.API.name} was looked at:"
                    f" {response.error_message}"
                )
            self.checker.error(response.error_code)
            self.world.events["a caller without proof was refused"] += 1
            self.hang_up_later(1_000)
        elif isinstance(response, AuthenticateResponse):
            self._challenged(response)
        else:
            raise Violation(f"{self.name} is no broker, and was answered: {response}")

    def _challenged(self, response: AuthenticateResponse) -> None:
        if response.is_done:
            if self._was_retired:
                raise Violation(f"{self.name} was believed by a secret that counts no more")
            self.world.events["a stranger has the secret"] += 1
            self._pretend()
            return
        # It does not care who the other is, and takes its time: the secret may be replaced.
        nonces = self._nonce + response.data[:NONCE_BYTES]
        mac = peer_proof._mac(self._proof, b"connector\0", self._parties, nonces)
        connection = self.connection

        def go_on() -> None:
            if connection is self.connection and not self.retired:
                self._was_retired = self._proof not in self.host.secrets
                self.ask(AuthenticateRequest(mechanism=CLUSTER_SHA_256, data=mac))

        self.world.at(self.rng.choice((1, 1, 500_000)), go_on)
