"""The metadata log of a node: when it is compacted, and what waits for decisions under way."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import Record
from quiverlog.storage.metadata.metadata_log import MetadataLog
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of, open_new_logs_by_jobs


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def create_request(name: str, partitions: int = 1) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(topics=[m.NewTopic(name, serialize_schema(SCHEMA), partitions)])


def test_a_snapshot_of_the_metadata_is_made_off_the_loop_from_what_holds_meanwhile(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot takes as long as there are topics. Decisions wait: nothing changes under it."""
    snapshot_records = Image.snapshot_records
    on_loop: list[bool] = []

    def recorded(image: Image) -> list[Record]:
        on_loop.append(node.disk.on_loop)
        return snapshot_records(image)

    node.create()
    monkeypatch.setattr(MetadataLog, "wants_compaction", True)
    node.hold_jobs = True
    node.request(m.AlterTopicRequest(name="t", set_configs={"retention.ms": "60000"}))
    while not node.jobs or node.jobs[0].job.kind != "metadata compaction":
        node.step()
    monkeypatch.undo()
    monkeypatch.setattr(Image, "snapshot_records", recorded)
    version = node.node.broker.metadata.image.version
    later = node.request(m.AlterTopicRequest(name="t", set_configs={"retention.ms": "70000"}))
    while node.node.next_deadline_us() == 0:
        node.step()
    assert [start.job.kind for start in node.jobs] == ["metadata compaction"]
    assert node.node.broker.metadata.image.version == version
    node.hold_jobs = False
    node.run_until_idle()
    assert on_loop == [False]
    assert node.answer(later) is not None
    node.restart()
    (topic,) = node.call(m.DescribeTopicsRequest(names=["t"]))[0].topics
    assert {c.key: c.value for c in topic.configs}["retention.ms"] == "70000"


# --- waiting for decisions ----------------------------------------------------------------------
def test_a_creation_that_waits_for_an_end_does_not_wait_for_later_decisions(
    node: NodeDriver,
) -> None:
    """Under constant load there is always one more decision under way."""
    node.create("t")
    node.create("busy")
    node.hold_jobs = True
    loads = itertools.count(60_000)

    def load() -> None:
        configs = {"retention.ms": str(next(loads))}
        node.request(m.AlterTopicRequest(name="busy", set_configs=configs))

    load()
    deleted = node.request(m.DeleteTopicsRequest(names=["t"]))
    created = node.request(create_request("t"))
    for _ in range(40):
        load()
        while node.node.next_deadline_us() == 0:
            node.step()
        if node.jobs:
            node._run(node.jobs.pop(0))
        if node.answer(created) is not None:
            break
    answer = node.answer(created)
    assert answer is not None, "the creation starves"
    assert answer[0].topics[0].error_code == 0
    assert node.answer(deleted) is not None


@pytest.mark.parametrize("by_jobs", [False, True])
@pytest.mark.parametrize("partitions", [1, 30])
def test_created_deleted_and_created_again_in_one_pipeline(
    node: NodeDriver, partitions: int, monkeypatch: pytest.MonkeyPatch, *, by_jobs: bool
) -> None:
    """Neither takes the directories from under the other, and no failure is answered."""
    if by_jobs:
        open_new_logs_by_jobs(monkeypatch)
    requests: list[m.Request] = [
        create_request("t", partitions=partitions),
        m.DeleteTopicsRequest(names=["t"]),
        create_request("t", partitions=partitions),
    ]
    node.hold_jobs = True
    node.request_many([(request, b"") for request in requests])
    # Jobs of a partition's directory end after those of the metadata: the worst order.
    for _ in range(10_000):
        while node.node.next_deadline_us() == 0:
            node.step()
        if not node.jobs:
            break
        slow = [start for start in node.jobs if start.job.kind != "open log"]
        start = slow[0] if slow else node.jobs[-1]
        node.jobs.remove(start)
        node._run(start)
    for request in requests:
        answer = node.answer(request.correlation_id)
        assert answer is not None
        assert answer[0].topics[0].error_code == 0, answer[0].topics[0].error_message
    assert [line for line in node.lines if line.level in ("error", "warning")] == []
    assert not node.node.broker.assignment.offline
    node.hold_jobs = False
    (topic,) = node.call(m.MetadataRequest())[0].topics
    assert len(topic.partitions) == partitions
    for partition in range(partitions):
        node.produced(topic.topic_id, batch_of([1]), partition=partition)


def test_a_topic_that_goes_while_it_is_opened_is_no_failure(
    node: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic's directory went with it: the log had called a partition offline."""
    open_new_logs_by_jobs(monkeypatch)
    node.hold_jobs = True
    node.request_many([(create_request("t"), b""), (m.DeleteTopicsRequest(names=["t"]), b"")])
    while not any(start.job.kind == "open log" for start in node.jobs):
        node.step()
    (opening,) = [start for start in node.jobs if start.job.kind == "open log"]
    node.jobs.remove(opening)
    node.hold_jobs = False
    node.run_until_idle()
    node._run(opening, FileNotFoundError(2, "the partition's directory is missing"))
    node.run_until_idle()
    assert [line.event for line in node.lines if line.level == "error"] == []
    assert node.metrics.partitions_offline == 0
