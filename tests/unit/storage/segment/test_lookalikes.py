"""A column that imitates batches, behind damage of each kind: its bytes are never taken for
rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.cli.tools.dump_log import DumpedBatch, walk
from quiverlog.errors import CorruptLog
from quiverlog.limits import BATCH_BYTES_MAX
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.index import Boundaries, Boundary, SparseIndex
from quiverlog.storage.segment.scan import Damage, Found, Torn, scan
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.sim.disk import SimDisk
from tests.support.logs import flush, truncate
from tests.support.lookalikes import batch_of_rows, carrier, imitation

NOW = Now(0, 1_000_000_000_000_100)
DIRECTORY = "data/t-0"
PATH = segment_path(DIRECTORY, 0)
ROWS = 4
"""Of every batch here."""
CARRIER = 2
"""The number of the batch that imitates others."""


def batches(kind: str, blocks: int = 3) -> list[bytes]:
    """Five batches as they are stored, the third with a payload of that kind."""
    stored = []
    for number in range(5):
        offset = ROWS * number
        made = carrier(kind if number == CARRIER else "none", 1_000, ROWS, offset, 0, blocks)
        BatchHeader.unpack(made)._replace(base_offset=offset, leader_epoch=0).pack_into(made)
        stored.append(bytes(made))
    return stored


def scanned(data: bytes, known: Boundaries | None = None) -> list[Found | Damage | Torn]:
    boundaries = None if known is None else lambda: known
    return list(scan(data, 0, 0, verify=True, boundaries=boundaries))


def found_offsets(data: bytes, known: Boundaries | None = None) -> list[int]:
    return [e.header.base_offset for e in scanned(data, known) if isinstance(e, Found)]


@pytest.mark.parametrize("kind", ["follow", "inside", "joined", "copies", "carpet"])
@pytest.mark.parametrize("byte", [0, 3, 8, 12, 13, 16, 20, 21, 24, 36, 37, 39, 44, 48, 64, 72])
def test_one_wrong_bit_costs_one_batch(kind: str, byte: int) -> None:
    """Seed 70058 of the simulator: byte 3, of the offset, and imitations inside."""
    stored = batches(kind)
    at = sum(map(len, stored[:CARRIER]))
    for bit in range(8):
        data = bytearray(b"".join(stored))
        data[at + byte] ^= 1 << bit
        end = at + len(stored[CARRIER])
        first, after = ROWS * CARRIER, ROWS * (CARRIER + 1)
        damages = [e for e in scanned(bytes(data)) if not isinstance(e, Found)]
        # The leader epoch is no part of what a scan compares: epochs.py does.
        assert damages == ([] if byte == 8 else [Damage(at, end, first, after)]), f"bit {bit}"
        wanted = [0, 4, 8, 12, 16] if byte == 8 else [0, 4, 12, 16]
        assert found_offsets(bytes(data)) == wanted


@pytest.mark.parametrize("kind", ["none", "follow", "inside", "joined", "copies", "carpet"])
def test_behind_unreadable_bytes_only_a_known_place_counts(kind: str) -> None:
    stored = batches(kind)
    data = bytearray(b"".join(stored))
    at = sum(map(len, stored[:CARRIER]))
    data[at : at + 320] = b"\xa5" * 320  # Header and Arrow metadata.
    assert found_offsets(bytes(data)) == [0, 4], "the end of the file is not 32 MiB away"
    known = Boundaries(0, None, [Boundary(at + len(stored[CARRIER]), ROWS * (CARRIER + 1))])
    assert found_offsets(bytes(data), known) == [0, 4, 12, 16]
    damages = [e for e in scanned(bytes(data), known) if not isinstance(e, Found)]
    assert damages == [Damage(at, at + len(stored[CARRIER]), 8, 12)]


def test_the_message_shows_the_end_of_a_batch_without_a_header() -> None:
    stored = batches("joined")
    data = bytearray(b"".join(stored))
    at = sum(map(len, stored[:CARRIER]))
    for lost in (bytes(64), b"\xa5" * 64, b"\x01" * 64):
        data[at : at + 64] = lost
        assert found_offsets(bytes(data)) == [0, 4, 12, 16]


def test_what_lies_32_mib_behind_the_first_of_a_chain_is_in_no_damaged_batch() -> None:
    """Without anything that is known: so far a payload can reach, and no further."""
    first = batch_of_rows(0, ROWS, imitation(1, 1, 0) + imitation(2, 2, 0))
    big = batch_of_rows(0, ROWS, b"\x07" * (8 << 20))
    data, bases = bytearray(first), []
    for number in range(1, 7):
        bases.append((len(data), ROWS * number))
        BatchHeader.unpack(big)._replace(base_offset=ROWS * number).pack_into(big)
        data += big
    data[0:320] = b"\xa5" * 320
    believed = [base for at, base in bases if at >= bases[0][0] + BATCH_BYTES_MAX]
    assert believed, "the file is long enough"
    found = found_offsets(bytes(data))
    assert found == believed
    data[bases[2][0] + 20] ^= 1  # A second damage: its size is unverified and may be wrong.
    assert found_offsets(bytes(data)) == []


@pytest.mark.parametrize("behind", [b"", b"\x07" * 32, bytes(640)], ids=["end", "torn", "zeros"])
@pytest.mark.parametrize("kind", ["follow", "carpet", "carpet of rows"])
def test_a_wrong_length_in_the_last_message_leads_into_no_column(kind: str, behind: bytes) -> None:
    """No next header confirms the batch's own one; an imitation inside would confirm the other."""
    stored = batches(kind, 8)[: CARRIER + 1]
    at = sum(map(len, stored[:CARRIER]))
    for bit in range(8 * 64, 8 * 400):
        data = bytearray(b"".join(stored) + behind)
        data[at + bit // 8] ^= 1 << bit % 8
        assert found_offsets(bytes(data)) == [0, 4], f"byte {bit // 8}, bit {bit % 8}"


@pytest.mark.parametrize("size", [49, 65, 111, 300])
def test_a_last_batch_of_an_impossible_size_is_damaged_to_the_end(size: int) -> None:
    """Seed 91668 of the simulator: a scan that went on at such a size met an assertion."""
    stored = batches("none")
    data = bytearray(b"".join(stored))
    at = len(data) - len(stored[-1])
    data[at + 12 : at + 16] = size.to_bytes(4, "little")
    data[at + 64 : at + 72] = b"\xa5" * 8
    *good, damage = scanned(bytes(data))
    assert [e.header.base_offset for e in good if isinstance(e, Found)] == [0, 4, 8, 12]
    assert damage == Damage(at, len(data), 16, 20)


def test_rows_that_are_gone_cost_no_more_than_the_batch_behind_them() -> None:
    stored = batches("none")
    data = b"".join(stored[:2] + stored[3:])
    assert found_offsets(data) == [0, 4, 16]
    (damage,) = [e for e in scanned(data) if isinstance(e, Damage)]
    assert (damage.offset, damage.end_offset) == (8, 16)


# --- through a log ------------------------------------------------------------------------------
def open_log(disk: SimDisk, *, clean: bool) -> Log:
    return Log.open(disk, DIRECTORY, config=LogConfig(), clean=clean, now=NOW)


def built(kind: str, blocks: int = 3) -> tuple[SimDisk, list[bytes]]:
    disk = SimDisk(1)
    disk.make_dir(DIRECTORY)
    log = open_log(disk, clean=True)
    stored = batches(kind, blocks)
    for data in stored:
        log.append([(BatchHeader.unpack(data), memoryview(bytearray(data)))], 0, NOW)
    flush(log)
    log.close(clean=True)
    disk.kill()
    return disk, stored


def test_a_walk_over_a_size_that_lies_is_noticed() -> None:
    """Headers join up where a wrong size leads into a carpet of imitations; checksums do not."""
    disk, stored = built("carpet", blocks=8)
    at = 64 + sum(map(len, stored[:CARRIER]))
    disk.flip_bit(PATH, 8 * (at + 12) + 7)  # 128 bytes less.
    log = open_log(disk, clean=True)
    for offset in range(12, 16):  # The rows that follow the carrier.
        (view,) = log.reader.read(offset, bytes_max=1, end_offset=20)
        assert bytes(view) == stored[CARRIER + 1]
    with pytest.raises(CorruptLog) as caught:
        log.reader.read(8, bytes_max=1, end_offset=20)
    assert (caught.value.details["offset"], caught.value.details["end_offset"]) == (8, 12)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("kept", [True, False], ids=["index kept", "index lost"])
def test_a_wide_read_in_front_of_a_lost_header(kept: bool, clean: bool) -> None:
    disk, stored = built("joined")
    at = 64 + sum(map(len, stored[:CARRIER]))
    disk.inode(PATH).data[at : at + 320] = bytes(320)
    if not kept:
        disk.remove(PATH.replace(".log", ".index"))
    log = open_log(disk, clean=clean)
    assert b"".join(log.reader.read(0, bytes_max=1 << 20, end_offset=20)) == b"".join(stored[:2])
    for offset in range(8, 20):  # One entry of an index covers all of these small batches.
        with pytest.raises(CorruptLog) as caught:
            log.reader.read(offset, bytes_max=1 << 20, end_offset=20)
        assert caught.value.details["offset"] == 8
        assert caught.value.details["end_offset"] == 20


def test_a_truncation_finds_its_cut_behind_a_lost_header() -> None:
    disk = SimDisk(1)
    disk.make_dir(DIRECTORY)
    config = LogConfig(index_interval_bytes=1)
    log = Log.open(disk, DIRECTORY, config=config, clean=True, now=NOW)
    stored = batches("joined")
    for data in stored:
        log.append([(BatchHeader.unpack(data), memoryview(bytearray(data)))], 0, NOW)
    flush(log)
    log.close(clean=True)
    disk.kill()
    at = 64 + sum(map(len, stored[:CARRIER]))
    disk.inode(PATH).data[at : at + 320] = bytes(320)
    log = open_log(disk, clean=True)
    truncate(log, 16)
    assert log.log_end_offset == 16
    for offset in range(8, 16):  # The new file has no index: its last batch went with the rest.
        with pytest.raises(CorruptLog):
            log.reader.read(offset, bytes_max=1, end_offset=16)


def test_dump_log_goes_by_the_index_beside_the_file(tmp_path: Path) -> None:
    disk, stored = built("joined")
    data = bytearray(disk.read_file(PATH))
    at = 64 + sum(map(len, stored[:CARRIER]))
    data[at : at + 320] = bytes(320)
    index = SparseIndex()
    index.add(12, at + len(stored[CARRIER]), 0)

    def rows(index: SparseIndex | None) -> list[int]:
        found = walk(memoryview(bytes(data)), index)
        return [one.base_offset for one in found if isinstance(one, DumpedBatch)]

    assert rows(None) == [0, 4]
    assert rows(index) == [0, 4, 12, 16]
