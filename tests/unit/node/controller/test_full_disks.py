"""A broker without room leads nothing that another one, with room, could lead (docs/adr/0055)."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.leaders import away_from, preferred_leader
from quiverlog.core.controller.records import (
    BrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from quiverlog.errors import DiskFull
from quiverlog.types import Durability
from quiverlog.wire.election_messages import ElectLeadersRequest
from tests.support.members import Member
from tests.support.node import batch_of
from tests.unit.node.replication.test_reassignment import World

ROOM = 1 << 40


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Rounds of preferred leaders are often."""
    return World(tmp_path, leader_balance_period_ms=500, disk_reserve_bytes=1 << 20)


def leading(world: World) -> Member:
    found = world.leader
    assert found is not None
    return found


@pytest.mark.parametrize("at_the_controller", [False, True])
def test_a_leader_without_room_hands_over_and_gets_its_lead_back(
    world: World, at_the_controller: bool
) -> None:
    """Also where the controller itself is the one, which sends itself no heartbeats."""
    members = world.members
    if at_the_controller:
        world.reassign(1, next(n for n in (2, 3, 4)))
        members.run_until(lambda: not world.partition.moves, 60_000)
        members.run_until(lambda: world.partition.leader_id == 1)
    elif world.partition.replicas[0] == 1:
        world.reassign(*reversed(world.partition.replicas))
        members.run_until(lambda: world.partition.leader_id != 1)
    world.write(1, 2)
    first = leading(world)
    first_id = first.config.node_id
    assert (first_id == 1) is at_the_controller
    first.disk_space(0)
    members.run_until(lambda: world.partition.leader_id != first_id, 1_000)
    members.run(3_000)
    assert world.partition.leader_id != first_id, "no round gives it back"
    asked = world.one.request(ElectLeadersRequest(name="t", unclean=False))
    members.run_until(lambda: world.one.answer(asked) is not None)
    assert world.partition.leader_id != first_id, "nor does a command"
    (line,) = [one for one in world.one.lines if one.event == "leaders moved from full disks"]
    assert line.fields == {"brokers": [first_id], "count": 1}
    first.disk_space(ROOM)
    members.run_until(lambda: world.partition.leader_id == first_id, 5_000)
    assert world.read() == [0, 1]
    world.write(3)
    assert world.read() == [0, 1, 2]


def test_where_no_replica_has_room_the_leader_stays_for_its_readers(world: World) -> None:
    world.write(1)
    leader = leading(world)
    epoch = world.partition.leader_epoch
    for node_id in world.partition.replicas:
        world.members.by_id[node_id].disk_space(0)
    world.members.run(5_000)
    assert leading(world) is leader or world.partition.leader_epoch <= epoch + 1
    settled = world.partition.leader_epoch
    world.members.run(10_000)
    assert world.partition.leader_epoch == settled, "the lead is not passed to and fro"
    assert world.read() == [0]
    leader = leading(world)
    asked = leader.produce(world.topic_id, batch_of([2]), durability=Durability.REPLICATED)
    world.members.run_until(lambda: leader.answer(asked) is not None)
    answer = leader.answer(asked)
    assert answer is not None
    assert answer[0].error_code == DiskFull.code


def test_a_full_broker_that_holds_its_heartbeats_back_sleeps_meanwhile(world: World) -> None:
    """Fenced at its start, with replicas that must be reported to the controller first."""
    members = world.members
    second = members.by_id[2]
    registration = second.node.broker.membership.registration
    held = [True]
    registration._holds_back = lambda: held[0]
    registration._is_fenced = True
    second.disk_space(0)
    assert second.node.broker.admission.disk_full
    registration._is_fenced = True
    registration.tick(second.now)
    due_us = registration.next_us()
    assert due_us is None or due_us > second.now.mono_us, "it would be called again at once"


def test_a_full_broker_that_is_gone_is_looked_for_no_more(world: World) -> None:
    members = world.members
    members.by_id[2].disk_space(0)
    registrar = world.one.node.broker.membership.registrar
    members.run_until(lambda: registrar.full_disks == {2})
    members.down.add(2)
    members.run_until(lambda: world.one.node.broker.metadata.image.brokers[2].fenced, 20_000)
    assert not registrar.full_disks


def image(in_sync: tuple[int, ...]) -> Image:
    found = Image({})
    found.replay_entry(
        [
            *(BrokerRecord(n, bytes(16), f"h{n}", 9292) for n in (1, 2, 3)),
            TopicRecord(b"t" * 16, "t", 0, 3),
            PartitionRecord(b"t" * 16, 0, (1, 2, 3), in_sync, 2, 7, 3),
        ]
    )
    return found


def heirs(records: list[Record]) -> list[int]:
    return [one.leader_id for one in records if isinstance(one, PartitionChangeRecord)]


def test_the_successor_is_in_sync_and_has_room() -> None:
    key = (b"t" * 16, 0)
    whole = image((1, 2, 3))
    assert heirs(away_from(whole, *key, {2})) == [1]
    assert heirs(away_from(whole, *key, {1, 2})) == [3]
    assert not away_from(whole, *key, {1, 2, 3})
    assert not away_from(whole, *key, {1, 3}), "the leader has room"
    assert not away_from(image((2,)), *key, {2}), "no other replica is in sync"
    assert preferred_leader(whole, *key)
    assert not preferred_leader(whole, *key, {1})
