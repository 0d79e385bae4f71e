"""What recovery believes: not a column's bytes that look like a batch, and never for long."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from quiverlog.batch.checksum import crc32c
from quiverlog.batch.header import CRC_START, BatchHeader, stamp
from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.scan import Damage, Found, scan
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk, SimFile
from tests.support.logs import flush

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
PATH = segment_path(DIRECTORY, 0)


def open_log(disk: SimDisk, **settings: object) -> Log:
    disk.make_dir(DIRECTORY)
    return Log.open(disk, DIRECTORY, config=LogConfig(), clean=False, now=NOW, **settings)  # type: ignore[arg-type]


def stamped(offset: int, rows: int, epoch: int, blocks: int = 1, fill: int = 7) -> bytes:
    _, view = make_batch(rows, NOW.wall_us, blocks, fill)
    stamp(view, 0, offset, epoch)
    return bytes(view)


def carrier(payload: bytes, rows: int = 3) -> tuple[BatchHeader, memoryview]:
    """A batch whose rows hold `payload`."""
    data = bytearray(64) + payload
    fields = (0, 0, len(data) - 16, 0, 1, 0, -1, -1, -1, rows, 1, 0, NOW.wall_us, NOW.wall_us)
    header = BatchHeader._make(fields)
    header.pack_into(data)
    header = header._replace(crc32c=crc32c(memoryview(data)[CRC_START:]))
    header.pack_into(data)
    return header, memoryview(data)


@pytest.mark.parametrize("left", [64 + 64, 64 + 128, 64 + 192, 64 + 256, 64 + 300])
@pytest.mark.parametrize("epoch", [0, 99])
def test_a_torn_batch_yields_no_rows_of_its_own_choice(left: int, epoch: int) -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)
    flush(log)
    # Two perfect batches in a column, and zeros up to where the batch itself ends.
    phantom = stamped(6, 2, epoch) + stamped(8, 2, epoch)
    log.append([carrier(phantom + bytes(640))], 0, NOW)
    disk.kill()
    disk.open(PATH, create=False).truncate(64 + 128 + left)
    log = open_log(disk)
    assert (log.log_end_offset, log.epochs.entries()) == (3, [(0, 0)])
    assert log.recovery.bytes_truncated == left
    assert log.recovery.damages == []


def test_a_phantom_that_goes_nowhere_is_not_believed_behind_a_lost_header() -> None:
    """The header's sector never arrived, the rows did: only a chain to the end counts."""
    disk = SimDisk()
    log = open_log(disk)
    log.append([make_batch(3, NOW.wall_us, 1, 7)], 0, NOW)
    flush(log)
    log.append([carrier(stamped(1_000, 2, 50) + b"\x07" * 640)], 0, NOW)
    disk.kill()
    data = bytearray(disk.read_file(PATH))
    data[192 : 192 + 64] = bytes(64)
    disk.write_file_atomic(PATH, bytes(data))
    log = open_log(disk)
    assert log.log_end_offset < 1_000
    assert log.epochs.newest == 0


def test_an_epoch_from_the_future_is_not_believed() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(4):
        log.append([make_batch(3, NOW.wall_us, 1, 7)], 1, NOW)
    disk.kill()
    data = bytearray(disk.read_file(PATH))
    stamp(data, 64 + 128, 3, 1_000)  # The stamp lies outside the checksum.
    disk.write_file_atomic(PATH, bytes(data))
    log = open_log(disk)
    assert log.epochs.entries() == [(1, 0)]
    stamp(data, 64 + 3 * 128, 9, 1_000)
    disk.write_file_atomic(PATH, bytes(data))
    assert open_log(disk, epoch_newest=1).epochs.entries() == [(1, 0)]


def test_a_wrong_size_field_hides_no_batch_behind_it() -> None:
    data = bytearray(b"".join(stamped(3 * n, 3, 0) for n in range(6)))
    data[128 + 13] ^= 0x40  # 16 KiB more than there are bytes.
    found = list(scan(bytes(data), 0, 0, verify=True))
    assert [e.header.base_offset for e in found if isinstance(e, Found)] == [0, 6, 9, 12, 15]
    assert [e for e in found if isinstance(e, Damage)] == [Damage(128, 256, 3, 6)]


def test_two_damages_cost_only_their_own_rows() -> None:
    data = bytearray(b"".join(stamped(3 * n, 3, 0) for n in range(9)))
    for number in (2, 5):
        data[128 * number + 20] ^= 1  # The magic: nothing in that header is believed.
    found = list(scan(bytes(data), 0, 0, verify=True))
    good = [e.header.base_offset for e in found if isinstance(e, Found)]
    assert good == [0, 3, 9, 12, 18, 21, 24]


@dataclass
class Bytes:
    """Counts what a search reads."""

    data: bytes
    count: int = 0

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, position: int, size: int) -> memoryview:
        self.count += size
        return memoryview(self.data)[position : position + size]


def hostile(size: int) -> bytes:
    """Headers at every 64 bytes, each plausible, each a chain to the very end, none good."""
    blocks = size // 64
    parts = [b"\xff" * 64]
    for number in range(1, blocks):
        fields = (number, 0, (blocks - number) * 64 - 16, 1, 1, 0, -1, -1, -1, 1, 1, 0, 5, 5)
        part = bytearray(64)
        BatchHeader._make(fields).pack_into(part)
        parts.append(bytes(part))
    return b"".join(parts)


@pytest.mark.parametrize(
    "make",
    [hostile, lambda size: b"\xa5" * size, lambda size: b"\x01" * size, lambda size: bytes(size)],
    ids=["plausible headers", "noise", "magics", "zeros"],
)
def test_a_search_reads_a_bounded_multiple_of_the_bytes(make: Callable[[int], bytes]) -> None:
    for size in (256 * 1024, 1024 * 1024):
        source = Bytes(make(size))
        list(scan(source, 0, 0, verify=True))
        assert source.count < 16 * size, f"{source.count / size:.0f} times {size} bytes"


def test_many_damages_are_not_searched_again_and_again() -> None:
    data = bytearray(b"".join(stamped(3 * n, 3, 0) for n in range(8_000)))
    for number in range(1, 7_999, 2):
        data[128 * number + 20] ^= 1
    source = Bytes(bytes(data))
    found = list(scan(source, 0, 0, verify=True))
    assert sum(isinstance(e, Damage) for e in found) == 3_999
    assert source.count < 64 * len(data), f"{source.count / len(data):.0f} times the bytes"


def test_an_unreadable_block_is_damage_of_its_rows_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    log = open_log(disk)
    for number in range(8):
        log.append([make_batch(3, NOW.wall_us, 63, number + 1)], 0, NOW)
    flush(log)
    log.close(clean=True)
    disk.kill()
    read_copy = SimFile.read_copy

    def failing(self: SimFile, position: int, size: int) -> bytes:
        if self.path == PATH and position < 12_288 and position + size > 8_192:
            raise OSError(errno.EIO, "simulated bad sector", self.path)
        return read_copy(self, position, size)

    monkeypatch.setattr(SimFile, "read_copy", failing)
    for clean in (True, False):
        log = Log.open(disk, DIRECTORY, config=LogConfig(), clean=clean, now=NOW)
        bad = []
        for offset in range(24):
            try:
                (view,) = log.reader.read(offset, bytes_max=1, end_offset=offset + 1)
            except CorruptLog:
                bad.append(offset)
            else:
                assert view[-1] == offset // 3 + 1
        assert bad == [3 * 1, 4, 5, 6, 7, 8], "the batches at 4,160 to 12,352"
        log.close(clean=False)
