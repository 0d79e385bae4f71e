"""Timeouts bound everything a call does; empty answers do not become a loop without rest."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
from quiverlog.client.tables.fetcher import PartitionFetcher
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import Answer, ScriptedBroker

SLACK_S = 4.0
"""What a loaded machine may add; the faults below would add far more."""


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", SCHEMA)
            with client.producer("t", batch_rows=5) as producer:
                producer.send(rows(20))
        yield broker


def no_rows(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
    for part in response.partitions:
        part.batch_bytes = 0
    return response, b""


def at_once(request: Any) -> None:
    request.max_wait_ms = 0


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=1.0) as client:
        yield client


# --- one deadline ---------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_several_dead_brokers_share_one_timeout(kind: str) -> None:
    """Each of eight addresses accepts and sends nothing: together they take one timeout."""
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
    try:
        addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in silent]
        started = time.monotonic()
        with pytest.raises(quiverlog.QuiverlogError):
            connect(kind, addresses, connect_timeout=2.0, request_timeout=2.0)
        assert time.monotonic() - started < 2.0 + SLACK_S
    finally:
        for each in silent:
            each.close()


def test_a_poll_ends_in_its_own_time_not_in_the_requests(broker: ScriptedBroker) -> None:
    with (
        quiverlog.connect(broker.bootstrap, request_timeout=60.0) as client,
        client.consumer("t", follow=True) as consumer,
    ):
        assert consumer.poll(timeout=10) is not None
        broker.always(m.FetchRequest, "hang")
        broker.always(m.MetadataRequest, "hang")
        started = time.monotonic()
        while time.monotonic() - started < 3.0:  # it looks for new partitions, which hangs
            consumer.poll(timeout=0.2)
        assert time.monotonic() - started < 3.0 + 1.2 + SLACK_S


def test_an_iteration_notices_a_fetch_that_is_never_answered(
    broker: ScriptedBroker, client: Any
) -> None:
    broker.always(m.FetchRequest, "hang")
    first = len(broker.seen(m.FetchRequest))
    started = time.monotonic()
    with pytest.raises(quiverlog.RequestTimedOut, match="t-0"):
        list(client.consumer("t"))
    assert time.monotonic() - started < 1.5 + SLACK_S
    assert len(broker.seen(m.FetchRequest)) - first == 1, "a second try takes the timeout twice"


def test_a_fetch_that_failed_while_the_program_was_busy_is_tried_again(
    broker: ScriptedBroker, client: Any
) -> None:
    """The timeout counts what the consumer has waited, not what the program did meanwhile."""
    with client.consumer("t", follow=True) as consumer:
        while consumer.positions != {0: 20}:
            assert consumer.poll(timeout=5) is not None
        broker.always(m.FetchRequest, "hang")
        first = len(broker.seen(m.FetchRequest))
        deadline = time.monotonic() + 30
        while len(broker.seen(m.FetchRequest)) == first:
            assert time.monotonic() < deadline
            assert consumer.poll(timeout=0.1) is None
        broker.heal()
        threading.Event().wait(2.5)  # longer than any timeout of the request under way
        with quiverlog.connect(broker.bootstrap) as other, other.producer("t") as producer:
            producer.send(rows(1)).result()
        assert consumer.poll(timeout=10) is not None


def test_a_reply_that_trickles_does_not_hold_a_poll(broker: ScriptedBroker) -> None:
    """The first bytes of a frame are no reply: the poll ends, and the reply may go on."""

    def trickle(request: Any, response: Any, body: bytes) -> bytes:
        return (1_000_000).to_bytes(4, "little") + (500).to_bytes(4, "little") + b"\x9c"

    broker.always(m.FetchRequest, Answer(trickle))
    with (
        quiverlog.connect(broker.bootstrap, request_timeout=60.0) as client,
        client.consumer("t") as consumer,
    ):
        started = time.monotonic()
        assert consumer.poll(timeout=0.5) is None
        assert time.monotonic() - started < 1.5 + SLACK_S


# --- pauses ---------------------------------------------------------------------------------------
def test_a_long_poll_answered_early_is_not_repeated_at_once(
    broker: ScriptedBroker, client: Any
) -> None:
    """A broker that does not wait: 10,700 requests a second before there was a pause."""
    with client.consumer("t", follow=True) as consumer:
        while consumer.positions != {0: 20}:
            assert consumer.poll(timeout=5) is not None
        broker.always(m.FetchRequest, at_once)
        first = len(broker.seen(m.FetchRequest))
        started = time.monotonic()
        while time.monotonic() - started < 2.0:
            assert consumer.poll(timeout=0.1) is None
        asked = len(broker.seen(m.FetchRequest)) - first
        assert asked <= 20, f"{asked} fetches in two seconds"
        broker.heal()
        with quiverlog.connect(broker.bootstrap) as other, other.producer("t") as producer:
            producer.send(rows(1)).result()
        assert consumer.poll(timeout=10) is not None, "the pause must end"


def test_an_end_is_reached_or_an_error_raised_when_no_rows_come(
    broker: ScriptedBroker, client: Any
) -> None:
    broker.always(m.FetchRequest, Answer(no_rows))
    first = len(broker.seen(m.FetchRequest))
    started = time.monotonic()
    with pytest.raises(quiverlog.InvalidResponse, match="t-0 returned no rows at offset 0"):
        list(client.consumer("t"))
    assert time.monotonic() - started < 3.0 + SLACK_S
    assert len(broker.seen(m.FetchRequest)) - first <= 40


def test_a_fetcher_without_rows_ends(broker: ScriptedBroker) -> None:
    broker.always(m.FetchRequest, Answer(no_rows))
    first = len(broker.seen(m.FetchRequest))
    with (
        quiverlog.connect(broker.bootstrap, request_timeout=1.0) as client,
        pytest.raises(quiverlog.QuiverlogError, match="t-0"),
    ):
        list(PartitionFetcher(client, "t", 0, 0, 20))
    assert len(broker.seen(m.FetchRequest)) - first <= 40


def test_a_fetch_that_arrived_while_the_program_was_busy_is_not_late(
    broker: ScriptedBroker,
) -> None:
    with (
        quiverlog.connect(broker.bootstrap, request_timeout=0.6) as client,
        PartitionFetcher(client, "t", 0, 0, 20, bytes_max=1) as fetcher,
    ):
        assert len(next(fetcher)) == 5
        threading.Event().wait(1.5)  # longer than any timeout of the request under way
        assert len(next(fetcher)) == 5
        offsets = [request.partitions[0].offset for request in broker.seen(m.FetchRequest)]
        assert len(set(offsets)) == len(offsets), "a reply was thrown away and asked for again"
