"""What a target's leader remembers of publishes, rule by rule."""

from __future__ import annotations

import msgpack
import pytest

from quiverlog.batch.header import MAGIC, BatchHeader
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.core.partition.publishes import Publishes, Stored
from quiverlog.errors import InvalidRequest, OutOfOrderSequence, UnknownProducerId
from quiverlog.limits import PUBLISH_RUNS_REMEMBERED, PUBLISH_STATES_MAX
from quiverlog.types import PublishId

OWN, OTHER = 5, 6
"""Numbers of clusters."""


def publish_id(counter: int, *, staged: int = 0, leader_epoch: int = 0) -> int:
    return PublishId(staged, leader_epoch, counter).pack()


def batch(
    pid: int, sequence: int, rows: int = 10, *, cluster: int = OWN, offset: int = 0
) -> BatchHeader:
    return BatchHeader(offset, 0, 0, 0, MAGIC, 0, cluster, pid, sequence, rows, 1, 0, 0, 0)


def piece(pid: int, first: int, last: int, *, cluster: int = OWN) -> list[BatchHeader]:
    """Batches `first` to `last` of a publish in batches of ten rows."""
    return [batch(pid, 10 * number, cluster=cluster) for number in range(first, last + 1)]


def append(states: ProducerStates, headers: list[BatchHeader], offset: int) -> int:
    for header in headers:
        states.record(header, offset, 0)
        offset += header.row_count
    return offset


# --- ids ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("parts", "packed"),
    [
        ((0, 0, 0), 0x4000_0000_0000_0000),
        ((0, 0, 2**32 - 1), 0x4000_0000_FFFF_FFFF),
        ((0, 1, 0), 0x4000_0001_0000_0000),
        ((0, 2**20 - 1, 0), 0x400F_FFFF_0000_0000),
        ((1, 0, 0), 0x4010_0000_0000_0000),
        ((1023, 2**20 - 1, 2**32 - 1), 2**63 - 1),
        ((3, 7, 9), 0x4030_0007_0000_0009),
    ],
)
def test_a_publish_id_is_made_of_three_numbers(parts: tuple[int, int, int], packed: int) -> None:
    assert PublishId(*parts).pack() == packed
    assert PublishId.unpack(packed) == parts


@pytest.mark.parametrize(
    "parts", [(1024, 0, 0), (0, 2**20, 0), (0, 0, 2**32), (-1, 0, 0), (0, -1, 0), (0, 0, -1)]
)
def test_numbers_that_do_not_fit_a_publish_id_are_a_bug(parts: tuple[int, int, int]) -> None:
    with pytest.raises(AssertionError):
        PublishId(*parts).pack()


def test_a_later_leader_makes_larger_ids() -> None:
    assert publish_id(0, leader_epoch=4) > publish_id(2**32 - 1, leader_epoch=3)


# --- what a FORWARD brings ------------------------------------------------------------------------
def test_a_new_publish_is_new_from_its_first_batch_on() -> None:
    assert Publishes(OWN).stored(piece(publish_id(1), 0, 3)) == Stored(0, 0)


def test_of_the_same_publish_what_is_stored_is_skipped() -> None:
    states = ProducerStates(0)
    append(states, piece(publish_id(1), 0, 2), 100)
    stored = states.publishes.stored
    assert stored(piece(publish_id(1), 0, 2)) == Stored(3, 130)
    assert stored(piece(publish_id(1), 1, 1)) == Stored(1, 130)
    assert stored(piece(publish_id(1), 1, 4)) == Stored(2, 130)
    assert stored(piece(publish_id(1), 3, 5)) == Stored(0, 0)


def test_an_older_publish_is_stored_already() -> None:
    states = ProducerStates(0)
    append(states, piece(publish_id(2), 0, 0), 100)
    assert states.publishes.stored(piece(publish_id(1), 0, 6)) == Stored(7, 110)
    older = publish_id(2**32 - 1, leader_epoch=0)
    append(states, piece(publish_id(0, leader_epoch=1), 0, 1), 110)
    assert states.publishes.stored(piece(older, 4, 4)) == Stored(1, 130)


def test_a_newer_publish_begins_at_0() -> None:
    states = ProducerStates(0)
    append(states, piece(publish_id(1), 0, 2), 100)
    assert states.publishes.stored(piece(publish_id(2), 0, 0)) == Stored(0, 0)
    with pytest.raises(OutOfOrderSequence, match="30 after 0; 0 is the next") as failure:
        states.publishes.stored(piece(publish_id(2), 3, 4))
    assert failure.value.details == {"next_sequence": 0}


@pytest.mark.parametrize(
    "headers",
    [
        piece(publish_id(1), 4, 5),
        [*piece(publish_id(1), 1, 3), *piece(publish_id(1), 5, 5)],
        [*piece(publish_id(1), 3, 3), *piece(publish_id(1), 2, 2)],
        [*piece(publish_id(1), 3, 3), *piece(publish_id(1), 3, 3)],
        [batch(publish_id(1), 29)],
        [batch(publish_id(1), 25)],
        [batch(publish_id(1), 31)],
    ],
    ids=["gap", "gap inside", "back", "twice", "1 below", "across", "1 above"],
)
def test_numbers_that_do_not_follow_are_refused_with_the_next_one(
    headers: list[BatchHeader],
) -> None:
    states = ProducerStates(0)
    append(states, piece(publish_id(1), 0, 2), 100)
    with pytest.raises(OutOfOrderSequence) as failure:
        states.publishes.stored(headers)
    assert failure.value.details == {"next_sequence": 30}


def test_staging_partitions_and_clusters_do_not_see_each_other() -> None:
    states = ProducerStates(0)
    append(states, piece(publish_id(9, staged=1), 0, 2), 0)
    stored = states.publishes.stored
    assert stored(piece(publish_id(1, staged=2), 0, 0)) == Stored(0, 0)
    assert stored(piece(publish_id(1, staged=1), 0, 0, cluster=OTHER)) == Stored(0, 0)
    assert stored(piece(publish_id(1, staged=1), 0, 0)) == Stored(1, 30)


@pytest.mark.parametrize(
    "headers",
    [
        [batch(2**62 - 1, 0)],
        [batch(7, 0)],
        [batch(-1, 0)],
        [batch(publish_id(1), 0, cluster=-1)],
        [batch(publish_id(1), -1)],
        [batch(publish_id(1), 0), batch(publish_id(2), 10)],
        [batch(publish_id(1), 0), batch(publish_id(1, staged=1), 10)],
        [batch(publish_id(1), 0), batch(publish_id(1), 10, cluster=OTHER)],
        [batch(publish_id(1), 0), batch(2**62 - 1, 10)],
        [batch(publish_id(1), 2**31 - 10)],
    ],
)
def test_what_is_no_publish_is_refused(headers: list[BatchHeader]) -> None:
    with pytest.raises(InvalidRequest):
        Publishes(OWN).stored(headers)


def test_a_publish_has_two_billion_rows_at_most() -> None:
    states = ProducerStates(0)
    states.record(batch(publish_id(1), 0, 2**31 - 31), 0, 0)
    assert states.publishes.stored([batch(publish_id(1), 2**31 - 31, 30)]) == Stored(0, 0)
    with pytest.raises(InvalidRequest):
        states.publishes.stored([batch(publish_id(1), 2**31 - 31, 31)])


# --- recording ------------------------------------------------------------------------------------
def test_staged_batches_count_before_they_are_appended() -> None:
    states = ProducerStates(0)
    blank = states.snapshot()
    for number, header in enumerate(piece(publish_id(1), 0, 2)):
        states.admit(header, 10 * number, 0)
    assert states.publishes.stored(piece(publish_id(1), 0, 3)) == Stored(3, 30)
    assert states.snapshot() == blank, "a snapshot is never ahead of the log"
    states.drop_admitted()
    assert states.publishes.stored(piece(publish_id(1), 0, 3)) == Stored(0, 0)
    states.admit(batch(publish_id(1), 0), 0, 0)
    states.commit_admitted()
    assert states.publishes.stored(piece(publish_id(1), 0, 3)) == Stored(1, 10)


def test_publishes_are_no_producers() -> None:
    states = ProducerStates(0, producers_max=1, expiry_us=100)
    append(states, piece(publish_id(1), 0, 0), 0)
    states.record(batch(7, 0, cluster=0), 10, 0)
    states.record(batch(8, 0, cluster=0), 20, 0)
    assert len(states) == 1, "no publish has taken the room of a producer"
    assert states.expire(10**18) == 1
    assert states.publishes.stored(piece(publish_id(1), 0, 0)) == Stored(1, 10)
    with pytest.raises(UnknownProducerId):
        states.check(batch(8, 10, cluster=0))


def test_of_other_clusters_the_longest_silent_makes_room() -> None:
    states = ProducerStates(0, own_cluster=OWN)
    own = [publish_id(1, staged=staged) for staged in range(3)]
    for pid in own:
        append(states, piece(pid, 0, 0), 0)
    others = [publish_id(1, staged=staged) for staged in range(PUBLISH_STATES_MAX - 3)]
    for pid in others:
        append(states, piece(pid, 0, 0, cluster=OTHER), 0)
    append(states, piece(others[0], 1, 1, cluster=OTHER), 10)
    assert len(states.publishes.table) == PUBLISH_STATES_MAX
    assert (OTHER, 1) in states.publishes.table
    append(states, piece(publish_id(1), 0, 0, cluster=7), 20)
    assert len(states.publishes.table) == PUBLISH_STATES_MAX
    assert (OTHER, 1) not in states.publishes.table
    assert {(OWN, 0), (OWN, 1), (OWN, 2), (OTHER, 0), (7, 0)} <= set(states.publishes.table)
    again = states.blank()
    again.restore(states.snapshot())
    assert again.snapshot() == states.snapshot()
    assert again.publishes.own_cluster == OWN


def test_own_publishes_may_take_all_room() -> None:
    states = ProducerStates(0, own_cluster=OWN)
    for staged in range(PUBLISH_STATES_MAX):
        append(states, piece(publish_id(1, staged=staged), 0, 0), 0)
        append(states, piece(publish_id(1), 0, 0, cluster=OTHER), 0)
    assert {cluster for cluster, _ in states.publishes.table} == {OWN}
    assert len(states.publishes.table) == PUBLISH_STATES_MAX


# --- as storage asks ------------------------------------------------------------------------------
def test_a_batch_of_the_log_is_remembered_or_may_follow() -> None:
    states = ProducerStates(0)
    assert states.check(batch(publish_id(2), 0)) is None
    with pytest.raises(UnknownProducerId):
        states.check(batch(publish_id(2), 10))
    append(states, piece(publish_id(2), 0, 2), 100)
    append(states, piece(publish_id(2), 3, 3), 200)
    assert [states.check(one) for one in piece(publish_id(2), 0, 4)] == [100, 110, 120, 200, None]
    assert states.newest_offset == 200
    assert states.check(batch(publish_id(3), 0)) is None
    for behind_lost_rows in (batch(publish_id(3), 10), batch(publish_id(2), 50)):
        assert states.check(behind_lost_rows) is None
    for other in (batch(publish_id(1), 0), batch(publish_id(1), 50)):
        with pytest.raises(OutOfOrderSequence):
            states.check(other)


def test_the_newest_batch_may_be_a_producers_or_a_publishs() -> None:
    states = ProducerStates(0)
    assert states.newest_offset == -1
    states.record(batch(7, 0, cluster=0), 40, 0)
    assert states.newest_offset == 40
    append(states, piece(publish_id(1), 0, 0), 50)
    assert states.newest_offset == 50
    states.record(batch(7, 10, cluster=0), 60, 0)
    assert states.newest_offset == 60


# --- snapshots ------------------------------------------------------------------------------------
GOLDEN = bytes.fromhex(
    "9201"  # Version 1, then the entries:
    "93"
    "94" "07" "00" "0a" "91" "93000a1e"  # a producer,
    "94" "cf4030000700000008" "05" "14" "92" "93000a00" "930a0a28"  # two publishes of one
    "94" "cf4030000700000009" "05" "1e" "91" "93001e32"  # staging partition.
)  # fmt: skip


def test_a_snapshot_holds_publishes_behind_the_producers_in_the_same_form() -> None:
    states = ProducerStates(0, own_cluster=OWN)
    first, second = (publish_id(n, staged=3, leader_epoch=7) for n in (8, 9))
    append(states, piece(first, 0, 0), 0)
    states.record(batch(7, 0, cluster=0), 30, 0)
    append(states, piece(first, 1, 1), 40)
    append(states, piece(second, 0, 2), 50)
    assert states.snapshot() == GOLDEN
    assert msgpack.unpackb(GOLDEN) == [
        1,
        [
            [7, 0, 10, [[0, 10, 30]]],
            [first, OWN, 20, [[0, 10, 0], [10, 10, 40]]],
            [second, OWN, 30, [[0, 30, 50]]],
        ],
    ]
    again = states.blank()
    again.restore(GOLDEN)
    assert again.snapshot() == GOLDEN
    assert again.publishes.stored(piece(second, 1, 4)) == Stored(2, 80)
    assert again.publishes.stored(piece(first, 0, 0)) == Stored(1, 80)
    again.restore(b"")
    assert again.publishes.stored(piece(second, 0, 0)) == Stored(0, 0)


@pytest.mark.parametrize("count", [4, 5, 6])
def test_five_runs_are_remembered(count: int) -> None:
    states = ProducerStates(0)
    for number in range(count):
        append(states, piece(publish_id(number), 0, 0), 20 * number)
    assert len(states.publishes.table[OWN, 0]) == min(count, PUBLISH_RUNS_REMEMBERED)
    again = ProducerStates(0)
    again.restore(states.snapshot_below(10))
    known = [(publish_id(0), OWN, 10)] if count <= PUBLISH_RUNS_REMEMBERED else []
    assert [entry[:3] for entry in msgpack.unpackb(again.snapshot())[1]] == [list(k) for k in known]


def test_a_copy_that_begins_inside_a_batch_gets_its_rows_with_the_batch() -> None:
    states = ProducerStates(0)
    headers = piece(publish_id(1), 0, 3)
    append(states, headers, 100)
    for offset in range(100, 141):
        copy = ProducerStates(0)
        copy.restore(states.snapshot_below(offset))
        if offset > 110:
            assert copy.check(headers[(offset - 100) // 10 - 1]) is not None
        for header, at in zip(headers, range(100, 140, 10), strict=True):
            if at + 10 > offset:
                if at <= offset:
                    assert copy.check(header) is None, "it follows"
                copy.record(header, at, 0)
        assert copy.publishes.table[OWN, 0][-1].end_offset == 140
        assert copy.publishes.stored(piece(publish_id(1), 3, 4)) == Stored(1, 140)
