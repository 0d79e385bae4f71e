"""One request must not take the broker from the others: work is counted, per call of the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.node.apis import describe
from quiverlog.node.runtime import tasks
from quiverlog.node.runtime.events import ConnectionClosed, Event, RequestReceived, Tick
from quiverlog.node.runtime.tasks import STEPS_PER_CALL
from quiverlog.storage.log.reader import LogReader
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


class Counted:
    """A stand-in that counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.calls = 0
        original = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            self.calls += 1
            return original(*args, **named)

        monkeypatch.setattr(owner, name, counted)


def calls_of(node: NodeDriver, request: m.Request) -> Iterator[int]:
    """Send a request; one value for each call of the node until nothing is left to do."""
    node._number(request)
    node._perform(node.handle(RequestReceived(1, request, memoryview(b""))))
    yield 1
    while node.jobs or node.node.next_deadline_us() == 0:
        node.step()
        yield 1


def test_a_repeated_name_is_described_once(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("x", partitions=20)
    described = Counted(monkeypatch, describe, "_describe_partition")
    response, _ = node.call(m.DescribeTopicsRequest(names=["x"] * 10_000))
    assert [topic.name for topic in response.topics] == ["x"]
    assert described.calls == 20


def test_repeated_names_and_ids_have_one_entry_in_metadata(node: NodeDriver) -> None:
    first, second = node.create("x", partitions=3), node.create("y")
    request = m.MetadataRequest(
        topics=["x", "no"] * 400, topic_ids=[first, second, bytes(16)] * 400
    )
    response, _ = node.call(request)
    assert [(topic.name, topic.topic_id) for topic in response.topics] == [
        ("x", first),
        ("no", b""),
        ("x", first),
        ("y", second),
        ("", bytes(16)),
    ]


def test_a_topic_of_many_partitions_is_described_in_several_calls(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_step = 2
    monkeypatch.setattr(describe, "_PARTITIONS_PER_STEP", per_step)
    count = 3 * STEPS_PER_CALL * per_step
    node.create("x", partitions=count)
    for request in (m.DescribeTopicsRequest(names=["x"]), m.MetadataRequest(topics=["x"])):
        kind = m.PartitionDescription if request.API is m.Api.DESCRIBE_TOPICS else None
        made = Counted(monkeypatch, m, (kind or m.PartitionMetadata).__name__)
        seen = 0
        for _ in calls_of(node, request):
            assert made.calls - seen <= STEPS_PER_CALL * per_step
            seen = made.calls
        assert seen == count
        answer = node.answer(request.correlation_id)
        assert answer is not None
        assert len(answer[0].topics[0].partitions) == count


@pytest.mark.parametrize("by_id", [False, True])
def test_an_answer_above_a_header_is_refused_before_it_is_made(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch, by_id: bool
) -> None:
    ids = [node.create(name, partitions=4) for name in ("a", "b", "c")]
    monkeypatch.setattr(tasks, "HEADER_BYTES_MAX", 4 * describe._PARTITION_BYTES_MIN - 1)
    made = Counted(monkeypatch, m, "PartitionMetadata")
    described = Counted(monkeypatch, m, "PartitionDescription")
    request = m.MetadataRequest(topics=[], topic_ids=ids) if by_id else m.MetadataRequest()
    for asked in (request, m.DescribeTopicsRequest()):
        response, _ = node.call(asked)
        assert response.error_code == errors.FrameTooLarge.code
    assert (made.calls, described.calls) == (0, 0)


def test_the_least_size_of_a_partition_is_below_any_real_one() -> None:
    import msgspec

    smallest = msgspec.msgpack.encode(m.PartitionMetadata(0, 0, 0, 0, [0], [0]))
    assert len(smallest) >= describe._PARTITION_BYTES_MIN


def test_lookups_of_closed_connections_keep_no_other_waiting(node: NodeDriver) -> None:
    """Thirty of them asked for all topics, 500 times each, and left."""
    for number in range(40):
        node.create(f"t{number}")
    node.hold_jobs = True  # Nothing is done at once but what a call does.
    events: list[Event] = []
    for connection in range(10, 40):
        hello = m.HelloRequest(correlation_id=1)
        events.append(RequestReceived(connection, hello, memoryview(b"")))
        for number in range(500):
            request = m.MetadataRequest(correlation_id=2 + number)
            events.append(RequestReceived(connection, request, memoryview(b"")))
    node.handle(*events)
    node.handle(*map(ConnectionClosed, range(10, 40)))
    calls = 0
    while node.node.next_deadline_us() == 0:
        node.handle(Tick())
        calls += 1
        assert calls < 50, "all 15,000 are answered, to no connection"
    assert node.node.broker.tasks.live == 0


@pytest.mark.parametrize("kind", ["bytes_between", "offset_for_timestamp"])
def test_walks_over_batches_are_few_in_a_call(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Ten thousand entries, each of which looks at the headers of batches."""
    topic = node.create()
    node.produced(topic, batch_of([1] * 10))
    walks = Counted(monkeypatch, LogReader, kind)
    request: m.Request
    if kind == "bytes_between":
        request = m.DescribeRangesRequest(partitions=[m.RangePartition(topic, 0, 0, -1)] * 1_000)
    else:
        entry = m.ListOffsetsPartition(topic, 0, at=0)
        request = m.ListOffsetsRequest(partitions=[entry] * 1_000)
    seen = most = 0
    for _ in calls_of(node, request):
        most, seen = max(most, walks.calls - seen), walks.calls
    assert seen == 1_000
    assert most <= 2 * STEPS_PER_CALL


def test_a_long_poll_whose_connection_goes_before_its_first_look_leaves_nothing(
    node: NodeDriver,
) -> None:
    topic = node.create()
    poll = m.ListOffsetsPartition(topic, 0, known_offset=0)
    waiting = m.ListOffsetsRequest(partitions=[poll] * 100, max_wait_ms=1000, correlation_id=9)
    node.handle(RequestReceived(1, waiting, memoryview(b"")), ConnectionClosed(1))
    node.run_until_idle()
    assert node.node.broker.tasks.live == 0
    assert node.node.broker.replicas[topic, 0].waiters == {}
    assert node.metrics.parked_requests == 0
