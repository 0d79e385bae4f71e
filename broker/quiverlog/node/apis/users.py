"""Users and tokens: WHO_AM_I, ALTER_USERS, DESCRIBE_USERS, CREATE_TOKEN, END_TOKENS.

A user may change its own password, and make and end its own tokens, without a right. By a token
nothing of it is served, whatever its owner may do: a stolen one would never end.
"""

from __future__ import annotations

import bisect
from functools import partial
from typing import Final

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import Credential, Record, UserRecord
from quiverlog.core.security import users
from quiverlog.core.security.principals import NAME, Kind, of_user
from quiverlog.errors import InvalidRequest, UnknownUser
from quiverlog.limits import (
    TOKEN_LIFETIME_MS_DEFAULT,
    TOKENS_PER_USER_MAX,
    USER_NAME_CHARS_MAX,
)
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import decided
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.node.security.authoriser import Rights
from quiverlog.node.security.needs import NEEDS
from quiverlog.types import Operation, ResourceKind
from quiverlog.wire.security.user_messages import (
    AlterUsersRequest,
    AlterUsersResponse,
    CreateTokenRequest,
    CreateTokenResponse,
    DescribedToken,
    DescribedUser,
    DescribeUsersRequest,
    DescribeUsersResponse,
    EndTokensRequest,
    EndTokensResponse,
    PasswordKind,
    ScramCredential,
    UserChange,
    WhoAmIRequest,
    WhoAmIResponse,
)

__all__ = [
    "handle_alter_users",
    "handle_create_token",
    "handle_describe_users",
    "handle_end_tokens",
    "handle_who_am_i",
]

_PAGE_USERS: Final = 100
_PAGE_TOKENS: Final = 2 * TOKENS_PER_USER_MAX
"""A page ends with the user that reaches it."""
_TOKEN_ID_BYTES: Final = 12


# WHO_AM_I
def handle_who_am_i(broker: Broker, call: Call) -> Steps:
    assert isinstance(call.request, WhoAmIRequest)
    yield None
    connection_id = call.connection_id
    mechanism, _, expires_us = broker.logins.described(connection_id)
    principal = broker.clients.principal_of(connection_id)
    left_ms = max(0, expires_us - call.now.wall_us) // 1_000 if expires_us else -1
    return WhoAmIResponse(
        principal=str(principal),
        mechanism=mechanism,
        expires_ms=left_ms,
        is_super=broker.authoriser.may_all(principal),
        authorises=broker.config.authorises,
        listener=broker.clients.listener_of(connection_id),
    )


def _own_name(broker: Broker, connection_id: int) -> str:
    """Return the user that the connection is logged in as; empty: none."""
    principal = broker.clients.principal_of(connection_id)
    return principal.name if principal.kind is Kind.USER else ""


def _refuse_token(broker: Broker, call: Call) -> None:
    _, token_id, _ = broker.logins.described(call.connection_id)
    if token_id:
        raise InvalidRequest(
            f"{call.request.API.name} needs a login by password: a token changes no user, and makes"
            " and ends no token."
        )


# ALTER_USERS
_EVENTS: Final = {
    UserChange.CREATE: "user created",
    UserChange.PASSWORD: "password changed",
    UserChange.PASSWORD_BESIDE: "password added beside the one before",
    UserChange.DROP_OLD: "old password dropped",
    UserChange.ADMIN: "user made an administrator",
    UserChange.NO_ADMIN: "user is no administrator any more",
    UserChange.DELETE: "user deleted",
}
_OPERATIONS: Final = {UserChange.CREATE: Operation.CREATE, UserChange.DELETE: Operation.DELETE}
_OF_PASSWORD: Final = (UserChange.PASSWORD, UserChange.PASSWORD_BESIDE, UserChange.DROP_OLD)


def handle_alter_users(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, AlterUsersRequest)
    _refuse_token(broker, call)
    if request.change not in set(_EVENTS):
        raise InvalidRequest(f"change {request.change} of a user is unknown.")
    change = UserChange(request.change)
    key = broker.entropy(users.SECURITY_KEY_BYTES)
    records = yield from decided(
        broker, call, partial(_alter_decide, broker, call, request, change, key)
    )
    assert len(records) <= 2, "the user, and the key with the first one"
    if records:
        yield broker.metadata.proposal(records, call.now)
        broker.outbox.log("info", _EVENTS[change], user=request.name)
    return AlterUsersResponse(metadata_version=broker.metadata.image.version)


def _check_change(
    broker: Broker, call: Call, request: AlterUsersRequest, change: UserChange
) -> None:
    """Raises NotAuthorized."""
    rights = broker.authoriser.rights_of(call.connection_id)
    own = _own_name(broker, call.connection_id)
    if rights is None or (change in _OF_PASSWORD and own and own == request.name):
        return
    operation = _OPERATIONS.get(change, Operation.ALTER)
    rights.check(request.API, operation, ResourceKind.USER, request.name)
    makes_admin = change is UserChange.CREATE and request.is_admin
    if makes_admin or change in (UserChange.ADMIN, UserChange.NO_ADMIN):
        rights.check(request.API, Operation.ALTER, ResourceKind.CLUSTER)
    _check_no_admin(broker, call, rights, request.name)


def _check_no_admin(broker: Broker, call: Call, rights: Rights, name: str) -> None:
    """Raise NotAuthorized for an administrator, or one to be, unless the client may change the
    cluster: as that user it might do everything."""
    user = broker.metadata.pending.users.get(name)
    is_admin = user is not None and user.is_admin
    if is_admin or (NAME.fullmatch(name) and broker.authoriser.may_all(of_user(name))):
        rights.check(call.request.API, Operation.ALTER, ResourceKind.CLUSTER)


def _alter_decide(
    broker: Broker, call: Call, request: AlterUsersRequest, change: UserChange, key: bytes
) -> list[Record]:
    # Here, as the user may be about to become an administrator.
    _check_change(broker, call, request, change)
    image, now_us = broker.metadata.pending, call.now.wall_us
    # Super users of this broker can make another; without logins each client can.
    may_be_last = not broker.authoriser.is_on or bool(broker.clients.super_users)
    credentials = [_stored(one) for one in request.credentials]
    if credentials and change not in (UserChange.CREATE, *_OF_PASSWORD[:2]):
        raise InvalidRequest(f"{change.name} takes no credentials.")
    match change:
        case UserChange.CREATE:
            return users.create_user(
                image,
                request.name,
                credentials,
                is_admin=request.is_admin,
                now_us=now_us,
                key=key,
            )
        case UserChange.PASSWORD | UserChange.PASSWORD_BESIDE:
            beside = change is UserChange.PASSWORD_BESIDE
            return users.change_password(
                image, request.name, credentials, keeps_old=beside, now_us=now_us
            )
        case UserChange.DROP_OLD:
            return users.drop_old_passwords(image, request.name, now_us=now_us)
        case UserChange.ADMIN | UserChange.NO_ADMIN:
            is_admin = change is UserChange.ADMIN
            return users.change_admin(
                image, request.name, is_admin=is_admin, now_us=now_us, may_be_last=may_be_last
            )
    return users.delete_user(image, request.name, may_be_last=may_be_last)


def _stored(one: ScramCredential) -> Credential:
    return (one.mechanism, one.salt, one.iterations, one.stored_key, one.server_key)


# DESCRIBE_USERS
def handle_describe_users(broker: Broker, call: Call) -> Steps:
    """Return users as this broker has them."""
    request = call.request
    assert isinstance(request, DescribeUsersRequest)
    yield None
    image = broker.metadata.image
    rights = broker.authoriser.rights_of(call.connection_id)
    principal = broker.clients.principal_of(call.connection_id)
    own = principal.name if principal.kind is Kind.USER else ""

    def sees(name: str, kind: ResourceKind = ResourceKind.USER) -> bool:
        return rights is None or name == own or rights.may(Operation.DESCRIBE, kind, name)

    next_name = None
    if request.name is not None:
        names = [request.name] if request.name in image.users and sees(request.name) else []
        if not names:
            raise UnknownUser(f"there is no user {request.name[:USER_NAME_CHARS_MAX]!r}.")
    else:
        names = sorted(filter(sees, image.users))
        names = names[bisect.bisect_left(names, request.first_name) :]
    found: list[DescribedUser] = []
    token_count = 0
    for name in names:
        if len(found) >= _PAGE_USERS or token_count >= _PAGE_TOKENS:
            next_name = name
            break
        user = image.users.get(name)
        if user is not None:
            with_tokens = request.with_tokens and sees(name, ResourceKind.TOKEN)
            found.append(_described(image, user, with_tokens=with_tokens))
            token_count += len(found[-1].tokens)
        yield None
    assert next_name is None or found, "a page has a user"
    return DescribeUsersResponse(
        users=found, next_name=next_name, metadata_version=broker.metadata.image.version
    )


def _described(image: Image, user: UserRecord, *, with_tokens: bool) -> DescribedUser:
    kinds: dict[str, PasswordKind] = {}
    for mechanism, salt, iterations, *_ in user.credentials:
        kind = kinds.setdefault(mechanism, PasswordKind(mechanism, salt, iterations))
        kind.count += 1
    assert kinds, "a user has a password"
    tokens = [one for one in image.tokens.values() if one.owner == user.name]
    shown = [DescribedToken(t.token_id, t.created_us, t.expires_us) for t in tokens]
    return DescribedUser(
        name=user.name,
        passwords=list(kinds.values()),
        is_admin=user.is_admin,
        changed_us=user.changed_us,
        token_count=len(tokens),
        tokens=shown[:TOKENS_PER_USER_MAX] if with_tokens else [],
    )


# CREATE_TOKEN
def handle_create_token(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, CreateTokenRequest)
    _refuse_token(broker, call)
    if request.credential is None:
        raise InvalidRequest("a token needs a credential.")
    owner = _owner(broker, call, request.owner)
    token_id = broker.entropy(_TOKEN_ID_BYTES).hex()
    lifetime_ms = request.lifetime_ms or TOKEN_LIFETIME_MS_DEFAULT
    credential = _stored(request.credential)

    def decide() -> list[Record]:
        _check_owner(broker, call, owner)
        return users.add_token(
            broker.metadata.pending,
            token_id,
            owner,
            credential,
            lifetime_ms=lifetime_ms,
            now_us=call.now.wall_us,
        )

    records = yield from decided(broker, call, decide)
    yield broker.metadata.proposal(records, call.now)
    broker.outbox.log("info", "token created", user=owner, token=f"{token_id[:4]}...")
    token = broker.metadata.image.tokens.get(token_id)
    assert token is None or token.owner == owner
    return CreateTokenResponse(
        token_id=token_id,
        owner=owner,
        expires_us=0 if token is None else token.expires_us,
        metadata_version=broker.metadata.image.version,
    )


def _owner(broker: Broker, call: Call, asked: str) -> str:
    """Return whose tokens a request is about."""
    owner = asked or _own_name(broker, call.connection_id)
    if not owner:
        raise InvalidRequest(f"{call.request.API.name} needs an owner, or a login.")
    return owner


def _check_owner(broker: Broker, call: Call, owner: str) -> None:
    """Raises NotAuthorized."""
    rights = broker.authoriser.rights_of(call.connection_id)
    if rights is None or owner == _own_name(broker, call.connection_id):
        return
    api = call.request.API
    rights.check(api, NEEDS[api].operation, ResourceKind.TOKEN, owner)
    _check_no_admin(broker, call, rights, owner)


# END_TOKENS
def handle_end_tokens(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, EndTokensRequest)
    _refuse_token(broker, call)
    owner = _owner(broker, call, request.owner)

    def decide() -> list[Record]:
        _check_owner(broker, call, owner)
        return users.end_tokens(broker.metadata.pending, owner, request.token_ids)

    records = yield from decided(broker, call, decide)
    assert not request.token_ids or len(records) == len(set(request.token_ids))
    if records:
        yield broker.metadata.proposal(records, call.now)
        broker.outbox.log("info", "tokens ended", user=owner, count=len(records))
    return EndTokensResponse(
        ended_count=len(records), metadata_version=broker.metadata.image.version
    )
