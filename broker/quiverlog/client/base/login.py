"""How a client's connections log in: the steps, without I/O.

`Credentials` belongs to one client; `begin` reads the files of its description anew, so that a new
password or token counts from the next connection on. Nothing here shows a secret: no text, no
`repr`, no error.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from quiverlog.errors import (
    AuthenticationFailed,
    BrokerNotProved,
    CredentialsExpired,
    InvalidSecurity,
    LoginMissing,
    MechanismNotOffered,
    error_from_code,
)
from quiverlog.limits import PASSWORD_FILE_BYTES_MAX
from quiverlog.wire.authentication_messages import (
    CERTIFICATE,
    TOKEN,
    AuthenticateRequest,
    AuthenticateResponse,
    parse_token,
)
from quiverlog.wire.messages import HelloResponse
from quiverlog.wire.peer_proof import ProofRefused
from quiverlog.wire.security.scram import (
    HASHES,
    SCRAM_SHA_256,
    ClientKeys,
    ScramClient,
    derive_keys,
    nonce_of,
    prepare_password,
)

from .results import Address
from .security import Security, warn_if_open

logger = logging.getLogger("quiverlog")

__all__ = ["LOGIN_S", "Credentials", "Login", "read_single_line", "renewed_in_s"]

LOGIN_S: Final = 5.0
"""For a login at the least: refusals come late, by up to 4.25 s, and one that is cut short would
look as a silent broker."""
_RENEWED_AT: Final = 0.8
"""Of a login's life."""
_TRIED_AGAIN_AT: Final = 0.25
_RENEWED_S_MIN: Final = 1.0
_TRIED_AGAIN_S_MAX: Final = 60.0
_KEYS_MAX: Final = 8
"""Salts of which a client remembers the keys: making them takes milliseconds."""


@dataclass(frozen=True, slots=True)
class _Own:
    name: str
    secret: bytes = field(repr=False)
    is_token: bool = False

    def __str__(self) -> str:
        return f"token {self.name[:4]}..." if self.is_token else f"user {self.name!r}"


def renewed_in_s(left_s: float, *, has_failed: bool = False) -> float:
    """Return when to log in again on a connection whose login counts for `left_s` more.

    A file that is being written, or an owner's mistake, may be mended before the login ends.
    """
    if has_failed:
        return max(_RENEWED_S_MIN, min(_TRIED_AGAIN_S_MAX, left_s * _TRIED_AGAIN_AT))
    return max(_RENEWED_S_MIN, left_s * _RENEWED_AT)


class Login:
    """One login: `request` is sent, and each that `answer` returns, until it returns None.

    Attributes:
        expires_ms: how long the login lasts; -1: as long as the connection.
    """

    __slots__ = ("_address", "_client", "_is_proof_sent", "_mechanism", "_own", "expires_ms",
                 "request")  # fmt: skip

    def __init__(
        self,
        address: Address,
        mechanism: str,
        own: _Own,
        derive: Callable[[bytes, int], ClientKeys],
    ) -> None:
        self._address = address
        self._mechanism = mechanism
        self._own = own
        scram = SCRAM_SHA_256 if own.is_token else mechanism
        self._client = ScramClient(scram, own.name, derive, nonce_of(os.urandom))
        self._is_proof_sent = False
        self.expires_ms = -1
        self.request = AuthenticateRequest(mechanism=mechanism, data=self._client.first)

    def answer(self, response: AuthenticateResponse) -> AuthenticateRequest | None:
        """
        Raises:
            AuthenticationFailed, CredentialsExpired: the broker refuses the login.
            BrokerNotProved: the broker does not have what it must have of the user.
        """
        code = response.error_code
        if code in (AuthenticationFailed.code, CredentialsExpired.code):
            raise error_from_code(code, f"{self._address}, {self._own}: {response.error_message}")
        if code:
            raise error_from_code(code, response.error_message)
        try:
            if not self._is_proof_sent:
                self._is_proof_sent = True
                data = self._client.final(response.data)
                return AuthenticateRequest(mechanism=self._mechanism, data=data)
            # Before anything else is sent: a program without the keys is no broker of this
            # cluster.
            self._client.check(response.data)
        except ProofRefused as refused:
            raise BrokerNotProved(f"{self._address}, {self._own}: {refused}.") from None
        if not response.is_done:
            raise BrokerNotProved(f"{self._address} asks for more after the proof.")
        self.expires_ms = response.expires_ms
        return None


class CertificateLogin:
    """As `Login`, of a client whose certificate the broker has seen: TLS has proved both sides."""

    __slots__ = ("_address", "expires_ms", "request")

    def __init__(self, address: Address) -> None:
        self._address = address
        self.expires_ms = -1
        self.request = AuthenticateRequest(mechanism=CERTIFICATE)

    def answer(self, response: AuthenticateResponse) -> None:
        """Raises AuthenticationFailed: the certificate names no user."""
        code = response.error_code
        if code:
            own = f"{self._address}, by the certificate: {response.error_message}"
            raise error_from_code(code, own)
        if not response.is_done:
            raise BrokerNotProved(f"{self._address} asks for more than the certificate.")
        self.expires_ms = response.expires_ms


class Credentials:
    """Of one client; threads may share it. `security` None: it has none."""

    __slots__ = ("_is_anonymous", "_keys", "_security")

    def __init__(self, security: Security | None) -> None:
        self._security = security
        self._is_anonymous = False
        # Replaced, never changed: threads may read it.
        self._keys: dict[tuple[str, bytes, bytes, int], ClientKeys] = {}

    def begin(self, address: Address, peer: HelloResponse) -> Login | CertificateLogin | None:
        """Return the login at a broker that has answered HELLO; None: none is needed.

        Raises:
            LoginMissing: the broker asks for a login, and there are no credentials.
            MechanismNotOffered: it takes no mechanism that they are for.
            InvalidSecurity: a file cannot be read, or holds something else.
        """
        security = self._security
        if security is None or not security.has_login:
            if security is not None and security.cert_file and CERTIFICATE in peer.mechanisms:
                return CertificateLogin(address)
            if peer.needs_authentication:
                raise LoginMissing(f"{address} asks for a login, and none is given.")
            return None
        if not peer.mechanisms:
            # As before logins are introduced; else a mistake that nothing else would show.
            if not self._is_anonymous:
                logger.warning("%s takes no logins: this client is anonymous there", address)
            self._is_anonymous = True
            return None
        offered = [one for one in (*HASHES, TOKEN) if one in peer.mechanisms]
        usable = [one for one in offered if (one == TOKEN) is not bool(security.user)]
        if security.mechanism:
            usable = [one for one in usable if one == security.mechanism]
        if not usable:
            wanted = security.mechanism or ("a password" if security.user else "a token")
            raise MechanismNotOffered(
                f"{address} takes {', '.join(peer.mechanisms)}, and {wanted} is given."
            )
        mechanism = usable[0]
        own = _read(security)
        scram = SCRAM_SHA_256 if own.is_token else mechanism
        return Login(address, mechanism, own, partial(self._derive, scram, own.secret))

    def _derive(self, mechanism: str, secret: bytes, salt: bytes, iterations: int) -> ClientKeys:
        key = (mechanism, hashlib.sha256(secret).digest(), salt, iterations)
        found = self._keys.get(key)
        if found is None:
            found = derive_keys(mechanism, secret, salt, iterations)
            kept = list(self._keys.items())[-(_KEYS_MAX - 1) :]
            self._keys = {**dict(kept), key: found}
        return found


def _read(security: Security) -> _Own:
    """Return the name and the secret as they are now. Raises InvalidSecurity."""
    if security.user:
        return _Own(security.user, _password(security))
    where = "`token`"
    text = security.token
    if security.token_file:
        where = f"`token_file` {security.token_file}"
        text = read_single_line(where, security.token_file)
    try:
        token_id, key = parse_token(text)
    except ValueError as error:
        raise InvalidSecurity(f"{where}: {error}.") from None
    return _Own(token_id, key, is_token=True)


def _password(security: Security) -> bytes:
    where, text = "`password`", security.password
    if security.password_file:
        where = f"`password_file` {security.password_file}"
        text = read_single_line(where, security.password_file)
    elif security.password_env:
        where = f"`password_env` {security.password_env}"
        found = os.environ.get(security.password_env)
        if found is None:
            raise InvalidSecurity(f"{where}: the environment has no such variable.")
        text = found
    try:
        return prepare_password(text)
    except ValueError as error:
        raise InvalidSecurity(f"{where}: {error}.") from None


def read_single_line(where: str, path: str) -> str:
    """Return a file's only line. Raises InvalidSecurity."""
    try:
        with open(path, "rb") as file:
            warn_if_open(file, path)
            data = file.read(PASSWORD_FILE_BYTES_MAX + 1)
        if len(data) > PASSWORD_FILE_BYTES_MAX:
            raise InvalidSecurity(f"{where} must have one line, and has {len(data)} bytes or more.")
        text = data.decode()
    except OSError as error:
        raise InvalidSecurity(f"{where} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise InvalidSecurity(f"{where} is not UTF-8.") from None
    lines = text.splitlines()
    if len(lines) != 1:
        raise InvalidSecurity(f"{where} must have one line, and has {len(lines)}.")
    return lines[0]
