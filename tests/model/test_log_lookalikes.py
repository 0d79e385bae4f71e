"""Damage of every kind at every place of files whose payloads imitate batches: whatever a reader is
given was appended at that offset, and what is reported as damaged holds the damaged rows, and no
more of the good ones than docs/storage-format.md allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from quiverlog.batch.header import BatchHeader
from quiverlog.errors import CorruptLog
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment import segment_path
from quiverlog.types import Now
from tests.sim.disk import SimDisk
from tests.support.logs import flush
from tests.support.lookalikes import KINDS, carrier

NOW = Now(0, 1_000_000_000_000_100)
DIRECTORY = "data/t-0"
PATH = segment_path(DIRECTORY, 0)
EPOCH = 3


class Batch(NamedTuple):
    kind: str
    rows: int
    blocks: int


class Placed(NamedTuple):
    at: int
    end: int
    offset: int
    next_offset: int
    data: bytes


@dataclass
class World:
    disk: SimDisk
    placed: list[Placed]

    def hit(self, first: int, last: int) -> list[Placed]:
        """The batches that hold one of the bytes [first, last)."""
        return [batch for batch in self.placed if batch.at < last and first < batch.end]


def build(batches: list[Batch], *, indexed: bool, stop: str) -> World:
    """A log of one segment. `indexed`: its index is on the disk, with an entry for every batch."""
    disk = SimDisk(1)
    disk.make_dir(DIRECTORY)
    config = LogConfig(index_interval_bytes=1 if indexed else 1 << 16)
    log = Log.open(disk, DIRECTORY, config=config, clean=True, now=NOW)
    placed = []
    at, offset = 64, 0
    for number, (kind, rows, blocks) in enumerate(batches):
        batch = carrier(kind, 1_000 * number, rows, offset, EPOCH, blocks)
        log.append([(BatchHeader.unpack(batch), memoryview(batch))], EPOCH, NOW)
        placed.append(Placed(at, at + len(batch), offset, offset + rows, bytes(batch)))
        at, offset = at + len(batch), offset + rows
        if number == 0 or stop == "kill":
            flush(log)
    flush(log)
    if indexed:
        log.reader.segments[0].save_index()
    if stop == "clean":
        log.close(clean=True)
    disk.kill()
    if not indexed and disk.exists(PATH.replace(".log", ".index")):
        disk.remove(PATH.replace(".log", ".index"))
    return World(disk, placed)


def check_reads(log: Log, world: World, bytes_max: int) -> set[int]:
    """Read from every offset on; the rows that cannot be read."""
    by_offset = {batch.offset: batch for batch in world.placed}
    bad: set[int] = set()
    end = min(log.log_end_offset, world.placed[-1].next_offset)
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            views = log.reader.read(offset, bytes_max=bytes_max, end_offset=log.log_end_offset)
        except CorruptLog as error:
            first, after = error.details["offset"], error.details["end_offset"]
            assert isinstance(first, int)
            assert isinstance(after, int)
            assert first <= offset < after
            bad.add(offset)
            continue
        data = b"".join(views)
        expected = next(b for b in world.placed if b.offset <= offset < b.next_offset)
        at = 0
        while at < len(data):
            assert expected is not None, "rows behind the last one"
            got = data[at : at + len(expected.data)]
            assert got[:8] == expected.data[:8], "rows of another offset"
            # The leader epoch lies outside the checksum; clients compare it with the leader's.
            assert got[12:] == expected.data[12:], "rows that were never appended here"
            at += len(expected.data)
            expected = by_offset.get(expected.next_offset)
    assert end > 0
    return bad | set(range(log.log_end_offset, world.placed[-1].next_offset))


BATCHES = st.lists(
    st.builds(Batch, st.sampled_from(KINDS), st.integers(2, 5), st.integers(1, 6)),
    min_size=2,
    max_size=6,
)


@given(
    batches=BATCHES,
    number=st.integers(0, 5),
    byte=st.one_of(st.integers(0, 63), st.integers(0, 4_000)),
    bit=st.integers(0, 7),
    indexed=st.booleans(),
    stop=st.sampled_from(["clean", "kill", "group"]),
    bytes_max=st.sampled_from([1, 700, 1 << 20]),
)
def test_a_flipped_bit_costs_its_batch_and_invents_no_row(
    batches: list[Batch],
    number: int,
    byte: int,
    bit: int,
    indexed: bool,
    stop: str,
    bytes_max: int,
) -> None:
    world = build(batches, indexed=indexed, stop=stop)
    batch = world.placed[number % len(world.placed)]
    position = batch.at + byte % (batch.end - batch.at)
    world.disk.flip_bit(PATH, 8 * position + bit)
    log = Log.open(world.disk, DIRECTORY, config=LogConfig(), clean=stop == "clean", now=NOW)
    bad = check_reads(log, world, bytes_max)
    after = batch.next_offset
    if "carpet" in batches[number % len(batches)].kind and not indexed:
        # A wrong length in the Arrow metadata leads into it: header and message both look right.
        after = world.placed[-1].next_offset if position - batch.at >= 64 else after
    assert bad <= set(range(batch.offset, after)), "one bit costs one batch"


@given(
    batches=BATCHES,
    start=st.floats(0, 1, exclude_max=True),
    size=st.sampled_from([1, 8, 64, 200, 512, 1_024, 4_096]),
    aligned=st.booleans(),
    fill=st.sampled_from([b"\x00", b"\xff", b"\xa5", b"\x01"]),
    indexed=st.booleans(),
    stop=st.sampled_from(["clean", "kill", "group"]),
    bytes_max=st.sampled_from([1, 700, 1 << 20]),
)
def test_overwritten_bytes_invent_no_row(
    batches: list[Batch],
    start: float,
    size: int,
    aligned: bool,
    fill: bytes,
    indexed: bool,
    stop: str,
    bytes_max: int,
) -> None:
    world = build(batches, indexed=indexed, stop=stop)
    data = bytearray(world.disk.read_file(PATH))
    first = 64 + int((len(data) - 64) * start)
    if aligned:
        first = max(64, first // 512 * 512 if size >= 512 else first // 64 * 64)
    last = min(len(data), first + size)
    data[first:last] = fill * (last - first)
    changed = bytes(data) != world.disk.read_file(PATH)
    world.disk.inode(PATH).data[:] = data
    log = Log.open(world.disk, DIRECTORY, config=LogConfig(), clean=stop == "clean", now=NOW)
    bad = check_reads(log, world, bytes_max)
    hit = world.hit(first, last)
    allowed = set(range(hit[0].offset, hit[-1].next_offset))
    if not indexed:
        # Nothing may mark where the next batch begins: the rest of this short file is damaged.
        allowed = set(range(hit[0].offset, world.placed[-1].next_offset))
    assert bad <= allowed
    assert not bad or changed


@given(
    batches=BATCHES,
    keep=st.floats(0, 1, exclude_max=True),
    indexed=st.booleans(),
    stop=st.sampled_from(["clean", "kill", "group"]),
)
def test_a_cut_file_invents_no_row(
    batches: list[Batch], keep: float, indexed: bool, stop: str
) -> None:
    world = build(batches, indexed=indexed, stop=stop)
    size = len(world.disk.read_file(PATH))
    left = 64 + int((size - 64) * keep)
    world.disk.open(PATH, create=False).truncate(left)
    log = Log.open(world.disk, DIRECTORY, config=LogConfig(), clean=stop == "clean", now=NOW)
    bad = check_reads(log, world, 1 << 20)
    cut = next(batch for batch in world.placed if left < batch.end)
    assert bad == set(range(cut.offset, world.placed[-1].next_offset))
