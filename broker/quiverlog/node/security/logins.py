"""Logins of clients' connections, at listeners that ask for them.

    connected ──SCRAM, a token──▶ logged in ──again, as the same──▶ logged in
        │                            └── expired, deleted, another password: closed
        └── refused: the answer comes late, then it is closed

Invariants: a connection that has to log in is served HELLO and AUTHENTICATE alone; one that is
logged in has a credential that counts now. All refusals look alike from outside.
"""

from __future__ import annotations

import heapq
import hmac
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

from quiverlog.core.controller.records import TokenRecord, UserRecord
from quiverlog.core.security.principals import ANONYMOUS, NAME, Principal, of_user
from quiverlog.core.security.users import credentials_for
from quiverlog.errors import (
    AuthenticationFailed,
    CredentialsExpired,
    InvalidRequest,
    NotAuthenticated,
    QuiverlogError,
    WrongListener,
)
from quiverlog.limits import SCRAM_ITERATIONS_DEFAULT
from quiverlog.node.runtime.clients import Clients
from quiverlog.node.runtime.config import Asked, Authentication, NodeConfig
from quiverlog.node.runtime.effects import ConnectionProved
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.refusals import RefusalLog
from quiverlog.node.security.audit import OK, TOKEN_CHARS_SHOWN, Audit
from quiverlog.types import Now
from quiverlog.wire.authentication_messages import (
    CERTIFICATE,
    TOKEN,
    AuthenticateRequest,
    AuthenticateResponse,
)
from quiverlog.wire.peer_proof import ProofRefused
from quiverlog.wire.security.scram import HASHES, SCRAM_SHA_256, Credential, ScramServer, nonce_of

__all__ = ["Logins", "certified_user"]

_URI: Final = "quiverlog://"
_REFUSED_US: Final = 1_000_000
"""Until the answer of a refusal, a quarter more or less."""
_APART_US: Final = 62_500
"""More for each refusal of the same address that waits: programs that try again when they are
refused make few TLS handshakes then, which cost all others more than the rest of a login."""
_APART_US_MAX: Final = 3_000_000
"""Clients wait for `LOGIN_S`, and would take a later answer for a silent broker."""
_CLOSED_US: Final = 100_000
"""From the end of a credential until its connections are closed; they are served nothing."""
_REFUSED_MAX: Final = 1_024
"""Refusals that wait; beyond, the one that is due first is answered at once."""
_SWEEP_MIN: Final = 256


class _UnderWay(NamedTuple):
    mechanism: str
    server: ScramServer


class _Login(NamedTuple):
    """`user`: whose credential it was. `token_id` empty: a password."""

    user: str
    mechanism: str
    stored_key: bytes
    token_id: str = ""
    expires_us: int = 0
    """UTC; 0: never."""
    due_us: int = 0
    """The same by the monotonic clock, at the login: no change of the other clock moves it."""


class _Refused(NamedTuple):
    due_us: int
    connection_id: int
    correlation_id: int
    address: str


def certified_user(names: Sequence[str], cluster_id: str) -> str:
    """Return the user that a certificate names; empty: none.

    A URI of ours counts before all, so that one certificate is one user at each cluster.
    """
    found: dict[str, list[str]] = {}
    for kind, _, name in (one.partition(":") for one in names):
        found.setdefault(kind, []).append(name)
    uris = [one for one in found.get("URI", ()) if one.startswith(_URI)]
    own = f"{_URI}{quote(cluster_id, safe='')}/user/"
    candidates = [one.removeprefix(own) for one in uris if one.startswith(own)]
    if not uris:  # A certificate of a broker, or of another cluster, is no user's.
        candidates = [*found.get("DNS", ()), *found.get("CN", ())]
    return next((one for one in candidates if NAME.fullmatch(one)), "")


def _asked(mechanism: str, under_way: _UnderWay | None) -> str:
    """Return in whose name a refused login was tried, for the audit."""
    name = "" if under_way is None else under_way.server.name
    if mechanism == TOKEN:
        return f"token:{name[:TOKEN_CHARS_SHOWN]}"
    # Any text may be there, until it is proved.
    return f"user:{name}" if NAME.fullmatch(name) else ""


class Logins:
    """`unserved`: connections that are not logged in, and may have to be."""

    __slots__ = (
        "_audit",
        "_authentication",
        "_certificates",
        "_clients",
        "_closing",
        "_cluster_id",
        "_ending",
        "_enter",
        "_entropy",
        "_expiries",
        "_fake_key",
        "_logged_in",
        "_metrics",
        "_node_id",
        "_on_end",
        "_outbox",
        "_refusals",
        "_refused",
        "_seen",
        "_under_way",
        "_view",
        "_waiting",
        "unserved",
    )  # fmt: skip

    def __init__(
        self,
        config: NodeConfig,
        clients: Clients,
        view: MetadataView,
        outbox: Outbox,
        audit: Audit,
        metrics: NodeMetrics,
        entropy: Callable[[int], bytes],
        cluster_id: Callable[[], str],
        enter: Callable[[int, Now], None],
        on_end: Callable[[int], None],
    ) -> None:
        """`enter`: counts a connection whose principal is known; raises QuotaExceeded. `on_end`:
        called with one that is served no more, and closed a moment later."""
        self._on_end = on_end
        self._cluster_id = cluster_id
        self._enter = enter
        self._node_id = config.node_id
        self._authentication = config.authentication
        self._clients = clients
        self._view = view
        self._outbox = outbox
        self._audit = audit
        self._metrics = metrics
        self._entropy = entropy
        self._fake_key = b""
        self.unserved: dict[int, Asked] = {}
        self._under_way: dict[int, _UnderWay] = {}
        self._logged_in: dict[int, _Login] = {}
        # (when by the monotonic clock, connection): those of ended connections are skipped.
        self._expiries: list[tuple[int, int]] = []
        # A heap, by when they are due; and how many there are of each address.
        self._refused: list[_Refused] = []
        self._waiting: dict[str, int] = {}
        # Their requests get no answer.
        self._ending: set[int] = set()
        # Names in the certificates of clients that may log in by them.
        self._certificates: dict[int, tuple[str, ...]] = {}
        self._closing: deque[tuple[int, int]] = deque()
        self._seen: tuple[Mapping[str, UserRecord], Mapping[str, TokenRecord]] = ({}, {})
        self._refusals = RefusalLog(outbox, "a login was refused")

    # --- connections ---------------------------------------------------------------------------
    def opened(self, connection_id: int, listener: str, names: Sequence[str] = ()) -> None:
        """`names`: those of the client's certificate, as `quiverlog.tls.peer_names`."""
        assert connection_id not in self._logged_in, "ids are never used twice"
        at = self._authentication.get(listener)
        if at is not None:
            self.unserved[connection_id] = at.asked
            if CERTIFICATE in at.mechanisms and names:
                self._certificates[connection_id] = tuple(names)

    def drop(self, connection_id: int) -> None:
        self.unserved.pop(connection_id, None)
        self._under_way.pop(connection_id, None)
        self._logged_in.pop(connection_id, None)
        self._ending.discard(connection_id)
        self._certificates.pop(connection_id, None)

    def proved(self, connection_id: int) -> None:
        """Another broker has proved, by other means, that it is one."""
        assert connection_id not in self._logged_in, "a user is no broker"
        if self.unserved.pop(connection_id, None) is not None:
            self._outbox.emit(ConnectionProved(connection_id))

    def admits(self, connection_id: int, now: Now) -> bool:
        """Return whether to serve a request of a connection that is `unserved`; else leave it
        unanswered: the connection is about to be closed.

        Raises:
            NotAuthenticated: it has to log in first, or a login is under way.
            QuotaExceeded: there are enough connections of its kind.
        """
        assert connection_id in self.unserved
        # Answers would show at once that the login was refused.
        if connection_id in self._ending:
            return False
        # Half a login is none, and its answer decides what it may ask for.
        is_undecided = connection_id in self._under_way
        if self.unserved[connection_id] is Asked.REQUIRED or is_undecided:
            raise NotAuthenticated(
                f"this listener of broker {self._node_id} asks for a login: nothing but HELLO and"
                " AUTHENTICATE is served before it."
            )
        self._enter(connection_id, now)
        del self.unserved[connection_id]
        self._metrics.connections_anonymous += 1
        return True

    def mechanisms_at(self, listener: str) -> Sequence[str]:
        at = self._authentication.get(listener)
        return () if at is None else at.mechanisms

    def is_required(self, connection_id: int) -> bool:
        """True until the connection has logged in, where it must."""
        return self.unserved.get(connection_id) is Asked.REQUIRED

    def described(self, connection_id: int) -> tuple[str, str, int]:
        """Return (mechanism, token id, UTC of its end or 0) of a connection's login."""
        login = self._logged_in.get(connection_id)
        if login is None:
            return "", "", 0
        assert not login.token_id or login.expires_us, "a token ends"
        return login.mechanism, login.token_id, login.expires_us

    # --- a login -------------------------------------------------------------------------------
    def take(
        self, connection_id: int, address: str, request: AuthenticateRequest, now: Now
    ) -> AuthenticateResponse | None:
        """Return the answer to one step of a login; None: it is refused, and answered later.

        Args:
            address: of the connection's other end, for the log.

        Raises:
            CredentialsExpired: the token was right, and is too old.
            InvalidRequest: the mechanism is not taken here, or the login is another user's.
            WrongListener: this listener takes no login.
        """
        if connection_id in self._ending:
            return None
        self._check_mechanism(connection_id, request.mechanism)
        under_way = self._under_way.pop(connection_id, None)
        data = b""
        try:
            if request.mechanism == CERTIFICATE:
                login = self._certified(connection_id)
            elif under_way is None:
                server = self._server(request.mechanism)
                data = server.first(request.data)
                self._under_way[connection_id] = _UnderWay(request.mechanism, server)
                return AuthenticateResponse(data=data)
            elif under_way.mechanism != request.mechanism:
                raise ProofRefused("it changed the mechanism half way")
            else:
                data, credential = under_way.server.final(request.data)
                login = self._login(under_way, credential)
        except ProofRefused as refused:
            asked = _asked(request.mechanism, under_way)
            result = AuthenticationFailed.code_name()
            self._audit.logged_in(connection_id, asked, request.mechanism, result)
            self._refuse(connection_id, address, request, str(refused), now)
            return None
        principal = of_user(login.user)
        try:
            self._done(connection_id, principal, login, now)
        except QuiverlogError as error:
            result = error.code_name()
            self._audit.logged_in(connection_id, str(principal), request.mechanism, result)
            raise
        left_ms = (login.expires_us - now.wall_us) // 1_000 if login.expires_us else -1
        return AuthenticateResponse(
            data=data, is_done=True, principal=str(principal), expires_ms=left_ms
        )

    def _certified(self, connection_id: int) -> _Login:
        cluster_id = self._cluster_id()
        assert cluster_id, "the broker has started"
        user = certified_user(self._certificates.get(connection_id, ()), cluster_id)
        if not user:
            raise ProofRefused("its certificate names no user, or it has shown none")
        return _Login(user, CERTIFICATE, b"")

    def _check_mechanism(self, connection_id: int, mechanism: str) -> None:
        listener = self._clients.listener_of(connection_id)
        at = self._authentication.get(listener, Authentication())
        if not at.mechanisms:
            raise WrongListener(f"the listener {listener!r} of this broker takes no login.")
        if mechanism not in at.mechanisms:
            raise InvalidRequest(
                f"mechanism {mechanism!r} is not taken at the listener {listener!r}, those are:"
                f" {', '.join(at.mechanisms)}."
            )

    def _server(self, mechanism: str) -> ScramServer:
        if not self._fake_key:
            self._fake_key = self._entropy(32)  # Until there is a first user.
        is_token = mechanism == TOKEN
        assert is_token or mechanism in HASHES, mechanism
        return ScramServer(
            SCRAM_SHA_256 if is_token else mechanism,
            self._of_token if is_token else partial(self._of_user, mechanism),
            nonce_of(self._entropy),
            # One for each mechanism: the salts of a name that exists differ between them.
            fake_key=hmac.digest(
                self._view.image.security_key or self._fake_key, mechanism.encode(), "sha256"
            ),
            iterations=SCRAM_ITERATIONS_DEFAULT,
        )

    def _of_user(self, mechanism: str, name: str) -> Sequence[Credential]:
        user = self._view.image.users.get(name)
        return () if user is None else credentials_for(user, mechanism)

    def _of_token(self, token_id: str) -> Sequence[Credential]:
        token = self._view.image.tokens.get(token_id)
        if token is None or token.credential is None:
            return ()
        return (Credential(*token.credential[1:]),)

    def _login(self, under_way: _UnderWay, credential: Credential) -> _Login:
        """Raises ProofRefused: the token was ended a moment ago."""
        name, mechanism = under_way.server.name, under_way.mechanism
        assert name, "it was proved"
        if mechanism != TOKEN:
            return _Login(name, mechanism, credential.stored_key)
        token = self._view.image.tokens.get(name)
        if token is None:
            raise ProofRefused("the token was ended")
        return _Login(token.owner, mechanism, credential.stored_key, name, token.expires_us)

    def _done(self, connection_id: int, principal: Principal, login: _Login, now: Now) -> None:
        # An answer for a client that has the token's key.
        if login.expires_us and login.expires_us <= now.wall_us:
            raise CredentialsExpired(
                f"the token {login.token_id[:4]}... of user {login.user!r} has expired"
                f" {(now.wall_us - login.expires_us) // 1_000_000} s ago."
            )
        assert connection_id not in self._ending, "its requests get no answer"
        known = self._clients.principal_of(connection_id)
        if known not in (ANONYMOUS, principal):
            raise InvalidRequest(
                f"the connection is logged in as {known}: another user needs another connection."
            )
        if not self._counts(login):
            raise NotAuthenticated(f"user {login.user!r} was changed meanwhile.")
        self._clients.authenticated(connection_id, principal)
        if connection_id not in self._logged_in:
            self._enter(connection_id, now)
        if login.expires_us:
            login = login._replace(due_us=now.mono_us + login.expires_us - now.wall_us)
        self._logged_in[connection_id] = login
        if login.due_us:
            self._add_expiry(login.due_us, connection_id)
        self.unserved.pop(connection_id, None)
        self._metrics.logins += 1
        self._audit.logged_in(connection_id, str(principal), login.mechanism, OK)
        self._outbox.emit(ConnectionProved(connection_id))

    def _add_expiry(self, due_us: int, connection_id: int) -> None:
        heapq.heappush(self._expiries, (due_us, connection_id))
        # Logins that were replaced, or whose connection is gone, leave theirs behind.
        if len(self._expiries) > _SWEEP_MIN + 2 * len(self._logged_in):
            current = [(one.due_us, number) for number, one in self._logged_in.items()]
            self._expiries = [one for one in current if one[0]]
            heapq.heapify(self._expiries)
        assert len(self._expiries) <= _SWEEP_MIN + 2 * len(self._logged_in)

    def _is_current(self, due_us: int, connection_id: int) -> bool:
        login = self._logged_in.get(connection_id)
        return login is not None and login.due_us == due_us

    # --- refusals ------------------------------------------------------------------------------
    def _refuse(
        self, connection_id: int, address: str, request: AuthenticateRequest, why: str, now: Now
    ) -> None:
        # Also where a login is only wanted: what comes behind is not an anonymous client's.
        self._end(connection_id)
        self._metrics.logins_refused += 1
        self._refusals.refused(address, why, now)
        if len(self._refused) >= _REFUSED_MAX:
            self._answer_next()
        # The jitter hides how long the check took.
        jitter = int.from_bytes(self._entropy(2), "big") * _REFUSED_US // (2 * 65_536)
        waiting = self._waiting.get(address, 0)
        due_us = now.mono_us + _REFUSED_US * 3 // 4 + jitter
        due_us += min(waiting * _APART_US, _APART_US_MAX)
        refused = _Refused(due_us, connection_id, request.correlation_id, address)
        heapq.heappush(self._refused, refused)
        self._waiting[address] = waiting + 1

    def _answer_next(self) -> None:
        refused = heapq.heappop(self._refused)
        assert self._waiting[refused.address] > 0, "each that waits is counted"
        waiting = self._waiting.pop(refused.address) - 1
        if waiting:
            self._waiting[refused.address] = waiting
        assert refused.connection_id not in self._logged_in
        error = AuthenticationFailed(f"broker {self._node_id} refuses the login.")
        response = AuthenticateResponse(error_code=error.code, error_message=error.message)
        self._outbox.respond(refused.connection_id, refused.correlation_id, response)
        self._outbox.close_connection(refused.connection_id, error.code_name())

    # --- what ends a login ---------------------------------------------------------------------
    def next_us(self) -> int | None:
        assert len(self._refused) <= _REFUSED_MAX
        if not (self._expiries or self._refused or self._closing):
            return None  # Asked after every call.
        due = [self._expiries[0][0]] if self._expiries else []
        due += [self._refused[0].due_us] if self._refused else []
        due += [self._closing[0][0]] if self._closing else []
        return min(due)

    def run(self, now: Now) -> None:
        while self._refused and self._refused[0].due_us <= now.mono_us:
            self._answer_next()
        while self._closing and self._closing[0][0] <= now.mono_us:
            _, connection_id = self._closing.popleft()
            if connection_id in self._ending:
                why = "its user or token was changed"
                self._outbox.close_connection(connection_id, why)
        while self._expiries and self._expiries[0][0] <= now.mono_us:
            due_us, connection_id = heapq.heappop(self._expiries)
            # It may have logged in again, with a newer token.
            if self._is_current(due_us, connection_id):
                self._end(connection_id)
                self._outbox.close_connection(connection_id, "its token has expired")

    def look(self, now: Now) -> None:
        """Close the connections whose credential counts no more."""
        image = self._view.image
        users, tokens = self._seen
        # Replaced with each change, so that this is cheap after any other one.
        if users is image.users and tokens is image.tokens:
            return
        self._seen = (image.users, image.tokens)
        for connection_id, login in list(self._logged_in.items()):
            if not self._counts(login):
                self._end(connection_id)
                # The answer to the change itself may be for this connection.
                self._closing.append((now.mono_us + _CLOSED_US, connection_id))

    def _counts(self, login: _Login) -> bool:
        image = self._view.image
        if login.mechanism == CERTIFICATE:
            return True  # The authority decides; the server ends the connection with it.
        assert login.stored_key, "it was proved"
        user = image.users.get(login.user)
        if user is None:
            return False
        if login.token_id:
            token = image.tokens.get(login.token_id)
            return token is not None and token.owner == login.user
        found = credentials_for(user, login.mechanism)
        return any(one.stored_key == login.stored_key for one in found)

    def _end(self, connection_id: int) -> None:
        """Serve nothing more to a connection, whatever it has sent already."""
        assert connection_id not in self._ending, "it ends once"
        self._logged_in.pop(connection_id, None)
        self.unserved[connection_id] = Asked.REQUIRED
        self._ending.add(connection_id)
        self._on_end(connection_id)
