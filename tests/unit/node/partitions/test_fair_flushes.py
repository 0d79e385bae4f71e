"""Flushes take turns: a connection that wrote to many partitions does not hold up one that wrote
to one."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from quiverlog.node.partitions.flushing import FlushQueue
from quiverlog.node.runtime.events import Shutdown
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of

BATCH = bytes(batch_of([1]))


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path, flushes_in_flight_max=1)


def produce_to(
    node: NodeDriver, topic: bytes, partitions: range | list[int], connection: int
) -> int:
    entries = [m.ProducePartition(topic, p, -1, len(BATCH)) for p in partitions]
    request = m.ProduceRequest(partitions=entries, timeout_ms=60_000)
    return node.request(request, BATCH * len(entries), connection=connection)


def flushes_until(node: NodeDriver, correlation: int) -> int:
    count = 0
    while node.answer(correlation) is None:
        assert 1 <= len(node.syncs) <= node.node.broker.config.flushes_in_flight_max
        node.flush(only=0)
        count += 1
    return count


def write_once(node: NodeDriver, topic: bytes, partitions: int) -> None:
    """So that their next flush is one fsync each."""
    flushes_until(node, produce_to(node, topic, range(partitions), connection=2))


def test_a_produce_to_many_partitions_does_not_delay_that_of_another(node: NodeDriver) -> None:
    wide, narrow = node.create("wide", partitions=50), node.create("narrow")
    large = produce_to(node, wide, range(50), connection=1)
    small = produce_to(node, narrow, [0], connection=2)
    # The one under way, at most one more of the other connection, its own.
    assert flushes_until(node, small) <= 3
    assert flushes_until(node, large) <= 49


def test_a_partition_that_two_wait_for_comes_at_the_turn_of_the_first(node: NodeDriver) -> None:
    wide = node.create("wide", partitions=50)
    large = produce_to(node, wide, range(50), connection=1)
    produce_to(node, wide, [49], connection=2)
    for _ in range(3):
        node.flush()
    # Readers see its rows; the answer leaves after the earlier one about the same partition.
    assert node.node.broker.replicas[wide, 49].state.high_watermark == 2
    assert flushes_until(node, large) == 47, "it is not flushed a second time"
    assert node.node.broker.flushes.idle


def test_a_flush_without_waiting_callers_comes_last_but_comes(node: NodeDriver) -> None:
    lazy, wide = node.create("lazy", durability="memory"), node.create("wide", partitions=40)
    node.produced(lazy, BATCH)
    produce_to(node, wide, [0], connection=1)
    node.set_clock(node.mono_us + 40_000_000)  # The background's flush is due.
    large = produce_to(node, wide, range(1, 40), connection=1)
    replica = node.node.broker.replicas[lazy, 0]
    before = 0
    while replica.log.flushed_offset == 0:
        assert node.syncs
        node.flush()
        before += 1
    assert 10 <= before <= 20, "after others, and before all of them"
    flushes_until(node, large)


def test_a_deleted_topic_leaves_the_queue(node: NodeDriver) -> None:
    wide, narrow = node.create("wide", partitions=10), node.create("narrow")
    large = produce_to(node, wide, range(10), connection=1)
    small = produce_to(node, narrow, [0], connection=2)
    node.call(m.DeleteTopicsRequest(names=["wide"]))
    assert node.answer(large) is not None
    assert flushes_until(node, small) <= 2
    assert node.node.broker.flushes.idle


def test_the_last_place_is_kept_for_connections_without_one(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, flushes_in_flight_max=3)
    wide, narrow = node.create("wide", partitions=50), node.create("narrow")
    write_once(node, wide, 50)
    large = produce_to(node, wide, range(50), connection=1)
    assert len(node.syncs) == 2, "one asker has no more, although a third may be under way"
    small = produce_to(node, narrow, [0], connection=2)
    assert len(node.syncs) == 3
    node.flush(only=2)
    assert node.answer(small) is not None, "it waited for no other's flush"
    assert node.answer(large) is None
    for _ in range(50):
        if node.answer(large) is None:
            assert len(node.syncs) <= 2
            node.flush()
    assert node.answer(large) is not None
    assert node.node.broker.flushes.idle


def test_the_first_flush_of_a_log_is_the_only_one_of_its_asker(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, flushes_in_flight_max=4)
    wide, narrow = node.create("wide", partitions=20), node.create("narrow", partitions=2)
    large = produce_to(node, wide, range(20), connection=1)
    assert len(node.syncs) == 1, "each is several fsyncs"
    small = produce_to(node, narrow, [0], connection=2)
    assert len(node.syncs) == 2, "another asker has one, too"
    node.flush(only=1)
    assert node.answer(small) is not None
    small = produce_to(node, narrow, [0], connection=2)
    produce_to(node, narrow, [1], connection=2)
    assert len(node.syncs) == 3
    while node.answer(large) is None:
        assert sum(flush.job.key.count("wide-") for flush in node.syncs) <= 1
        node.flush()
    assert node.answer(small) is not None
    assert node.node.broker.flushes.idle


def test_a_connection_alone_may_have_two_first_flushes(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, flushes_in_flight_max=4)
    wide, other = node.create("wide", partitions=200), node.create("other")
    for first in range(0, 200, 50):
        produce_to(node, wide, range(first, first + 50), connection=1)
    most = 0
    for _ in range(100):
        node.flush(only=0)
        most = max(most, len(node.syncs))
    assert most == 2
    produce_to(node, other, [0], connection=2)
    for _ in range(3):  # The two under way and the other's.
        node.flush(only=0)
    assert len(node.syncs) == 1, "another connection is there again"


def test_a_stop_has_all_places_for_first_flushes(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, flushes_in_flight_max=4)
    lazy = node.create("lazy", partitions=50, durability="memory")
    produce_to(node, lazy, range(50), connection=1)
    assert not node.syncs
    node.send(Shutdown())
    node.flush(only=0)
    assert len(node.syncs) == 4


def test_flushes_without_waiting_callers_leave_a_place_too(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, flushes_in_flight_max=2)
    lazy = node.create("lazy", partitions=5, durability="memory")
    narrow = node.create("narrow")
    produce_to(node, lazy, range(5), connection=1)
    node.set_clock(node.mono_us + 40_000_000)
    first = produce_to(node, narrow, [0], connection=2)
    assert len(node.syncs) == 2
    node.flush(only=0)
    assert node.answer(first) is not None
    assert len(node.syncs) == 1, "one of five, although there is a place"
    second = produce_to(node, narrow, [0], connection=2)
    node.flush(only=1)
    assert node.answer(second) is not None


def test_a_bug_while_a_flush_begins_takes_no_place_from_the_others(node: NodeDriver) -> None:
    """The only place is free again: another log is flushed and answered."""
    first, second = node.create("first"), node.create("second")
    broken = node.node.broker.replicas[first, 0]
    bug = AssertionError("a bug of ours")
    with mock.patch.object(
        FlushQueue, "takes_long", side_effect=bug
    ):  # Behind the log, before the job: the log is not marked as being flushed.
        produce_to(node, first, [0], connection=1)
    assert not broken.flush_running
    assert not node.syncs
    small = produce_to(node, second, [0], connection=2)
    assert flushes_until(node, small) <= 2
