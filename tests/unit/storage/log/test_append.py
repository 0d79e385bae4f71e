"""Appending: all or nothing whatever goes wrong, bounded rows, copies of another log."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import CRC_START, BatchHeader, stamp
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import BatchTooLarge, CorruptLog
from quiverlog.limits import BATCH_ROWS_MAX, KIB, MIB, SEGMENT_ROWS_MAX
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.index import SparseIndex
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, truncate

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(index_interval_bytes=100)

Batch = tuple[BatchHeader, memoryview]


def open_log(disk: SimDisk, *, config: LogConfig = CONFIG) -> Log:
    disk.make_dir(DIRECTORY)
    return Log.open(disk, DIRECTORY, config=config, clean=False, now=NOW)


def batch(rows: int, fill: int = 7) -> Batch:
    return make_batch(rows, NOW.wall_us, 1, fill)


def copied(offset: int, rows: int, epoch: int) -> Batch:
    """A batch as a leader has stored it."""
    _, view = batch(rows)
    stamp(view, 0, offset, epoch)
    return BatchHeader.unpack(view), view


# --- bounds -------------------------------------------------------------------------------------
def test_more_rows_than_a_segment_may_hold_are_refused_before_a_byte_is_written() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append([batch(3)], 0, NOW)
    before = disk.read_file(segment_path(DIRECTORY, 0))
    with pytest.raises(BatchTooLarge):
        log.append([batch(BATCH_ROWS_MAX) for _ in range(258)], 0, NOW)
    assert disk.read_file(segment_path(DIRECTORY, 0)) == before
    assert (log.log_end_offset, log.reader.segment_count) == (3, 1)
    log.append([batch(3)], 0, NOW)
    disk.kill()
    log = open_log(disk)
    assert (log.log_end_offset, log.recovery.damages) == (6, [])


def test_the_first_append_of_an_empty_segment_is_bounded_too() -> None:
    disk = SimDisk()
    log = open_log(disk)
    with pytest.raises(BatchTooLarge):
        log.append([batch(BATCH_ROWS_MAX) for _ in range(258)], 0, NOW)
    assert (log.log_end_offset, log.reader.segment_count) == (0, 0)


def test_a_segment_rolls_before_its_rows_leave_the_index() -> None:
    disk = SimDisk()
    log = open_log(disk, config=LogConfig(index_interval_bytes=1))
    for _ in range(2 * (SEGMENT_ROWS_MAX // BATCH_ROWS_MAX) + 3):
        log.append([batch(BATCH_ROWS_MAX)], 0, NOW)
    spans = [segment.end_offset - segment.base_offset for segment in log.reader.segments]
    assert len(spans) == 3
    assert max(spans) <= SEGMENT_ROWS_MAX
    disk.kill()
    end = log.log_end_offset
    log = open_log(disk)
    assert (log.log_end_offset, log.recovery.damages) == (end, [])
    assert log.reader.read(end - 1, bytes_max=1, end_offset=end)


# --- whatever is raised -------------------------------------------------------------------------
@pytest.mark.parametrize("error", [MemoryError, OverflowError, KeyboardInterrupt])
@pytest.mark.parametrize("real", [False, True], ids=["simulated", "real"])
def test_an_error_behind_the_write_leaves_the_log_as_it_was(
    error: type[BaseException], real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = PosixDisk() if real else SimDisk()
    directory = str(tmp_path / "t-0") if real else DIRECTORY
    disk.make_dir(directory)

    def reopened() -> Log:
        return Log.open(disk, directory, config=CONFIG, clean=False, now=NOW)

    log = reopened()
    log.append([batch(3, 1)], 0, NOW)
    size = log.reader.size_bytes
    data = disk.read_file(log.reader.segments[0].path)
    add = SparseIndex.add
    calls = 0

    def failing(self: SparseIndex, *args: int) -> None:
        nonlocal calls
        calls += 1
        add(self, *args)
        if calls == 2:
            raise error

    monkeypatch.setattr(SparseIndex, "add", failing)
    with pytest.raises(error):
        log.append([batch(3, 2), batch(4, 3), batch(5, 4)], 7, NOW)
    monkeypatch.undo()
    assert calls == 2, "the error came behind the write"
    assert (log.log_end_offset, log.reader.size_bytes, log.epochs.newest) == (3, size, 0)
    assert disk.read_file(log.reader.segments[0].path) == data, "no orphan bytes"
    log.append([batch(1, 5)], 1, NOW)
    for again in (log, reopened()):
        assert (again.log_end_offset, again.recovery.damages) == (4, [])
        (view,) = again.reader.read(3, bytes_max=1, end_offset=4)
        assert view[-1] == 5
        assert again.epochs.entries() == [(0, 0), (1, 3)]


# --- copies -------------------------------------------------------------------------------------
def test_copied_batches_keep_their_stamps_and_epochs() -> None:
    """Rule 1 of docs/replication-rules.md."""
    disk = SimDisk()
    log = open_log(disk)
    batches = [copied(0, 3, 1), copied(3, 2, 1), copied(5, 4, 4), copied(9, 1, 6)]
    assert log.append_copied(batches, NOW) == 10
    assert log.epochs.entries() == [(1, 0), (4, 5), (6, 9)]
    got = b"".join(bytes(view) for view in log.reader.read(0, bytes_max=10_000, end_offset=10))
    assert got == b"".join(bytes(view) for _, view in batches)
    flush(log)
    disk.crash()
    log = open_log(disk)
    assert (log.log_end_offset, log.epochs.entries()) == (10, [(1, 0), (4, 5), (6, 9)])


@pytest.mark.parametrize(
    "second",
    [copied(4, 2, 1), copied(2, 2, 1), copied(3, 2, 0)],
    ids=["a gap", "an overlap", "an older epoch"],
)
def test_copies_that_do_not_join_up_are_refused_whole(second: Batch) -> None:
    log = open_log(SimDisk())
    with pytest.raises(CorruptLog):
        log.append_copied([copied(0, 3, 1), second], NOW)
    assert (log.log_end_offset, len(log.epochs)) == (0, 0)
    assert log.append_copied([copied(0, 3, 1)], NOW) == 3
    with pytest.raises(CorruptLog):
        log.append_copied([second], NOW)
    assert log.log_end_offset == 3


def test_the_first_copy_of_an_empty_log_may_straddle_its_start() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append([batch(6)], 0, NOW)
    flush(log)
    job = log.begin_trim(5)
    assert job is not None
    log.complete_trim(job, job.run())
    truncate(log, 5)
    assert (log.log_start_offset, log.log_end_offset, log.reader.segment_count) == (5, 5, 0)
    assert log.append_copied([copied(3, 6, 2)], NOW) == 9
    flush(log)
    disk.crash()
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (5, 9)
    assert not log.recovery.damages
    assert log.reader.read(5, bytes_max=1, end_offset=9)


def test_the_checksum_of_the_helper_is_the_real_one() -> None:
    header, view = copied(4, 2, 1)
    assert header.crc32c == crc32c(view[CRC_START:])


def test_a_copy_that_ends_at_the_log_start_holds_no_row_of_it() -> None:
    log = skipped_to(SimDisk(), 5)
    with pytest.raises(CorruptLog):
        log.append_copied([copied(3, 2, 2)], NOW)
    with pytest.raises(CorruptLog):
        log.append_copied([copied(3, 2, 2), copied(5, 2, 2)], NOW)
    assert (log.log_start_offset, log.log_end_offset, log.reader.segment_count) == (5, 5, 0)
    assert log.append_copied([copied(5, 2, 2)], NOW) == 7


@pytest.mark.parametrize("first", [5, 3], ids=["at-the-start", "straddling"])
@pytest.mark.parametrize("rows", [0, 6], ids=["empty", "with-rows"])
@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
def test_a_copy_begins_where_its_leader_s_log_does(first: int, rows: int, power: bool) -> None:
    disk = SimDisk(3)
    log = open_log(disk)
    at = 5 + 2 * rows
    if rows:
        log.append([batch(rows)], 1, NOW)
        flush(log)
    skip(log, at)
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (at, at, at)
    assert log.reader.segment_count == 0
    assert not log.epochs.entries(), "the rows between would have shown where they ended"
    begin = at - 5 + first
    assert log.append_copied([copied(begin, 6, 2), copied(begin + 6, 1, 2)], NOW) == begin + 7
    flush(log)
    if power:
        disk.crash()
    else:
        disk.kill()
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (at, begin + 7)
    assert not log.recovery.damages
    assert log.reader.read(at, bytes_max=1, end_offset=begin + 7)
    assert log.epochs.latest()[0] == 2


def test_a_crash_before_a_skip_is_written_down_keeps_the_log() -> None:
    disk = SimDisk(3)
    log = open_log(disk)
    log.append([batch(6)], 1, NOW)
    flush(log)
    job = log.begin_skip(50)
    with pytest.raises(AssertionError):
        log.append_copied([copied(6, 1, 2)], NOW)
    log.fail_trim(job, OSError(5, "Input/output error"))
    assert log.append_copied([copied(6, 1, 2)], NOW) == 7
    flush(log)
    disk.crash()
    assert (open_log(disk).log_start_offset, open_log(disk).log_end_offset) == (0, 7)


def test_copies_reach_the_producer_states() -> None:
    disk = SimDisk(1)
    disk.make_dir("data/t-1")
    producers = ProducerStates(NOW.wall_us)
    log = Log.open(disk, "data/t-1", config=LogConfig(), clean=False, now=NOW, producers=producers)
    sent = []
    for number in range(4):
        header, view = make_batch(3, NOW.wall_us, 1, number + 1, producer=(7, 0, 3 * number))
        stamp(view, 0, 3 * number, number // 2)
        sent.append((BatchHeader.unpack(view), view))
    log.append_copied(sent[:3], NOW)
    log.append_copied(sent[3:], NOW)
    for header, _ in sent:
        assert producers.check(header) == header.base_offset
    flush(log)
    again = ProducerStates(NOW.wall_us)
    Log.open(disk, "data/t-1", config=LogConfig(), clean=False, now=NOW, producers=again)
    assert again.snapshot() == producers.snapshot()


def test_an_epoch_without_rows_does_not_refuse_its_own_rows() -> None:
    """Rule 3 of docs/replication-rules.md."""
    log = open_log(SimDisk())
    log.append_copied([copied(0, 3, 1)], NOW)
    log.epochs.assign(4, 3)
    assert log.append_copied([copied(3, 2, 4), copied(5, 2, 4)], NOW) == 7
    assert log.epochs.entries() == [(1, 0), (4, 3)]
    with pytest.raises(CorruptLog):
        log.append_copied([copied(7, 1, 3)], NOW)


def skip(log: Log, offset: int) -> None:
    """Begin anew at `offset`."""
    job = log.begin_skip(offset)
    files = log.complete_trim(job, job.run())
    if files is not None:
        files.run()


def skipped_to(disk: SimDisk, offset: int) -> Log:
    log = open_log(disk)
    skip(log, offset)
    return log


def test_no_walk_between_index_entries_is_long_whatever_a_topic_asks_for() -> None:
    """A reader walks over the headers between two entries, on the loop."""
    log = open_log(SimDisk(), config=LogConfig(index_interval_bytes=64 * MIB))
    for _ in range(40):
        log.append([make_batch(1, NOW.wall_us, 127, 1) for _ in range(10)], 0, NOW)
    positions = [*log.reader.segments[0].load().positions, log.reader.segments[0].file.size]
    assert positions[-1] > 3_000_000
    assert max(after - at for at, after in pairwise(positions)) <= 64 * KIB + 8192
