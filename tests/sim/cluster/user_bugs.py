"""Bugs of users and tokens, which are records of the metadata.

Owns this part of the list; `planted` has the whole.
"""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .client_plan import ClientPlan
from .shapes import QUIET

__all__ = ["USERS", "USER_BUGS"]

USERS: Final[dict[str, object]] = {
    **QUIET,
    "clients": ClientPlan(user_keepers=4),
    "producers": 1,
    "readers": 1,
    # Not in one alone: another broker's decisions would hide what one controller's do.
    "buggy_everywhere": True,
}

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
)
