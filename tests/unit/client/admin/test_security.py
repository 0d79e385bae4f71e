"""Users, tokens and rules as a client changes them: brokers that lie, and answers that are lost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quiverlog.client.admin.rules import AccessRule
from quiverlog.errors import InvalidResponse, UnknownUser, UserExists
from quiverlog.limits import SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from quiverlog.wire import messages as m
from quiverlog.wire.security.acl_messages import (
    AlterAclsRequest,
    DescribeAclsRequest,
    NumberedRule,
)
from quiverlog.wire.security.user_messages import (
    AlterUsersRequest,
    CreateTokenRequest,
    DescribedUser,
    DescribeUsersRequest,
)
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import Answer, ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=30.0) as client:
        client.create_user("alice", "pw")
        yield client


def lie(**fields: Any) -> Answer:
    """The node's answer with other fields."""

    def change(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        for name, value in fields.items():
            setattr(response, name, value)
        return response, body

    return Answer(change)


def of_password(**fields: Any) -> Answer:
    """A description of a user whose passwords are not what they are."""

    def change(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        for one in response.users[0].passwords:
            for name, value in fields.items():
                setattr(one, name, value)
        return response, body

    return Answer(change)


def passwd(client: Any) -> None:
    client.change_password("alice", "newer", keep_old=True)


RULE = AccessRule("user:alice", True, "read", "topic", "t")
LIES: dict[str, tuple[type[m.Request], Answer, Callable[[Any], object], str]] = {
    "an endless list of users": (
        DescribeUsersRequest, lie(next_name=""), lambda c: c.list_users(), "is followed by",
    ),
    "no users, and more": (
        DescribeUsersRequest, lie(users=[], next_name=""), lambda c: c.list_users(), "followed by",
    ),
    "users in no order": (
        DescribeUsersRequest, lie(users=[DescribedUser("b"), DescribedUser("a")]),
        lambda c: c.list_users(), "Users come as",
    ),
    "another user": (
        DescribeUsersRequest, lie(users=[DescribedUser("bob")]),
        lambda c: c.list_users("alice"), "bob",
    ),
    "no password": (
        DescribeUsersRequest, lie(users=[DescribedUser("alice")]), passwd, "without a password",
    ),
    "an unknown mechanism": (
        DescribeUsersRequest, of_password(mechanism="PLAIN"), passwd, "without a password",
    ),
    "too little work": (
        DescribeUsersRequest, of_password(iterations=SCRAM_ITERATIONS_MIN - 1), passwd,
        "4095 iterations are outside",
    ),
    "too much work": (
        DescribeUsersRequest, of_password(iterations=SCRAM_ITERATIONS_MAX + 1), passwd,
        "100001 iterations are outside",
    ),
    "all the work there is": (
        DescribeUsersRequest, of_password(iterations=2**31 - 1), passwd, "iterations are outside",
    ),
    "no salt": (DescribeUsersRequest, of_password(salt=b""), passwd, "a salt has 8 to 64 bytes"),
    "a token without an id": (
        CreateTokenRequest, lie(token_id=""), lambda c: c.create_token(60, owner="alice"), "token",
    ),
    "a token whose id is none": (
        CreateTokenRequest, lie(token_id="../x"), lambda c: c.create_token(60, owner="alice"),
        "an id that is none",
    ),
    "another user's token": (
        CreateTokenRequest, lie(owner="bob"), lambda c: c.create_token(60, owner="alice"), "bob",
    ),
    "an endless list of rules": (
        DescribeAclsRequest, lie(rules=[NumberedRule(number=7)], next_number=7),
        lambda c: c.list_rules(), "is followed by",
    ),
    "no rules, and more": (
        DescribeAclsRequest, lie(rules=[], next_number=1), lambda c: c.list_rules(), "followed by",
    ),
    "rules in no order": (
        DescribeAclsRequest, lie(rules=[NumberedRule(number=2), NumberedRule(number=1)]),
        lambda c: c.list_rules(), "Rules from",
    ),
    "a rule without a number": (
        AlterAclsRequest, lie(numbers=[0]), lambda c: c.add_rules([RULE]), "got the numbers",
    ),
    "fewer numbers than rules": (
        AlterAclsRequest, lie(numbers=[]), lambda c: c.add_rules([RULE]), "got the numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_of_a_broker_is_named(
    broker: ScriptedBroker, client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, answer, ask, why = LIES[name]
    if "work" in name:
        # Found before the slow step, which would take minutes.
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", None)
    broker.always(kind, answer)
    with pytest.raises(InvalidResponse, match=why):
        ask(client)
    assert len(broker.seen(kind)) <= 3


# --- answers that are lost ------------------------------------------------------------------------
def test_a_user_that_a_lost_answer_has_made_is_made(broker: ScriptedBroker, client: Any) -> None:
    broker.fault(AlterUsersRequest, "drop_reply")
    client.create_user("bob", "pw")
    assert [one.name for one in client.list_users()] == ["alice", "bob"]
    with pytest.raises(UserExists):
        client.create_user("bob", "pw")


def test_a_user_of_another_client_is_not_taken_for_an_own_one(
    broker: ScriptedBroker, client: Any
) -> None:
    broker.fault(AlterUsersRequest, "drop")
    with pytest.raises(UserExists):
        client.create_user("alice", "pw")


def test_a_user_that_a_lost_answer_has_deleted_is_deleted(
    broker: ScriptedBroker, client: Any
) -> None:
    broker.fault(AlterUsersRequest, "drop_reply")
    client.delete_user("alice")
    assert not client.list_users()
    with pytest.raises(UnknownUser):
        client.delete_user("alice")


def test_only_a_deletion_is_done_where_there_is_no_user(
    broker: ScriptedBroker, client: Any
) -> None:
    broker.fault(AlterUsersRequest, "drop")
    with pytest.raises(UnknownUser):
        client.set_admin("bob", True)
