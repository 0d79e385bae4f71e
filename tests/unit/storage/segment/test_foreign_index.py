"""An index file of the same length and offsets that is another segment's, or another day's: it must
not make rows look older to retention, nor lead readers astray."""

from __future__ import annotations

import pytest

from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.index import IndexSummary, SparseIndex
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush

DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=6_000, index_interval_bytes=700, retention_ms=-1)
ROWS, BATCHES = 10, 40
DAY_US = 86_400_000_000
NOW_US = 1_000_000_000_000_000


def filled(disk: SimDisk, at_us: int, *, rows: int = ROWS, zigzag: int = 0) -> None:
    """A log that was stopped in order; its times begin at `at_us`."""
    disk.make_dir(DIRECTORY)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=True, now=Now(0, at_us))
    for number in range(BATCHES * ROWS // rows):
        time_us = at_us + number * 1000 - zigzag * (number % 3)
        header, view = make_batch(rows, time_us, 2, number % 250 + 1)
        log.append([(header, view)], 0, Now(number * 1000, time_us))
        flush(log)
    log.close(clean=True)
    disk.kill()


def indexes(disk: SimDisk) -> list[str]:
    return [name for name in disk.list(DIRECTORY) if name.endswith(".index")]


def reopened(disk: SimDisk) -> Log:
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=True, now=Now(10**9, NOW_US))


def true_times(disk: SimDisk) -> list[int]:
    log = reopened(disk)
    for segment in log.reader.segments:
        segment.load()
    found = [segment.newest_us for segment in log.reader.segments]
    log.close(clean=False)
    disk.kill()
    return found


def load(log: Log, number: int) -> str:
    """Load the index of a segment, as a reader has it loaded; what the log notes of that."""
    segment = log.reader.segments[number]
    job = log.reader.begin_load(segment.base_offset)
    if job is not None:
        log.reader.complete_load(job, job.run())
    return " ".join(note for note in log.recovery.notes if str(segment.base_offset) in note)


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("zigzag", [0, 5_000])
@pytest.mark.parametrize("days", [-1, 1])
def test_an_index_with_times_of_another_day(which: int, zigzag: int, days: int) -> None:
    disk, other = SimDisk(1), SimDisk(2)
    filled(disk, NOW_US, zigzag=zigzag)
    filled(other, NOW_US + days * DAY_US, zigzag=zigzag)
    expected = true_times(disk)
    name = indexes(disk)[which]
    foreign = other.read_file(f"{DIRECTORY}/{name}")
    own = disk.read_file(f"{DIRECTORY}/{name}")
    assert len(foreign) == len(own)
    assert foreign != own
    disk.write_file_atomic(f"{DIRECTORY}/{name}", foreign)
    log = reopened(disk)
    note = load(log, which)
    assert log.reader.segments[which].newest_us == expected[which]
    assert f"t-0/{name} has other batches or times than the rows" in note
    assert disk.read_file(f"{DIRECTORY}/{name}.unusable") == foreign
    log.close(clean=True)
    disk.kill()
    log = reopened(disk)
    assert load(log, which) == "", "once is enough"
    assert log.reader.segments[which].newest_us == expected[which]


def test_an_index_with_other_places() -> None:
    """Rows and bytes are as many, and the entries between lead into the middle of batches."""
    disk = SimDisk(1)
    filled(disk, NOW_US)
    expected = true_times(disk)
    name = indexes(disk)[0]
    summary, entries = SparseIndex.load(name, disk.read_file(f"{DIRECTORY}/{name}"))
    assert len(entries) > 3
    moved = SparseIndex()
    for number, relative in enumerate(entries.relative_offsets):
        shift = 64 if number else 0
        moved.add(relative + bool(shift), entries.positions[number] + shift, entries.times[number])
    disk.write_file_atomic(f"{DIRECTORY}/{name}", moved.dump(IndexSummary(*summary)))
    log = reopened(disk)
    assert "was not used" in load(log, 0)
    assert log.reader.segments[0].newest_us == expected[0]
    assert list(log.reader.segments[0].load().positions) != list(moved.positions)


def test_damage_in_front_of_an_entry_is_no_reason_to_doubt_the_index() -> None:
    disk = SimDisk(1)
    filled(disk, NOW_US)
    name = indexes(disk)[0]
    stored = disk.read_file(f"{DIRECTORY}/{name}")
    _, entries = SparseIndex.load(name, stored)
    path = f"{DIRECTORY}/{name.removesuffix('.index')}.log"
    data = bytearray(disk.read_file(path))
    for position in (entries.positions[0], entries.positions[-1]):
        data[position + 3] ^= 0x40
    disk.write_file_atomic(path, bytes(data))
    log = reopened(disk)
    assert load(log, 0) == ""
    assert disk.read_file(f"{DIRECTORY}/{name}") == stored
    assert list(log.reader.segments[0].load().positions) == list(entries.positions)
