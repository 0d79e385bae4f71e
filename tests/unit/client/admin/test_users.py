"""Changes of users and tokens whose answers are lost: the client sends them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quiverlog.wire.security.user_messages import AlterUsersRequest
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap) as client:
        yield client


def test_the_old_password_counts_on_after_a_lost_answer(
    broker: ScriptedBroker, client: Any
) -> None:
    client.create_user("alice", "old")
    broker.fault(AlterUsersRequest, "drop_reply")
    client.change_password("alice", "new", keep_old=True)
    assert set(client.list_users("alice")[0].passwords.values()) == {2}
    client.change_password("alice", "new", keep_old=True)
    assert set(client.list_users("alice")[0].passwords.values()) == {2}
