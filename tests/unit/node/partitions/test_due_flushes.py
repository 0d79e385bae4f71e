"""Flushes without waiting requests: of many logs they come spread over the time that they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.limits import UNFLUSHED_MS_MAX
from quiverlog.node.partitions.flushing import AT_ONCE
from quiverlog.wire import messages as m
from tests.sim.disk import SimDisk
from tests.support.node import NodeDriver, batch_of

MANY = 3 * AT_ONCE
STEP_MS = 100
BATCH = bytes(batch_of([1]))


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    disk = SimDisk()  # Thousands of fsyncs of a real one take long.
    return NodeDriver(tmp_path, lambda: disk)


def put_into_all(node: NodeDriver, topic: bytes, partitions: int) -> None:
    entries = [m.ProducePartition(topic, p, -1, len(BATCH)) for p in range(partitions)]
    asked = node.request(
        m.ProduceRequest(partitions=entries, timeout_ms=60_000), BATCH * partitions
    )
    node.run_until_idle()
    assert node.answer(asked) is not None


def flushed_in_steps(node: NodeDriver, steps: int) -> list[int]:
    """How many flushes each step brought."""
    counted = []
    for _ in range(steps):
        before = node.metrics.syncs_completed
        node.advance(STEP_MS)
        while node.syncs:
            node.flush()
        counted.append(node.metrics.syncs_completed - before)
    return counted


def test_the_first_flushes_of_many_new_logs_are_no_burst(node: NodeDriver) -> None:
    topic = node.create(partitions=MANY, durability="memory")
    put_into_all(node, topic, MANY)
    counted = flushed_in_steps(node, UNFLUSHED_MS_MAX // STEP_MS)
    assert sum(counted) == MANY, "each by its date"
    # The last hundred may wait for their date, as a hundred that are alone would.
    assert counted[-1] <= AT_ONCE
    assert max(counted[:-1]) <= 2 * MANY * STEP_MS / UNFLUSHED_MS_MAX
    assert all(r.log.flushed_offset == 1 for r in node.node.broker.replicas.values())


def test_few_logs_wait_for_their_date(node: NodeDriver) -> None:
    topic = node.create(partitions=10, durability="memory")
    put_into_all(node, topic, 10)
    counted = flushed_in_steps(node, UNFLUSHED_MS_MAX // STEP_MS)
    assert counted[-1] == 10
    assert not any(counted[:-1])


def test_while_rows_keep_coming_a_log_is_flushed_no_more_often(node: NodeDriver) -> None:
    topic = node.create(partitions=MANY, durability="memory")
    counted: list[int] = []
    for _ in range(12):  # Each 10 s, as many as have their rows by then
        put_into_all(node, topic, MANY)
        counted += flushed_in_steps(node, 10_000 // STEP_MS)
    assert max(counted) <= AT_ONCE
    assert sum(counted) <= 5 * MANY, "two minutes: once in 30 s, and once more"


def test_logs_without_rows_are_never_flushed(node: NodeDriver) -> None:
    node.create(partitions=MANY, durability="memory")
    assert node.node.broker.flushes.next_us() is None
    assert not any(flushed_in_steps(node, 2 * UNFLUSHED_MS_MAX // STEP_MS))
