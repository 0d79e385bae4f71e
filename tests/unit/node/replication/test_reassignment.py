"""A partition moves from brokers to others, over whole nodes and the real bytes (KIP-455)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.errors import (
    InvalidReplicaAssignment,
    InvalidRequest,
    NotController,
    PolicyViolation,
    UnknownPartition,
    UnknownTopic,
)
from quiverlog.storage.segment.segment_files import SEGMENT_HEADER_BYTES
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from quiverlog.wire.reassignment_messages import (
    PartitionTarget,
    ReassignPartitionsRequest,
    ReassignPartitionsResponse,
)
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, batch_of, rows_of

IDS = (1, 2, 3, 4)


class World:
    """Broker 1 is the controller; `t` has two replicas of its one partition."""

    def __init__(
        self,
        root: Path,
        *,
        partitions: int = 1,
        replicas: int = 2,
        configs: dict[str, str] | None = None,
        **config: Any,
    ) -> None:
        self.root = root
        self.members = members = Members(root)
        self.one = members.add(1, **config)
        for node_id in IDS[1:]:
            members.add(node_id, seeds=(1,), **config)
        members.run_until(lambda: len(self.one.node.broker.metadata.image.live_brokers()) == 4)
        for member in members.by_id.values():
            member.call(m.HelloRequest())
        new = m.NewTopic("t", serialize_schema(SCHEMA), partitions, replicas)
        new.configs = configs or {}
        asked = self.one.request(m.CreateTopicsRequest(topics=[new]))
        members.run_until(lambda: self.one.answer(asked) is not None)
        answer = self.one.answer(asked)
        assert answer is not None
        assert answer[0].topics[0].error_code == 0
        self.topic_id = bytes(answer[0].topics[0].topic_id)
        members.run_until(lambda: self.leader is not None)

    @property
    def partition(self) -> PartitionImage:
        """As in the controller's metadata."""
        return self.one.node.broker.metadata.image.topics_by_id[self.topic_id].partitions[0]

    @property
    def leader(self) -> Member | None:
        """The broker that leads, once it has its metadata."""
        member = self.members.by_id.get(self.partition.leader_id)
        if member is None or (self.topic_id, 0) not in member.node.broker.replicas:
            return None
        return member

    def write(self, *values: int, level: Durability = Durability.REPLICATED) -> None:
        for value in values:
            leader = self.leader
            assert leader is not None
            asked = leader.produce(self.topic_id, batch_of([value]), durability=level)
            self.members.run_until(lambda: leader.answer(asked) is not None)  # noqa: B023
            answer = leader.answer(asked)
            assert answer is not None
            assert answer[0].partitions[0].error_code == 0

    def read(self) -> list[int]:
        """Offsets of what the leader shows."""
        self.members.run_until(lambda: self.leader is not None)
        leader = self.leader
        assert leader is not None
        return [offset for offset, _ in rows_of(leader.fetched(self.topic_id, 0)[1])]

    def reassign(
        self, *brokers: int, partition: int = 0, by: int = 1, **more: Any
    ) -> ReassignPartitionsResponse:
        targets = [PartitionTarget(partition, list(brokers))]
        if "bytes_per_s" in more:
            more["move_bytes_per_s"] = more.pop("bytes_per_s")
        return self.ask(ReassignPartitionsRequest(name="t", partitions=targets, **more), by)

    def ask(self, request: ReassignPartitionsRequest, by: int = 1) -> ReassignPartitionsResponse:
        member = self.members.by_id[by]
        asked = member.request(request)
        self.members.run_until(lambda: member.answer(asked) is not None)
        answer = member.answer(asked)
        assert answer is not None
        assert isinstance(answer[0], ReassignPartitionsResponse)
        return answer[0]

    def log_files(self, node_id: int) -> dict[str, bytes]:
        """The batches of each file; the header of a file has times and marks of its own."""
        files = sorted((self.root / f"node-{node_id}").rglob("t-0/*.log"))
        return {one.name: one.read_bytes()[SEGMENT_HEADER_BYTES:] for one in files}

    def others(self) -> tuple[int, ...]:
        return tuple(n for n in IDS if n not in self.partition.replicas)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_partition_moves_with_all_rows_and_is_removed_where_it_was(world: World) -> None:
    """Rule 18 of docs/replication-rules.md."""
    before, target = world.partition.replicas, world.others()
    world.write(*range(20))
    leader = world.leader
    assert leader is not None
    stored = world.log_files(leader.config.node_id)
    assert all(stored.values()), "there are bytes to compare"
    assert stored
    (found,) = world.reassign(*target).moves
    assert (found.replicas, found.adding_replicas) == ([*target, *before], [*target])
    assert found.removing_replicas == [*before]
    world.members.run_until(lambda: not world.partition.moves, 60_000)
    assert world.partition.replicas == target
    assert set(world.partition.in_sync_replicas) == set(target)
    assert world.partition.leader_id == target[0]
    assert world.read() == [*range(20)]
    for node_id in target:
        assert world.log_files(node_id) == stored
    world.members.run_until(lambda: not any(world.log_files(node_id) for node_id in before))
    world.write(20, 21)
    assert world.read() == [*range(22)]


def test_the_leader_stays_where_it_holds_the_partition_still(world: World) -> None:
    leader, other = world.partition.replicas
    epoch = world.partition.leader_epoch
    world.reassign(world.others()[0], leader)
    world.members.run_until(lambda: not world.partition.moves, 60_000)
    assert other not in world.partition.replicas
    # One replica is added, which begins a leader epoch; no other leads in between.
    assert (world.partition.leader_id, world.partition.leader_epoch) == (leader, epoch + 1)


def test_a_broker_that_gets_a_partition_misses_no_directory(world: World) -> None:
    """Also the controller itself, whose own decisions find their directories made."""
    for _ in range(3):
        world.reassign(*world.others())
        world.members.run_until(lambda: not world.partition.moves, 60_000)
    lines = [line.event for member in world.members.by_id.values() for line in member.lines]
    assert "partitions reassigned" in lines
    assert "partition offline" not in lines


def test_a_move_that_cannot_end_is_given_up(world: World) -> None:
    before, target = world.partition.replicas, world.others()
    dead = target[1]
    world.write(1)
    world.reassign(*target)
    world.members.down.add(dead)
    world.members.run_until(lambda: target[0] in world.partition.in_sync_replicas)
    world.members.run(15_000)
    assert world.partition.moves, "one of those that are added has no rows"
    assert world.ask(ReassignPartitionsRequest(name="t")).moves[0].partition == 0
    (found,) = world.reassign().moves
    assert (found.adding_replicas, set(found.removing_replicas)) == ([], set(target))
    world.members.run_until(lambda: not world.partition.moves, 60_000)
    assert world.partition.replicas == before
    assert set(world.partition.in_sync_replicas) == set(before)
    assert world.ask(ReassignPartitionsRequest(name="t")).moves == []
    world.members.run_until(lambda: not world.log_files(target[0]))
    world.write(2)
    assert world.read() == [0, 1]
    assert world.reassign().moves[0].replicas == [*before], "once more changes nothing"


def test_a_move_that_is_given_up_keeps_disks_that_have_counted(world: World) -> None:
    """Rows may lie on the leader's disk and on that of a new replica, and on no third one."""
    before, target = world.partition.replicas, world.others()
    leader = world.leader
    assert leader is not None
    other = next(n for n in before if n != leader.config.node_id)
    slow = world.members.by_id[other]
    slow.flush = lambda *_args, **_options: None  # type: ignore[method-assign]
    world.members.down.add(target[1])
    world.reassign(*target)
    world.members.run_until(lambda: target[0] in world.partition.in_sync_replicas, 60_000)
    world.write(1, 2, 3, level=Durability.REPLICATED_FLUSHED)
    world.reassign()
    world.members.run(5_000)
    assert target[0] in world.partition.replicas, "one of two disks with the rows"
    assert world.reassign().moves[0].removing_replicas, "once more changes nothing"
    world.reassign(before[1], before[0])
    world.members.run(5_000)
    assert target[0] in world.partition.replicas, "nor by another target"
    del slow.flush
    world.members.run_until(lambda: not world.partition.moves, 60_000)
    assert world.partition.replicas == (before[1], before[0])
    assert world.read() == [0, 1, 2]


def test_another_target_keeps_replicas_that_are_in_both(world: World) -> None:
    before, (three, four) = world.partition.replicas, world.others()
    world.write(1)
    world.members.down.add(four)
    world.reassign(three, four)
    world.members.run_until(lambda: three in world.partition.in_sync_replicas)
    world.reassign(three, before[1])
    world.members.run_until(lambda: not world.partition.moves, 60_000)
    assert world.partition.replicas == (three, before[1])
    assert world.read() == [0]


def test_a_move_ends_when_those_that_stay_have_flushed_what_was_promised(world: World) -> None:
    """Else a power failure takes rows of `replicated_flushed` whose disks have let go of them."""
    before, target = world.partition.replicas, world.others()
    world.write(1, 2, 3, level=Durability.REPLICATED_FLUSHED)
    slow = world.members.by_id[target[0]]
    held: list[object] = []
    slow.flush = lambda *_args, **_options: held.append(None)  # type: ignore[method-assign]
    world.reassign(*target)
    world.members.run_until(lambda: set(target) <= set(world.partition.in_sync_replicas), 60_000)
    world.members.run(40_000)
    assert world.partition.moves
    assert held, "a flush was asked for"
    del slow.flush
    world.members.run_until(lambda: not world.partition.moves, 60_000)
    assert world.partition.replicas == target
    assert not set(before) & set(world.partition.in_sync_replicas)


def test_what_is_refused(world: World) -> None:
    held, (three, four) = world.partition.replicas, world.others()
    world.members.down.add(four)
    world.members.run_until(lambda: world.one.node.broker.metadata.image.brokers[four].fenced)
    for brokers in ((three,), (three, three), (three, four), (three, 9), (1, 2, 3)):
        found = world.reassign(*brokers)
        assert found.error_code == InvalidReplicaAssignment.code, brokers
    assert world.reassign(*held, partition=1).error_code == UnknownPartition.code
    assert world.reassign(*held, partition=-1).error_code == UnknownPartition.code
    refused = world.reassign(*held, by=three)
    assert refused.error_code == NotController.code
    assert refused.controller == m.BrokerEndpoint(1, "host-1", 9292, "")
    twice = [PartitionTarget(0, [*held])] * 2
    assert (
        world.ask(ReassignPartitionsRequest(name="t", partitions=twice)).error_code
        == InvalidRequest.code
    )
    assert world.ask(ReassignPartitionsRequest(name="u")).error_code == UnknownTopic.code
    assert world.reassign(*held).error_code == 0, "where it is"
    assert not world.partition.moves
    for node_id in held:
        if node_id != 1:
            world.members.down.add(node_id)
    if 1 not in held:
        world.members.run_until(lambda: world.partition.leader_id == -1)
        assert world.reassign(three, 1).error_code == PolicyViolation.code
