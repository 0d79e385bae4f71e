"""AUTHENTICATE: one side proves who it is, by a mechanism that both have."""

from __future__ import annotations

import base64
import re
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from .messages import Api, Known, Request, Response
from .security.scram import HASHES

__all__ = [
    "CERTIFICATE",
    "CLUSTER_SHA_256",
    "DEFAULT_MECHANISMS",
    "MECHANISMS",
    "TOKEN",
    "AuthenticateRequest",
    "AuthenticateResponse",
    "Mechanism",
    "parse_token",
    "token_text",
]

CLUSTER_SHA_256: Final = "CLUSTER-SHA-256"
"""Brokers among themselves, by the cluster's secret (`peer_proof`)."""

TOKEN: Final = "TOKEN"
"""As SCRAM-SHA-256 (`scram`), with a token's id for the name and its key for the password."""
CERTIFICATE: Final = "CERTIFICATE"
"""In one step, without data: the certificate that the client has shown by TLS names the user."""
DEFAULT_MECHANISMS: Final = (*HASHES, TOKEN)
MECHANISMS: Final = (*DEFAULT_MECHANISMS, CERTIFICATE)
"""Of clients, the best first."""

TOKEN_KEY_BYTES: Final = 32
_TOKEN: Final = re.compile(r"qlt1\.(?P<id>[0-9a-f]{8,64})\.(?P<key>[A-Za-z0-9_-]{43})")


def token_text(token_id: str, key: bytes) -> str:
    """Return a token as its owner keeps it: a secret."""
    assert len(key) == TOKEN_KEY_BYTES
    return f"qlt1.{token_id}.{base64.urlsafe_b64encode(key).decode().rstrip('=')}"


def parse_token(text: str) -> tuple[str, bytes]:
    """Return (id, the key as a password). Raises ValueError, without any part of the text."""
    found = _TOKEN.fullmatch(text.strip())
    if found is None:
        raise ValueError("it is no token, which begins with `qlt1.`")
    return found["id"], found["key"].encode()


Mechanism = Annotated[str, Meta(max_length=64)]
Data = Annotated[bytes, Meta(max_length=16 * 1024)]


class AuthenticateRequest(Request, array_like=True, gc=False):
    """One step of a mechanism; the connection repeats it until the answer `is_done`."""

    API: ClassVar[Api] = Api.AUTHENTICATE
    mechanism: Mechanism = ""
    data: Data = b""


class AuthenticateResponse(Response, array_like=True, gc=False):
    API: ClassVar[Api] = Api.AUTHENTICATE
    data: Data = b""
    is_done: bool = False
    principal: str = ""
    expires_ms: Known = -1
