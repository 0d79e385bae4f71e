"""What recovery believes above the last recovery point: what was flushed is never given up, what
never arrived is cut at the first hole, and nothing behind a hole is believed."""

from __future__ import annotations

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import CorruptLog, DiskFull
from quiverlog.limits import MIB
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import segment_path
from quiverlog.storage.segment.segment_files import pack_segment_header
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, truncate
from tests.unit.storage.segment.test_resync import carrier, stamped

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
PATH = segment_path(DIRECTORY, 0)
BATCH_BYTES = 64 + 20 * 64
"""More than two sectors, so that a batch has sectors of its own."""
SECTOR = 512


def open_log(disk: SimDisk, producers: ProducerStates | None = None, **settings: int) -> Log:
    disk.make_dir(DIRECTORY)
    config = LogConfig(retention_ms=-1, **settings)  # type: ignore[arg-type]
    return Log.open(disk, DIRECTORY, config=config, clean=False, now=NOW, producers=producers)


def append(log: Log, sequence: int = -1, fill: int = 7) -> int:
    producer = (5, 0, sequence) if sequence >= 0 else (-1, -1, -1)
    return log.append([make_batch(1, NOW.wall_us, 20, fill, producer)], 0, NOW)


def readable(log: Log) -> list[int]:
    found = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            views = log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
        except CorruptLog:
            continue
        assert BatchHeader.unpack(views[0]).base_offset == offset
        found.append(offset)
    return found


def change(disk: SimDisk, path: str, start: int, data: bytes) -> None:
    """Damage a file on the disk and in the cache alike."""
    inode = disk.inode(path)
    inode.data[start : start + len(data)] = data
    durable = bytearray(inode.durable)
    durable[start : start + len(data)] = data[: max(0, len(durable) - start)]
    inode.durable = bytes(durable)


def sector_at(number: int) -> int:
    """The first whole sector inside of batch `number`."""
    start = 64 + number * BATCH_BYTES
    return start + SECTOR - start % SECTOR


# --- above the flushed rows: nothing behind a hole is believed ----------------------------------
@pytest.mark.parametrize("first", [6, 7, 100, 1_000_000])
def test_a_payload_behind_a_hole_yields_no_rows(first: int) -> None:
    """The page with the batch's header never arrived, later pages did; a column holds batches."""
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(5):
        append(log)
    flush(log)
    size = len(disk.read_file(PATH))
    phantom = b"".join(stamped(first + 3 * number, 3, 0) for number in range(8))
    log.append([carrier(b"\x66" * 8192 + phantom)], 0, NOW)
    disk.kill()
    page = 4096 - size % 4096
    change(disk, PATH, size, bytes(page))
    log = open_log(disk)
    assert (log.log_end_offset, readable(log)) == (5, list(range(5)))
    assert log.recovery.bytes_truncated > page
    assert append(log) == 5


@pytest.mark.parametrize("part", ["first sector", "a sector in the middle", "last sector"])
def test_what_lies_behind_a_hole_goes_with_it(part: str) -> None:
    """An idempotent producer's lost batch can be sent again: its later one does not stay."""
    disk = SimDisk()
    producers = ProducerStates(NOW.wall_us)
    log = open_log(disk, producers)
    for number in range(6):
        append(log, number)
        if number == 2:
            flush(log)
    disk.kill()
    start, end = 64 + 3 * BATCH_BYTES, 64 + 4 * BATCH_BYTES
    first = start - start % SECTOR + SECTOR
    hole = {
        "first sector": (start, first),
        "a sector in the middle": (first, first + SECTOR),
        "last sector": (end - end % SECTOR, end - end % SECTOR + SECTOR),
    }[part]
    change(disk, PATH, hole[0], bytes(hole[1] - hole[0]))
    log = open_log(disk, producers)
    assert (log.log_end_offset, readable(log)) == (3, [0, 1, 2])
    assert log.recovery.damages == []
    assert log.recovery.bytes_truncated == 3 * BATCH_BYTES
    header, _ = make_batch(1, NOW.wall_us, 20, 7, (5, 0, 3))
    assert producers.check(header) is None, "the lost batch is new again"


def test_damage_above_the_flushed_rows_is_reported_and_kept() -> None:
    """A bit is no hole: rows of a `memory` topic may have been acknowledged without a flush."""
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(6):
        append(log)
    disk.kill()
    disk.flip_bit(PATH, 8 * (sector_at(2) + 5))
    log = open_log(disk)
    assert (readable(log), len(log.recovery.damages)) == ([0, 1, 3, 4, 5], 1)
    assert log.recovery.bytes_truncated == 0


# --- below: nothing is cut ----------------------------------------------------------------------
@pytest.mark.parametrize("end", ["kill", "power"])
@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_zeroed_sector_of_flushed_rows_is_damage(number: int, end: str) -> None:
    """Zeros look like a hole, but a later flush shows that rows were there."""
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(6):
        append(log)
        flush(log)
    if end == "power":
        append(log)
        flush(log)  # A flush brings to the disk what is known of those before it.
        disk.crash()
    else:
        disk.kill()
    change(disk, PATH, sector_at(number), bytes(SECTOR))
    log = open_log(disk)
    assert readable(log) == [n for n in range(7 if end == "power" else 6) if n != number]
    assert (log.recovery.bytes_truncated, len(log.recovery.damages)) == (0, 1)


def test_flushed_rows_cut_off_by_hand_are_missing() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(6):
        append(log)
    flush(log)
    disk.kill()
    disk.open(PATH, create=False).truncate(64 + 4 * BATCH_BYTES + 100)
    log = open_log(disk)
    assert (log.log_end_offset, readable(log)) == (6, [0, 1, 2, 3])
    assert log.recovery.damages
    assert append(log) == 6


def test_a_zero_sector_in_good_rows_is_no_hole() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(3):
        append(log, fill=0)
    disk.kill()
    log = open_log(disk)
    assert (readable(log), log.recovery.damages) == ([0, 1, 2], [])


# --- between segments ---------------------------------------------------------------------------
class NoRoomForNotes(SimDisk):
    """Room for rows, none for small files: the recovery point stays behind."""

    notes = True

    def write_file_atomic(self, path: str, data: object, *, durable: bool = True) -> None:
        if not self.notes:
            raise DiskFull("no room")
        super().write_file_atomic(path, data, durable=durable)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["gone", "cut", "emptied"])
@pytest.mark.parametrize("end", ["kill", "power"])
def test_flushed_rows_behind_a_gap_of_segments_stay(end: str, how: str) -> None:
    disk = NoRoomForNotes()
    log = open_log(disk, segment_bytes=3 * BATCH_BYTES)
    disk.notes = False
    for _ in range(8):  # Two rows in a segment.
        append(log)
        flush(log)
    if end == "kill":
        disk.kill()
    else:
        disk.crash()
    disk.notes = True
    path = segment_path(DIRECTORY, 2)
    if how == "gone":
        disk.remove(path)
    else:
        keep = 0 if how == "emptied" else 64 + BATCH_BYTES + 100
        disk.open(path, create=False).truncate(keep)
    log = open_log(disk, segment_bytes=3 * BATCH_BYTES)
    lost = [3] if how == "cut" else [2, 3]
    assert log.log_end_offset == 8
    assert readable(log) == [n for n in range(8) if n not in lost]
    assert log.recovery.damages
    assert append(log) == 8


def test_segments_behind_a_gap_that_were_never_flushed_go() -> None:
    disk = SimDisk()
    log = open_log(disk, segment_bytes=3 * BATCH_BYTES)
    append(log)
    flush(log)
    for _ in range(5):
        append(log)
    disk.kill()
    disk.remove(segment_path(DIRECTORY, 2))
    log = open_log(disk, segment_bytes=3 * BATCH_BYTES)
    assert (log.log_end_offset, readable(log)) == (2, [0, 1])
    assert log.recovery.bytes_truncated > 2 * BATCH_BYTES


# --- the mark itself ----------------------------------------------------------------------------
def test_a_truncation_lowers_the_mark() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(6):
        append(log)
        flush(log)
    truncate(log, 2)
    append(log)
    disk.kill()
    change(disk, PATH, 64 + 2 * BATCH_BYTES, bytes(BATCH_BYTES))
    log = open_log(disk)
    assert (log.log_end_offset, readable(log)) == (2, [0, 1])
    assert log.recovery.damages == []


def test_a_flush_writes_no_more_than_a_header_beside_the_rows() -> None:
    """The mark lies in the header's reserved bytes, in front of all rows."""
    disk = SimDisk()
    log = open_log(disk)
    append(log)
    before = disk.read_file(PATH)
    assert before[:64] == pack_segment_header(0, NOW.wall_us)
    flush(log)
    after = disk.read_file(PATH)
    assert after[64:] == before[64:]
    assert after[16:32] == before[16:32]
    assert after[32:48].hex() == "01" + "00" * 7 + "80050000" + "00" * 4
    assert len(after) == 64 + BATCH_BYTES < MIB


def test_a_segment_without_a_mark_is_read() -> None:
    """As before its first flush."""
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(3):
        append(log)
        flush(log)
    disk.kill()
    change(disk, PATH, 0, pack_segment_header(0, NOW.wall_us))
    disk.flip_bit(PATH, 8 * (sector_at(1) + 5))
    log = open_log(disk)
    assert (readable(log), len(log.recovery.damages)) == ([0, 2], 1)


def test_the_next_segment_s_mark_shows_a_lost_first_segment() -> None:
    """The disk had no room for a recovery point; what it left has no flushed rows."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=4 * BATCH_BYTES)
    for number in range(6):
        append(log, number)
        flush(log)
    assert log.reader.segment_count > 1
    first, second = log.reader.segments[0].path, log.reader.segments[1].base_offset
    disk.kill()
    disk.remove(f"{DIRECTORY}/recovery-point")
    disk.remove(first)
    log = open_log(disk)
    assert f"rows 0 to {second} are missing" in log.recovery.damages[0]
    with pytest.raises(CorruptLog):
        log.reader.read(0, bytes_max=1, end_offset=log.log_end_offset)
