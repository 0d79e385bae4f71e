"""Any two files of a partition lost together after the end of a process: nothing is lost silently.

The rows of lost segments are reported with their exact range, their offsets are not given out
again, and rows that were given up stay so, because more than two files have every bound of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim
from tests.unit.storage.segment.test_damage_matrix import CONFIG, DIRECTORY, NOW, ROWS, Producers

BATCHES, TRIMMED = 16, 8
END = ROWS * BATCHES
ONE_SEGMENT = LogConfig(segment_bytes=1 << 20, index_interval_bytes=150, retention_ms=-1)
CONFIGS = {"several segments": CONFIG, "one segment": ONE_SEGMENT}
HOW: dict[str, Callable[[SimDisk, str], None]] = {
    "removed": lambda disk, path: disk.remove(path),
    "emptied": lambda disk, path: disk.write_file_atomic(path, b""),
    "zeros": lambda disk, path: disk.write_file_atomic(path, bytes(len(disk.read_file(path)))),
    "grown": lambda disk, path: disk.write_file_atomic(path, disk.read_file(path) + b"zz"),
}


def open_log(disk: SimDisk, config: LogConfig) -> Log:
    return Log.open(
        disk, DIRECTORY, config=config, clean=False, now=NOW, producers=Producers(), epoch_newest=1
    )


def build(
    config: LogConfig, *, aged: bool = False, trim_at: int = BATCHES - 3
) -> tuple[SimDisk, dict[int, bytes]]:
    """A log that was killed: rows in two epochs, a trim inside a batch; batches by first offset."""
    disk = SimDisk(1)
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    log = open_log(disk, config)
    stored: dict[int, bytes] = {}
    for number in range(BATCHES):
        if number == trim_at:
            trim(log, TRIMMED)
        header, view = make_batch(ROWS, NOW.wall_us + number, number % 3 + 1, number + 1)
        log.append([(header, view)], number // (BATCHES // 2), NOW)
        stored[ROWS * number] = bytes(view)
        flush(log)
    if trim_at == BATCHES:
        trim(log, TRIMMED)
    if aged:
        flush(log, background=True)
    disk.kill()
    return disk, stored


def rows_of(disk: SimDisk, name: str) -> set[int]:
    data, at, rows = disk.read_file(f"{DIRECTORY}/{name}"), 64, set()
    while at < len(data):
        header = BatchHeader.unpack(data, at)
        rows |= set(range(header.base_offset, header.next_offset))
        at += header.total_bytes
    return rows


def unreadable(log: Log, stored: dict[int, bytes]) -> set[int]:
    """The rows that cannot be read, each of them with an error whose range holds it."""
    bad: set[int] = set()
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            views = log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
        except CorruptLog as error:
            first, after = error.details["offset"], error.details["end_offset"]
            assert isinstance(first, int)
            assert isinstance(after, int)
            assert first <= offset < after
            bad.add(offset)
            continue
        assert b"".join(views) == stored[offset // ROWS * ROWS]
    return bad


@pytest.mark.parametrize("aged", [False, True], ids=["at once", "aged"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", CONFIGS)
def test_two_files_lost_together(kind: str, how: str, aged: bool) -> None:
    config = CONFIGS[kind]
    names = build(config, aged=aged)[0].list(DIRECTORY)
    assert len([name for name in names if name.endswith(".log")]) > 2 or kind == "one segment"
    for pair in combinations(names, 2):
        disk, stored = build(config, aged=aged)
        lost: set[int] = set()
        for name in pair:
            if name.endswith(".log") and how != "grown":
                lost |= {row for row in rows_of(disk, name) if row >= TRIMMED}
            HOW[how](disk, f"{DIRECTORY}/{name}")
        log = open_log(disk, config)
        assert (log.log_start_offset, log.log_end_offset) == (TRIMMED, END), pair
        assert unreadable(log, stored) == lost, pair
        starts = all(name.startswith("log-start") for name in pair)
        # Lost rows are reported when they are read, and not by every start.
        assert lost or bool(log.recovery.damages) == starts, pair
        header, view = make_batch(1, NOW.wall_us, 1, 9)
        assert log.append([(header, view)], 1, NOW) == END, pair
        # A second start, before anything of it was flushed, finds the same.
        disk.kill()
        log = open_log(disk, config)
        assert (log.log_start_offset, log.log_end_offset) == (TRIMMED, END + 1), pair
        assert unreadable(log, stored | {END: bytes(view)}) == lost, pair


@pytest.mark.parametrize("flushed_after", [True, False])
@pytest.mark.parametrize("kind", CONFIGS)
def test_all_but_the_segments_lost(kind: str, flushed_after: bool) -> None:
    disk, stored = build(CONFIGS[kind], trim_at=BATCHES - 3 if flushed_after else BATCHES)
    for name in disk.list(DIRECTORY):
        if not name.endswith(".log"):
            disk.remove(f"{DIRECTORY}/{name}")
    log = open_log(disk, CONFIGS[kind])
    assert (log.log_start_offset, log.log_end_offset) == (TRIMMED, END)
    assert unreadable(log, stored) == set()
    assert "log-start" in log.recovery.damages[0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_all_segments_lost(kind: str) -> None:
    disk, stored = build(CONFIGS[kind])
    for name in disk.list(DIRECTORY):
        if name.endswith(".log"):
            disk.remove(f"{DIRECTORY}/{name}")
    log = open_log(disk, CONFIGS[kind])
    assert (log.log_start_offset, log.log_end_offset) == (TRIMMED, END)
    assert unreadable(log, stored) == set(range(TRIMMED, END))
    assert log.append([make_batch(1, NOW.wall_us, 1, 9)], 1, NOW) == END


def test_the_newest_segment_is_missed_even_when_all_small_files_are_gone_too() -> None:
    """The header of the segment before it shows that rows followed, though not how many."""
    disk, _ = build(CONFIG)
    names = disk.list(DIRECTORY)
    newest = max(name for name in names if name.endswith(".log"))
    for name in names:
        if name == newest or not name.endswith((".log", ".index")):
            disk.remove(f"{DIRECTORY}/{name}")
    log = open_log(disk, CONFIG)
    assert log.log_start_offset == TRIMMED
    assert int(newest[:-4]) < log.log_end_offset <= END
    assert any("rows" in damage and " are " in damage for damage in log.recovery.damages)


@pytest.mark.parametrize("kind", CONFIGS)
def test_lost_log_starts_are_reported_until_a_trim_writes_them(kind: str) -> None:
    """A broker may die before it has reported this, and nothing is removed before it is durable."""
    config = CONFIGS[kind]
    disk, stored = build(config)
    names = [name for name in disk.list(DIRECTORY) if name.startswith("log-start")]
    for name in names:
        disk.remove(f"{DIRECTORY}/{name}")
    for _ in range(3):
        log = open_log(disk, config)
        assert log.log_start_offset == TRIMMED
        assert any("log-start" in damage for damage in log.recovery.damages)
        disk.kill()
    log = open_log(disk, config)
    assert trim(log, 2) == TRIMMED
    disk.crash()
    log = open_log(disk, config)
    assert (log.log_start_offset, unreadable(log, stored)) == (TRIMMED, set())
    assert not log.recovery.damages


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
def test_no_file_goes_by_a_log_start_that_is_not_durable(power: bool) -> None:
    """All rows were given up: the files that are left have the next offset."""
    disk, _ = build(CONFIG)
    log = open_log(disk, CONFIG)
    trimming = log.begin_trim(END)
    assert trimming is not None
    log.complete_trim(trimming, trimming.run())  # Killed before the files were removed.
    disk.kill()
    for name in ("log-start", "log-start-copy"):
        disk.remove(f"{DIRECTORY}/{name}")
    log = open_log(disk, CONFIG)
    assert (log.log_start_offset, log.log_end_offset) == (END, END)
    disk.crash() if power else disk.kill()
    log = open_log(disk, CONFIG)
    assert log.log_end_offset == END
