"""A login, written from docs/protocol.md ("Logging in") and RFC 5802 alone: hashlib and hmac."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Any

from .client import Stranger, check

AUTHENTICATE, WHO_AM_I = 18, 19
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512", "TOKEN": "sha256"}


def log_in(stranger: Stranger, mechanism: str, name: str, password: str) -> tuple[str, int]:
    """(principal, milliseconds that the login lasts); raises what the broker refuses."""
    kind = HASHES[mechanism]
    nonce = base64.b64encode(secrets.token_bytes(18)).decode()
    bare = f"n={name},r={nonce}"
    first = _step(stranger, mechanism, f"n,,{bare}")[5].decode()
    values = dict(part.split("=", 1) for part in first.split(","))
    assert values["r"].startswith(nonce)
    assert len(values["r"]) > len(nonce)
    rounds = int(values["i"])
    assert 4_096 <= rounds <= 100_000, "a broker must not choose these"
    salted = hashlib.pbkdf2_hmac(kind, password.encode(), base64.b64decode(values["s"]), rounds)
    client_key = hmac.digest(salted, b"Client Key", kind)
    without_proof = f"c=biws,r={values['r']}"
    message = f"{bare},{first},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(kind, client_key).digest(), message, kind)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    text = f"{without_proof},p={base64.b64encode(proof).decode()}"
    last = _step(stranger, mechanism, text)
    own = hmac.digest(hmac.digest(salted, b"Server Key", kind), message, kind)
    assert hmac.compare_digest(last[5], b"v=" + base64.b64encode(own)), "no broker of this cluster"
    assert last[6] is True, "it is done"
    return last[7], last[8]


def log_in_by_token(stranger: Stranger, token: str) -> tuple[str, int]:
    _, token_id, key = token.split(".")
    return log_in(stranger, "TOKEN", token_id, key)


def who_am_i(stranger: Stranger) -> str:
    response, _ = stranger.ask(WHO_AM_I)
    check(response[3], response[4])
    return str(response[5])


def _step(stranger: Stranger, mechanism: str, text: str) -> list[Any]:
    response, _ = stranger.ask(AUTHENTICATE, mechanism, text.encode())
    check(response[3], response[4])
    return response
