"""The meanings of the fields of users, tokens, rules and quotas, for `protocol_model`."""

from __future__ import annotations

from typing import Final

from quiverlog import errors as e
from quiverlog.wire.messages import Api

__all__ = ["RULES", "USERS", "USER_ERRORS"]

_VERSION: Final = "a broker that has applied it takes the new state"

USERS: Final[dict[str, str]] = {
    "AuthenticateRequest.data": "the mechanism's, see [Logging in](#logging-in)",
    "AuthenticateRequest.mechanism": "one of those that HELLO has named; `CLUSTER-SHA-256` is the"
    " brokers'",
    "AuthenticateResponse.data": "the mechanism's, see [Logging in](#logging-in)",
    "AuthenticateResponse.expires_ms": "for how long it is proved; -1: while the connection lasts",
    "AuthenticateResponse.is_done": "the sender has proved who it is",
    "AuthenticateResponse.principal": "who that is, `user:NAME` or `broker:ID`; empty before",
    "HelloResponse.mechanisms": "by which clients may log in here, the best first; none: they"
    " cannot",
    "HelloResponse.needs_authentication": "nothing but HELLO and AUTHENTICATE is served before a"
    " login",
    "AlterUsersRequest.change": "1 create, 2 another password, 3 another beside the present one,"
    " 4 end the older password, 5 make an administrator, 6 make none, 7 delete",
    "AlterUsersRequest.credentials": "with 1 to 3: one of each mechanism",
    "AlterUsersRequest.is_admin": "with 1: may do everything, whatever the rules are",
    "AlterUsersRequest.name": "1 to 128 letters, digits and `._@-`",
    "AlterUsersResponse.metadata_version": _VERSION,
    "CreateTokenRequest.credential": "of SCRAM-SHA-256, made of a random key",
    "CreateTokenRequest.lifetime_ms": "1,000 to 86,400,000; 0: an hour",
    "CreateTokenRequest.owner": "the user whose rights it has; empty: the asking one",
    "CreateTokenResponse.expires_us": "when it ends, microseconds since 1970",
    "CreateTokenResponse.metadata_version": _VERSION,
    "CreateTokenResponse.owner": "the user whose rights it has",
    "DescribeUsersRequest.first_name": "first name of the page",
    "DescribeUsersRequest.name": "the user; nil: a page of all",
    "DescribeUsersRequest.with_tokens": "name their tokens, too",
    "DescribeUsersResponse.metadata_version": "up to which the broker has applied the metadata",
    "DescribeUsersResponse.next_name": "first name of the next page; nil: there is none",
    "DescribeUsersResponse.users": "by name",
    "DescribedToken.created_us": "microseconds since 1970",
    "DescribedToken.expires_us": "when it ends, microseconds since 1970",
    "DescribedUser.changed_us": "of the last change, microseconds since 1970",
    "DescribedUser.is_admin": "may do everything, whatever the rules are",
    "DescribedUser.name": "name of the user",
    "DescribedUser.passwords": "one entry per mechanism",
    "DescribedUser.token_count": "tokens that are kept, expired ones of the last hour included",
    "DescribedUser.tokens": "those, where they were asked for",
    "EndTokensRequest.owner": "the user whose tokens they are; empty: the asking one",
    "EndTokensRequest.token_ids": "none: all of the user's",
    "EndTokensResponse.ended_count": "how many were ended",
    "EndTokensResponse.metadata_version": _VERSION,
    "PasswordKind.count": "passwords that count now: 1, or 2 while one is replaced",
    "PasswordKind.iterations": "of PBKDF2",
    "PasswordKind.mechanism": "`SCRAM-SHA-256` or `SCRAM-SHA-512`",
    "PasswordKind.salt": "with which another one is made, where it is to count beside these",
    "ScramCredential.iterations": "of PBKDF2, 4,096 to 100,000",
    "ScramCredential.mechanism": "`SCRAM-SHA-256` or `SCRAM-SHA-512`",
    "ScramCredential.salt": "random, 8 to 64 bytes",
    "ScramCredential.server_key": "RFC 5802's ServerKey",
    "ScramCredential.stored_key": "RFC 5802's StoredKey",
    "WhoAmIResponse.authorises": "a listener of this broker asks for logins, so rules count here",
    "WhoAmIResponse.expires_ms": "for how long the login lasts; -1: while its password counts",
    "WhoAmIResponse.is_super": "may do everything, whatever the rules are",
    "WhoAmIResponse.listener": "name of the listener",
    "WhoAmIResponse.mechanism": "of the login; empty: there was none",
    "WhoAmIResponse.principal": "`user:NAME`, `broker:ID` or `anonymous`",
    "token_id": "names the token; not secret",
}

USER_ERRORS: Final[dict[Api, tuple[type[e.QuiverlogError], ...]]] = {
    Api.WHO_AM_I: (),
    Api.ALTER_USERS: (
        e.NotController,
        e.FeatureNotFinalised,
        e.UnknownUser,
        e.UserExists,
        e.PolicyViolation,
    ),
    Api.DESCRIBE_USERS: (e.UnknownUser,),
    Api.CREATE_TOKEN: (
        e.NotController,
        e.FeatureNotFinalised,
        e.UnknownUser,
        e.PolicyViolation,
    ),
    Api.END_TOKENS: (e.NotController, e.UnknownToken, e.PolicyViolation),
}
"""In their answers."""

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
