"""A topic gets more or fewer replicas while it is written and read, over whole nodes (rule 18)."""

from __future__ import annotations

from pathlib import Path

from quiverlog.core.controller.eligible import logs_needed
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.errors import InvalidConfig, InvalidReplicaAssignment
from quiverlog.types import Durability
from quiverlog.wire import messages as m
from quiverlog.wire.reassignment_messages import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    PartitionTarget,
    ReassignPartitionsRequest,
)
from tests.unit.node.replication.test_reassignment import World


def topic_of(world: World, node_id: int = 1) -> TopicImage:
    return world.members.by_id[node_id].node.broker.metadata.image.topics_by_id[world.topic_id]


def change(world: World, *targets: tuple[int, ...], validate_only: bool = False) -> int:
    """The brokers that are to hold partitions 0, 1, ...; returns the code of the answer."""
    request = ReassignPartitionsRequest(
        name="t",
        partitions=[PartitionTarget(n, list(one)) for n, one in enumerate(targets)],
        changes_count=True,
        validate_only=validate_only,
    )
    return world.ask(request).error_code


def settled(world: World, count: int) -> bool:
    return all(
        not one.moves and len(one.in_sync_replicas) == count for one in topic_of(world).partitions
    )


def test_one_replica_becomes_three_and_one_again(tmp_path: Path) -> None:
    """Rule 18 of docs/replication-rules.md: no write is refused, the minimum rises last."""
    world = World(tmp_path, replicas=1)
    assert topic_of(world).config.durability is Durability.FLUSHED
    first = world.partition.leader_id
    world.write(1, 2, level=Durability.TOPIC_DEFAULT)
    assert change(world, (first, *[n for n in (1, 2, 3, 4) if n != first][:2])) == 0
    world.write(3, level=Durability.TOPIC_DEFAULT)
    world.members.run_until(lambda: settled(world, 3))
    for node_id in (1, 2, 3, 4):
        world.members.run_until(lambda: topic_of(world, node_id).replication_factor == 3)  # noqa: B023
    topic = topic_of(world)
    assert (topic.config.durability, topic.config.min_in_sync_replicas) == (
        Durability.REPLICATED,
        2,
    )
    assert topic.min_in_sync_least == 1, "rows may lie on one disk alone"
    world.write(4)
    assert len(world.read()) == 4
    heir = world.partition.replicas[1]
    assert change(world, (heir,)) == 0
    world.members.run_until(lambda: settled(world, 1))
    assert world.partition.replicas == (heir,)
    assert topic_of(world).replication_factor == 1
    world.write(5, level=Durability.TOPIC_DEFAULT)
    assert len(world.read()) == 5


def test_new_partitions_have_as_many_once_all_have(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    before = [one.replicas for one in topic_of(world).partitions]
    third = [next(n for n in (1, 2, 3, 4) if n not in held) for held in before]
    assert change(world, (*before[0], third[0])) == 0
    world.members.run_until(lambda: not world.partition.moves)
    assert topic_of(world).replication_factor == 2, "one of them has three, the other two"
    assert change(world, (*before[0], third[0]), (*before[1], third[1])) == 0
    world.members.run_until(lambda: settled(world, 3))
    assert topic_of(world).replication_factor == 3
    asked = world.one.request(m.AlterTopicRequest(name="t", partitions=3))
    world.members.run_until(lambda: world.one.answer(asked) is not None)
    assert len(topic_of(world).partitions[2].replicas) == 3


def test_rows_of_the_one_partition_that_has_fewer_count_as_on_so_many_disks(
    tmp_path: Path,
) -> None:
    """The topic's factor and its minimum are those of the others. With that minimum too few logs
    would be enough after a power failure, once the partition has more replicas again."""
    world = World(tmp_path, replicas=3, partitions=2)
    topic = topic_of(world)
    assert (topic.config.min_in_sync_replicas, topic.min_in_sync_least) == (2, 2)
    first, *others = world.partition.replicas
    assert change(world, (first,)) == 0
    world.members.run_until(lambda: world.partition.replicas == (first,))
    assert change(world, (first, *others)) == 0
    world.members.run_until(lambda: settled(world, 3))
    assert topic_of(world).replication_factor == 3
    assert logs_needed(topic_of(world), world.partition) == 3


def test_both_partitions_that_arrive_in_one_request_count(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    kept = [one.replicas[:1] for one in topic_of(world).partitions]
    assert change(world, *kept) == 0
    world.members.run_until(lambda: settled(world, 1))
    assert topic_of(world).replication_factor == 1


def test_a_move_that_is_given_up_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.partition.replicas
    change(world, (*before, *world.others()))
    change(world, before)
    world.members.run_until(lambda: not world.partition.moves)
    assert world.partition.replicas == before
    assert topic_of(world).replication_factor == 2


def test_what_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, configs={"durability": "replicated"})
    assert change(world, world.partition.replicas[:1]) == InvalidConfig.code, "of one replica"
    three = (*world.partition.replicas, world.others()[0])
    request = ReassignPartitionsRequest(name="t", partitions=[PartitionTarget(0, list(three))])
    answer = world.ask(request)
    assert answer.error_code == InvalidReplicaAssignment.code, "not asked for"
    assert change(world, three, validate_only=True) == 0
    assert not world.partition.moves, "only looked at"
    assert change(world, three) == 0


def test_which_partitions_of_any_topic_move_and_what_they_weigh(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(1, 2, 3)
    assert world.ask(ReassignPartitionsRequest()).topics == []
    others = world.others()
    world.reassign(*others, bytes_per_s=1)
    (topic,) = world.ask(ReassignPartitionsRequest()).topics
    (move,) = topic.moves
    assert (topic.name, sorted(move.adding_replicas)) == ("t", sorted(others))
    assert move.move_bytes_per_s == 1
    assert world.ask(ReassignPartitionsRequest(first_name="u")).topics == []
    leader = world.leader
    assert leader is not None
    world.members.run_until(lambda: bool(world.log_files(others[0])))
    for member in (leader, world.members.by_id[others[0]]):
        asked = member.request(DescribeReplicasRequest(names=["t", "gone"]))
        world.members.run_until(lambda: member.answer(asked) is not None)  # noqa: B023
        answer = member.answer(asked)
        assert answer is not None
        assert isinstance(answer[0], DescribeReplicasResponse)
        (held,) = answer[0].topics
        (replica,) = held.replicas
        files = world.log_files(member.config.node_id)
        if member is leader:
            assert replica.log_end_offset == 3
            assert replica.size_bytes >= sum(map(len, files.values())) > 0
        else:
            assert replica.log_end_offset in (-1, 0, 3)
