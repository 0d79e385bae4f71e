"""Bugs of users and tokens, which are records of the metadata, and of logins by them.

Owns this part of the list; `planted` has the whole.
"""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .client_plan import ClientPlan
from .shapes import QUIET

__all__ = ["USERS", "USER_BUGS"]

_LOGINS: Final = "node.security.logins:Logins"

USERS: Final[dict[str, object]] = {
    **QUIET,
    "clients": ClientPlan(user_keepers=4),
    "producers": 1,
    "readers": 1,
    # Not in one alone: another broker's decisions would hide what one controller's do.
    "buggy_everywhere": True,
}

_CERTIFIED: Final = {**USERS, "certificates": True}

USER_BUGS: Final[tuple[Bug, ...]] = (
    make_bug(
        "a password beside another is forgotten",
        "core.security.users:change_password",
        "counting = [one for pair in pairs for one in dict.fromkeys(pair)]",
        "counting = [pair[0] for pair in pairs]",
        shape=USERS,
    ),
    make_bug(
        "a change of a user takes its rights as an administrator away",
        "core.security.users:change_password",
        "tuple(counting), user.is_admin",
        "tuple(counting), False",
        seed=1,
        shape=USERS,
    ),
    make_bug(
        "tokens of other users are ended, too",
        "core.security.users:end_tokens",
        "if one.owner == owner",
        "if True",
        shape=USERS,
    ),
    make_bug(
        "a connection becomes another user's (re-authentication)",
        f"{_LOGINS}._done",
        "if known not in (ANONYMOUS, principal):",
        "if False:",
        shape=USERS,
        also=(
            (
                "node.runtime.clients:Clients.authenticated",
                "known = self._principals.setdefault(connection_id, principal)",
                "known = self._principals[connection_id] = principal",
            ),
        ),
    ),
    make_bug(
        "a connection outlives its user and its password",
        f"{_LOGINS}.look",
        "if not self._counts(login):",
        "if False:",
        shape=USERS,
    ),
    make_bug(
        "a connection outlives its token",
        f"{_LOGINS}._counts",
        "return token is not None and token.owner == login.user",
        "return True",
        shape=USERS,
    ),
    make_bug(
        "a connection outlives the end of its token's life",
        f"{_LOGINS}.run",
        "if self._is_current(due_us, connection_id):",
        "if False:",
        shape=USERS,
    ),
    make_bug(
        "a login counts that was begun with a password of before",
        f"{_LOGINS}._done",
        "if not self._counts(login):",
        "if False:",
        shape=USERS,
    ),
    make_bug(
        "a request is served before the login",
        f"{_LOGINS}.admits",
        "if self.unserved[connection_id] is Asked.REQUIRED or is_undecided:",
        "if False:",
        shape=USERS,
    ),
    make_bug(
        "a connection whose credential has ended is served on",
        f"{_LOGINS}._end",
        "self.unserved[connection_id] = Asked.REQUIRED",
        "pass",
        shape=USERS,
    ),
    make_bug(
        "a certificate of the clients' authority makes a broker",
        "node.runtime.proofs:PeerProofs.opened",
        "if listener != self._listener:",
        "if False:",
        shape=_CERTIFIED,
        also=(
            (
                "node.apis.brokers:serves_brokers",
                "if listener != broker.config.inter_broker_listener or not",
                "if not",
            ),
            (
                "node.runtime.proofs:PeerProofs.check",
                "if principal.kind is Kind.USER:",
                "if False:",
            ),
        ),
    ),
)
