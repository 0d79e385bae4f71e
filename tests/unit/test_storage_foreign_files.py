"""A small file of a partition that is well formed and not its own: another partition's, another
day's, another broker's. None is believed against the others: no row goes, and the file is named."""

from __future__ import annotations

import struct

import pytest

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import CorruptLog
from quiverlog.storage.checkpoint import Bounds, pack_truncation
from quiverlog.storage.frames import pack_file, unpack_file
from quiverlog.storage.log import Log, LogConfig
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim

DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=200, retention_ms=-1)
ROWS = 10
START, END = 105, 400
NAMES = (
    "log-start", "log-start-copy", "recovery-point", "recovery-point-copy", "leader-epochs",
    "truncate-to", "snapshot", "index",
)  # fmt: skip


def at(ms: int) -> Now:
    return Now(ms * 1000, 1_000_000_000_000_000 + ms * 1000)


def fill(disk: SimDisk, batches: int, start: int, *, epochs: int = 4, base: int = 0) -> Log:
    """A log of batches of ten rows; `base`: where it begins."""
    disk.make_dir(DIRECTORY)
    producers = ProducerStates(10**12)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=True, now=at(0), producers=producers)
    if base:
        job = log.begin_skip(base)
        log.complete_trim(job, job.run())
    for number in range(batches):
        if number * epochs % batches < epochs:
            log.epochs.assign(number * epochs // batches, log.log_end_offset)
        header, view = make_batch(
            ROWS, at(number).wall_us, 2, number % 250 + 1, (7, 0, number * ROWS)
        )
        offset = log.append([(header, view)], max(0, log.epochs.newest), at(number))
        producers.record(header, offset, at(number).mono_us)
        flush(log)
    if start:
        trim(log, start)
    return log


FOREIGN = {
    "of a longer log": (90, 700, 2, 0),
    "of a log that begins beyond the end": (90, 0, 2, 10**6),
    "of a longer log from 0 on": (90, 0, 9, 0),
    "of one that begins later": (40, 255, 4, 0),
    "of a shorter log": (3, 0, 1, 0),
    "of yesterday": (12, 0, 2, 0),
}


def foreign_file(kind: str, name: str) -> bytes:
    """The contents of a file of that name in another log."""
    if name == "truncate-to":
        offset = {"of yesterday": 120, "of a shorter log": 30}.get(kind, 150)
        return pack_truncation(offset, "data/u-0")
    disk = SimDisk()
    batches, start, epochs, base = FOREIGN[kind]
    fill(disk, batches, start, epochs=epochs, base=base).close(clean=True)
    names = disk.list(DIRECTORY)
    if name in ("snapshot", "index"):
        name = [one for one in names if one.endswith(name)][-1]
    if name.startswith("log-start") and name not in names:
        return pack_file(b"QVLOGSTA", 1, struct.pack("<q", 0))
    return disk.read_file(f"{DIRECTORY}/{name}")


def rows_of(log: Log) -> list[int]:
    headers = log.headers(log.log_start_offset)
    return [row for header in headers for row in range(header.base_offset, header.next_offset)]


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", NAMES)
def test_no_row_goes_for_one_file_that_is_anothers(name: str, kind: str, how: str) -> None:
    disk = SimDisk()
    log = fill(disk, END // ROWS, START)
    bounds = Bounds(log.log_start_offset, log.log_end_offset)
    assert bounds == (START, END)
    if how == "clean":
        log.close(clean=True)
    disk.kill()
    names = disk.list(DIRECTORY)
    own = name
    if name in ("snapshot", "index"):
        own = [one for one in names if one.endswith(name)][-1]
    data = foreign_file(kind, name)
    path = f"{DIRECTORY}/{own}"
    before = disk.read_file(path) if own in names else b""
    disk.write_file_atomic(path, data)
    segments = [one for one in names if one.endswith(".log")]
    known = bounds if how == "clean" else None
    producers = ProducerStates(10**12)

    def start() -> Log:
        return Log.open(
            disk, DIRECTORY, config=CONFIG, clean=how == "clean", now=at(10_000), known=known,
            producers=producers, epoch_newest=5,
        )  # fmt: skip

    if (name, kind) == ("leader-epochs", "of a longer log from 0 on"):
        # It says all that the rows say, and more than the metadata: these may be the older ones.
        with pytest.raises(CorruptLog, match=r"t-0/leader-epochs: .* move the file away"):
            start()
        return
    log = start()
    told = [line for line in (*log.recovery.damages, *log.recovery.notes) if own in line]
    assert [one for one in disk.list(DIRECTORY) if one.endswith(".log")] == segments
    assert (log.log_start_offset, log.log_end_offset) == bounds
    assert sorted(set(range(*bounds)) - set(rows_of(log))) == []
    assert log.epochs.entries() == [(0, 0), (1, 100), (2, 200), (3, 300)][1:], "as in the rows"
    if data != before and name in ("log-start", "log-start-copy", "truncate-to", "leader-epochs"):
        assert told, "an operator is told which file it was"
    for number in range(END // ROWS - 5, END // ROWS):
        header, _ = make_batch(ROWS, 1, 1, 1, (7, 0, number * ROWS))
        assert producers.check(header) == number * ROWS, "it would be stored twice"
    if how == "clean":
        return
    log.close(clean=True)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=True, now=at(20_000), known=bounds)
    assert (log.recovery.notes, log.recovery.damages) == ([], []), "once is enough"


def as_older_software_left_it(disk: SimDisk) -> None:
    """Without copies of the small files, and without bounds in the recovery point."""
    for name in ("log-start-copy", "recovery-point-copy"):
        disk.remove(f"{DIRECTORY}/{name}")
    point = disk.read_file(f"{DIRECTORY}/recovery-point")
    payload = unpack_file("recovery-point", point, b"QVRECOVR", 1)
    old = pack_file(b"QVRECOVR", 1, payload[:24])
    disk.write_file_atomic(f"{DIRECTORY}/recovery-point", old)


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("start", [START, END])
@pytest.mark.parametrize("lost", ["log-start", "log-start-copy", "what older software has not"])
def test_a_log_start_that_has_no_copy_counts(lost: str, start: int, how: str) -> None:
    """Nothing else that is there contradicts what stands alone."""
    disk = SimDisk()
    log = fill(disk, END // ROWS, start)
    if how == "clean":
        log.close(clean=True)
    disk.kill()
    if lost.startswith("log-start"):
        disk.remove(f"{DIRECTORY}/{lost}")
    else:
        as_older_software_left_it(disk)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=how == "clean", now=at(10_000))
    assert (log.recovery.notes, log.recovery.damages) == ([], [])
    assert (log.log_start_offset, log.log_end_offset) == (start, END)


def test_a_mark_of_a_cut_without_a_name_is_carried_out() -> None:
    """As an older broker leaves it when it dies."""
    disk = SimDisk()
    fill(disk, END // ROWS, 0)
    disk.kill()
    mark = pack_file(b"QVTRUNCA", 1, struct.pack("<q", 300))
    disk.write_file_atomic(f"{DIRECTORY}/truncate-to", mark)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=at(10_000))
    assert log.log_end_offset == 300
