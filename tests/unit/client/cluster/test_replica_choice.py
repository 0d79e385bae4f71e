"""Which replica a reader asks: the leader, or a follower that is nearer and can be trusted."""

from __future__ import annotations

import pytest

from quiverlog.addresses import Address
from quiverlog.client.base.results import ClusterMetadata, PartitionInfo
from quiverlog.client.cluster.replica_choice import (
    CHECK_S,
    LEADER,
    REST_S_MAX,
    REST_S_MIN,
    ReplicaChoice,
    check_fetch_from,
)
from quiverlog.errors import InvalidArgument

RACKS = {1: "a", 2: "b", 3: "c", 4: "b"}


def metadata(brokers: tuple[int, ...] = (1, 2, 3, 4)) -> ClusterMetadata:
    addresses = {node_id: Address(f"node-{node_id}", 1) for node_id in brokers}
    return ClusterMetadata("c", 1, 1, addresses, RACKS, {})


def partition(
    *, number: int = 0, leader: int = 1, in_sync: tuple[int, ...] = (1, 2, 3)
) -> PartitionInfo:
    return PartitionInfo(number, leader, 5, (1, 2, 3, 4), in_sync)


@pytest.mark.parametrize(
    ("fetch_from", "rack", "leader", "in_sync", "chosen"),
    [
        ("leader", "b", 1, (1, 2, 3), LEADER),
        ("nearest", "b", 1, (1, 2, 3), 2),
        ("nearest", "c", 1, (1, 2, 3), 3),
        ("nearest", "a", 1, (1, 2, 3), LEADER),  # It is the leader that is near.
        ("nearest", "d", 1, (1, 2, 3), LEADER),
        ("nearest", "b", 1, (1, 3), LEADER),  # Who is near is not in sync.
        ("nearest", "b", 2, (2, 3, 4), LEADER),  # Another one is near, too: not worth it.
        ("follower", "", 1, (1, 2, 3), 2),
        ("follower", "c", 1, (1, 2, 3), 3),
        ("follower", "a", 1, (1, 3), 3),
        ("follower", "c", 1, (1,), LEADER),
        ("follower", "c", -1, (2, 3), LEADER),  # Copies without a leader are not shown.
    ],
)
def test_which_replica_is_asked(
    fetch_from: str, rack: str, leader: int, in_sync: tuple[int, ...], chosen: int
) -> None:
    """Rule 17 of docs/replication-rules.md."""
    choice = ReplicaChoice(fetch_from, rack)  # type: ignore[arg-type]
    asked = choice.choose(0, partition(leader=leader, in_sync=in_sync), metadata(), 0.0)
    assert asked == chosen


def test_readers_spread_over_those_that_are_as_good() -> None:
    found = {
        ReplicaChoice("follower", "", spread).choose(0, partition(), metadata(), 0.0)
        for spread in range(4)
    }
    assert found == {2, 3}


def test_a_broker_without_an_address_is_not_asked() -> None:
    choice = ReplicaChoice("nearest", "b")
    assert choice.choose(0, partition(), metadata((1, 3)), 0.0) == LEADER


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'closest' is none of"):
        check_fetch_from("closest", "a")
    with pytest.raises(InvalidArgument, match="client_rack"):
        check_fetch_from("nearest", "")


class Reader:
    """Reads one partition as `nearest`, at a clock of its own."""

    def __init__(self) -> None:
        self.choice = ReplicaChoice("nearest", "b")
        self.now_s = 100.0
        self.offset = 0

    def ask(self) -> int:
        node_id = self.choice.choose(0, partition(), metadata(), self.now_s)
        self.choice.asked(0, node_id, self.now_s)
        return node_id

    def follower(self, rows: int = 0, *, high_watermark: int | None = None) -> None:
        assert self.ask() == 2
        before, self.offset = self.offset, self.offset + rows
        self.choice.follower_answered(
            0, 2, offset=before, next_offset=self.offset, now_s=self.now_s,
            high_watermark=self.offset if high_watermark is None else high_watermark,
        )  # fmt: skip

    def leader(self, rows: int = 0) -> None:
        assert self.ask() == LEADER
        self.offset += rows
        self.choice.leader_answered(0, brought=rows > 0, now_s=self.now_s)

    def rest_s(self) -> float:
        """For how long the leader is asked from now on; the clock moves on to there."""
        began_s = self.now_s
        while self.ask() == LEADER:
            self.choice.leader_answered(0, brought=False, now_s=self.now_s)
            self.now_s += 0.5
        return self.now_s - began_s


def test_a_follower_that_fails_rests_longer_each_time() -> None:
    reader = Reader()
    rests = []
    for _ in range(8):
        assert reader.ask() == 2
        reader.choice.failed(0, 2, reader.now_s)
        rests.append(reader.rest_s())
    assert rests == [2, 4, 8, 16, 32, 60, 60, 60]
    assert (REST_S_MIN, REST_S_MAX) == (2, 60)
    reader.follower(3)
    reader.choice.failed(0, 2, reader.now_s)
    assert reader.rest_s() == REST_S_MIN, "rows have ended the count"


def test_other_partitions_do_not_rest() -> None:
    reader = Reader()
    assert reader.ask() == 2
    reader.choice.failed(0, 2, reader.now_s)
    assert reader.choice.choose(1, partition(number=1), metadata(), reader.now_s) == 2


def test_a_follower_that_is_silent_is_compared_with_the_leader() -> None:
    """One that answers for ever without rows cannot hold a reader up."""
    reader = Reader()
    reader.follower(5)
    reader.now_s += CHECK_S
    reader.leader(0)
    while reader.now_s < 100 + 2 * CHECK_S:
        reader.follower(0)
        reader.now_s += 0.5
    reader.leader(7)
    assert reader.rest_s() == REST_S_MIN


def test_a_follower_with_all_rows_stays_trusted() -> None:
    reader = Reader()
    for _ in range(100):
        reader.follower(1)
        reader.now_s += CHECK_S / 2
        reader.follower(0)
        reader.now_s += CHECK_S / 2
        reader.leader(1)  # It came this very moment.
    reader.follower(1)


def test_a_reader_that_catches_up_is_left_alone() -> None:
    """The follower shows more than was read: the leader would send no other rows."""
    reader = Reader()
    for _ in range(100):
        reader.follower(10, high_watermark=10_000)
        reader.now_s += CHECK_S


def test_a_follower_behind_what_was_read_elsewhere_rests() -> None:
    """Such a follower lags for longer than a long poll takes."""
    reader = Reader()
    reader.follower(10)
    reader.now_s += CHECK_S
    reader.leader(1_000)
    reader.follower(0, high_watermark=20)
    assert reader.rest_s() == REST_S_MIN
    reader.follower(0, high_watermark=2_000)


def test_a_failure_is_counted_once() -> None:
    """The leader has rows that the follower could not bring: its error shows this."""
    reader = Reader()
    assert reader.ask() == 2
    reader.choice.failed(0, 2, reader.now_s)
    reader.leader(10)
    assert reader.rest_s() == REST_S_MIN
