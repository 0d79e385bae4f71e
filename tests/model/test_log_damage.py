"""One flipped bit anywhere: never a silent cut, never a wrong row (replication rule 13)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush

NOW = Now(0, 1_000_000_000_000_000)
CONFIG = LogConfig(index_interval_bytes=300)
DIRECTORY = "data/t-0"


def build(batches: int) -> tuple[SimDisk, list[bytes]]:
    disk = SimDisk(1)
    disk.make_dir(DIRECTORY)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=True, now=NOW)
    stored = []
    for number in range(batches):
        header, view = make_batch(3, NOW.wall_us + number, number % 3 + 1, number % 250 + 1)
        log.append([(header, view)], 0, NOW)
        stored.append(bytes(view))
    flush(log)
    return disk, stored


@given(
    batches=st.integers(1, 20),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    crash=st.booleans(),
)
@example(batches=12, where=0.265625, bit=0, crash=False).via("a row count one too low")
@example(batches=1, where=0.28125, bit=0, crash=False).via("a row count one too low, at the end")
@example(batches=2, where=0.515625, bit=0, crash=False).via("a row count 256 too high, at the end")
def test_a_flipped_bit_is_reported_and_nothing_is_lost(
    batches: int, where: float, bit: int, crash: bool
) -> None:
    """Rule 13 of docs/replication-rules.md."""
    disk, stored = build(batches)
    path = segment_path(DIRECTORY, 0)
    size = len(disk.read_file(path))
    position = 64 + int((size - 64) * where)
    disk.flip_bit(path, position * 8 + bit)
    if crash:
        disk.crash()
    else:
        disk.kill()
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=NOW)
    assert disk.read_file(path)[:size] == disk.read_file(path)
    assert len(disk.read_file(path)) == size, "flushed bytes were cut"
    assert log.log_end_offset >= 3 * (batches - 1)
    lost = 0
    for number, data in enumerate(stored):
        offset = 3 * number
        if offset >= log.log_end_offset:
            lost += 1
            continue
        try:
            (view,) = log.reader.read(offset, bytes_max=1, end_offset=offset + 3)
        except CorruptLog:
            lost += 1
        else:
            # The leader epoch lies outside the checksum; no reader's rows depend on it.
            assert (bytes(view)[:8], bytes(view)[12:]) == (data[:8], data[12:])
    assert lost <= 1
    base_offset = log.log_end_offset
    log.append([make_batch(3, NOW.wall_us, 1, 9)], 1, NOW)
    assert log.reader.read(base_offset, bytes_max=1, end_offset=log.log_end_offset)


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_damage_below_the_recovery_point_is_found_by_the_reader(where: float, bit: int) -> None:
    disk, stored = build(12)
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=NOW)
    log.close(clean=True)
    path = segment_path(DIRECTORY, 0)
    size = len(disk.read_file(path))
    disk.flip_bit(path, (64 + int((size - 64) * where)) * 8 + bit)
    disk.kill()
    log = Log.open(disk, DIRECTORY, config=CONFIG, clean=True, now=NOW)
    assert log.log_end_offset == 36
    lost = 0
    for number, data in enumerate(stored):
        try:
            (view,) = log.reader.read(3 * number, bytes_max=1, end_offset=3 * number + 3)
        except CorruptLog:
            lost += 1
        else:
            assert (bytes(view)[:8], bytes(view)[12:]) == (data[:8], data[12:])
    assert lost <= 1
