"""What a log's jobs cost and leave to others: fsyncs, descriptors, memory, cold reads."""

from __future__ import annotations

import errno
from collections import Counter

import pytest

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.reading_jobs import LoadIndexJob, NotResident
from quiverlog.storage.segment.segments import IndexCache
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.faults import FaultyDisk
from tests.support.logs import flush

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


class CountingDisk(FaultyDisk):
    """Counts its operations by kind."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.operations: Counter[str] = Counter()

    def step(self, kind: str, path: str) -> None:
        self.operations[kind] += 1
        super().step(kind, path)


def open_log(disk: FaultyDisk, *, clean: bool = False, indexes: IndexCache | None = None) -> Log:
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    disk.sync_dir("data")
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=clean, now=NOW, indexes=indexes)


def append(log: Log, count: int = 1, now: Now = NOW) -> None:
    for _ in range(count):
        log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, now)


def test_a_group_commit_flushes_the_directory_only_when_names_changed() -> None:
    disk = CountingDisk(1)
    log = open_log(disk)
    append(log)
    flush(log)
    before = disk.operations["fsync_dir"]
    for _ in range(3):
        append(log)
        flush(log)
    assert disk.operations["fsync_dir"] == before
    append(log, 2)  # A new segment: its name, and the recovery point's.
    flush(log)
    assert disk.operations["fsync_dir"] > before


def test_an_idle_partition_costs_no_fsync_at_an_unclean_start() -> None:
    disk = CountingDisk(1)
    log = open_log(disk)
    append(log, 3)
    job = log.begin_flush(background=True)
    log.complete_flush(job, job.run())
    assert log.flush_due_us() is None
    disk.process_death()
    before = disk.operations["fsync"] + disk.operations["fsync_dir"]
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=NOW)
    assert (log.log_end_offset, log.recovery.bytes_scanned) == (9, 0)
    assert disk.operations["fsync"] + disk.operations["fsync_dir"] == before


def test_when_a_flush_in_the_background_is_due() -> None:
    log = open_log(FaultyDisk(1))
    assert log.flush_due_us() is None
    append(log, now=Now(1_000_000, NOW.wall_us))
    append(log, now=Now(9_000_000, NOW.wall_us))
    assert log.flush_due_us() == 31_000_000
    append(log, 6)
    assert log.flush_due_us() == 0, "a segment was finished"


def test_a_flush_without_a_descriptor_is_no_fault() -> None:
    disk = FaultyDisk(1)
    log = open_log(disk)
    append(log, 6)
    job = log.begin_flush()
    assert not log.fail_flush(job, OSError(errno.EMFILE, "Too many open files"))
    assert not log.fault
    append(log)
    assert flush(log) == 21
    disk.power_loss()
    assert open_log(disk).log_end_offset == 21


def test_rolling_does_no_work_on_the_loop_but_making_the_next_file() -> None:
    disk = CountingDisk(1)
    log = open_log(disk)
    append(log, 4)
    disk.operations.clear()
    append(log)
    assert log.reader.segment_count == 2
    assert not {"fsync", "fsync_dir", "atomic", "rename", "unlink"} & set(+disk.operations)


def test_the_indexes_of_finished_segments_are_bounded() -> None:
    disk = FaultyDisk(1)
    indexes = IndexCache(bytes_max=200)
    log = open_log(disk, indexes=indexes)
    append(log, 60)
    flush(log)
    for _ in range(2):
        for offset in range(0, 180, 3):
            assert log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
        loaded = [s for s in log.reader.segments if s.finished and s.index is not None]
        held = sum(s.index.byte_count for s in loaded if s.index is not None)
        assert held == indexes.byte_count <= 200
    assert 0 < len(loaded) < len(log.reader.segments) - 1


def test_a_missing_index_is_a_job_for_a_reader_that_may_not_wait() -> None:
    disk = FaultyDisk(1)
    log = open_log(disk)
    append(log, 8)
    log.close(clean=True)
    disk.process_death()
    log = open_log(disk, clean=True)
    with pytest.raises(NotResident) as raised:
        log.reader.read(0, bytes_max=1, end_offset=24, cold_ok=False)
    job = raised.value.job
    assert isinstance(job, LoadIndexJob)
    log.reader.complete_load(job, job.run())
    assert log.reader.read(0, bytes_max=1, end_offset=24)
    load = log.reader.begin_load()
    assert load is not None, "an append would wait for the last segment's index"
    log.reader.complete_load(load, load.run())
    assert log.reader.begin_load() is None


def test_a_start_keeps_no_index_that_the_bound_does_not_count() -> None:
    disk = FaultyDisk(1)
    log = open_log(disk)
    append(log, 60)
    flush(log)
    disk.process_death()
    indexes = IndexCache(bytes_max=200)
    producers = ProducerStates(NOW.wall_us)
    log = Log.open(
        disk,
        DIRECTORY,
        config=CONFIG,
        clean=False,
        now=NOW,
        producers=producers,
        indexes=indexes,
    )
    loaded = [s.index.byte_count for s in log.reader.segments if s.finished and s.index is not None]
    assert log.reader.segment_count > 10
    assert sum(loaded) == indexes.byte_count
