"""A stop while partitions are being created: it ends, and the next start has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.node.runtime.events import Shutdown
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of

PARTITIONS = 40
"""More than are opened in a tick."""


@pytest.mark.parametrize("steps", range(5))
def test_a_stop_ends_while_partitions_are_being_created(tmp_path: Path, steps: int) -> None:
    """Before their directories are made, before they are decided, before all are open."""
    node = NodeDriver(tmp_path)
    node.create("grows")
    node.hold_jobs = True
    asked = [
        node.request(
            m.CreateTopicsRequest(topics=[m.NewTopic("t", serialize_schema(SCHEMA), PARTITIONS)])
        ),
        node.request(m.AlterTopicRequest(name="grows", partitions=PARTITIONS)),
    ]
    for _ in range(steps):
        node.step()
    node.hold_jobs = False
    node.send(Shutdown())
    assert node.shut_down
    assert all(node.answer(one) is not None for one in asked)
    node.start()
    assert node.metrics.unclean_starts == 0
    broker = node.node.broker
    topics = broker.metadata.image.topics
    assert len(broker.replicas) == sum(len(topic.partitions) for topic in topics.values())
    for topic in topics.values():
        node.produced(topic.topic_id, batch_of([1]), partition=len(topic.partitions) - 1)
    assert node.metrics.internal_errors == 0
