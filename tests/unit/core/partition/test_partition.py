"""Leader epochs, durability levels and the high watermark of one partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiverlog.core.partition.leadership import Leadership
from quiverlog.core.partition.levels import safe_offset
from quiverlog.core.partition.partition import Assigned, PartitionState
from quiverlog.core.partition.progress import FollowerReport
from quiverlog.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    UnknownLeaderEpoch,
    UnsupportedDurability,
)
from quiverlog.types import NO_EPOCH, Durability, TopicPartition


def state(
    durability: Durability = Durability.FLUSHED, *, end: int = 0, flushed: int = 0, epoch: int = 3
) -> PartitionState:
    partition = following(durability, end=end, flushed=flushed, epoch=epoch)
    partition.lead(Assigned(epoch, 0, (0,), (0,)), 0)
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
class AllFit:
    """Every broker is registered, with epoch 1."""

    def fit_epoch(self, broker_id: int) -> int | None:
        return 1


def leadership_of(partition: PartitionState) -> Leadership:
    assert partition.leadership is not None
    return partition.leadership


def leading(
    durability: Durability, in_sync: tuple[int, ...] = (0, 7, 9), *, end: int = 10, minimum: int = 2
) -> PartitionState:
    partition = following(durability, end=end, flushed=end)
    partition.lead(Assigned(4, 1, (0, 7, 9), in_sync, minimum), 0)
    return partition


def follower_at(
    partition: PartitionState, broker: int, end: int, *, flushed: int = 0, now_us: int = 0
) -> bool:
    report = FollowerReport(broker, 1, end, flushed, 0, saved_epoch=partition.leader_epoch)
    leadership_of(partition).fetched(report, None, partition.log_end_offset, AllFit(), now_us)
    return partition.followers_moved()


@pytest.mark.parametrize("durability", [level for level in Durability if level >= 0])
def test_rows_are_readable_up_to_the_end_that_the_slowest_in_sync_follower_reported(
    durability: Durability,
) -> None:
    """Rule 5, whatever the topic's level is."""
    partition = leading(durability)
    assert partition.high_watermark == 0, "they have reported nothing yet"
    assert not follower_at(partition, 7, 10)
    assert follower_at(partition, 9, 6)
    assert partition.high_watermark == 6
    assert not partition.is_current, "the leader before may have shown ten"
    assert partition.lead(Assigned(4, 2, (0, 7, 9), (0, 7), 2), 0), "the slow one is out of sync"
    assert partition.high_watermark == 10
    assert partition.is_current


def test_nothing_becomes_readable_while_too_few_are_in_sync() -> None:
    """Rule 6, also for rows that are acknowledged at a weaker level."""
    partition = leading(Durability.MEMORY)
    follower_at(partition, 7, 5)
    follower_at(partition, 9, 5)
    assert not partition.lead(Assigned(4, 2, (0, 7, 9), (0,), 2), 0)
    assert not partition.appended(20)
    assert partition.high_watermark == 5
    assert partition.required_level(Durability.TOPIC_DEFAULT) is Durability.MEMORY
    with pytest.raises(NotEnoughReplicas, match="1 of the 2 replicas"):
        partition.required_level(Durability.REPLICATED)
    follower_at(partition, 7, 20)
    assert partition.high_watermark == 5, "it has the rows, and is not in sync"
    assert partition.lead(Assigned(4, 3, (0, 7, 9), (0, 7), 2), 0)
    assert partition.high_watermark == 20
    assert partition.required_level(Durability.REPLICATED) is Durability.REPLICATED


def test_enough_disks_have_what_is_replicated_and_flushed() -> None:
    partition = leading(Durability.REPLICATED_FLUSHED)
    partition.appended(20)
    assert safe_offset(Durability.REPLICATED_FLUSHED, partition) == 0
    follower_at(partition, 7, 20, flushed=15)
    assert partition.replicas_flushed_offset == 10, "this broker's disk is the second"
    assert safe_offset(Durability.REPLICATED_FLUSHED, partition) == 0, "not in all logs"
    follower_at(partition, 9, 18, flushed=18)
    assert partition.high_watermark == 18
    assert safe_offset(Durability.REPLICATED_FLUSHED, partition) == 15
    partition.flushed(20)
    assert safe_offset(Durability.REPLICATED_FLUSHED, partition) == 18


def test_a_disk_counts_only_where_its_broker_is_in_sync_in_any_case() -> None:
    partition = leading(Durability.REPLICATED_FLUSHED)
    follower_at(partition, 7, 10, flushed=10)
    follower_at(partition, 9, 10, flushed=10)
    partition.lead(Assigned(4, 2, (0, 7, 9), (0, 7), 2), 0)
    partition.appended(20)
    follower_at(partition, 9, 20, flushed=20)
    proposal = leadership_of(partition).propose(20, partition.high_watermark, AllFit(), 0)
    assert proposal is not None
    assert proposal.members == (0, 7, 9)
    assert partition.replicas_flushed_offset == 10, "it is open whether 9 is in sync"


def test_a_new_leader_has_no_reports_that_the_old_one_got() -> None:
    partition = leading(Durability.REPLICATED)
    follower_at(partition, 7, 10)
    follower_at(partition, 9, 10)
    assert partition.high_watermark == 10
    partition.follow(5)
    partition.lead(Assigned(6, 2, (0, 7, 9), (0, 7, 9), 2), 0)
    partition.appended(20)
    follower_at(partition, 9, 20)
    assert partition.high_watermark == 10, "what was shown stays shown, and 7 has reported nothing"


def test_a_follower_shows_what_its_leader_shows() -> None:
    partition = following(Durability.MEMORY, end=10, flushed=10)
    assert partition.high_watermark == 0
    assert not partition.appended(20)
    assert not partition.flushed(20)
    assert not partition.set_durability(Durability.FLUSHED)
    assert partition.on_leader_high_watermark(15)
    assert partition.high_watermark == 15
    assert partition.on_leader_high_watermark(30)
    assert partition.high_watermark == 20, "as far as rows are here"
    assert not partition.on_leader_high_watermark(12)
    partition.truncated(18)
    assert (partition.log_end_offset, partition.flushed_offset) == (18, 18)
    assert partition.high_watermark == 18
    partition.skipped(100)
    assert partition.log_start_offset == partition.log_end_offset == partition.flushed_offset == 100


def test_one_replica_of_a_topic_that_asks_for_several_is_all_there_is() -> None:
    partition = following(Durability.REPLICATED, end=10, flushed=4)
    assert partition.lead(Assigned(4, 1, (0,), (0,), 1), 0)
    assert partition.high_watermark == 10
    assert partition.required_level(Durability.TOPIC_DEFAULT) is Durability.REPLICATED
    with pytest.raises(UnsupportedDurability, match="not replicated"):
        partition.required_level(Durability.REPLICATED_FLUSHED)
