"""Damaged replicas on the disk: marked, set aside whole, bounded in number and room, no logs."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from pathlib import Path
from unittest import mock

import pytest

from quiverlog.errors import QuiverlogError
from quiverlog.node.replication.repairs import MadeAnew, MakeAnewJob
from quiverlog.storage.directory.damaged_replicas import (
    keep_newest,
    mark_damaged,
    set_aside_damaged,
)
from quiverlog.storage.directory.data_directory import DataDirectory, PartitionDirectories
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.files import NAME_BYTES_MAX
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now, TopicPartition
from tests.model.test_log_model import make_batch
from tests.sim.faults import Death
from tests.support.failing_os import failing_calls
from tests.support.logs import flush
from tests.support.plate_os import PlateOs

TOPIC, OTHER = bytes(range(16)), bytes(range(100, 116))
NAME = TopicPartition("t", 0)
NOW = Now(0, 1_000_000_000_000_000)
SEGMENT = f"{0:020d}.log"
ROWS = b"rows, of which one bit is wrong"
GIB = 1 << 30
CALLS_MAX = 200


class Roomy(PosixDisk):
    """So much is free, and more with each directory that goes."""

    free = GIB

    def free_bytes(self, path: str) -> int:
        return self.free

    def remove_tree(self, path: str) -> None:
        self.free += 100
        super().remove_tree(path)


def damaged(disk: PosixDisk, data: str, name: str = "t-0") -> PartitionDirectories:
    """The directory of a partition with rows, which is marked."""
    directories = PartitionDirectories(disk, data)
    assert directories.create_partition(name, TOPIC)
    path = directories.partition_path(name)
    file = disk.open(f"{path}/{SEGMENT}", create=True)
    file.append([ROWS])
    file.sync()
    file.close()
    disk.sync_dir(path)
    mark_damaged(disk, path, "a bit")
    directories.sync_partitions()
    return directories


def make_anew(disk: PosixDisk, directories: PartitionDirectories, kept_max: int = 4) -> MadeAnew:
    assert isinstance(directories, PartitionDirectories)
    job = MakeAnewJob(
        directories,
        disk,
        NAME,
        TOPIC,
        kept_max=kept_max,
        free_bytes_min=0,
    )
    return job.run()


def check_found(disk: PosixDisk, directories: PartitionDirectories) -> None:
    """The rows are in one place, whole; where they have their name they are marked."""
    names = list(disk.directories(directories.path))
    holders = [n for n in names if SEGMENT in disk.list(directories.partition_path(n))]
    assert len(holders) == 1, names
    path = directories.partition_path(holders[0])
    assert disk.read_file(f"{path}/{SEGMENT}") == ROWS
    assert "damaged" in disk.list(path)
    assert holders[0] == "t-0" or holders[0].endswith(".damaged")


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
def test_the_end_between_any_two_calls_loses_neither_rows_nor_the_mark(power: bool) -> None:
    plate = PlateOs()
    data = "/d/data"
    with plate.in_place():
        for call in range(CALLS_MAX):
            plate.begin_anew()
            disk = Roomy()
            disk.make_dir(data)
            directories = damaged(disk, data)
            plate.die_after(call)
            finished = False
            with contextlib.suppress(Death):
                make_anew(disk, directories)
                finished = True
            if power:
                plate.crash(random.Random(call))
            else:
                plate.kill()
            disk = Roomy()
            directories = PartitionDirectories(disk, data)
            check_found(disk, directories)
            if finished:
                assert SEGMENT not in disk.list(f"{data}/t-0")
                return
            make_anew(disk, directories)
            check_found(disk, directories)
            assert SEGMENT not in disk.list(f"{data}/t-0"), "an empty one has its name"
    raise AssertionError("the job never ends")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_each_call_may_fail_once_and_the_next_try_makes_it(tmp_path: Path, number: int) -> None:
    for nth in range(CALLS_MAX):
        disk = Roomy()
        directories = damaged(disk, str(tmp_path / f"data-{nth}"))
        with failing_calls(nth, number) as calls, contextlib.suppress(OSError, QuiverlogError):
            make_anew(disk, directories)
        check_found(disk, directories)
        if not calls.failed:
            return
        make_anew(disk, directories)
        check_found(disk, directories)
        assert SEGMENT not in disk.list(directories.partition_path("t-0"))
    raise AssertionError("the job never ends")


def asides(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir() if path.name.endswith(".damaged"))


def test_the_newest_stay(tmp_path: Path) -> None:
    disk = Roomy()
    for _ in range(12):
        directories = damaged(disk, str(tmp_path / "data"))
        made = make_anew(disk, directories, kept_max=3)
        assert not made.kept_too_many
        disk.remove_tree(directories.partition_path("t-0"))
    owner = TOPIC.hex()[:8]
    assert asides(tmp_path / "data") == [f"t-0.{owner}.{n}.damaged" for n in (10, 11, 12)]
    assert len(keep_newest(directories, disk, 0, 0)) == 3
    assert asides(tmp_path / "data") == []


def test_fewer_stay_where_the_disk_needs_the_room(tmp_path: Path) -> None:
    disk = Roomy()
    for number in range(4):
        directories = damaged(disk, str(tmp_path / "data"), f"t-{number}")
        set_aside_damaged(directories, disk, f"t-{number}", TOPIC)
    disk.free = 1_000
    removed = keep_newest(directories, disk, 4, 1_200)
    owner = TOPIC.hex()[:8]
    assert removed == [f"t-0.{owner}.1.damaged", f"t-1.{owner}.2.damaged"]
    assert len(keep_newest(directories, disk, 4, GIB)) == 2
    assert asides(tmp_path / "data") == []


def test_a_failure_to_remove_keeps_no_replica_from_being_made(tmp_path: Path) -> None:
    disk = Roomy()
    directories = damaged(disk, str(tmp_path / "data"))
    with mock.patch.object(disk, "remove_tree", side_effect=OSError(errno.EIO, "no")):
        made = make_anew(disk, directories, kept_max=0)
    assert made.kept_too_many
    assert made.aside
    assert disk.exists(directories.partition_path("t-0"))


def test_none_of_them_is_a_partition_or_touched_by_a_start(tmp_path: Path) -> None:
    disk = PosixDisk()
    directory = DataDirectory.open(disk, str(tmp_path), node_id=0, entropy=os.urandom)
    long = f"{'n' * 249}-9999"
    for name in ("t-0", long):
        damaged(disk, directory.data.path, name)
        aside = set_aside_damaged(directory.data, disk, name, TOPIC)
        assert len(os.fsencode(aside)) <= NAME_BYTES_MAX
    assert directory.data.partitions() == []
    before = asides(tmp_path / "data")
    assert len(before) == 2
    assert directory.data.remove_leftovers({"t-0": TOPIC}, {OTHER, TOPIC}) == ([], [])
    assert asides(tmp_path / "data") == before
    assert directory.data.unknown_rows({}, ()) == []
    assert directory.notes == []
    assert set_aside_damaged(directory.data, disk, "t-7", TOPIC) == "", "there is none"
    damaged(disk, directory.data.path, "t-1")
    assert set_aside_damaged(directory.data, disk, "t-1", OTHER) == "", "it is another topic's"


@pytest.mark.parametrize("clean", [True, False])
def test_every_start_reports_the_mark(tmp_path: Path, clean: bool) -> None:
    disk, path = PosixDisk(), str(tmp_path)
    log = Log.open(disk, path, config=LogConfig(), clean=False, now=NOW)
    log.append([make_batch(3, NOW.wall_us, 1, 1)], 0, NOW)
    flush(log)
    log.close(clean=True)
    assert not Log.open(disk, path, config=LogConfig(), clean=clean, now=NOW).recovery.damages
    mark_damaged(disk, path, "why")
    for _ in range(2):
        log = Log.open(disk, path, config=LogConfig(), clean=clean, now=NOW)
        assert log.recovery.damages == [
            f"{tmp_path.name}/damaged: rows were found to be damaged before."
        ]
        assert log.log_end_offset == 3
        assert not log.recovery.notes, "it is one of the log's files"
        log.close(clean=True)
