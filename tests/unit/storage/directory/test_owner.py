"""Whose rows these are is on the disk with the first flush, so before any row is promised."""

from __future__ import annotations

import pytest

from quiverlog.storage.directory.data_directory import PartitionDirectories
from quiverlog.storage.log.log import Log, LogConfig
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
@pytest.mark.parametrize("background", [False, True])
def test_flushed_rows_of_a_deleted_topic_are_removed_after_a_power_failure(
    seed: int, background: bool
) -> None:
    """Also when a topic was created anew under the name while this broker was down."""
    disk = SimDisk(seed)
    directories = create(disk, 4)
    for number in range(4):
        log = open_log(disk, number)
        append(log)
        flush(log, background=background)
    disk.crash()
    names = directories.partitions()
    assert len(names) == 4
    anew = {names[0]: bytes(16)}
    gone, aside = directories.remove_leftovers(anew, {TOPIC})
    assert (gone, aside) == (names, [])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("more", [False, True], ids=["recovered", "appended"])
def test_rows_that_a_start_has_flushed_count_as_owned(seed: int, more: bool) -> None:
    disk = SimDisk(seed)
    directories = create(disk, 1)
    append(open_log(disk, 0))
    disk.kill()
    log = open_log(disk, 0)
    assert log.flushed_offset == 3
    if more:
        append(log)
        flush(log, background=True)
    disk.crash()
    assert directories.remove_leftovers({}, {TOPIC}) == (["t-0"], [])


def test_a_partition_costs_an_fsync_more_with_its_first_flush_and_never_again() -> None:
    disk = CountingDisk(1)
    create(disk, 50)
    assert disk.syncs <= 1
    disk.make_dir("elsewhere-0")
    logs = (
        open_log(disk, 7),
        Log.open(disk, "elsewhere-0", config=LogConfig(), clean=False, now=NOW),
    )
    counts: list[list[int]] = []
    for log in logs:  # With a file that names the owner of the rows, and without one.
        counts.append([])
        for background in (False, False, True, True):
            append(log)
            disk.syncs = 0
            flush(log, background=background)
            counts[-1].append(disk.syncs)
    with_label, without = counts
    assert [a - b for a, b in zip(with_label, without, strict=True)] == [1, 0, 0, 0]


def test_a_directory_without_an_owner_s_file_is_flushed_all_the_same() -> None:
    disk = SimDisk(1)
    disk.make_dir("elsewhere-0")
    log = Log.open(disk, "elsewhere-0", config=LogConfig(), clean=False, now=NOW)
    append(log)
    assert flush(log, background=True) == 3
