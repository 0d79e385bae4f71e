"""Changes of users and tokens whose answers are lost: the client sends them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
from quiverlog.errors import UnknownToken
from quiverlog.wire.messages import MetadataRequest
from quiverlog.wire.security.user_messages import AlterUsersRequest, EndTokensRequest
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


def test_tokens_are_ended_after_a_lost_answer(broker: ScriptedBroker, client: Any) -> None:
    client.create_user("alice", "pw")
    tokens = [client.create_token(60.0, owner="alice").token_id for _ in range(4)]
    assert client.end_tokens([], owner="alice") == 0
    assert client.list_users()[0].token_count == 4, "none are meant by none"
    with pytest.raises(UnknownToken):
        client.end_tokens([tokens[0], "0" * 24], owner="alice")
    broker.fault(EndTokensRequest, "drop_reply")
    assert client.end_tokens([*tokens[:2], tokens[0]], owner="alice") == 2
    assert client.list_users()[0].token_count == 2
    # Lost before it came: what is not there must not keep another alive.
    broker.fault(EndTokensRequest, "drop")
    client.end_tokens(["0" * 24, tokens[2]], owner="alice")
    assert client.list_users()[0].token_count == 1
    assert client.end_tokens(owner="alice") == 1
    assert client.list_users()[0].token_count == 0


def test_a_silent_broker_takes_no_time_from_the_others(broker: ScriptedBroker) -> None:
    other = broker.door(7)
    with quiverlog.connect(broker.bootstrap, request_timeout=0.5) as client:
        client.create_user("alice", "pw")
        client.list_topics()
        broker.fault(MetadataRequest, lambda request: None)  # That of the list of brokers.
        broker.fault(MetadataRequest, "hang")
        before = len(other.requests)
        client.set_admin("alice", True)
        asked = [type(one) for one in other.requests[before:]]
        assert MetadataRequest in asked
