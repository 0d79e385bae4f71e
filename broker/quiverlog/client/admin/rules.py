"""Rules of access: what each principal may do, as `quiverlog acl` shows and changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from quiverlog.client.base.commands import Operation as Operating
from quiverlog.client.cluster.metadata import check
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import InvalidArgument
from quiverlog.limits import RULES_PER_REQUEST_MAX
from quiverlog.types import Operation, QuotaKind, ResourceKind
from quiverlog.wire.security.acl_messages import (
    AlterAclsRequest,
    AlterAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    NumberedRule,
    RulePart,
    RuleQuestion,
)

__all__ = [
    "AccessDecision",
    "AccessRule",
    "add_rules",
    "check_access",
    "label_of",
    "list_rules",
    "remove_rules",
]


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A principal may (`allows`), or may not, do `operation` with the resources of a name.

    Attributes:
        principal: `user:alice`, `user:*` each user, `anonymous`, `*` each caller.
        operation: all, read, write, create, delete, alter, describe or alter-configs.
        kind: topic, group, transactional-id, cluster, user or token.
        name: of the resource; with `is_prefix` how its name begins. A cluster has none.
        network: callers from there, as 10.1.0.0/16; empty: from anywhere.
        number: given by the cluster; 0: not added yet.
    """

    principal: str
    allows: bool
    operation: str
    kind: str
    name: str = ""
    is_prefix: bool = False
    network: str = ""
    number: int = 0

    @property
    def resource(self) -> str:
        if self.kind == ResourceKind.CLUSTER.label:
            return self.kind
        return f"{self.kind} {self.name}{'*' if self.is_prefix else ''}"


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """`rule`: the one that decides, 0: none allows it. `is_on`: the broker goes by rules: a
    listener of its authenticates. `is_super_user`: it may do all there, whatever the rules."""

    is_allowed: bool
    rule: int
    is_on: bool
    is_super_user: bool


class _Labelled(Protocol):
    @property
    def label(self) -> str: ...


_Member = TypeVar("_Member", bound=_Labelled)
_OPERATIONS: Final = {one.label: one for one in Operation}
_KINDS: Final = {one.label: one for one in ResourceKind}


def _member(table: dict[str, _Member], what: str, text: str) -> _Member:
    found = table.get(text)
    if found is None:
        raise InvalidArgument(f"there is no {what} {text!r}: it is one of {', '.join(table)}.")
    return found


def label_of(kind: type[Operation | ResourceKind | QuotaKind], number: int) -> str:
    """A later version of a broker may have more."""
    return kind(number).label if number in set(kind) else f"unknown-{number}"


def add_rules(cluster: Cluster, rules: Sequence[AccessRule]) -> Operating[list[int]]:
    parts = [
        RulePart(
            one.principal,
            one.allows,
            int(_member(_OPERATIONS, "operation", one.operation)),
            int(_member(_KINDS, "kind of resource", one.kind)),
            one.name,
            one.is_prefix,
            one.network,
        )
        for one in rules
    ]
    _check_count(len(parts))
    response = yield from _alter(cluster, AlterAclsRequest(additions=parts))
    return list(response.numbers)


def remove_rules(cluster: Cluster, numbers: Sequence[int]) -> Operating[None]:
    _check_count(len(numbers))
    yield from _alter(cluster, AlterAclsRequest(removals=list(numbers)))


def _check_count(count: int) -> None:
    if count > RULES_PER_REQUEST_MAX:
        raise InvalidArgument(f"{count} rules at once, allowed are {RULES_PER_REQUEST_MAX}.")


def _alter(cluster: Cluster, request: AlterAclsRequest) -> Operating[AlterAclsResponse]:
    def attempt() -> Operating[AlterAclsResponse]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, AlterAclsResponse)
        return reply.response

    return (yield from cluster.retrying(attempt))


def list_rules(
    cluster: Cluster, principal: str, kind: str | None, name: str | None
) -> Operating[list[AccessRule]]:
    number = 0 if kind is None else int(_member(_KINDS, "kind of resource", kind))
    found: list[AccessRule] = []
    first = 0
    while True:
        request = DescribeAclsRequest(
            principal=principal, kind=number, name=name, first_number=first
        )
        response = yield from _describe(cluster, request, None)
        found += [_rule(one) for one in response.rules]
        first = response.next_number
        if not first:
            return found


def _rule(one: NumberedRule) -> AccessRule:
    return AccessRule(
        one.principal,
        one.allows,
        label_of(Operation, one.operation),
        label_of(ResourceKind, one.kind),
        one.name,
        one.is_prefix,
        one.network,
        one.number,
    )


def check_access(
    cluster: Cluster,
    principal: str,
    operation: str,
    kind: str,
    name: str,
    address: str,
    broker: int | None,
) -> Operating[AccessDecision]:
    """Ask one broker; None: any."""
    question = RuleQuestion(
        principal,
        int(_member(_OPERATIONS, "operation", operation)),
        int(_member(_KINDS, "kind of resource", kind)),
        name,
        address,
    )
    # A principal that no rule names keeps the answer small.
    request = DescribeAclsRequest(principal=principal, name="", question=question)
    response = yield from _describe(cluster, request, broker)
    return AccessDecision(
        response.is_allowed, response.rule, response.is_on, response.is_super_user
    )


def _describe(
    cluster: Cluster, request: DescribeAclsRequest, broker: int | None
) -> Operating[DescribeAclsResponse]:
    def attempt() -> Operating[DescribeAclsResponse]:
        if broker is None:
            reply = yield from cluster.call_any(request)
        else:
            reply = yield cluster.call(cluster.address_of(broker), request)
            check(reply.response)
        assert isinstance(reply.response, DescribeAclsResponse)
        return reply.response

    return (yield from cluster.retrying(attempt))
