"""A segment's file that was cut to its header or less: its rows are missing, and all else works."""

from __future__ import annotations

import pytest

from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim, truncate

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
SIZES = [0, 1, 48, 63, 64, 65]


def open_log(disk: SimDisk, *, clean: bool) -> Log:
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=clean, now=NOW)


def cut_to(disk: SimDisk, base_offset: int, size: int) -> None:
    path = segment_path(DIRECTORY, base_offset)
    disk.write_file_atomic(path, bytes(disk.read_file(path))[:size])


def build(disk: SimDisk, batches: int) -> None:
    """Batches of three rows, four a segment, closed in order."""
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    disk.sync_dir("data")
    log = open_log(disk, clean=True)
    for _ in range(batches):
        log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)
    flush(log)
    log.close(clean=True)
    disk.kill()


def check_missing(log: Log, first: int, end: int) -> None:
    with pytest.raises(CorruptLog) as caught:
        log.reader.read(first, bytes_max=1, end_offset=log.log_end_offset)
    assert (caught.value.details["offset"], caught.value.details["end_offset"]) == (first, end)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_rows_of_a_file_without_any_are_given_up(size: int, clean: bool) -> None:
    disk = SimDisk(1)
    build(disk, 2)
    cut_to(disk, 0, size)
    log = open_log(disk, clean=clean)
    check_missing(log, 0, 6)
    assert trim(log, 6) == 6
    assert (log.reader.segments, log.reader.size_bytes) == ([], 0)
    assert log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW) == 6
    flush(log)
    disk.kill()
    log = open_log(disk, clean=False)
    assert (log.log_start_offset, log.log_end_offset, log.recovery.damages) == (6, 9, [])


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_cut_behind_a_file_without_rows_leaves_them_missing(size: int, clean: bool) -> None:
    """The file behind it goes whole, so the log ends with the missing rows."""
    disk = SimDisk(1)
    build(disk, 10)
    cut_to(disk, 0, size)
    log = open_log(disk, clean=clean)
    assert truncate(log, 13) == 12
    check_missing(log, 0, 12)
    assert log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW) == 12
    flush(log)
    for _ in range(2):
        check_missing(log, 0, 12)
        assert log.reader.read(12, bytes_max=1, end_offset=15)
        disk.kill()
        log = open_log(disk, clean=False)
        assert (log.log_start_offset, log.log_end_offset) == (0, 15)
