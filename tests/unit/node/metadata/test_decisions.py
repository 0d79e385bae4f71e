"""Decisions that take time, partitions that cannot be opened, answers that wait for their turn."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.batch.schema import serialize_schema
from quiverlog.node.runtime.clock import BelievedClock
from quiverlog.node.runtime.purgatory import WAKES_PER_CALL
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.types import EARLIEST, Now
from quiverlog.wire import messages as m
from tests.support.node import SCHEMA, NodeDriver, batch_of

HOUR_US = 3_600_000_000


@pytest.fixture
def node(tmp_path: Path) -> NodeDriver:
    return NodeDriver(tmp_path)


def create_request(*names: str, partitions: int = 1) -> m.CreateTopicsRequest:
    schema = serialize_schema(SCHEMA)
    return m.CreateTopicsRequest(topics=[m.NewTopic(name, schema, partitions) for name in names])


def entry_of(node: NodeDriver, correlation: int) -> Any:
    answer = node.answer(correlation)
    return None if answer is None else answer[0].partitions[0]


# --- decisions ----------------------------------------------------------------------------------
def test_of_two_creations_in_one_read_one_wins(node: NodeDriver) -> None:
    requests = [(create_request("t"), b""), (create_request("t"), b"")]
    node.request_many(requests)
    codes = [node.answer(r.correlation_id)[0].topics[0].error_code for r, _ in requests]  # type: ignore[index]
    assert sorted(codes) == [0, errors.TopicExists.code]


def test_nothing_holds_before_it_is_durable(node: NodeDriver) -> None:
    node.hold_jobs = True
    created = node.request(create_request("t"))
    for kind in ("create directories", "metadata append"):
        while not node.jobs:
            node.step()
        assert [start.job.kind for start in node.jobs] == [kind]
        assert node.answer(created) is None
        assert node.node.broker.metadata.image.topics == {}
        node._run(node.jobs.pop(0))
    node.hold_jobs = False
    node.run_until_idle()
    assert node.answer(created) is not None


@pytest.mark.parametrize("written", [True, False])
def test_a_failed_append_changes_nothing_and_the_directory_still_starts(
    node: NodeDriver, *, written: bool
) -> None:
    """The record may be in the file, so its directories stay (the broker never started again)."""
    old = node.create("old")
    node.produced(old, batch_of([1]))
    node.hold_jobs = True
    created = node.request(create_request("t", partitions=2))
    behind = node.request(create_request("u"))
    while not node.jobs or node.jobs[0].job.kind != "metadata append":
        node.step()
    append = node.jobs.pop(0)
    if written:
        append.job.run()
    node._run(append, OSError(errno.EIO, "fsync failed"))
    node.hold_jobs = False
    node.run_until_idle()
    # What was never proposed never holds; what was is on the disk or not.
    for correlation, error in ((created, errors.OutcomeUnknown), (behind, errors.StorageFault)):
        answer = node.answer(correlation)
        assert answer is not None
        assert answer[0].topics[0].error_code == error.code
    assert list(node.node.broker.metadata.image.topics) == ["old"]
    assert list(node.node.broker.metadata.pending.topics) == ["old"]
    assert node.produced(old, batch_of([2])).base_offset == 1, "rows are taken as before"
    node.crash()
    names = set(node.node.broker.metadata.image.topics)
    assert names == ({"old", "t"} if written else {"old"})
    assert not node.node.broker.assignment.offline
    assert node.offset_of(old, -1).offset == 2


def test_creating_what_is_being_deleted_waits_for_the_end(node: NodeDriver) -> None:
    old = node.create()
    node.produced(old, batch_of([1]))
    node.request_many([(m.DeleteTopicsRequest(names=["t"]), b""), (create_request("t"), b"")])
    (topic,) = node.call(m.MetadataRequest())[0].topics
    assert topic.topic_id != old
    assert node.offset_of(topic.topic_id, -1).offset == 0


def test_ids_of_removed_topics_survive_a_snapshot(node: NodeDriver) -> None:
    topic = node.create()
    node.call(m.DeleteTopicsRequest(names=["t"]))
    image = node.node.broker.metadata.image
    copy = type(image)({})
    for record in image.snapshot_records():
        copy.replay(record)
    assert list(copy.removed_topic_ids) == [topic]


# --- partitions that cannot be opened -----------------------------------------------------------
@pytest.mark.parametrize("starts", [1, 2])
def test_a_directory_that_was_emptied_is_offline_and_gives_no_offset_out_again(
    node: NodeDriver, starts: int
) -> None:
    topic = node.create(partitions=2)
    node.produced(topic, batch_of([1]))
    node.stop()
    paths = {n: p for n in ("t-0", "t-1") for p in Path(node.config.data_dir).rglob(n)}
    for path in paths["t-0"].iterdir():
        path.unlink()
    for start in range(starts):
        if start:
            node.stop()
        node.start()
    answer = entry_of(node, node.produce(topic, batch_of([2])))
    assert answer.error_code == errors.StorageFault.code
    assert "emptied" in answer.error_message
    assert node.produced(topic, batch_of([3]), partition=1).base_offset == 0, "it was never written"
    node.stop()
    (paths["t-0"] / "emptied").unlink()
    node.start()
    assert node.produced(topic, batch_of([2])).base_offset == 0, "the operator wanted it so"


def test_a_partition_without_rows_may_lose_its_only_file_after_a_clean_stop(
    node: NodeDriver,
) -> None:
    """`partition.json` is not durable: a power failure after the stop may take it."""
    topic = node.create()
    node.stop()
    for path in next(Path(node.config.data_dir).rglob("t-0")).iterdir():
        path.unlink()
    node.start()
    assert node.produced(topic, batch_of([1])).base_offset == 0


def test_a_missing_directory_is_offline_and_everything_else_works(node: NodeDriver) -> None:
    topic = node.create(partitions=2)
    node.produced(topic, batch_of([1]))
    node.produced(topic, batch_of([1, 2]), partition=1)
    node.stop()
    (path,) = Path(node.config.data_dir).rglob("t-0")
    shutil.rmtree(path)
    node.start()
    for answer in (
        entry_of(node, node.produce(topic, batch_of([2]))),
        node.fetched(topic)[0],
        node.offset_of(topic, -1),
    ):
        assert answer.error_code == errors.StorageFault.code
        assert "missing" in answer.error_message
    assert node.offset_of(topic, -1, partition=1).offset == 2
    assert node.produced(topic, batch_of([3]), partition=1).base_offset == 2
    response, _ = node.call(m.DescribeTopicsRequest())
    assert [p.log_end_offset for p in response.topics[0].partitions] == [-1, 3]
    assert node.metrics.partitions_offline == 1
    assert sum(line.event == "partition offline" for line in node.lines) == 1
    response, _ = node.call(m.DeleteTopicsRequest(names=["t"]))
    assert response.topics[0].error_code == 0
    assert node.metrics.partitions_offline == 0


def test_opening_is_tried_again_when_descriptors_were_short(tmp_path: Path) -> None:
    class Short(PosixDisk):
        short = False

        def entries(self, path: str) -> dict[str, bool]:
            if self.short and path.endswith("t-0"):
                raise OSError(errno.EMFILE, "Too many open files", path)
            return super().entries(path)

    disk = Short()
    node = NodeDriver(tmp_path, lambda: disk)
    topic = node.create()
    disk.short = True
    node.restart()
    assert node.offset_of(topic, -1).error_code == errors.StorageFault.code
    disk.short = False
    node.advance(6_000)
    assert node.offset_of(topic, -1).error_code == 0
    assert node.produced(topic, batch_of([1])).base_offset == 0


# --- the order of answers -----------------------------------------------------------------------
def test_answers_of_a_partition_do_not_overtake_each_other(tmp_path: Path) -> None:
    """The first request waits for another partition's disk: those behind it wait for it."""
    node = NodeDriver(tmp_path, flushes_in_flight_max=1)
    topic = node.create(partitions=2)
    body = bytes(batch_of([1]))
    entries = [m.ProducePartition(topic, p, -1, len(body)) for p in (0, 1)]
    first = node.request(m.ProduceRequest(partitions=entries), body * 2)
    second = node.produce(topic, batch_of([2]))
    refused = node.produce(topic, batch_of([3]), durability=9)
    node.flush()  # Partition 0, the rows of the first request.
    node._run(node.syncs.pop(0))
    while node.syncs and node.answer(first) is None:
        assert node.answer(second) is None
        assert node.answer(refused) is None
        node.flush()
    while node.syncs:
        node.flush()
    order = [r.correlation_id for r in node.responses]
    assert order.index(first) < order.index(second) < order.index(refused)


def _written_topic(node: NodeDriver) -> bytes:
    """Two partitions whose next flushes may run at the same time, as the first of a log may not."""
    topic = node.create(partitions=2)
    for partition in (0, 1):
        node.produced(topic, batch_of([0]), partition=partition)
    return topic


def test_a_request_that_times_out_lets_those_behind_it_go(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path, flushes_in_flight_max=3)
    topic = _written_topic(node)
    body = bytes(batch_of([1]))
    entries = [m.ProducePartition(topic, p, -1, len(body)) for p in (0, 1)]
    first = node.request(m.ProduceRequest(timeout_ms=500, partitions=entries), body * 2)
    second = node.produce(topic, batch_of([2]))
    slow = node.syncs.pop()
    node.flush()
    node.flush()
    assert node.answer(second) is None
    node.advance(501)
    assert node.answer(first) is not None
    result = entry_of(node, second)
    assert result is not None
    assert result.error_code == 0
    node._run(slow)


def test_an_acknowledgement_in_a_request_that_times_out_overtakes_no_other(tmp_path: Path) -> None:
    """Both wait for partition 1; partition 0 is on the disk. The second request's time is up."""
    node = NodeDriver(tmp_path, flushes_in_flight_max=3)
    topic = _written_topic(node)
    body = bytes(batch_of([1]))
    entries = [m.ProducePartition(topic, p, -1, len(body)) for p in (0, 1)]
    first = node.request(m.ProduceRequest(timeout_ms=30_000, partitions=entries), body * 2)
    second = node.request(m.ProduceRequest(timeout_ms=20, partitions=entries), body * 2)
    slow = next(s for s in node.syncs if s.job.key.endswith("t-1"))
    node.syncs.remove(slow)
    while node.syncs:
        node.flush()
    node.advance(21)
    answer = node.answer(second)
    assert answer is not None
    codes = [result.error_code for result in answer[0].partitions]
    assert codes == [errors.RequestTimedOut.code] * 2
    assert node.answer(first) is None
    node._run(slow)
    assert entry_of(node, first).error_code == 0


# --- bounded work -------------------------------------------------------------------------------
def test_many_readers_of_one_partition_are_woken_over_several_calls(tmp_path: Path) -> None:
    node = NodeDriver(tmp_path)
    topic = node.create()
    count = 2 * WAKES_PER_CALL + 10
    for _ in range(count):
        node.request(node.fetch_request(topic, 0, max_wait_ms=60_000))
    node.hold_jobs = True
    node.produce(topic, batch_of([1]))
    before = len(node.responses)
    node._run(node.syncs.pop())
    assert 0 < len(node.responses) - before <= WAKES_PER_CALL + 1
    assert node.node.next_deadline_us() == 0
    node.hold_jobs = False
    node.run_until_idle()
    assert len(node.responses) - before == count + 1
    assert node.node.broker.purgatory.live == 0


# --- clocks -------------------------------------------------------------------------------------
def test_a_clock_that_jumps_ahead_deletes_nothing(node: NodeDriver) -> None:
    topic = node.create(retention_ms=str(7 * 24 * 3_600_000))
    node.produced(topic, batch_of([1] * 10))
    node.advance(15_000)
    node.wall_us += 8 * 24 * HOUR_US
    node.advance(12_000)
    node.wall_us -= 8 * 24 * HOUR_US
    node.advance(60_000)
    assert node.offset_of(topic, EARLIEST).offset == 0
    assert any("wall clock jumped" in line.event for line in node.lines)


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_a_clock_that_is_ahead_at_a_start_deletes_nothing_for_an_hour(
    node: NodeDriver, how: str
) -> None:
    topic = node.create(retention_ms=str(7 * 24 * 3_600_000))
    node.produced(topic, batch_of([1] * 10))
    node.advance(15_000)
    node.wall_us += 8 * 24 * HOUR_US
    getattr(node, how)()
    node.advance(59 * 60_000)
    while node.syncs:
        node.flush()
    assert node.offset_of(topic, EARLIEST).offset == 0
    warnings = [line for line in node.lines if "far ahead of its last note" in line.event]
    assert len(warnings) == 1
    since_note_ms = 15_000 if how == "crash" else 0
    assert warnings[0].fields["ahead_ms"] == 8 * 24 * 3_600_000 + since_note_ms
    # Still there after an hour of the monotonic clock: the broker was off meanwhile.
    node.advance(2 * 60_000)
    assert node.offset_of(topic, EARLIEST).offset == 10


def test_a_start_without_any_row_believes_the_clock(node: NodeDriver) -> None:
    """A segment that lost its rows in a power failure has no newest row to compare with."""
    topic = node.create(retention_ms="60000")
    node.produce(topic, batch_of([1] * 10))  # Never flushed.
    for path in Path(node.config.data_dir, "data").rglob("*.log"):
        with path.open("r+b") as file:
            file.truncate(64)
        for name in ("recovery-point", "recovery-point-copy"):
            path.with_name(name).unlink(missing_ok=True)
    node.crash()
    assert node.broker_end(topic) == 0
    assert not any("far ahead" in line.event for line in node.lines)
    node.produced(topic, batch_of([1] * 10))
    node.advance(120_000)
    assert node.offset_of(topic, EARLIEST).offset == 10


def test_a_start_soon_after_the_newest_row_believes_the_clock(node: NodeDriver) -> None:
    topic = node.create(retention_ms="60000")
    node.produced(topic, batch_of([1] * 10))
    node.wall_us += 50 * 60_000_000
    node.restart()
    node.advance(25_000)
    assert node.offset_of(topic, EARLIEST).offset == 10
    assert not any("far ahead" in line.event for line in node.lines)


def test_a_clock_that_stays_ahead_is_believed_in_the_end() -> None:
    clock = BelievedClock()
    clock.read(Now(0, 0))
    ahead = 100 * HOUR_US
    assert clock.read(Now(10, ahead)).wall_us == 10
    assert clock.suspects
    assert clock.read(Now(HOUR_US - 1, ahead + HOUR_US)).wall_us == HOUR_US - 1
    assert clock.read(Now(HOUR_US + 10, ahead + HOUR_US)).wall_us == ahead + HOUR_US
    assert not clock.suspects


def test_a_clock_that_goes_back_is_believed_at_once() -> None:
    clock = BelievedClock()
    clock.read(Now(0, 50 * HOUR_US))
    assert clock.read(Now(10, 0)).wall_us == 0
