"""The bounds that are written in place: never too high, whatever happens, and never in the way."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest

from quiverlog.errors import StorageFault
from quiverlog.storage.disk.disk import Buffer
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log import checkpoint
from quiverlog.storage.log.checkpoint import Bounds, RecoveryPoint
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment_files import FlushedMark, read_header
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.sim.faults import Death, FaultyDisk
from tests.support.logs import flush, trim, truncate

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, retention_ms=-1)
NOTES = ("recovery-point", "recovery-point-copy")


class CountingDisk(SimDisk):
    """Counts its operations by kind; no room for what is written in place, if asked."""

    in_place = True

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.operations: Counter[str] = Counter()

    def step(self, kind: str, path: str) -> None:
        self.operations[kind] += 1

    def overwrite(self, path: str, data: Buffer) -> None:
        if not self.in_place:
            raise StorageFault("EIO")
        super().overwrite(path, data)


def open_log(disk: SimDisk, *, clean: bool = False) -> Log:
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    disk.sync_dir("data")
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=clean, now=NOW)


def append(log: Log) -> None:
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)


def stored(disk: SimDisk, *names: str) -> Bounds:
    return checkpoint.load_recovery_point(disk, DIRECTORY, names or NOTES).bounds


def filled(disk: SimDisk, batches: int = 10) -> Log:
    """Three rows a batch, four batches a segment, each flushed."""
    log = open_log(disk)
    for _ in range(batches):
        append(log)
        flush(log)
    return log


# --- what they cost -----------------------------------------------------------------------------
def test_a_flush_pays_no_fsync_for_them() -> None:
    disk = CountingDisk()
    log = filled(disk, 2)
    disk.operations.clear()
    append(log)
    flush(log)
    assert (disk.operations["fsync"], disk.operations["fsync_dir"]) == (1, 0)
    assert disk.operations["overwrite"] == 2
    assert stored(disk, NOTES[0]) == stored(disk, NOTES[1]) == Bounds(0, 9)


def test_a_flush_without_rows_and_a_start_that_finds_them_write_nothing() -> None:
    disk = CountingDisk()
    log = filled(disk)
    flush(log, background=True)
    disk.operations.clear()
    flush(log, background=True)
    log.close(clean=True)
    log = open_log(disk, clean=True)
    flush(log, background=True)
    assert (log.log_end_offset, disk.operations["overwrite"]) == (30, 0)


@pytest.mark.parametrize("clean", [True, False])
def test_an_error_of_theirs_is_none_of_the_rows(clean: bool) -> None:
    disk = CountingDisk()
    disk.in_place = False
    log = filled(disk)
    trim(log, 4)
    assert log.flushed_offset == 30
    assert not log.fault
    log.close(clean=clean)
    log = open_log(disk, clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (4, 30)
    assert not log.recovery.damages


# --- never too high -----------------------------------------------------------------------------
@pytest.mark.parametrize("end", ["kill", "power"])
@pytest.mark.parametrize("seed", range(8))
def test_rows_that_were_cut_off_are_not_missed(seed: int, end: str) -> None:
    """A truncation lowers every note of flushed rows, durably, in all files that have one."""
    rng = random.Random(seed)
    for _ in range(12):
        disk = SimDisk(rng.randrange(1 << 30))
        log = filled(disk, rng.randrange(3, 14))
        expected = truncate(log, rng.randrange(1, log.log_end_offset))
        for _ in range(rng.randrange(3)):
            append(log)
            if rng.random() < 0.5:
                flush(log)
                expected = log.log_end_offset
        disk.kill() if end == "kill" else disk.crash()
        log = open_log(disk)
        assert not log.recovery.damages
        assert log.log_end_offset >= expected
        assert log.log_end_offset == expected or end == "kill" or not log.log_end_offset % 3


@pytest.mark.parametrize("seed", range(20))
def test_no_power_failure_leaves_them_ahead_of_the_rows(seed: int) -> None:
    """Nothing is missing that was ever promised, and nothing is missed that never was.

    The power fails between any two operations on the disk.
    """
    rng = random.Random(seed)
    disk = FaultyDisk(seed)
    disk.reorder_pages = True
    log = open_log(disk)
    flushed = started = 0
    for _ in range(60):
        disk.die_after(rng.randrange(60))
        with contextlib.suppress(Death):
            while True:
                append(log)
                if rng.random() < 0.5:
                    flushed = flush(log, background=rng.random() < 0.2)
                if rng.random() < 0.1:
                    started = trim(log, rng.randrange(log.log_start_offset, log.log_end_offset + 1))
        disk.power_loss()
        log = open_log(disk)
        assert not [d for d in log.recovery.damages if "missing" in d or "log-start" in d]
        assert log.log_end_offset >= flushed
        assert log.log_start_offset >= started


def test_a_flush_that_runs_after_a_trim_keeps_its_start() -> None:
    """The flush was begun before, and brings no older log start into the files."""
    disk = SimDisk()
    log = filled(disk)
    append(log)
    trimming = log.begin_trim(16)
    flushing = log.begin_flush()
    assert trimming is not None
    result = trimming.run()
    log.complete_flush(flushing, flushing.run())
    log.complete_trim(trimming, result)
    assert stored(disk, NOTES[0]) == stored(disk, NOTES[1]) == Bounds(16, 33)
    newest = log.reader.segments[-1]
    assert read_header(newest.file, newest.base_offset).start_offset == 16


def test_the_segment_before_learns_that_rows_followed() -> None:
    disk = SimDisk()
    log = filled(disk, 5)
    before, last = log.reader.segments[-2:]
    assert read_header(before.file, before.base_offset).mark == FlushedMark(15, before.file.size)
    assert last.base_offset == 12


# --- made good ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NOTES)
@pytest.mark.parametrize("seed", range(8))
def test_rows_that_a_start_has_missed_are_missed_after_a_power_failure(
    seed: int, name: str
) -> None:
    """By either file alone: the segment that also had the rows is gone."""
    disk = SimDisk(seed)
    log = filled(disk)
    end, newest = log.log_end_offset, log.reader.segments[-1].path
    del log
    disk.remove(newest)
    assert open_log(disk).log_end_offset == end
    disk.crash()
    assert stored(disk, name).end_offset == end


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["gone", "empty", "zeros", "grown"])
@pytest.mark.parametrize("name", NOTES)
def test_a_start_makes_a_damaged_one_anew(name: str, damage: str, clean: bool) -> None:
    disk = SimDisk()
    log = filled(disk)
    log.close(clean=clean)
    path = f"{DIRECTORY}/{name}"
    data = disk.read_file(path)
    disk.remove(path)
    kinds = {"empty": b"", "zeros": bytes(len(data)), "grown": data + b"zz"}
    if damage != "gone":
        disk.write_file_atomic(path, kinds[damage])
    log = open_log(disk, clean=clean)
    assert not log.recovery.damages
    assert stored(disk, name) == Bounds(0, 30)


def test_the_copy_replaces_a_lost_recovery_point() -> None:
    disk = SimDisk()
    log = filled(disk)
    flush(log, background=True)
    disk.kill()
    disk.remove(f"{DIRECTORY}/recovery-point")
    log = open_log(disk)
    assert (log.log_end_offset, log.recovery.bytes_scanned) == (30, 0)


def test_a_real_file_is_written_over_and_never_shortened(tmp_path: Path) -> None:
    disk, path = PosixDisk(), tmp_path / "note"
    disk.overwrite(str(path), b"abcdef")
    disk.overwrite(str(path), b"xyz")
    assert path.read_bytes() == b"xyzdef"
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "directory").mkdir()
    with pytest.raises(StorageFault):
        disk.overwrite(str(tmp_path / "directory"), b"x")
    assert RecoveryPoint() == checkpoint.load_recovery_point(disk, str(tmp_path), []).point


# --- clean stops --------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(20))
def test_a_power_failure_after_a_clean_stop_takes_no_bound_that_was_durable(seed: int) -> None:
    """The newest segment is lost, and the note of the stop is gone: a start was under way."""
    disk = SimDisk(seed)
    log = filled(disk)
    end, newest = log.log_end_offset, log.reader.segments[-1].path
    log.close(clean=True)
    disk.remove(newest)
    disk.crash()
    log = open_log(disk)
    assert log.log_end_offset == end
    if not disk.exists(newest):
        assert any("missing" in damage for damage in log.recovery.damages)
