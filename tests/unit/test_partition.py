"""Leader epochs, durability levels and the high watermark of one partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.core.partition.partition import PartitionState, replicated
from quiverlog.errors import FencedLeaderEpoch, UnknownLeaderEpoch, UnsupportedDurability
from quiverlog.types import NO_EPOCH, Durability, TopicPartition


def state(
    durability: Durability = Durability.FLUSHED, *, end: int = 0, flushed: int = 0, epoch: int = 3
) -> PartitionState:
    partition = following(durability, end=end, flushed=flushed, epoch=epoch)
    partition.lead(epoch)
    return partition


def following(
    durability: Durability = Durability.FLUSHED, *, end: int = 0, flushed: int = 0, epoch: int = 3
) -> PartitionState:
    return PartitionState(
        TopicPartition("t", 0),
        leader_epoch=epoch,
        durability=durability,
        log_end_offset=end,
        flushed_offset=flushed,
    )


def test_flushed_topic_shows_what_is_on_the_disk() -> None:
    partition = state(end=10, flushed=4)
    assert partition.high_watermark == 4
    assert not partition.appended(20)
    assert partition.flushed(10)
    assert not partition.flushed(10)
    assert partition.high_watermark == 10


def test_memory_topic_shows_all() -> None:
    partition = state(Durability.MEMORY, end=10, flushed=4)
    assert partition.high_watermark == 10
    assert partition.appended(20)
    assert partition.high_watermark == 20
    assert not partition.flushed(20)


def test_what_was_shown_stays_shown_when_the_topic_becomes_safer() -> None:
    partition = state(Durability.MEMORY, end=10, flushed=4)
    assert not partition.set_durability(Durability.FLUSHED)
    assert partition.high_watermark == 10
    assert not partition.appended(20)
    assert partition.flushed(20)
    partition.appended(30)
    assert partition.set_durability(Durability.MEMORY)
    assert partition.high_watermark == 30


def test_leader_epochs() -> None:
    partition = state(epoch=3)
    partition.check_leader_epoch(3)
    partition.check_leader_epoch(NO_EPOCH)
    with pytest.raises(FencedLeaderEpoch, match="epoch 2, this is 3"):
        partition.check_leader_epoch(2)
    with pytest.raises(UnknownLeaderEpoch):
        partition.check_leader_epoch(4)


@pytest.mark.parametrize(
    ("topic", "asked", "expected"),
    [
        (Durability.FLUSHED, Durability.TOPIC_DEFAULT, Durability.FLUSHED),
        (Durability.FLUSHED, Durability.FLUSHED, Durability.FLUSHED),
        (Durability.FLUSHED, Durability.MEMORY, None),
        (Durability.FLUSHED, Durability.REPLICATED, None),
        (Durability.MEMORY, Durability.TOPIC_DEFAULT, Durability.MEMORY),
        (Durability.MEMORY, Durability.FLUSHED, Durability.FLUSHED),
        (Durability.MEMORY, Durability.REPLICATED, None),
        (Durability.FLUSHED, 17, None),
    ],
)
def test_a_request_may_ask_for_more_never_for_less(
    topic: Durability, asked: int, expected: Durability | None
) -> None:
    if expected is None:
        with pytest.raises(UnsupportedDurability):
            state(topic).required_level(asked)
    else:
        assert state(topic).required_level(asked) is expected


@given(st.lists(st.tuples(st.sampled_from(["append", "flush", "level"]), st.integers(0, 5))))
def test_high_watermark_never_falls_nor_passes_the_end(steps: list[tuple[str, int]]) -> None:
    partition = state()
    for what, amount in steps:
        before = partition.high_watermark
        if what == "append":
            moved = partition.appended(partition.log_end_offset + amount)
        elif what == "flush":
            moved = partition.flushed(
                min(partition.flushed_offset + amount, partition.log_end_offset)
            )
        else:
            moved = partition.set_durability(Durability(amount % 2))
        assert moved == (partition.high_watermark > before)
        assert before <= partition.high_watermark <= partition.log_end_offset
        if partition.durability == Durability.FLUSHED and moved:
            assert partition.high_watermark <= partition.flushed_offset


# --- several replicas ---------------------------------------------------------------------------
def test_rows_are_replicated_as_far_as_the_slowest_in_sync_follower_has_said() -> None:
    assert replicated(10, ()) == 10, "a single replica has all"
    assert replicated(10, (7, 9)) == 7
    partition = following(Durability.REPLICATED, end=10, flushed=10)
    assert not partition.lead(4, (7, 9)), "they have said nothing yet"
    assert partition.replicated_offset == 0
    assert not partition.follower_at(7, 10)
    assert partition.follower_at(9, 6)
    assert partition.high_watermark == partition.replicated_offset == 6
    assert not partition.follower_at(5, 10), "it is not in sync"
    assert partition.lead(4, (7,)), "the slow one has left the in-sync replicas"
    assert partition.high_watermark == 10


def test_a_new_leader_does_not_know_what_was_said_to_the_old_one() -> None:
    partition = following(Durability.REPLICATED, end=10, flushed=10)
    partition.lead(4, (7,))
    partition.follower_at(7, 10)
    partition.follow(5)
    partition.lead(6, (7,))
    assert partition.replicated_offset == 0
    assert partition.high_watermark == 10, "what was shown stays shown"


def test_a_follower_shows_what_its_leader_shows() -> None:
    partition = following(Durability.MEMORY, end=10, flushed=10)
    assert partition.high_watermark == 0
    assert not partition.appended(20)
    assert not partition.flushed(20)
    assert not partition.set_durability(Durability.FLUSHED)
    assert partition.leader_said(15)
    assert partition.high_watermark == 15
    assert partition.leader_said(30)
    assert partition.high_watermark == 20, "as far as rows are here"
    assert not partition.leader_said(12)
