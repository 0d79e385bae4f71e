"""Brokers that answer wrongly: the client raises its own errors, in time, and never spins.

Every public method meets every kind of fault in each request that it makes
(`tests.support.hostile_broker`); the client may still succeed, for not every change can be noticed
or matters. What it may not do: raise anything but a QuiverlogError, leave out the topic and
partition that it was about (but for a time that is up before it has asked for the partition),
exceed its timeout, ask without a pause, hand out a row twice or leave one out.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import quiverlog
from quiverlog.wire import messages as m
from quiverlog.wire.registry import APIS
from tests.support import hostile_broker
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.hostile_broker import ACTIONS, CODES, Action, any_fault, error, prepare
from tests.support.scripted_broker import Cut, Fault, ScriptedBroker

SLACK_S = 3.0
"""Beyond twice the timeout: the rounds in which a consumer looks at its clock, a loaded machine."""
PATIENT_S = 30.0
"""For what must succeed, on the busiest machine."""
REQUESTS_MAX = 80
FIRST_CODE_OF_CLIENTS = 1_000
OF_CLIENTS = tuple(
    spec.request
    for spec in APIS.values()
    # No login is asked for here: test_login.py has what brokers may answer.
    if not spec.between_brokers and spec.api is not m.Api.AUTHENTICATE
)
Uses = dict[Action, list[type[m.Request]]]


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        prepare(broker)
        yield broker


@pytest.fixture(scope="module")
def uses(broker: ScriptedBroker) -> Uses:
    """Action -> the kinds of request that it makes."""
    found: Uses = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hostile_broker, "REQUEST_TIMEOUT_S", PATIENT_S)
        for action in ACTIONS:
            first = len(broker.requests)
            with open_client(broker, "blocking") as client:
                action.run(client)
            kinds = [type(request) for request in broker.requests[first:]]
            found[action] = list(dict.fromkeys(kinds))
    return found


def open_client(broker: ScriptedBroker, kind: str) -> Any:
    return connect(
        kind,
        broker.bootstrap,
        connect_timeout=hostile_broker.REQUEST_TIMEOUT_S,
        request_timeout=hostile_broker.REQUEST_TIMEOUT_S,
    )


def test_every_public_method_is_attacked_in_every_request(uses: Uses) -> None:
    methods = {n for n, _ in inspect.getmembers(quiverlog.Client, callable) if n[0] != "_"}
    # These are made of others: list_topics, schemas, read, offsets_with_epochs.
    methods -= {"close", "duckdb", "replay"}
    assert methods == {a.method for a in ACTIONS} - {"fetcher"}
    assert {kind for kinds in uses.values() for kind in kinds} == set(OF_CLIENTS)


def attack(
    broker: ScriptedBroker, kind: str, action: Action, request: type[m.Request], fault: Fault
) -> quiverlog.QuiverlogError | None:
    """Let a client meet the fault; returns the error that it got."""
    raised: quiverlog.QuiverlogError | None = None
    connected = False
    first = len(broker.requests)
    broker.always(request, fault)
    started = time.monotonic()
    try:
        with open_client(broker, kind) as client:
            connected = True
            action.run(client)
    except quiverlog.QuiverlogError as error:
        raised = error
    finally:
        broker.heal()
    elapsed_s = time.monotonic() - started
    assert elapsed_s < hostile_broker.REQUEST_TIMEOUT_S * 2 + SLACK_S, elapsed_s
    assert len(broker.requests) - first < REQUESTS_MAX
    if raised is not None and connected and action.topic is not None:
        assert raised.details.get("topic") == action.topic, repr(raised)
        assert action.topic in str(raised)
        named = raised.details.get("partition")
        may_name_none = isinstance(raised, quiverlog.RequestTimedOut) and named is None
        if fault == "hang" and any(type(one) is request for one in broker.requests[first:]):
            may_name_none = False  # The time was up while the partition was asked for.
        if action.partition is not None and hasattr(request(), "partitions") and not may_name_none:
            foreign = isinstance(raised, quiverlog.InvalidResponse)  # may be about what came
            assert isinstance(named, int) if foreign else named == action.partition, repr(raised)
            assert re.search(rf"{action.topic}-{named}|partition {named}", str(raised))
    return raised


def test_a_timeout_before_the_question_names_the_topic_alone(broker: ScriptedBroker) -> None:
    """On a busy machine the time may be up while a client still looks for the leader."""
    action = next(a for a in ACTIONS if a.method == "consumer" and a.partition is not None)

    def run(client: Any) -> None:
        broker.always(m.MetadataRequest, "hang")
        action.run(client)

    raised = attack(broker, "blocking", replace(action, run=run), m.FetchRequest, "hang")
    assert isinstance(raised, quiverlog.RequestTimedOut)
    assert "partition" not in raised.details


@pytest.mark.parametrize("action", ACTIONS, ids=lambda a: a.method)
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(min_value=0, max_value=2**32))
def test_wrong_answers_end_in_our_own_errors(
    broker: ScriptedBroker, uses: Uses, action: Action, seed: int
) -> None:
    kinds = uses[action]
    fault, description = any_fault(seed // 16)
    try:
        attack(
            broker, CLIENT_KINDS[seed % len(CLIENT_KINDS)], action, kinds[seed % len(kinds)], fault
        )
    except BaseException as error:
        error.add_note(f"{kinds[seed % len(kinds)].__name__}: {description}")
        raise


@pytest.mark.parametrize("whole", [False, True], ids=["of-the-parts", "of-the-request"])
def test_every_error_code_is_raised_or_survived(
    broker: ScriptedBroker, uses: Uses, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each code once, in the last request of an action: the actions take turns."""
    for number, code in enumerate(CODES):
        is_clients = code >= FIRST_CODE_OF_CLIENTS
        # A broker's errors are tried again until the time is up; an error of the client's own code
        # ends it.
        monkeypatch.setattr(hostile_broker, "REQUEST_TIMEOUT_S", PATIENT_S if is_clients else 0.1)
        action = ACTIONS[(number + whole) % len(ACTIONS)]
        kind = CLIENT_KINDS[number % len(CLIENT_KINDS)]
        raised = attack(broker, kind, action, uses[action][-1], error(code, whole=whole))
        if raised is not None and is_clients:
            assert isinstance(raised, quiverlog.InvalidResponse), (code, repr(raised))


SAFE = tuple(a for a in ACTIONS if a.method not in ("raw_produce", "raw_call"))
"""What a client repeats by itself."""


@pytest.mark.parametrize("request_kind", OF_CLIENTS, ids=lambda k: k.API.name)
def test_an_answer_cut_at_any_byte_is_asked_for_again(
    broker: ScriptedBroker,
    uses: Uses,
    request_kind: type[m.Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hostile_broker, "REQUEST_TIMEOUT_S", PATIENT_S)
    action = next(a for a in SAFE if request_kind in uses[a])
    with quiverlog.connect(broker.bootstrap, request_timeout=PATIENT_S) as client:
        client.cluster.jitter = lambda: 0.0  # no pauses between the tries
        # All answers have one header: one kind is cut at each of its bytes.
        in_header = range(24) if request_kind is m.MetadataRequest else (0, 7, 8, 9, 23)
        for cut in (*in_header, *range(24, 400, 47)):
            client.cluster._histories.clear()
            first = len(broker.seen(request_kind))
            broker.fault(request_kind, Cut(cut))
            if request_kind is m.HelloRequest:
                broker.drop_connections()
            action.run(client)
            assert len(broker.seen(request_kind)) > first, "the fault was not met"
            broker.heal()
