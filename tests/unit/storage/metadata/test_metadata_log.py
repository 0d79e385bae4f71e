"""The metadata log: entries whole or not at all, whichever system call fails."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quiverlog.errors import (
    CorruptLog,
    DiskFull,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
)
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.metadata.metadata_log import (
    MetadataLog,
    file_header,
    pack_frame,
    parse,
)
from tests.sim.disk import SimDisk
from tests.support.failing_os import failing_calls
from tests.support.logs import compact

NUMBERS = [errno.EIO, errno.ENOSPC, errno.EMFILE]


def entries_of(disk: SimDisk | PosixDisk, path: str) -> list[bytes]:
    log = MetadataLog.open(disk, path)
    entries = list(log.records())
    log.close()
    return entries


class Story:
    """A log that is appended to and compacted; what was promised, and what was asked for."""

    def __init__(self, disk: SimDisk | PosixDisk, path: str) -> None:
        self.asked: list[bytes] = []
        self.promised = 0
        self.uncertain = False
        """An append failed such that only a restart shows whether it is there."""
        self.log = MetadataLog.open(disk, path)

    def append(self, count: int = 1) -> None:
        entries = [b"entry %d" % (len(self.asked) + n) for n in range(count)]
        try:
            job = self.log.begin_append(entries)
        except StorageFault:
            return
        try:
            size = job.run()
        except QuiverlogError as error:
            if self.log.fail_append(job, error):
                self.asked += entries
                self.uncertain = True
            return
        assert not self.uncertain, "nothing is promised behind what may be missing"
        self.log.complete_append(job, size)
        self.asked += entries
        self.promised = len(self.asked)

    def compact(self) -> None:
        try:
            job = self.log.begin_compact(lambda: self.asked[: self.promised])
        except StorageFault:
            return
        try:
            size = job.run()
        except QuiverlogError as error:
            self.uncertain = self.log.fail_compact(job, error) or self.uncertain
            return
        self.log.complete_compact(job, size)

    def run(self) -> None:
        self.append()
        self.append(3)
        self.compact()
        self.append()
        self.append(2)
        self.compact()
        self.append()

    def check(self, found: list[bytes]) -> None:
        assert found == self.asked[: len(found)]
        assert self.promised <= len(found)


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_every_system_call_may_fail_once(tmp_path: Path, number: int) -> None:
    """What was promised is read back after a restart, whichever call of a life failed."""
    failed: set[str] = set()
    for nth in itertools.count():
        path = str(tmp_path / f"{nth}")
        disk = PosixDisk()
        MetadataLog.open(disk, path).append([b"registered"])
        with failing_calls(nth, number) as calls:
            try:
                story = Story(disk, path)
            except QuiverlogError:
                story = None
            if story is not None:
                story.asked = [b"registered"]
                story.promised = 1
                story.run()
        found = entries_of(PosixDisk(), path)
        assert os.listdir(path) == ["metadata.log"]
        if not calls.failed:
            break
        failed.add(calls.failed)
        if story is not None:
            story.check(found)
        else:
            assert found == [b"registered"]
        log = MetadataLog.open(PosixDisk(), path)
        log.append([b"after the restart"])
        assert entries_of(PosixDisk(), path) == [*found, b"after the restart"]
    assert failed >= {"open", "fsync", "fdatasync", "pwrite", "rename"}, "some never failed"


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_power_fails_after_a_system_call_failed(number: int) -> None:
    """The same on a disk that loses what was not flushed, after each of the failures."""
    for nth in itertools.count():
        left = -1
        for seed in range(4):
            disk = FailingSimDisk(seed)
            MetadataLog.open(disk, "m").append([b"registered"])
            disk.sync_dir("m")
            disk.fail_at(nth, number)
            try:
                story = Story(disk, "m")
            except QuiverlogError:
                continue
            story.asked, story.promised = [b"registered"], 1
            story.run()
            left, disk.fuse = disk.fuse, -1
            disk.crash()
            story.check(entries_of(disk, "m"))
        if left >= 0:
            break
    assert nth > 20


class FailingSimDisk(SimDisk):
    """The simulated disk, whose nth operation fails."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.fuse = -1
        self._number = 0

    def fail_at(self, nth: int, number: int) -> None:
        self.fuse = nth
        self._number = number

    def step(self, kind: str, path: str) -> None:
        if self.fuse == 0:
            self.fuse = -1
            raise OSError(self._number, os.strerror(self._number), path)
        self.fuse -= self.fuse > 0


class Busy(PosixDisk):
    """No directory can be flushed, for a while."""

    refusals = 0
    number = errno.EMFILE

    def sync_dir(self, path: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError(self.number, os.strerror(self.number), path)
        super().sync_dir(path)
        self.synced = True


def test_a_failed_flush_of_the_directory_after_a_compaction(tmp_path: Path) -> None:
    """The log wrote on to a file that had lost its name: later entries were gone after a crash."""
    disk = Busy()
    log = MetadataLog.open(disk, str(tmp_path))
    log.append([b"one"])
    disk.refusals, disk.number = 1, errno.EIO
    with pytest.raises(QuiverlogError):
        compact(log, [b"snapshot"])
    promised = [b"snapshot"]
    try:
        log.append([b"two"])
        promised.append(b"two")
    except StorageFault:
        pass
    assert entries_of(PosixDisk(), str(tmp_path))[-len(promised) :] == promised


def test_a_directory_that_could_not_be_opened_is_flushed_before_the_next_entry(
    tmp_path: Path,
) -> None:
    disk = Busy()
    log = MetadataLog.open(disk, str(tmp_path))
    log.append([b"one"])
    disk.refusals, disk.synced = 2, False
    compact(log, [b"snapshot"])
    with pytest.raises(ThrottledBroker):
        log.append([b"two"])
    assert not log.fault
    assert not disk.synced
    log.append([b"three"])
    assert disk.synced
    assert entries_of(PosixDisk(), str(tmp_path)) == [b"snapshot", b"three"]


class _NamesFail(SimDisk):
    """No fsync of a directory succeeds while `fails`."""

    fails = False

    def sync_dir(self, path: str) -> None:
        if self.fails:
            raise OSError(errno.EIO, "simulated fsync failure", path)
        super().sync_dir(path)


@pytest.mark.parametrize("seed", range(8))
def test_a_start_makes_the_name_durable_that_a_compaction_could_not(seed: int) -> None:
    """The next process wrote on to the new file, and a power failure brought the old one back."""
    disk = _NamesFail(seed)
    log = MetadataLog.open(disk, "data")
    log.append([b"one"])
    disk.fails = True
    with pytest.raises(QuiverlogError):
        compact(log, [b"snapshot of one"])
    disk.kill()
    disk.fails = False
    log = MetadataLog.open(disk, "data")
    log.append([b"promised"])
    disk.crash()
    assert entries_of(disk, "data")[-1:] == [b"promised"]


def test_entries_appended_during_a_compaction_are_carried_over(tmp_path: Path) -> None:
    log = MetadataLog.open(PosixDisk(), str(tmp_path))
    log.append([b"one"])
    earlier = log.begin_append([b"before the snapshot, not completed"])
    compaction = log.begin_compact(lambda: [b"snapshot of one"])
    later = log.begin_append([b"after"])
    assert earlier.key == compaction.key == later.key
    log.complete_append(earlier, earlier.run())
    log.complete_compact(compaction, compaction.run())
    log.complete_append(later, later.run())
    assert log.size_bytes == os.path.getsize(tmp_path / "metadata.log")
    assert entries_of(PosixDisk(), str(tmp_path)) == [
        b"snapshot of one",
        b"before the snapshot, not completed",
        b"after",
    ]


def test_entries_of_one_job_are_there_together_or_not_at_all() -> None:
    seen = set()
    for seed in range(200):
        disk = SimDisk(seed)
        disk.reorder_pages = True
        log = MetadataLog.open(disk, "m")
        disk.sync_dir("m")
        log.append([b"first"])
        group = [b"x" * 700, b"y" * 900, b"z" * 10]
        log.tail.file.append([pack_frame(group)])  # The power fails before the flush.
        disk.crash()
        found = entries_of(disk, "m")
        assert found in ([b"first"], [b"first", *group])
        seen.add(len(found))
    assert seen == {1, 4}


def test_a_failed_flush_ends_the_log_until_a_restart(tmp_path: Path) -> None:
    log = MetadataLog.open(PosixDisk(), str(tmp_path))
    log.append([b"one"])
    with failing_calls(0, errno.EIO, only="fdatasync"), pytest.raises(StorageFault):
        log.append([b"two"])
    assert "fsync failed" in log.fault
    for attempt in (log.append, log.begin_append, lambda entries: log.begin_compact(entries.copy)):
        with pytest.raises(StorageFault, match="until a restart"):
            attempt([b"three"])
    assert not log.wants_compaction
    assert entries_of(PosixDisk(), str(tmp_path)) in ([b"one"], [b"one", b"two"])


def test_no_room_and_no_descriptor_are_no_faults(tmp_path: Path) -> None:
    log = MetadataLog.open(PosixDisk(), str(tmp_path))
    log.close()
    with failing_calls(0, errno.EMFILE, only="open"), pytest.raises(ThrottledBroker):
        log.append([b"one"])
    with failing_calls(0, errno.ENOSPC, only="pwrite"), pytest.raises(DiskFull):
        log.append([b"one"])
    assert not log.fault
    log.append([b"two"])
    assert entries_of(PosixDisk(), str(tmp_path)) == [b"two"]


def test_a_log_opens_without_room_and_flushes_later(tmp_path: Path) -> None:
    """A full disk refused the start, reads included."""
    log = MetadataLog.open(PosixDisk(), str(tmp_path))
    log.append([b"one"])
    log.append([b"two"])
    with failing_calls(0, errno.ENOSPC, only="pwrite", for_ever=True):
        log = MetadataLog.open(PosixDisk(), str(tmp_path))
        assert list(log.records()) == [b"one", b"two"]
        with pytest.raises(DiskFull):
            log.append([b"three"])
    with failing_calls(-1, 0) as calls:
        log.append([b"three"])
    assert calls.names.count("pwrite") == 2, "the frame that was not flushed, and the new one"
    assert entries_of(PosixDisk(), str(tmp_path)) == [b"one", b"two", b"three"]


def test_a_log_cut_to_its_header_is_not_an_empty_one(tmp_path: Path) -> None:
    """The broker started empty: every partition became a leftover of an unknown topic."""
    MetadataLog.open(PosixDisk(), str(tmp_path)).append([b"one"])
    os.truncate(tmp_path / "metadata.log", 16)
    with pytest.raises(CorruptLog, match="holds no entry"):
        MetadataLog.open(PosixDisk(), str(tmp_path), create=False)
    assert os.path.getsize(tmp_path / "metadata.log") == 16


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_log_that_cannot_be_read_is_a_typed_error(tmp_path: Path, number: int) -> None:
    MetadataLog.open(PosixDisk(), str(tmp_path)).append([b"one"])
    with failing_calls(0, number, only="pread"), pytest.raises(StorageFault, match="cannot be"):
        MetadataLog.open(PosixDisk(), str(tmp_path))


# --- damage -------------------------------------------------------------------------------------
def test_a_whole_frame_behind_damage_is_found_wherever_it_lies(tmp_path: Path) -> None:
    rng = random.Random(6)
    for _ in range(200):
        noise = rng.randbytes(rng.randrange(1, 400))
        data = file_header() + pack_frame([b"one"])
        # A frame that claims more than there is, noise, and a good frame behind it.
        torn = struct.pack("<II", 1 << 30, 0) + noise
        good = pack_frame([rng.randbytes(rng.randrange(1, 300)) for _ in range(3)])
        assert parse("m", data + torn).entries == [b"one"]
        with pytest.raises(CorruptLog, match=f"byte {len(data)}"):
            parse("m", data + torn + good + noise[:2])


@pytest.mark.parametrize(
    "fill",
    [
        lambda size: bytes(size),
        lambda size: random.Random(1).randbytes(size),
        lambda size: struct.pack("<II", 64, 0) * (size // 8),
        lambda size: struct.pack("<I", 1) * (size // 4),
        lambda size: b"".join(struct.pack("<III", n - 12, 0, n - 16) for n in range(size, 20, -12)),
    ],
    ids=["zeros", "noise", "sizes", "ones", "nested"],
)
def test_the_search_behind_damage_takes_time_in_proportion(fill: Callable[[int], bytes]) -> None:
    """8 MiB took 31 s: a checksum was begun at every byte."""
    data = file_header() + pack_frame([b"one"]) + struct.pack("<II", 1 << 30, 0) + fill(2 << 20)
    began = time.process_time()
    with contextlib.suppress(CorruptLog):
        parse("m", data)
    assert time.process_time() - began < 5.0


def test_a_compaction_that_found_no_room_is_not_tried_after_every_append(tmp_path: Path) -> None:
    log = MetadataLog.open(PosixDisk(), str(tmp_path))
    tries = []
    entry = b"x" * 1024
    while log.size_bytes < 4 * 1024 * 1024:
        log.append([entry])
        if log.wants_compaction:
            tries.append(log.size_bytes)
            job = log.begin_compact(lambda: [b"snapshot"])
            assert not log.fail_compact(job, DiskFull("no room"))
    assert len(tries) >= 2, "it is tried again when there is twice as much to gain"
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(tries))
