"""`quiverlog acl`, against the real node."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

import quiverlog
from quiverlog.cli.cluster import acl as commands
from quiverlog.cli.console.options import complete_users
from quiverlog.cli.security import token as tokens
from tests.support.scripted_broker import ScriptedBroker
from tests.support.typed import Typed


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def acl(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> Iterator[Typed]:
    typed = Typed("acl", broker, capsys)
    yield typed
    numbers = [str(one["number"]) for one in json.loads(typed("list", "--format", "json"))]
    if numbers:
        typed("remove", *numbers)


def test_rules_are_added_listed_asked_about_and_removed(acl: Typed) -> None:
    added = acl("add", "alice", "allow", "read,write", "--topic", "orders-*").splitlines()
    first = int(added[0].split()[1].rstrip(":"))
    assert added == [
        f"rule {first}: user:alice may read topic orders-*",
        f"rule {first + 1}: user:alice may write topic orders-*",
    ]
    denied = acl("add", "user:*", "deny", "all", "-t", "orders-eu", "--from", "10.1.0.0/16")
    assert "user:* may not do anything with topic orders-eu from 10.1.0.0/16" in denied
    shown = acl("list", "--topic", "orders-eu").splitlines()
    assert shown[0].split() == ["RULE", "PRINCIPAL", "EFFECT", "OPERATION", "RESOURCE", "FROM"]
    assert len(shown) == 5
    assert shown[2].split() == [str(first), "user:alice", "allow", "read", "topic", "orders-*"]
    assert len(acl("list", "--principal", "alice").splitlines()) == 4
    asked = ("check", "alice", "read", "-t", "orders-eu", "--from")
    assert acl(*asked, "10.2.0.1") == (
        f"may user:alice read topic orders-eu? yes, by rule {first}\n"
    )
    assert acl(*asked, "10.1.0.1", code=1) == (
        f"may user:alice read topic orders-eu? no, by rule {first + 2}\n"
    )
    assert "no, no rule allows it" in acl("check", "bob", "read", "-t", "other", code=1)
    assert acl("remove", str(first)) == f"removed: {first}\n"
    assert acl("remove", str(first)) == f"removed: {first}\n"


def test_json_has_every_field(acl: Typed) -> None:
    (added,) = json.loads(
        acl("add", "anonymous", "deny", "describe", "--cluster", "--format", "json")
    )
    assert added.pop("number") > 0
    assert added == {
        "principal": "anonymous",
        "allows": False,
        "operation": "describe",
        "kind": "cluster",
        "name": "",
        "is_prefix": False,
        "network": "",
    }
    answer = acl("check", "anonymous", "describe", "--cluster", "--format", "json", code=1)
    found = json.loads(answer)
    assert (found["is_allowed"], found["is_on"], found["rule"] > 0) == (False, False, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "alice", "allow", "read"), "Give one"),
        (("add", "alice", "allow", "read", "--topic", "a", "--group", "b"), "Give only one"),
        (("add", "alice", "allow", "reed", "--topic", "a"), "'reed' is none of"),
        (("add", "alice", "may", "read", "--topic", "a"), "allow"),
        (("check", "alice", "all", "--topic", "a"), "all"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    acl: Typed, words: tuple[str, ...], said: str
) -> None:
    assert said in acl(*words, code=2)


def test_operations_and_principals_are_completed(broker: ScriptedBroker, acl: Typed) -> None:
    context = click.Context(commands.acl)
    context.params = {"bootstrap": broker.bootstrap}
    acl("add", "alice", "allow", "read", "--topic", "t")
    parameter = commands.acl.commands["add"].params[0]  # type: ignore[attr-defined]
    with quiverlog.connect(broker.bootstrap) as client:
        for name in ("bob", "carol"):
            client.create_user(name, "pw")
        token = client.create_token(60, owner="bob").token_id
    begun = ("user:", ["user:*", "user:alice", "user:bob", "user:carol"]), ("b", ["bob"])
    for incomplete, found in begun:
        assert commands.complete_principals(context, parameter, incomplete) == found
    assert complete_users(context, parameter, "c") == ["carol"]
    assert tokens._complete_ids(context, parameter, "") == [], "an anonymous client has none"
    context.params["owner"] = "bob"
    assert tokens._complete_ids(context, parameter, token[:4]) == [token]
    numbers = commands._complete_numbers(context, parameter, "")
    assert numbers
    assert all(number.isdecimal() for number in numbers)
    assert commands._complete_operations(context, parameter, "read,al") == [
        "read,all",
        "read,alter",
        "read,alter-configs",
    ]
