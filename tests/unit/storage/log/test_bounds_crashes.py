"""The end of a process, or of the machine, between any two system calls of whatever writes bounds.

Rows that were acknowledged are readable, no offset is given out twice, no row that was given up
comes back, and nothing is claimed as lost that is not.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from quiverlog.errors import CorruptLog
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.faults import Death
from tests.support.logs import flush, trim, truncate
from tests.support.plate_os import PlateOs

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "/p/t-0"
CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=100, retention_ms=-1)
ROWS = 3
CALLS_MAX = 400


class World:
    """A log on files in memory, and what was promised of it.

    `written`: what each offset may hold. `flushed`, `kept`: up to here rows outlive the machine, or
    the process. `started`, `asked`: rows below were given up for good, or a trim asked for that.
    """

    def __init__(self, plate: PlateOs) -> None:
        self.os = plate
        self.written: dict[int, set[int]] = {}
        self.flushed = self.kept = self.started = self.asked = self.lost_from = self.lost_to = 0
        self._count = 0
        PosixDisk().make_dir(DIRECTORY)
        self.open()

    def open(self, *, clean: bool = False) -> None:
        self.disk = PosixDisk()
        self.log = Log.open(self.disk, DIRECTORY, config=CONFIG, clean=clean, now=NOW)

    # --- what happens --------------------------------------------------------------------------
    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self._count += 1
            value = self._count % 250 + 1
            size = 1 + self._count * 5 % 9
            first = self.log.log_end_offset
            assert first >= max(self.flushed, self.lost_to)
            for offset in range(first, first + ROWS):
                self.written.setdefault(offset, set()).add(value)
            self.log.append([make_batch(ROWS, NOW.wall_us, size, value)], 0, NOW)
            self.kept = self.log.log_end_offset

    def flush(self, *, background: bool = False) -> None:
        self.flushed = max(self.flushed, flush(self.log, background=background))

    def trim(self, offset: int) -> None:
        self.asked = max(self.asked, offset)
        self.started = max(self.started, trim(self.log, offset))

    def truncate(self, offset: int) -> None:
        self.flushed = self.kept = min(self.flushed, offset // ROWS * ROWS)
        truncate(self.log, offset)

    # --- what must be true ---------------------------------------------------------------------
    def check(self, *, power: bool) -> None:
        log = self.log
        promised = self.flushed if power else self.kept
        assert self.started <= log.log_start_offset <= max(self.asked, self.started)
        assert log.log_end_offset >= max(promised, self.lost_to)
        if not self.lost_to:
            assert not log.recovery.damages
        for offset in range(log.log_start_offset, log.log_end_offset):
            try:
                (view,) = log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
            except CorruptLog as error:
                first, end = error.damage()
                assert self.lost_from <= first <= offset < end <= self.lost_to
                continue
            assert view[-1] in self.written[offset]
            assert not self.lost_from <= offset < self.lost_to


Course = Callable[[World], None]


def in_one_segment(world: World) -> None:
    for _ in range(3):
        world.append()
        world.flush()


def rolls(world: World) -> None:
    for number in range(8):
        world.append()
        world.flush(background=number % 3 == 2)


def several_segments_at_once(world: World) -> None:
    world.append(9)
    world.flush(background=True)
    world.append(2)
    world.flush()


def trims(world: World) -> None:
    end = world.log.log_end_offset
    world.trim(4)
    world.trim(end - 1)
    world.append()
    world.flush()
    world.trim(end + 1)


def trims_all(world: World) -> None:
    world.trim(world.log.log_end_offset)
    world.append(2)
    world.flush()


def trims_unflushed_rows(world: World) -> None:
    world.append(4)
    world.trim(world.log.log_end_offset - 2)
    world.append()
    world.flush()


def a_flush_overtaken_by_a_trim(world: World) -> None:
    world.append(3)
    job, target = world.log.begin_flush(), world.log.log_end_offset
    world.asked = 7
    trimming = world.log.begin_trim(7)
    assert trimming is not None
    result = trimming.run()
    world.started = 7
    world.log.complete_flush(job, job.run())
    world.flushed = target
    removing = world.log.complete_trim(trimming, result)
    if removing is not None:
        removing.run()
    world.append()
    world.flush()


def a_trim_overtaken_by_flushes(world: World) -> None:
    world.asked = 7
    trimming = world.log.begin_trim(7)
    assert trimming is not None
    for _ in range(5):
        world.append()
        world.flush(background=True)
    result = trimming.run()
    world.started = 7
    removing = world.log.complete_trim(trimming, result)
    if removing is not None:
        removing.run()


def truncates(world: World) -> None:
    world.truncate(world.log.log_end_offset - 4)
    world.append(2)
    world.flush()
    world.truncate(10)
    world.append(4)
    world.flush(background=True)


def truncates_all(world: World) -> None:
    world.append(2)
    world.truncate(1)
    world.append(2)
    world.flush()


def stops(world: World) -> None:
    world.append(2)
    world.log.close(clean=True)
    world.flushed = world.kept
    world.open(clean=True)
    world.append()
    world.flush()
    world.trim(5)
    world.log.close(clean=True)


COURSES: tuple[Course, ...] = (
    in_one_segment,
    rolls,
    several_segments_at_once,
    trims,
    trims_all,
    trims_unflushed_rows,
    a_flush_overtaken_by_a_trim,
    a_trim_overtaken_by_flushes,
    truncates,
    truncates_all,
    stops,
)


def begun(plate: PlateOs, *, aged: bool) -> World:
    """Eight batches, the last of them not flushed; `aged`: with a recovery point, and trimmed."""
    world = World(plate)
    for _ in range(7):
        world.append()
        world.flush()
    if aged:
        world.flush(background=True)
        world.trim(2)
    world.append()
    return world


def ends(world: World, *, power: bool, rng: random.Random) -> None:
    if power:
        world.os.crash(rng)
    else:
        world.os.kill()


def at_each_call(
    course: Course, after: Callable[[World, int], None], *, aged: bool, power: bool, seeds: int
) -> None:
    """Hand over the world after its end at each system call of a course, and behind the last."""
    plate = PlateOs()
    with plate.in_place():
        for call in range(CALLS_MAX):
            finished = False
            for seed in range(seeds if power else 1):
                plate.begin_anew()
                world = begun(plate, aged=aged)
                plate.die_after(call)
                with contextlib.suppress(Death):
                    course(world)
                    finished = True
                calls = plate.calls
                ends(world, power=power, rng=random.Random(f"{call}-{seed}"))
                try:
                    after(world, call + seed)
                except AssertionError as error:
                    error.add_note(f"behind call {call} {calls[-3:]}, seed {seed}")
                    raise
            if finished:
                return
    raise AssertionError("the course never ends")


def go_on(world: World, *, power: bool, rng: random.Random) -> None:
    """What a start found is there after the next end, too, and what came after it."""
    world.flushed = world.kept = max(world.flushed, world.log.log_end_offset)
    world.append()
    world.flush()
    ends(world, power=power, rng=rng)
    world.open()
    world.check(power=power)


@pytest.mark.parametrize(
    ("course", "aged", "power"),
    [
        # Half of them here: each course by both ends, and of both ages.
        pytest.param(
            course, aged, power,
            id=f"{course.__name__}-{'aged' if aged else 'young'}-{'power' if power else 'kill'}",
            marks=[pytest.mark.long] * ((aged == power) != (i % 2 == 0)),
        )
        for i, course in enumerate(COURSES)
        for aged in (True, False)
        for power in (True, False)
    ],
)  # fmt: skip
def test_the_end_between_any_two_calls(course: Course, aged: bool, power: bool) -> None:
    def after(world: World, number: int) -> None:
        world.open()
        world.check(power=power)
        go_on(world, power=number % 2 == 0, rng=random.Random(number))

    at_each_call(course, after, aged=aged, power=power, seeds=2)


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
@pytest.mark.parametrize("lost", [False, True], ids=["whole", "newest lost"])
def test_a_start_may_end_at_any_call(lost: bool, power: bool) -> None:
    """Behind it the next start finds what it would have found, or its own findings."""
    plate = PlateOs()
    with plate.in_place():
        for number in range(CALLS_MAX):
            plate.begin_anew()
            call, rng = number // 3, random.Random(number)
            world = begun(plate, aged=True)
            plate.kill()
            if lost:
                newest = world.log.reader.segments[-1]
                plate.take(newest.path)
                world.lost_from, world.lost_to = newest.base_offset, world.flushed
                world.kept = world.flushed
            finished = False
            plate.die_after(call)
            with contextlib.suppress(Death):
                world.open()
                finished = True
            ends(world, power=power, rng=rng)
            world.open()
            world.check(power=power)
            go_on(world, power=power, rng=rng)
            if finished:
                return
    raise AssertionError("the start never ends")
