"""A power failure takes the name of a log's first file, and the file behind it survives.

Where no flush has succeeded nothing was promised: the log begins anew, so that an idempotent
producer can send again what was lost. Where any file shows that rows were flushed, or that the file
was removed by hand, the rows behind it stay and those without a file are reported as missing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, remove_point, trim

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=1_100, index_interval_bytes=1, retention_ms=-1)
ROWS, BATCHES = 5, 12


def open_log(disk: SimDisk) -> tuple[Log, ProducerStates]:
    producers = ProducerStates(NOW.wall_us)
    log = Log.open(
        disk, DIRECTORY, config=CONFIG, clean=False, now=NOW, producers=producers, epoch_newest=1
    )
    return log, producers


def append(log: Log, producers: ProducerStates, first: int, last: int) -> None:
    """Batches of producer 7, as numbered, each taken as the partition takes it."""
    for number in range(first, last):
        header, view = make_batch(ROWS, NOW.wall_us, 2, number + 1, (7, 0, ROWS * number))
        assert producers.check(header) is None
        base_offset = log.append([(header, view)], 0, NOW)
        producers.record(header, base_offset, NOW.wall_us)


def young(seed: int = 0) -> tuple[SimDisk, Log, ProducerStates]:
    """Several files of unflushed rows."""
    disk = SimDisk(seed)
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    log, producers = open_log(disk)
    append(log, producers, 0, BATCHES)
    assert len(log.reader.segments) > 2
    return disk, log, producers


def bases(disk: SimDisk) -> list[int]:
    return [int(name[:-4]) for name in disk.list(DIRECTORY) if name.endswith(".log")]


def sends_all_again(disk: SimDisk) -> Log:
    """The log begins at row 0, and producer 7 gets the rows in that are not there, once each."""
    log, producers = open_log(disk)
    assert log.log_start_offset == 0
    assert log.log_end_offset % ROWS == 0
    append(log, producers, log.log_end_offset // ROWS, BATCHES)
    flush(log)
    disk.crash()
    log, _ = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (0, ROWS * BATCHES)
    assert not log.recovery.damages
    for offset in range(0, ROWS * BATCHES, ROWS):
        (view,) = log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
        assert view[64 + 64] == offset // ROWS + 1
    return log


def test_the_power_takes_any_names_of_a_log_that_was_never_flushed() -> None:
    lost = 0
    for seed in range(200):
        disk, _, _ = young(seed)
        disk.crash()
        names = bases(disk)
        lost += bool(names) and names[0] > 0
        sends_all_again(disk)
    assert lost > 10, "the case is among them"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("header", ["whole", "never arrived"])
def test_lost_first_rows_are_reported(header: str, count: int) -> None:
    """Also where the oldest file of a young log was removed by hand, which no file shows."""
    disk, _, _ = young()
    disk.kill()
    names = bases(disk)
    for base_offset in names[:count]:
        disk.remove(segment_path(DIRECTORY, base_offset))
    if header == "never arrived":
        for base_offset in names[count:]:
            disk.inode(segment_path(DIRECTORY, base_offset)).data[:] = bytes(4_096)
    removed = sum(len(disk.read_file(segment_path(DIRECTORY, b))) for b in names[count:])
    log, _ = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert log.recovery.bytes_truncated == removed
    assert any(f"rows 0 to {names[count]} " in note for note in log.recovery.notes)
    assert not log.recovery.damages
    assert bases(disk) == []
    sends_all_again(disk)


def test_what_was_removed_does_not_come_back() -> None:
    """Behind new rows that end where it began, it would pass for what follows them."""
    for seed in range(20):
        disk, _, _ = young(seed)
        disk.kill()
        first, second, *_ = bases(disk)
        disk.remove(segment_path(DIRECTORY, first))
        disk.sync_dir(DIRECTORY)
        open_log(disk)
        disk.crash()
        assert second not in bases(disk)


def flushed(disk: SimDisk, log: Log, producers: ProducerStates) -> None:
    flush(log)


def only_a_mark(disk: SimDisk, log: Log, producers: ProducerStates) -> None:
    flush(log)
    remove_point(disk, DIRECTORY)
    remove_notes(disk)


def only_an_index(disk: SimDisk, log: Log, producers: ProducerStates) -> None:
    """What is written when a flush has succeeded; the marks are gone."""
    without_marks(disk, log, ".snapshot")


def only_a_snapshot(disk: SimDisk, log: Log, producers: ProducerStates) -> None:
    without_marks(disk, log, ".index")


def a_damaged_header(disk: SimDisk, log: Log, producers: ProducerStates) -> None:
    """The damaged header may have been the one that knew."""
    disk.flip_bit(segment_path(DIRECTORY, bases(disk)[-1]), 8 * 33)


def moved_aside(disk: SimDisk, log: Log, producers: ProducerStates) -> None:
    """Something else has the first file's name: no power failure does that."""
    disk.remove(segment_path(DIRECTORY, 0))
    disk.make_dir(segment_path(DIRECTORY, 0))


def remove_notes(disk: SimDisk, suffixes: tuple[str, ...] = (".index", ".snapshot")) -> None:
    for name in disk.list(DIRECTORY):
        if name.endswith(suffixes):
            disk.remove(f"{DIRECTORY}/{name}")


def without_marks(disk: SimDisk, log: Log, unwanted: str) -> None:
    heads = {
        base: bytes(disk.read_file(segment_path(DIRECTORY, base))[:64]) for base in bases(disk)
    }
    flush(log)
    remove_point(disk, DIRECTORY)
    remove_notes(disk, (unwanted,))
    for base_offset, head in heads.items():
        disk.inode(segment_path(DIRECTORY, base_offset)).data[:64] = head


WITNESSES: list[Callable[[SimDisk, Log, ProducerStates], None]] = [
    flushed,
    only_a_mark,
    only_an_index,
    only_a_snapshot,
    a_damaged_header,
    moved_aside,
]


@pytest.mark.parametrize("witness", WITNESSES)
def test_rows_stay_where_any_file_shows_that_some_were_flushed(
    witness: Callable[[SimDisk, Log, ProducerStates], None],
) -> None:
    disk, log, producers = young()
    names = bases(disk)
    witness(disk, log, producers)
    disk.kill()
    if disk.is_file(segment_path(DIRECTORY, 0)):
        disk.remove(segment_path(DIRECTORY, 0))
    log, _ = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (0, ROWS * BATCHES)
    assert any(f"rows 0 to {names[1]} are missing" in message for message in log.recovery.damages)
    assert bases(disk) == names[1:]


def test_behind_rows_that_were_given_up_the_log_begins_anew_where_it_began() -> None:
    """All rows so far were given up; of those that came after, the first file's name is gone."""
    disk, log, producers = young()
    flush(log)
    end = log.log_end_offset
    trim(log, end)
    append(log, producers, BATCHES, BATCHES + 8)
    assert len(log.reader.segments) > 1
    disk.kill()
    disk.remove(segment_path(DIRECTORY, log.reader.segments[0].base_offset))
    log, producers = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (end, end)
    append(log, producers, BATCHES, BATCHES + 8)
