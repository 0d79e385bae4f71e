"""Two brokers prove to each other that both have the cluster's secret: CLUSTER-SHA-256.

    connector                                     acceptor
    both node ids, a nonce                   ──▶
                                             ◀──  a nonce, a MAC for each of its secrets
    a MAC with the secret that both have     ──▶  the connector's node id is proved

A MAC that was seen before, or was made for another broker or by the receiver itself, fits nowhere.
Nonces are handed in, one for each handshake. A secret is on no wire, in no text and in no `repr`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import quote

__all__ = [
    "NONCE_BYTES",
    "NO_SECRETS",
    "SECRETS_MAX",
    "SECRET_BYTES_MAX",
    "SECRET_BYTES_MIN",
    "Acceptor",
    "ClusterSecrets",
    "Connector",
    "Parties",
    "ProofRefused",
    "broker_in",
    "broker_uri",
    "parse_secrets",
]

NONCE_BYTES: Final = 32
SECRETS_MAX: Final = 2
"""While a secret is replaced the new one and the old one count."""
SECRET_BYTES_MIN: Final = 32
SECRET_BYTES_MAX: Final = 1_024
_TEXT: Final = frozenset((*range(0x20, 0x7F), ord("\t")))
_MAC_BYTES: Final = hashlib.sha256().digest_size
_NODE_IDS: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<I")
_PURPOSE: Final = b"quiverlog peer proof 1\0"
_OF_CONNECTOR: Final = b"connector\0"
_OF_ACCEPTOR: Final = b"acceptor\0\0"
assert len(_OF_CONNECTOR) == len(_OF_ACCEPTOR), "no MAC's text can be cut in two ways"


class ProofRefused(Exception):
    """Why a proof does not count: for the log here, not for the other side."""


@dataclass(frozen=True, slots=True)
class ClusterSecrets:
    """The secrets that count, the newest first; empty: none was given."""

    values: tuple[bytes, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        assert len(self.values) <= SECRETS_MAX
        assert all(SECRET_BYTES_MIN <= len(one) <= SECRET_BYTES_MAX for one in self.values)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, secret: object) -> bool:
        return secret in self.values


NO_SECRETS: Final = ClusterSecrets()


def parse_secrets(text: bytes) -> ClusterSecrets:
    """Return the secrets of a file: one a line; empty lines and those that begin with # are none.

    Raises:
        ValueError: what is wrong, without any part of a secret.
    """
    found: list[bytes] = []
    for number, line in enumerate(text.splitlines(), 1):
        # A mark before a comment would make it a secret, that of every file with the comment.
        if not _TEXT.issuperset(line):
            raise ValueError(
                f"line {number} has bytes that are not printable ASCII: write the file as plain"
                " text, without a byte order mark"
            )
        secret = line.strip()
        if not secret or secret.startswith(b"#"):
            continue
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            raise ValueError(
                f"line {number} has {len(secret)} bytes, a secret has {SECRET_BYTES_MIN} to"
                f" {SECRET_BYTES_MAX}"
            )
        found.append(secret)
    if not found:
        raise ValueError("no line is a secret")
    if len(found) > SECRETS_MAX:
        raise ValueError(
            f"{len(found)} lines are secrets, at most {SECRETS_MAX} count: the new one, then the"
            " one before it"
        )
    return ClusterSecrets(tuple(found))


class Parties(NamedTuple):
    """The broker that connects, and the one that it means."""

    cluster_id: str
    connector_id: int
    acceptor_id: int


def _mac(secret: bytes, direction: bytes, parties: Parties, nonces: bytes) -> bytes:
    assert len(nonces) == 2 * NONCE_BYTES
    cluster_id = parties.cluster_id.encode()
    text = b"".join(
        (
            *(_PURPOSE, direction, _LENGTH.pack(len(cluster_id)), cluster_id),
            *(_NODE_IDS.pack(parties.connector_id, parties.acceptor_id), nonces),
        )
    )
    # The ids against a relay to another broker, the direction against a reflection, the nonces
    # against a repetition.
    return hmac.digest(secret, text, "sha256")


class Connector:
    """The side that connects. `opening` is sent first; `answer` returns what is sent then.

    `secret`: the one that both have, once the acceptor has proved it; empty before.
    """

    __slots__ = ("_nonce", "_parties", "_secrets", "secret")

    def __init__(self, secrets: ClusterSecrets, parties: Parties, nonce: bytes) -> None:
        assert secrets
        assert len(nonce) == NONCE_BYTES
        self._secrets = secrets
        self._parties = parties
        self._nonce = nonce
        self.secret = b""

    @property
    def opening(self) -> bytes:
        return _NODE_IDS.pack(*self._parties[1:]) + self._nonce

    def answer(self, data: bytes) -> bytes:
        """Check the acceptor's proof and return this side's. Raises ProofRefused."""
        assert not self.secret, "one handshake a connection"
        # One MAC for each secret of the acceptor: it may get a new one before this side, or after.
        nonces = self._nonce + data[:NONCE_BYTES]
        macs = [data[at : at + _MAC_BYTES] for at in range(NONCE_BYTES, len(data), _MAC_BYTES)]
        if not 1 <= len(macs) <= SECRETS_MAX or len(macs[-1]) != _MAC_BYTES:
            raise ProofRefused(f"its answer has {len(data)} bytes")
        for secret in self._secrets.values:
            # In constant time: the first byte that differs must not show in how long it takes.
            own = _mac(secret, _OF_ACCEPTOR, self._parties, nonces)
            if any(hmac.compare_digest(own, mac) for mac in macs):
                self.secret = secret
                return _mac(secret, _OF_CONNECTOR, self._parties, nonces)
        raise ProofRefused("it has not proved that it has the cluster's secret")


class Acceptor:
    """The side to which another broker connects: `challenge`, then `check`, once each."""

    __slots__ = ("_cluster_id", "_node_id", "_nonce", "_nonces", "_parties", "_secrets")

    def __init__(
        self, secrets: ClusterSecrets, cluster_id: str, node_id: int, nonce: bytes
    ) -> None:
        assert secrets
        assert len(nonce) == NONCE_BYTES
        self._secrets = secrets
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._nonce = nonce
        self._nonces = b""
        self._parties = Parties("", 0, 0)

    def challenge(self, opening: bytes) -> bytes:
        """Return the nonce and this side's proofs. Raises ProofRefused."""
        assert not self._nonces, "one handshake a connection"
        if len(opening) != _NODE_IDS.size + NONCE_BYTES:
            raise ProofRefused(f"its opening has {len(opening)} bytes")
        connector_id, acceptor_id = _NODE_IDS.unpack_from(opening)
        if acceptor_id != self._node_id:
            raise ProofRefused(f"it means node {acceptor_id}, this is {self._node_id}")
        # Its own words of another handshake would be sent back to it under its own id.
        if connector_id == self._node_id:
            raise ProofRefused(f"it has the node id of this broker, {connector_id}")
        self._parties = Parties(self._cluster_id, connector_id, acceptor_id)
        self._nonces = opening[_NODE_IDS.size :] + self._nonce
        macs = [
            _mac(one, _OF_ACCEPTOR, self._parties, self._nonces) for one in self._secrets.values
        ]
        return b"".join((self._nonce, *macs))

    def check(self, proof: bytes) -> tuple[int, bytes]:
        """Return the proved node id and the secret. Raises ProofRefused."""
        # Once: a second guess needs another nonce, and so another connection.
        nonces, self._nonces = self._nonces, b""
        if not nonces:
            raise ProofRefused("it was not challenged")
        for secret in self._secrets.values:
            own = _mac(secret, _OF_CONNECTOR, self._parties, nonces)
            if hmac.compare_digest(own, proof):
                return self._parties.connector_id, secret
        raise ProofRefused(
            f"it has not proved that it is node {self._parties.connector_id}: its secret is another"
        )


# --- the name of a broker in its certificate ------------------------------------------------------
_NODE_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")


def broker_uri(cluster_id: str, node_id: int) -> str:
    """Return the alternative name (SAN URI) by which a certificate is that of a broker."""
    # Names of hosts, and subjects, are none: authorities give them to others as well.
    return f"quiverlog://{quote(cluster_id, safe='')}/broker/{node_id}"


def broker_in(names: Sequence[str], cluster_id: str) -> int | None:
    """Return the broker of this cluster that a certificate names; None: none, or several.

    Args:
        names: as `quiverlog.tls.peer_names` returns them.
    """
    prefix = f"URI:{broker_uri(cluster_id, 0)[:-1]}"
    found = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    if len(found) != 1:
        return None
    text = found.pop()
    return int(text) if _NODE_ID.fullmatch(text) else None
