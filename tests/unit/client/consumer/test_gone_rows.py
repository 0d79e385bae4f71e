"""Rows that were to be read and do not come: gone with a leader, late, or others' turn.

The broker has 20 rows. An earlier leader reported 30, which is played by a change of one answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import quiverlog
from quiverlog.client.consumer.positions import Position
from quiverlog.client.tables.fetcher import PartitionFetcher
from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.client_scenarios import SCHEMA, rows
from tests.support.scripted_broker import Answer, ScriptedBroker

TIMEOUT_S = 1.0
ENDED_AT, THERE = 30, 20


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        with quiverlog.connect(broker.bootstrap) as client:
            client.create_topic("t", SCHEMA)
            with client.producer("t", batch_rows=5) as producer:
                producer.send(rows(THERE))
        yield broker


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=TIMEOUT_S) as client:
        yield client


def longer_log(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
    for part in response.partitions:
        part.offset = ENDED_AT
    return response, body


def shown_before(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
    for part in response.partitions:
        part.high_watermark = ENDED_AT
    return response, body


def consumer_of_30(broker: ScriptedBroker, client: Any) -> Any:
    broker.fault(m.ListOffsetsRequest, Answer(longer_log))
    return client.consumer("t", start={0: 0})


def numbers_until(consumer: Any, error: type[quiverlog.QuiverlogError]) -> tuple[int, Any]:
    """Rows that came before the error."""
    found: list[int] = []
    with pytest.raises(error) as caught:
        found.extend(len(batch) for batch in consumer)
    return sum(found), caught.value


def test_rows_lost_with_a_leader_are_out_of_range(broker: ScriptedBroker, client: Any) -> None:
    """Seen with real brokers: InvalidResponse, which blamed the new leader."""
    consumer = consumer_of_30(broker, client)
    found, error = numbers_until(consumer, quiverlog.OffsetOutOfRange)
    assert found == THERE
    assert "t-0: the rows [20, 30) are not there any more" in error.message
    expected = {"offset": 20, "log_start_offset": 0, "high_watermark": 20}
    assert error.details == {"topic": "t", "partition": 0, **expected}
    assert len(broker.seen(m.ListOffsetsRequest)) == 3, "where it ends, then and now, and begins"


def test_a_leader_without_a_high_watermark_has_not_lost_rows(
    broker: ScriptedBroker, client: Any
) -> None:
    consumer = consumer_of_30(broker, client)
    broker.always(m.ListOffsetsRequest, quiverlog.OffsetNotAvailable("not yet."))
    found, error = numbers_until(consumer, quiverlog.OffsetNotAvailable)
    assert found == THERE
    assert "t-0" in error.message


def test_rows_that_are_shown_late_are_read(broker: ScriptedBroker, client: Any) -> None:
    """A new leader's high watermark is lower than the one before it, until it has caught up."""
    asked = len(broker.seen(m.ListOffsetsRequest)) + 1

    def late(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
        if len(broker.seen(m.ListOffsetsRequest)) > asked:
            return response, body
        for part in response.partitions:
            part.batch_bytes = part.high_watermark = 0
        return response, b""

    broker.always(m.FetchRequest, Answer(late))
    found = sum(len(batch) for batch in client.consumer("t", start={0: 0}))
    assert found == THERE
    assert len(broker.seen(m.ListOffsetsRequest)) == asked + 1


def test_a_consumer_that_follows_goes_on_with_later_rows(
    broker: ScriptedBroker, client: Any
) -> None:
    with client.consumer("t", follow=True) as consumer:
        broker.fault(m.FetchRequest, Answer(shown_before))
        while consumer.positions != {0: THERE}:
            assert consumer.poll(timeout=10) is not None
        asked = len(broker.seen(m.ListOffsetsRequest))
        assert consumer.poll(timeout=3 * TIMEOUT_S) is None
        assert len(broker.seen(m.ListOffsetsRequest)) == asked + 2, "its end and its start, once"
        with quiverlog.connect(broker.bootstrap) as other, other.producer("t") as producer:
            producer.send(rows(1)).result()
        assert len(consumer.poll(timeout=10)) == 1


@pytest.mark.parametrize("has_watermark", [True, False])
def test_one_range_that_is_gone(broker: ScriptedBroker, *, has_watermark: bool) -> None:
    found: list[int] = []
    expected: type[quiverlog.QuiverlogError] = quiverlog.OffsetOutOfRange
    if not has_watermark:
        expected = quiverlog.OffsetNotAvailable
        broker.always(m.ListOffsetsRequest, quiverlog.OffsetNotAvailable("not yet."))
    with (
        quiverlog.connect(broker.bootstrap, request_timeout=TIMEOUT_S) as client,
        PartitionFetcher(client, "t", 0, 0, ENDED_AT) as fetcher,
        pytest.raises(expected, match=r"t-0.*30"),
    ):
        found.extend(len(batch) for batch in fetcher)
    assert sum(found) == THERE


# --- others' turn ---------------------------------------------------------------------------------
def test_a_slow_program_reads_many_partitions(broker: ScriptedBroker, client: Any) -> None:
    """Each answer is filled by one partition: the last one's rows came after the timeout."""
    count = 6
    text = pa.schema({"text": pa.string()})
    with quiverlog.connect(broker.bootstrap) as other:
        other.create_topic("wide", text, partitions=count)
        with other.producer("wide", compression="none") as producer:
            for partition in range(count):
                big = pa.table({"text": ["x" * 10_000] * 100}, schema=text)
                producer.send(big, partition=partition)
    found = []
    for batch in client.consumer("wide", fetch_bytes=1 << 20):
        found.append(batch.partition)
        threading.Event().wait(1.5 * TIMEOUT_S / (count - 1))
    assert found == list(range(count))


def test_answers_that_came_far_apart_prove_little() -> None:
    """The program was away between them."""
    position = Position("t", (b"", 0), 0, 10, known_end=10)
    for now_s in (0.0, 100.0):
        position.check_stalled(10, now_s, timeout_s=1.0)
    with pytest.raises(quiverlog.InvalidResponse, match="t-0 returned no rows at offset 0"):
        position.check_stalled(10, 200.0, timeout_s=1.0)
    assert not position.may_be_gone
