"""Rights on users and tokens, and no way from them to more: an administrator is out of reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.errors import NotAuthorized, PolicyViolation, UnknownTopicId, UnknownUser
from quiverlog.types import Operation as Op
from quiverlog.types import ResourceKind as Kind
from quiverlog.wire import messages as m
from quiverlog.wire.security.user_messages import (
    AlterUsersRequest,
    CreateTokenRequest,
    DescribeUsersRequest,
    EndTokensRequest,
    UserChange,
    WhoAmIRequest,
)
from tests.support.logins import alter, create_token, credential, log_in
from tests.support.node import batch_of
from tests.support.rights import ALICE, ROOT, RightsDriver, rule

CHANGES = tuple(one for one in UserChange if one is not UserChange.NOTHING)
OPERATIONS = {UserChange.CREATE: Op.CREATE, UserChange.DELETE: Op.DELETE}
PASSWORD = (UserChange.CREATE, UserChange.PASSWORD, UserChange.PASSWORD_BESIDE)


@pytest.fixture
def node(tmp_path: Path) -> RightsDriver:
    """Users bob and, an administrator, chief; alice has her name without a login."""
    made = RightsDriver(tmp_path)
    for name in ("alice", "bob"):
        assert not alter(made, name, UserChange.CREATE, b"old", connection=ROOT).error_code
    done = alter(made, "chief", UserChange.CREATE, b"old", connection=ROOT, is_admin=True)
    assert not done.error_code
    return made


def change(node: RightsDriver, name: str, kind: UserChange, connection: int = ALICE) -> int:
    passwords = [b"new"] if kind in PASSWORD else []
    return int(alter(node, name, kind, *passwords, connection=connection).error_code)


@pytest.mark.parametrize("kind", CHANGES)
def test_each_change_of_a_user_needs_its_right(node: RightsDriver, kind: UserChange) -> None:
    name = "carol" if kind is UserChange.CREATE else "bob"
    assert change(node, name, kind) == NotAuthorized.code
    others = {Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE} - {OPERATIONS.get(kind, Op.ALTER)}
    for other in others:
        node.give(rule(other, Kind.USER, name))
    assert change(node, name, kind) == NotAuthorized.code
    node.give(rule(OPERATIONS.get(kind, Op.ALTER), Kind.USER, name))
    makes_admin = kind in (UserChange.ADMIN, UserChange.NO_ADMIN)
    assert change(node, name, kind) == (NotAuthorized.code if makes_admin else 0)
    if makes_admin:
        node.give(rule(Op.ALTER, Kind.CLUSTER))
        assert change(node, name, kind) == 0


@pytest.mark.parametrize("kind", [one for one in CHANGES if one is not UserChange.CREATE])
@pytest.mark.parametrize("name", ["chief", "root"])
def test_who_may_change_users_gets_no_administrator(
    node: RightsDriver, kind: UserChange, name: str
) -> None:
    node.give(rule(Op.ALL, Kind.USER, prefix=True))
    assert change(node, name, kind) == NotAuthorized.code


def test_who_may_create_users_creates_no_administrator(node: RightsDriver) -> None:
    node.give(rule(Op.ALL, Kind.USER, prefix=True))
    done = alter(node, "carol", UserChange.CREATE, b"x", connection=ALICE, is_admin=True)
    assert done.error_code == NotAuthorized.code
    assert change(node, "carol", UserChange.CREATE) == 0


def test_an_own_password_needs_no_right_and_another_one_does(node: RightsDriver) -> None:
    assert change(node, "alice", UserChange.PASSWORD) == 0
    assert change(node, "alice", UserChange.DROP_OLD) == 0
    assert change(node, "alice", UserChange.DELETE) == NotAuthorized.code
    assert change(node, "alice", UserChange.ADMIN) == NotAuthorized.code


def test_an_administrator_that_is_being_made_is_out_of_reach(node: RightsDriver) -> None:
    node.give(rule(Op.ALL, Kind.USER, prefix=True), rule(Op.ALL, Kind.TOKEN, prefix=True))
    node.hold_jobs = True
    made = AlterUsersRequest(
        name="carol",
        change=UserChange.CREATE,
        credentials=[credential(b"old")],
        is_admin=True,
    )
    node.request(made, connection=ROOT)
    assert "carol" not in node.node.broker.view.image.users, "it is being committed"
    tries = [
        AlterUsersRequest(
            name="carol", change=UserChange.PASSWORD, credentials=[credential(b"new")]
        ),
        AlterUsersRequest(name="carol", change=UserChange.DELETE),
        CreateTokenRequest(owner="carol", credential=credential(b"k")),
        EndTokensRequest(owner="carol"),
    ]
    waiting = [node.request(one, connection=ALICE) for one in tries]
    node.hold_jobs = False
    for _ in range(30):
        node.run_until_idle()
        node.flush()
    answers = [node.answer(one) for one in waiting]
    assert [one and one[0].error_code for one in answers] == [NotAuthorized.code] * 4
    node.connect(9, "")
    assert log_in(node, "carol", b"old", 9).is_done, "its password is its own"


def test_users_that_may_not_be_described_are_not_there(node: RightsDriver) -> None:
    def asked(**fields: Any) -> Any:
        return node.call(DescribeUsersRequest(**fields), connection=ALICE)[0]

    assert [one.name for one in asked().users] == ["alice"]
    hidden, absent = asked(name="bob"), asked(name="nix")
    assert hidden.error_code == absent.error_code == UnknownUser.code
    assert hidden.error_message.replace("bob", "nix") == absent.error_message
    node.give(rule(Op.DESCRIBE, Kind.USER, "b", prefix=True))
    assert [one.name for one in asked().users] == ["alice", "bob"]
    assert create_token(node, b"k", owner="bob", connection=ROOT).error_code == 0
    assert asked(name="bob", with_tokens=True).users[0].tokens == []
    node.give(rule(Op.DESCRIBE, Kind.TOKEN, "bob"))
    assert len(asked(name="bob", with_tokens=True).users[0].tokens) == 1


def test_tokens_of_others_need_a_right_and_those_of_an_administrator_more(
    node: RightsDriver,
) -> None:
    def create(owner: str) -> int:
        request = CreateTokenRequest(owner=owner, lifetime_ms=60_000, credential=credential(b"k"))
        return int(node.call(request, connection=ALICE)[0].error_code)

    def end(owner: str) -> int:
        return int(node.call(EndTokensRequest(owner=owner), connection=ALICE)[0].error_code)

    assert (create(""), end("")) == (0, 0)
    assert (create("bob"), end("bob")) == (NotAuthorized.code, NotAuthorized.code)
    node.give(rule(Op.CREATE, Kind.TOKEN, prefix=True))
    assert (create("bob"), end("bob")) == (0, NotAuthorized.code)
    node.give(rule(Op.DELETE, Kind.TOKEN, prefix=True))
    assert end("bob") == 0
    for owner in ("chief", "root"):
        assert (create(owner), end(owner)) == (NotAuthorized.code, NotAuthorized.code)


def test_one_that_is_no_administrator_any_more_needs_rules_at_once(node: RightsDriver) -> None:
    topic_id = node.create("t")
    node.connect(7, "")
    assert log_in(node, "chief", b"old", 7).is_done
    assert node.call(WhoAmIRequest(), connection=7)[0].is_super
    answer = node.call(node.fetch_request(topic_id, 0), connection=7)[0]
    assert answer.partitions[0].error_code == 0
    assert change(node, "chief", UserChange.NO_ADMIN, ROOT) == 0
    answer = node.call(node.fetch_request(topic_id, 0), connection=7)[0]
    assert answer.partitions[0].error_code != 0
    assert change(node, "chief", UserChange.ADMIN, ROOT) == 0
    answer = node.call(m.MetadataRequest(topics=["t"]), connection=7)[0]
    assert answer.topics[0].error_code == 0


@pytest.mark.parametrize("kind", [UserChange.NO_ADMIN, UserChange.PASSWORD, UserChange.DELETE])
def test_a_wait_does_not_outlive_the_administrator(node: RightsDriver, kind: UserChange) -> None:
    topic_id = node.create("t")
    node.connect(7, "")
    assert log_in(node, "chief", b"old", 7).is_done
    request = node.fetch_request(topic_id, 0, max_wait_ms=300_000)
    waiting = node.request(request, connection=7)
    assert node.answer(waiting) is None
    assert change(node, "chief", kind, ROOT) == 0
    node.produced(topic_id, bytes(batch_of([1])))
    answer = node.answer(waiting)
    if kind is UserChange.NO_ADMIN:
        assert answer is not None
        assert answer[0].partitions[0].error_code == UnknownTopicId.code
        assert answer[1] == b""
    else:
        assert answer is None, "its connection is about to be closed"
    assert not node.node.broker.authoriser.watched.waiters
    assert not node.node.broker.purgatory.parked


def test_super_users_of_the_file_change_while_the_broker_runs(node: RightsDriver) -> None:
    topic_id = node.create("t")
    broker = node.node.broker
    broker.authoriser.set_super_users(("alice",))
    for connection, code in ((ALICE, 0), (ROOT, 22)):
        answer = node.call(node.fetch_request(topic_id, 0), connection=connection)[0]
        assert answer.partitions[0].error_code == code


def test_the_last_administrator_may_go_where_super_users_are_left(node: RightsDriver) -> None:
    node.connect(7, "")
    assert log_in(node, "chief", b"old", 7).is_done
    node.node.broker.authoriser.set_super_users(())
    for kind in (UserChange.NO_ADMIN, UserChange.DELETE):
        assert change(node, "chief", kind, 7) == PolicyViolation.code
    node.node.broker.authoriser.set_super_users(("alice",))
    assert change(node, "chief", UserChange.DELETE, 7) == 0
