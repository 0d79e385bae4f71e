"""Partitions that another controller placed here: their directories are made after the decision."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    SchemaRecord,
    TopicRecord,
    decode_entry,
    encode_entry,
)
from quiverlog.core.raft.messages import Entry, EntryKind, SnapshotMeta
from quiverlog.errors import NotController, NotLeader, StorageFault
from quiverlog.node.controller import in_sync_decisions
from quiverlog.node.runtime.events import JobDone, Tick
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.metadata.quorum_jobs import Snapshot
from tests.support.node import SCHEMA, NodeDriver, batch_of

HERE, OTHER = 0, 7
TOPIC, LATER, LAST = b"t" * 16, b"u" * 16, b"v" * 16


class Failing(PosixDisk):
    """Directories cannot be made while `failing`; what the process has no descriptor for."""

    failing = False

    def make_dir(self, path: str) -> None:
        if self.failing:
            raise OSError(errno.EIO, "Input/output error")
        super().make_dir(path)


@pytest.fixture
def disk() -> Failing:
    return Failing()


@pytest.fixture
def node(tmp_path: Path, disk: Failing) -> NodeDriver:
    return NodeDriver(tmp_path, lambda: disk)


def topic_records(
    topic_id: bytes = TOPIC, leader: int = HERE, in_sync: tuple[int, ...] = (HERE, OTHER)
) -> list[Record]:
    return [
        TopicRecord(topic_id, "t", 1, 2),
        SchemaRecord(topic_id, 1, 1, serialize_schema(SCHEMA)),
        PartitionRecord(topic_id, 0, (HERE, OTHER), in_sync, leader),
    ]


def apply(node: NodeDriver, *records: Record) -> None:
    """Another node has decided this, and the quorum replicates it."""
    metadata = node.node.broker.metadata
    index = metadata.image.version + 1
    entry = Entry(index, 1, EntryKind.DATA, encode_entry(list(records)))
    metadata.apply(entry, node.now)
    node.send(Tick())


def decide(node: NodeDriver, *records: Record) -> None:
    """Decide it here, without the directories that it needs: a crash came before they were made."""
    outcomes: list[Any] = []
    node.node.broker.metadata.propose(
        list(records), node.now, lambda _result, error, _now: outcomes.append(error)
    )
    node.send(Tick())
    assert outcomes == [None]


def directories(node: NodeDriver) -> list[str]:
    return sorted(path.name for path in (Path(node.config.data_dir) / "data").iterdir())


def test_a_partition_that_others_gave_us_gets_its_directory(node: NodeDriver) -> None:
    apply(node, *topic_records())
    assert directories(node) == ["t-0"]
    assert (TOPIC, 0) in node.node.broker.replicas
    node.produce(TOPIC, batch_of([1]))
    assert node.broker_end(TOPIC) == 1
    assert not node.node.broker.assignment.offline


def test_many_are_made_with_one_flush(node: NodeDriver) -> None:
    partitions = [PartitionRecord(TOPIC, n, (HERE,), (HERE,), HERE) for n in range(1, 100)]
    kinds: list[str] = []
    perform = node._run
    node._run = lambda start, error=None: (kinds.append(start.job.kind), perform(start, error))[1]  # type: ignore[method-assign]
    apply(node, *topic_records(), *partitions)
    assert len(node.node.broker.replicas) == 100
    assert kinds.count("create late directories") == 2, "64 each"


def test_one_that_cannot_be_made_is_offline_and_tried_again(
    node: NodeDriver, disk: Failing
) -> None:
    disk.failing = True
    apply(node, *topic_records())
    offline = node.node.broker.assignment.offline
    assert isinstance(offline[TOPIC, 0].error, StorageFault)
    assert node.metrics.partitions_offline == 1
    answer = node.answer(node.produce(TOPIC, batch_of([1])))
    assert answer is not None
    assert answer[0].partitions[0].error_code == StorageFault.code
    node.advance(6_000)
    assert [line.event for line in node.lines].count("partition offline") == 1, "logged once"
    disk.failing = False
    node.advance(6_000)
    assert not offline
    assert node.metrics.partitions_offline == 0
    assert (TOPIC, 0) in node.node.broker.replicas


def test_one_that_fails_leaves_the_others_of_its_topic(node: NodeDriver, disk: Failing) -> None:
    (Path(node.config.data_dir) / "data" / "t-0").write_bytes(b"a file in its place")
    apply(node, *topic_records(), PartitionRecord(TOPIC, 1, (HERE,), (HERE,), HERE))
    assert list(node.node.broker.assignment.offline) == [(TOPIC, 0)]
    assert (TOPIC, 1) in node.node.broker.replicas


def test_a_topic_that_goes_while_its_directory_is_made_leaves_nothing(node: NodeDriver) -> None:
    node.hold_jobs = True
    apply(node, *topic_records())
    assert [start.job.kind for start in node.jobs] == ["create late directories"]
    apply(node, RemoveTopicRecord(TOPIC))
    node.hold_jobs = False
    node.send(Tick())
    assert directories(node) == []
    assert not node.node.broker.assignment.all_open()
    assert not node.node.broker.assignment.opening


def test_a_name_is_waited_for_while_jobs_use_the_files_of_an_older_topic(node: NodeDriver) -> None:
    topic = node.create("t")
    node.produce(topic, batch_of([1]))
    assert node.syncs, "a flush has its file"
    apply(node, RemoveTopicRecord(topic), *topic_records(LATER))
    assert node.node.broker.assignment.opening, "and it is not made yet"
    node.advance(250)
    assert node.node.broker.assignment.opening
    node.flush()
    node.advance(100)
    assert (LATER, 0) in node.node.broker.replicas
    assert directories(node) == ["t-0"]
    assert node.broker_end(LATER) == 0
    assert node.metrics.internal_errors == 0


@pytest.mark.parametrize("made_again", [True, False])
def test_a_partition_deleted_while_it_waited_for_its_name_blocks_no_other(
    node: NodeDriver, made_again: bool
) -> None:
    """A deleted topic waited for the deleted topic of its name, itself, and a later one for it."""
    topic = node.create("t")
    node.produce(topic, batch_of([1]))
    apply(node, RemoveTopicRecord(topic), *topic_records(LATER))
    apply(node, RemoveTopicRecord(LATER), *(topic_records(LAST) if made_again else ()))
    while node.syncs:
        node.flush()
    node.advance(250)
    assert not node.node.broker.assignment.opening
    if made_again:
        assert (LAST, 0) in node.node.broker.replicas
        assert directories(node) == ["t-0"]
    else:
        assert directories(node) == []
        assert node.broker_end(node.create("t")) == 0
    assert node.metrics.internal_errors == 0


def test_a_stop_does_not_wait_for_directories(node: NodeDriver, disk: Failing) -> None:
    node.create("before")
    node.hold_jobs = True
    apply(node, *topic_records())
    [late] = node.jobs
    node.jobs.clear()
    node.hold_jobs = False
    node.send(JobDone(late.job, late.job.run(), None))
    node.stop()


# --- a copy that has lost its directory --------------------------------------------------------
def lose(node: NodeDriver, name: str = "t-0") -> None:
    node.stop()
    shutil.rmtree(Path(node.config.data_dir) / "data" / name)
    node.start()


def followed(node: NodeDriver, **fields: Any) -> bytes:
    topic = node.create("t")
    node.produced(topic, batch_of([1, 2, 3]))
    decide(
        node,
        PartitionChangeRecord(
            topic, 0, leader_id=OTHER, leader_epoch=5, replicas=(HERE, OTHER), **fields
        ),
    )
    return topic


@pytest.mark.parametrize(
    "relied_on",
    [
        {"in_sync_replicas": (HERE, OTHER)},
        {"in_sync_replicas": (OTHER,), "eligible_leader_replicas": (HERE,)},
    ],
)
def test_a_copy_that_others_rely_on_does_not_begin_again(
    node: NodeDriver, relied_on: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elected, it would have them cut what it has lost."""

    def cut_off(*_: object) -> list[Record]:
        raise NotController

    topic = followed(node, **relied_on)
    monkeypatch.setattr(in_sync_decisions, "replica_offline", cut_off)
    lose(node)
    node.advance(20_000)
    assert list(node.node.broker.assignment.offline) == [(topic, 0)]
    assert directories(node) == []
    with pytest.raises(
        NotLeader
    ):  # Clients are to go to the leader, wherever this one's files are.
        node.node.broker.lookup.leading(topic, 0)
    # Until no broker does any more: the controller has the report.
    monkeypatch.undo()
    node.advance(12_000)
    assert not node.node.broker.assignment.offline
    replica = node.node.broker.assignment.find((topic, 0))
    assert replica is not None
    assert replica.state.log_end_offset == 0
    assert not replica.state.leads


def test_the_only_copy_does_not_begin_again(node: NodeDriver) -> None:
    topic = node.create("t")
    node.produced(topic, batch_of([1]))
    lose(node)
    node.advance(60_000)
    assert list(node.node.broker.assignment.offline) == [(topic, 0)]
    assert [line.event for line in node.lines].count("partition offline") == 1


def test_a_crash_before_the_directory_was_made_is_as_if_it_was_lost(
    node: NodeDriver, disk: Failing
) -> None:
    """A copy that is out of sync since begins; none of ours asks for what was never there."""
    disk.failing = True
    decide(node, *topic_records(leader=OTHER, in_sync=(OTHER,)))
    assert directories(node) == []
    disk.failing = False
    node.crash()
    node.advance(6_000)
    assert directories(node) == ["t-0"]
    answer = node.answer(node.produce(TOPIC, batch_of([1])))
    assert answer is not None
    assert answer[0].partitions[0].error_code == NotLeader.code


# --- topics that were deleted while this broker was away ---------------------------------------
def test_a_snapshot_takes_what_it_does_not_name_and_brings_what_is_new(node: NodeDriver) -> None:
    """The cluster no longer records that the topic was ever there; this broker's own log does."""
    gone, stays = node.create("gone", partitions=2), node.create("stays")
    node.produced(gone, batch_of([1]))
    node.produced(stays, batch_of([1]))
    theirs = Image({})
    records = node.node.broker.metadata.image.snapshot_records()
    theirs.replay_entry(decode_entry(encode_entry(records)))
    theirs.replay_entry([RemoveTopicRecord(gone), *topic_records()])
    theirs.removed_topic_ids.clear()
    snapshot = Snapshot(
        SnapshotMeta(theirs.version + 50, 1, {}), encode_entry(theirs.snapshot_records())
    )
    unknown = Path(node.config.data_dir) / "data" / "gone-7"
    unknown.mkdir()
    node.node.broker.metadata.restore(snapshot, node.now)
    node.send(Tick())
    while node.syncs:
        node.flush()
    assert directories(node) == ["gone-7", "stays-0", "t-0"]
    assert node.broker_end(stays) == 1
    assert (TOPIC, 0) in node.node.broker.replicas
    assert node.node.broker.metadata.image.version == theirs.version + 50
