"""A flush on a full disk: rows that are on the disk are acknowledged, the notes follow later."""

from __future__ import annotations

import pytest

from quiverlog.limits import UNFLUSHED_MS_MAX
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.epochs import EPOCHS_FILE
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"


def open_log(disk: SimDisk) -> Log:
    return Log.open(disk, DIRECTORY, config=LogConfig(), clean=False, now=NOW)


def append(log: Log, epoch: int) -> None:
    log.append([make_batch(3, NOW.wall_us, 1, 7)], epoch, NOW)


@pytest.fixture(params=range(4))
def disk(request: pytest.FixtureRequest) -> SimDisk:
    disk = SimDisk(request.param)
    disk.make_dir(DIRECTORY)
    return disk


def flushed_without_room(disk: SimDisk) -> Log:
    """Epoch 1 is saved; epoch 2, from row 3 on, met a full disk."""
    log = open_log(disk)
    append(log, 1)
    flush(log, background=True)
    append(log, 2)
    disk.capacity = 0
    assert flush(log, background=True) == 6
    assert not log.fault
    disk.capacity = None
    return log


def test_rows_and_epochs_survive_a_crash_before_the_notes_are_written(disk: SimDisk) -> None:
    flushed_without_room(disk)
    disk.crash()
    log = open_log(disk)
    assert log.log_end_offset == 6
    assert log.epochs.end_offset_for(1) == (1, 3)
    assert log.epochs.newest == 2


def test_the_next_flush_writes_what_was_postponed(disk: SimDisk) -> None:
    log = flushed_without_room(disk)
    before = disk.read_file(f"{DIRECTORY}/{EPOCHS_FILE}")
    append(log, 2)
    assert flush(log, background=True) == 9
    assert disk.read_file(f"{DIRECTORY}/{EPOCHS_FILE}") != before
    assert not log.epochs.dirty


def test_what_a_first_acknowledgement_rests_on_survives_a_power_failure(disk: SimDisk) -> None:
    """The rows, and the notes that show them should their only file be lost."""
    log = open_log(disk)
    append(log, 1)
    assert flush(log) == 3
    assert not log.epochs.dirty
    disk.crash()
    disk.remove(segment_path(DIRECTORY, 0))
    log = open_log(disk)
    assert log.log_end_offset == 3
    assert "rows 0 to 3 are missing" in log.recovery.damages[0]


def test_a_new_log_flushes_on_a_full_disk(disk: SimDisk) -> None:
    log = open_log(disk)
    append(log, 1)
    disk.capacity = 0
    assert flush(log) == 3
    disk.capacity = None
    disk.crash()
    log = open_log(disk)
    assert (log.log_end_offset, log.epochs.newest) == (3, 1)


def test_a_recovery_point_without_room_is_tried_again_after_the_next_rows_and_not_at_once(
    disk: SimDisk,
) -> None:
    log = open_log(disk)
    append(log, 1)
    disk.capacity = 0
    flush(log, background=True)
    assert log.flush_due_us() is None
    disk.capacity = None
    append(log, 1)
    assert log.flush_due_us() == UNFLUSHED_MS_MAX * 1000
    flush(log, background=True)
    assert log.flush_due_us() is None
    disk.crash()
    assert open_log(disk).recovery.bytes_scanned == 0


def test_a_log_that_gave_up_all_its_rows_needs_no_flush_again_and_again(disk: SimDisk) -> None:
    log = open_log(disk)
    for _ in range(2):
        append(log, 1)
        flush(log)
    trim(log, log.log_end_offset)
    assert not log.reader.segments
    assert log.flush_due_us() is not None
    flush(log, background=True)
    assert log.flush_due_us() is None
