"""What a node does for its next start: flushes without waiting requests, what a log is opened
with."""

from __future__ import annotations

import errno
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from quiverlog.errors import ThrottledBroker
from quiverlog.limits import (
    MIB,
    STAGED_UNFLUSHED_BYTES_MAX,
    UNFLUSHED_BYTES_MAX,
    UNFLUSHED_MS_MAX,
)
from quiverlog.node.partitions.replica import Replica, log_config
from quiverlog.storage.disk.disk import Buffer, write_error
from quiverlog.storage.disk.posix import PosixDisk, PosixFile
from quiverlog.storage.log.log import Log
from quiverlog.storage.segment.epochs import EPOCHS_FILE
from quiverlog.types import EARLIEST, NO_EPOCH, STAGED_TOPIC
from quiverlog.wire import messages as m
from tests.support.node import NodeDriver, batch_of


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def replica_of(node: NodeDriver, topic: bytes, partition: int = 0) -> Replica:
    return node.node.broker.replicas[topic, partition]


def put(node: NodeDriver, topic: bytes, rows: int = 10, partition: int = 0) -> int:
    """Rows into the page cache; returns their bytes."""
    body = bytes(batch_of(range(rows)))
    node.produce(topic, body, partition=partition)
    return len(body)


# --- flushes in the background ----------------------------------------------------------------
def test_a_memory_topic_is_flushed_after_30_s_and_a_start_scans_what_came_since(
    node: NodeDriver,
) -> None:
    topic = node.create(durability="memory")
    put(node, topic, 1_000)
    node.advance(UNFLUSHED_MS_MAX - 1)
    assert not node.syncs
    node.advance(1)
    assert len(node.syncs) == 1
    node.flush()
    assert replica_of(node, topic).state.flushed_offset == 1_000
    since = put(node, topic, 5)
    node.crash()
    assert replica_of(node, topic).log.recovery.bytes_scanned == since
    assert node.broker_end(topic) == 1_005


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_memory_topic_is_flushed_after_many_bytes(node: NodeDriver, more: int) -> None:
    topic = node.create(durability="memory")
    log = replica_of(node, topic).log
    assert log.config.unflushed_bytes_max == UNFLUSHED_BYTES_MAX
    byte_count = put(node, topic)
    log.config = replace(log.config, unflushed_bytes_max=2 * byte_count - more)
    assert not node.syncs
    put(node, topic)
    assert len(node.syncs) == (more >= 0)


def test_staged_rows_are_flushed_while_others_come(node: NodeDriver) -> None:
    """A publish waits until they are flushed."""
    topic = replica_of(node, node.create()).topic
    assert log_config(topic).unflushed_bytes_max == UNFLUSHED_BYTES_MAX
    topic_of_rows = copy(topic)
    topic_of_rows.name = STAGED_TOPIC
    staged = log_config(topic_of_rows)
    assert staged.unflushed_bytes_max == STAGED_UNFLUSHED_BYTES_MAX < UNFLUSHED_BYTES_MAX
    assert replace(staged, unflushed_bytes_max=UNFLUSHED_BYTES_MAX) == log_config(topic)


def test_a_memory_topic_is_flushed_when_a_segment_is_rolled(node: NodeDriver) -> None:
    topic = node.create(durability="memory", segment_bytes=str(64 * 1024))
    log = replica_of(node, topic).log
    while len(log.reader.segments) < 2:
        assert not node.syncs
        last = put(node, topic, 1_000)
    assert len(node.syncs) == 1
    node.flush()
    node.crash()
    assert replica_of(node, topic).log.recovery.bytes_scanned <= last


def test_a_memory_topic_is_flushed_at_64_mib(node: NodeDriver) -> None:
    topic = node.create(durability="memory")
    body = bytes(batch_of(range(800_000)))
    written = 0
    while written < 64 * MIB:
        assert not node.syncs, written
        node.produce(topic, body)
        written += len(body)
    assert len(node.syncs) == 1
    node.flush()
    since = put(node, topic)
    node.crash()
    assert replica_of(node, topic).log.recovery.bytes_scanned == since


def test_the_recovery_point_of_an_idle_log_is_written(node: NodeDriver) -> None:
    """Flushes that clients wait for leave it out: it is two more writes."""
    topic = node.create()
    node.produced(topic, bytes(batch_of([1])))  # The first flush of a segment writes one.
    node.produced(topic, bytes(batch_of(range(1_000))))
    assert not node.syncs
    node.advance(UNFLUSHED_MS_MAX)
    assert len(node.syncs) == 1, "a flush for the recovery point alone"
    node.flush()
    node.advance(2 * UNFLUSHED_MS_MAX)
    assert not node.syncs, "once is enough"
    node.crash()
    assert replica_of(node, topic).log.recovery.bytes_scanned == 0


def test_a_log_whose_rows_were_all_taken_costs_an_idle_node_nothing(node: NodeDriver) -> None:
    """Such a log flushed thousands of times a second: there was no segment for a recovery point."""
    topic = node.create(durability="memory", retention_ms="1000")
    put(node, topic)
    node.advance(20_000)
    assert replica_of(node, topic).log.reader.segments == []
    for _ in range(5):
        node.flush()
        node.advance(UNFLUSHED_MS_MAX)
    assert not node.syncs
    before = node.node.broker.metrics.syncs_completed
    for _ in range(5):
        node.flush()
        node.advance(UNFLUSHED_MS_MAX)
    assert node.node.broker.metrics.syncs_completed == before


def test_a_flush_that_a_caller_waits_for_is_not_in_the_background(node: NodeDriver) -> None:
    topic = node.create()
    node.produced(topic, bytes(batch_of([1])))
    with mock.patch.object(Log, "begin_flush", autospec=True, side_effect=Log.begin_flush) as begin:
        node.produced(topic, bytes(batch_of([1])))
        node.advance(UNFLUSHED_MS_MAX)
        node.flush()
    assert [call.kwargs for call in begin.call_args_list] == [
        {"background": False},
        {"background": True},
    ]


def test_a_flush_that_was_postponed_does_not_wait_for_those_in_the_background(
    node: NodeDriver,
) -> None:
    idle = node.create("idle", durability="memory")
    busy = node.create("busy")
    put(node, idle)
    asked = node.produce(busy, bytes(batch_of([1])))
    node.flush(OSError(errno.EMFILE, "too many open files"))
    node.advance(1_000)
    node.flush()
    answer = node.answer(asked)
    assert answer is not None, "it waited for 30 s"
    assert answer[0].partitions[0].error_code == 0


class _NoDescriptors(PosixDisk):
    """While `gone`, no file can be made."""

    gone = False

    def open(self, path: str, *, create: bool) -> PosixFile:
        if create and self.gone:
            raise write_error(path, OSError(errno.EMFILE, "Too many open files"))
        return super().open(path, create=create)


def test_an_append_without_a_descriptor_for_its_segment_is_tried_again(tmp_path: Path) -> None:
    """Nothing was written, so nothing is in doubt: no fault, and the client may send it again."""
    disk = _NoDescriptors()
    node = NodeDriver(tmp_path, lambda: disk)
    topic = node.create()
    disk.gone = True
    asked = node.produce(topic, bytes(batch_of([1])))
    answer = node.answer(asked)
    assert answer is not None
    assert answer[0].partitions[0].error_code == ThrottledBroker.code
    disk.gone = False
    assert node.produced(topic, bytes(batch_of([1]))).base_offset == 0


class _NoRoomForEpochs(PosixDisk):
    """While `full`, the list of epochs cannot be saved."""

    full = False

    def write_file_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        if self.full and path.endswith(EPOCHS_FILE):
            raise write_error(path, OSError(errno.ENOSPC, "No space left on device"))
        super().write_file_atomic(path, data, durable=durable)


def test_a_list_of_epochs_that_could_not_be_saved_is_saved_without_more_rows(
    tmp_path: Path,
) -> None:
    """The leader may wait for it, and no row may come. Seen in a simulated cluster (98001038)."""
    disk = _NoRoomForEpochs()
    node = NodeDriver(tmp_path, lambda: disk)
    topic = node.create(durability="memory")
    put(node, topic)
    disk.full = True
    node.advance(UNFLUSHED_MS_MAX)
    node.flush()
    log = replica_of(node, topic).log
    assert (log.flushed_offset, log.saved_epoch) == (10, NO_EPOCH)
    disk.full = False
    for _ in range(2):
        node.advance(UNFLUSHED_MS_MAX)
        node.flush()
    assert log.saved_epoch == 0
    node.advance(UNFLUSHED_MS_MAX)
    assert not node.syncs, "and no more than once"


# --- retention --------------------------------------------------------------------------------
def test_a_log_start_that_frees_no_file_is_not_written_down(node: NodeDriver) -> None:
    """Every partition has one in each round: it once cost two fsyncs each."""
    topic = node.create(durability="memory", retention_ms="60000")
    put(node, topic, 10)
    node.advance(40_000)
    node.flush()
    node.produce(topic, bytes(batch_of([1] * 5, at_us=node.wall_us)))
    poll = m.ListOffsetsPartition(topic, 0, at=EARLIEST, known_offset=0)
    waiting = node.request(m.ListOffsetsRequest(max_wait_ms=60_000, partitions=[poll]))
    node.hold_jobs = True
    node.advance(35_000)
    assert [start.job.kind for start in node.jobs] == []
    node.hold_jobs = False
    assert node.offset_of(topic, EARLIEST).offset == 10
    answer = node.answer(waiting)
    assert answer is not None, "a caller that waits for the start gets an answer"
    assert answer[0].partitions[0].offset == 10
    assert any(line.event == "retention took rows" for line in node.lines)


def test_a_trim_below_what_retention_took_is_durable_before_it_is_answered(
    node: NodeDriver,
) -> None:
    """The simulator, seed 91095: retention had moved the start in memory only."""
    topic = node.create(durability="memory", retention_ms="60000")
    put(node, topic, 10)
    node.advance(40_000)
    node.flush()
    node.produce(topic, bytes(batch_of([1] * 5, at_us=node.wall_us)))
    node.flush()
    node.advance(35_000)
    assert node.offset_of(topic, EARLIEST).offset == 10
    entry = m.DeleteRecordsPartition(topic, 0, before_offset=7)
    response, _ = node.call(m.DeleteRecordsRequest(partitions=[entry]))
    assert response.partitions[0].log_start_offset == 10
    node.crash()
    assert node.offset_of(topic, EARLIEST).offset == 10


# --- opening ----------------------------------------------------------------------------------
def test_logs_are_opened_with_the_newest_epoch_and_one_cache_of_indexes(
    node: NodeDriver,
) -> None:
    node.create(partitions=3)
    opened: list[dict[str, Any]] = []
    original = Log.open.__func__  # type: ignore[attr-defined]

    def remember(cls: type[Log], *arguments: Any, **options: Any) -> Log:
        opened.append(options)
        log = original(cls, *arguments, **options)
        assert isinstance(log, Log)
        return log

    with mock.patch.object(Log, "open", classmethod(remember)):
        node.crash()
    assert len(opened) == 3
    assert {options["epoch_newest"] for options in opened} == {1}, "begun by the unclean start"
    assert len({id(options["indexes"]) for options in opened}) == 1
    assert opened[0]["indexes"] is not None
