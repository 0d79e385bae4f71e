"""Answers of many batches, in front of damage and over a file that another program cut: the batches
sent follow each other, and unreadable rows are reported as damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quiverlog.errors import CorruptLog
from quiverlog.limits import BATCH_HEADER_BYTES
from quiverlog.storage.disk.byte_source import FileBytes, readable_bytes
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import segment_path
from tests.model.test_log_model import make_batch
from tests.support.logs import flush
from tests.unit.storage.segment.test_damage_matrix import (
    BATCHES,
    DIRECTORY,
    NOW,
    ROWS,
    TRIMMED,
    build,
    headers_of,
    open_log,
    position_of,
)

END = ROWS * BATCHES


def read_on(log: Log, offset: int, bytes_max: int, stored: dict[int, bytes]) -> list[int]:
    """Read as a client does, from the end of one answer on; the rows that are damaged."""
    bad: list[int] = []
    while offset < END:
        try:
            views = log.reader.read(offset, bytes_max=bytes_max, end_offset=END)
        except CorruptLog as error:
            after = error.details["end_offset"]
            assert isinstance(after, int)
            assert after > offset
            bad.extend(range(offset, after))
            offset = after
            continue
        headers = headers_of(bytes(64) + b"".join(views))
        first = offset // ROWS * ROWS
        joined = [stored[first + ROWS * number] for number in range(len(headers))]
        assert b"".join(views) == b"".join(joined), "each batch once, in order"
        assert len(views[-1]) == headers[-1].total_bytes, "the last view holds exactly one"
        offset = headers[-1].next_offset
    return bad


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("segment", range(5))
@pytest.mark.parametrize("byte", [2, 12, 13, 15, 20, 36, None], ids=str)
def test_an_answer_in_front_of_damage_holds_each_batch_once(
    byte: int | None, segment: int, clean: bool
) -> None:
    """Wherever an index entry leads: also into the header of a batch that is damaged."""
    disk, stored = build(clean=clean)
    names = sorted(name for name in disk.list(DIRECTORY) if name.endswith(".log"))
    assert len(names) == 5, "the parameters are all of them"
    path = f"{DIRECTORY}/{names[segment]}"
    data = disk.read_file(path)
    for number, header in enumerate(headers_of(data)):
        rows = range(max(TRIMMED, header.base_offset), header.next_offset)
        for bytes_max in (400, 1 << 20):
            disk, stored = build(clean=clean)
            at = position_of(data, number)
            if byte is None:
                damaged = data[:at] + bytes(BATCH_HEADER_BYTES) + data[at + BATCH_HEADER_BYTES :]
                disk.write_file_atomic(path, damaged)
            else:
                disk.flip_bit(path, 8 * (at + byte) + 2)
            bad = [list(rows)]
            if byte is None and not (clean or segment < 2):
                # Of these the power took the index: no file has the beginning of the next batch.
                bad.append(list(range(rows.start, headers_of(data)[-1].next_offset)))
            log = open_log(disk, clean=clean)
            assert read_on(log, TRIMMED, bytes_max, stored) in ([], *bad)


# --- a file that is cut under the running broker -----------------------------------------------
def log_on(disk: PosixDisk, directory: Path, units: int) -> tuple[Log, dict[int, bytes]]:
    log = Log.open(disk, str(directory), config=LogConfig(retention_ms=-1), clean=True, now=NOW)
    stored: dict[int, bytes] = {}
    for number in range(12):
        header, view = make_batch(ROWS, NOW.wall_us, units, number + 1)
        log.append([(header, view)], 0, NOW)
        stored[ROWS * number] = bytes(view)
    flush(log)
    return log, stored


CUTS: dict[str, Callable[[int], int]] = {
    "to nothing": lambda size: 0,
    "inside the segment's header": lambda size: 40,
    "at a page": lambda size: size // 2 // 4096 * 4096,
    "inside a page": lambda size: size // 2 // 4096 * 4096 + 100,
    "at a batch": lambda size: 64 + (size - 64) // 12 * 5,
    "inside a header": lambda size: 64 + (size - 64) // 12 * 5 + 30,
    "by a byte": lambda size: size - 1,
}


@pytest.mark.parametrize("bytes_max", [1, 50_000, 1 << 20])
@pytest.mark.parametrize("warm", [True, False], ids=["read before", "never read"])
@pytest.mark.parametrize("units", [300, 2_000], ids=["copied", "mapped"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
def test_a_file_that_is_cut_under_the_broker_is_damage_of_that_range(
    tmp_path: Path, cut: Callable[[int], int], units: int, warm: bool, bytes_max: int
) -> None:
    log, stored = log_on(PosixDisk(), tmp_path, units)
    end = log.log_end_offset
    if warm:
        assert log.reader.read(0, bytes_max=1 << 20, end_offset=end)
    path = segment_path(str(tmp_path), 0)
    size = os.stat(path).st_size
    left = cut(size)
    os.truncate(path, left)
    whole = max(0, left - 64) // ((size - 64) // len(stored))
    for first in range(0, end, ROWS):
        try:
            views = log.reader.read(first, bytes_max=bytes_max, end_offset=end)
        except CorruptLog as error:
            assert first >= whole * ROWS
            bad = error.details["offset"]
            assert isinstance(bad, int)
            assert whole * ROWS <= bad <= first
        else:
            assert first < whole * ROWS
            data = b"".join(views)
            assert data.startswith(stored[first])
            assert len(data) <= (size - 64) // len(stored) * whole
    assert log.reader.bytes_between(0, whole * ROWS)[0] == whole * ROWS


@pytest.mark.parametrize("missing", [1, 63, 64, 5_000])
def test_a_source_returns_the_bytes_below_its_size(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\x01" * 10_000)
    file = PosixDisk().open(str(path), create=False)
    os.truncate(path, 10_000 - missing)
    source = FileBytes(file, 10_000)
    assert len(source.read(9_936, 64)) == 64
    assert bytes(source.read(0, 10_000))[: 10_000 - missing] == b"\x01" * (10_000 - missing)
    assert set(source.read(10_000 - missing, missing)) == {0xEE}
    assert not source.holds(0, 10_000), "what was filled in is nothing to hand out"
    assert readable_bytes(file, 0, 10_000) == 10_000 - missing
    assert readable_bytes(file, 9_999, 1) == 0
