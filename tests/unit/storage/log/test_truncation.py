"""Truncation: the old log or the new one after a crash at any step; served views never change."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import CRC_START, BatchHeader
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import CorruptLog
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.sim.faults import Death, FaultyDisk
from tests.support.logs import flush, trim, truncate

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)


def open_log(disk: SimDisk) -> Log:
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=NOW)


def build(disk: SimDisk, *, start: int = 0) -> Log:
    """Four batches of three rows a segment, ten in all; epochs 0 and 1."""
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    disk.sync_dir("data")
    log = open_log(disk)
    for number in range(10):
        log.append([make_batch(3, NOW.wall_us, 1, number + 1)], number // 5, NOW)
        flush(log)
    if start:
        trim(log, start)
    return log


def check(log: Log, start: int, end: int) -> None:
    assert (log.log_start_offset, log.log_end_offset) == (start, end)
    assert not log.recovery.damages
    for offset in range(start, end):
        (view,) = log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
        header = BatchHeader.unpack(view)
        assert header.base_offset == offset // 3 * 3
        assert view[-1] == offset // 3 + 1
    for epoch, first in log.epochs.entries():
        assert first < end or (epoch, first) == log.epochs.latest()


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
@pytest.mark.parametrize(
    ("start", "cut_to", "end"),
    [
        (0, 27, 27),
        (0, 24, 24),
        (0, 19, 18),
        (0, 12, 12),
        (0, 3, 3),
        (0, 1, 0),
        (5, 5, 5),
        (5, 7, 6),
    ],
)
def test_a_crash_at_any_step_leaves_the_old_log_or_the_new_one(
    start: int, cut_to: int, end: int, power: bool
) -> None:
    seen = set()
    for step in range(200):
        disk = FaultyDisk(step)
        log = build(disk, start=start)
        job = log.begin_truncate(cut_to)
        assert job is not None
        disk.die_after(step)
        try:
            result = job.run()
        except Death:
            finished = False
        else:
            finished = True
            disk.die_after(None)
            assert log.complete_truncate(job, result) == end
            check(log, start, end)
        if power:
            disk.power_loss()
        else:
            disk.process_death()
        log = open_log(disk)
        seen.add(log.log_end_offset)
        assert log.log_end_offset == end or (log.log_end_offset == 30 and not finished)
        check(log, start, log.log_end_offset)
        # What is appended now must not be taken by a truncation that is over.
        base_offset = log.append([make_batch(2, NOW.wall_us, 1, 99)], 2, NOW)
        flush(log)
        disk.crash()
        log = open_log(disk)
        assert log.log_end_offset == base_offset + 2
        assert log.epochs.latest() == (2, base_offset)
        assert log.reader.read(base_offset, bytes_max=1, end_offset=base_offset + 2)
        if finished:
            break
    else:
        raise AssertionError("the truncation never ended")
    assert seen == {30, end}


def test_damage_at_the_cut_goes_whole() -> None:
    disk = SimDisk(1)
    log = build(disk)
    log.close(clean=True)
    disk.kill()
    disk.flip_bit(segment_path(DIRECTORY, 12), (64 + 128 + 100) * 8)  # rows 15 to 18
    log = open_log(disk)
    truncate(log, 16)
    check(log, 0, 15)


def test_damage_in_front_of_the_cut_stays() -> None:
    disk = SimDisk(1)
    log = build(disk)
    log.close(clean=True)
    disk.kill()
    disk.flip_bit(segment_path(DIRECTORY, 12), (64 + 20) * 8)  # rows 12 to 15
    log = open_log(disk)
    truncate(log, 18)
    assert log.log_end_offset == 18
    assert log.reader.read(15, bytes_max=1, end_offset=18)
    with pytest.raises(CorruptLog):
        log.reader.read(12, bytes_max=1, end_offset=18)


def test_views_of_rows_that_are_cut_stay_what_they_were(tmp_path: Path) -> None:
    disk = PosixDisk()
    log = Log.open(disk, str(tmp_path), config=LogConfig(), clean=True, now=NOW)
    for number in range(4):
        log.append([make_batch(1, NOW.wall_us, 3_000, number + 1)], 0, NOW)
    flush(log)
    views = log.reader.read(0, bytes_max=1 << 20, end_offset=4)
    before = [bytes(view) for view in views]
    truncate(log, 1)
    log.append([make_batch(1, NOW.wall_us, 4_000, 200)], 1, NOW)
    assert [bytes(view) for view in views] == before
    assert log.reader.read(1, bytes_max=1, end_offset=2)[0][-1] == 200


# --- producers ----------------------------------------------------------------------------------
def test_a_producer_is_known_by_a_batch_that_straddles_the_log_start() -> None:
    """Rows of its last batch were deleted; its retry must still be a repetition."""
    disk = SimDisk(1)
    disk.make_dir(DIRECTORY)
    producers = ProducerStates(NOW.wall_us)
    log = Log.open(disk, DIRECTORY, config=LogConfig(), clean=False, now=NOW, producers=producers)
    header, view = make_batch(4, NOW.wall_us, 1, 7)
    header = header._replace(producer_id=9, producer_epoch=0, base_sequence=0)
    header.pack_into(view)
    # The checksum covers the producer's fields: this batch is as a producer would have sent it.
    header = header._replace(crc32c=crc32c(view[CRC_START:]))
    header.pack_into(view)
    log.append([(header, view)], 0, NOW)
    flush(log)
    trim(log, 2)
    disk.kill()
    again = ProducerStates(NOW.wall_us)
    log = Log.open(disk, DIRECTORY, config=LogConfig(), clean=False, now=NOW, producers=again)
    assert log.log_start_offset == 2
    assert again.check(header) == 0


def test_rows_appended_behind_a_cut_inside_missing_rows_are_read(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=700, index_interval_bytes=100)
    disk, directory = PosixDisk(), str(tmp_path)
    log = Log.open(disk, directory, config=config, clean=False, now=NOW)
    for _ in range(12):
        log.append([make_batch(3, NOW.wall_us, 4, 1)], 1, NOW)
    flush(log)
    log.close(clean=True)
    assert (log.reader.segments[1].base_offset, log.reader.segments[1].end_offset) == (3, 6)
    (tmp_path / f"{3:020d}.log").unlink()
    log = Log.open(disk, directory, config=config, clean=True, now=NOW)
    assert truncate(log, 4) == 4
    log.append([make_batch(3, NOW.wall_us, 4, 2)], 1, NOW)
    with pytest.raises(CorruptLog) as caught:
        log.reader.read(3, bytes_max=1, end_offset=7)
    assert (caught.value.details["offset"], caught.value.details["end_offset"]) == (3, 4)
    assert len(log.reader.read(4, bytes_max=1, end_offset=7)) == 1
