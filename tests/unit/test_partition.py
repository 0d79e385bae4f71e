"""Leader epochs, durability levels and the high watermark of one partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.core.partition.partition import PartitionState
from quiverlog.errors import FencedLeaderEpoch, UnknownLeaderEpoch, UnsupportedDurability
from quiverlog.types import NO_EPOCH, Durability, TopicPartition


def state(
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
