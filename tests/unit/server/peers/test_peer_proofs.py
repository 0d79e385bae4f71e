"""Links to brokers that prove who they are, or do not: a stranger is sent nothing of the node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.node.runtime.events import SecretsChanged
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import AuthenticateRequest, AuthenticateResponse
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest
from quiverlog.wire.peer_proof import NO_SECRETS, ClusterSecrets
from tests.support.peers import CLUSTER, Connections, short_times
from tests.support.scripted_broker import Answer, ScriptedBroker

OLD, NEW = b"o" * 32, b"n" * 32
BEAT = BrokerHeartbeatRequest(cluster_id=CLUSTER, node_id=9, broker_epoch=1)
STALE = errors.StaleBrokerEpoch.code
"""What a broker answers to BEAT when it has looked at it."""


@pytest.fixture(autouse=True)
def short() -> Iterator[None]:
    with short_times():
        yield


def broker(*secrets: bytes, **config: Any) -> ScriptedBroker:
    """Node 1 of the cluster."""
    given = ClusterSecrets(secrets)
    return ScriptedBroker(cluster_id=CLUSTER, node_id=1, cluster_secrets=given, **config)


def play(scenario: Any, target: ScriptedBroker, *secrets: bytes, is_required: bool = True) -> str:
    """Run `scenario` with links to `target`; return the log."""
    logs = []

    async def whole() -> None:
        given = ClusterSecrets(secrets)
        links = Connections(target.port, secrets=given, is_required=is_required)
        try:
            await scenario(links)
        finally:
            links.close()
            logs.append(links.log.getvalue())

    asyncio.run(whole())
    return logs[0]


def asked(target: ScriptedBroker) -> set[str]:
    """What has arrived beside HELLO."""
    return {type(one).__name__ for one in target.requests} - {"HelloRequest"}


def ask_once(results: list[int]) -> Any:
    async def scenario(c: Connections) -> None:
        token = c.ask(BEAT)
        await c.answered(token)
        if token in c.answers:
            results.append(c.answers[token].error_code)
        else:
            results.append(c.refused[token].code)

    return scenario


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [((NEW,), (NEW,)), ((NEW, OLD), (OLD,)), ((OLD,), (NEW, OLD))],
    ids=["one", "new here", "new there"],
)
def test_two_brokers_with_a_common_secret_speak(ours: Any, theirs: Any) -> None:
    results: list[int] = []
    with broker(*theirs) as target:
        log = play(ask_once(results), target, *ours)
        kinds = [type(one) for one in target.requests]
    assert results == [STALE]
    assert kinds == [m.HelloRequest, AuthenticateRequest, AuthenticateRequest, type(BEAT)]
    for secret in (NEW, OLD):
        assert secret.decode() not in log


def test_a_broker_with_another_secret_is_sent_nothing() -> None:
    results: list[int] = []
    with broker(OLD) as target:
        log = play(ask_once(results), target, NEW)
        assert asked(target) == {"AuthenticateRequest"}
        assert len(target.seen(AuthenticateRequest)) == 1, "not our proof either"
    assert results == [errors.AuthenticationFailed.code]
    assert "it has not proved that it has the cluster's secret" in log


@pytest.mark.parametrize("is_required", [True, False])
def test_a_broker_that_offers_no_proof(is_required: bool) -> None:
    results: list[int] = []
    with broker() as target:
        log = play(ask_once(results), target, NEW, is_required=is_required)
        assert asked(target) == (set() if is_required else {"BrokerHeartbeatRequest"})
    assert results == [errors.NotAuthenticated.code if is_required else STALE]
    assert "does not prove that it is node 1" in log


def test_a_stranger_that_hides_the_offer_is_sent_nothing() -> None:
    """HELLO is that of the broker behind the stranger, without AUTHENTICATE."""

    def hide(_asked: object, answer: m.HelloResponse, body: bytes) -> Any:
        answer.apis = [one for one in answer.apis if one.api != m.Api.AUTHENTICATE]
        return answer, body

    results: list[int] = []
    with broker(NEW) as target:
        target.always(m.HelloRequest, Answer(hide))
        play(ask_once(results), target, NEW)
        assert asked(target) == set()
    assert results == [errors.NotAuthenticated.code]


@pytest.mark.parametrize(
    "answer",
    [
        AuthenticateResponse(is_done=True, principal="broker:9"),
        AuthenticateResponse(),
        AuthenticateResponse(data=bytes(64)),
    ],
    ids=["all is well", "nothing", "noughts"],
)
def test_a_stranger_that_proves_nothing_is_sent_nothing(answer: AuthenticateResponse) -> None:
    results: list[int] = []
    with broker(NEW) as target:
        target.always(AuthenticateRequest, Answer(lambda _asked, _answer, body: (answer, body)))
        play(ask_once(results), target, NEW)
        assert asked(target) == {"AuthenticateRequest"}
    assert results == [errors.AuthenticationFailed.code]


def test_a_broker_without_a_secret_is_taken_where_none_is_required() -> None:
    results: list[int] = []
    with broker(NEW, proof_required=False) as target:
        play(ask_once(results), target, is_required=False)
        assert asked(target) == {"BrokerHeartbeatRequest"}
    assert results == [STALE]


def test_a_broker_without_a_secret_is_refused_where_one_is_required() -> None:
    """A broker without a secret backs off and logs the reason."""
    results: list[int] = []

    async def scenario(c: Connections) -> None:
        for _ in range(4):
            await ask_once(results)(c)
            await c.until(lambda: not c.metrics.peers_open)
        assert c.peers.links[0]._backoff._failures == 4

    with broker(NEW) as target:
        log = play(scenario, target, is_required=False)
    assert results == [errors.NotAuthenticated.code] * 4
    assert log.count("peer cannot be asked") == 1
    assert "only from a broker that has proved" in log


def test_an_answer_that_a_proof_was_refused_ends_the_link_with_a_backoff() -> None:
    async def scenario(c: Connections) -> None:
        token = c.ask(BEAT)
        await c.answered(token)
        assert c.answers[token].error_code == errors.AuthenticationFailed.code
        assert c.metrics.peers_open == 0
        assert c.peers.links[0]._backoff._failures == 1

    with broker(NEW) as target:
        target.fault(BrokerHeartbeatRequest, errors.AuthenticationFailed())
        assert "peer cannot be asked" in play(scenario, target, NEW)


def test_unproved_links_are_counted() -> None:
    async def scenario(c: Connections) -> None:
        await c.answered(c.ask(BEAT))
        assert c.metrics.peer_links_unproved == 1

    with broker() as target:
        play(scenario, target, is_required=False)


def test_a_secret_is_replaced_while_both_speak() -> None:
    """Both get the new one before the old one, one after the other; then the old one goes."""

    async def ask(c: Connections) -> None:
        # A connection may have ended with the secret: the next one is asked again.
        for _ in range(20):
            token = c.ask(BEAT)
            await c.answered(token)
            if token in c.answers:
                break
        assert c.answers[token].error_code == STALE

    async def scenario(c: Connections) -> None:
        await ask(c)
        for ours, theirs in (
            ((OLD,), (NEW, OLD)), ((NEW, OLD), (NEW, OLD)), ((NEW, OLD), (NEW,)), ((NEW,), (NEW,)),
        ):  # fmt: skip
            secrets = ClusterSecrets(theirs)
            target.on_loop(lambda secrets=secrets: target.handle(SecretsChanged(secrets)))
            c.peers.secrets_changed(ClusterSecrets(ours))
            await ask(c)
        conversation = c.peers.links[0]._conversation
        assert conversation is not None
        assert conversation.rests_on(ClusterSecrets((NEW,)))
        assert not conversation.rests_on(ClusterSecrets((OLD,)))

    with broker(OLD) as target:
        play(scenario, target, OLD)


def test_a_removed_secret_ends_the_links_that_it_has_proved() -> None:
    async def scenario(c: Connections) -> None:
        await c.answered(c.ask(BEAT))
        assert c.metrics.peers_open == 1
        c.peers.secrets_changed(ClusterSecrets((NEW, OLD)))
        assert c.metrics.peers_open == 1
        c.peers.secrets_changed(ClusterSecrets((NEW,)))
        assert c.metrics.peers_open == 0

    with broker(OLD) as target:
        play(scenario, target, OLD)


def test_a_link_that_was_never_proved_lives_on_when_secrets_change() -> None:
    async def scenario(c: Connections) -> None:
        await c.answered(c.ask(BEAT))
        c.peers.secrets_changed(ClusterSecrets((NEW,)))
        assert c.metrics.peers_open == 1
        c.peers.secrets_changed(NO_SECRETS)
        assert c.metrics.peers_open == 1

    with broker() as target:
        play(scenario, target, OLD, is_required=False)


def test_a_handshake_that_has_begun_ends_with_its_secrets() -> None:
    async def scenario(c: Connections) -> None:
        token = c.ask(BEAT)
        await c.until(lambda: target.seen(AuthenticateRequest))
        c.peers.secrets_changed(ClusterSecrets((NEW,)))
        await c.answered(token)
        assert token in c.refused
        assert c.metrics.peers_open == 0

    with broker(OLD) as target:
        target.fault(AuthenticateRequest, "hang")
        play(scenario, target, OLD)
