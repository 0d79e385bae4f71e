"""A leader that sends nothing and breaks no connection: clients go where the others send them.

So does a machine without power, a network that is cut, a process that is stopped. Two doors of one
broker play two brokers; the first one leads and becomes silent, then the second one leads. So it is
with the controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import quiverlog
from quiverlog.client.base.commands import FinishAny, Operation
from quiverlog.client.base.deadline import within
from quiverlog.client.cluster import routing
from quiverlog.client.consumer import fetches
from quiverlog.client.producer import sender
from quiverlog.client.tables import fetcher
from quiverlog.client.tables.fetcher import PartitionFetcher
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import Door, ScriptedBroker

TIMEOUT_S = 120.0
"""Of requests: a test ends before it."""
BOUND_S = 30.0


@pytest.fixture(autouse=True)
def _short_silence() -> Iterator[None]:
    with (
        mock.patch.object(sender, "SILENCE_US", 200_000),
        mock.patch.object(sender, "SILENCE_US", 200_000),
        mock.patch.object(routing, "_SILENCE_S_MAX", 0.3),
        mock.patch.object(fetches, "OVERDUE_S", 0.7),
        mock.patch.object(fetcher, "OVERDUE_S", 0.7),
        mock.patch.object(routing, "_SILENCE_S", 0.3),
    ):
        yield


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        broker.door(1)
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", SCHEMA)
            with client.producer("t") as producer:
                producer.send(rows(20))
        yield broker


def fall_silent(door: Door) -> None:
    for request in (
        m.ProduceRequest,
        m.FetchRequest,
        m.ListOffsetsRequest,
        m.MetadataRequest,
        m.HelloRequest,
    ):
        door.always(request, "hang")


def depose(broker: ScriptedBroker, request: type[m.Request]) -> None:
    """The first door sends nothing more; when it has been asked, the second one leads."""
    fall_silent(broker)

    def leader(_partition: int) -> int:
        return 1 if len(broker.seen(request)) > before else 0

    before = len(broker.seen(request))
    broker.leader_of = leader


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=TIMEOUT_S) as client:
        client.list_topics()
        yield client


def test_a_producer_sends_to_the_successor_and_stores_once(
    broker: ScriptedBroker, client: Any
) -> None:
    with client.producer("t") as producer:
        producer.send(rows(1))
        producer.flush(timeout=BOUND_S)
        depose(broker, m.ProduceRequest)
        producer.send(rows(3))
        producer.flush(timeout=BOUND_S)
    assert len(broker.doors[1].seen(m.ProduceRequest)) == 1
    broker.heal()
    with quiverlog.connect(broker.bootstrap) as other:
        assert sum(len(batch) for batch in other.consumer("t")) == 24


def test_a_producer_stays_with_a_silent_leader_that_still_leads(
    broker: ScriptedBroker, client: Any
) -> None:
    with client.producer("t") as producer:
        producer.send(rows(1))
        producer.flush(timeout=BOUND_S)
        asked = len(broker.doors[1].seen(m.MetadataRequest))
        broker.always(m.ProduceRequest, "hang")
        sent = producer.send(rows(3))
        with pytest.raises(quiverlog.RequestTimedOut):
            producer.flush(timeout=2.0)
        assert not sent.done()
        assert len(broker.seen(m.ProduceRequest)) == 3, "the set-up, one that is stored, one silent"
        looks = len(broker.doors[1].seen(m.MetadataRequest)) - asked
        assert 1 <= looks <= 2.0 / 0.2 + 1
        broker.heal()
        broker.drop_connections()
        producer.flush(timeout=BOUND_S)


def test_a_producer_without_a_leader_asks_for_one_at_growing_distances(
    broker: ScriptedBroker, client: Any
) -> None:
    with client.producer("t") as producer:
        broker.leader_of = lambda _partition: -1
        broker.fault(m.ProduceRequest, "drop")
        producer.send(rows(1))
        with pytest.raises(quiverlog.RequestTimedOut):
            producer.flush(timeout=0.1)
        before = sum(len(door.seen(m.MetadataRequest)) for door in broker.doors)
        with pytest.raises(quiverlog.RequestTimedOut):
            producer.flush(timeout=2.0)
        looks = sum(len(door.seen(m.MetadataRequest)) for door in broker.doors) - before
        assert 2 <= looks <= 50, "100 ms apart on average once they have grown, not 10"
        broker.leader_of = lambda _partition: 0
        producer.flush(timeout=BOUND_S)


def test_a_consumer_reads_from_the_successor(broker: ScriptedBroker, client: Any) -> None:
    found = 0
    with (
        quiverlog.connect(broker.bootstrap, request_timeout=TIMEOUT_S) as other,
        other.producer("t") as producer,
        client.consumer("t", follow=True) as consumer,
    ):
        while consumer.positions != {0: 20}:
            assert consumer.poll(timeout=BOUND_S) is not None
        fall_silent(broker)
        broker.leader_of = lambda _partition: 1
        # The fetch that is under way already is answered still; the next one is not.
        for wanted in (22, 24):
            producer.send(rows(2))
            producer.flush(timeout=BOUND_S)
            while consumer.positions != {0: wanted}:
                batch = consumer.poll(timeout=BOUND_S)
                assert batch is not None
                found += len(batch)
    assert broker.doors[1].seen(m.FetchRequest)
    assert found == 4


def test_one_range_is_read_from_the_successor(broker: ScriptedBroker) -> None:
    with quiverlog.connect(broker.bootstrap, request_timeout=TIMEOUT_S) as client:
        client.list_topics()
        depose(broker, m.FetchRequest)
        found = list(PartitionFetcher(client, "t", 0, 0, 20))
    assert sum(len(batch) for batch in found) == 20
    assert broker.doors[1].seen(m.FetchRequest)


def test_offsets_are_asked_of_the_successor(broker: ScriptedBroker, client: Any) -> None:
    """Spark plans its micro-batches with this question, with a wait for news."""
    client.metadata(["t"])
    depose(broker, m.ListOffsetsRequest)
    assert client.list_offsets("t", {0: "latest"}) == {0: 20}
    assert len(broker.doors[1].seen(m.ListOffsetsRequest)) == 1


def test_offsets_are_awaited_of_a_silent_leader_that_still_leads(broker: ScriptedBroker) -> None:
    """The question is sent once, and the others are asked who leads as long as it is open."""
    with quiverlog.connect(broker.bootstrap, request_timeout=2.0) as client:
        client.metadata(["t"])
        before = len(broker.doors[1].seen(m.MetadataRequest))
        broker.always(m.ListOffsetsRequest, "hang")
        with pytest.raises(quiverlog.RequestTimedOut):
            client.list_offsets("t", {0: "latest"})
    assert len(broker.seen(m.ListOffsetsRequest)) == 1
    assert 2 <= len(broker.doors[1].seen(m.MetadataRequest)) - before <= 2.0 / 0.3 + 1


# --- who decides ----------------------------------------------------------------------------------
def overthrow(broker: ScriptedBroker, request: type[m.Request]) -> None:
    """The first door answers no such request; when it has been asked, the second one decides."""
    broker.always(request, "hang")
    before = len(broker.seen(request))
    broker.decides = lambda: 1 if len(broker.seen(request)) > before else 0


def test_a_producer_is_opened_by_the_next_controller(broker: ScriptedBroker, client: Any) -> None:
    """Seen with containers: 30 s were given to a frozen controller, and then the producer up."""
    overthrow(broker, m.InitProducerIdRequest)
    with client.producer("t") as producer:
        producer.send(rows(3))
        producer.flush(timeout=BOUND_S)
        assert producer.buffered_bytes == 0
    assert len(broker.doors[1].seen(m.InitProducerIdRequest)) == 1


def test_a_topic_is_created_by_the_next_controller_once(
    broker: ScriptedBroker, client: Any
) -> None:
    """The silent one has created it before it fell silent: the next one reports it."""
    overthrow(broker, m.CreateTopicsRequest)
    assert client.create_topic("new", SCHEMA).name == "new"
    assert len(broker.doors[1].seen(m.CreateTopicsRequest)) == 1


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_silent_controller_that_still_decides_is_asked_once(
    broker: ScriptedBroker, kind: str
) -> None:
    """What it was asked may be under way: the others are asked who decides as long as it is."""
    with connect(kind, broker.bootstrap, request_timeout=2.0) as client:
        client.list_topics()
        asked = len(broker.seen(m.InitProducerIdRequest))
        looks = len(broker.doors[1].seen(m.MetadataRequest))
        for request in (m.InitProducerIdRequest, m.MetadataRequest):
            broker.always(request, "hang")
        with pytest.raises(quiverlog.RequestTimedOut):
            client.producer("t")
        assert len(broker.seen(m.InitProducerIdRequest)) - asked == 1
        found = len(broker.doors[1].seen(m.MetadataRequest)) - looks
        assert 2 <= found <= 2.0 / 0.3 + 2


def test_a_wait_for_answers_ends_with_its_operation() -> None:
    """A client that refreshed its metadata and waited on did so without a pause, until the request
    had its end."""
    now_s = 0.0

    def waits() -> Operation[None]:
        while (yield FinishAny((), 1.0)) is None:
            pass

    operation = within(lambda: now_s, 10.0, waits())
    command = next(operation)
    for _ in range(11):
        assert isinstance(command, FinishAny)
        if now_s == 10.0:
            break
        now_s += command.timeout_s
        command = operation.send(None)
    assert command.timeout_s == 0, "what has come is still taken"
    with pytest.raises(quiverlog.RequestTimedOut):
        operation.send(None)
