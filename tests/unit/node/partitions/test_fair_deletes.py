"""DELETE_RECORDS costs one durable step per partition, however many entries name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog import errors
from quiverlog.node.runtime.effects import StartJob
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.jobs import Urgency
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def delete(topic: bytes, *entries: tuple[int, int]) -> m.DeleteRecordsRequest:
    return m.DeleteRecordsRequest(
        partitions=[m.DeleteRecordsPartition(topic, p, before_offset=at) for p, at in entries]
    )


def test_entries_of_one_partition_are_one_trim_to_the_highest_offset(node: NodeDriver) -> None:
    topic = node.create()
    node.produced(topic, bytes(batch_of(list(range(30)))))
    request = delete(topic, *((0, at) for at in range(20)), (0, 31), (0, 3))
    correlation = node._number(request)
    effects = node.send(RequestReceived(1, request, memoryview(b"")))
    trims = [e for e in effects if isinstance(e, StartJob) and e.job.kind == "trim"]
    assert len(trims) == 1
    answer = node.answer(correlation)
    assert answer is not None
    results = answer[0].partitions
    bad = results.pop(20)
    assert bad.error_code == errors.OffsetOutOfRange.code
    assert {(result.error_code, result.log_start_offset) for result in results} == {(0, 19)}
    again, _ = node.call(delete(topic, (0, 5), (0, 19)))
    assert [result.log_start_offset for result in again.partitions] == [19, 19]


def test_trims_of_several_partitions_run_at_the_same_time(node: NodeDriver) -> None:
    topic = node.create(partitions=4)
    for partition in range(4):
        node.produced(topic, bytes(batch_of([1, 2])), partition=partition)
    node.hold_jobs = True
    request = delete(topic, *((partition, 1) for partition in range(4)))
    correlation = node.request(request)
    assert [start.job.kind for start in node.jobs] == ["trim"] * Urgency.READ.at_once
    node.hold_jobs = False
    node.run_until_idle()
    answer = node.answer(correlation)
    assert answer is not None
    assert [result.log_start_offset for result in answer[0].partitions] == [1, 1, 1, 1]
