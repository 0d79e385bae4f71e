"""Clients that log in by SCRAM and by tokens while a program changes users (`user_keeper`), and the
oracle that looks at each answer to them in the moment in which it is made.

Owns these promises, by the keys that each client proves:

1. no broker whose metadata have a version serves a connection whose credential does not count in
   that version: nothing before a login, nothing after its user, password or token has ended.
2. such a connection is closed.
3. a connection is one user's for ever.
4. a certificate of the clients' authority makes no broker, whatever name is in it (with
   `ClusterScenario.certificates`: each connection of a node shows one of the brokers' authority).

Keys are drawn, not derived of passwords: that would only take time.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from quiverlog.core.controller.image import Image
from quiverlog.core.security.principals import of_user
from quiverlog.errors import (
    AuthenticationFailed,
    BrokerShuttingDown,
    CredentialsExpired,
    InvalidRequest,
    NotAuthenticated,
    WrongListener,
)
from quiverlog.limits import SCRAM_ITERATIONS_MIN
from quiverlog.node.runtime.config import LISTENER_DEFAULT
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import (
    TOKEN,
    AuthenticateRequest,
    AuthenticateResponse,
)
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest
from quiverlog.wire.peer_proof import ProofRefused, broker_uri
from quiverlog.wire.security.scram import SCRAM_SHA_256, ClientKeys, ScramClient
from quiverlog.wire.security.user_messages import (
    ScramCredential,
    WhoAmIRequest,
    WhoAmIResponse,
)
from tests.sim.checker import Checker, Key, Violation

from .clients import _Routed
from .glue import CLUSTER_ID
from .host import ClusterHost

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["PEERS", "Keyring", "LoginClient", "LoginOracle", "admit"]

PEERS: Final = "peers"
"""The listener where brokers meet, where they have certificates."""
_PREFIX: Final = "login-"
_CLOSED_US: Final = 2_000_000
"""Until a connection whose credential has ended must be gone: 20 times what a node takes."""
_LOOK_US_MAX: Final = 100_000
"""Counted between two looks at a node: it may have been paused."""
_RECENT: Final = 3
_SKEW_US: Final = 100_000
_REFUSALS: Final = (
    AuthenticationFailed.code, CredentialsExpired.code, NotAuthenticated.code, InvalidRequest.code,
    BrokerShuttingDown.code,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Secret:
    """What one login proves. `token_id` empty: a password."""

    user: str
    keys: ClientKeys
    token_id: str = ""

    @property
    def stored_key(self) -> bytes:
        return hashlib.sha256(self.keys.client_key).digest()


class Keyring:
    """The passwords and tokens that were ever given to a cluster, also those that ended."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"keyring-{seed}")
        self.passwords: dict[str, list[Secret]] = {}
        self.tokens: list[Secret] = []

    def make(self, user: str) -> tuple[Secret, ScramCredential]:
        """A secret, and what the cluster gets of it."""
        made = Secret(user, ClientKeys(self._rng.randbytes(32), self._rng.randbytes(32)))
        keys = made.stored_key, made.keys.server_key
        return made, ScramCredential(SCRAM_SHA_256, bytes(16), SCRAM_ITERATIONS_MIN, *keys)


def counts(image: Image, secret: Secret, wall_us: int | None) -> bool:
    """Does it count in this version of the metadata, the slow way? `wall_us` None: whenever."""
    user = image.users.get(secret.user)
    if user is None:
        return False
    if not secret.token_id:
        return any(one[3] == secret.stored_key for one in user.credentials)
    token = image.tokens.get(secret.token_id)
    if token is None or token.owner != secret.user:
        return False
    return wall_us is None or token.expires_us + _SKEW_US > wall_us


def admit(host: ClusterHost, connection_id: int, client_name: str, *, certificates: bool) -> None:
    """As a server does where all that comes has shown its certificate, if it has one."""
    assert host.node is not None
    broker = host.node.broker
    if certificates:
        is_node = client_name.startswith("node-")
        listener = PEERS if is_node else LISTENER_DEFAULT
        # Some clients got theirs with the name of a broker, of an authority that signs clients.
        number = int(client_name.rpartition("-")[2]) if is_node or _is_one(client_name) else None
        names = () if number is None else (f"URI:{broker_uri(CLUSTER_ID, number)}",)
        broker.clients.opened(connection_id, "", listener)
        broker.proofs.opened(connection_id, listener, names)
    if _is_one(client_name):
        broker.logins.opened(connection_id, LISTENER_DEFAULT)


def _is_one(client_name: str) -> bool:
    return client_name.startswith(_PREFIX)


class LoginClient(_Routed):
    """Logs in at one node after the other, and tries what it must not get."""

    def __init__(self, cluster: Cluster, checker: Checker, number: int, key: Key) -> None:
        self._cluster = cluster
        self.number = number
        self.proved: Secret | None = None
        """Of this connection, as the node has answered."""
        self.trying: Secret | None = None
        self._scram: ScramClient | None = None
        super().__init__(cluster.leisure, checker, f"{_PREFIX}{number}", key)  # type: ignore[arg-type]
        cluster.logins.clients[self.name] = self

    def connect(self) -> None:
        self.proved = self.trying = self._scram = None
        super().connect()

    def act(self) -> None:
        chance = self.rng.random()
        if self._cluster.scenario.certificates and chance < 0.15:
            beat = BrokerHeartbeatRequest(cluster_id=CLUSTER_ID, node_id=self.number)
            self.ask(beat)
        elif self.proved is None and chance < 0.85:
            self._begin(self._drawn())
        elif self.proved is None or chance < 0.75:
            self.ask(WhoAmIRequest())
        elif chance < 0.95:
            # Again: as the same user with another credential, or as another user.
            self._begin(self._drawn())
        else:
            self.hang_up()

    def _drawn(self) -> Secret | None:
        ring = self._cluster.keyring
        names = sorted(ring.passwords)
        if not names:
            return None
        if ring.tokens and self.rng.random() < 0.4:
            return self.rng.choice(ring.tokens[-_RECENT:])
        # Also those that were replaced a moment ago.
        return self.rng.choice(ring.passwords[self.rng.choice(names)][-_RECENT:])

    def _begin(self, secret: Secret | None) -> None:
        if secret is None:
            self.later(50_000)
            return
        self.trying = secret
        name = secret.token_id or secret.user
        nonce = self.rng.randbytes(12).hex()
        self._scram = ScramClient(SCRAM_SHA_256, name, lambda _salt, _count: secret.keys, nonce)
        self._step(self._scram.first)

    def _step(self, data: bytes) -> None:
        assert self.trying is not None
        mechanism = TOKEN if self.trying.token_id else SCRAM_SHA_256
        self.ask(AuthenticateRequest(mechanism=mechanism, data=data))

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.HelloResponse):
            self.later(self.rng.randrange(1_000, 200_000))
        elif isinstance(response, AuthenticateResponse):
            self._authenticated(response)
        elif isinstance(response, WhoAmIResponse):
            self._named(response)
        elif not response.error_code:
            raise Violation(f"{self.name} is no broker, and its {request.API.name} was done")
        else:
            self._refused(response, (WrongListener.code, NotAuthenticated.code))

    def _refused(self, response: m.Response, codes: tuple[int, ...] = _REFUSALS) -> None:
        if response.error_code not in (*codes, BrokerShuttingDown.code):
            raise Violation(f"{self.name}: {response.error_message}")
        self.checker.error(response.error_code)
        self.world.events["login refused"] += 1
        self.hang_up_later(self.rng.randrange(1_000, 300_000))

    def _authenticated(self, response: AuthenticateResponse) -> None:
        secret, scram = self.trying, self._scram
        if response.error_code:
            self._refused(response)
            return
        assert secret is not None
        assert scram is not None
        try:
            if not response.is_done:
                proof = scram.final(response.data)
                connection = self.connection
                # At times it thinks about it: the user may change meanwhile.
                pause_us = self.rng.choice((1, 1, 1, 400_000))
                self.world.at(pause_us, lambda: self._go_on(connection, proof))
                return
            scram.check(response.data)
        except ProofRefused as refused:
            raise Violation(f"{self.name}: {refused}") from refused
        before, self.proved, self.trying = self.proved, secret, None
        if before is not None and before.user != secret.user:
            raise Violation(f"{self.name}: a connection of {before.user} is {secret.user}'s now")
        kind = "token" if secret.token_id else "password"
        self.world.events[f"login by a {kind}"] += 1
        self.world.events["login again"] += before is not None
        self.later(self.rng.randrange(1_000, 400_000))

    def _go_on(self, connection: Any, proof: bytes) -> None:
        if connection is self.connection and connection is not None and self.trying is not None:
            self._step(proof)

    def _named(self, response: WhoAmIResponse) -> None:
        if response.error_code:
            # Not logged in, or not any more.
            self._refused(response)
            return
        if self.proved is None:
            raise Violation(f"{self.name} was served before a login, as {response.principal}")
        if response.principal != str(of_user(self.proved.user)):
            raise Violation(f"{self.name}: {self.proved.user} is {response.principal}")
        self.world.events["served to a login"] += 1
        self.later(self.rng.randrange(1_000, 400_000))


class LoginOracle:
    """Looks at what nodes answer to clients that log in."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.clients: dict[str, LoginClient] = {}
        self._found: list[str] = []
        self._looked_us: dict[int, int] = {}
        # By connection: for how long its credential has ended.
        self._ended_us: dict[int, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """As `RightsOracle.watching`."""
        respond = Outbox.respond

        def watched(
            outbox: Outbox, connection_id: int, correlation_id: int, response: m.Response,
            body: Any = (),
        ) -> None:  # fmt: skip
            respond(outbox, connection_id, correlation_id, response, body)
            for host in self._cluster.hosts:
                if host.node is not None and host.node.broker.outbox is outbox:
                    self._answered(host, connection_id, response)

        Outbox.respond = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            Outbox.respond = respond  # type: ignore[method-assign]

    def _answered(self, host: ClusterHost, connection_id: int, response: m.Response) -> None:
        client = self._client(host, connection_id)
        if client is None or response.error_code:
            return
        if isinstance(response, AuthenticateResponse):
            secret = client.trying if response.is_done else None
        elif isinstance(response, WhoAmIResponse):
            secret = client.proved
        else:
            return
        if secret is not None and not self._counts(host, secret):
            assert host.node is not None
            version = host.node.broker.view.image.version
            self._found.append(
                f"{host.name} at version {version} serves {secret.user}"
                f" ({secret.token_id or 'a password'}), which has ended"
            )

    def _client(self, host: ClusterHost, connection_id: int) -> LoginClient | None:
        """Whose connection it is, unless it has given it up."""
        client = self.clients.get(host.client_name(connection_id))
        if client is None or client.connection is None:
            return None
        return client if client.connection.number == connection_id else None

    def _counts(self, host: ClusterHost, secret: Secret) -> bool:
        assert host.node is not None
        # A clock that jumps is no measure of a token's life.
        is_steady = not self._cluster.has_jumps
        wall_us = host.now.wall_us if is_steady else None
        return counts(host.node.broker.view.image, secret, wall_us)

    def look(self, host: ClusterHost) -> None:
        """Code of this node has run. Raise Violation for what was found; also promise 2."""
        if self._found:  # Not in the node, which would answer a bug of its own.
            raise Violation(self._found[0])
        if not self.clients:
            return
        now_us = self._cluster.world.mono_us
        passed_us = min(now_us - self._looked_us.get(host.node_id, now_us), _LOOK_US_MAX)
        self._looked_us[host.node_id] = now_us
        for client in self.clients.values():
            connection, secret = client.connection, client.proved
            if connection is None or secret is None or client.host is not host:
                continue
            number = connection.number
            # While it logs in again, the node may have another credential of it already.
            is_settled = client.trying is None and bool(host.client_name(number))
            if not is_settled or self._counts(host, secret):
                self._ended_us.pop(number, None)
                continue
            ended_us = self._ended_us[number] = self._ended_us.get(number, 0) + passed_us
            if ended_us > _CLOSED_US:
                raise Violation(
                    f"{host.name}: a connection of {secret.user}"
                    f" ({secret.token_id or 'a password'}) is open {ended_us / 1e6:.1f} s after"
                    " its credential has ended"
                )
