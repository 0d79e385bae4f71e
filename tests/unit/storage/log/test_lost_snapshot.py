"""What a log believes of its producer snapshots is on the disk, also on a full one."""

from __future__ import annotations

import pytest

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import CorruptLog, DiskFull
from quiverlog.storage.disk.disk import Buffer
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import trim

DIRECTORY = "data/t-0"
NOW = Now(0, 1_000_000_000_000_000)
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


class FullDisk(SimDisk):
    """No room for a log start while `full`."""

    full = False

    def write_file_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        if self.full and "log-start" in path:
            raise DiskFull("no room", file=path)
        super().write_file_atomic(path, data, durable=durable)


def open_log(disk: SimDisk) -> tuple[Log, ProducerStates]:
    producers = ProducerStates(NOW.wall_us)
    disk.make_dir(DIRECTORY)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=NOW, producers=producers)
    return log, producers


def append(log: Log, producers: ProducerStates, count: int) -> None:
    for number in range(count):
        header, view = make_batch(3, NOW.wall_us, 5, 1, producer=(7, 0, 3 * number))
        producers.record(header, log.append([(header, view)], 0, NOW), NOW.wall_us)


def test_a_snapshot_that_a_full_disk_takes_back_is_written_again() -> None:
    disk = FullDisk()
    log, producers = open_log(disk)
    append(log, producers, 4)
    log.roll()
    flush = log.begin_flush()
    job = log.begin_trim(12)
    assert job is not None
    log.complete_flush(flush, flush.run())  # It has made the snapshot of row 12 durable.
    disk.full = True
    with pytest.raises(DiskFull) as caught:
        job.run()
    log.fail_trim(job, caught.value)
    disk.full = False
    trim(log, 12)
    assert log.reader.segment_count == 0
    log.close(clean=False)
    _, again = open_log(disk)
    assert again.snapshot() == producers.snapshot()


def test_a_copy_that_begins_elsewhere_remembers_its_producers() -> None:
    disk = SimDisk()
    log, producers = open_log(disk)
    append(log, producers, 4)
    job = log.begin_skip(100)
    files = log.complete_trim(job, job.run())
    assert files is not None
    files.run()
    log.close(clean=False)
    log, again = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert again.snapshot() == producers.snapshot()


def test_producers_from_the_leader_hold_from_the_copy_s_start() -> None:
    disk = SimDisk()
    log, producers = open_log(disk)
    append(log, producers, 4)
    reported = producers.blank()
    reported.replay(
        make_batch(1, NOW.wall_us, 1, 1, producer=(7, 0, 90))[0]._replace(base_offset=99)
    )
    log.fail_trim(log.begin_skip(100, reported.snapshot(), NOW), OSError(5, "Input/output error"))
    assert producers.snapshot() != reported.snapshot(), "it has not begun there"
    job = log.begin_skip(100, reported.snapshot(), NOW)
    files = log.complete_trim(job, job.run())
    assert producers.snapshot() == reported.snapshot()
    disk.crash()
    _, again = open_log(disk)
    assert again.snapshot() == reported.snapshot()
    assert files is not None
    files.run()
    with pytest.raises(CorruptLog):
        log.begin_skip(200, b"of a later version", NOW)
    assert log.begin_skip(200).snapshot is None, "what is known is on the disk"
