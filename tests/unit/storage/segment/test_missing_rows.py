"""Reading around rows that are missing, with newer rows behind them."""

from __future__ import annotations

import pytest

from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


def open_log(disk: SimDisk, *, clean: bool = False) -> Log:
    disk.make_dir(DIRECTORY)
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=clean, now=NOW)


def append(log: Log, rows: int = 3) -> None:
    log.append([make_batch(rows, NOW.wall_us, 1, 7, (5, 0, 0))], 0, NOW)


def test_a_read_ends_where_the_rows_of_a_lost_newest_segment_are_missing() -> None:
    """The simulator: rows appended behind them made the read ask the next segment for them."""
    disk = SimDisk(1)
    log = open_log(disk)
    for _ in range(6):
        append(log)
    flush(log)
    assert [segment.base_offset for segment in log.reader.segments] == [0, 12]
    log.close(clean=True)
    disk.kill()
    disk.remove(segment_path(DIRECTORY, 12))
    log = open_log(disk, clean=True)
    assert log.recovery.damages
    append(log)
    assert log.log_end_offset == 21
    views = log.reader.read(0, bytes_max=10_000, end_offset=21)
    assert sum(map(len, views)) == 4 * 128
    with pytest.raises(CorruptLog) as raised:
        log.reader.read(12, bytes_max=10_000, end_offset=21)
    assert raised.value.details["end_offset"] == 18
    assert log.reader.read(18, bytes_max=10_000, end_offset=21)


@pytest.mark.parametrize("lost", ["the end of the newest file", "the newest file"])
def test_rows_are_not_appended_behind_missing_ones_after_a_clean_restart(lost: str) -> None:
    """The segment took appends again: the first of them joined up with nothing in front of it."""
    disk = SimDisk(1)
    log = open_log(disk)
    for _ in range(6):
        append(log)
    flush(log, background=True)
    disk.kill()
    path = segment_path(DIRECTORY, 12)
    if lost == "the newest file":
        disk.remove(path)
    else:
        file = disk.open(path, create=False)
        file.truncate(file.size - 128)
    missing = [12, 13, 14, 15, 16, 17] if lost == "the newest file" else [15, 16, 17]
    log = open_log(disk)
    for _ in range(2):
        assert log.recovery.damages, "every start reports it until there are newer rows"
        log.close(clean=True)
        disk.kill()
        log = open_log(disk, clean=True)
    for base_offset in (18, 21):
        append(log)
        flush(log)
        assert sum(map(len, log.reader.read(base_offset, bytes_max=1, end_offset=24))) == 128
    log.close(clean=True)
    disk.kill()
    log = open_log(disk, clean=True)
    for offset in missing:
        with pytest.raises(CorruptLog) as raised:
            log.reader.read(offset, bytes_max=1, end_offset=24)
        assert raised.value.details["end_offset"] == 18
    for offset in (18, 21):
        assert sum(map(len, log.reader.read(offset, bytes_max=1, end_offset=24))) == 128
