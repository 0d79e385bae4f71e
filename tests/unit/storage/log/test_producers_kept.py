"""A partition's producer states outlive the rows that were given up."""

from __future__ import annotations

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.storage.log import checkpoint
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import Now, PublishId
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.sim.faults import Death, FaultyDisk
from tests.support.logs import flush, trim, truncate

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


# --- publishes: an own one must never be forgotten ------------------------------------------------
PUBLISH = PublishId(3, 7, 9).pack()
CLUSTER = 5


def append_publish(log: Log, producers: ProducerStates, sequences: range) -> None:
    for sequence in sequences:
        batch = make_batch(1, NOW.wall_us, 1, 7, (PUBLISH, CLUSTER, sequence))
        producers.record(batch[0], log.append([batch], 0, NOW), NOW.wall_us)


def next_sequence(producers: ProducerStates) -> int:
    return producers.publishes.table[CLUSTER, 3][-1].next_sequence


@pytest.mark.parametrize("end", [0, 1, 5])
def test_a_cut_takes_back_what_is_known_of_a_publish(end: int) -> None:
    """A leader would take rows that are gone for stored ones."""
    log, producers = open_log(SimDisk(1))
    append_publish(log, producers, range(6))
    flush(log)
    truncate(log, end)
    runs = producers.publishes.table.get((CLUSTER, 3), ())
    assert sum(run.row_count for run in runs) == end


@pytest.mark.parametrize("has_old", [True, False])
@pytest.mark.parametrize("crashes", [True, False])
def test_a_cut_below_all_snapshots_forgets_no_publish_whose_rows_are_trimmed(
    crashes: bool, has_old: bool
) -> None:
    """Only the snapshots have it, and all are ahead of the cut, or older than the row."""
    disk = SimDisk(1)
    log, producers = open_log(disk)
    append_publish(log, producers, range(6))
    append(log, producers, range(3))
    append(log, producers, range(3, 30))
    flush(log)
    trim(log, 8)
    assert all(base.base_offset >= 6 for base in log.reader.segments), "its files are gone"
    assert min(checkpoint.snapshot_offsets(disk.list(DIRECTORY))) > 10
    if has_old:
        checkpoint.write_snapshot(disk, DIRECTORY, 0, ProducerStates(0).snapshot())
    truncate(log, 10)
    if crashes:
        disk.crash()
        log, producers = open_log(disk)
    assert (log.log_start_offset, log.log_end_offset) == (8, 10)
    assert next_sequence(producers) == 6
    assert repetitions(producers, range(2, 4)) == [8, 9]
    assert producers.check(sent(4)) is None


def test_a_crash_while_a_log_is_cut_forgets_no_publish() -> None:
    for step in range(200):
        disk = FaultyDisk(step)
        disk.make_dir("data")
        disk.make_dir(DIRECTORY)
        disk.sync_dir("data")
        log, producers = open_log(disk)
        append_publish(log, producers, range(6))
        append(log, producers, range(30))
        flush(log)
        trim(log, 8)
        job = log.begin_truncate(10)
        assert job is not None
        disk.die_after(step)
        try:
            job.run()
        except Death:
            disk.power_loss()
        else:
            assert step > 5, "it died at some steps"
            return
        log, producers = open_log(disk)
        assert log.log_end_offset in (10, 36)
        assert next_sequence(producers) == 6
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("clean", [True, False])
def test_trimmed_publishes_outlive_a_restart(clean: bool) -> None:
    disk = SimDisk(2)
    log, producers = open_log(disk)
    append_publish(log, producers, range(12))
    flush(log)
    trim(log, 12)
    if clean:
        log.close(clean=True)
        disk.kill()
    else:
        disk.crash()
    log, producers = open_log(disk, clean=clean)
    assert (log.log_start_offset, next_sequence(producers)) == (12, 12)


def test_a_copy_gets_publishes_with_its_rows_and_in_place_of_trimmed_ones() -> None:
    log, producers = open_log(SimDisk(3))
    append_publish(log, producers, range(6))
    append(log, producers, range(3))
    copy, states = open_log(SimDisk(4))
    job = copy.begin_skip(7, producers.snapshot_below(7), NOW)
    copy.complete_trim(job, job.run())
    assert next_sequence(states) == 6
    batch = make_batch(1, NOW.wall_us, 1, 7, (PUBLISH, CLUSTER, 6))
    header = batch[0]._replace(base_offset=7, leader_epoch=0)
    view = bytearray(batch[1])
    header.pack_into(view)
    copy.append_copied([(header, memoryview(view))], NOW)
    assert next_sequence(states) == 7
