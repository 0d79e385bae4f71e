"""The short way through a clean opening finds what the long one finds, whatever lies there."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import combinations
from unittest import mock

import pytest

from quiverlog.errors import QuiverlogError
from quiverlog.storage.disk.frames import pack_file
from quiverlog.storage.log import opening
from quiverlog.storage.log.checkpoint import Bounds, load_recovery_point
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.log.opening import open_as_left
from quiverlog.storage.segment.segment import Segment
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim
from tests.unit.storage.segment.test_damage_matrix import CONFIG, DIRECTORY, NOW, ROWS, Producers

BATCHES, TRIMMED = 16, 8
END = ROWS * BATCHES
ONE_SEGMENT = LogConfig(segment_bytes=1 << 20, index_interval_bytes=150, retention_ms=-1)
LIVES = {
    "several segments": (CONFIG, TRIMMED),
    "one segment": (ONE_SEGMENT, TRIMMED),
    "never trimmed": (ONE_SEGMENT, 0),
    "files given up": (CONFIG, END - ROWS),
}
KNOWN = (None, Bounds(0, 0), Bounds(TRIMMED, END), Bounds(TRIMMED, END + 1), Bounds(END, END))
KEPT = sorted(set(Segment.__slots__) - {"_disk", "file", "index"})
READ = {"recovery-point", "recovery-point-copy", "leader-epochs"}
Damage = Callable[[SimDisk], None]


def open_log(
    disk: SimDisk, known: Bounds | None, config: LogConfig = ONE_SEGMENT, epoch_newest: int = 1
) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        config=config,
        clean=True,
        now=NOW,
        producers=Producers(),
        epoch_newest=epoch_newest,
        known=known,
    )


def stopped(life: str, batches: int = BATCHES) -> SimDisk:
    """A log that was stopped in order: rows in two epochs."""
    config, trimmed = LIVES[life]
    disk = SimDisk(1)
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    disk.sync_dir("data")
    log = open_log(disk, None, config)
    for number in range(batches):
        header, view = make_batch(ROWS, NOW.wall_us + number, number % 3 + 1, number + 1)
        log.append([(header, view)], number // (BATCHES // 2), NOW)
        flush(log)
        if number == BATCHES - 3 and trimmed:
            trim(log, min(trimmed, log.log_end_offset))
    if trimmed > log.log_start_offset:
        trim(log, trimmed)
    log.close(clean=True)
    disk.kill()
    return disk


def reported(disk: SimDisk, known: Bounds | None, epoch_newest: int) -> object:
    """All that a start may learn from these files, and what it made of them."""
    try:
        log = open_log(disk, known, epoch_newest=epoch_newest)
    except (QuiverlogError, OSError) as error:
        return type(error), str(error), files_of(disk)
    except AssertionError:
        return "numbers that no broker writes, under a good checksum"
    unflushed, report = log._unflushed, log.recovery
    return (
        (log.log_start_offset, log.log_end_offset, log.flushed_offset, log.start_saved),
        (log._changed, log.epochs.entries(), log.epochs.newest, log.epochs.dirty),
        (report.clean, report.bytes_scanned, report.bytes_truncated, report.damages, report.notes),
        (unflushed.point, unflushed.snapshots, unflushed.marks.bounds, unflushed.marks.point),
        unflushed.marks._written,
        [
            [getattr(segment, name) for name in KEPT] + [segment.file.size]
            for segment in log.reader.segments
        ],
        files_of(disk),
    )


def files_of(disk: SimDisk) -> dict[str, bytes]:
    entries = disk.entries(DIRECTORY)
    return {
        name: disk.read_file(path_of(name)) if is_file else b"" for name, is_file in entries.items()
    }


def compare(life: str, damage: Damage, known: Bounds | None, epoch_newest: int = 1) -> bool:
    """Open twice. True when the short way was taken where it could be."""
    one, other = stopped(life), stopped(life)
    damage(one)
    damage(other)
    ways: list[bool] = []

    def short(*args: object, **options: object) -> object:
        found = open_as_left(*args, **options)  # type: ignore[arg-type]
        ways.append(found is not None)
        return found

    with mock.patch.object(opening, "open_as_left", short):
        quick = reported(one, known, epoch_newest)
    with mock.patch.object(opening, "open_as_left", return_value=None):
        slow = reported(other, known, epoch_newest)
    assert quick == slow
    return ways == [True]


def path_of(name: str) -> str:
    return f"{DIRECTORY}/{name}"


def put(name: str, make: Callable[[bytes], bytes]) -> Damage:
    def damage(disk: SimDisk) -> None:
        disk.write_file_atomic(path_of(name), make(disk.read_file(path_of(name))))

    return damage


def damages_of(name: str, data: bytes, older: dict[str, bytes], step: int = 1) -> Iterator[Damage]:
    """What may have become of one file."""
    yield lambda disk: disk.remove(path_of(name))
    yield lambda disk: disk.rename(path_of(name), path_of(f"{name}.tmp"))
    yield lambda disk: disk.rename(path_of(name), path_of(f"x{name}"))
    yield put(name, lambda _: b"")
    yield put(name, lambda data: bytes(len(data)))
    yield put(name, lambda data: data + b"zz")
    yield put(name, lambda data: data + bytes(64))
    yield put(name, lambda data: data[:-1])
    yield put(name, lambda data: data[:-64])
    if older.get(name, data) != data:
        yield put(name, lambda _: older[name])
    for at in [*range(0, min(len(data), 64), step), len(data) - 1]:

        def flip(data: bytes, at: int = at) -> bytes:
            return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

        yield put(name, flip)

    def directory_instead(disk: SimDisk) -> None:
        disk.remove(path_of(name))
        disk.make_dir(path_of(name))

    yield directory_instead


@pytest.mark.parametrize("known", KNOWN, ids=str)
@pytest.mark.parametrize("life", LIVES)
def test_nothing_damaged(life: str, known: Bounds | None) -> None:
    trimmed = LIVES[life][1]
    short = compare(life, lambda disk: None, known)
    assert short == (known is None or (known.start_offset <= trimmed and known.end_offset <= END))


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("life", LIVES)
def test_one_file_damaged(life: str, step: int) -> None:
    """A flip in each byte of a file's head, or in each seventh."""
    files, older = files_of(stopped(life)), files_of(stopped(life, BATCHES - 1))
    for name, data in files.items():
        for damage in damages_of(name, data, older, step):
            short = compare(life, damage, Bounds(LIVES[life][1], END))
            # Indexes, snapshots and rows are read by what follows, whichever way was taken.
            assert not short or name not in READ, name


@pytest.mark.parametrize("life", ["several segments", "never trimmed"])
def test_two_files_damaged(life: str) -> None:
    files, older = files_of(stopped(life)), files_of(stopped(life, BATCHES - 1))

    def few(name: str) -> list[Damage]:
        every = list(damages_of(name, files[name], older))
        return [every[0], every[4], every[9]]

    for one, other in combinations(files, 2):
        for first, second in zip(few(one), reversed(few(other)), strict=True):

            def both(disk: SimDisk, first: Damage = first, second: Damage = second) -> None:
                first(disk)
                second(disk)

            short = compare(life, both, None)
            assert not short or READ.isdisjoint((one, other))


@pytest.mark.parametrize(
    "name",
    [
        *("truncate-to", "00000000000000000000.log.cut", "emptied", "stranger", "log-start"),
        *("00000000000000000048.log", "00000000000000000049.log", "00000000000000000048.index"),
        *("producers-00000000000000000099.snapshot", "9223372036854775807.log", "log-start-copy"),
    ],
)
@pytest.mark.parametrize("life", LIVES)
def test_a_file_that_was_not_there(life: str, name: str) -> None:
    for data in (b"", b"noise", files_of(stopped(life))["recovery-point"]):

        def damage(disk: SimDisk, data: bytes = data) -> None:
            disk.write_file_atomic(path_of(name), data)

        short = compare(life, damage, None)
        assert not short or name.endswith((".index", ".snapshot", "log-start", "log-start-copy"))


def numbers_of(disk: SimDisk) -> list[int]:
    point, bounds, *_ = load_recovery_point(disk, DIRECTORY, ("recovery-point",))
    return [*point, *bounds]


def save(disk: SimDisk, numbers: list[int]) -> None:
    """Both files, with good checksums."""
    payload = struct.pack("<qqQqq", *numbers)
    for name in ("recovery-point", "recovery-point-copy"):
        disk.write_file_atomic(path_of(name), pack_file(b"QVRECOVR", 1, payload))


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("life", LIVES)
def test_points_and_bounds_that_are_not_the_files(life: str, number: int) -> None:
    found = numbers_of(stopped(life))
    for value in {
        0,
        1,
        TRIMMED,
        END,
        END - ROWS,
        found[2] - 64,
        *(found[number] + d for d in (-1, 1)),
    }:
        for grown in (0, 2, 64):

            def damage(disk: SimDisk, value: int = value, grown: int = grown) -> None:
                numbers = numbers_of(disk)
                path = path_of(f"{numbers[1]:020d}.log")
                numbers[number] = value
                if grown:
                    disk.write_file_atomic(path, disk.read_file(path) + bytes(grown))
                    numbers[2] += grown
                save(disk, numbers)

            if value != found[number] and value >= 0:
                assert not compare(life, damage, None)


@pytest.mark.parametrize("grown", [2, 64])
def test_a_point_at_the_end_of_a_file_that_has_grown(grown: int) -> None:
    def damage(disk: SimDisk) -> None:
        numbers = numbers_of(disk)
        path = path_of(f"{numbers[1]:020d}.log")
        disk.write_file_atomic(path, disk.read_file(path) + bytes(grown))
        numbers[2] += grown
        save(disk, numbers)

    # The point vouches for whole batches; half of one is nothing to append to.
    assert compare("one segment", damage, None) == (grown == 64)


@pytest.mark.parametrize("life", LIVES)
def test_epochs_of_a_later_cluster(life: str) -> None:
    assert not compare(life, lambda disk: None, None, epoch_newest=0)


def test_epochs_of_rows_that_were_given_up() -> None:
    older = files_of(stopped("never trimmed"))["leader-epochs"]
    assert compare("files given up", put("leader-epochs", lambda _: older), None)


@pytest.mark.parametrize("suffixes", [("log",), ("log", "index")], ids=str)
@pytest.mark.parametrize("size", [0, 10, 64, 100, 300])
def test_a_stray_between_two_segments(size: int, suffixes: tuple[str, ...]) -> None:
    inside = 7 * ROWS - 1
    assert f"{inside:020d}.log" not in files_of(stopped("several segments"))

    def damage(disk: SimDisk) -> None:
        for suffix in suffixes:
            disk.write_file_atomic(path_of(f"{inside:020d}.{suffix}"), bytes(size))

    assert not compare("several segments", damage, None) or (size, len(suffixes)) == (300, 2)
