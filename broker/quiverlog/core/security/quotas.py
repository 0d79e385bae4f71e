"""Quotas: how much a client may ask of one broker, by bytes in a second and by connections.

The limit that counts is that of the user, else of the client id, else the default; each kind of
limit for itself. Bytes are measured by a leaky bucket: a second's worth may come at once, and more
is a debt, which takes its time to run off.

Invariant: over any time t a bucket lets `rate` * (t + 1 s) pass, and what one request goes beyond.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from quiverlog.core.security.principals import NAME
from quiverlog.errors import InvalidRequest, PolicyViolation
from quiverlog.limits import (
    CLIENT_ID_CHARS_MAX,
    QUOTA_BYTES_MAX,
    QUOTA_BYTES_MIN,
    QUOTA_CONNECTIONS_MAX,
    QUOTAS_MAX,
    USER_NAME_CHARS_MAX,
)
from quiverlog.types import QuotaKind

__all__ = ["UNCHANGED", "Bucket", "Caller", "Found", "Limit", "Owner", "Quota", "change", "find"]

_SECOND_US: Final = 1_000_000
UNCHANGED: Final = -1


class Limit(enum.IntEnum):
    """The place of a limit in a `Quota`."""

    BYTES_IN = 0
    BYTES_OUT = 1
    CONNECTIONS = 2


class Owner(NamedTuple):
    """The owner of a quota (`QuotaKind`). What is measured may also be an address, of kind 0."""

    kind: int
    name: str = ""


class Quota(NamedTuple):
    """0: this quota has no such limit, and the next one that is asked may."""

    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0


class Caller(NamedTuple):
    """`user` empty: it has not logged in."""

    user: str
    client_id: str
    network: str


class Found(NamedTuple):
    """`payer`: all of its connections are measured together."""

    payer: Owner
    value: int


def find(quotas: Mapping[Owner, Quota], limit: Limit, caller: Caller) -> Found | None:
    """Return the limit that counts for a caller; None: there is none."""
    user = Owner(QuotaKind.USER, caller.user)
    client = Owner(QuotaKind.CLIENT_ID, caller.client_id)
    # By address: a client that has not logged in can invent names.
    alone = user if caller.user else Owner(0, caller.network)
    ways = ((user, user), (client, client), (Owner(QuotaKind.DEFAULT), alone))
    for owner, payer in ways if caller.user else ways[1:]:
        quota = quotas.get(owner)
        if quota is not None and quota[limit]:
            return Found(payer, quota[limit])
    return None


class Bucket:
    """What one payer has used and not made up for; `rate` in bytes a second."""

    __slots__ = ("_at_us", "_used", "rate")

    def __init__(self, rate: int, now_us: int) -> None:
        assert rate > 0
        self.rate = rate
        # In millionths of a byte, as a microsecond makes up for `rate` of them: nothing is rounded.
        self._used = 0
        self._at_us = now_us

    def charge(self, byte_count: int, now_us: int) -> int:
        """Return how many of these bytes are beyond the quota. They count in any case."""
        assert byte_count >= 0
        self._run_off(now_us)
        self._used += byte_count * _SECOND_US
        beyond = self._used - self.rate * _SECOND_US
        return min(byte_count, -(-beyond // _SECOND_US)) if beyond > 0 else 0

    def wait_us(self, now_us: int) -> int:
        """Return the time until the debt is paid; 0: there is none."""
        self._run_off(now_us)
        beyond = self._used - self.rate * _SECOND_US
        return -(-beyond // self.rate) if beyond > 0 else 0

    def is_unused(self, now_us: int) -> bool:
        self._run_off(now_us)
        return not self._used

    def set_rate(self, rate: int, now_us: int) -> None:
        assert rate > 0
        self._run_off(now_us)
        self.rate = rate

    def _run_off(self, now_us: int) -> None:
        passed_us = max(0, now_us - self._at_us)  # A caller may hold an earlier moment.
        self._used = max(0, self._used - self.rate * passed_us)
        self._at_us += passed_us


# --- changing ------------------------------------------------------------------------------------
def change(
    quotas: Mapping[Owner, Quota], changes: Iterable[tuple[Owner, Quota]]
) -> dict[Owner, Quota]:
    """Return the quotas that become others; without any limit: they end.

    A limit of `UNCHANGED` stays as it is, 0 is taken away.

    Raises:
        InvalidRequest: there is no such owner, or no such limit.
        PolicyViolation: there would be too many.
    """
    changed: dict[Owner, Quota] = {}
    for owner, asked in changes:
        _check_owner(owner)
        _check_quota(asked)
        before = changed.get(owner, quotas.get(owner, Quota()))
        pairs = zip(before, asked, strict=True)
        changed[owner] = Quota(*(old if new == UNCHANGED else new for old, new in pairs))
    after = {owner: quota for owner, quota in {**quotas, **changed}.items() if any(quota)}
    if len(after) > max(QUOTAS_MAX, len(quotas)):
        raise PolicyViolation(f"there would be {len(after)} quotas, allowed are {QUOTAS_MAX}.")
    return {o: quota for o, quota in changed.items() if quota != quotas.get(o, Quota())}


def _check_owner(owner: Owner) -> None:
    kind, name = owner
    if kind == QuotaKind.USER:
        if not NAME.fullmatch(name):
            raise InvalidRequest(f"{name[:USER_NAME_CHARS_MAX]!r} is no name of a user.")
    elif kind == QuotaKind.CLIENT_ID:
        if not 0 < len(name) <= CLIENT_ID_CHARS_MAX or not name.isprintable():
            raise InvalidRequest(
                f"a client id has 1 to {CLIENT_ID_CHARS_MAX} printable characters, not"
                f" {name[:64]!r}."
            )
    elif kind != QuotaKind.DEFAULT:
        raise InvalidRequest(f"there is no kind of quota with the number {kind}.")
    elif name:
        raise InvalidRequest(f"there is one default: its name is empty, not {name[:64]!r}.")


def _check_quota(asked: Quota) -> None:
    for limit, value in zip(Limit, asked, strict=True):
        least, most = QUOTA_BYTES_MIN, QUOTA_BYTES_MAX
        if limit is Limit.CONNECTIONS:
            least, most = 1, QUOTA_CONNECTIONS_MAX
        if value not in (UNCHANGED, 0) and not least <= value <= most:
            raise InvalidRequest(
                f"{limit.name.lower()} of {value} is outside {least} to {most}; 0 takes it away."
            )
