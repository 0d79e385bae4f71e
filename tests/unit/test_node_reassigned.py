"""The image takes a partition away from this broker, or its leadership: what clients hear."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import NotLeader
from quiverlog.node.events import Tick
from tests.support.node import NodeDriver, batch_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def reconcile(node: NodeDriver, topic: bytes) -> None:
    """As when records have changed the image."""
    broker = node.node.broker
    broker.assignment.reconcile(broker.metadata.image, [topic], node.now)


def test_a_partition_that_goes_elsewhere_is_not_led_here(node: NodeDriver) -> None:
    """UNKNOWN_TOPIC_ID would tell the producer that its topic was deleted."""
    topic = node.create(partitions=2)
    counters = node.metrics.topics["t"]
    stored = node.produce(topic, batch_of([1]))
    node.node.broker.metadata.image.topics["t"].partitions[0].replicas = (7,)
    node.node.broker.metadata.image.topics["t"].partitions[0].leader_id = 7
    reconcile(node, topic)
    node.send(Tick())
    answer = node.answer(stored)
    assert answer is not None
    assert answer[0].partitions[0].error_code == NotLeader.code
    assert node.metrics.topics["t"] is counters, "the other partition counts on"


def test_no_long_poll_stays_with_a_replica_that_leads_no_more(node: NodeDriver) -> None:
    topic = node.create()
    replica = node.node.broker.replicas[topic, 0]
    polls = [
        node.request(node.fetch_request(topic, 0, max_wait_ms=60_000, min_bytes=1))
        for _ in range(3)
    ]
    assert len(replica.waiters) == 3
    node.node.broker.metadata.image.topics["t"].partitions[0].leader_id = 7
    reconcile(node, topic)
    node.send(Tick())
    for poll in polls:
        answer = node.answer(poll)
        assert answer is not None
        assert answer[0].partitions[0].error_code == NotLeader.code
    assert not replica.waiters
