"""The client against real broker processes: the suite of both clients, restarts and forks."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
from tests.support.blocking_scenarios import BlockingScenarios
from tests.support.broker import BrokerProcess
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, ClientScenarios, read, rows

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as broker:
        yield broker


@pytest.fixture
def address(broker: BrokerProcess) -> str:
    return str(broker.bootstrap)


class TestClient(ClientScenarios):
    pass


class TestBlockingClient(BlockingScenarios):
    pass


@pytest.mark.parametrize("kind", ["asyncio", pytest.param("blocking", marks=pytest.mark.long)])
def test_a_restart_under_a_producer_stores_every_row_once(kind: str) -> None:
    """Killed in the middle, twice: what was acknowledged is there once, in order."""
    topic = f"k-{uuid.uuid4().hex[:12]}"
    with BrokerProcess() as broker, connect(kind, broker.bootstrap) as client:
        client.create_topic(topic, SCHEMA)
        with client.producer(topic, batch_rows=20, linger=0.001) as producer:
            for round_ in range(3):
                for i in range(40):
                    producer.send(rows(20, first=800 * round_ + 20 * i))
                if round_ < 2:
                    broker.kill()
                    restart = threading.Thread(target=broker.start)
                    restart.start()
                    producer.flush()
                    restart.join()
        assert [row["id"] for row in read(client, topic)] == [*range(2_400)]


@pytest.mark.parametrize("kind", ["asyncio", pytest.param("blocking", marks=pytest.mark.long)])
def test_a_restart_under_a_follower_is_not_noticed(kind: str) -> None:
    topic = f"r-{uuid.uuid4().hex[:12]}"
    with BrokerProcess() as broker, connect(kind, broker.bootstrap) as client:
        client.create_topic(topic, SCHEMA)
        with client.producer(topic) as producer, client.consumer(topic, follow=True) as consumer:
            producer.send(rows(1)).result()
            assert consumer.poll(timeout=10).to_pylist() == rows(1)
            broker.stop()
            broker.start()
            producer.send(rows(1, first=1)).result()
            assert consumer.poll(timeout=20).to_pylist() == rows(1, first=1)


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_one_of_several_bootstrap_addresses_may_be_down(kind: str, address: str) -> None:
    with connect(kind, ["127.0.0.1:1", address]) as client:
        assert client.metadata().brokers


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_an_error(address: str) -> None:
    topic = f"p-{uuid.uuid4().hex[:12]}"
    with quiverlog.connect(address) as client:
        client.create_topic(topic, SCHEMA)
        with client.producer(topic) as producer:
            producer.send(rows(1)).result()
            child = os.fork()
            if child == 0:  # no assertion may leave the child: its exit code is the answer
                os._exit(_refusals(client, producer))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
            producer.send(rows(1, first=1))
        assert read(client, topic) == rows(2)


def _refusals(client: Any, producer: Any) -> int:
    count = 0
    for use in (client.list_topics, lambda: producer.send(rows(1))):
        try:
            use()
        except quiverlog.ForkedClient:
            count += 1
    return count
