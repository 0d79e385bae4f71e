"""A log before its first background flush: nothing is lost without a word there either."""

from __future__ import annotations

import errno

import pytest

from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.epochs import EPOCHS_FILE
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim, truncate

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
PATH = segment_path(DIRECTORY, 0)
BATCH_BYTES = 64 + 20 * 64


def open_log(disk: SimDisk, *, clean: bool = False) -> Log:
    disk.make_dir(DIRECTORY)
    config = LogConfig(retention_ms=-1)
    return Log.open(disk, DIRECTORY, config=config, clean=clean, now=NOW)


def append(log: Log, epoch: int = 5) -> int:
    return log.append([make_batch(1, NOW.wall_us, 20, 7)], epoch, NOW)


def young(batches: int = 6, epoch: int = 5) -> SimDisk:
    """Each batch was flushed for a request that waited; then kill -9."""
    disk = SimDisk()
    log = open_log(disk)
    log.epochs.assign(epoch, 0)
    for _ in range(batches):
        append(log, epoch)
        flush(log)
    disk.kill()
    return disk


def readable(log: Log) -> list[int]:
    found = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
        except CorruptLog:
            continue
        found.append(offset)
    return found


def change(disk: SimDisk, start: int, data: bytes) -> None:
    disk.inode(PATH).data[start : start + len(data)] = data


def test_the_only_file_is_gone() -> None:
    disk = young()
    disk.remove(PATH)
    log = open_log(disk)
    assert any("missing" in damage for damage in log.recovery.damages)
    assert append(log) > 0, "an offset is not given out twice"


@pytest.mark.parametrize("size", [64, 512, 4096])
def test_the_first_bytes_are_zeros(size: int) -> None:
    """The header that holds the mark, and batches behind it."""
    disk = young()
    change(disk, 0, bytes(size))
    log = open_log(disk)
    # Only the recovery point, behind the first batch, still has the beginning of a batch.
    assert readable(log) == {64: list(range(6)), 512: [1, 2, 3, 4, 5], 4096: []}[size]
    assert log.recovery.damages
    assert log.recovery.bytes_truncated == 0


@pytest.mark.parametrize("number", [0, 3, 5])
@pytest.mark.parametrize("epoch", [0, 1, 4])
def test_a_leader_epoch_too_low_damages_its_own_batch_only(number: int, epoch: int) -> None:
    disk = young()
    change(disk, 64 + number * BATCH_BYTES + 8, epoch.to_bytes(4, "little"))
    log = open_log(disk)
    assert readable(log) == [n for n in range(6) if n != number]
    # What lies below the recovery point is not scanned: the first read finds it.
    assert len(log.recovery.damages) == (1 if number else 0)


@pytest.mark.parametrize("number", [0, 3, 5])
def test_so_it_does_without_any_note(number: int) -> None:
    """The power took what was written beside the segment."""
    disk = young()
    for name in (EPOCHS_FILE, "recovery-point", "recovery-point-copy"):
        if disk.exists(f"{DIRECTORY}/{name}"):
            disk.remove(f"{DIRECTORY}/{name}")
    change(disk, 64 + number * BATCH_BYTES + 8, bytes(4))
    log = open_log(disk)
    if number == 0:  # Nothing contradicts it: an epoch may end after its first batch.
        assert (readable(log), log.epochs.entries()) == (list(range(6)), [(0, 0), (5, 1)])
        return
    assert readable(log) == [n for n in range(6) if n != number]
    assert log.epochs.entries() == [(5, 0)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("end", ["kill", "power"])
@pytest.mark.parametrize("between", ["", "trim", "truncate", "roll", "no descriptors"])
def test_epochs_of_several_lives_are_known(seed: int, end: str, between: str) -> None:
    """Each life has an epoch, flushes once and ends; nothing was written in the background."""
    disk = SimDisk(seed)
    log = open_log(disk)
    for life in range(4):
        epoch = 2 * life + 1
        log.epochs.assign(epoch, log.log_end_offset)
        for _ in range(3):
            append(log, epoch)
        if between == "trim" and life == 2:
            trim(log, 4)
        elif between == "truncate" and life == 2:
            truncate(log, 5)
            append(log, epoch)
        elif between == "roll" and life % 2:
            log.roll()
        elif between == "no descriptors":
            job = log.begin_flush()
            assert not log.fail_flush(job, OSError(errno.EMFILE, "Too many open files"))
        flush(log)
        known, last = log.epochs.entries(), log.log_end_offset
        if end == "kill":
            disk.kill()
        else:
            disk.crash()
        log = open_log(disk)
        assert not log.recovery.damages
        assert log.log_end_offset == last
        assert log.epochs.entries() == known
