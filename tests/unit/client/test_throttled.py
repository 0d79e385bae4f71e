"""Answers with `throttle_ms`: the next such request comes later, and other work does not wait."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
from quiverlog.client.cluster.routing import throttled_s
from quiverlog.client.tables.fetcher import PartitionFetcher
from quiverlog.limits import THROTTLE_MS_MAX
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import Answer, ScriptedBroker

TOLD_MS = 250
TOLD_S = TOLD_MS / 1_000


class Times:
    """When the requests of a kind were answered, each with the same request to wait."""

    def __init__(self, broker: ScriptedBroker, kind: type[m.Request]) -> None:
        self.at_s: list[float] = []
        broker.always(kind, Answer(self._answer))

    def _answer(self, request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        self.at_s.append(time.monotonic())
        response.throttle_ms = TOLD_MS
        return response, body

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.at_s)]


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", SCHEMA)
            with client.producer("t", batch_rows=5) as producer:
                producer.send(rows(20))
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap) as client:
        yield client


def test_a_producer_waits_and_delivers_all(broker: ScriptedBroker, client: Any) -> None:
    times = Times(broker, m.ProduceRequest)
    with client.producer("t") as producer:
        for first in (20, 40, 60):
            producer.send(rows(20, first))
            producer.flush()
    assert min(times.gaps_s) >= TOLD_S
    assert len(times.at_s) == 3
    fetched = sorted(row["id"] for batch in client.consumer("t") for row in batch.to_pylist())
    assert fetched == list(range(80))


def test_what_a_producer_is_told_holds_no_fetch_up(broker: ScriptedBroker, client: Any) -> None:
    def told_long(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        response.throttle_ms = 600_000
        return response, body

    broker.fault(m.ProduceRequest, Answer(told_long))
    with client.producer("t") as producer:
        producer.send(rows(20, 20))
    started_s = time.monotonic()
    assert sum(len(batch) for batch in client.consumer("t")) == 40
    assert time.monotonic() - started_s < 10


def test_rows_that_wait_for_too_long_fail_and_say_why(broker: ScriptedBroker, client: Any) -> None:
    def told_long(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        response.throttle_ms = 600_000
        return response, body

    broker.fault(m.ProduceRequest, Answer(told_long))

    def write() -> None:
        with client.producer("t", delivery_timeout=1.0) as producer:
            for first in (20, 40):
                producer.send(rows(20, first))
                producer.flush()

    with pytest.raises(quiverlog.errors.DeliveryTimedOut, match="quiverlog quota list"):
        write()


def test_a_consumer_waits_and_gets_all(broker: ScriptedBroker, client: Any) -> None:
    with client.producer("t", batch_rows=1) as producer:
        producer.send([{"id": i, "name": "x" * 100_000, "score": 0.0} for i in range(20, 23)])
    times = Times(broker, m.FetchRequest)
    with client.consumer("t", fetch_bytes=1 << 16) as consumer:
        found = [row["id"] for batch in consumer for row in batch.to_pylist()]
    assert found == list(range(23))
    assert len(times.at_s) > 1
    assert min(times.gaps_s) >= TOLD_S


def test_a_fetcher_waits_behind_the_rows_at_hand(broker: ScriptedBroker) -> None:
    """As Spark's executors read."""
    times = Times(broker, m.FetchRequest)
    with (
        quiverlog.connect(broker.bootstrap) as client,
        PartitionFetcher(client, "t", 0, 0, 20, bytes_max=1) as fetcher,
    ):
        started_s = time.monotonic()
        first = next(fetcher)
        assert time.monotonic() - started_s < TOLD_S, "rows that have come do not wait"
        found = [first, *fetcher]
    assert sum(len(batch) for batch in found) == 20
    assert len(times.at_s) > 1
    assert min(times.gaps_s) >= TOLD_S


def test_no_broker_can_hold_a_client_for_long() -> None:
    assert throttled_s(0) == 0
    assert throttled_s(THROTTLE_MS_MAX - 1) == (THROTTLE_MS_MAX - 1) / 1_000
    assert throttled_s(THROTTLE_MS_MAX + 1) == THROTTLE_MS_MAX / 1_000
