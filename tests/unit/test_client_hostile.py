"""Brokers that answer wrongly: the client raises its own errors, in time, and never spins.

Every answer is a real one that was changed (`tests.support.mutations`); the client may still
succeed, for not every change can be noticed or matters. What it may not do: raise anything but a
QuiverlogError, exceed its timeout, ask without a pause, hand out a row twice or leave one out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

import quiverlog
from quiverlog.client.fetcher import PartitionFetcher
from quiverlog.types import EARLIEST, LATEST, TopicPartition
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.mutations import Mutator
from tests.support.scripted_broker import Answer, ScriptedBroker

TOPIC, SINK = "attacked", "written"
REQUEST_TIMEOUT_S = 0.5
SLACK_S = 5.0
"""Beyond the timeout: a loaded machine, and the rounds in which a consumer looks at its clock."""
REQUESTS_MAX = 80
ROWS = 45


@pytest.fixture(scope="module")
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic(TOPIC, SCHEMA, partitions=2)
            for codec in ("none", "zstd", "lz4"):
                with client.producer(TOPIC, batch_rows=5, compression=codec) as producer:
                    for partition in (0, 1):
                        producer.send(rows(15), partition=partition)
            client.create_topic(SINK, SCHEMA, partitions=2)
        yield broker


def consume(client: Any, **options: Any) -> None:
    """Read all rows; the offsets of each partition must follow one another."""
    following = consume_some(client, **options)
    assert set(following.values()) == {ROWS}, "ended early without an error"


def consume_some(client: Any, **options: Any) -> dict[int, int]:
    """Read up to an end that the broker may have lied about."""
    following = {0: 0, 1: 0}
    for batch in client.consumer(TOPIC, **options):
        assert batch.base_offset == following[batch.partition], "a row twice, or none"
        following[batch.partition] = batch.next_offset
    return following


def poll(client: Any) -> None:
    with client.consumer(TOPIC, follow=True) as consumer:
        for _ in range(3):
            consumer.poll(timeout=0.1)


def produce(client: Any) -> None:
    with client.producer(SINK, batch_rows=3, delivery_timeout=REQUEST_TIMEOUT_S) as producer:
        for partition in (0, 1):
            producer.send(rows(7), partition=partition)


def fetch_range(client: Any) -> None:
    if isinstance(client, quiverlog.Client):
        with PartitionFetcher(client, TOPIC, 0, 3, 37) as fetcher:
            at = 3
            for batch in fetcher:
                assert batch.base_offset == at
                at = batch.next_offset
            assert at == 37


def describe_all(client: Any) -> None:
    client.describe_topics()


T0, T1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
ACTIONS: list[tuple[type[m.Request], Callable[[Any], object]]] = [
    (m.HelloRequest, lambda c: c.list_topics()),
    (m.MetadataRequest, lambda c: c.metadata()),
    (m.MetadataRequest, lambda c: c.metadata([TOPIC, "nope"])),
    (m.MetadataRequest, consume),
    (m.MetadataRequest, produce),
    (m.ProduceRequest, produce),
    (m.FetchRequest, consume),
    (m.FetchRequest, lambda c: consume(c, columns=["id"])),
    (m.FetchRequest, poll),
    (m.FetchRequest, fetch_range),
    (m.FetchRequest, lambda c: c.raw_fetch(TOPIC, {0: 0, 1: 3})),
    (m.ListOffsetsRequest, lambda c: c.list_offsets(TOPIC)),
    (m.ListOffsetsRequest, lambda c: consume_some(c, start={0: 0, 1: 0})),
    (m.ListOffsetsRequest, lambda c: c.offsets_with_epochs({T0: LATEST, T1: EARLIEST})),
    (m.InitProducerIdRequest, produce),
    (m.CreateTopicsRequest, lambda c: c.create_topic("new", SCHEMA, validate_only=True)),
    (m.CreateTopicsRequest, lambda c: c.create_topic(TOPIC, SCHEMA, if_not_exists=True)),
    (m.DeleteTopicsRequest, lambda c: c.delete_topic("nope", if_exists=True)),
    (m.AlterTopicRequest, lambda c: c.alter_topic(TOPIC, config={"retention.ms": 10**9})),
    (m.DescribeTopicsRequest, describe_all),
    (m.DescribeTopicsRequest, lambda c: c.describe_topic(TOPIC)),
    (m.TopicSchemasRequest, lambda c: c.schemas(TOPIC)),
    (m.TopicSchemasRequest, consume),
    (m.TopicSchemasRequest, produce),
    (m.DeleteRecordsRequest, lambda c: c.delete_records(TOPIC, {0: 0})),
    (m.EpochEndOffsetsRequest, lambda c: c.epoch_end_offsets({T0: 0, T1: 0})),
    (m.DescribeRangesRequest, lambda c: c.describe_ranges({T0: (0, 20), T1: (3, 40)})),
]
assert {request for request, _ in ACTIONS} == set(m.Request.__subclasses__()), (
    "an API is not attacked"
)

NAMELESS = (m.HelloRequest, m.MetadataRequest, m.InitProducerIdRequest)
"""Requests about no topic, or about many."""


def attack(broker: ScriptedBroker, kind: str, which: int, seed: int) -> None:
    request, action = ACTIONS[which]
    mutator = Mutator(seed)
    raised: quiverlog.QuiverlogError | None = None
    connected = False
    first = len(broker.requests)
    broker.always(request, Answer(mutator))
    started = time.monotonic()
    try:
        client = connect(
            kind,
            broker.bootstrap,
            connect_timeout=REQUEST_TIMEOUT_S,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        with client:
            connected = True
            action(client)
    except quiverlog.QuiverlogError as error:
        raised = error if connected else None  # nobody has named a topic before
    finally:
        broker.heal()
    if raised is not None and request not in NAMELESS and action is not describe_all:
        names = (TOPIC, SINK, "new", "nope")
        assert raised.details.get("topic") in names, (raised, mutator.log)
        assert str(raised.details["topic"]) in str(raised)
    elapsed_s = time.monotonic() - started
    asked = len(broker.requests) - first
    assert elapsed_s < REQUEST_TIMEOUT_S * 2 + SLACK_S, (elapsed_s, mutator.log)
    assert asked < REQUESTS_MAX, (asked, mutator.log)


@pytest.mark.parametrize("which", range(len(ACTIONS)), ids=lambda i: ACTIONS[i][0].__name__[:-7])
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(min_value=0, max_value=2**32))
@example(seed=0)
def test_wrong_answers_end_in_our_own_errors(broker: ScriptedBroker, which: int, seed: int) -> None:
    attack(broker, CLIENT_KINDS[seed % len(CLIENT_KINDS)], which, seed)
