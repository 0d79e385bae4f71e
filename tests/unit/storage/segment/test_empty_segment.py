"""A segment without rows: what an append that found no room leaves behind."""

from __future__ import annotations

import pytest

from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.errors import DiskFull
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=700)


def open_log(disk: SimDisk) -> Log:
    disk.make_dir(DIRECTORY)
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=NOW)


def append(log: Log) -> None:
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)


def log_that_found_no_room(disk: SimDisk) -> Log:
    """Twelve flushed rows in one segment, and an empty one behind it."""
    log = open_log(disk)
    for _ in range(4):
        append(log)
    flush(log)
    disk.capacity = disk.used_bytes + SEGMENT_HEADER_BYTES
    with pytest.raises(DiskFull):
        append(log)
    disk.capacity = None
    assert [(s.base_offset, s.empty) for s in log.reader.segments] == [(0, False), (12, True)]
    return log


@pytest.mark.parametrize("reopened", [False, True])
def test_rows_that_are_appended_after_all_were_given_up_stay(reopened: bool) -> None:
    """The files that go are removed later: none of them may have the name of the next segment."""
    disk = SimDisk()
    log = log_that_found_no_room(disk)
    if reopened:
        disk.kill()
        log = open_log(disk)
    job = log.begin_trim(12)
    assert job is not None
    remove = log.complete_trim(job, job.run())
    assert remove is not None
    append(log)
    assert flush(log) == 15
    remove.run()
    assert log.reader.read(12, bytes_max=1, end_offset=15)
    disk.kill()
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset, log.recovery.damages) == (12, 15, [])
    assert log.reader.read(12, bytes_max=1, end_offset=15)


@pytest.mark.parametrize("bit", [0, 8 * 20 + 3, 8 * 40 + 1], ids=["magic", "base", "mark"])
def test_a_damaged_header_without_rows_does_not_stop_appends(bit: int) -> None:
    disk = SimDisk()
    log = log_that_found_no_room(disk)
    disk.kill()
    disk.flip_bit(log.reader.segments[-1].path, bit)
    log = open_log(disk)
    assert log.log_end_offset == 12
    append(log)
    assert flush(log) == 15
    disk.kill()
    log = open_log(disk)
    assert (log.log_end_offset, log.recovery.damages) == (15, [])


@pytest.mark.parametrize("lost", [512, 10_000])
@pytest.mark.parametrize("batches", [1, 4])
def test_a_segment_whose_first_page_never_arrived_gives_its_name_to_the_next(
    batches: int, lost: int
) -> None:
    """A power failure kept its length and not its bytes; nothing of it was flushed."""
    disk = SimDisk()
    log = log_that_found_no_room(disk)
    for _ in range(batches):
        append(log)
    path = log.reader.segments[1].path
    disk.kill()
    data = disk.inode(path).data
    data[:lost] = bytes(min(lost, len(data)))
    log = open_log(disk)
    assert log.log_end_offset == 12
    append(log)
    assert flush(log) == 15
    assert log.reader.read(12, bytes_max=1, end_offset=15)
    disk.kill()
    log = open_log(disk)
    assert (log.log_end_offset, log.recovery.damages) == (15, [])


def test_a_copy_that_begins_before_the_log_start_may_be_tried_again() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(2):
        append(log)
    flush(log)
    trim(log, 6)
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset, log.reader.segments) == (6, 6, [])
    _, view = make_batch(4, NOW.wall_us, 1, 7)
    stamp(view, 0, 4, 0)
    copied = [(BatchHeader.unpack(view), view)]
    disk.capacity = disk.used_bytes + SEGMENT_HEADER_BYTES
    with pytest.raises(DiskFull):
        log.append_copied(copied, NOW)
    disk.capacity = None
    assert log.append_copied(copied, NOW) == 8
    assert flush(log) == 8
    assert log.reader.read(6, bytes_max=1, end_offset=8)
