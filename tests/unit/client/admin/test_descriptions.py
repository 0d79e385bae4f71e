"""Descriptions of topics whose partitions are led by different brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from quiverlog.wire import messages as m
from tests.support.client_kinds import CLIENT_KINDS, connect
from tests.support.scripted_broker import Answer, Door, ScriptedBroker

LED_ELSEWHERE = 1


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def other(broker: ScriptedBroker) -> Door:
    return broker.door(7)


@pytest.fixture(params=CLIENT_KINDS)
def client(request: pytest.FixtureRequest, broker: ScriptedBroker, other: Door) -> Iterator[Any]:
    with connect(request.param, broker.bootstrap, request_timeout=30.0) as client:
        client.create_topic("t", pa.schema({"id": pa.int64()}), partitions=2)
        yield client


def led_by_seven(request: Any, response: Any, body: bytes) -> tuple[m.Response, bytes]:
    """What a broker reports of a partition that another one leads."""
    for topic in response.topics:
        one = topic.partitions[LED_ELSEWHERE]
        one.leader_id = 7
        one.log_start_offset = one.high_watermark = one.log_end_offset = one.flushed_offset = -1
    return response, body


def test_the_leader_is_asked_for_what_only_it_has(
    broker: ScriptedBroker, client: Any, other: Door
) -> None:
    broker.fault(m.DescribeTopicsRequest, Answer(led_by_seven))
    partitions = client.describe_topic("t").partitions
    assert [p.log_end_offset for p in partitions] == [0, 0]
    assert [type(r) for r in other.requests].count(m.DescribeTopicsRequest) == 1


def test_what_a_leader_does_not_report_stays_unknown(
    broker: ScriptedBroker, client: Any, other: Door
) -> None:
    broker.fault(m.DescribeTopicsRequest, Answer(led_by_seven))
    other.fault(m.DescribeTopicsRequest, "drop")
    detail = client.describe_topic("t")
    assert [p.log_end_offset for p in detail.partitions] == [0, -1]
    assert detail.partitions[LED_ELSEWHERE].leader == 7
    assert detail.rows == 0
