"""A produce of many entries: a few of them in a call of the node, everything else as ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from quiverlog import errors
from quiverlog.node.apis.produce import ENTRIES_INLINE_MAX, ENTRIES_PER_STEP, PART_COST
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import RequestReceived, Tick
from quiverlog.node.runtime.tasks import STEPS_PER_CALL
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of

PARTITIONS = 40
WIDE = ENTRIES_INLINE_MAX + 3
LONG = 12 * STEPS_PER_CALL * ENTRIES_PER_STEP


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path, flushes_in_flight_max=PARTITIONS)


def wide(
    topic: bytes, count: int = WIDE, partitions: int = PARTITIONS, **options: Any
) -> tuple[m.ProduceRequest, bytes]:
    bodies = [bytes(batch_of([number])) for number in range(count)]
    entries = [
        m.ProducePartition(topic, number % partitions, -1, len(body))
        for number, body in enumerate(bodies)
    ]
    return m.ProduceRequest(partitions=entries, **options), b"".join(bodies)


def begin(node: NodeDriver, request: m.Request, body: bytes, connection: int = 1) -> int:
    """Make the call that brings it, and no other."""
    node._number(request)
    event = RequestReceived(connection, request, memoryview(bytearray(body)))
    node._perform(node.handle(event))
    return request.correlation_id


def finish(node: NodeDriver) -> None:
    node.run_until_idle()
    while node.syncs:
        node.flush()


def rows(node: NodeDriver, topic: bytes) -> int:
    return sum(node.broker_end(topic, partition) for partition in range(PARTITIONS))


@pytest.mark.parametrize("durability", ["memory", "flushed"])
@pytest.mark.parametrize("count", [ENTRIES_INLINE_MAX + 1, WIDE, LONG])
def test_every_entry_is_stored_and_answered(node: NodeDriver, durability: str, count: int) -> None:
    topic = node.create(partitions=PARTITIONS, durability=durability)
    correlation = node.request(*wide(topic, count))
    finish(node)
    answer = node.answer(correlation)
    assert answer is not None
    results = answer[0].partitions
    assert [(r.partition, r.base_offset, r.error_code) for r in results] == [
        (number % PARTITIONS, number // PARTITIONS, 0) for number in range(count)
    ]
    node.crash()
    assert rows(node, topic) == count


def test_a_call_of_the_node_appends_a_few(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    most, admitted = 0, 0
    original = Replica.admit

    def admit(*arguments: Any) -> int:
        nonlocal admitted
        admitted += 1
        return original(*arguments)

    with mock.patch.object(Replica, "admit", admit):
        correlation = begin(node, *wide(topic, LONG))
        while node.answer(correlation) is None:
            most = max(most, admitted)
            admitted = 0
            node.step()
    assert 0 < most <= STEPS_PER_CALL // PART_COST * ENTRIES_PER_STEP
    assert rows(node, topic) == LONG


def test_others_are_served_while_it_is_taken(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    free = node.create("free", durability="memory")
    correlation = begin(node, *wide(topic, LONG))
    while not rows(node, topic):
        node.step()
    other = begin(node, *wide(topic, 1), connection=2)
    assert node.answer(other) is None, "partition 0 has rows whose answer must come first"
    single = m.ProducePartition(free, 0, -1, len(batch_of([1])))
    quick = begin(node, m.ProduceRequest(partitions=[single]), bytes(batch_of([1])), connection=2)
    assert node.answer(quick) is not None
    finish(node)
    numbers = [response.correlation_id for response in node.responses]
    assert numbers.index(quick) < numbers.index(correlation) < numbers.index(other)


def test_later_produces_of_the_connection_come_behind_it(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    first = begin(node, *wide(topic, LONG))
    later = [begin(node, *wide(topic, count)) for count in (1, WIDE, 2)]
    finish(node)
    numbers = [response.correlation_id for response in node.responses]
    order = [numbers.index(correlation) for correlation in (first, *later)]
    assert order == sorted(order)
    answer = node.answer(later[0])
    assert answer is not None
    assert answer[0].partitions[0].base_offset == -(-LONG // PARTITIONS)


def test_entries_fail_on_their_own(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS)
    request, body = wide(topic)
    request.partitions[0].topic_id = b"?" * 16
    request.partitions[20].partition = PARTITIONS
    request.partitions[-1].leader_epoch = 7
    broken = bytearray(body)
    broken[request.partitions[0].batch_bytes * 30 + 100] ^= 1
    correlation = node.request(request, bytes(broken))
    finish(node)
    answer = node.answer(correlation)
    assert answer is not None
    found = {i: r.error_code for i, r in enumerate(answer[0].partitions) if r.error_code}
    assert found == {
        0: errors.UnknownTopicId.code,
        20: errors.UnknownPartition.code,
        30: errors.CorruptBatch.code,
        WIDE - 1: errors.UnknownLeaderEpoch.code,
    }
    assert rows(node, topic) == WIDE - 4


def test_entries_that_all_fail_are_answered(node: NodeDriver) -> None:
    request, body = wide(b"?" * 16)
    correlation = node.request(request, body)
    answer = node.answer(correlation)
    assert answer is not None
    assert {r.error_code for r in answer[0].partitions} == {errors.UnknownTopicId.code}
    assert node.node.broker.purgatory.live == 0


def test_a_wrong_sum_of_bytes_stores_nothing(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS)
    request, body = wide(topic)
    response, _ = node.call(request, body + b"x")
    assert response.error_code == errors.InvalidRequest.code
    assert rows(node, topic) == 0


def test_its_deadline_ends_it_half_way(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    request, body = wide(topic, LONG, timeout_ms=10)
    correlation = begin(node, request, body)
    while not rows(node, topic):
        node.step()
    stored = rows(node, topic)
    node.set_clock(node.mono_us + 11_000)
    node._perform(node.handle(Tick()))
    answer = node.answer(correlation)
    assert answer is not None
    codes = [result.error_code for result in answer[0].partitions]
    assert codes[-1] == errors.RequestTimedOut.code
    assert len(codes) == LONG
    finish(node)
    assert stored <= rows(node, topic) < LONG
    assert node.produced(topic, bytes(batch_of([1]))).error_code == 0
    assert node.node.broker.tasks.live == 0


def test_a_disk_that_fills_half_way_refuses_the_rest(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    correlation = begin(node, *wide(topic, LONG))
    while not rows(node, topic):
        node.step()
    node.node.broker.admission.disk_filled()
    stored = rows(node, topic)
    finish(node)
    answer = node.answer(correlation)
    assert answer is not None
    codes = [result.error_code for result in answer[0].partitions]
    assert codes == [0] * stored + [errors.DiskFull.code] * (LONG - stored)
    assert rows(node, topic) == stored


def test_a_bug_half_way_is_answered_once(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS)
    original = Replica.admit
    calls = 0

    def admit(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise RuntimeError("planted")
        return original(*arguments)

    with mock.patch.object(Replica, "admit", admit):
        correlation = node.request(*wide(topic))
        finish(node)
    answer = node.answer(correlation)
    assert answer is not None
    codes = [result.error_code for result in answer[0].partitions]
    assert codes == [0] * 19 + [errors.QuiverlogError.code] + [0] * (WIDE - 20)
    assert node.produced(topic, bytes(batch_of([1]))).error_code == 0


def test_a_stop_waits_for_it(node: NodeDriver) -> None:
    topic = node.create(partitions=PARTITIONS)
    correlation = begin(node, *wide(topic, LONG))
    node.stop()
    answer = node.answer(correlation)
    assert answer is not None
    assert {result.error_code for result in answer[0].partitions} == {0}
    node.start()
    assert rows(node, topic) == LONG
