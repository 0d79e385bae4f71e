"""An epoch without rows in a log's list proves that the log has all rows with which its leader
began.

docs/adr/0067.
"""

from __future__ import annotations

import pytest

from quiverlog.batch.header import BatchHeader
from quiverlog.core.partition.agreement import Agreement
from quiverlog.core.partition.in_sync import InSync
from quiverlog.core.partition.leadership import Leadership
from quiverlog.core.partition.partition import Assigned, PartitionState
from quiverlog.core.partition.progress import FollowerReport
from quiverlog.storage.log.log import Log, LogConfig
from quiverlog.types import NO_EPOCH, Durability, Now, TopicPartition
from tests.model.test_log_model import make_batch
from tests.sim.disk import SimDisk
from tests.support.logs import flush, trim, truncate

from .test_leadership import BROKERS, LAG_US, fetched, proposed

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
    assert log.saved_epoch == 0
    flush(log)
    assert (log.saved_epoch, log.is_tail_bare) == (4, True)
    assert not log.agreed(4, 3), "it is there"
    (disk.crash if ends_by == "power" else disk.kill)()
    assert open_log(disk).epochs.entries() == [(0, 0), (4, 3)]


def test_rows_that_are_given_up_take_no_epoch_from_the_disk(disk: SimDisk) -> None:
    """A follower that reported so was not in sync again until a row came (98001038)."""
    log = log_with(disk, 3)
    log.epochs.assign(2, 3)
    log.append([make_batch(1, NOW.wall_us, 1, 4)], 2, NOW)
    flush(log)
    assert log.agreed(4, 4)
    flush(log)
    trim(log, 3)
    assert log.epochs.entries() == [(2, 3), (4, 4)]
    assert (log.saved_epoch, log.agreed(4, 4)) == (4, False)
    disk.crash()
    assert open_log(disk).epochs.newest == 4


def test_an_epoch_whose_rows_are_lost_is_out_of_the_list_after_the_start(disk: SimDisk) -> None:
    """An epoch in the list proves that rows are there."""
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
    (view,) = log.reader.read(2, bytes_max=1, end_offset=3)
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
    state.on_leader_high_watermark(readable)
    state.lead(Assigned(4, 1, replicas, replicas, 1), 0, is_tail_bare=bare)
    assert state.leadership is not None
    return state.leadership.agreement.is_needed


def test_a_leader_whose_rows_are_all_readable_needs_no_agreement() -> None:
    assert not led(10, readable=10)
    assert not led(0, readable=0, bare=True), "there are no rows"
    assert led(10, readable=9)
    assert led(10, readable=10, bare=True), "they are so by an epoch without rows"
    assert not led(10, readable=9, replicas=(0,)), "there is no other log"


def test_a_follower_detects_that_rows_given_up_had_been_readable() -> None:
    state = PartitionState(
        TopicPartition("t", 0),
        leader_epoch=3,
        durability=Durability.MEMORY,
        log_end_offset=10,
        flushed_offset=0,
    )
    state.trimmed(7)
    assert (state.log_start_offset, state.high_watermark) == (7, 7)


# --- rows of earlier leaders --------------------------------------------------------------------
def new_leader(*, is_epoch_saved: bool = True, in_sync: tuple[int, ...] = (0, 1, 2)) -> Leadership:
    """A leader whose log ends at 100, without proof of what is replicated."""
    return Leadership(
        0,
        5,
        Agreement(5, 100, is_needed=True, is_epoch_saved=is_epoch_saved),
        (0, 1, 2),
        InSync(5, 1, in_sync),
        min_in_sync=2,
        lag_max_us=LAG_US,
        now_us=0,
    )


def agrees(leader: Leadership, broker: int, at: int, saved_epoch: int, end: int = 100) -> None:
    report = FollowerReport(broker, 10 + broker, at, 0, 0, saved_epoch)
    leader.fetched(report, None, end, BROKERS, 0)


def test_rows_of_earlier_leaders_wait_until_all_that_count_have_the_epoch() -> None:
    """Rule 5: with the rows alone another log might seem longer. (ADR 0067.)"""
    leader = new_leader()
    agrees(leader, 1, 100, 5)
    agrees(leader, 2, 100, 4)
    assert leader.replicated_offset(100) == 0
    agrees(leader, 2, 100, NO_EPOCH)
    assert leader.replicated_offset(100) == 0, "its list is not on the disk"
    agrees(leader, 2, 100, 5)
    assert leader.replicated_offset(100) == 100


def test_less_than_all_rows_of_earlier_leaders_is_nothing() -> None:
    leader = new_leader()
    agrees(leader, 1, 100, 5)
    agrees(leader, 2, 99, 4)
    assert leader.replicated_offset(100) == 0


def test_a_row_of_the_new_epoch_proves_as_much_as_the_list() -> None:
    leader = new_leader(is_epoch_saved=False)
    agrees(leader, 1, 101, NO_EPOCH, 103)
    agrees(leader, 2, 100, NO_EPOCH, 103)
    assert leader.replicated_offset(103) == 0
    agrees(leader, 2, 102, NO_EPOCH, 103)
    assert leader.replicated_offset(103) == 101


def test_the_leader_has_to_have_its_own_epoch_on_the_disk() -> None:
    leader = new_leader(is_epoch_saved=False)
    agrees(leader, 1, 100, 5)
    agrees(leader, 2, 100, 5)
    assert leader.replicated_offset(100) == 0
    leader.agreement.is_epoch_saved = True
    assert leader.replicated_offset(100) == 100


def test_a_follower_that_joins_has_the_epoch_too() -> None:
    """Rule 8: a replica that counts later holds the rows of earlier leaders, too."""
    leader = new_leader(in_sync=(0, 1))
    agrees(leader, 1, 100, 5)
    agrees(leader, 2, 100, 4)
    assert proposed(leader, 100, 0, high_watermark=100) is None
    agrees(leader, 2, 100, 5)
    assert proposed(leader, 100, 0, high_watermark=100) == {0, 1, 2}


def test_a_follower_that_has_saved_no_epoch_does_not_count() -> None:
    leader = new_leader()
    for broker in (1, 2):
        fetched(leader, broker, 100, 100, 0)
    assert leader.replicated_offset(100) == 0
