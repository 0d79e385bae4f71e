"""The meanings of the fields of the rules' and quotas' messages, for `protocol_model`."""

from __future__ import annotations

from typing import Final

__all__ = ["RULES"]

_OPERATIONS: Final = (
    "0 all, 1 read, 2 write, 3 create, 4 delete, 5 alter, 6 describe, 7 alter configs"
)
_KINDS: Final = "1 topic, 2 group, 3 transactional id, 4 cluster, 5 user, 6 token"

_RULE: Final = {
    "allows": "true: allowed; false: denied, which counts before every allow",
    "is_prefix": "each resource whose name begins with `name` is meant",
    "kind": _KINDS,
    "name": "of the resource; empty for a cluster, and for the prefix that all have",
    "network": "callers from there, as `10.1.0.0/16`; empty: from anywhere",
    "operation": _OPERATIONS,
    "principal": "`user:NAME`, `user:*` each user, `anonymous`, `*` each caller",
}

_WHOSE: Final = "1 user, 2 client id, 3 default"

RULES: Final[dict[str, str]] = {
    "AlterQuotasRequest.changes": "of quotas, each of one user, client id or default",
    "AlterQuotasResponse.metadata_version": "from which on they hold",
    "DescribeQuotasRequest.kind": f"whose: 0 any, {_WHOSE}",
    "DescribeQuotasRequest.name": "of this user or client id; nil: any",
    "DescribeQuotasResponse.metadata_version": "up to which the broker has applied the metadata",
    "DescribeQuotasResponse.quotas": "by kind and name",
    "FetchResponse.throttle_ms": "time until the next FETCH is read: the client is over its quota;"
    " the broker reads nothing from the connection meanwhile",
    "ProduceResponse.throttle_ms": "as of FETCH, for the next PRODUCE",
    "QuotaPart.bytes_in": "of whole PRODUCE requests, in a second; 0: no limit, -1 in a change:"
    " as it is",
    "QuotaPart.bytes_out": "of the batches in answers to FETCH, also where they name files",
    "QuotaPart.connections": "open at a time at one broker",
    "QuotaPart.kind": _WHOSE,
    "QuotaPart.name": "of the user or client id; empty for the default",
    **{
        f"{part}.{name}": about
        for part in ("RulePart", "NumberedRule")
        for name, about in _RULE.items()
    },
    "AlterAclsRequest.additions": "rules to add; an equal one keeps its number",
    "AlterAclsRequest.removals": "numbers of rules to remove; one that is gone changes nothing",
    "AlterAclsResponse.metadata_version": "from which on they hold",
    "AlterAclsResponse.numbers": "of the rules in `additions`, in their order",
    "DescribeAclsRequest.first_number": "first rule of the page that is asked for",
    "DescribeAclsRequest.kind": f"rules about: 0 any, {_KINDS}",
    "DescribeAclsRequest.name": "rules about the resource of this name; nil: any",
    "DescribeAclsRequest.principal": "rules of this principal; empty: any",
    "DescribeAclsRequest.question": "what to decide; nil: nothing",
    "DescribeAclsResponse.is_allowed": "the answer to the question; false without one",
    "DescribeAclsResponse.is_on": "a listener of this broker authenticates: rules count here",
    "DescribeAclsResponse.is_super_user": "the principal of the question may do all, by the"
    " broker's own configuration",
    "DescribeAclsResponse.metadata_version": "up to which the broker has applied the metadata",
    "DescribeAclsResponse.next_number": "first rule of the next page; 0: there is none",
    "DescribeAclsResponse.rule": "number of the rule that decides the question; 0: none allows it",
    "DescribeAclsResponse.rules": "by number",
    "NumberedRule.number": "which no other rule has, or has had",
    "RuleQuestion.address": "from where; empty: not known",
    "RuleQuestion.kind": _KINDS,
    "RuleQuestion.name": "of the resource",
    "RuleQuestion.operation": _OPERATIONS,
    "RuleQuestion.principal": "who",
}
