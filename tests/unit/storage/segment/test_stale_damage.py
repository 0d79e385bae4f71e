"""Files of a partition that are older than the others, of another log, or renamed: typed errors."""

from __future__ import annotations

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment import reading
from quiverlog.storage.segment.epochs import EPOCHS_FILE
from quiverlog.storage.segment.scan import Damage
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, remove_point, trim, truncate

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(index_interval_bytes=1 << 20)


def open_log(disk: SimDisk, *, clean: bool = False) -> Log:
    producers = ProducerStates(NOW.wall_us)
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=clean, now=NOW, producers=producers)


def new_log(disk: SimDisk) -> Log:
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    disk.sync_dir("data")
    return open_log(disk)


def append(log: Log, count: int, epoch: int = 0) -> None:
    """`count` batches of three rows."""
    for _ in range(count):
        log.append([make_batch(3, NOW.wall_us, 1, 7)], epoch, NOW)
    flush(log)


def test_rows_of_epochs_that_an_older_file_does_not_know_are_damaged() -> None:
    """However many of them lie between an index entry and the row that is asked for."""
    disk = SimDisk(1)
    log = new_log(disk)
    append(log, 1)
    old = disk.read_file(f"{DIRECTORY}/{EPOCHS_FILE}")
    append(log, 9, epoch=1)
    log.close(clean=True)
    disk.kill()
    disk.write_file_atomic(f"{DIRECTORY}/{EPOCHS_FILE}", old)
    log = open_log(disk, clean=True)
    for row in (29, 15, 3):
        with pytest.raises(CorruptLog) as caught:
            log.reader.read(row, bytes_max=1 << 20, end_offset=30)
        first, end = caught.value.damage()
        assert first <= row < end
    (view,) = log.reader.read(0, bytes_max=1 << 20, end_offset=30)
    assert BatchHeader.unpack(view).next_offset == 3


def test_a_file_with_more_rows_than_fit_in_front_of_the_next_one() -> None:
    """Of another life of the log, and damaged behind the row at which the next file begins."""
    disk = SimDisk(1)
    log = new_log(disk)
    append(log, 5)
    other = bytearray(disk.read_file(segment_path(DIRECTORY, 0)))
    disk = SimDisk(1)
    log = new_log(disk)
    append(log, 3)
    log.roll()
    append(log, 2)
    assert [segment.base_offset for segment in log.reader.segments] == [0, 9]
    disk.kill()
    other[-100] ^= 1  # In the batch of rows 12 to 15.
    disk.write_file_atomic(segment_path(DIRECTORY, 0), bytes(other))
    remove_point(disk, DIRECTORY)
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (0, 15)
    assert log.recovery.damages
    for row in (0, 8, 9, 14):
        (view,) = log.reader.read(row, bytes_max=1, end_offset=15)
        assert BatchHeader.unpack(view).base_offset == row // 3 * 3


@pytest.mark.parametrize("offset", [1, 2])
def test_a_cut_at_a_log_start_that_no_file_holds(offset: int) -> None:
    """Both of its files are damaged, and the batch that goes holds the log start."""
    disk = SimDisk(1)
    log = new_log(disk)
    append(log, 4)
    trim(log, 1)
    disk.kill()
    for name in ("log-start", "log-start-copy"):
        disk.write_file_atomic(f"{DIRECTORY}/{name}", b"")
    log = open_log(disk)
    assert log.log_start_offset == 1
    assert truncate(log, offset) == 1
    check_empty_at_one(disk, log)


def test_a_cut_at_a_log_start_that_is_in_no_file_yet() -> None:
    """Retention moves the start without a file where it frees none."""
    disk = SimDisk(1)
    log = new_log(disk)
    append(log, 4)
    assert log.begin_trim(1, promised=False) is None
    assert log.log_start_offset == 1
    assert truncate(log, 2) == 1
    check_empty_at_one(disk, log)


def check_empty_at_one(disk: SimDisk, log: Log) -> None:
    assert log.log_start_offset == 1
    append(log, 1)
    disk.kill()
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (1, 4)
    assert log.reader.read(1, bytes_max=1, end_offset=4)


@pytest.mark.parametrize("offset", [2**62, 2**63 - 1, 10**20 - 1])
def test_a_name_behind_all_offsets_is_no_segment_of_the_log(offset: int) -> None:
    disk = SimDisk(1)
    log = new_log(disk)
    append(log, 4)
    disk.kill()
    path = segment_path(DIRECTORY, offset)
    disk.write_file_atomic(path, disk.read_file(segment_path(DIRECTORY, 0)))
    disk.remove(segment_path(DIRECTORY, 0))
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (0, 12)
    assert any("no file of a partition" in note for note in log.recovery.notes)
    with pytest.raises(CorruptLog, match="rows 0 to 12 are missing"):
        log.reader.read(0, bytes_max=1, end_offset=12)
    assert disk.exists(path), "left alone"


def test_a_walk_goes_on_behind_rows_that_are_missing_between_two_batches() -> None:
    """The bytes of those rows are gone from the middle of the file: the damage has none."""
    disk = SimDisk(1)
    log = new_log(disk)
    append(log, 3)
    disk.kill()
    path = segment_path(DIRECTORY, 0)
    data = disk.read_file(path)
    size = (len(data) - 64) // 3
    disk.write_file_atomic(path, data[: 64 + size] + data[64 + 2 * size :])
    log = open_log(disk)
    (segment,) = log.reader.segments
    segment.damages = [Damage(64 + size, 64 + size, 3, 6)]
    segment.end_offset = 9
    rows = [header.base_offset for _, header in reading.all_headers(segment, 0)]
    assert rows == [0, 6]
    # As for a question after a time that all rows are older than: in a job, which must end.
    cursor = reading.skip_older(
        segment.file, segment.file.size, (64, 0), NOW.wall_us + 1, segment.damages
    )
    assert cursor == (segment.file.size, 9)
