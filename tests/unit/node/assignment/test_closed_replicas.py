"""Letting go of what is being opened: deleted, offline, or at a stop."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.errors import DiskFull
from quiverlog.node.runtime.effects import StartJob
from quiverlog.node.runtime.events import JobDone, Shutdown, Tick
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.types import EARLIEST
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of, open_new_logs_by_jobs

PARTITIONS = 1_500
"""More than Python's stack has room for frames."""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeDriver:
    open_new_logs_by_jobs(monkeypatch)
    return NodeDriver(tmp_path)


def create_slowly(node: NodeDriver, name: str, partitions: int) -> int:
    """Create a topic up to the moment in which its partitions are being opened."""
    node.hold_jobs = True
    new = m.NewTopic(name, serialize_schema(SCHEMA), partitions, 1, [], {})
    created = node.request(m.CreateTopicsRequest(topics=[new]))
    while not any(start.job.kind == "open log" for start in node.jobs):
        node.step()
    return created


def directories(node: NodeDriver) -> list[str]:
    return sorted(path.name for path in (Path(node.config.data_dir) / "data").iterdir())


def test_a_topic_is_deleted_while_its_partitions_are_opened(node: NodeDriver) -> None:
    created = create_slowly(node, "wide", PARTITIONS)
    deleted = node.request(m.DeleteTopicsRequest(names=["wide"]), connection=2)
    node.hold_jobs = False
    node.run_until_idle()
    for correlation in (created, deleted):
        answer = node.answer(correlation)
        assert answer is not None
        assert answer[0].topics[0].error_code == 0
    assert node.metrics.internal_errors == 0
    assert directories(node) == [], "else they would stay until the next start"
    assert not node.node.broker.assignment.opening


class SlowOpening:
    """A partition of which opening has failed for want of descriptors."""

    def __init__(self, node: NodeDriver) -> None:
        self.node = node
        node.create("kept")
        create_slowly(node, "t", 1)
        (start,) = node.jobs
        node.jobs.clear()
        node.send(JobDone(start.job, None, OSError(errno.EMFILE, "Too many open files")))
        assert len(node.node.broker.assignment.offline) == 1


def test_a_partition_that_is_opened_again_for_long_asks_for_no_ticks(node: NodeDriver) -> None:
    SlowOpening(node)
    node.advance(5_000)
    assert [start.job.kind for start in node.jobs] == ["open log"]
    node.set_clock(node.mono_us + 60_000_000)
    node.send(Tick())
    assert len(node.jobs) == 1, "it is being opened"
    deadline_us = node.node.next_deadline_us()
    assert deadline_us is None or deadline_us > node.mono_us


def test_the_directory_of_a_deleted_partition_that_was_offline_goes(node: NodeDriver) -> None:
    SlowOpening(node)
    node.hold_jobs = False
    node.call(m.DeleteTopicsRequest(names=["t"]))
    assert directories(node) == ["kept-0"]


def test_the_directory_goes_too_when_the_topic_is_deleted_while_opening_fails(
    node: NodeDriver,
) -> None:
    create_slowly(node, "t", 1)
    (start,) = node.jobs
    node.jobs.clear()
    deleted = node.request(m.DeleteTopicsRequest(names=["t"]), connection=2)
    while node.answer(deleted) is None:
        node.step()
    node.send(JobDone(start.job, None, OSError(errno.EMFILE, "Too many open files")))
    node.hold_jobs = False
    node.run_until_idle()
    assert directories(node) == []


def test_a_stop_opens_no_further_partitions(node: NodeDriver) -> None:
    created = create_slowly(node, "wide", 100)
    node.send(Shutdown())
    opened = sum(start.job.kind == "open log" for start in node.jobs)
    node.hold_jobs = False
    started = node.run_until_idle()
    assert opened < 100
    assert not [e for e in started if isinstance(e, StartJob) and e.job.kind == "open log"]
    assert node.answer(created) is not None
    assert node.shut_down


class _PickyDisk(PosixDisk):
    """The directory that `missing` names is not there."""

    missing = ""

    def entries(self, path: str) -> dict[str, bool]:
        if self.missing and path.endswith(self.missing):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return super().entries(path)


def test_a_clean_mark_does_not_hold_for_a_new_topic_of_an_old_name(tmp_path: Path) -> None:
    """The new topic's rows were taken for missing: its log began behind the old topic's end."""
    disk = _PickyDisk()
    node = NodeDriver(tmp_path, lambda: disk)
    old = node.create(partitions=2)
    node.produced(old, batch_of([1, 2, 3]), partition=1)
    node.stop()
    disk.missing = "/t-1"
    node.start()
    assert len(node.node.broker.assignment.offline) == 1
    disk.missing = ""
    node.call(m.DeleteTopicsRequest(names=["t"]))
    new = node.create("t", partitions=1)
    # A decision that found no room leaves its directory, which is not new for the next one.
    grow = m.AlterTopicRequest(name="t", partitions=2)
    node.hold_jobs = True
    refused = node.request(grow)
    while not node.jobs or node.jobs[0].job.kind != "metadata append":
        node.step()
    node._run(node.jobs.pop(0), DiskFull("planted"))
    node.hold_jobs = False
    node.run_until_idle()
    answer = node.answer(refused)
    assert answer is not None
    assert answer[0].error_code == DiskFull.code
    node.disk_space(2**40)
    assert node.call(m.AlterTopicRequest(name="t", partitions=2))[0].error_code == 0
    assert node.produced(new, batch_of([7]), partition=1).base_offset == 0
    assert node.offset_of(new, EARLIEST, partition=1).offset == 0
