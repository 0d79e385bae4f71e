"""A partition's directory in which anything may have happened to the files: typed errors only.

An assertion is for our own mistakes; what lies on a disk may make none of them false. Each example
is the life of a log, then up to six changes of its files (bits, zeros and noise, cut, grown, lost,
put back from an older copy, taken for another one, renamed). The log
is opened, read, asked, trimmed, truncated and appended to, closed and opened again. Any error is
one of errors.py or the disk's. What comes back is not looked at here: test_log_damage.py does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import QuiverlogError
from quiverlog.storage.log.checkpoint import Bounds
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.reading_jobs import NotResident, ReadingJob
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim, truncate

DIRECTORY = "data/t-0"
START_US = 1_000_000_000_000_000
CONFIG = LogConfig(segment_bytes=1_100, index_interval_bytes=200, retention_ms=-1)
EPOCH_NEWEST = 3
JOBS_MAX = 40
"""For one question to a log of a few files."""
NAMES = [0, 1, 3, 7, 10, 20, 33, 100, 2**40, 2**62 - 1, 2**62, 2**63 - 1]
EXAMPLES = 150
TYPED = (QuiverlogError, OSError)
Files = dict[str, bytes]


def open_log(disk: SimDisk, clean: bool, known: Bounds | None = None) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        config=CONFIG,
        clean=clean,
        now=Now(0, START_US),
        producers=ProducerStates(START_US),
        epoch_newest=EPOCH_NEWEST,
        known=known,
    )


def files_of(disk: SimDisk) -> Files:
    return {name: disk.read_file(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}


def append(log: Log, rng: Random, number: int, epoch: int, sequences: dict[int, int]) -> None:
    """A batch of one of two idempotent producers, or of none."""
    rows, producer_id = rng.randrange(1, 6), rng.choice([-1, 1, 2])
    producer = (-1, -1, -1)
    if producer_id > 0:
        producer = (producer_id, 0, sequences.get(producer_id, 0))
        sequences[producer_id] = producer[2] + rows
    time_us = START_US + rng.randrange(1_000)
    header, view = make_batch(rows, time_us, rng.randrange(6), number % 250 + 1, producer)
    at = log.append([(header, view)], epoch, Now(number, START_US + number))
    if producer_id > 0:
        assert log._producers is not None
        log._producers.record(header, at, START_US)


def live(rng: Random) -> tuple[SimDisk, list[Files], bool, Bounds | None]:
    """(disk, older copies of the files, stopped in order, what was written down at the stop)."""
    disk = SimDisk(1)
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    disk.sync_dir("data")
    log = open_log(disk, clean=True)
    versions: list[Files] = []
    sequences: dict[int, int] = {}
    for number in range(rng.randrange(1, 25)):
        append(log, rng, number, min(2, number // 8), sequences)
        dice = rng.random()
        if dice < 0.7:
            flush(log)
        if dice < 0.12:
            trim(log, rng.randrange(log.log_start_offset, log.log_end_offset + 1))
        elif dice < 0.18:
            truncate(log, rng.randrange(log.log_start_offset, log.log_end_offset + 1))
        elif dice > 0.9:
            log.roll()
        if rng.random() < 0.25:
            versions.append(files_of(disk))
    known = None
    clean = rng.random() < 0.5
    if clean:
        flush(log)
        log.close(clean=True)
        if rng.random() < 0.6:
            known = Bounds(log.log_start_offset, log.log_end_offset)
    if clean or rng.random() < 0.6:
        disk.kill()
    else:
        disk.crash()
    return disk, versions, clean, known


# --- what happens to files ----------------------------------------------------------------------
def _flipped(data: bytearray, rng: Random) -> None:
    for _ in range(rng.choice([1, 1, 4]) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _zeroed(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice([8, 64, 512, 1 << 20]))
    data[at:end] = bytes(end - at)


def _all_zeros(data: bytearray, rng: Random) -> None:
    data[:] = bytes(len(data))


def _noisy(data: bytearray, rng: Random) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice([8, 64, 512]))
    data[at:end] = rng.randbytes(end - at)


def _cut(data: bytearray, rng: Random) -> None:
    del data[rng.choice([0, 1, 48, 64, rng.randrange(len(data) + 1)]) :]


def _grown(data: bytearray, rng: Random) -> None:
    batches = data[64 : 64 + 64 * rng.randrange(1, 9)]
    size = rng.randrange(1, 700)
    data += rng.choice([bytes(size), rng.randbytes(size), batches])


CHANGES = {
    "flip": _flipped,
    "zero": _zeroed,
    "zeros": _all_zeros,
    "noise": _noisy,
    "cut": _cut,
    "grow": _grown,
}
KINDS = [*CHANGES, "drop", "older", "rename", "copy", "swap"]


def happen(disk: SimDisk, kind: str, seed: int, versions: list[Files]) -> None:
    rng = Random(seed)
    names = disk.list(DIRECTORY)
    if not names:
        return
    name = rng.choice(names)
    path = f"{DIRECTORY}/{name}"
    data = bytearray(disk.read_file(path))
    if kind == "drop":
        disk.remove(path)
    elif kind in ("rename", "copy"):
        prefix = "producers-" if name.startswith("producers-") else ""
        if name[len(prefix)].isdigit():
            other = f"{prefix}{rng.choice(NAMES):020d}.{name.rpartition('.')[2]}"
            if kind == "rename":
                disk.remove(path)
            disk.write_file_atomic(f"{DIRECTORY}/{other}", data)
    elif kind == "swap":
        disk.write_file_atomic(path, disk.read_file(f"{DIRECTORY}/{rng.choice(names)}"))
    elif kind == "older":
        version = rng.choice(versions) if versions else {}
        if version:
            old = rng.choice(sorted(version))
            disk.write_file_atomic(f"{DIRECTORY}/{old}", version[old])
    else:
        CHANGES[kind](data, rng)
        disk.write_file_atomic(path, data)
    disk.sync_dir(DIRECTORY)


# --- using the log ------------------------------------------------------------------------------
def ask(log: Log, question: Callable[..., object], cold_ok: bool) -> None:
    """Ask as the node does: what would wait for the disk comes back as a job."""
    done: list[ReadingJob] = []
    for _ in range(JOBS_MAX):
        try:
            question(cold_ok=cold_ok, just_read=done)
            return
        except NotResident as cold:
            try:
                log.reader.complete_read(cold.job, cold.job.run())
            except TYPED:
                return
            done.append(cold.job)
        except TYPED:
            return
    raise AssertionError("a question ends after a bounded number of jobs")


def read_all(log: Log, rng: Random, cold_ok: bool) -> None:
    start, end = log.log_start_offset, log.log_end_offset
    now = Now(0, START_US)
    questions: list[Callable[..., object]] = [
        partial(log.reader.read, row, bytes_max=rng.choice([1, 300, 5_000]), end_offset=end)
        for row in sorted({*range(start, min(end, start + 100)), max(start, end - 1), end})
    ]
    times_us = (START_US - 1, START_US, START_US + 500, START_US + 2_000)
    questions += [partial(log.reader.offset_for_timestamp, time_us) for time_us in times_us]
    questions.append(partial(log.reader.bytes_between, start, end, rng.choice([-1, 1, 500])))
    questions += [log.reader.oldest_us, partial(log.retention_target, now, end)]
    for question in questions:
        ask(log, question, cold_ok)
    log.reader.load_newest_time()
    for epoch in range(EPOCH_NEWEST + 2):
        log.epochs.end_offset_for(epoch)


def change(log: Log, rng: Random) -> None:
    with contextlib.suppress(*TYPED):
        for number in range(rng.randrange(6)):
            append(log, rng, number, EPOCH_NEWEST, {1: 100, 2: 100})
        if rng.random() < 0.7:
            flush(log)
        dice = rng.random()
        offset = rng.randrange(log.log_start_offset, log.log_end_offset + 1)
        if dice < 0.4:
            trim(log, offset)
        elif dice < 0.8:
            flush(log)
            truncate(log, offset)
        append(log, rng, 9, EPOCH_NEWEST, {})
        flush(log)


@settings(max_examples=max(EXAMPLES, settings().max_examples), derandomize=True)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32)), min_size=1, max_size=6),
    st.integers(0, 2**32),
)
@example(  # A cut in missing rows, behind a file that was given up and still holds them.
    1714332, [("flip", 1), ("copy", 255), ("flip", 80), ("zeros", 49)], 0
)
def test_what_lies_in_a_directory_makes_no_assertion_false(
    life: int, happened: list[tuple[str, int]], usage: int
) -> None:
    disk, versions, clean, known = live(Random(life))
    for kind, seed in happened:
        happen(disk, kind, seed, versions)
    rng = Random(usage)
    for _ in range(3):
        try:
            log = open_log(disk, clean, known)
        except TYPED:
            return
        read_all(log, rng, cold_ok=rng.random() < 0.5)
        change(log, rng)
        read_all(log, rng, cold_ok=True)
        clean = rng.random() < 0.5
        try:
            log.close(clean=clean)
        except TYPED:
            clean = False
        known = None
        disk.kill()
