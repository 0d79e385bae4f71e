"""Partitions that move are copied no faster than is set, copies that come back as ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from quiverlog.core.replication.follower import Phase
from quiverlog.core.replication.peer_fetcher import Key
from quiverlog.limits import REPLICA_FETCH_WAIT_MS
from quiverlog.node.replication.move_quota import MoveQuota
from quiverlog.wire.config_messages import AlterConfigsRequest, ConfigChange
from tests.support.node import batch_of
from tests.unit.node.replication.test_reassignment import World

ROWS, BATCHES = 50_000, 5
RATE = 1_000_000
"""The rows of all batches take 2 s."""


def filled(root: Path, bytes_per_s: int) -> World:
    world = World(root, move_bytes_per_s=bytes_per_s)
    fill(world)
    return world


def fill(world: World) -> None:
    world.members.run_until(lambda: world.leader is not None)
    leader = world.leader
    assert leader is not None
    for _ in range(BATCHES):
        asked = leader.produce(world.topic_id, batch_of(range(ROWS)))
        world.members.run_until(lambda: leader.answer(asked) is not None)  # noqa: B023


def moved_in_ms(world: World) -> int:
    assert world.reassign(*world.others()).moves
    return world.members.run_until(lambda: not world.partition.moves, 30_000)


def test_a_move_takes_as_long_as_its_bytes_do(tmp_path: Path) -> None:
    """Rule 18 of docs/replication-rules.md."""
    world = filled(tmp_path, RATE)
    size = sum(map(len, world.log_files(world.partition.leader_id).values()))
    assert size > BATCHES * ROWS * 8
    took_ms = moved_in_ms(world)
    assert size * 1000 // RATE <= took_ms <= size * 1500 // RATE + 2_000
    assert len(world.read()) == BATCHES


@pytest.mark.parametrize("of_the_broker", [0, RATE * 10, RATE // 2])
def test_a_move_has_a_rate_of_its_own(tmp_path: Path, of_the_broker: int) -> None:
    """The lower one holds; the move's own ends with the move."""
    world = filled(tmp_path, of_the_broker)
    size = sum(map(len, world.log_files(world.partition.leader_id).values()))
    rate = min(RATE, of_the_broker or RATE)
    (moved,) = world.reassign(*world.others(), bytes_per_s=RATE).moves
    assert moved.move_bytes_per_s == RATE
    assert world.partition.move_bytes_per_s == RATE
    took_ms = world.members.run_until(lambda: not world.partition.moves, 30_000)
    assert size * 1000 // rate <= took_ms <= size * 1500 // rate + 2_000
    assert world.partition.move_bytes_per_s == 0


def begin_too_slowly(world: World, target: tuple[int, ...], rate: int = 1_000) -> None:
    """Each copy rests for long after its first rows."""
    assert world.reassign(*target, bytes_per_s=rate).moves
    world.members.run_until(lambda: all(world.log_files(one) for one in target))
    world.members.run(2_000)
    assert world.partition.adding_replicas == target


@pytest.mark.parametrize("rate", [0, RATE])
def test_another_rate_of_a_move_holds_at_once(tmp_path: Path, rate: int) -> None:
    world = filled(tmp_path, 0)
    target = world.others()
    begin_too_slowly(world, target)
    (moved,) = world.reassign(*target, bytes_per_s=rate).moves
    assert moved.move_bytes_per_s == rate
    world.members.run_until(lambda: not world.partition.moves, 10_000)
    assert world.partition.replicas == target


@pytest.mark.parametrize(("slow", "rate"), [(1_000, RATE), (RATE // 5, RATE // 5)])
def test_a_cancelled_move_holds_up_no_later_one(tmp_path: Path, slow: int, rate: int) -> None:
    world = filled(tmp_path, 0)
    before, target = world.partition.replicas, world.others()
    size = sum(map(len, world.log_files(world.partition.leader_id).values()))
    begin_too_slowly(world, target, slow)
    world.reassign(*before)
    world.members.run_until(lambda: not world.partition.moves)
    world.reassign(*target, bytes_per_s=rate)
    took_ms = world.members.run_until(lambda: not world.partition.moves, 60_000)
    assert size * 1000 // rate <= took_ms <= size * 1000 // rate + 3_000
    assert world.partition.replicas == target


def test_without_a_rate_a_move_takes_no_longer_than_copying(tmp_path: Path) -> None:
    """What the move waits for is reported at once: the added disk's flush, for one."""
    assert moved_in_ms(filled(tmp_path, 0)) < REPLICA_FETCH_WAIT_MS


def test_a_copy_that_comes_back_does_not_rest(tmp_path: Path) -> None:
    world = World(tmp_path, move_bytes_per_s=RATE)
    world.reassign(2, 3)
    world.members.run_until(lambda: not world.partition.moves and world.partition.leader_id > 1)
    (follower,) = {2, 3} - {world.partition.leader_id}
    world.members.down.add(follower)
    world.members.run_until(lambda: follower not in world.partition.in_sync_replicas)
    fill(world)
    world.members.down.clear()
    back_ms = world.members.run_until(lambda: follower in world.partition.in_sync_replicas)
    assert back_ms < 1_500


def test_a_rate_that_was_too_low_is_lifted_while_copies_rest(tmp_path: Path) -> None:
    world = filled(tmp_path, 1)
    assert world.reassign(*world.others()).moves
    world.members.run(2_000)
    assert world.partition.moves, "at a byte a second it takes days"
    change = ConfigChange("partition.move.bytes.per.second", "0")
    # It is set nowhere else: the value for all is what each was made with, and then 0.
    for value in ("1", "0"):
        request = AlterConfigsRequest(changes=[replace(change, value=value)])
        asked = world.one.request(request)
        world.members.run_until(lambda: world.one.answer(asked) is not None)  # noqa: B023
    assert world.members.run_until(lambda: not world.partition.moves, 30_000) < 2_000


class Resting:
    """As much of a follower as is asked."""

    def __init__(self) -> None:
        self.phase = Phase.FETCHING
        self.until_us = 0

    @property
    def may_fetch(self) -> bool:
        return self.phase is Phase.FETCHING

    @property
    def rests(self) -> bool:
        return bool(self.until_us)

    def rest(self, until_us: int) -> None:
        self.until_us = until_us

    def rest_ends(self, now_us: int) -> None:
        self.until_us = min(self.until_us, now_us)


ONE, TWO, SLOW = (b"t", 0), (b"t", 1), (b"slow", 0)


class Quota:
    """A quota of moves whose rates are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rates = {ONE: 1_000, TWO: 1_000, SLOW: 1}
        monkeypatch.setattr(MoveQuota, "_rate", lambda _self, key: self.rates[key])
        self.quota = MoveQuota(1, 1_000, lambda: pytest.fail("not asked"))  # type: ignore[arg-type]
        self.followers = {key: Resting() for key in self.rates}

    def rests_until(self, key: Key, byte_count: int, now_us: int) -> int:
        follower = self.followers[key]
        assert self.quota.taken(key, follower, byte_count, now_us)  # type: ignore[arg-type]
        return follower.until_us

    def changed(self, key: Key, rate: int, now_us: int) -> int:
        self.rates[key] = rate
        self.quota.changed(key, self.followers[key], now_us)  # type: ignore[arg-type]
        return self.followers[key].until_us


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> Quota:
    return Quota(monkeypatch)


def test_copies_share_the_rate(quota: Quota) -> None:
    assert quota.rests_until(ONE, 500, 1_000_000) == 1_500_000
    assert quota.rests_until(TWO, 500, 1_000_000) == 2_000_000
    assert not quota.quota.taken(TWO, quota.followers[TWO], 0, 1_000_000)  # type: ignore[arg-type]
    assert quota.rests_until(ONE, 500, 9_000_000) == 9_500_000, "what was not used is gone"


def test_a_slow_move_takes_from_faster_ones_only_the_time_of_its_bytes(quota: Quota) -> None:
    assert quota.rests_until(ONE, 500, 1_000_000) == 1_500_000
    assert quota.rests_until(SLOW, 100, 1_000_000) == 101_000_000, "not after those of a fast one"
    assert quota.rests_until(TWO, 500, 1_000_000) == 2_100_000, "as the fastest, together"
    assert quota.rests_until(SLOW, 1, 50_000_000) == 102_000_000


def test_bytes_count_while_a_move_has_their_rate(quota: Quota) -> None:
    quota.rests_until(ONE, 500, 1_000_000)
    quota.rests_until(TWO, 500, 1_000_000)
    assert quota.changed(TWO, 1_000, 1_100_000) == 2_000_000, "a decision about something else"
    assert quota.changed(TWO, 0, 1_100_000) == 1_100_000
    assert quota.rests_until(ONE, 500, 1_100_000) == 2_500_000, "they were copied at this rate"
    quota.quota.forget(ONE)
    assert quota.rests_until(ONE, 500, 1_200_000) == 1_700_000
