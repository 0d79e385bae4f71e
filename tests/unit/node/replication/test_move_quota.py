"""Partitions that move are copied no faster than is set, copies that come back as ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from quiverlog.core.replication.follower import Phase
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


def test_the_rate_of_a_move_can_be_taken_away_on_the_way(tmp_path: Path) -> None:
    world = filled(tmp_path, 0)
    others = world.others()
    world.reassign(*others, bytes_per_s=1_000)
    world.members.run_until(lambda: bool(world.log_files(others[0])))
    (moved,) = world.reassign(*others).moves
    assert moved.move_bytes_per_s == 0
    assert world.partition.moves


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

    def rest(self, until_us: int) -> None:
        self.until_us = until_us


def test_copies_share_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    quota = MoveQuota(1, 1_000, lambda: pytest.fail("not asked"))
    rates = {(b"t", 0): 1_000, (b"t", 1): 1_000, (b"slow", 0): 100}
    monkeypatch.setattr(MoveQuota, "_rate", lambda _self, key: rates[key])
    one, two = Resting(), Resting()
    assert quota.taken((b"t", 0), one, 500, 1_000_000)  # type: ignore[arg-type]
    assert quota.taken((b"t", 1), two, 500, 1_000_000)  # type: ignore[arg-type]
    assert (one.until_us, two.until_us) == (1_500_000, 2_000_000)
    assert not quota.taken((b"t", 1), two, 0, 1_000_000)  # type: ignore[arg-type]
    assert quota.taken((b"t", 0), one, 500, 9_000_000)  # type: ignore[arg-type]
    assert one.until_us == 9_500_000, "what was not used is gone"
    assert quota.taken((b"slow", 0), two, 50, 9_000_000)  # type: ignore[arg-type]
    assert two.until_us == 10_000_000, "slow ones take the time that their own rate gives them"
