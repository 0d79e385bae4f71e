"""A login that cannot be renewed: the connection goes on while the login before it counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

import quiverlog
from quiverlog.client.base.login import Credentials, renewed_in_s
from quiverlog.errors import (
    AuthenticationFailed,
    BrokerNotProved,
    ConnectionClosed,
    InvalidRequest,
    InvalidSecurity,
    QuiverlogError,
)
from quiverlog.wire import messages as m
from tests.support.scripted_broker import ScriptedBroker

from .test_asynchronous import give, greeted

REFUSALS = (InvalidSecurity, InvalidRequest, AuthenticationFailed)


class Logins:
    """Credentials whose logins take no step: each returns, or raises, the next of a script."""

    def __init__(self, *outcomes: QuiverlogError | int) -> None:
        self.outcomes = list(outcomes)
        self.count = 0

    def begin(self, address: object, peer: object) -> Any:
        self.count += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, QuiverlogError):
            raise outcome
        return SimpleNamespace(request=None, expires_ms=outcome)


def test_times() -> None:
    assert [renewed_in_s(left_s) for left_s in (3_600, 10, 0)] == [2_880, 8, 1]
    failed = [renewed_in_s(left_s, has_failed=True) for left_s in (720, 200, 3, -1)]
    assert failed == [60, 50, 1, 1]


@pytest.mark.parametrize("kind", REFUSALS)
def test_requests_under_way_outlive_it(kind: type[QuiverlogError]) -> None:
    async def converse() -> None:
        connection = await greeted()
        logins = Logins(60_000, kind("no"), 120_000)
        await connection.log_in(cast(Credentials, logins))
        waiting = connection.request(m.AlterTopicRequest(), (), 60)
        first = connection._renewal
        connection._renew(cast(Credentials, logins))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not connection.closed
        assert not waiting.done()
        again = connection._renewal
        assert again is not None
        assert again is not first, "it is tried again"
        connection._renew(cast(Credentials, logins))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert logins.count == 3
        give(connection, m.AlterTopicResponse(schema_id=7), 2)
        assert (await waiting).response.error_code == 0
        connection.close()

    asyncio.run(converse())


def test_a_broker_without_the_keys_is_left_and_requests_have_no_answer() -> None:
    async def converse() -> None:
        connection = await greeted()
        logins = cast(Credentials, Logins(60_000, BrokerNotProved("it is none")))
        await connection.log_in(logins)
        waiting = connection.request(m.AlterTopicRequest(), (), 60)
        connection._renew(logins)
        with pytest.raises(ConnectionClosed, match="it is none"):
            await waiting
        assert connection.closed

    asyncio.run(converse())


@pytest.mark.parametrize(
    ("outcomes", "connections"),
    [
        ((InvalidSecurity("empty"), 60_000), 1),
        ((InvalidRequest("another user"), 60_000), 1),
        ((AuthenticationFailed("ended"), 60_000), 2),
        ((ConnectionClosed("gone"), 60_000), 2),
    ],
    ids=str,
)
def test_a_blocking_client_goes_on(outcomes: Any, connections: int) -> None:
    with ScriptedBroker() as broker, quiverlog.connect(broker.bootstrap) as client:
        before = broker.connections
        client.driver._credentials = cast(Credentials, Logins(60_000, *outcomes))
        _leave_idle(client)
        client.list_topics()  # Its login is made.
        _is_due(client)
        client.list_topics()
        assert broker.connections - before == connections


def test_a_blocking_client_names_what_the_next_connection_is_refused_for() -> None:
    with ScriptedBroker() as broker, quiverlog.connect(broker.bootstrap) as client:
        refusals = Logins(60_000, InvalidSecurity("empty"))
        client.driver._credentials = cast(Credentials, refusals)
        _leave_idle(client)
        client.list_topics()
        [connection] = _idle(client)
        _is_due(client)
        connection._login_ends_s = 0.0
        with pytest.raises(InvalidSecurity, match="empty"):
            client.list_topics()


def _idle(client: quiverlog.Client) -> list[Any]:
    return [one for kept in client.driver._idle.values() for one in kept]


def _leave_idle(client: quiverlog.Client) -> None:
    for connection in _idle(client):
        connection.close()
    client.driver._idle.clear()


def _is_due(client: quiverlog.Client) -> None:
    [connection] = _idle(client)
    assert connection._renew_s is not None
    connection._renew_s = 0.0
