"""Rules against a model of ten lines, and each rule of theirs by an example."""

from __future__ import annotations

import time
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.core.security.acls import (
    MEANINGFUL,
    NO_RULE,
    Caller,
    Decision,
    Rule,
    RuleSet,
    address_of,
    check_rule,
)
from quiverlog.errors import InvalidRequest
from quiverlog.limits import (
    TOPIC_NAME_CHARS_MAX,
    TRANSACTIONAL_ID_CHARS_MAX,
    USER_NAME_CHARS_MAX,
)
from quiverlog.types import Operation as Op
from quiverlog.types import ResourceKind as Kind

ALICE, ANONYMOUS = Caller("user:alice", ip_address("10.1.2.3")), Caller("anonymous")
IMPLYING = {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER, Op.ALTER_CONFIGS}


def model(rules: dict[int, Rule], caller: Caller, op: Op, kind: Kind, name: str) -> Decision:
    """What the module promises, the slow way."""
    who = {caller.principal, caller.principal.split(":")[0] + ":*", "*"}
    sound = {n: r for n, r in rules.items() if r.kind == kind and r.principal in who}
    about = {n: r for n, r in sound.items() if r.name == name or r.is_prefix}
    about = {n: r for n, r in about.items() if name.startswith(r.name)}
    near = {n: r for n, r in about.items() if lies_in(caller, r)}
    hidden = {Op.ALL, op, Op.DESCRIBE}
    enough = {Op.ALL, op, *(IMPLYING if op is Op.DESCRIBE else ())}
    denies = [n for n, r in near.items() if not r.allows and r.operation in hidden]
    allows = [n for n, r in near.items() if r.allows and r.operation in enough]
    return Decision(not denies and bool(allows), min(denies or allows or [NO_RULE]))


def lies_in(caller: Caller, rule: Rule) -> bool:
    if not rule.network:
        return True
    if caller.address is None:
        return not rule.allows
    return caller.address in ip_network(rule.network)


NAMES = ("", "o", "orders", "orders-eu", "orders-eu-2", "other")
PRINCIPALS = ("user:alice", "user:bob", "user:*", "anonymous", "*", "group:staff")
CALLERS = st.builds(
    Caller,
    st.sampled_from(("user:alice", "user:bob", "anonymous", "group:staff")),
    st.sampled_from((None, ip_address("10.1.2.3"), ip_address("10.2.0.1"), ip_address("2001::1"))),
)
RULES = st.builds(
    Rule,
    st.sampled_from(PRINCIPALS),
    st.booleans(),
    st.sampled_from(Op),
    st.sampled_from((Kind.TOPIC, Kind.GROUP)),
    st.sampled_from(NAMES),
    st.booleans(),
    st.sampled_from(("", "", "10.1.0.0/16", "10.2.0.1/32", "2001::/16")),
)
CHANGES = st.lists(st.one_of(RULES, st.integers(1, 12)), max_size=16)


def changed(rules: RuleSet, changes: list[Rule | int]) -> None:
    for change in changes:
        if isinstance(change, Rule):
            rules.add(rules.next_id, change)
        elif change in rules.rules:
            rules.remove(change)


def built_anew(rules: RuleSet) -> RuleSet:
    made = RuleSet()
    for number, one in rules.rules.items():
        made.add(number, one)
    return made


def tables(rules: RuleSet) -> tuple[object, ...]:
    return rules.rules, rules._literals, rules._prefixes, rules._lengths, rules.networks


@given(CHANGES, CALLERS, st.sampled_from(Op), st.sampled_from(NAMES))
def test_a_decision_is_that_of_the_model(
    changes: list[Rule | int], caller: Caller, op: Op, name: str
) -> None:
    rules = RuleSet()
    changed(rules, changes)
    for kind in (Kind.TOPIC, Kind.GROUP):
        if op is not Op.ALL and op in MEANINGFUL[kind]:
            found = rules.decide(caller, op, kind, name)
            assert found == model(rules.rules, caller, op, kind, name)


@given(CHANGES)
def test_the_index_is_that_of_the_rules_however_they_came_and_went(
    changes: list[Rule | int],
) -> None:
    rules = RuleSet()
    changed(rules, changes)
    assert tables(rules) == tables(built_anew(rules))


@given(CHANGES, CHANGES)
def test_a_copy_is_the_same_and_changes_alone(
    changes: list[Rule | int], more: list[Rule | int]
) -> None:
    rules = RuleSet()
    changed(rules, changes)
    copied = rules.copy()
    assert tables(copied) == tables(rules)
    assert copied._numbers == rules._numbers
    assert copied._numbers is not rules._numbers
    assert (copied.next_id, copied.version) == (rules.next_id, rules.version)
    before = tables(built_anew(rules))
    changed(copied, more)
    assert tables(rules) == before
    assert tables(copied) == tables(built_anew(copied))


@given(CHANGES, CALLERS, st.sampled_from((Op.READ, Op.WRITE, Op.DELETE)))
def test_some_resource_is_allowed_unless_denies_cover_each_allow(
    changes: list[Rule | int], caller: Caller, op: Op
) -> None:
    rules = RuleSet()
    changed(rules, changes)
    mine = [
        one
        for one in rules.rules.values()
        if one.kind == Kind.TOPIC and one.principal in caller.names
        if one.concerns(op) and lies_in(caller, one)
    ]
    denies = [one for one in mine if not one.allows]

    def is_covered(allowed: Rule) -> bool:
        return any(
            allowed.name.startswith(one.name)
            if one.is_prefix
            else not allowed.is_prefix and one.name == allowed.name
            for one in denies
        )

    expected = any(one.allows and not is_covered(one) for one in mine)
    assert rules.decide_some(caller, op, Kind.TOPIC).is_allowed is expected


def test_many_rules_are_copied_and_asked_about_quickly() -> None:
    rules = RuleSet()
    for number in range(1, 10_001):
        name = f"topic-{number // 2 + number % 2:05}"
        rules.add(number, Rule("*", number % 2 == 0, Op.WRITE, Kind.TOPIC, name, True))
    began = time.process_time()
    assert not rules.decide_some(ALICE, Op.WRITE, Kind.TOPIC).is_allowed
    assert time.process_time() - began < 1.0, "not each deny for each allow"


@given(CHANGES, CALLERS, st.sampled_from((Op.READ, Op.WRITE, Op.DELETE)))
def test_what_is_allowed_is_visible(changes: list[Rule | int], caller: Caller, op: Op) -> None:
    rules = RuleSet()
    changed(rules, changes)
    for name in NAMES:
        if rules.decide(caller, op, Kind.TOPIC, name).is_allowed:
            assert rules.decide(caller, Op.DESCRIBE, Kind.TOPIC, name).is_allowed
            assert rules.decide_some(caller, op, Kind.TOPIC).is_allowed


def of(*rules: Rule) -> RuleSet:
    made = RuleSet()
    changed(made, list(rules))
    return made


def allow(op: Op, name: str, *, prefix: bool = False, who: str = "user:alice") -> Rule:
    return Rule(who, True, op, Kind.TOPIC, name, prefix)


def deny(op: Op, name: str, *, prefix: bool = False, who: str = "user:alice") -> Rule:
    return Rule(who, False, op, Kind.TOPIC, name, prefix)


def test_without_rules_everything_is_denied() -> None:
    for op in set(Op) - {Op.ALL}:
        assert RuleSet().decide(ALICE, op, Kind.TOPIC, "orders") == Decision(False, NO_RULE)


@pytest.mark.parametrize(
    "wide",
    [
        deny(Op.READ, "", prefix=True),
        deny(Op.ALL, "ord", prefix=True, who="*"),
        deny(Op.DESCRIBE, "orders", who="user:*"),
    ],
)
def test_a_deny_counts_before_a_more_specific_allow(wide: Rule) -> None:
    rules = of(allow(Op.READ, "orders"), wide)
    assert rules.decide(ALICE, Op.READ, Kind.TOPIC, "orders") == Decision(False, 2)
    rules.remove(2)
    assert rules.decide(ALICE, Op.READ, Kind.TOPIC, "orders") == Decision(True, 1)


def test_one_of_two_rules_about_a_resource_goes_and_the_other_stays() -> None:
    """CVE-2024-27309 of Kafka: after the removal of one, none was enforced."""
    rules = of(deny(Op.READ, "orders"), deny(Op.WRITE, "orders"), allow(Op.ALL, "", prefix=True))
    rules.remove(1)
    assert rules.decide(ALICE, Op.READ, Kind.TOPIC, "orders").is_allowed
    assert rules.decide(ALICE, Op.WRITE, Kind.TOPIC, "orders") == Decision(False, 2)


def test_a_prefix_means_each_name_that_begins_so_and_a_literal_itself_alone() -> None:
    rules = of(allow(Op.READ, "orders-", prefix=True), allow(Op.WRITE, "orders-"))
    seen = [rules.decide(ALICE, Op.READ, Kind.TOPIC, n).is_allowed for n in ("orders-", "orders-x")]
    assert seen == [True, True]
    assert not rules.decide(ALICE, Op.READ, Kind.TOPIC, "orders").is_allowed
    assert not rules.decide(ALICE, Op.WRITE, Kind.TOPIC, "orders-x").is_allowed


def test_a_rule_about_another_kind_says_nothing_of_a_topic() -> None:
    rules = of(Rule("user:alice", True, Op.READ, Kind.GROUP, "orders"))
    assert not rules.decide(ALICE, Op.READ, Kind.TOPIC, "orders").is_allowed


def test_a_rule_of_a_later_version_allows_nothing_here() -> None:
    rules = of(Rule("user:alice", True, 99, Kind.TOPIC, "orders"), Rule("*", True, 0, 99, "orders"))
    assert not rules.decide(ALICE, Op.READ, Kind.TOPIC, "orders").is_allowed


def test_a_network_holds_for_those_inside_and_a_deny_also_for_those_without_an_address() -> None:
    inside = allow(Op.READ, "orders")._replace(network="10.1.0.0/16")
    rules = of(inside)
    assert rules.decide(ALICE, Op.READ, Kind.TOPIC, "orders").is_allowed
    outside = Caller("user:alice", ip_address("10.2.0.1"))
    assert not rules.decide(outside, Op.READ, Kind.TOPIC, "orders").is_allowed
    assert not rules.decide(Caller("user:alice"), Op.READ, Kind.TOPIC, "orders").is_allowed
    rules = of(allow(Op.READ, "orders"), inside._replace(allows=False))
    assert rules.decide(outside, Op.READ, Kind.TOPIC, "orders").is_allowed
    assert not rules.decide(Caller("user:alice"), Op.READ, Kind.TOPIC, "orders").is_allowed


def test_an_ipv4_client_at_a_socket_for_both_families_has_its_ipv4_address() -> None:
    assert address_of("::ffff:10.1.2.3") == ip_address("10.1.2.3")
    assert address_of("fe80::1%eth0") == ip_address("fe80::1")
    assert address_of("no-address") is None


def test_user_star_is_each_user_and_star_is_anonymous_too() -> None:
    users = of(allow(Op.READ, "orders", who="user:*"))
    assert users.decide(ALICE, Op.READ, Kind.TOPIC, "orders").is_allowed
    assert not users.decide(ANONYMOUS, Op.READ, Kind.TOPIC, "orders").is_allowed
    each = of(allow(Op.READ, "orders", who="*"))
    assert each.decide(ANONYMOUS, Op.READ, Kind.TOPIC, "orders").is_allowed


def test_some_topic_may_be_written_unless_a_deny_covers_each_of_them() -> None:
    rules = of(allow(Op.WRITE, "orders-", prefix=True))
    assert rules.decide_some(ALICE, Op.WRITE, Kind.TOPIC).is_allowed
    assert not rules.decide_some(ANONYMOUS, Op.WRITE, Kind.TOPIC).is_allowed
    rules.add(2, deny(Op.WRITE, "orders-eu"))
    assert rules.decide_some(ALICE, Op.WRITE, Kind.TOPIC).is_allowed
    rules.add(3, deny(Op.WRITE, "ord", prefix=True))
    assert rules.decide_some(ALICE, Op.WRITE, Kind.TOPIC) == Decision(False, 3)
    rules.add(4, allow(Op.WRITE, "or"))
    assert rules.decide_some(ALICE, Op.WRITE, Kind.TOPIC) == Decision(True, 4)
    rules.add(5, deny(Op.WRITE, "or"))
    assert not rules.decide_some(ALICE, Op.WRITE, Kind.TOPIC).is_allowed
    rules.add(6, allow(Op.WRITE, "or", prefix=True))
    assert rules.decide_some(ALICE, Op.WRITE, Kind.TOPIC).is_allowed, "others begin so"


@pytest.mark.parametrize(
    "bad",
    [
        allow(Op.READ, ""),
        allow(Op.READ, "or*"),
        allow(Op.READ, "or\nders"),
        allow(Op.READ, "x" * (TOPIC_NAME_CHARS_MAX + 1)),
        allow(Op.READ, "x" * (TOPIC_NAME_CHARS_MAX + 1), prefix=True),
        deny(Op.ALL, "hid,vis"),
        deny(Op.ALL, "a b"),
        deny(Op.ALL, "a b", prefix=True),
        deny(Op.ALL, ".."),
        deny(Op.READ, "__staged"),
        deny(Op.READ, "__", prefix=True),
        Rule("*", False, Op.ALL, Kind.USER, "a b"),
        Rule("*", False, Op.ALL, Kind.TOKEN, "x" * (USER_NAME_CHARS_MAX + 1)),
        Rule("*", False, Op.ALL, Kind.TRANSACTIONAL_ID, "x" * (TRANSACTIONAL_ID_CHARS_MAX + 1)),
        allow(Op.READ, "orders", who="alice"),
        allow(Op.READ, "orders", who="user:"),
        allow(Op.READ, "orders", who="user:al*"),
        allow(Op.READ, "orders", who="user:" + "a" * (USER_NAME_CHARS_MAX + 1)),
        allow(Op.READ, "orders", who="user:a b"),
        allow(Op.READ, "orders", who="user:user:alice"),
        allow(Op.READ, "orders", who="broker:1"),
        allow(Op.READ, "orders", who="broker:*"),
        allow(Op.READ, "orders", who="anonymous:x"),
        Rule("user:alice", True, Op.CREATE, Kind.GROUP, "g"),
        Rule("user:alice", True, 99, Kind.TOPIC, "orders"),
        Rule("user:alice", True, Op.READ, 99, "orders"),
        Rule("user:alice", True, Op.ALTER, Kind.CLUSTER, "mine"),
        Rule("user:alice", True, Op.ALTER, Kind.CLUSTER, "", True),
        allow(Op.READ, "orders")._replace(network="10.1.2.3/16"),
        allow(Op.READ, "orders")._replace(network="some.host"),
        allow(Op.READ, "orders")._replace(network="::ffff:10.1.0.0/112"),
    ],
)
def test_a_rule_that_promises_nothing_is_refused(bad: Rule) -> None:
    with pytest.raises(InvalidRequest):
        check_rule(bad)


@pytest.mark.parametrize(
    "good",
    [
        allow(Op.READ, "", prefix=True),
        allow(Op.READ, "orders", who="user:" + "a" * USER_NAME_CHARS_MAX),
        Rule("anonymous", False, Op.ALL, Kind.CLUSTER),
        Rule("*", False, Op.WRITE, Kind.TRANSACTIONAL_ID, "x" * TRANSACTIONAL_ID_CHARS_MAX),
        allow(Op.READ, "x" * TOPIC_NAME_CHARS_MAX),
        allow(Op.READ, "..", prefix=True),
        Rule("*", False, Op.ALL, Kind.USER, "x" * USER_NAME_CHARS_MAX),
    ],
)
def test_a_rule_within_the_bounds_is_stored(good: Rule) -> None:
    assert check_rule(good) == good


def test_a_network_is_stored_in_one_form() -> None:
    rule = allow(Op.READ, "orders")
    assert check_rule(rule._replace(network="10.1.2.3")).network == "10.1.2.3/32"
    assert check_rule(rule._replace(network="2001:DB8::/32")).network == "2001:db8::/32"


def test_every_operation_of_every_kind_can_be_given() -> None:
    for kind, operations in MEANINGFUL.items():
        for operation in operations:
            name = "" if kind is Kind.CLUSTER else "x"
            check_rule(Rule("user:alice", True, operation, kind, name))
