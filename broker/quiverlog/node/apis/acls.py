"""ALTER_ACLS and DESCRIBE_ACLS: the rules themselves. ALTER_QUOTAS and DESCRIBE_QUOTAS likewise."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Final

from quiverlog.core.controller.features import SECURITY_LEVEL, check_finalised
from quiverlog.core.controller.internal_topics import is_internal
from quiverlog.core.controller.records import (
    QuotaRecord,
    Record,
    RemoveRuleRecord,
    RuleRecord,
)
from quiverlog.core.security.acls import (
    MEANINGFUL,
    Caller,
    Decision,
    Rule,
    address_of,
    check_name,
)
from quiverlog.core.security.principals import parse_principal
from quiverlog.core.security.quotas import Owner, Quota, change
from quiverlog.errors import InvalidRequest
from quiverlog.limits import QUOTAS_MAX, RULES_PER_REQUEST_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.controller.not_controller import decided
from quiverlog.node.runtime.tasks import Call, Steps
from quiverlog.node.security.authoriser import asked_of_topic
from quiverlog.types import Operation, ResourceKind
from quiverlog.wire.security.acl_messages import (
    AlterAclsRequest,
    AlterAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    NumberedRule,
    RulePart,
    RuleQuestion,
)
from quiverlog.wire.security.quota_messages import (
    AlterQuotasRequest,
    AlterQuotasResponse,
    DescribeQuotasRequest,
    DescribeQuotasResponse,
    QuotaPart,
)

__all__ = [
    "handle_alter_acls",
    "handle_alter_quotas",
    "handle_describe_acls",
    "handle_describe_quotas",
]

_RULES_PER_STEP: Final = 500


def handle_alter_acls(broker: Broker, call: Call) -> Steps:
    """Answer when no live broker goes by the earlier rules any more."""
    request = call.request
    assert isinstance(request, AlterAclsRequest)
    count = len(request.additions) + len(request.removals)
    if count > RULES_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{count} changes of rules in a request, allowed are {RULES_PER_REQUEST_MAX}."
        )
    numbers: list[int] = []
    records = yield from decided(broker, call, partial(_decide, broker, request, numbers))
    if records and not request.validate_only:
        yield broker.metadata.proposal(records, call.now)
        call.is_committed = True
        broker.outbox.log("info", "rules changed", count=len(records))
        yield broker.membership.registrar.everywhere(call.now)
    return AlterAclsResponse(metadata_version=broker.metadata.image.version, numbers=numbers)


def _decide(broker: Broker, request: AlterAclsRequest, numbers: list[int]) -> list[Record]:
    pending = broker.metadata.pending
    check_finalised(pending, SECURITY_LEVEL, "a rule")
    change = pending.rules.change(map(_rule, request.additions), request.removals)
    numbers[:] = change.numbers
    assert len(numbers) == len(request.additions), "each has one"
    records: list[Record] = [RemoveRuleRecord(number) for number in change.removed]
    records.extend(RuleRecord(number, *rule) for number, rule in change.added.items())
    return records


def _rule(part: RulePart) -> Rule:
    return Rule(
        part.principal,
        part.allows,
        part.operation,
        part.kind,
        part.name,
        part.is_prefix,
        part.network,
    )


def handle_describe_acls(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, DescribeAclsRequest)
    response = DescribeAclsResponse(
        metadata_version=broker.view.image.version, is_on=broker.authoriser.is_on
    )
    if request.question is not None:
        _answer(broker, request.question, response)
    # A copy: rules come and go between the steps.
    rules = sorted(broker.view.image.rules.rules.items())
    found: list[NumberedRule] = []
    for count, (number, rule) in enumerate(rules, 1):
        if count % _RULES_PER_STEP == 0:
            yield None
        if number < request.first_number or not _is_meant(request, rule):
            continue
        if len(found) == RULES_PER_REQUEST_MAX:
            response.next_number = number
            break
        found.append(NumberedRule(number, *rule))
    assert not response.next_number or response.next_number > request.first_number, "pages go on"
    assert len(found) <= RULES_PER_REQUEST_MAX
    response.rules = found
    return response


def _is_meant(request: DescribeAclsRequest, rule: Rule) -> bool:
    if request.principal and request.principal != rule.principal:
        return False
    if request.kind and request.kind != rule.kind:
        return False
    if request.name is None:
        return True
    return request.name.startswith(rule.name) if rule.is_prefix else request.name == rule.name


def _answer(broker: Broker, question: RuleQuestion, response: DescribeAclsResponse) -> None:
    if question.kind not in set(ResourceKind) or question.operation not in set(Operation):
        raise InvalidRequest(
            f"there is no operation {question.operation} of a resource of kind {question.kind}."
        )
    operation, kind = Operation(question.operation), ResourceKind(question.kind)
    if operation is Operation.ALL or operation not in MEANINGFUL[kind]:
        raise InvalidRequest(f"nothing asks for {operation.label} of a {kind.label}.")
    address = address_of(question.address) if question.address else None
    if question.address and address is None:
        raise InvalidRequest(f"{question.address!r} is no address.")
    caller = Caller(question.principal, address)
    decision = _decision(broker, caller, operation, kind, question.name)
    with contextlib.suppress(ValueError):  # Rules may be about other kinds of principals.
        response.is_super_user = broker.authoriser.may_all(parse_principal(question.principal))
    response.is_allowed = decision.is_allowed or response.is_super_user
    response.rule = decision.rule


def _decision(
    broker: Broker, caller: Caller, operation: Operation, kind: ResourceKind, name: str
) -> Decision:
    """As a broker decides on a request. Raises InvalidRequest: nothing can have this name."""
    asked: tuple[Operation, ResourceKind, str] | None = (operation, kind, name)
    if kind is ResourceKind.TOPIC and is_internal(name):
        asked = asked_of_topic(operation, name)
    else:
        check_name(kind, name)
    if asked is None:
        return Decision(True)
    decision = broker.view.image.rules.decide(caller, *asked)
    assert decision.rule or not decision.is_allowed, "what is allowed has a rule"
    return decision


# --- quotas --------------------------------------------------------------------------------------
def handle_alter_quotas(broker: Broker, call: Call) -> Steps:
    """Answer when all live brokers go by the quotas."""
    request = call.request
    assert isinstance(request, AlterQuotasRequest)
    records = yield from decided(broker, call, partial(_decide_quotas, broker, request))
    if records and not request.validate_only:
        yield broker.metadata.proposal(records, call.now)
        call.is_committed = True
        broker.outbox.log("info", "quotas changed", count=len(records))
        yield broker.membership.registrar.everywhere(call.now)
    return AlterQuotasResponse(metadata_version=broker.metadata.image.version)


def _decide_quotas(broker: Broker, request: AlterQuotasRequest) -> list[Record]:
    pending = broker.metadata.pending
    check_finalised(pending, SECURITY_LEVEL, "a quota")
    asked = [
        (Owner(one.kind, one.name), Quota(one.bytes_in, one.bytes_out, one.connections))
        for one in request.changes
    ]
    changed = change(pending.quotas, asked)
    assert len(changed) <= len(request.changes), "each is of one owner"
    return [QuotaRecord(*owner, *quota) for owner, quota in changed.items()]


def handle_describe_quotas(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, DescribeQuotasRequest)
    yield None
    image = broker.view.image
    found = [
        QuotaPart(*owner, *quota)
        for owner, quota in sorted(image.quotas.items())
        if request.kind in (0, owner.kind) and request.name in (None, owner.name)
    ]
    assert len(found) <= QUOTAS_MAX, "one answer has them all"
    return DescribeQuotasResponse(metadata_version=image.version, quotas=found)
