"""ALTER_ACLS and DESCRIBE_ACLS: which principal may do what with which resource."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import (
    HOST_CHARS_MAX,
    PRINCIPAL_CHARS_MAX,
    RULES_PER_REQUEST_MAX,
    TRANSACTIONAL_ID_CHARS_MAX,
)
from quiverlog.wire.messages import Api, BrokerEndpoint, Part, Request, Response, UInt31, UInt63

__all__ = [
    "AlterAclsRequest",
    "AlterAclsResponse",
    "DescribeAclsRequest",
    "DescribeAclsResponse",
    "NumberedRule",
    "RulePart",
    "RuleQuestion",
]

Principal = Annotated[str, Meta(max_length=PRINCIPAL_CHARS_MAX)]
ResourceName = Annotated[str, Meta(max_length=TRANSACTIONAL_ID_CHARS_MAX)]
Network = Annotated[str, Meta(max_length=HOST_CHARS_MAX)]
RuleNumbers = Annotated[list[UInt63], Meta(max_length=RULES_PER_REQUEST_MAX)]


class RulePart(Part, array_like=True, gc=False):
    """`principal`: "user:alice", "user:*", "anonymous", "*" for each. `is_prefix`: for each
    resource whose name begins with `name`. `network`: for callers from there; empty: from anywhere.
    """

    principal: Principal = ""
    allows: bool = False
    operation: UInt31 = 0
    kind: UInt31 = 0
    name: ResourceName = ""
    is_prefix: bool = False
    network: Network = ""


class AlterAclsRequest(Request, array_like=True, gc=False):
    """Adds rules, and removes those with these numbers; all or nothing. The controller decides.

    An equal rule keeps its number; a removal of a rule that is gone changes nothing.
    """

    API: ClassVar[Api] = Api.ALTER_ACLS
    additions: Annotated[list[RulePart], Meta(max_length=RULES_PER_REQUEST_MAX)] = []
    removals: RuleNumbers = []
    validate_only: bool = False


class AlterAclsResponse(Response, array_like=True, gc=False):
    """Answered when all live brokers have applied it. `numbers`: of the additions, in order."""

    API: ClassVar[Api] = Api.ALTER_ACLS
    metadata_version: UInt63 = 0
    numbers: RuleNumbers = []
    controller: BrokerEndpoint | None = None


class RuleQuestion(Part, array_like=True, gc=False):
    """Whether this principal, from this address (empty: not known), may do that."""

    principal: Principal = ""
    operation: UInt31 = 0
    kind: UInt31 = 0
    name: ResourceName = ""
    address: Network = ""


class DescribeAclsRequest(Request, array_like=True, gc=False):
    """Asks for a page of rules, from a number on, and for a decision of this broker.

    `principal` empty, `kind` 0, `name` nil: any; `name`: the rules that are about this resource.
    """

    API: ClassVar[Api] = Api.DESCRIBE_ACLS
    # The broker chooses: ten thousand rules are more than a header holds.
    principal: Principal = ""
    kind: UInt31 = 0
    name: ResourceName | None = None
    first_number: UInt63 = 0
    question: RuleQuestion | None = None


class NumberedRule(Part, array_like=True, gc=False):
    """The fields of a RulePart after its number."""

    number: UInt63 = 0
    # Not a part in a part: older decoders take fields that are appended to a flat one alone.
    principal: Principal = ""
    allows: bool = False
    operation: UInt31 = 0
    kind: UInt31 = 0
    name: ResourceName = ""
    is_prefix: bool = False
    network: Network = ""


class DescribeAclsResponse(Response, array_like=True, gc=False):
    """`is_on`: a listener of this broker authenticates, so the rules count here. `is_allowed`, and
    the rule that decides (0: none allows it), answer the question; `is_super_user`: the principal
    may do everything at this broker, whatever the rules."""

    API: ClassVar[Api] = Api.DESCRIBE_ACLS
    metadata_version: UInt63 = 0
    is_on: bool = False
    rules: Annotated[list[NumberedRule], Meta(max_length=RULES_PER_REQUEST_MAX)] = []
    next_number: UInt63 = 0
    is_allowed: bool = False
    rule: UInt63 = 0
    is_super_user: bool = False
