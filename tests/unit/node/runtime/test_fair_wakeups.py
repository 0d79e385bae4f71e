"""Long polls of many partitions: what one produce makes of them is counted, and bounded."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.limits import PARKED_ENTRY_BYTES
from quiverlog.node.apis import fetch, offsets
from quiverlog.node.apis.fetch import FetchWaiter
from quiverlog.node.apis.offsets import OffsetsWaiter
from quiverlog.node.runtime import purgatory as runtime_purgatory
from quiverlog.node.runtime.events import RequestReceived, Tick
from quiverlog.node.runtime.purgatory import WAKES_PER_CALL, Wakeups
from quiverlog.node.runtime.tasks import STEPS_PER_CALL
from quiverlog.types import LATEST, Now
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of

PARTITIONS = 40
FOREVER = 300_000


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path, flushes_in_flight_max=PARTITIONS)


def wide_fetch(topic: bytes, count: int = PARTITIONS, **options: Any) -> m.FetchRequest:
    entries = [m.FetchPartition(topic_id=topic, partition=p, offset=0) for p in range(count)]
    return m.FetchRequest(partitions=entries, **{"max_wait_ms": FOREVER, **options})


def produce_to_all(node: NodeDriver, topic: bytes, count: int = PARTITIONS) -> None:
    """One request, rows that are readable at once."""
    batch = bytes(batch_of([1]))
    entries = [m.ProducePartition(topic, p, -1, len(batch)) for p in range(count)]
    node.call(m.ProduceRequest(partitions=entries), batch * count)


class Counted:
    """A stand-in that counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            self.calls += 1
            return original(*args, **named)

        monkeypatch.setattr(owner, name, counted)


def test_a_fetch_is_woken_once_by_a_produce_to_all_of_its_partitions(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    for _ in range(5):
        node.request(wide_fetch(topic, min_bytes=2**30))
    woken = Counted(monkeypatch, FetchWaiter, "wake")
    looked = Counted(monkeypatch, fetch, "read_entry")
    produce_to_all(node, topic)
    assert woken.calls == 5
    assert looked.calls == 5 * PARTITIONS


@pytest.mark.parametrize("min_bytes", [1, 2**30])
def test_a_woken_fetch_looks_only_where_something_moved(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch, min_bytes: int
) -> None:
    """Also one that wants any rows, and finds none in what moved."""
    topic = node.create(partitions=PARTITIONS, durability="memory")
    waiting = node.request(wide_fetch(topic, min_bytes=min_bytes))
    replica = node.node.broker.replicas[topic, 3]
    looked = Counted(monkeypatch, fetch, "read_entry")
    node.node.broker.wakeups.changed(replica)
    node.run_until_idle()
    assert looked.calls == 1
    assert node.answer(waiting) is None


def test_looks_at_partitions_are_bounded_in_a_call(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    readers = 3 * WAKES_PER_CALL // PARTITIONS
    waiting = [node.request(wide_fetch(topic, min_bytes=2**30)) for _ in range(readers)]
    looked = Counted(monkeypatch, fetch, "read_entry")
    for partition in range(PARTITIONS):
        node.node.broker.wakeups.changed(node.node.broker.replicas[topic, partition])
    calls = 0
    while node.node.next_deadline_us() == 0:
        before = looked.calls
        node.step()
        calls += 1
        assert looked.calls - before <= WAKES_PER_CALL + PARTITIONS
    assert looked.calls == readers * PARTITIONS
    assert calls >= 3
    assert all(node.answer(one) is None for one in waiting)


def test_list_offsets_is_woken_once_as_well(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    entries = [
        m.ListOffsetsPartition(topic, p, at=LATEST, known_offset=0) for p in range(PARTITIONS)
    ]
    waiting = node.request(m.ListOffsetsRequest(partitions=entries, max_wait_ms=FOREVER))
    assert node.answer(waiting) is None
    woken = Counted(monkeypatch, OffsetsWaiter, "wake")
    produce_to_all(node, topic)
    assert woken.calls == 1
    assert node.answer(waiting) is not None


def test_a_list_offsets_of_many_partitions_takes_several_calls_and_misses_no_move(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_step = 1
    monkeypatch.setattr(offsets, "ENTRIES_PER_STEP", per_step)
    count = 2 * STEPS_PER_CALL + 6
    topic = node.create(partitions=count, durability="memory")
    entries = [m.ListOffsetsPartition(topic, p, at=LATEST, known_offset=0) for p in range(count)]
    request = m.ListOffsetsRequest(partitions=entries, max_wait_ms=FOREVER)
    looked = Counted(monkeypatch, offsets, "_fill_offset")
    correlation = node._number(request)
    node._perform(node.handle(RequestReceived(1, request, memoryview(b""))))
    assert 0 < looked.calls <= STEPS_PER_CALL * per_step
    batch = bytes(batch_of([1]))
    entry = m.ProducePartition(topic, 0, -1, len(batch))
    node.call(m.ProduceRequest(partitions=[entry]), batch)
    answer = node.answer(correlation)
    assert answer is not None, "the partition that it had looked at first moved meanwhile"
    assert answer[0].partitions[0].offset == 1


def test_a_bounded_range_ends_when_its_last_partition_is_readable(node: NodeDriver) -> None:
    topic = node.create(partitions=2, durability="memory")
    entries = [
        m.FetchPartition(topic_id=topic, partition=p, offset=0, end_offset=1) for p in (0, 1)
    ]
    request = m.FetchRequest(partitions=entries, min_bytes=2**30, max_wait_ms=FOREVER)
    waiting = node.request(request)
    node.produced(topic, bytes(batch_of([1])), partition=1)
    assert node.answer(waiting) is None
    node.produced(topic, bytes(batch_of([1])), partition=0)
    answer = node.answer(waiting)
    assert answer is not None
    assert [result.high_watermark for result in answer[0].partitions] == [1, 1]


def test_entries_of_parked_requests_are_bounded(tmp_path: Path) -> None:
    """By connection, by client id and in all; what is over is answered at once."""
    node = NodeDriver(tmp_path, parked_entries_max=40)
    topic = node.create(partitions=10)
    first = [node.request(wide_fetch(topic, 10)) for _ in range(3)]
    assert [node.answer(one) is None for one in first] == [True, True, False]
    other = [node.request(wide_fetch(topic, 10), connection=2) for _ in range(2)]
    assert [node.answer(one) is None for one in other] == [True, False]
    same_client = m.HelloRequest(client_id="test-1")
    node.call(same_client, connection=3)
    third = node.request(wide_fetch(topic, 1), connection=3)
    assert node.answer(third) is not None, "its client has taken its part on another connection"
    purgatory = node.node.broker.purgatory
    assert purgatory.parked_entries == 30
    assert node.metrics.parked_entries == 30
    assert node.node.held_bytes == 30 * PARKED_ENTRY_BYTES
    node.close_connection(1)
    node.close_connection(2)
    assert purgatory.parked_entries == 0
    assert not purgatory._entries
    assert not purgatory._polls


# --- fetches of many partitions -----------------------------------------------------------------
def test_a_fetch_of_many_partitions_is_looked_at_in_several_calls(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First as it arrives, then at its deadline."""
    topic = node.create(partitions=PARTITIONS, durability="memory")
    produce_to_all(node, topic)
    entries = [
        m.FetchPartition(topic_id=topic, partition=i % PARTITIONS, offset=0)
        for i in range(10 * PARTITIONS)
    ]
    request = m.FetchRequest(partitions=entries, max_wait_ms=1_000, min_bytes=2**30)
    per_call = STEPS_PER_CALL * fetch._READS_PER_COST + fetch.ENTRIES_PER_STEP
    looked = Counted(monkeypatch, fetch, "read_entry")

    def calls() -> int:
        number, before = 1, 0
        while True:
            assert looked.calls - before <= per_call
            if node.node.next_deadline_us() != 0:
                return number
            before = looked.calls
            node.step()
            number += 1

    correlation = node._number(request)
    node._perform(node.handle(RequestReceived(1, request, memoryview(b""))))
    assert calls() >= 3
    assert looked.calls == len(entries)
    assert node.answer(correlation) is None
    looked.calls = 0
    node.set_clock(node.mono_us + 1_000_000)
    node._perform(node.handle(Tick()))
    assert calls() >= 3
    answer = node.answer(correlation)
    assert answer is not None
    assert all(result.batch_bytes for result in answer[0].partitions)


def test_a_row_that_comes_while_many_partitions_are_looked_at_is_not_missed(
    node: NodeDriver,
) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    entries = [
        m.FetchPartition(topic_id=topic, partition=i % PARTITIONS, offset=0) for i in range(2_000)
    ]
    request = m.FetchRequest(partitions=entries, max_wait_ms=FOREVER)
    correlation = node._number(request)
    node._perform(node.handle(RequestReceived(1, request, memoryview(b""))))
    assert node.answer(correlation) is None
    batch = bytes(batch_of([1]))
    entry = m.ProducePartition(topic, 0, -1, len(batch))
    produce = m.ProduceRequest(partitions=[entry])
    node._number(produce)
    node._perform(node.handle(RequestReceived(2, produce, memoryview(bytearray(batch)))))
    node.run_until_idle()
    answer = node.answer(correlation)
    assert answer is not None
    assert len(answer[1]) >= len(batch)


def test_a_connection_that_goes_while_its_fetch_is_looked_at_leaves_nothing(
    node: NodeDriver,
) -> None:
    topic = node.create(partitions=PARTITIONS, durability="memory")
    entries = [
        m.FetchPartition(topic_id=topic, partition=i % PARTITIONS, offset=0) for i in range(2_000)
    ]
    request = m.FetchRequest(partitions=entries, max_wait_ms=FOREVER)
    node._number(request)
    node._perform(node.handle(RequestReceived(1, request, memoryview(b""))))
    assert node.node.next_deadline_us() == 0, "half way"
    node.close_connection(1)
    assert node.node.broker.purgatory.live == 0
    assert node.node.broker.tasks.live == 0
    assert not any(replica.waiters for replica in node.node.broker.replicas.values())


def test_a_fetch_of_many_partitions_over_the_bound_is_refused(tmp_path: Path) -> None:
    """Such a fetch could not be looked at in one piece, nor wait."""
    node = NodeDriver(tmp_path, parked_entries_max=100)
    topic = node.create(partitions=PARTITIONS)
    node.request(wide_fetch(topic))
    response, _ = node.call(wide_fetch(topic))
    assert response.error_code == errors.ThrottledBroker.code
    entries = [m.ListOffsetsPartition(topic, p, known_offset=0) for p in range(PARTITIONS)]
    response, _ = node.call(m.ListOffsetsRequest(partitions=entries, max_wait_ms=FOREVER))
    assert response.error_code == errors.ThrottledBroker.code


def test_decisions_committed_together_mark_waiting_metadata_requests_once(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of decisions times thousands of waiters would be gigabytes, and seconds."""
    monkeypatch.setattr(runtime_purgatory, "WAKES_PER_CALL", 2)
    topic = node.create()
    version = node.node.broker.metadata.image.version
    entries = [m.ListOffsetsPartition(topic, 0, at=LATEST, known_offset=0)]
    poll = m.ListOffsetsRequest(max_wait_ms=60_000, metadata_version=version, partitions=entries)
    waiting = [node.request(copy.copy(poll)) for _ in range(20)]
    node.hold_jobs = True
    altered = []
    for retention_ms in range(10_000, 10_010):
        configs = {"retention.ms": str(retention_ms)}
        altered.append(node.request(m.AlterTopicRequest(name="t", set_configs=configs)))
        while node.node.next_deadline_us() == 0:
            node.step()
    marks: list[int] = []
    run = Wakeups.run

    def counted(self: Wakeups, now: Now) -> None:
        marks.append(len(self._round))
        run(self, now)
        marks.append(len(self._round))

    monkeypatch.setattr(Wakeups, "run", counted)
    node.node._list_turns()
    node.hold_jobs = False
    node.run_until_idle()
    assert all(node.answer(one) is not None for one in (*waiting, *altered))
    assert max(marks) <= len(waiting)
