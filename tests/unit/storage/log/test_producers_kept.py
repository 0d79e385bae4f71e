"""A partition's producer states outlive the rows that were given up."""

from __future__ import annotations

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import Now
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
PRODUCER = 7
LOG_START_BYTES = 28
ROW_COUNT_AT = 36


def open_log(disk: SimDisk, *, clean: bool = False) -> tuple[Log, ProducerStates]:
    disk.make_dir(DIRECTORY)
    producers = ProducerStates(NOW.wall_us)
    config = LogConfig(segment_bytes=600, retention_ms=-1)
    log = Log.open(disk, DIRECTORY, config=config, clean=clean, now=NOW, producers=producers)
    return log, producers


def sent(sequence: int) -> BatchHeader:
    """The header of the batch of one row with this number."""
    return make_batch(1, NOW.wall_us, 1, 7, (PRODUCER, 0, sequence))[0]


def append(log: Log, producers: ProducerStates, sequences: range) -> None:
    for sequence in sequences:
        batch = make_batch(1, NOW.wall_us, 1, 7, (PRODUCER, 0, sequence))
        offset = log.append([batch], 0, NOW)
        producers.record(batch[0], offset, NOW.wall_us)


def repetitions(producers: ProducerStates, sequences: range) -> list[int | None]:
    return [producers.check(sent(sequence)) for sequence in sequences]


@pytest.mark.parametrize("stop", ["crash", "kill", "close"])
@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("start", [1, 3, 4, 5, 9, 11, 12, 18])
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_that_was_given_up_is_a_repetition(
    seed: int, start: int, flushed: bool, stop: str
) -> None:
    disk = SimDisk(seed)
    log, producers = open_log(disk)
    append(log, producers, range(18))
    flush(log)
    if not flushed:
        append(log, producers, range(18, 20))
    trim(log, start)
    if stop == "close":
        log.close(clean=True)
        disk.kill()
    elif stop == "kill":
        disk.kill()
    else:
        disk.crash()
    log, producers = open_log(disk, clean=stop == "close")
    end = log.log_end_offset
    assert end >= 18
    assert repetitions(producers, range(end - 5, end)) == list(range(end - 5, end))
    assert producers.check(sent(end)) is None
    assert log.recovery.damages == []


def test_rows_that_were_never_flushed_are_remembered_once_they_are_given_up() -> None:
    for seed in range(8):
        disk = SimDisk(seed)
        log, producers = open_log(disk)
        append(log, producers, range(3))
        trim(log, 3)
        disk.crash()
        log, producers = open_log(disk)
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
        assert repetitions(producers, range(3)) == [0, 1, 2]


def test_a_full_disk_can_be_trimmed_and_forgets_no_producer() -> None:
    """The snapshot takes the room of the first file that goes."""
    for seed in range(8):
        disk = SimDisk(seed)
        log, producers = open_log(disk)
        append(log, producers, range(4))
        flush(log)
        disk.capacity = disk.used_bytes + 2 * LOG_START_BYTES
        job = log.begin_trim(4)
        assert job is not None
        result = job.run()
        assert not result.snapshot_saved
        remove = log.complete_trim(job, result)
        assert remove is not None
        remove.run()
        disk.crash()
        log, producers = open_log(disk)
        assert repetitions(producers, range(4)) == [0, 1, 2, 3]


def test_the_log_start_comes_before_the_snapshot_where_there_is_room_for_one() -> None:
    disk = SimDisk()
    log, producers = open_log(disk)
    append(log, producers, range(4))
    flush(log)
    snapshot = 20 + 8 + len(producers.snapshot())
    disk.capacity = disk.used_bytes + max(snapshot, 2 * LOG_START_BYTES)
    assert trim(log, 4) == 4
    disk.crash()
    assert repetitions(open_log(disk)[1], range(4)) == [0, 1, 2, 3]


def test_files_left_behind_below_the_log_start_are_read_before_they_go() -> None:
    for stop in ("crash", "kill"):
        disk = SimDisk(3)
        log, producers = open_log(disk)
        append(log, producers, range(12))
        flush(log)
        job = log.begin_trim(12)
        assert job is not None
        job.run()
        getattr(disk, stop)()
        for name in disk.list(DIRECTORY):  # The snapshots of an older broker were not flushed.
            if name.endswith(".snapshot"):
                disk.remove(f"{DIRECTORY}/{name}")
        log, producers = open_log(disk)
        assert repetitions(producers, range(7, 12)) == [7, 8, 9, 10, 11]
        assert not [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
        disk.crash()
        log, producers = open_log(disk)
        assert repetitions(producers, range(7, 12)) == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("bit", [1, 2, 20])
@pytest.mark.parametrize("number", [0, 7, 17])
def test_a_header_that_claims_rows_of_others_does_not_count_for_its_producer(
    number: int, bit: int
) -> None:
    """The simulator, seed 505: without a snapshot, one such header kept a partition offline."""
    disk = SimDisk()
    log, producers = open_log(disk)
    append(log, producers, range(18))
    flush(log, background=True)
    (segment,) = [s for s in log.reader.segments if s.base_offset <= number < s.end_offset]
    before = [h for h in log.reader.headers(segment.base_offset) if h.base_offset < number]
    at = SEGMENT_HEADER_BYTES + sum(header.total_bytes for header in before)
    disk.kill()
    for name in disk.list(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.remove(f"{DIRECTORY}/{name}")
    disk.flip_bit(segment.path, (at + ROW_COUNT_AT) * 8 + bit)
    assert BatchHeader.unpack(disk.inode(segment.path).data, at).row_count == 1 + 2**bit
    log, producers = open_log(disk)
    assert log.log_end_offset == 18
    expected = [None if sequence == number else sequence for sequence in range(13, 18)]
    assert repetitions(producers, range(13, 18)) == expected


def test_damage_that_is_met_while_producers_are_read_is_reported() -> None:
    """Else a leader with less than it knew refuses good batches; as a copy it would be made anew.

    A start after a clean stop looks at no batch but for this.
    """
    disk = SimDisk()
    log, producers = open_log(disk)
    append(log, producers, range(18))
    flush(log, background=True)
    log.close(clean=True)
    assert len(log.reader.segments) > 1, "the damage lies in a file that is not looked at otherwise"
    (segment,) = [one for one in log.reader.segments if one.base_offset <= 7 < one.end_offset]
    for name in disk.list(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.remove(f"{DIRECTORY}/{name}")
    before = [h for h in log.reader.headers(segment.base_offset) if h.base_offset < 7]
    at = SEGMENT_HEADER_BYTES + sum(header.total_bytes for header in before)
    disk.kill()
    disk.flip_bit(segment.path, at * 8)
    log, producers = open_log(disk, clean=True)
    assert log.log_end_offset == 18
    (reported,) = log.recovery.damages
    assert "rows 7 to 8" in reported
    assert repetitions(producers, range(13, 18)) == [13, 14, 15, 16, 17]
