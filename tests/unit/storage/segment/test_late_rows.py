"""Rows that arrive long after their time: their age counts from their arrival."""

from __future__ import annotations

import pytest

from quiverlog.batch.header import BatchHeader, stamp
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment_files import read_header
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, retain, truncate

DIRECTORY = "data/t-0"
START_US = 1_000_000_000_000_000
HOUR_MS = 3_600_000
LATE_MS = 1_000
"""A batch stamped this long before its arrival is not late yet."""


def at(ms: int) -> Now:
    return Now(ms * 1000, START_US + ms * 1000)


def open_log(
    disk: SimDisk, *, clean: bool = False, ms: int = 0, retention_ms: int = HOUR_MS
) -> Log:
    disk.make_dir(DIRECTORY)
    config = LogConfig(retention_ms=retention_ms, segment_ms=100 * HOUR_MS)
    return Log.open(disk, DIRECTORY, config=config, clean=clean, now=at(ms))


def append(log: Log, ms: int, behind_ms: int = 0, rows: int = 1) -> None:
    log.append([make_batch(rows, START_US + (ms - behind_ms) * 1000, 1, 7)], 0, at(ms))


@pytest.mark.parametrize(
    "behind_ms", [LATE_MS + 1, 2 * HOUR_MS, 8 * 24 * HOUR_MS, START_US // 1000]
)
def test_late_rows_are_kept_from_their_arrival(behind_ms: int) -> None:
    log = open_log(SimDisk())
    append(log, 500, behind_ms)
    retain(log, at(501), 1)
    retain(log, at(500 + HOUR_MS), 1)
    assert log.log_start_offset == 0
    retain(log, at(501 + HOUR_MS), 1)
    assert log.log_start_offset == 1


@pytest.mark.parametrize("behind_ms", [0, LATE_MS])
def test_what_a_network_takes_is_not_late(behind_ms: int) -> None:
    log = open_log(SimDisk())
    append(log, 5_000, behind_ms)
    retain(log, at(5_000 - behind_ms + HOUR_MS), 1)
    assert log.log_start_offset == 0
    retain(log, at(5_001 - behind_ms + HOUR_MS), 1)
    assert log.log_start_offset == 1


def test_rows_in_front_of_the_first_late_one_go_by_their_times() -> None:
    log = open_log(SimDisk())
    append(log, 0)
    append(log, 20_000)
    append(log, 30_000, behind_ms=HOUR_MS)
    append(log, 31_000)
    retain(log, at(HOUR_MS + 20_000), 4)
    assert log.log_start_offset == 1
    retain(log, at(HOUR_MS + 30_000), 4)
    assert log.log_start_offset == 2
    retain(log, at(HOUR_MS + 31_001), 4)
    assert log.log_start_offset == 4


@pytest.mark.parametrize("how", ["clean", "kill", "crash"])
@pytest.mark.parametrize("flushed", [True, False])
def test_a_restart_judges_alike(how: str, flushed: bool) -> None:
    disk = SimDisk(7)
    log = open_log(disk)
    append(log, 1_000, behind_ms=2 * HOUR_MS)
    if flushed:
        flush(log)
    if how == "clean":
        log.close(clean=True)
    if how == "crash":
        disk.crash()
    else:
        disk.kill()
    log = open_log(disk, clean=how == "clean", ms=2_000)
    end = log.log_end_offset
    assert end == 1 or (how, flushed) == ("crash", False)
    retain(log, at(1_000 + HOUR_MS), end)
    assert log.log_start_offset == 0
    # What no flush has covered counts from the start: no file has its arrival.
    arrived_ms = 1_000 if flushed or how == "clean" else 2_000
    retain(log, at(arrived_ms + 1 + HOUR_MS), end)
    assert log.log_start_offset == end


def test_a_flush_writes_the_arrival_before_the_rows_are_promised() -> None:
    """After a power failure the mark of the last flush may be lost; the arrival may not."""
    disk = SimDisk(3)
    log = open_log(disk)
    append(log, 1_000, behind_ms=2 * HOUR_MS)
    flush(log)
    disk.crash()
    segment = open_log(disk, ms=2_000).reader.segments[0]
    header = read_header(segment.file, segment.base_offset)
    assert header.arrived_us >= at(1_000).wall_us


@pytest.mark.parametrize("reported", [-1, 0, 1_000])
def test_the_age_of_a_copy_s_rows_comes_from_the_leader(reported: int) -> None:
    log = open_log(SimDisk())
    _, view = make_batch(1, START_US - 2 * HOUR_MS * 1000, 1, 7)
    stamp(view, 0, 0, 0)
    arrived_us = reported if reported < 1 else START_US + reported * 1000
    log.append_copied([(BatchHeader.unpack(view), view)], at(60_000), arrived_us)
    since_ms = {-1: 60_000, 0: -2 * HOUR_MS, 1_000: 1_000}[reported]
    assert log.reader.arrived_us(0, 1) == (0 if reported == 0 else START_US + since_ms * 1000)
    retain(log, at(max(since_ms + HOUR_MS, 60_000)), 1)
    assert log.log_start_offset == (1 if reported == 0 else 0)
    retain(log, at(since_ms + 1 + HOUR_MS), 1)
    assert log.log_start_offset == 1


def test_a_leader_sends_the_arrival_of_its_segments() -> None:
    log = open_log(SimDisk())
    append(log, 1_000)
    log.roll()
    append(log, 2_000, behind_ms=HOUR_MS)
    log.roll()
    append(log, 3_000)
    assert [log.reader.arrived_us(n, n + 1) for n in range(3)] == [0, at(2_000).wall_us, 0]
    assert log.reader.arrived_us(0, 3) == at(2_000).wall_us


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_a_cut_of_rows_that_no_flush_has_covered_keeps_the_arrival_after_a_restart(
    how: str,
) -> None:
    """The cut syncs the rows that stay, so the next flush had nothing to write of them."""
    disk = SimDisk(7)
    log = open_log(disk)
    append(log, 1_000, behind_ms=2 * HOUR_MS)
    append(log, 1_000, behind_ms=2 * HOUR_MS)
    truncate(log, 1)
    flush(log)
    disk.crash() if how == "crash" else disk.kill()
    log = open_log(disk, ms=2_000)
    assert log.log_end_offset == 1
    retain(log, at(1_000 + HOUR_MS), 1)
    assert log.log_start_offset == 0
    retain(log, at(1_001 + HOUR_MS), 1)
    assert log.log_start_offset == 1


def test_a_cut_keeps_the_arrival() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log, 1_000, behind_ms=2 * HOUR_MS)
    append(log, 2_000)
    flush(log)
    truncate(log, 1)
    assert log.reader.arrived_us(0, 1) == at(1_000).wall_us
    log.close(clean=True)
    log = open_log(disk, clean=True)
    retain(log, at(1_000 + HOUR_MS), 1)
    assert (log.log_start_offset, log.log_end_offset) == (0, 1)


@pytest.mark.parametrize(
    ("retention_ms", "roll_ms"), [(HOUR_MS, HOUR_MS // 8), (80_000, 60_000), (-1, 100 * HOUR_MS)]
)
def test_a_segment_with_late_rows_is_finished_early(retention_ms: int, roll_ms: int) -> None:
    """All its rows stay as long as the last late one: with few rows a day that would be long."""
    log = open_log(SimDisk(), retention_ms=retention_ms)
    append(log, 0, behind_ms=HOUR_MS)
    append(log, roll_ms - 1, behind_ms=HOUR_MS)
    assert log.reader.segment_count == 1
    append(log, roll_ms, behind_ms=HOUR_MS)
    assert log.reader.segment_count == 2


def test_an_arrival_that_has_not_come_yet_counts_as_now() -> None:
    """Written by a clock that was a year ahead: the rows are kept for an hour, not for a year."""
    disk = SimDisk()
    log = open_log(disk)
    append(log, 10**10, behind_ms=10**10 + 2 * HOUR_MS)
    retain(log, at(1_000), 1)
    retain(log, at(1_000 + HOUR_MS), 1)
    assert log.log_start_offset == 0
    retain(log, at(1_001 + HOUR_MS), 1)
    assert log.log_start_offset == 1


@pytest.mark.parametrize("behind_days", [1, 8])
def test_a_clock_that_is_behind_for_a_moment_takes_no_arrival_away(behind_days: int) -> None:
    """Rows of an earlier life: the monotonic clock of this one has not seen them arrive."""
    disk = SimDisk()
    day_ms = 24 * HOUR_MS
    log = open_log(disk, retention_ms=7 * day_ms)
    append(log, 1_000, behind_ms=365 * day_ms)
    log.close(clean=True)
    log = open_log(disk, clean=True, ms=2_000, retention_ms=7 * day_ms)
    retain(log, Now(at(3_000).mono_us, at(3_000 - behind_days * day_ms).wall_us), 1)
    retain(log, at(1_000 + 7 * day_ms), 1)
    assert log.log_start_offset == 0
    retain(log, at(1_001 + 7 * day_ms), 1)
    assert log.log_start_offset == 1


def test_each_time_that_a_clock_is_behind_is_a_new_one() -> None:
    log = open_log(SimDisk())
    append(log, 1_000, behind_ms=2 * HOUR_MS)
    retain(log, Now(at(2_000).mono_us, at(-HOUR_MS // 2).wall_us), 1)
    retain(log, at(HOUR_MS), 1)
    retain(log, Now(at(HOUR_MS + 2_001).mono_us, at(-HOUR_MS // 2).wall_us), 1)
    assert log.log_start_offset == 0


def test_late_rows_behind_an_arrival_that_has_not_come_yet_are_kept_from_their_own() -> None:
    log = open_log(SimDisk())
    append(log, 10**10, behind_ms=10**10 + 2 * HOUR_MS)
    retain(log, at(1_000), 1)
    append(log, HOUR_MS, behind_ms=2 * HOUR_MS)
    assert log.reader.segment_count == 1
    retain(log, at(2 * HOUR_MS), 2)
    assert log.log_start_offset == 0
    retain(log, at(3 * HOUR_MS + 1), 2)
    assert log.log_start_offset == 2


def test_a_damaged_header_may_have_held_late_rows() -> None:
    disk = SimDisk()
    log = open_log(disk)
    append(log, 0, behind_ms=2 * HOUR_MS)
    log.close(clean=True)
    path = f"{DIRECTORY}/{0:020d}.log"
    disk.open(path, create=False).write_head(bytes(64))
    log = open_log(disk, clean=True)
    retain(log, at(10_000), 1)
    retain(log, at(10_000 + HOUR_MS), 1)
    assert log.log_start_offset == 0
    retain(log, at(10_001 + HOUR_MS), 1)
    assert log.log_start_offset == 1
