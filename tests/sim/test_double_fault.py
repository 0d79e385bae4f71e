"""The one double fault that may take acknowledged rows (ADR 0017): known exactly, nothing else.

What the simulated disk expects of a flipped bit is compared with what a start makes of it, for
every byte of a log; what the checker forgives is compared with its neighbours.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment_files import FlushedMark, pack_segment_header
from quiverlog.types import Now
from tests.support.batches import encode_data
from tests.support.logs import flush, remove_point

from .checker import Checker, Key, TopicModel, Violation
from .faults import FaultyDisk

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "node/data/t-0"
PATH = f"{DIRECTORY}/{0:020d}.log"
CONFIG = LogConfig(retention_ms=-1)
KEY: Key = (b"t" * 16, 0)
SIZES = (1, 140, 3, 140)
"""Rows of each batch: 128 zeros of eight bytes have a sector of their own."""
FIRST = (0, 1, 141, 144)
END = sum(SIZES)


def batch(rows: int, value: int) -> tuple[BatchHeader, memoryview]:
    data = encode_data(pa.record_batch({"value": pa.array([value] * rows)}), at_us=NOW.wall_us)
    view = memoryview(bytearray(data))
    return BatchHeader.unpack(view), view


def open_log(disk: FaultyDisk) -> Log:
    return Log.open(disk, DIRECTORY, config=CONFIG, clean=False, now=NOW)


def flushed_log(*, known: int, power: bool = True, value: int = 0) -> FaultyDisk:
    """Batches that were flushed together; the files record the first `known` of them as flushed."""
    disk = FaultyDisk(1)
    disk.make_dir(DIRECTORY)
    log = open_log(disk)
    position = [64]
    for size in SIZES:
        log.append([batch(size, value)], 0, NOW)
        position.append(log.reader.size_bytes)
    flush(log)
    disk.kill()
    remove_point(disk, DIRECTORY)
    mark = FlushedMark((*FIRST, END)[known], position[known] if known else 0)
    file = disk.open(PATH, create=False)
    file.write_head(pack_segment_header(0, NOW.wall_us, mark))
    file.sync()
    disk.lost_power = power
    return disk


@pytest.mark.parametrize(("known", "value"), [(0, -1), *((known, 0) for known in range(5))])
def test_what_a_flipped_bit_may_cut_is_what_a_start_cuts(known: int, value: int) -> None:
    cut = set()
    data = flushed_log(known=known, value=value).read_file(PATH)
    headers = {at for start in batches(data) for at in range(start, start + 64)}
    for at in sorted(headers | {*range(64, len(data), 29)}):
        disk = flushed_log(known=known, value=value)
        disk.flip_row_bit(PATH, at * 8 + at % 8)
        log = open_log(disk)
        if disk.cut_from is None:
            assert log.log_end_offset >= END, at
        else:
            assert log.log_end_offset == disk.cut_from, at
            cut.add(disk.cut_from)
    # Only batches with a sector of zeros of their own, or with zeros at the end of the file.
    assert cut == {o for o in (1, 144) if not value and o >= (*FIRST, END)[known]}


def test_the_end_of_a_process_cuts_nothing() -> None:
    disk = flushed_log(known=0, power=False)
    disk.flip_row_bit(PATH, (disk.durable_size(PATH) - 700) * 8)
    assert disk.cut_from is None


def batches(data: bytes) -> list[int]:
    """Where they begin."""
    at, found = 64, []
    while at < len(data):
        found.append(at)
        at += BatchHeader.unpack(data, at).total_bytes
    return found


def history() -> Checker:
    """Rows 0 to 11 are acknowledged, 12 to 14 were seen only; value and offset are the same."""
    checker = Checker()
    checker.add(TopicModel("t", KEY[0], {"durability": "flushed"}), 1)
    checker.sent(KEY, list(range(100)))
    checker.acked(KEY, 0, list(range(12)), 0, True)
    checker.read(KEY, 0, list(range(15)))
    checker.partitions[KEY].damaged = True
    return checker


def test_rows_of_the_hit_batch_and_behind_it_may_be_others() -> None:
    checker = history()
    checker.partitions[KEY].may_be_cut(9)
    checker.acked(KEY, 9, [50, 51, 52, 53, 54, 55, 56], 0, True)
    checker.read(KEY, 9, [50, 51, 52, 53, 54, 55, 56])
    assert checker.partitions[KEY].acknowledged[8] == 8


def test_they_may_be_what_they_were() -> None:
    checker = history()
    checker.partitions[KEY].may_be_cut(9)
    checker.read(KEY, 12, [12, 13, 14])
    checker.acked(KEY, 15, [50], 0, True)


@pytest.mark.parametrize(
    ("cut_from", "offset", "values"),
    [
        (None, 9, [50]),  # nothing was hit
        (9, 8, [50]),  # the row in front of the batch
        (9, 8, [50, 51]),  # a batch that begins in front of it
    ],
)
def test_no_other_row_may_be_another(cut_from: int | None, offset: int, values: list[int]) -> None:
    checkers = history(), history()
    for checker in checkers:
        if cut_from is not None:
            checker.partitions[KEY].may_be_cut(cut_from)
    with pytest.raises(Violation):
        checkers[0].acked(KEY, offset, values, 0, True)
    with pytest.raises(Violation):
        checkers[1].read(KEY, offset, values)


def test_what_took_their_place_may_not_go() -> None:
    checker = history()
    checker.partitions[KEY].may_be_cut(9)
    checker.acked(KEY, 9, [50, 51, 52], 0, True)
    with pytest.raises(Violation):
        checker.acked(KEY, 10, [60], 0, True)


def test_a_row_that_came_after_the_fault_may_not_go() -> None:
    checker = history()
    checker.partitions[KEY].may_be_cut(9)
    checker.acked(KEY, 15, [50, 51], 0, True)
    with pytest.raises(Violation):
        checker.acked(KEY, 16, [60], 0, True)


def test_the_cut_rows_are_all_gone() -> None:
    """Where one of them is another row, none of the others may come back."""
    checker = history()
    checker.partitions[KEY].may_be_cut(9)
    checker.acked(KEY, 9, [50], 0, True)
    assert sorted(checker.partitions[KEY].acknowledged) == list(range(10))
    assert not checker.partitions[KEY].cuttable
