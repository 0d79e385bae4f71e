"""A program that makes users and tokens, changes them and takes them away, while brokers fail.

Owns what it was promised: what was confirmed, with no later request of unknown outcome, is in the
controller's metadata at the end, and nothing else about its users is. Nodes of one metadata version
have the same ones (`invariants`, part 5).

Not here: the clients that log in by them (`logins`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from quiverlog.errors import (
    FeatureNotFinalised,
    QuiverlogError,
    UnknownToken,
    UnknownUser,
    UserExists,
)
from quiverlog.wire.security.user_messages import (
    AlterUsersRequest,
    CreateTokenRequest,
    DescribeUsersRequest,
    EndTokensRequest,
    UserChange,
)
from tests.sim.checker import Violation

from .logins import Secret
from .programs import Program
from .promises import ClusterChecker

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["UserKeeper"]

_NAMES: Final = ("alice", "bob")
_REFUSED: Final = (FeatureNotFinalised, UnknownToken, UnknownUser, UserExists)
"""The level is not finalised yet; or as it was asked for by chance."""
_CHANGES: Final = (
    *(UserChange.CREATE, UserChange.CREATE, UserChange.CREATE),
    *(UserChange.PASSWORD, UserChange.PASSWORD_BESIDE, UserChange.PASSWORD_BESIDE),
    *(UserChange.DROP_OLD, UserChange.ADMIN, UserChange.ADMIN, UserChange.NO_ADMIN),
    UserChange.DELETE,
)


class _Known:
    """A user that was confirmed: its keys, the newest first, and its tokens."""

    def __init__(self, key: bytes) -> None:
        self.keys = [key]
        self.is_admin = False
        self.tokens: set[str] | None = set()
        """None: not known, after a request of unknown outcome."""


class UserKeeper(Program):
    def __init__(self, cluster: Cluster, checker: ClusterChecker, number: int) -> None:
        self.stopped = False
        self.is_idle = False
        self._prefix = f"keeper-{number}-"
        self._ring = cluster.keyring
        self.known: dict[str, _Known | None] = {}
        """By name; None: there is none. A name that is missing is not known."""
        self._version = 0
        """Of the metadata, with what was confirmed last."""
        self._dead: set[str] = set()
        """Tokens of users that were deleted."""
        super().__init__(cluster, checker, f"user-keeper-{number}")

    async def main(self) -> None:
        while not self.stopped:
            await self.nap(self.rng.uniform(0.05, 0.6))
            if self.stopped:
                break
            name = self._prefix + self.rng.choice(_NAMES)
            try:
                await (self._token(name) if self.rng.random() < 0.45 else self._alter(name))
                await self._look(name)
            except QuiverlogError as error:
                self.checker.error(error.code)
                if not (error.retriable or isinstance(error, _REFUSED)):
                    raise Violation(f"{self.name}: {error!r}") from error
        self.is_idle = True

    async def _ask(self, request: Any) -> Any:
        client = self.client()

        def attempt() -> Any:
            reply = yield from client.cluster.call_controller(request)
            return reply.response

        return await client.run(client.cluster.retrying(attempt))

    async def _alter(self, name: str) -> None:
        change = self.rng.choice(_CHANGES)
        sends_key = change in (
            UserChange.CREATE, UserChange.PASSWORD, UserChange.PASSWORD_BESIDE
        )  # fmt: skip
        secret, credential = self._ring.make(name)
        credentials = [credential] if sends_key else []
        if sends_key:
            self._ring.passwords.setdefault(name, []).append(secret)
        before = self.known.pop(name, None)
        try:
            request = AlterUsersRequest(name=name, change=change, credentials=credentials)
            self._version = (await self._ask(request)).metadata_version
        except _REFUSED:
            return  # An earlier try of the same request may have done it: not known.
        self.world.events["user changed"] += 1
        if change is UserChange.DELETE:
            self.known[name] = None
            self._dead |= before.tokens or set() if before is not None else set()
        elif change is UserChange.CREATE:
            self.known[name] = _Known(credentials[0].stored_key)
        elif before is not None:
            if change is UserChange.PASSWORD:
                before.keys = [credentials[0].stored_key]
            elif change is UserChange.PASSWORD_BESIDE:
                before.keys = [credentials[0].stored_key, before.keys[0]]
            elif change is UserChange.DROP_OLD:
                before.keys = before.keys[:1]
            else:
                before.is_admin = change is UserChange.ADMIN
            self.known[name] = before

    async def _token(self, name: str) -> None:
        user = self.known.get(name)
        tokens = None if user is None else user.tokens
        if user is not None:
            user.tokens = None
        if self.rng.random() < 0.7:
            # Those that expire in the run are remembered beyond its end, unless the clock jumps.
            lifetime_ms = self.rng.choice((86_400_000, 86_400_000, 2_000))
            secret, credential = self._ring.make(name)
            request = CreateTokenRequest(owner=name, lifetime_ms=lifetime_ms, credential=credential)
            made = await self._ask(request)
            self._version = made.metadata_version
            self._ring.tokens.append(Secret(name, secret.keys, made.token_id))
            self.world.events["token made"] += 1
            if user is not None and tokens is not None and not self._cluster.has_jumps:
                user.tokens = {*tokens, made.token_id}
            return
        self._version = (await self._ask(EndTokensRequest(owner=name))).metadata_version
        self.world.events["tokens ended"] += 1
        if user is not None:
            user.tokens = set()

    async def _look(self, name: str) -> None:
        """Compare what a broker has with what was confirmed up to its version of the metadata."""
        known = self.known.get(name)
        if known is None:
            return
        found = await self._ask(DescribeUsersRequest(name=name, with_tokens=True))
        if found.metadata_version < self._version:
            return
        user = found.users[0]
        count = sum(one.count for one in user.passwords)
        if (count, user.is_admin) != (len(known.keys), known.is_admin):
            raise Violation(f"user {name} has {count} passwords, admin: {user.is_admin}")
        tokens = {one.token_id for one in user.tokens}
        if tokens & self._dead:
            raise Violation(f"user {name}: tokens of a deleted user of the name count on")
        if known.tokens is not None and not known.tokens <= tokens:
            raise Violation(f"user {name}: tokens {known.tokens - tokens} are lost")

    # --- the end -------------------------------------------------------------------------------
    def check(self) -> None:
        """Raise Violation unless the controller has what was confirmed."""
        leader = self._cluster.controller()
        assert leader is not None
        assert leader.node is not None
        image = leader.node.broker.metadata.image
        for owner in {one.owner for one in image.tokens.values()}:
            if owner not in image.users:
                raise Violation(f"a token outlives its user {owner}")
        for name, known in self.known.items():
            found = image.users.get(name)
            if known is None or found is None:
                if known is not found:
                    raise Violation(f"user {name} was {known and known.keys}, and is {found}")
                continue
            keys = [one[3] for one in found.credentials]
            if (keys, found.is_admin) != (known.keys, known.is_admin):
                raise Violation(f"user {name}: {len(keys)} keys are not the confirmed ones")
            tokens = {i for i, one in image.tokens.items() if one.owner == name}
            # One whose answer was lost may be there besides.
            if known.tokens is not None and not known.tokens <= tokens:
                raise Violation(f"user {name}: tokens {known.tokens - tokens} are lost")
