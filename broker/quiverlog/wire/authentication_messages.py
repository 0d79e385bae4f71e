"""AUTHENTICATE: one side proves who it is, by a mechanism that both have."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from .messages import Api, Known, Request, Response
from .scram import HASHES

__all__ = [
    "CLUSTER_SHA_256",
    "MECHANISMS",
    "TOKEN",
    "AuthenticateRequest",
    "AuthenticateResponse",
    "Mechanism",
]

CLUSTER_SHA_256: Final = "CLUSTER-SHA-256"
"""Brokers among themselves, by the cluster's secret (`peer_proof`)."""

TOKEN: Final = "TOKEN"
"""As SCRAM-SHA-256 (`scram`), with a token's id for the name and its key for the password."""
MECHANISMS: Final = (*HASHES, TOKEN)
"""Of clients, the best first."""

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
