"""An epoch without rows in a log's list says that all rows with which its leader began are there.

docs/adr/0067.
"""

from __future__ import annotations

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.core.partition.partition import Assigned, PartitionState
from quiverlog.storage.log import Log, LogConfig
from quiverlog.types import NO_EPOCH, Durability, Now, TopicPartition
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, truncate

NOW = Now(0, 1_000_000_000_000_000)
DIRECTORY = "data/t-0"
BOTH = (0, 1)


def open_log(disk: SimDisk) -> Log:
    return Log.open(disk, DIRECTORY, config=LogConfig(), clean=False, now=NOW)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(seed=1)
    disk.make_dir("data")
    disk.make_dir(DIRECTORY)
    disk.sync_dir("data")
    return disk


def log_with(disk: SimDisk, rows: int, epoch: int = 0) -> Log:
    log = open_log(disk)
    for number in range(rows):
        log.append([make_batch(1, NOW.wall_us, 1, number + 1)], epoch, NOW)
    return log


# --- the log ------------------------------------------------------------------------------------
@pytest.mark.parametrize("ends_by", ["kill", "power"])
def test_an_epoch_that_was_agreed_upon_outlives_the_process_and_the_machine(
    disk: SimDisk, ends_by: str
) -> None:
    log = log_with(disk, 3)
    flush(log)
    assert log.agreed(4, 3), "the list is to be brought to the disk"
    assert log.saved_epoch == NO_EPOCH
    flush(log)
    assert (log.saved_epoch, log.is_tail_bare) == (4, True)
    assert not log.agreed(4, 3), "it is there"
    (disk.crash if ends_by == "power" else disk.kill)()
    assert open_log(disk).epochs.entries() == [(0, 0), (4, 3)]


def test_an_epoch_whose_rows_are_lost_is_out_of_the_list_after_the_start(disk: SimDisk) -> None:
    """It says of rows that they are there."""
    log = log_with(disk, 3)
    flush(log)
    log.agreed(4, 3)
    flush(log)
    assert truncate(log, 2) == 2
    assert log.epochs.entries() == [(0, 0)]
    assert not log.agreed(5, 3), "the log does not reach to where that leader began"
    disk.crash()
    assert open_log(disk).epochs.entries() == [(0, 0)]


def test_a_log_agrees_where_it_ends_and_nowhere_else(disk: SimDisk) -> None:
    log = log_with(disk, 3)
    for start_offset in (0, 2, 4):
        assert not log.agreed(4, start_offset)
    assert log.epochs.entries() == [(0, 0)]
    assert log.agreed(4, 3)


def test_an_empty_log_has_nothing_to_agree_upon(disk: SimDisk) -> None:
    log = log_with(disk, 0)
    assert not log.agreed(4, 0)
    assert not log.is_tail_bare
    assert log.epochs.entries() == []


def test_rows_follow_an_epoch_without_rows(disk: SimDisk) -> None:
    log = log_with(disk, 2)
    log.agreed(4, 2)
    log.append([make_batch(1, NOW.wall_us, 1, 9)], 4, NOW)
    assert log.epochs.entries() == [(0, 0), (4, 2)]
    assert not log.is_tail_bare
    (view,) = log.read(2, bytes_max=1, end_offset=3)
    assert BatchHeader.unpack(view).leader_epoch == 4


# --- when a leader needs it ---------------------------------------------------------------------
def led(end: int, *, readable: int, replicas: tuple[int, ...] = BOTH, bare: bool = False) -> bool:
    """Whether a new leader whose log ends there needs its rows to be agreed upon."""
    state = PartitionState(
        TopicPartition("t", 0),
        leader_epoch=3,
        durability=Durability.MEMORY,
        log_end_offset=end,
        flushed_offset=0,
    )
    state.leader_said(readable)
    state.lead(Assigned(4, 1, replicas, replicas, 1), 0, is_tail_bare=bare)
    assert state.leadership is not None
    return state.leadership.needs_agreement


def test_a_leader_whose_rows_are_all_readable_needs_no_agreement() -> None:
    assert not led(10, readable=10)
    assert not led(0, readable=0, bare=True), "there are no rows"
    assert led(10, readable=9)
    assert led(10, readable=10, bare=True), "they are so by an epoch without rows"


def test_a_follower_knows_that_what_was_given_up_had_been_readable() -> None:
    state = PartitionState(
        TopicPartition("t", 0),
        leader_epoch=3,
        durability=Durability.MEMORY,
        log_end_offset=10,
        flushed_offset=0,
    )
    state.trimmed(7)
    assert (state.log_start_offset, state.high_watermark) == (7, 7)
