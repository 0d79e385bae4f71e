"""Reading the newest append: the short way gives what the long way gives, or nothing."""

from __future__ import annotations

from unittest import mock

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment import reading
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"


def open_log(disk: SimDisk) -> Log:
    disk.make_dir(DIRECTORY)
    return Log.open(disk, DIRECTORY, config=LogConfig(), clean=False, now=NOW)


def filled_log(disk: SimDisk) -> Log:
    """Rows 0 to 3 in one append, rows 3 to 10 in the newest, of three batches."""
    log = open_log(disk)
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)
    log.append([make_batch(rows, NOW.wall_us, rows, 7) for rows in (2, 1, 4)], 0, NOW)
    return log


def newest(log: Log, offset: int, bytes_max: int = 1 << 20) -> list[memoryview]:
    found = reading.read_newest(log.reader.segments[-1], offset, bytes_max)
    return [] if found is None else found.views


@pytest.mark.parametrize("offset", range(3, 10))
def test_both_ways_give_the_same_views(offset: int) -> None:
    log = filled_log(SimDisk())
    found = [bytes(view) for view in newest(log, offset)]
    assert found, "this is the short way's case"
    with mock.patch.object(reading, "read_newest", return_value=None):
        (long_way,) = log.reader.read_answers(offset, bytes_max=1 << 20, end_offset=10)
    (short_way,) = log.reader.read_answers(offset, bytes_max=1 << 20, end_offset=10)
    assert found == [bytes(view) for view in long_way.views]
    assert short_way == long_way, "position and next offset, too"
    stored = log.reader.segments[-1].file.read_copy(short_way.position, short_way.byte_count)
    assert stored == b"".join(found)


def test_what_is_not_the_newest_append_or_does_not_fit_is_left_to_the_long_way() -> None:
    log = filled_log(SimDisk())
    assert newest(log, 2) == []
    assert newest(log, 10) == []
    size = log.reader.segments[-1].file.size - log.reader.segments[-1].tail[0]
    assert newest(log, 5, size - 1) == []
    assert newest(log, 5, size) != []
    (view,) = log.reader.read(5, bytes_max=1, end_offset=10)
    assert view == newest(log, 5)[0], "one batch at least"


def test_rows_above_the_asked_end_do_not_go_out() -> None:
    log = filled_log(SimDisk())
    views = log.reader.read(3, bytes_max=1 << 20, end_offset=6)
    assert [BatchHeader.unpack(view).next_offset for view in views] == [5, 6]


def test_nothing_is_read_by_the_short_way_after_a_restart_or_a_refusal_of_the_disk() -> None:
    disk = SimDisk()
    log = filled_log(disk)
    log.reader.segments[-1].distrust()
    assert newest(log, 5) == []
    disk.kill()
    log = open_log(disk)
    assert log.log_end_offset == 10
    assert newest(log, 5) == []


def test_bytes_that_another_program_changed_are_left_to_the_long_way() -> None:
    disk = SimDisk()
    log = filled_log(disk)
    start = log.reader.segments[-1].tail[0]
    data = bytearray(disk.read_file(segment_path(DIRECTORY, 0)))
    data[start] ^= 0xFF
    disk.inode(segment_path(DIRECTORY, 0)).data[start] = data[start]
    assert newest(log, 3) == []
    with pytest.raises(CorruptLog):
        log.reader.read(3, bytes_max=1 << 20, end_offset=10)
