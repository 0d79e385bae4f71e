"""Users and their tokens: what the controller decides of them, as records.

A password never comes here: the client makes a credential of it. While a password is replaced the
new one and the old one count, with one salt, since a login gets the salt before it proves either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from quiverlog.core.controller.features import SECURITY_LEVEL, check_finalised
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    Credential,
    Record,
    RemoveUserRecord,
    SecurityKeyRecord,
    TokenRecord,
    UserRecord,
)
from quiverlog.core.security.principals import ANONYMOUS, NAME
from quiverlog.errors import (
    InvalidRequest,
    PolicyViolation,
    UnknownToken,
    UnknownUser,
    UserExists,
)
from quiverlog.limits import (
    CREDENTIALS_PER_MECHANISM_MAX,
    TOKEN_LIFETIME_MS_MAX,
    TOKEN_REMEMBERED_US,
    TOKENS_FORGOTTEN_MAX,
    TOKENS_MAX,
    TOKENS_PER_USER_MAX,
    USER_NAME_CHARS_MAX,
    USERS_MAX,
)
from quiverlog.wire.security import scram

__all__ = [
    "SECURITY_KEY_BYTES",
    "add_token",
    "change_admin",
    "change_password",
    "create_user",
    "credentials_for",
    "delete_user",
    "drop_old_passwords",
    "end_tokens",
    "first_user",
]

SECURITY_KEY_BYTES: Final = 32


def credentials_for(record: UserRecord, mechanism: str) -> list[scram.Credential]:
    return [scram.Credential(*one[1:]) for one in record.credentials if one[0] == mechanism]


def create_user(
    image: Image,
    name: str,
    credentials: Sequence[Credential],
    *,
    is_admin: bool,
    now_us: int,
    key: bytes,
) -> list[Record]:
    """
    Args:
        key: random; the cluster's, if this is its first user.
    """
    check_finalised(image, SECURITY_LEVEL, "a user")
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"a user name has 1 to {USER_NAME_CHARS_MAX} letters, digits and `._@-`,"
            f" not {name[:USER_NAME_CHARS_MAX]!r}."
        )
    if name == ANONYMOUS.kind.value:
        raise InvalidRequest(f"{name!r} is what rules call a client without a login.")
    if name in image.users:
        raise UserExists(f"user {name!r} exists.")
    if len(image.users) >= USERS_MAX:
        raise PolicyViolation(f"the cluster has {USERS_MAX} users, the most there may be.")
    _check(credentials)
    records: list[Record] = [] if image.security_key else [SecurityKeyRecord(key)]
    return [*records, UserRecord(name, now_us, tuple(credentials), is_admin)]


def first_user(image: Image, user: UserRecord, key: bytes, now_us: int) -> list[Record]:
    """Return the records of the first user of a cluster that has none."""
    assert not image.users
    own = UserRecord(user.name, now_us, user.credentials, user.is_admin)
    return [own] if image.security_key else [SecurityKeyRecord(key), own]


def change_password(
    image: Image,
    name: str,
    credentials: Sequence[Credential],
    *,
    keeps_old: bool,
    now_us: int,
) -> list[Record]:
    """`keeps_old`: the password before counts on, until `drop_old_passwords`. The same again
    changes nothing: a client repeats a change whose answer was lost."""
    user = _found(image, name)
    _check(credentials)
    counting = list(credentials)
    if keeps_old:
        before = {one[0]: one for one in reversed(user.credentials)}  # The newest of each.
        if before.keys() != {one[0] for one in credentials}:
            raise InvalidRequest(
                f"user {name!r} has {', '.join(sorted(before))}: give a new one of each, so that"
                " one password counts for all."
            )
        for one in credentials:
            if one[1:3] != before[one[0]][1:3]:
                raise InvalidRequest(
                    f"{one[0]} has another salt, or other iterations, than the password that is"
                    " to count on: make it with those that DESCRIBE_USERS returns."
                )
        if all(one == before[one[0]] for one in credentials):
            return []
        pairs = ((one, before[one[0]]) for one in credentials)
        counting = [one for pair in pairs for one in dict.fromkeys(pair)]
    return _changed(user, UserRecord(name, now_us, tuple(counting), user.is_admin))


def drop_old_passwords(image: Image, name: str, *, now_us: int) -> list[Record]:
    user = _found(image, name)
    newest = {one[0]: one for one in reversed(user.credentials)}
    kept = tuple(one for one in user.credentials if one is newest[one[0]])
    return _changed(user, UserRecord(name, now_us, kept, user.is_admin))


def change_admin(
    image: Image, name: str, *, is_admin: bool, now_us: int, may_be_last: bool
) -> list[Record]:
    """`may_be_last`: others administer the cluster where no administrator is left."""
    user = _found(image, name)
    if not is_admin and not may_be_last:
        _check_not_last(image, user)
    return _changed(user, UserRecord(name, now_us, user.credentials, is_admin))


def _changed(before: UserRecord, after: UserRecord) -> list[Record]:
    is_same = (before.credentials, before.is_admin) == (after.credentials, after.is_admin)
    return [] if is_same else [after]


def delete_user(image: Image, name: str, *, may_be_last: bool) -> list[Record]:
    user = _found(image, name)
    if not may_be_last:
        _check_not_last(image, user)
    return [RemoveUserRecord(user.name)]


def _check_not_last(image: Image, user: UserRecord) -> None:
    if user.is_admin and sum(one.is_admin for one in image.users.values()) == 1:
        raise PolicyViolation(
            f"user {user.name!r} is the last administrator. Make another one first (`quiverlog"
            " user admin NAME on`), or set `super.users` at every broker."
        )


def _found(image: Image, name: str) -> UserRecord:
    user = image.users.get(name)
    if user is None:
        raise UnknownUser(f"there is no user {name[:USER_NAME_CHARS_MAX]!r}.")
    return user


def _check(credentials: Sequence[Credential]) -> None:
    mechanisms = [one[0] for one in credentials]
    if not mechanisms or len(set(mechanisms)) != len(mechanisms):
        raise InvalidRequest("a user has one credential of each mechanism, and at least one.")
    assert CREDENTIALS_PER_MECHANISM_MAX > 1
    for mechanism, salt, iterations, stored_key, server_key in credentials:
        if mechanism not in scram.HASHES:
            raise InvalidRequest(f"mechanism {mechanism!r}: users have {', '.join(scram.HASHES)}.")
        try:
            made = scram.Credential(salt, iterations, stored_key, server_key)
            scram.check_credential(mechanism, made)
        except ValueError as error:
            raise InvalidRequest(f"{error}.") from None


# --- tokens ------------------------------------------------------------------------------------
def add_token(
    image: Image,
    token_id: str,
    owner: str,
    credential: Credential,
    *,
    lifetime_ms: int,
    now_us: int,
) -> list[Record]:
    """The token has its owner's rights, and ends with the owner."""
    check_finalised(image, SECURITY_LEVEL, "a token")
    assert token_id not in image.tokens, "ids are random"
    _found(image, owner)
    if not 1_000 <= lifetime_ms <= TOKEN_LIFETIME_MS_MAX:
        raise InvalidRequest(
            f"a lifetime of {lifetime_ms} ms is outside 1000 to {TOKEN_LIFETIME_MS_MAX}."
        )
    if credential[0] != scram.SCRAM_SHA_256:
        raise InvalidRequest(f"a token has a credential of {scram.SCRAM_SHA_256}.")
    _check([credential])
    # Remembered for a while, if there is room: until then a login with it gets the reason.
    long_ago_us = now_us - (0 if len(image.tokens) >= TOKENS_MAX else TOKEN_REMEMBERED_US)
    expired = [one for one in image.tokens.values() if one.expires_us <= long_ago_us]
    forgotten = expired[:TOKENS_FORGOTTEN_MAX]
    of_owner = sum(one.owner == owner and one.expires_us > now_us for one in image.tokens.values())
    if len(image.tokens) - len(forgotten) >= TOKENS_MAX:
        raise PolicyViolation(f"the cluster has {TOKENS_MAX} tokens, the most there may be.")
    if of_owner >= TOKENS_PER_USER_MAX:
        raise PolicyViolation(
            f"user {owner!r} has {TOKENS_PER_USER_MAX} tokens, the most of one user: end some, or"
            " give them shorter lives."
        )
    token = TokenRecord(token_id, owner, now_us, now_us + lifetime_ms * 1_000, credential)
    return [*_ended(forgotten), token]


def end_tokens(image: Image, owner: str, token_ids: Iterable[str]) -> list[Record]:
    """End these tokens of a user; without ids all of them."""
    found = [one for one in image.tokens.values() if one.owner == owner]
    wanted = set(token_ids)
    unknown = wanted - {one.token_id for one in found}
    if unknown:
        raise UnknownToken(f"user {owner!r} has no token {min(unknown)[:64]!r}.")
    return _ended(one for one in found if not wanted or one.token_id in wanted)


def _ended(tokens: Iterable[TokenRecord]) -> list[Record]:
    return [TokenRecord(one.token_id, one.owner, one.created_us, 0) for one in tokens]
