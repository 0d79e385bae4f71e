"""A leader that fails holds up no partition of another leader, for both clients.

Two doors of one broker play two brokers: the first one leads partition 0, the second one
partition 1, and the second one fails after the consumer was opened.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import quiverlog
from quiverlog.client.base import waits
from quiverlog.client.consumer import fetches
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import ScriptedBroker

BOUND_S = 30.0
"""Of requests; what a loaded machine may take."""


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        broker.door(1)
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", SCHEMA, partitions=2)
        yield broker


@contextlib.contextmanager
def reading(kind: str, broker: ScriptedBroker, timeout_s: float = BOUND_S) -> Iterator[Any]:
    broker.leader_of = lambda partition: partition
    with (
        mock.patch.object(fetches, "SILENCE_S", 0.1),
        connect(kind, broker.bootstrap, request_timeout=timeout_s) as client,
        client.consumer("t", follow=True) as consumer,
    ):
        assert consumer.poll(timeout=0) is None
        yield consumer


def produce(broker: ScriptedBroker, partition: int) -> None:
    leader_of, broker.leader_of = broker.leader_of, lambda _partition: 0
    with quiverlog.connect(broker.bootstrap) as client, client.producer("t") as producer:
        producer.send(rows(1), partition=partition).result()
    broker.leader_of = leader_of


def refuse(broker: ScriptedBroker) -> None:
    broker.on_loop(broker.doors[1].close)


def lead_nothing(broker: ScriptedBroker) -> None:
    broker.leader_of = lambda partition: 0 if partition == 0 else -1
    broker.doors[1].drop_connections()


def fall_silent(broker: ScriptedBroker) -> None:
    broker.doors[1].always(m.HelloRequest, "hang")
    broker.doors[1].drop_connections()


def refuse_the_partition(broker: ScriptedBroker) -> None:
    broker.doors[1].always(m.FetchRequest, quiverlog.NotLeader("Another broker leads."))
    broker.doors[1].drop_connections()


FAILURES = pytest.mark.parametrize(
    "fail", [refuse, lead_nothing, fall_silent, refuse_the_partition]
)
KINDS = pytest.mark.parametrize("kind", CLIENT_KINDS)


def next_rows_are_of(consumer: Any, partition: int) -> None:
    batch = consumer.poll(timeout=BOUND_S)
    assert batch is not None
    assert batch.partition == partition


@KINDS
@FAILURES
def test_rows_of_the_other_leader_go_on(broker: ScriptedBroker, kind: str, fail: Any) -> None:
    with reading(kind, broker) as consumer:
        fail(broker)
        began_s = time.monotonic()
        for _ in range(5):
            produce(broker, 0)
            next_rows_are_of(consumer, 0)
        assert time.monotonic() - began_s < BOUND_S / 2, "none waits for the time-out"
        broker.leader_of = lambda _partition: 0
        produce(broker, 1)
        next_rows_are_of(consumer, 1)


@KINDS
@FAILURES
def test_without_rows_it_is_an_error_after_the_timeout(
    broker: ScriptedBroker, kind: str, fail: Any
) -> None:
    """The other leader answers all the time, but has no rows."""
    with reading(kind, broker, timeout_s=0.6) as consumer:
        fail(broker)
        began_s = time.monotonic()
        with pytest.raises(quiverlog.QuiverlogError, match="t-1") as caught:
            consumer.poll(timeout=BOUND_S)
        assert 0.6 <= time.monotonic() - began_s < BOUND_S
        assert caught.value.retriable


@KINDS
def test_a_partition_that_fails_for_long_is_one_warning(
    broker: ScriptedBroker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("quiverlog.waiting")
    with (
        mock.patch.object(logger, "disabled", False),  # A command before may have done that.
        mock.patch.object(waits, "LOG_AFTER_S", 0.2),
        caplog.at_level(logging.WARNING, logger.name),
        reading(kind, broker) as consumer,
    ):
        refuse(broker)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 0.6 or not caplog.records:
            assert time.monotonic() - began_s < BOUND_S
            produce(broker, 0)
            next_rows_are_of(consumer, 0)
    address = broker.doors[1].bootstrap
    text = f"t-1: Cannot connect to {address}: Connection refused: trying again."
    assert [record.message for record in caplog.records] == [text]
