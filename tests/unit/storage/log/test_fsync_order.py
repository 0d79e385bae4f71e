"""A log's jobs share its files: the kernel reports an error to one fsync, and not to the next."""

from __future__ import annotations

import pytest

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import StorageFault
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=700)


def open_log(disk: SimDisk) -> Log:
    disk.make_dir(DIRECTORY)
    producers = ProducerStates(NOW.wall_us)
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=NOW, producers=producers)


def append(log: Log, count: int) -> None:
    for _ in range(count):
        log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)


def log_with_unflushed_files(disk: SimDisk) -> Log:
    """Three flushed rows; behind them eighteen that are not, in two files more."""
    log = open_log(disk)
    append(log, 1)
    assert flush(log) == 3
    append(log, 6)
    assert log.reader.segment_count == 2
    return log


def test_a_flush_behind_a_failed_trim_proves_nothing() -> None:
    """Both were started before either was back; the kernel reports a lost page once."""
    disk = SimDisk()
    log = log_with_unflushed_files(disk)
    trim, flush_job = log.begin_trim(12), log.begin_flush()
    assert trim is not None
    disk.fail_syncs = 1
    with pytest.raises(OSError, match="simulated") as raised:
        trim.run()
    with pytest.raises(StorageFault) as refused:
        flush_job.run()
    log.fail_trim(trim, raised.value)
    assert log.fail_flush(flush_job, refused.value)
    assert log.flushed_offset == 3
    disk.crash()
    log = open_log(disk)
    assert not log.recovery.damages, "no file shows that these rows were flushed"
    assert 3 <= log.log_end_offset <= 21


def test_a_trim_behind_a_failed_flush_removes_no_file() -> None:
    """The snapshot with their batches covers rows that no disk may have."""
    disk = SimDisk()
    log = log_with_unflushed_files(disk)
    flush_job, trim = log.begin_flush(), log.begin_trim(12)
    assert trim is not None
    disk.fail_syncs = 1
    with pytest.raises(OSError, match="simulated") as raised:
        flush_job.run()
    with pytest.raises(StorageFault) as refused:
        trim.run()
    assert log.fail_flush(flush_job, raised.value)
    log.fail_trim(trim, refused.value)
    assert log.log_start_offset == 0


def test_a_log_with_a_fault_keeps_files_that_no_durable_snapshot_covers() -> None:
    disk = SimDisk()
    log = log_with_unflushed_files(disk)
    disk.fail_syncs = 1
    with pytest.raises(OSError, match="simulated"):
        flush(log)
    trim = log.begin_trim(12)
    assert trim is not None
    assert log.complete_trim(trim, trim.run()) is None
    assert f"{0:020d}.log" in disk.list(DIRECTORY)
    disk.kill()
    log = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (12, 21)
    assert f"{0:020d}.log" not in disk.list(DIRECTORY), "a start removes it"


def test_no_flush_is_due_while_a_truncation_replaces_the_files() -> None:
    log = log_with_unflushed_files(SimDisk())
    assert log.flush_due_us() == 0
    job = log.begin_truncate(15)
    assert job is not None
    assert log.flush_due_us() is None
    assert log.complete_truncate(job, job.run()) == 15
    assert log.flush_due_us() is not None
    assert flush(log) == 15
