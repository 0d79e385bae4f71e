"""A topic that the metadata of one broker show, and that its leader has not applied yet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import quiverlog
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import Answer, ScriptedBroker


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=2.0) as client:
        yield client


def test_a_leader_that_has_not_applied_a_new_topic_is_asked_again(
    broker: ScriptedBroker, client: Any
) -> None:
    """Seen with real brokers: written at once after its creation, it was taken for deleted."""
    client.create_topic("t", SCHEMA)
    not_yet = quiverlog.UnknownTopicId("there is no such topic.")
    broker.fault(m.ProduceRequest, *[not_yet] * 5)
    with client.producer("t") as producer:
        producer.send(rows(3)).result()
    broker.fault(m.ListOffsetsRequest, *[not_yet] * 5)
    assert sum(len(batch) for batch in client.consumer("t")) == 3


def test_a_new_topic_is_not_taken_for_a_deleted_one_of_its_name(
    broker: ScriptedBroker, client: Any
) -> None:
    """Seen in a simulated cluster: the broker that was asked still knew the one before."""
    before = client.create_topic("t", SCHEMA).topic_id
    client.delete_topic("t")

    def as_before(_request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        response.topics[0].topic_id = before
        return response, body

    broker.fault(m.MetadataRequest, Answer(as_before), Answer(as_before))
    created = client.create_topic("t", SCHEMA)
    assert created.topic_id != before
    assert client.describe_topic("t").topic_id == created.topic_id


def test_a_leader_that_never_applies_a_topic_is_not_asked_for_ever(
    broker: ScriptedBroker, client: Any
) -> None:
    """While the controller has the topic, only the rows' own time ends it."""
    client.create_topic("t", SCHEMA)
    never = [quiverlog.UnknownTopicId("there is no such topic.")] * 5_000
    broker.fault(m.ProduceRequest, *never)
    producer = client.producer("t", delivery_timeout=0.5)
    with pytest.raises(quiverlog.DeliveryTimedOut, match="no such topic"):
        producer.send(rows(3)).result()
    with contextlib.suppress(quiverlog.QuiverlogError):
        producer.close()
    broker.fault(m.ListOffsetsRequest, *never)
    # On a busy machine the time may end within a request, which names this as what came before.
    ends = (quiverlog.NotLeader, quiverlog.RequestTimedOut)
    with pytest.raises(ends, match="has not applied this topic"):
        client.list_offsets("t")


def test_a_producer_of_a_deleted_topic_ends_on_the_controllers_answer(
    broker: ScriptedBroker, client: Any
) -> None:
    client.create_topic("t", SCHEMA)
    with client.producer("t") as producer:
        producer.send(rows(1)).result()
        client.delete_topic("t")
        with pytest.raises(quiverlog.UnknownTopicId, match="gone"):
            producer.send(rows(1)).result()


def test_a_topic_that_its_own_broker_does_not_show_yet_is_created_all_the_same(
    broker: ScriptedBroker, client: Any
) -> None:
    """The answer was lost, and the broker that is asked whose topic it is applies it later: that is
    no UNKNOWN_TOPIC of a topic that was asked for. Seen with real brokers under faults."""
    broker.fault(m.CreateTopicsRequest, "drop_reply")
    unknown = quiverlog.UnknownTopic("there is no such topic.", topic="t")
    broker.fault(m.DescribeTopicsRequest, *[unknown] * 5)
    assert client.create_topic("t", SCHEMA).name == "t"


@pytest.mark.parametrize("exists", [False, True])
def test_a_client_that_may_create_a_topic_alone_is_not_refused_for_what_it_may_not_see(
    broker: ScriptedBroker, client: Any, exists: bool
) -> None:
    unknown = quiverlog.UnknownTopic("there is no such topic.", topic="t")

    def hidden(_request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        for one in response.topics:
            one.error_code, one.topic_id, one.partitions = unknown.code, b"", []
        return response, body

    if exists:
        client.create_topic("t", SCHEMA)
    broker.fault(m.MetadataRequest, *[Answer(hidden)] * 50)
    assert client.create_topic("t", SCHEMA, if_not_exists=exists) is None
