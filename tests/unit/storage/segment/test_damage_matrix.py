"""One file of a log lost or changed, in every way at every kind of place: nothing is lost silently.

For each case the log is opened again and every row that was acknowledged is read. A row must come
back as it was, or the read must raise CORRUPT_LOG with a range around the row; rows that were given
up must stay so; and no row may be unreadable that is neither damaged itself nor in a batch with
one. The end of the newest file, above the recovery point and after an unclean stop, is the one
place where a cut looks like an append that never finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog, UnsupportedFormat
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.log.reader import LogReader
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
CONFIG = LogConfig(segment_bytes=1_100, index_interval_bytes=1, retention_ms=-1)
ROWS, BATCHES, TRIMMED, EPOCHS = 3, 24, 8, 2


class Producers:
    newest_offset = -1

    def capture(self) -> Callable[[], bytes]:
        now = b"some producers"
        return lambda: now

    def restore(self, blob: bytes) -> None:
        assert blob in (b"", b"some producers")

    def replay(self, header: object) -> None:
        pass


def open_log(disk: SimDisk, *, clean: bool) -> Log:
    return Log.open(
        disk,
        DIRECTORY,
        config=CONFIG,
        clean=clean,
        now=NOW,
        producers=Producers(),
        epoch_newest=EPOCHS - 1,
    )


def build(*, clean: bool) -> tuple[SimDisk, dict[int, bytes]]:
    """A disk with several segments, a trim inside a batch, two epochs; batches by first offset."""
    disk = SimDisk(1)
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    disk.sync_dir("data")
    log = open_log(disk, clean=True)
    stored: dict[int, bytes] = {}
    for number in range(BATCHES):
        header, view = make_batch(ROWS, NOW.wall_us + number, number % 3 + 1, number + 1)
        log.append([(header, view)], number // (BATCHES // EPOCHS), NOW)
        stored[ROWS * number] = bytes(view)
        job = log.begin_flush()
        log.complete_flush(job, job.run())
    trim = log.begin_trim(TRIMMED)
    assert trim is not None
    assert log.complete_trim(trim, trim.run()) is None, "the first segment still holds rows"
    if clean:
        log.close(clean=True)
        disk.kill()
    else:
        disk.crash()
    return disk, stored


@dataclass
class Outcome:
    """`bad`: rows of acknowledged batches that cannot be read; `loud`: whether anything was
    reported."""

    bad: list[int]
    loud: bool


def read_all(disk: SimDisk, stored: dict[int, bytes], *, clean: bool) -> Outcome:
    try:
        log = open_log(disk, clean=clean)
    except UnsupportedFormat:
        return Outcome([], True)
    assert log.log_start_offset == TRIMMED, "given-up rows are back, or others are gone"
    end = ROWS * BATCHES
    bad: list[int] = []
    for offset in range(TRIMMED, end):
        base = offset // ROWS * ROWS
        if offset >= log.log_end_offset:
            bad.append(offset)
            continue
        try:
            views = log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
        except CorruptLog as error:
            first, after = error.details["offset"], error.details["end_offset"]
            assert isinstance(first, int)
            assert isinstance(after, int)
            assert first <= offset < after, "the range in the error holds the row"
            bad.append(offset)
            continue
        except UnsupportedFormat:
            return Outcome([], True)
        data = b"".join(views)
        # With its leader epoch, which no checksum covers: a client takes another for an error.
        assert data == stored[base], "a wrong row"
    base_offset = log.append([make_batch(1, NOW.wall_us, 1, 9)], 5, NOW)
    assert base_offset >= log.log_start_offset
    report = log.recovery
    is_loud = bool(report.damages or report.bytes_truncated) or log.log_end_offset == end + 1
    return Outcome(bad, is_loud)


def files() -> list[str]:
    disk, _ = build(clean=True)
    return disk.list(DIRECTORY)


def batch_of(path: str, data: bytes, position: int) -> range:
    """The rows of the batch that holds this byte of a segment; none for the segment's header."""
    at = 64
    while at < len(data):
        header = BatchHeader.unpack(data, at)
        if position < at + header.total_bytes:
            return range(header.base_offset, header.next_offset) if position >= at else range(0)
        at += header.total_bytes
    raise AssertionError(f"{path} has no byte {position}")


def rows_from(data: bytes, position: int) -> range:
    """The rows of the batch that holds this byte and of all after it in the segment."""
    first = batch_of("", data, max(64, position))
    at, end = 64, first.stop
    while at < len(data):
        header = BatchHeader.unpack(data, at)
        at += header.total_bytes
        end = header.next_offset
    return range(first.start, end)


def replaced(disk: SimDisk, path: str, data: bytes) -> None:
    disk.write_file_atomic(path, data)


def lost(expected: range) -> list[int]:
    return [offset for offset in expected if offset >= TRIMMED]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("name", files())
def test_a_file_that_is_gone(name: str, clean: bool) -> None:
    disk, stored = build(clean=clean)
    path = f"{DIRECTORY}/{name}"
    if not disk.exists(path):
        pytest.skip("written at a clean stop only")
    data = disk.read_file(path)
    disk.remove(path)
    outcome = read_all(disk, stored, clean=clean)
    if name.endswith(".log"):
        assert outcome.bad == lost(rows_from(data, 64))
        assert outcome.loud
    else:
        assert outcome.bad == []


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("share", ["nothing", "header", "half", "a byte less"])
@pytest.mark.parametrize("name", files())
def test_a_file_that_is_cut(name: str, share: str, clean: bool) -> None:
    disk, stored = build(clean=clean)
    path = f"{DIRECTORY}/{name}"
    if not disk.exists(path):
        pytest.skip("written at a clean stop only")
    data = disk.read_file(path)
    header = 64 if name.endswith(".log") else 20
    size = {"nothing": 0, "header": header, "half": len(data) // 2, "a byte less": len(data) - 1}
    replaced(disk, path, data[: size[share]])
    outcome = read_all(disk, stored, clean=clean)
    if name.endswith(".log"):
        assert outcome.bad == lost(rows_from(data, size[share]))
        newest = name == max(n for n in files() if n.endswith(".log"))
        assert outcome.loud or (newest and not clean and size[share] > 64)
    else:
        assert outcome.bad == []


def positions(name: str, data: bytes) -> Iterator[int]:
    """One byte of each kind of place."""
    if not name.endswith(".log"):
        places = {0, 8, 12, 16, 20, len(data) // 2, len(data) - 1}
        yield from (at for at in places if 0 <= at < len(data))
        return
    yield from (0, 12, 16, 24)
    at, number = 64, 0
    while at < len(data):
        header = BatchHeader.unpack(data, at)
        kinds = (0, 8, 12, 14, 16, 20, 21, 24, 32, 36, 38, 44, 48, 56, 64, header.total_bytes - 1)
        yield from (at + kind for kind in kinds)
        at += header.total_bytes
        number += 1
    assert number > 1


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("name", files())
@pytest.mark.parametrize("bit", [6, pytest.param(0, marks=pytest.mark.long)])
def test_a_flipped_bit(bit: int, name: str, clean: bool) -> None:
    disk, stored = build(clean=clean)
    path = f"{DIRECTORY}/{name}"
    if not disk.exists(path):
        pytest.skip("written at a clean stop only")
    data = disk.read_file(path)
    for position in positions(name, data):
        disk, stored = build(clean=clean)
        disk.flip_bit(path, position * 8 + bit)
        outcome = read_all(disk, stored, clean=clean)
        allowed: set[int] = set()
        if name.endswith(".log") and position >= 64:
            allowed = set(batch_of(path, data, position))
        assert set(outcome.bad) <= allowed, f"byte {position} bit {bit}: too much is lost"


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_all_segments_gone(clean: bool) -> None:
    disk, stored = build(clean=clean)
    for name in disk.list(DIRECTORY):
        if name.endswith(".log"):
            disk.remove(f"{DIRECTORY}/{name}")
    outcome = read_all(disk, stored, clean=clean)
    assert outcome.loud
    assert outcome.bad == list(range(TRIMMED, ROWS * BATCHES))


def wipe(disk: SimDisk, path: str, start: int, size: int) -> None:
    data = bytearray(disk.read_file(path))
    data[start : start + size] = b"\xa5" * size
    replaced(disk, path, bytes(data))


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("start", range(64, 900, 64))
@pytest.mark.parametrize("segment", [0, 1])
def test_damage_over_several_batches_and_index_entries(
    segment: int, start: int, clean: bool
) -> None:
    disk, stored = build(clean=clean)
    name = sorted(n for n in disk.list(DIRECTORY) if n.endswith(".log"))[segment]
    path = f"{DIRECTORY}/{name}"
    data = disk.read_file(path)
    size = min(256, len(data) - start)
    if size <= 0:
        pytest.skip("behind the end")
    wipe(disk, path, start, size)
    outcome = read_all(disk, stored, clean=clean)
    first, last = batch_of(path, data, start), batch_of(path, data, start + size - 1)
    assert outcome.bad == lost(range(first.start, last.stop))


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("segment", [0, -1], ids=["oldest", "newest"])
@pytest.mark.parametrize("byte", [8, 11])
def test_a_damaged_leader_epoch_costs_its_batch_and_none_in_front(
    byte: int, segment: int, clean: bool
) -> None:
    disk, _ = build(clean=clean)
    name = sorted(n for n in disk.list(DIRECTORY) if n.endswith(".log"))[segment]
    path = f"{DIRECTORY}/{name}"
    bases = [h.base_offset for h in headers_of(disk.read_file(path))]
    batch = len(bases) - 2
    disk.flip_bit(path, 8 * (position_of(disk.read_file(path), batch) + byte) + 1)
    log = open_log(disk, clean=clean)
    start = max(bases[0], TRIMMED)
    views = log.reader.read(start, bytes_max=1 << 20, end_offset=log.log_end_offset)
    assert headers_of(bytes(64) + b"".join(views))[-1].next_offset == bases[batch]
    with pytest.raises(CorruptLog) as caught:
        log.reader.read(bases[batch], bytes_max=1 << 20, end_offset=log.log_end_offset)
    details = caught.value.details
    assert (details["offset"], details["end_offset"]) == (bases[batch], bases[batch + 1])
    assert log.reader.read(bases[batch + 1], bytes_max=1, end_offset=log.log_end_offset)


def headers_of(data: bytes) -> list[BatchHeader]:
    """The headers of a segment's batches."""
    at, found = 64, []
    while at < len(data):
        found.append(BatchHeader.unpack(data, at))
        at += found[-1].total_bytes
    return found


def position_of(data: bytes, batch: int) -> int:
    return 64 + sum(header.total_bytes for header in headers_of(data)[:batch])


def test_the_matrix_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that gives another batch than was asked for is found."""
    disk, stored = build(clean=True)
    read: Callable[..., list[memoryview]] = LogReader.read

    def other(self: LogReader, offset: int, *, bytes_max: int, end_offset: int) -> list[memoryview]:
        near = min(offset + ROWS, self.log_end_offset - 1)
        return read(self, near, bytes_max=bytes_max, end_offset=near + 1)

    monkeypatch.setattr(LogReader, "read", other)
    with pytest.raises(AssertionError, match="a wrong row"):
        read_all(disk, stored, clean=True)
    assert segment_path(DIRECTORY, 0) in disk.paths()
