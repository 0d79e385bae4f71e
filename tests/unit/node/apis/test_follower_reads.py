"""FETCH at a follower: rows of the copy, below the high watermark that its leader sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog import errors
from quiverlog.batch.header import SIZE_END
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.wire import messages as m
from tests.support.copies import BOTH, COPY, LEADER, Copies
from tests.support.node import batch_of, rows_of


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def read(copies: Copies, offset: int = 0, *, follower: bool = True, **options: Any) -> Any:
    """Return what a fetch at the copy gives that does not wait."""
    request = copies.copy.fetch_request(copies.topic, offset, **options)
    request.partitions[0].from_follower = follower
    response, body = copies.copy.call(request)
    return response.partitions[0], body


def poll(copies: Copies, offset: int, **options: Any) -> int:
    request = copies.copy.fetch_request(copies.topic, offset, max_wait_ms=1_000, **options)
    request.partitions[0].from_follower = True
    return copies.copy.request(request)


def write(copies: Copies, *values: int) -> None:
    copies.leader.produce(copies.topic, batch_of(values))


def test_a_copy_is_read_up_to_the_high_watermark_that_its_leader_sent(copies: Copies) -> None:
    write(copies, 1, 2, 3)
    assert read(copies)[0].error_code == errors.ReplicaNotAvailable.code, "it has asked for nothing"
    copies.settle()
    result, body = read(copies)
    assert (result.error_code, result.high_watermark, result.leader_epoch) == (0, 3, 3)
    assert rows_of(body) == [(0, 3)]
    assert body == copies.leader.fetched(copies.topic)[1]


def test_rows_above_its_high_watermark_are_not_shown(copies: Copies) -> None:
    """Rule 17 of docs/replication-rules.md."""
    write(copies, 1)
    copies.settle()
    write(copies, 2, 3)
    copies.carry()
    assert copies.replica.log.log_end_offset == 3, "the rows are here"
    assert copies.replica.state.high_watermark == 1
    result, body = read(copies)
    assert (result.error_code, rows_of(body)) == (0, [(0, 1)])
    for offset in (1, 2, 3):
        result, body = read(copies, offset)
        assert (result.error_code, result.high_watermark, body) == (0, 1, b""), offset


def test_a_reader_that_did_not_ask_for_a_copy_is_sent_to_the_leader(copies: Copies) -> None:
    write(copies, 1)
    copies.settle()
    assert read(copies, follower=False)[0].error_code == errors.NotLeader.code
    request = copies.leader.fetch_request(copies.topic, 0)
    request.partitions[0].from_follower = True
    assert copies.leader.call(request)[1], "a leader will do, too"


def test_only_fetch_is_answered_by_a_copy(copies: Copies) -> None:
    write(copies, 1)
    copies.settle()
    topic, epoch = copies.topic, 3
    for request in (
        m.ListOffsetsRequest(partitions=[m.ListOffsetsPartition(topic, 0, epoch)]),
        m.EpochEndOffsetsRequest(partitions=[m.EpochEndOffsetsPartition(topic, 0, epoch, 3)]),
        m.DescribeRangesRequest(partitions=[m.RangePartition(topic, 0, 0, 1, 9)]),
    ):
        response, _ = copies.copy.call(request)
        assert response.partitions[0].error_code == errors.NotLeader.code, request


# --- the long poll ---------------------------------------------------------------------------
def test_a_long_poll_wakes_when_the_copys_high_watermark_moves(copies: Copies) -> None:
    copies.settle()
    waiting = poll(copies, 0)
    write(copies, 1, 2)
    copies.carry()
    assert copies.replica.log.log_end_offset == 2
    assert copies.copy.answer(waiting) is None, "the rows are here, and may still vanish"
    copies.settle()
    answer = copies.copy.answer(waiting)
    assert answer is not None
    assert rows_of(answer[1]) == [(0, 2)]


def test_an_offset_that_is_not_copied_yet_waits(copies: Copies) -> None:
    """The reader has read further elsewhere: only the leader has the end of the log.

    Rule 17 of docs/replication-rules.md.
    """
    write(copies, 1)
    copies.settle()
    waiting = poll(copies, 3, last_epoch=3)
    write(copies, 2, 3)
    write(copies, 4)
    assert copies.copy.answer(waiting) is None
    copies.settle()
    answer = copies.copy.answer(waiting)
    assert answer is not None
    assert rows_of(answer[1]) == [(3, 1)]


@pytest.mark.parametrize("last_epoch", [-1, 3])
def test_an_offset_that_is_never_copied_is_not_called_out_of_range(
    copies: Copies, last_epoch: int
) -> None:
    write(copies, 1)
    copies.settle()
    waiting = poll(copies, 2, last_epoch=last_epoch)
    copies.copy.advance(999)
    assert copies.copy.answer(waiting) is None
    copies.copy.advance(1)
    answer = copies.copy.answer(waiting)
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.OffsetNotAvailable.code
    assert errors.OffsetNotAvailable.retriable
    assert read(copies, -1)[0].error_code == errors.OffsetOutOfRange.code


def test_long_polls_of_many_partitions_wait_alike(copies: Copies) -> None:
    """Where there are several entries, one that is not copied yet ends no wait."""
    write(copies, 1)
    copies.settle()
    entries = [m.FetchPartition(copies.topic, 0, -1, o, -1, 0, -1, True) for o in (2, 1)]
    waiting = copies.copy.request(m.FetchRequest(max_wait_ms=1_000, partitions=entries))
    assert copies.copy.answer(waiting) is None
    write(copies, 2, 3)
    write(copies, 4)
    copies.settle()
    answer = copies.copy.answer(waiting)
    assert answer is not None


# --- epochs ----------------------------------------------------------------------------------
def test_the_readers_epochs_are_checked_as_at_the_leader(copies: Copies) -> None:
    write(copies, 1, 2)
    copies.settle()
    assert read(copies, leader_epoch=2)[0].error_code == errors.FencedLeaderEpoch.code
    assert read(copies, leader_epoch=4)[0].error_code == errors.UnknownLeaderEpoch.code
    assert read(copies, 2, leader_epoch=3, last_epoch=3)[0].error_code == 0
    copies.change(leader_id=LEADER, leader_epoch=5)
    write(copies, 3)
    copies.later()
    assert read(copies, 2, last_epoch=3)[0].error_code == 0
    for offset, last_epoch in ((3, 3), (4, 3), (3, 4)):
        result, body = read(copies, offset, last_epoch=last_epoch)
        assert (result.error_code, body) == (errors.LogTruncated.code, b""), (offset, last_epoch)
    assert read(copies, 3, last_epoch=6)[0].error_code == errors.UnknownLeaderEpoch.code
    result, _ = read(copies, 9, last_epoch=6)
    assert result.error_code == errors.OffsetNotAvailable.code, "it may not have come so far"


@pytest.mark.parametrize("follower", [False, True])
def test_a_broker_without_the_newest_leader_in_its_metadata_reports_no_lost_rows(
    copies: Copies, follower: bool
) -> None:
    """A leader that was deposed without its notice: the reader has rows of its successor."""
    write(copies, 1, 2)
    copies.settle()
    node = copies.copy if follower else copies.leader
    request = node.fetch_request(copies.topic, 2, leader_epoch=3, last_epoch=4)
    request.partitions[0].from_follower = follower
    result = node.call(request)[0].partitions[0]
    assert result.error_code == errors.UnknownLeaderEpoch.code
    assert result.diverging_end_offset == -1
    asked = m.EpochEndOffsetsPartition(copies.topic, 0, 3, 4)
    result = copies.leader.call(m.EpochEndOffsetsRequest(partitions=[asked]))[0].partitions[0]
    assert result.error_code == errors.UnknownLeaderEpoch.code


# --- copies that may not be read ---------------------------------------------------------------
def test_a_copy_that_has_not_agreed_with_the_new_leader_is_not_read(copies: Copies) -> None:
    write(copies, 1)
    copies.settle()
    waiting = poll(copies, 1)
    copies.change(copies.copy, leader_id=LEADER, leader_epoch=4)
    answer = copies.copy.answer(waiting)
    assert answer is not None, "no fetch waits for an old leader's rows"
    assert answer[0].partitions[0].error_code == errors.ReplicaNotAvailable.code
    assert read(copies)[0].error_code == errors.ReplicaNotAvailable.code
    copies.change(copies.leader, leader_id=LEADER, leader_epoch=4)
    copies.later()
    assert rows_of(read(copies)[1]) == [(0, 1)]


def test_a_copy_that_is_cut_is_not_read_meanwhile(copies: Copies) -> None:
    """The copy has a row of a leader that is gone: it leads nowhere and is cut."""
    write(copies, 1)
    copies.settle()
    copies.change(copies.copy, leader_id=COPY, leader_epoch=4, in_sync_replicas=(COPY,))
    copies.copy.produce(copies.topic, batch_of([7]))
    copies.change(leader_id=LEADER, leader_epoch=5, in_sync_replicas=BOTH)
    copies.copy.hold_jobs = True
    for _ in range(50):
        copies.leader.advance(100)
        copies.copy.advance(100)
        copies.carry()
    assert copies.replica.cutting
    assert read(copies)[0].error_code == errors.ReplicaNotAvailable.code
    copies.copy.hold_jobs = False
    while copies.copy.syncs:
        copies.copy.flush()
    copies.copy.run_until_idle()
    copies.later()
    assert copies.replica.log.log_end_offset == 1
    assert rows_of(read(copies)[1]) == [(0, 1)]


def test_a_copy_out_of_sync_is_not_read(copies: Copies) -> None:
    write(copies, 1)
    copies.settle()
    waiting = poll(copies, 1)
    copies.change(in_sync_replicas=(LEADER,))
    answer = copies.copy.answer(waiting)
    assert answer is not None
    assert answer[0].partitions[0].error_code == errors.ReplicaNotAvailable.code
    assert read(copies)[0].error_code == errors.ReplicaNotAvailable.code
    copies.change(in_sync_replicas=BOTH)
    assert rows_of(read(copies)[1]) == [(0, 1)]


def test_a_copy_with_a_fault_is_not_read(copies: Copies) -> None:
    write(copies, 1)
    copies.settle()
    copies.copy.node.broker.flushes.declare_fault(
        copies.replica, "the test sets it", copies.copy.now
    )
    assert read(copies)[0].error_code == errors.ReplicaNotAvailable.code


def test_a_copy_without_a_leader_is_not_read(copies: Copies) -> None:
    write(copies, 1)
    copies.settle()
    copies.change(copies.copy, leader_id=-1, leader_epoch=4)
    assert read(copies)[0].error_code == errors.ReplicaNotAvailable.code


def test_a_broker_without_a_copy_names_the_leader(copies: Copies) -> None:
    write(copies, 1)
    copies.settle()
    copies.change(copies.copy, replicas=(LEADER,), in_sync_replicas=(LEADER,))
    result, _ = read(copies)
    assert result.error_code == errors.NotLeader.code
    assert "broker 0" in result.error_message


def test_damage_of_a_copy_is_no_damage_of_the_log(copies: Copies) -> None:
    """A reader that steps over damaged rows would give up what the leader has."""
    write(copies, 1)
    copies.settle()
    data = Path(copies.copy.config.data_dir) / "data" / "t-0"
    (path,) = data.glob("*.log")
    with path.open("r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES)
        file.write(b"\xff" * SIZE_END)
    result, body = read(copies)
    assert (result.error_code, body) == (errors.ReplicaNotAvailable.code, b"")
    assert result.damage_end_offset == -1


def test_a_reader_of_a_copy_that_becomes_the_leader_reads_on(copies: Copies) -> None:
    write(copies, 1)
    copies.settle()
    waiting = poll(copies, 1)
    copies.change(leader_id=COPY, leader_epoch=4, in_sync_replicas=(COPY,))
    copies.copy.produce(copies.topic, batch_of([2]))
    answer = copies.copy.answer(waiting)
    assert answer is not None
    assert rows_of(answer[1]) == [(1, 1)]


def test_a_copy_that_finds_no_descriptor_for_its_cut_is_cut_later(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator, seed 86009: its disk counted as failed, and it was out of sync for ever."""
    write(copies, 1)
    copies.settle()
    copies.change(copies.copy, leader_id=COPY, leader_epoch=4, in_sync_replicas=(COPY,))
    copies.copy.produce(copies.topic, batch_of([7]))
    failed: list[int] = []
    write_whole = PosixDisk.write_file_atomic

    def write_file_atomic(disk: PosixDisk, path: str, contents: bytes) -> None:
        if len(failed) < 3 and path.endswith("truncate-to"):
            failed.append(1)
            raise errors.ThrottledBroker("Too many open files.", file=path)
        write_whole(disk, path, contents)

    monkeypatch.setattr(PosixDisk, "write_file_atomic", write_file_atomic)
    copies.change(leader_id=LEADER, leader_epoch=5, in_sync_replicas=BOTH)
    rounds = 0
    while not failed:
        go_on(copies)
        rounds += 1
        assert rounds < 100, "a cut begins"
    assert copies.replica.cutting
    assert copies.replica.fault is None
    for _ in range(50):
        go_on(copies)
    assert len(failed) == 3
    copies.later()
    assert copies.replica.log.log_end_offset == 1
    assert rows_of(read(copies)[1]) == [(0, 1)]


def go_on(copies: Copies) -> None:
    copies.leader.advance(100)
    while copies.copy.syncs:
        copies.copy.flush()
    copies.copy.advance(100)
    copies.carry()
