"""Logs in at a node that a test drives, and makes its users."""

from __future__ import annotations

from functools import partial
from typing import Any

from quiverlog.limits import SCRAM_ITERATIONS_MIN
from quiverlog.node.runtime.config import Asked, Authentication
from quiverlog.wire.authentication_messages import DEFAULT_MECHANISMS, TOKEN, AuthenticateRequest
from quiverlog.wire.security.scram import (
    SCRAM_SHA_256,
    ScramClient,
    derive_keys,
    make_credential,
)
from quiverlog.wire.security.user_messages import (
    AlterUsersRequest,
    CreateTokenRequest,
    ScramCredential,
    UserChange,
)
from tests.support.node import NodeDriver

SALT = bytes(range(16))
REQUIRED = {"default": Authentication(Asked.REQUIRED, DEFAULT_MECHANISMS)}
WANTED = {"default": Authentication(Asked.WANTED, DEFAULT_MECHANISMS)}


def credential(password: bytes, mechanism: str = SCRAM_SHA_256) -> ScramCredential:
    made = make_credential(mechanism, password, SALT, SCRAM_ITERATIONS_MIN)
    return ScramCredential(mechanism, made.salt, made.iterations, made.stored_key, made.server_key)


def alter(node: NodeDriver, name: str, change: UserChange, *passwords: bytes, connection: int = 1,
          mechanism: str = SCRAM_SHA_256, is_admin: bool = False) -> Any:  # fmt: skip
    request = AlterUsersRequest(
        name=name,
        change=change,
        credentials=[credential(one, mechanism) for one in passwords],
        is_admin=is_admin,
    )
    return node.call(request, connection=connection)[0]


def create_token(node: NodeDriver, key: bytes, lifetime_ms: int = 60_000, owner: str = "",
                 connection: int = 1) -> Any:  # fmt: skip
    request = CreateTokenRequest(owner=owner, lifetime_ms=lifetime_ms, credential=credential(key))
    return node.call(request, connection=connection)[0]


def step(node: NodeDriver, mechanism: str, data: bytes, connection: int) -> Any:
    """The answer, if it came at once."""
    request = AuthenticateRequest(mechanism=mechanism, data=data)
    answer = node.answer(node.request(request, connection=connection))
    return None if answer is None else answer[0]


def log_in(node: NodeDriver, user: str, password: bytes, connection: int,
           mechanism: str = SCRAM_SHA_256) -> Any:  # fmt: skip
    """The answer to the last step, if it came at once; the broker's own proof is checked."""
    scram = SCRAM_SHA_256 if mechanism == TOKEN else mechanism
    client = ScramClient(scram, user, partial(derive_keys, scram, password), "n" * 24)
    first = step(node, mechanism, client.first, connection)
    if first is None or first.error_code:
        return first
    last = step(node, mechanism, client.final(first.data), connection)
    if last is not None and last.is_done:
        client.check(last.data)
    return last
