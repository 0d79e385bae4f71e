"""Answers in pages that a broker never ends: refused, before time or memory is used up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import quiverlog
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import Answer, ScriptedBroker

TOPICS_PER_PAGE = 500


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=120.0) as client:
        client.create_topic("t", "raw")
        yield client


def endless(*, topics: int) -> Answer:
    """Page after page, with `topics` topics each."""
    numbers = itertools.count()

    def page(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        sample = m.TopicMetadata("t", bytes(16), partitions=[m.PartitionMetadata(0, 0, 0, 0)])
        names = [f"a{next(numbers):09}" for _ in range(topics)]
        response.topics = [msgspec.structs.replace(sample, name=name) for name in names]
        response.next_name = f"a{next(numbers):09}"
        return response, body

    return Answer(page)


@pytest.mark.parametrize("topics", [0, TOPICS_PER_PAGE])
def test_pages_of_topics(broker: ScriptedBroker, client: Any, topics: int) -> None:
    broker.always(m.MetadataRequest, endless(topics=topics))
    with pytest.raises(quiverlog.InvalidResponse, match="page"):
        client.list_topics()
    assert len(broker.seen(m.MetadataRequest)) < 50


def test_pages_of_topics_while_a_consumer_reads(broker: ScriptedBroker, client: Any) -> None:
    """The iteration asked for page after page, without a pause, and saw no `close`."""
    with client.consumer("t", follow=True) as consumer:
        assert consumer.poll(timeout=0) is None
        broker.always(m.MetadataRequest, endless(topics=0))
        client.cluster.invalidate_topics()
        with pytest.raises(quiverlog.InvalidResponse, match="page"):
            consumer.poll(timeout=20)


def test_pages_of_schemas(broker: ScriptedBroker, client: Any) -> None:
    stored = client.schemas("t").current.serialize().to_pybytes()

    def page(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        first = request.first_schema_id
        response.schemas = [m.SchemaVersion(i, 1, stored) for i in range(first, first + 100)]
        response.next_schema_id = first + 100
        return response, body

    broker.always(m.TopicSchemasRequest, Answer(page))
    with (
        connect("blocking", broker.bootstrap) as other,
        pytest.raises(quiverlog.InvalidResponse, match="no topic's history"),
    ):
        other.schemas("t")
    assert len(broker.seen(m.TopicSchemasRequest)) < 20


def test_a_later_epoch_than_the_one_asked_for(broker: ScriptedBroker, client: Any) -> None:
    """Spark walks back through a partition's epochs by these answers."""

    def later(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        response.partitions[0].epoch = request.partitions[0].epoch + 1
        return response, body

    asked = {quiverlog.TopicPartition("t", 0): 0}
    (end,) = client.epoch_end_offsets(asked).values()
    assert end.leader_epoch == 0
    broker.always(m.EpochEndOffsetsRequest, Answer(later))
    with pytest.raises(quiverlog.InvalidResponse, match="epoch 1 came for epoch 0"):
        client.epoch_end_offsets(asked)
