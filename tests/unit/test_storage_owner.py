"""Whose rows these are is on the disk with the first of them; new partitions cost no fsync each."""

from __future__ import annotations

import pytest

from quiverlog.storage.log import Log, LogConfig
from quiverlog.storage.partition_directories import PartitionDirectories
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush

NOW = Now(0, 1_000_000_000_000_000)
TOPIC = bytes(range(16))


class CountingDisk(SimDisk):
    """Counts fsyncs, of files and of directories."""

    syncs = 0

    def step(self, kind: str, path: str) -> None:
        self.syncs += kind in ("fsync", "fsync_dir")
        super().step(kind, path)


def create(disk: SimDisk, count: int) -> PartitionDirectories:
    disk.make_dir("data")
    directories = PartitionDirectories(disk, "data")
    for number in range(count):
        directories.create_partition(f"t-{number}", TOPIC)
    directories.sync_partitions()
    return directories


def open_log(disk: SimDisk, number: int) -> Log:
    return Log.open(disk, f"data/t-{number}", config=LogConfig(), clean=False, now=NOW)


def append(log: Log) -> None:
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)


@pytest.mark.parametrize("seed", range(12))
def test_flushed_rows_of_a_deleted_topic_are_removed_after_a_power_failure(seed: int) -> None:
    disk = SimDisk(seed)
    directories = create(disk, 4)
    for number in range(4):
        log = open_log(disk, number)
        append(log)
        flush(log)
    disk.crash()
    names = directories.partitions()
    assert len(names) == 4
    gone, aside = directories.remove_leftovers({}, {TOPIC})
    assert (gone, aside) == (names, [])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("more", [False, True], ids=["recovered", "appended"])
def test_rows_that_a_start_has_flushed_are_somebody_s_too(seed: int, more: bool) -> None:
    disk = SimDisk(seed)
    directories = create(disk, 1)
    append(open_log(disk, 0))
    disk.kill()
    log = open_log(disk, 0)
    assert log.flushed_offset == 3
    if more:
        append(log)
        flush(log)
    disk.crash()
    assert directories.remove_leftovers({}, {TOPIC}) == (["t-0"], [])


def test_new_partitions_cost_no_fsync_each_and_a_first_flush_one_more() -> None:
    disk = CountingDisk(1)
    create(disk, 50)
    assert disk.syncs <= 1
    log = open_log(disk, 7)
    append(log)
    disk.syncs = 0
    flush(log)
    first = disk.syncs
    append(log)
    disk.syncs = 0
    flush(log)
    assert disk.syncs == 1
    disk.make_dir("elsewhere-0")
    other = Log.open(disk, "elsewhere-0", config=LogConfig(), clean=False, now=NOW)
    append(other)
    disk.syncs = 0
    flush(other)
    assert first == disk.syncs + 1


def test_a_directory_without_an_owner_s_file_is_flushed_all_the_same() -> None:
    disk = SimDisk(1)
    disk.make_dir("elsewhere-0")
    log = Log.open(disk, "elsewhere-0", config=LogConfig(), clean=False, now=NOW)
    append(log)
    assert flush(log) == 3
