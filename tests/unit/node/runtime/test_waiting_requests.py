"""Requests that wait for their steps: how much memory they may take, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.errors import ThrottledBroker
from quiverlog.limits import (
    PARTITIONS_PER_REQUEST_MAX,
    REQUEST_ENTRY_BYTES,
    REQUESTS_WAITING_BYTES_MAX,
    TOPICS_PER_REQUEST_MAX,
)
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.tasks import waiting_bytes
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver

LONG = [f"no-such-topic-{number}" for number in range(TOPICS_PER_REQUEST_MAX)]
MANY = 3 * REQUESTS_WAITING_BYTES_MAX // (REQUEST_ENTRY_BYTES * TOPICS_PER_REQUEST_MAX)


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def pipeline(node: NodeDriver, requests: list[m.Request], connection: int = 1) -> None:
    """As one read of a socket brings them; nothing but this call of the node happens."""
    events = []
    for request in requests:
        node._number(request)
        events.append(RequestReceived(connection, request, memoryview(b"")))
    node._perform(node.handle(*events))


def code_of(node: NodeDriver, request: m.Request) -> Any:
    answer = node.answer(request.correlation_id)
    return None if answer is None else answer[0].error_code


@pytest.mark.parametrize("kind", ["metadata", "describe"])
def test_a_pipeline_of_long_lists_is_bounded_and_counted(node: NodeDriver, kind: str) -> None:
    def one() -> m.Request:
        if kind == "metadata":
            return m.MetadataRequest(topics=LONG)
        return m.DescribeTopicsRequest(names=LONG)

    requests = [one() for _ in range(MANY)]
    pipeline(node, requests)
    held_bytes = node.node.held_bytes
    assert REQUESTS_WAITING_BYTES_MAX // 3 < held_bytes <= REQUESTS_WAITING_BYTES_MAX
    refused = [request for request in requests if code_of(node, request) is not None]
    assert refused
    assert {code_of(node, request) for request in refused} == {ThrottledBroker.code}
    # A client that takes all that it can leaves room for others.
    other = one()
    pipeline(node, [other], connection=2)
    assert code_of(node, other) is None
    node.run_until_idle()
    assert code_of(node, other) == 0
    assert sum(code_of(node, request) == 0 for request in requests) == MANY - len(refused)
    assert node.node.held_bytes == 0


def test_what_a_connection_held_goes_with_it(node: NodeDriver) -> None:
    pipeline(node, [m.MetadataRequest(topics=LONG) for _ in range(4)])
    assert node.node.held_bytes > 0
    node.close_connection(1)
    node.run_until_idle()
    assert node.node.held_bytes == 0


def test_the_largest_request_of_each_kind_may_wait() -> None:
    ids = [b"0123456789abcdef"] * PARTITIONS_PER_REQUEST_MAX
    new = m.NewTopic("t", b"", key_columns=["a"] * 16, configs={"a": "b"})
    largest: list[m.Request] = [
        m.MetadataRequest(topics=LONG, topic_ids=ids),
        m.DescribeTopicsRequest(names=LONG),
        m.CreateTopicsRequest(topics=[new] * TOPICS_PER_REQUEST_MAX),
        m.DeleteTopicsRequest(names=LONG),
        m.DeleteRecordsRequest(partitions=[m.DeleteRecordsPartition(i, 0) for i in ids]),
    ]
    for request in largest:
        header_bytes = 4 * 1024 * 1024
        event = RequestReceived(1, request, memoryview(b""), header_bytes)
        assert header_bytes < waiting_bytes(event) <= REQUESTS_WAITING_BYTES_MAX


def test_every_list_of_a_request_counts() -> None:
    new = m.NewTopic("t", key_columns=["k"], configs={"a": "b"})
    for lists, count in (
        (m.MetadataRequest(topics=["a", "b"], topic_ids=[b"c"]), 3),
        (m.MetadataRequest(), 0),
        (m.CreateTopicsRequest(topics=[m.NewTopic("t"), new]), 2.5),
        (m.AlterTopicRequest(name="t", set_configs={"a": "b"}, delete_configs=["c"]), 2),
    ):
        with_lists = waiting_bytes(RequestReceived(1, lists, memoryview(b"")))
        bare = waiting_bytes(RequestReceived(1, type(lists)(), memoryview(b"")))
        assert with_lists - bare == count * REQUEST_ENTRY_BYTES
