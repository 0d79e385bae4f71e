"""Users and tokens: made, changed and listed.

A password never leaves this process: brokers get what checks a proof. A change counts at every live
broker when it returns, or `_APPLIED_S` have passed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from quiverlog.client.base.commands import CallMany, Operation, Reply, Sleep
from quiverlog.client.base.results import moment
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import (
    ConnectionClosed,
    InvalidArgument,
    InvalidResponse,
    OutcomeUnknown,
    QuiverlogError,
    RequestTimedOut,
    UnknownToken,
    UnknownUser,
    UserExists,
)
from quiverlog.limits import SCRAM_ITERATIONS_DEFAULT, SCRAM_ITERATIONS_MIN
from quiverlog.types import USER_NAME
from quiverlog.wire.authentication_messages import TOKEN_KEY_BYTES, parse_token, token_text
from quiverlog.wire.messages import MetadataRequest, MetadataResponse
from quiverlog.wire.security.scram import (
    HASHES,
    SCRAM_SALT_BYTES,
    SCRAM_SHA_256,
    check_work,
    make_credential,
    prepare_password,
)
from quiverlog.wire.security.user_messages import (
    AlterUsersRequest,
    AlterUsersResponse,
    CreateTokenRequest,
    CreateTokenResponse,
    DescribedUser,
    DescribeUsersRequest,
    DescribeUsersResponse,
    EndTokensRequest,
    EndTokensResponse,
    ScramCredential,
    UserChange,
    WhoAmIRequest,
    WhoAmIResponse,
)

__all__ = [
    "Token",
    "TokenDetail",
    "UserDetail",
    "WhoAmI",
    "change_password",
    "change_user",
    "create_token",
    "create_user",
    "end_tokens",
    "list_users",
    "make_credentials",
    "who_am_i",
]

_APPLIED_S: Final = 5.0
_ANSWER_S: Final = 1.0
_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """What a connection has proved. `expires_s`: None: it lasts as long as its password."""

    principal: str
    mechanism: str
    expires_s: float | None
    is_super: bool
    authorises: bool
    listener: str


@dataclass(frozen=True, slots=True)
class TokenDetail:
    token_id: str
    created: datetime
    expires: datetime


@dataclass(frozen=True, slots=True)
class UserDetail:
    """`passwords`: by mechanism, how many count now. `tokens`: where they were asked for."""

    name: str
    passwords: dict[str, int]
    is_admin: bool
    changed: datetime
    token_count: int
    tokens: tuple[TokenDetail, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """A new token; `text` is the secret, which no broker has and nothing returns again."""

    token_id: str
    owner: str
    expires: datetime
    text: str = field(repr=False)


def who_am_i(cluster: Cluster) -> Operation[WhoAmI]:
    def attempt() -> Operation[WhoAmI]:
        reply = yield from cluster.call_any(WhoAmIRequest())
        found = reply.response
        assert isinstance(found, WhoAmIResponse)
        expires_s = None if found.expires_ms < 0 else found.expires_ms / 1_000
        return WhoAmI(
            found.principal,
            found.mechanism,
            expires_s,
            found.is_super,
            found.authorises,
            found.listener,
        )

    return (yield from cluster.retrying(attempt))


# --- users -------------------------------------------------------------------------------------
def make_credentials(
    password: str,
    kinds: Sequence[tuple[str, bytes, int]] = (),
    iterations: int = SCRAM_ITERATIONS_DEFAULT,
) -> list[ScramCredential]:
    """
    Args:
        kinds: mechanism, salt and iterations of each; none: new salts of all mechanisms.
    """
    try:
        prepared = prepare_password(password)
        made = []
        for mechanism, salt, count in kinds or [
            (one, os.urandom(SCRAM_SALT_BYTES), iterations) for one in HASHES
        ]:
            check_work(salt, count)
            credential = make_credential(mechanism, prepared, salt, count)
            keys = credential.stored_key, credential.server_key
            made.append(ScramCredential(mechanism, salt, count, *keys))
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from None
    return made


def create_user(
    cluster: Cluster, name: str, password: str, *, is_admin: bool = False
) -> Operation[None]:
    _check_name(name)
    credentials = make_credentials(password)
    request = AlterUsersRequest(
        name=name, change=UserChange.CREATE, credentials=credentials, is_admin=is_admin
    )

    def made() -> Operation[int | None]:
        found = yield from _described(cluster, name)
        salts = {bytes(one.salt) for one in found.users[0].passwords}
        is_own = salts == {one.salt for one in credentials}  # They are random.
        return found.metadata_version if is_own else None

    yield from _alter_until_answered(cluster, request, UserExists, made)


def change_password(
    cluster: Cluster, name: str, password: str, *, keep_old: bool = False
) -> Operation[None]:
    """`keep_old`: the present password counts on, until `change_user` drops it."""
    _check_name(name)

    def attempt() -> Operation[int]:
        kinds: list[tuple[str, bytes, int]] = []
        if keep_old:
            found = yield from _described(cluster, name)
            kinds = [(p.mechanism, p.salt, p.iterations) for p in found.users[0].passwords]
            if not kinds or any(mechanism not in HASHES for mechanism, *_ in kinds):
                raise InvalidResponse(f"User {name!r} is described without a password.")
            try:
                # A broker must neither weaken the password nor hold the processor.
                for _, salt, count in kinds:
                    check_work(salt, count)
            except ValueError as error:
                raise InvalidResponse(f"User {name!r} is described with {error}.") from None
        change = UserChange.PASSWORD_BESIDE if keep_old else UserChange.PASSWORD
        credentials = make_credentials(password, kinds)
        return (
            yield from _alter(
                cluster, AlterUsersRequest(name=name, change=change, credentials=credentials)
            )
        )

    version = yield from cluster.retrying(attempt)
    yield from _wait_until_applied(cluster, version)


def change_user(cluster: Cluster, name: str, change: UserChange) -> Operation[None]:
    """Delete a user, drop its old password, or make it an administrator or none."""
    _check_name(name)

    def deleted() -> Operation[int | None]:
        yield from ()
        return 0 if change is UserChange.DELETE else None

    request = AlterUsersRequest(name=name, change=change)
    yield from _alter_until_answered(cluster, request, UnknownUser, deleted)


def list_users(
    cluster: Cluster, name: str | None = None, *, with_tokens: bool = False
) -> Operation[list[UserDetail]]:
    def attempt() -> Operation[list[UserDetail]]:
        if name is not None:
            found = yield from _described(cluster, name, with_tokens=with_tokens)
            return [_detail(one) for one in found.users]
        users: list[UserDetail] = []
        first: str | None = ""
        while first is not None:
            request = DescribeUsersRequest(first_name=first, with_tokens=with_tokens)
            reply = yield from cluster.call_controller(request)
            assert isinstance(reply.response, DescribeUsersResponse)
            users += [_detail(one) for one in reply.response.users]
            first = reply.response.next_name
        return users

    return (yield from cluster.retrying(attempt))


def _described(
    cluster: Cluster, name: str, *, with_tokens: bool = False
) -> Operation[DescribeUsersResponse]:
    request = DescribeUsersRequest(name=name, with_tokens=with_tokens)
    reply = yield from cluster.call_controller(request)
    assert isinstance(reply.response, DescribeUsersResponse)
    return reply.response


def _detail(one: DescribedUser) -> UserDetail:
    return UserDetail(
        one.name,
        {kind.mechanism: kind.count for kind in one.passwords},
        one.is_admin,
        moment(one.changed_us),
        one.token_count,
        tuple(
            TokenDetail(t.token_id, moment(t.created_us), moment(t.expires_us)) for t in one.tokens
        ),
    )


def _alter_until_answered(
    cluster: Cluster,
    request: AlterUsersRequest,
    done_already: type[QuiverlogError],
    version_of: Callable[[], Operation[int | None]],
) -> Operation[None]:
    """
    Args:
        done_already: the refusal of what an earlier try, whose answer was lost, may have done.
        version_of: returns the metadata's version if it has; None: another request has.
    """
    is_unanswered = False

    def attempt() -> Operation[int]:
        nonlocal is_unanswered
        try:
            return (yield from _alter(cluster, request))
        except (ConnectionClosed, RequestTimedOut, OutcomeUnknown):
            # It may have been done all the same.
            is_unanswered = True
            raise
        except done_already:
            version = (yield from version_of()) if is_unanswered else None
            if version is None:
                raise
            return version

    version = yield from cluster.retrying(attempt)
    yield from _wait_until_applied(cluster, version)


def _alter(cluster: Cluster, request: AlterUsersRequest) -> Operation[int]:
    reply = yield from cluster.call_controller(request)
    assert isinstance(reply.response, AlterUsersResponse)
    return reply.response.metadata_version


def _check_name(name: str) -> None:
    if not USER_NAME.fullmatch(name):
        raise InvalidArgument(f"{name[:128]!r}: a user has 1 to 128 letters, digits and `._@-`.")


def _wait_until_applied(cluster: Cluster, version: int) -> Operation[None]:
    """Wait until the live brokers have applied a version of the metadata."""
    deadline_s = cluster.clock() + min(_APPLIED_S, cluster.settings.request_timeout_s)
    try:
        yield from cluster.refresh([])
    except QuiverlogError:
        return  # The change is made; its own connection may have ended with it.
    left = list(cluster.metadata.brokers.values())
    while left and (left_s := deadline_s - cluster.clock()) > 0:
        # At a time: one that is silent takes no time from the others.
        timeout_s = min(left_s, _ANSWER_S)
        calls = [cluster.call(one, MetadataRequest(topics=[]), timeout_s=timeout_s) for one in left]
        answers: list[Reply | QuiverlogError] = yield CallMany(calls)
        left = [one for one, answer in zip(left, answers, strict=True) if _lags(answer, version)]
        if left:
            yield Sleep(_PAUSE_S)


def _lags(answer: Reply | QuiverlogError, version: int) -> bool:
    if isinstance(answer, Reply) and not answer.response.error_code:
        assert isinstance(answer.response, MetadataResponse)
        return answer.response.metadata_version < version
    # One that is down learns of it before it serves clients.
    return isinstance(answer, RequestTimedOut)


# --- tokens ------------------------------------------------------------------------------------
def create_token(cluster: Cluster, lifetime_s: float, owner: str = "") -> Operation[Token]:
    key = os.urandom(TOKEN_KEY_BYTES)
    # As it is proved: the text of the key, which is its password.
    _, password = parse_token(token_text("00000000", key))
    credential = make_credential(
        SCRAM_SHA_256, password, os.urandom(SCRAM_SALT_BYTES), SCRAM_ITERATIONS_MIN
    )
    request = CreateTokenRequest(
        owner=owner,
        lifetime_ms=round(lifetime_s * 1_000),
        credential=ScramCredential(
            SCRAM_SHA_256,
            credential.salt,
            credential.iterations,
            credential.stored_key,
            credential.server_key,
        ),
    )

    def attempt() -> Operation[CreateTokenResponse]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, CreateTokenResponse)
        return reply.response

    made = yield from cluster.retrying(attempt)
    yield from _wait_until_applied(cluster, made.metadata_version)
    try:
        text = token_text(made.token_id, key)
        parse_token(text)
    except ValueError:
        raise InvalidResponse("The broker's token has an id that is none.") from None
    return Token(made.token_id, made.owner, moment(made.expires_us), text)


def end_tokens(
    cluster: Cluster, token_ids: Sequence[str] | None = None, owner: str = ""
) -> Operation[int]:
    """Return how many were ended. `token_ids` None: all of the user's."""
    if token_ids is not None and not token_ids:
        return 0  # A request without ids is for all.
    wanted = list(dict.fromkeys(token_ids or ()))
    is_unanswered = False

    def ended(ids: list[str]) -> Operation[EndTokensResponse]:
        reply = yield from cluster.call_controller(EndTokensRequest(owner=owner, token_ids=ids))
        assert isinstance(reply.response, EndTokensResponse)
        return reply.response

    def attempt() -> Operation[tuple[int, int]]:
        nonlocal is_unanswered
        try:
            done = yield from ended(wanted)
        except (ConnectionClosed, RequestTimedOut, OutcomeUnknown):
            is_unanswered = True
            raise
        except UnknownToken:
            if not is_unanswered:
                raise
            # An earlier try, whose answer was lost, has ended them. Each by itself: one that was
            # never there must not keep another alive.
            version = 0
            for one in wanted:
                with contextlib.suppress(UnknownToken):
                    version = (yield from ended([one])).metadata_version
            return len(wanted), version
        return done.ended_count, done.metadata_version

    count, version = yield from cluster.retrying(attempt)
    yield from _wait_until_applied(cluster, version)
    return count
