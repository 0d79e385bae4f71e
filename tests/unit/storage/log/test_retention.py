"""Giving up rows: by size, by time, on an idle topic; never too much, never too little."""

from __future__ import annotations

import errno

import pytest

from quiverlog.errors import DiskFull, OffsetOutOfRange
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, retain, trim

DIRECTORY = "data/t-0"
START_US = 1_000_000_000_000_000
BATCH_BYTES = 128


def at(ms: int) -> Now:
    return Now(ms * 1000, START_US + ms * 1000)


def open_log(disk: SimDisk, *, clean: bool = False, **settings: int) -> Log:
    disk.make_dir(DIRECTORY)
    config = LogConfig(index_interval_bytes=100, **settings)
    return Log.open(disk, DIRECTORY, config=config, clean=clean, now=at(0))


def append(log: Log, ms: int, rows: int = 1) -> None:
    """A batch of 128 bytes whose rows have the time `ms`."""
    log.append([make_batch(rows, START_US + ms * 1000, 1, 7)], 0, at(ms))


@pytest.mark.parametrize("high_watermark", [0, 1, 5, 6, 20])
@pytest.mark.parametrize("age_ms", [99, 100, 101, 104, 10_000])
def test_by_time_exactly_the_rows_older_than_the_bound(age_ms: int, high_watermark: int) -> None:
    log = open_log(SimDisk(), retention_ms=100, segment_bytes=500)
    for ms in range(20):
        append(log, ms)
    retain(log, at(age_ms), high_watermark)
    # The row of the moment `ms` is older than 100 ms once `ms + 100 < age`.
    expired = min(20, max(0, age_ms - 100))
    assert log.log_start_offset == min(expired, high_watermark)


def test_by_time_an_older_row_behind_a_younger_one_waits() -> None:
    log = open_log(SimDisk(), retention_ms=100)
    for ms in (10, 500, 20, 30):
        append(log, ms)
    retain(log, at(600), 4)
    assert log.log_start_offset == 1
    retain(log, at(601), 4)
    assert log.log_start_offset == 4


def test_an_idle_topic_gives_up_its_newest_segment_and_remembers_its_end() -> None:
    disk = SimDisk()
    log = open_log(disk, retention_ms=100)
    for ms in range(5):
        append(log, ms)
    assert retain(log, at(200), 5)[:2] == (5, 1)
    assert (log.reader.segment_count, log.reader.size_bytes) == (0, 0)
    assert [name for name in disk.list(DIRECTORY) if name.endswith((".log", ".index"))] == []
    disk.crash()
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)


@pytest.mark.parametrize("high_watermark", [0, 7, 100])
def test_by_size_whole_segments_until_the_bound_holds(high_watermark: int) -> None:
    log = open_log(SimDisk(), retention_bytes=8 * 320, segment_bytes=1 << 20, retention_ms=-1)
    for ms in range(100):
        append(log, ms)
    bases = [segment.base_offset for segment in log.reader.segments]
    assert bases == list(range(0, 100, 2)), "an eighth of the bound: two batches a segment"
    retain(log, at(100), high_watermark)
    if high_watermark == 100:
        assert log.reader.size_bytes == 8 * 320
        assert log.log_start_offset == 84
    else:
        assert log.log_start_offset == high_watermark
        assert log.reader.segments[0].base_offset <= high_watermark


def test_by_size_a_log_of_exactly_the_bound_keeps_all() -> None:
    log = open_log(SimDisk(), retention_bytes=8 * 320, retention_ms=-1)
    for ms in range(16):
        append(log, ms)
    assert log.reader.size_bytes == 8 * 320
    retain(log, at(100), 16)
    assert log.log_start_offset == 0
    append(log, 16)
    retain(log, at(100), 17)
    assert log.log_start_offset == 2


def test_without_bounds_nothing_goes() -> None:
    log = open_log(SimDisk(), retention_ms=-1, retention_bytes=-1, segment_bytes=300)
    for ms in range(20):
        append(log, ms)
    retain(log, at(10**9), 20)
    assert (log.log_start_offset, log.log_end_offset) == (0, 20)


def test_an_idle_segment_is_finished_when_its_time_has_come() -> None:
    log = open_log(SimDisk(), segment_ms=50, retention_ms=-1)
    append(log, 0)
    retain(log, at(49), 1)
    append(log, 49)
    assert log.reader.segment_count == 1
    retain(log, at(50), 2)
    append(log, 50)
    assert log.reader.segment_count == 2


@pytest.mark.parametrize("offset", [1, 3, 10])
@pytest.mark.parametrize("seed", range(6))
def test_deleted_records_stay_deleted_after_a_crash(offset: int, seed: int) -> None:
    disk = SimDisk(seed)
    log = open_log(disk, segment_bytes=500)
    for ms in range(10):
        append(log, ms)
    flush(log)
    assert trim(log, offset) == offset
    disk.crash()
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (offset, 10)
    with pytest.raises(OffsetOutOfRange):
        log.reader.read(offset - 1, bytes_max=1, end_offset=10)


def test_offsets_beyond_the_end_cannot_be_deleted() -> None:
    log = open_log(SimDisk())
    append(log, 0)
    with pytest.raises(OffsetOutOfRange):
        trim(log, 2)
    assert log.log_start_offset == 0


@pytest.mark.parametrize("seed", range(6))
def test_deleting_what_retention_took_already_is_durable_too(seed: int) -> None:
    disk = SimDisk(seed)
    log = open_log(disk, retention_ms=100)
    for ms in range(10):
        append(log, ms)
    flush(log)
    retain(log, at(104), 10)
    assert log.log_start_offset == 4
    assert trim(log, 3) == 4
    disk.crash()
    log = open_log(disk, retention_ms=100)
    assert (log.log_start_offset, log.log_end_offset) == (4, 10)


def test_a_given_up_file_that_cannot_be_removed_takes_no_partition_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    disk.make_dir("data/t-0")
    config = LogConfig(segment_bytes=700)
    now = Now(0, 1_000_000_000_000_000)

    def opened() -> Log:
        return Log.open(disk, "data/t-0", config=config, clean=False, now=now)

    log = opened()
    for _ in range(6):
        log.append([make_batch(3, now.wall_us, 1, 7)], 0, now)
    flush(log)
    job = log.begin_trim(12)
    assert job is not None
    assert log.complete_trim(job, job.run()) is not None
    disk.kill()
    remove = disk.remove

    def refused(path: str) -> None:
        if path.endswith(".log"):
            raise OSError(errno.EPERM, "Operation not permitted", path)
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", refused)
        log = opened()
    assert (log.log_start_offset, log.log_end_offset) == (12, 18)
    assert len(log.recovery.notes) == 1
    disk.kill()
    log = opened()
    assert (log.log_start_offset, log.log_end_offset, log.recovery.notes) == (12, 18, [])
    assert disk.list("data/t-0").count(f"{0:020d}.log") == 0


@pytest.mark.parametrize("flush_under_way", [False, True])
@pytest.mark.parametrize("room", [True, False])
def test_epochs_outlive_the_files_that_alone_know_them(flush_under_way: bool, room: bool) -> None:
    """A reader at the log start that names the epoch of the row before it got an error of lost
    rows."""
    disk = SimDisk()
    log = open_log(disk, retention_ms=100)
    for epoch in (0, 3, 4):
        log.append([make_batch(2, START_US, 1, 7)], epoch, at(0))
    disk.kill()
    log = open_log(disk, retention_ms=100)
    job = log.begin_flush() if flush_under_way else None
    trim = log.begin_trim(6, promised=False)
    assert trim is not None
    if not room:
        disk.capacity = disk.used_bytes + 59  # For the log start and its copy.
    files = log.complete_trim(trim, trim.run())
    assert files is not None
    files.run()
    if job is not None:
        log.fail_flush(job, OSError(errno.EMFILE, "Too many open files"))
    disk.sync_dir(DIRECTORY)
    disk.crash()
    log = open_log(disk, retention_ms=100)
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    if room:
        assert log.epochs.end_offset_for(4) == (4, 6)


def test_the_newest_time_is_known_where_the_last_file_is_empty() -> None:
    disk = SimDisk()
    log = open_log(disk, segment_bytes=300)
    append(log, 5)
    append(log, 7)
    disk.capacity = disk.used_bytes + 64
    with pytest.raises(DiskFull):
        append(log, 9)
    disk.capacity = None
    disk.kill()
    log = open_log(disk)
    log.reader.load_newest_time()
    assert log.reader.newest_us() == START_US + 7_000


def test_the_oldest_time_is_found_behind_an_unreadable_segment() -> None:
    """The index lies, the bytes are good: that is reported once, and the next segment answers."""
    log = open_log(SimDisk(), segment_bytes=300)
    for ms in range(4):
        append(log, ms)
    first, second = log.reader.segments[:2]
    assert first.index is not None
    first.index.relative_offsets[0] += 1
    for _ in range(2):
        log.reader._oldest_us = None
        assert log.reader.oldest_us() == START_US + second.base_offset * 1000
    assert len(log.recovery.damages) == 1


def test_a_start_that_was_not_written_leaves_the_epochs_of_its_rows() -> None:
    """Each kill of a broker set the list aside, with a warning, and the file was kept."""
    disk = SimDisk()
    log = open_log(disk)
    log.append([make_batch(2, START_US, 1, 7)], 0, at(0))
    log.append([make_batch(2, START_US, 1, 7)], 3, at(0))
    flush(log)
    assert log.begin_trim(3, promised=False) is None
    assert log.log_start_offset == 3
    log.append([make_batch(2, START_US, 1, 7)], 4, at(0))
    flush(log)
    disk.kill()
    log = open_log(disk)
    assert (log.log_start_offset, log.recovery.notes) == (0, [])
    assert log.epochs.entries() == [(0, 0), (3, 2), (4, 4)]
    trim(log, 3)
    assert log.epochs.entries() == [(3, 2), (4, 4)]
