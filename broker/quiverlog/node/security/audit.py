"""The audit: denials, logins and changes, as effects for the server.

Owns the fields of a line. Denials of one call of the node that are alike become one line with their
count; the server bounds what comes after. No line has a value, a password or a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from quiverlog.core.security.acls import NO_RULE
from quiverlog.node.runtime.clients import Clients
from quiverlog.node.runtime.effects import Audited
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import Now, Operation, ResourceKind
from quiverlog.wire.apis import Api

__all__ = ["DENIED", "OK", "TOKEN_CHARS_SHOWN", "Audit"]

TOKEN_CHARS_SHOWN: Final = 4
OK: Final = "ok"
DENIED: Final = "denied"
_KINDS_MAX: Final = 1_000
"""Kinds of denials of one call that have a line each; the others have one together."""

_Denial = tuple[int, Api, Operation, ResourceKind, str, int]
"""Connection, API, operation, kind, name, rule."""


class Audit:
    """`is_on` False: nothing is recorded."""

    __slots__ = (
        "_clients", "_denials", "_mechanism_of", "_metrics", "_others", "_outbox", "is_on"
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
        self._denials: dict[_Denial, int] = {}
        self._others = 0

    @property
    def is_due(self) -> bool:
        return bool(self._denials)

    def denied(
        self,
        connection_id: int,
        api: Api,
        operation: Operation,
        kind: ResourceKind,
        name: str,
        rule: int,
    ) -> None:
        self._metrics.requests_denied += 1
        if not self.is_on:
            return
        key = (connection_id, api, operation, kind, name, rule)
        if key in self._denials or len(self._denials) < _KINDS_MAX:
            self._denials[key] = self._denials.get(key, 0) + 1
        else:
            self._others += 1

    def end_call(self, _now: Now) -> None:
        """Emit the denials of this call."""
        denials, self._denials = self._denials, {}
        others, self._others = self._others, 0
        for (connection_id, api, operation, kind, name, rule), count in denials.items():
            resource = kind.label if kind is ResourceKind.CLUSTER else f"{kind.label} {name}"
            self._emit(
                "denied",
                connection_id,
                api=api.name,
                operation=operation.label,
                resource=resource,
                result=DENIED,
                rule=rule,
                count=count,
            )
        if others:
            self._outbox.emit(Audited({"event": "denied", "result": DENIED, "count": others}))
        assert not self.is_due

    def changed(
        self, caller: Mapping[str, object], api: Api, operation: str, resource: str, result: str
    ) -> None:
        """Record a change of metadata, or an attempt, of a caller (`caller_of`)."""
        if self.is_on:
            more = {"api": api.name, "resource": resource, "operation": operation}
            last = {"result": result, "rule": NO_RULE, "count": 1}
            self._outbox.emit(Audited({"event": "change", **caller, **more, **last}))

    def logged_in(self, connection_id: int, principal: str, mechanism: str, result: str) -> None:
        """Record a login, or a failed one in the name of `principal`."""
        if self.is_on:
            self._emit(
                "login",
                connection_id,
                api=Api.AUTHENTICATE.name,
                principal=principal,
                mechanism=mechanism,
                result=result,
            )

    def _emit(
        self,
        event: str,
        connection_id: int,
        *,
        api: str,
        result: str,
        principal: str | None = None,
        mechanism: str = "",
        operation: str = "",
        resource: str = "",
        rule: int = NO_RULE,
        count: int = 1,
    ) -> None:
        assert count > 0
        caller = self.caller_of(connection_id)
        caller["principal"] = principal or caller["principal"]
        caller["mechanism"] = mechanism or caller["mechanism"]
        more = {"api": api, "resource": resource, "operation": operation}
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
