"""Jobs of a log that run later than they were begun: others ran meanwhile, and files are gone."""

from __future__ import annotations

from pathlib import Path

from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.disk.posix_file import PosixFile
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.reading_jobs import NotResident, ReadingJob, VerifyJob
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush

DIRECTORY = "data/t-0"
NOW = Now(0, 1_000_000_000_000_000)


def test_a_trim_that_waited_leaves_the_epochs_of_a_later_flush() -> None:
    """The node holds a trim back while flushes go on, which may have a newer epoch."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    config = LogConfig(segment_bytes=700, index_interval_bytes=100)
    log = Log.open(disk, DIRECTORY, config=config, clean=False, now=NOW)
    log.epochs.assign(1, 0)
    for _ in range(4):
        log.append([make_batch(3, NOW.wall_us, 4, 1)], 1, NOW)
    trim = log.begin_trim(6)
    assert trim is not None
    assert trim.epochs is not None
    log.epochs.assign(2, 12)
    log.append([make_batch(3, NOW.wall_us, 4, 1)], 2, NOW)
    flush(log, background=True)
    log.complete_trim(trim, trim.run())
    log.close(clean=False)

    log = Log.open(disk, DIRECTORY, config=config, clean=False, now=NOW)
    assert log.epochs.latest() == (2, 12)
    assert log.reader.read(12, bytes_max=1, end_offset=15)


def test_a_job_that_opens_a_file_that_went_leaves_it_closed(tmp_path: Path) -> None:
    """An open file takes its room on the disk for as long as that, whatever was removed."""
    disk, directory = PosixDisk(), str(tmp_path)
    config = LogConfig(segment_bytes=700 * 1024)
    log = Log.open(disk, directory, config=config, clean=False, now=NOW)
    for _ in range(8):
        log.append([make_batch(3, NOW.wall_us, 5000, 1)], 0, NOW)
    flush(log)
    log.close(clean=True)
    log = Log.open(disk, directory, config=config, clean=True, now=NOW)
    done: list[ReadingJob] = []
    while not done or not isinstance(done[-1], VerifyJob):
        try:
            log.reader.read(0, bytes_max=300_000, end_offset=24, cold_ok=False, just_read=done)
        except NotResident as cold:
            done.append(cold.job)
            if not isinstance(cold.job, VerifyJob):
                log.reader.complete_read(cold.job, cold.job.run())
    verify = done[-1]
    assert isinstance(verify, VerifyJob)
    trim = log.begin_trim(9)
    assert trim is not None
    files = log.complete_trim(trim, trim.run())
    assert files is not None
    result = verify.run()  # It was under way.
    files.run()
    log.reader.complete_read(verify, result)
    assert isinstance(verify.file, PosixFile)
    assert not verify.file.is_open
