"""The audit: denials, logins, changes, and reads and writes of some topics, as effects for the
server.

Owns the fields of a line. Denials of one call of the node that are alike become one line with their
count, and so do reads and writes; the server bounds what comes after. No line has a value, a
password or a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from quiverlog.core.security.acls import NO_RULE
from quiverlog.limits import TRANSACTIONAL_ID_CHARS_MAX
from quiverlog.node.runtime.clients import Clients
from quiverlog.node.runtime.effects import Audited
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now, Operation, ResourceKind
from quiverlog.wire.apis import Api

__all__ = ["ALLOWED", "DENIED", "OK", "TOKEN_CHARS_SHOWN", "Audit"]

TOKEN_CHARS_SHOWN: Final = 4
OK: Final = "ok"
DENIED: Final = "denied"
ALLOWED: Final = "allowed"
_KINDS_MAX: Final = 1_000
"""Kinds of denials of one call that have a line each; the others have one together. Of reads and
writes as many."""

_Asked = tuple[int, Api, Operation, ResourceKind, str, int]
"""Connection, API, operation, kind, name, rule."""


class _Kind:
    __slots__ = ("caller", "count")

    def __init__(self, caller: Mapping[str, object]) -> None:
        self.caller = caller
        self.count = 0


class _Alike:
    """What was asked in one call, counted by its kind; `others`: beyond the bound."""

    __slots__ = ("kinds", "others")

    def __init__(self) -> None:
        self.kinds: dict[_Asked, _Kind] = {}
        self.others = 0

    def add(self, asked: _Asked, caller: Callable[[], Mapping[str, object]]) -> None:
        found = self.kinds.get(asked)
        if found is None:
            if len(self.kinds) >= _KINDS_MAX:
                self.others += 1
                return
            # Now: at the end of the call its connection may be gone.
            found = self.kinds[asked] = _Kind(caller())
        found.count += 1


_RESOURCE_CHARS_MAX: Final = TRANSACTIONAL_ID_CHARS_MAX + 64
"""Room for the longest name and its kind: lines wait in memory, and clients choose names."""


def _cut(resource: str) -> str:
    is_long = len(resource) > _RESOURCE_CHARS_MAX
    return f"{resource[:_RESOURCE_CHARS_MAX]}..." if is_long else resource


class Audit:
    """`is_on` False: nothing is recorded."""

    __slots__ = (
        "_allowed", "_beginnings", "_clients", "_denied", "_mechanism_of", "_metrics", "_names",
        "_outbox", "has_topics", "is_on",
    )  # fmt: skip

    def __init__(
        self,
        clients: Clients,
        outbox: Outbox,
        mechanism_of: Callable[[int], str],
        metrics: NodeMetrics,
        *,
        is_on: bool,
    ) -> None:
        self._mechanism_of = mechanism_of
        self._metrics = metrics
        self.is_on = is_on
        self._clients = clients
        self._outbox = outbox
        self._denied, self._allowed = _Alike(), _Alike()
        self._names: frozenset[str] = frozenset()
        self._beginnings: tuple[str, ...] = ()
        self.has_topics = False
        """Whether reads and writes of some topics are recorded."""

    def set_topics(self, topics: Iterable[str]) -> None:
        """`topics`: names, and beginnings with a `*` behind."""
        given = frozenset(topics)
        self._beginnings = tuple(sorted(one[:-1] for one in given if one.endswith("*")))
        self._names = frozenset(one for one in given if not one.endswith("*"))
        self.has_topics = self.is_on and bool(given)

    @property
    def is_due(self) -> bool:
        return bool(self._denied.kinds) or bool(self._allowed.kinds)

    def denied(
        self,
        connection_id: int,
        api: Api,
        operation: Operation,
        kind: ResourceKind,
        name: str,
        rule: int,
        known: Mapping[str, object],
    ) -> None:
        """`known`: `caller_of` the connection at an earlier moment, for one that is gone."""
        self._metrics.requests_denied += 1
        if not self.is_on:
            return
        is_gone = connection_id not in self._clients.accounts
        asked = (connection_id, api, operation, kind, name, rule)
        self._denied.add(asked, lambda: known if is_gone else self.caller_of(connection_id))

    def allowed(
        self, connection_id: int, api: Api, operation: Operation, name: str, rule: int
    ) -> None:
        """Record that a client has got rows of a topic, or written some; only where `has_topics`.

        Args:
            rule: by which it may; NO_RULE: it may do everything.
        """
        assert self.has_topics
        if name in self._names or name.startswith(self._beginnings):
            asked = (connection_id, api, operation, ResourceKind.TOPIC, name, rule)
            self._allowed.add(asked, partial(self.caller_of, connection_id))

    def end_call(self, _now: Now) -> None:
        """Emit what was asked in this call."""
        denied, allowed = self._denied, self._allowed
        self._denied, self._allowed = _Alike(), _Alike()
        self._emit_all(DENIED, denied, DENIED)
        self._emit_all(ALLOWED, allowed, OK)
        assert not self.is_due

    def _emit_all(self, event: str, alike: _Alike, result: str) -> None:
        for (_, api, operation, kind, name, rule), one in alike.kinds.items():
            resource = kind.label if kind is ResourceKind.CLUSTER else f"{kind.label} {name}"
            self._emit(
                event,
                one.caller,
                api=api.name,
                operation=operation.label,
                resource=resource,
                result=result,
                rule=rule,
                count=one.count,
            )
        if alike.others:
            self._outbox.emit(Audited({"event": event, "result": result, "count": alike.others}))

    def changed(
        self,
        caller: Mapping[str, object],
        api: Api,
        operation: str,
        resource: str,
        result: str,
        count: int = 1,
    ) -> None:
        """Record a change of metadata, or `count` attempts, of a caller (`caller_of`)."""
        if self.is_on:
            self._emit(
                "change",
                caller,
                api=api.name,
                operation=operation,
                resource=resource,
                result=result,
                count=count,
            )

    def logged_in(self, connection_id: int, principal: str, mechanism: str, result: str) -> None:
        """Record a login, or a failed one in the name of `principal`."""
        if self.is_on:
            caller = self.caller_of(connection_id)
            caller["principal"] = principal or caller["principal"]
            caller["mechanism"] = mechanism
            self._emit("login", caller, api=Api.AUTHENTICATE.name, result=result)

    def _emit(
        self,
        event: str,
        caller: Mapping[str, object],
        *,
        api: str,
        result: str,
        operation: str = "",
        resource: str = "",
        rule: int = NO_RULE,
        count: int = 1,
    ) -> None:
        assert count > 0
        more = {"api": api, "resource": _cut(resource), "operation": operation}
        last = {"result": result, "rule": rule, "count": count}
        self._outbox.emit(Audited({"event": event, **caller, **more, **last}))

    def caller_of(self, connection_id: int) -> dict[str, object]:
        """Return the fields about a connection, which may be gone before its request is done."""
        clients = self._clients
        return {
            "connection": connection_id,
            "address": clients.host_of(connection_id),
            "listener": clients.listener_of(connection_id),
            "principal": str(clients.principal_of(connection_id)),
            "mechanism": self._mechanism_of(connection_id),
        }
