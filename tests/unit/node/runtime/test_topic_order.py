"""Changes of topics that one connection sends together: decided name by name, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.errors import TopicExists, UnknownTopic
from quiverlog.node.node import Node
from quiverlog.node.runtime.events import ConnectionClosed, RequestReceived, Shutdown
from quiverlog.node.runtime.tasks import TopicOrder
from quiverlog.types import Now
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver

NAMES = [f"t-{number}" for number in range(100)]


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def create(*names: str, partitions: int = 1) -> m.CreateTopicsRequest:
    schema = serialize_schema(SCHEMA)
    return m.CreateTopicsRequest(topics=[m.NewTopic(name, schema, partitions) for name in names])


def delete(*names: str) -> m.DeleteTopicsRequest:
    return m.DeleteTopicsRequest(names=list(names))


def codes(node: NodeDriver, *requests: m.Request) -> list[list[int]]:
    """The codes of requests that arrive in one read, topic by topic."""
    node.request_many([(request, b"") for request in requests])
    found = []
    for request in requests:
        answer = node.answer(request.correlation_id)
        assert answer is not None
        topics = getattr(answer[0], "topics", None)
        found.append([answer[0].error_code] if topics is None else [t.error_code for t in topics])
    return found


def left(node: NodeDriver) -> list[str]:
    return sorted(node.node.broker.metadata.image.topics)


def nothing_waits(node: Node) -> bool:
    return not node.broker.tasks.live and not node.broker.topic_order._changes


def test_a_delete_behind_a_create_that_waits_finds_the_topic(node: NodeDriver) -> None:
    """The CREATE waits for the DELETE in front of it to be done."""
    node.create("t")
    assert codes(node, delete("t"), create("t"), delete("t")) == [[0], [0], [0]]
    assert left(node) == []
    assert nothing_waits(node.node)


def test_a_create_names_its_topic_also_where_that_is_gone_already(node: NodeDriver) -> None:
    """Seen with real brokers: both were decided in one write, and the answer had no topic id."""
    first, end, second = create("t"), delete("t"), create("t")
    codes(node, first, end, second)
    answers = [node.answer(request.correlation_id) for request in (first, end, second)]
    ids = [answer[0].topics[0].topic_id for answer in answers if answer is not None]
    assert ids[0] == ids[1] != ids[2]
    assert all(ids)
    assert left(node) == ["t"]


def test_an_alter_behind_a_create_that_waits_finds_the_topic(node: NodeDriver) -> None:
    node.create("t")
    grow = m.AlterTopicRequest(name="t", partitions=3)
    assert codes(node, delete("t"), create("t"), grow, delete("t"), create("t")) == [
        [0], [0], [0], [0], [0]
    ]  # fmt: skip
    assert len(node.node.broker.metadata.image.topics["t"].partitions) == 1
    assert nothing_waits(node.node)


def test_a_delete_behind_a_create_of_many_finds_the_last_of_them(node: NodeDriver) -> None:
    last = NAMES[-1]
    found = codes(node, create(*NAMES), delete(last), create(last), delete(last, NAMES[0]))
    assert found == [[0] * len(NAMES), [0], [0], [0, 0]]
    assert left(node) == sorted(NAMES[1:-1])
    assert nothing_waits(node.node)


def test_a_name_may_be_there_several_times(node: NodeDriver) -> None:
    twice = [0, TopicExists.code]
    assert codes(node, create("t", "t"), delete("t", "t"), create("t")) == [
        twice, [0, UnknownTopic.code], [0]
    ]  # fmt: skip
    assert left(node) == ["t"]
    assert nothing_waits(node.node)


def test_changes_of_other_names_and_of_other_connections_wait_for_nothing(
    node: NodeDriver,
) -> None:
    node.create("t")
    node.create("other")
    node.hold_jobs = True
    for request in (delete("t"), create("t")):
        node.request(request)
    same, elsewhere = delete("t"), delete("t")
    node.request(same)
    node.request(elsewhere, connection=2)
    node.request(delete("other"))
    while node.node.next_deadline_us() == 0:
        node.step()
    assert "other" not in node.node.broker.metadata.pending.topics
    for request in (same, elsewhere):
        assert node.answer(request.correlation_id) is None
    node.hold_jobs = False
    node.run_until_idle()
    answer = node.answer(elsewhere.correlation_id)
    assert answer is not None
    assert answer[0].topics[0].error_code == UnknownTopic.code, "before the second one was made"
    assert left(node) == []
    assert nothing_waits(node.node)


@pytest.mark.parametrize("end", ["connection", "shutdown"])
@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_no_request_waits_for_a_change_that_never_begins(
    node: NodeDriver, end: str, steps: int
) -> None:
    """More requests than may be half way at once; the end comes at any step."""
    node.create("t")
    node.hold_jobs = True
    events = []
    for number in range(20):
        request = create("t", *NAMES[:3]) if number % 2 else delete(*NAMES[:3], "t")
        request.correlation_id = 1_000 + number
        events.append(RequestReceived(1, request, memoryview(b"")))
    node._perform(node.handle(*events))
    for _ in range(steps):
        if node.jobs or node.node.next_deadline_us() == 0:
            node.step()
    node._perform(node.handle(ConnectionClosed(1) if end == "connection" else Shutdown()))
    node.hold_jobs = False
    node.run_until_idle()
    assert nothing_waits(node.node)
    assert node.shut_down is (end == "shutdown")
    assert node.metrics.internal_errors == 0


def test_the_order_is_of_one_connection_and_one_name() -> None:
    order = TopicOrder()
    now = Now(0, 0)
    first, second = order.enter(1, ["a", "b"]), order.enter(1, ["b", "a", "c"])
    other = order.enter(2, ["a"])
    assert order.wait(first) is None
    assert order.wait(other) is None
    woken: list[str] = []
    wait = order.wait(second)
    assert wait is not None
    wait(lambda *_: woken.append("b"))
    order.decided(first, now)
    order.decided(first, now)
    assert woken
    for _ in second.names:
        assert order.wait(second) is None
        order.decided(second, now)
    order.leave(other, now)
    order.leave(other, now)
    assert not order._changes
