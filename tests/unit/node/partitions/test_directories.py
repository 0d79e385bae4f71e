"""Directories of partitions that cannot be made, or that a power failure left half made."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quiverlog import errors
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of, serialize_schema


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def create_request(*names: str, partitions: int = 1) -> m.CreateTopicsRequest:
    schema = serialize_schema(SCHEMA)
    return m.CreateTopicsRequest(topics=[m.NewTopic(name, schema, partitions) for name in names])


def test_directories_that_cannot_be_made_refuse_the_topic(tmp_path: Path) -> None:
    class Short(PosixDisk):
        full = False

        def make_dir(self, path: str) -> None:
            if self.full:
                raise OSError(errno.EMFILE, "Too many open files")
            super().make_dir(path)

    disk = Short()
    node = NodeDriver(tmp_path, lambda: disk)
    disk.full = True
    response, _ = node.call(create_request("t", partitions=3))
    assert response.topics[0].error_code != 0
    disk.full = False
    assert node.call(m.MetadataRequest())[0].topics == []
    assert node.create("t", partitions=3)


def test_only_the_decisions_whose_directories_failed_are_refused(tmp_path: Path) -> None:
    """Those behind them are logged, but for what is about the same topic."""

    class Picky(PosixDisk):
        def make_dir(self, path: str) -> None:
            if "/bad-" in path:
                raise OSError(errno.EIO, "Input/output error")
            super().make_dir(path)

    node = NodeDriver(tmp_path, Picky)
    node.create("there", partitions=1)
    grow = m.AlterTopicRequest(name="there", partitions=3)
    node.hold_jobs = True
    first = node.request(m.AlterTopicRequest(name="there", set_configs={"retention.ms": "1000000"}))
    good, bad = node.request(create_request("good")), node.request(create_request("bad"))
    worse = node.request(m.AlterTopicRequest(name="bad", set_configs={"retention.ms": "1000000"}))
    last, ids = node.request(grow), node.request(m.InitProducerIdRequest())
    node.hold_jobs = False
    node.run_until_idle()
    answers = {c: node.answer(c) for c in (first, good, bad, worse, last, ids)}
    codes = {c: answer[0].error_code for c, answer in answers.items() if answer is not None}
    assert codes == {
        first: 0, good: 0, bad: 0, worse: errors.StorageFault.code, last: 0, ids: 0
    }  # fmt: skip
    refused, made = answers[bad], answers[good]
    assert refused is not None
    assert refused[0].topics[0].error_code == errors.StorageFault.code
    assert made is not None
    assert made[0].topics[0].error_code == 0
    for image in (node.node.broker.metadata.image, node.node.broker.metadata.pending):
        assert sorted(image.topics) == ["good", "there"]
        assert len(image.topics["there"].partitions) == 3
    node.crash()
    assert sorted(node.node.broker.metadata.image.topics) == ["good", "there"]
    assert not node.node.broker.assignment.offline


def test_a_directory_that_was_there_before_stays_when_others_cannot_be_made(
    tmp_path: Path,
) -> None:
    """A record may name it: an append that failed can be in the file all the same."""

    class Picky(PosixDisk):
        def make_dir(self, path: str) -> None:
            if path.endswith("/t-2"):
                raise OSError(errno.EIO, "Input/output error")
            super().make_dir(path)

    node = NodeDriver(tmp_path, Picky)
    node.create()
    node.hold_jobs = True
    node.request(m.AlterTopicRequest(name="t", partitions=2))
    while not node.jobs or node.jobs[0].job.kind != "metadata append":
        node.step()
    append = node.jobs.pop(0)
    append.job.run()
    node._run(append, OSError(errno.EIO, "fsync failed"))
    node.hold_jobs = False
    node.run_until_idle()
    response, _ = node.call(m.AlterTopicRequest(name="t", partitions=3))
    assert response.error_code != 0
    node.crash()
    assert len(node.node.broker.metadata.image.topics["t"].partitions) == 2
    assert not node.node.broker.assignment.offline


def test_labels_that_a_power_failure_took_are_no_news(node: NodeDriver) -> None:
    """Thousands of labels are not flushed; the names show whose directories these are."""
    topic = node.create(partitions=2)
    node.produced(topic, batch_of([1]))
    data = Path(node.config.data_dir) / "data"
    (data / "t-0" / "partition.json").write_bytes(b"")
    (data / "t-1" / "partition.json").unlink()
    node.lines.clear()
    node.crash()
    assert [line for line in node.lines if line.level != "info"] == []
    assert node.offset_of(topic, -1).offset == 1
    data = Path(node.config.data_dir) / "data"
    assert all((data / name / "partition.json").stat().st_size for name in ("t-0", "t-1"))
