"""The work of a restart grows with the partitions, and not with their square.

Brokers that hold thousands would be away for longer than their session, and be fenced for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.records import PartitionChangeRecord, Record
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.limits import REPLICA_LAG_MS_MAX
from quiverlog.node.assignment.assignment import Assignment
from quiverlog.wire import messages as m
from tests.support.members import Member, Members
from tests.support.node import SCHEMA, batch_of
from tests.unit.node.replication.test_in_sync import Cluster, Slow

FEW, MANY = 8, 32


def cluster(root: Path, partitions: int) -> Members:
    """Three nodes; a topic of `partitions` partitions with a row in each copy."""
    root.mkdir(parents=True)
    members = Members(root)
    # A round of retention, or of elections, looks at everything once, slowly.
    usual: dict[str, Any] = {"retention_check_ms": 10**9, "leader_balance_period_ms": 10**9}
    first = members.add(1, **usual)
    for node_id in (2, 3):
        members.add(node_id, seeds=(1,), **usual)
        members.run_until(lambda: all(one.started for one in members.up))
    members.run(1_500)
    first.call(m.HelloRequest())
    new = m.NewTopic("t", serialize_schema(SCHEMA), partitions, replication_factor=3)
    first.call(m.CreateTopicsRequest(topics=[new]))
    members.run(1_000)
    for one in members.up:
        one.call(m.HelloRequest())
        for (topic_id, partition), _ in list(one.node.broker.replicas.items()):
            one.produce(topic_id, bytes(batch_of([1])), partition=partition)
    members.run(1_000)
    assert is_whole(members, partitions)
    return members


def is_whole(members: Members, partitions: int) -> bool:
    """Every copy of every partition is in sync, in the first node's metadata."""
    topic = members.by_id[1].node.broker.metadata.image.topics["t"]
    in_sync = [len(one.in_sync_replicas) for one in topic.partitions]
    return in_sync == [3] * partitions


def restart(members: Members, member: Member, partitions: int) -> None:
    """In order; until all its copies are in sync again."""
    member.stop()
    members.down.add(member.config.node_id)
    members.run(500)
    members.down.remove(member.config.node_id)
    member.start()
    members.run_until(lambda: is_whole(members, partitions))


def looks_of_restarts(root: Path, partitions: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """How often a partition's metadata are compared with what is here, for each, while one broker
    after the other restarts, each of which has led without a row."""
    members = cluster(root, partitions)
    looks = 0
    look = Assignment._reconcile_partition

    def counted(*args: Any) -> None:
        nonlocal looks
        looks += 1
        look(*args)

    monkeypatch.setattr(Assignment, "_reconcile_partition", counted)
    for _ in range(2):
        for member in members.by_id.values():
            restart(members, member, partitions)
    monkeypatch.undo()
    cuts = [line for one in members.up for line in one.lines if line.event == "copy cut"]
    assert len(cuts) >= partitions, "a leader without a row is truncated"
    return looks / partitions


def test_a_restart_looks_as_often_at_each_of_many_partitions_as_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = looks_of_restarts(tmp_path / "few", FEW, monkeypatch)
    many = looks_of_restarts(tmp_path / "many", MANY, monkeypatch)
    assert many <= 1.2 * few


def test_a_change_of_a_partition_costs_no_look_at_the_others_of_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = cluster(tmp_path / "one", FEW)
    looked: list[int] = []
    look = Assignment._reconcile_partition

    def noted(assignment: Assignment, topic: TopicImage, one: PartitionImage, *more: Any) -> None:
        looked.append(one.partition)
        look(assignment, topic, one, *more)

    monkeypatch.setattr(Assignment, "_reconcile_partition", noted)
    image = members.by_id[1].node.broker.metadata.image
    changed = image.topics["t"].partitions[3]
    changes = [PartitionChangeRecord(image.topics["t"].topic_id, 3, in_sync_replicas=(1, 2, 3))]
    (controller,) = members.leaders
    controller.node.broker.metadata.propose(list[Record](changes), controller.now, lambda *_: None)
    before = changed.partition_epoch
    members.run(500)
    assert image.topics["t"].partitions[3].partition_epoch == before + 1, "it was decided"
    assert looked == [3, 3, 3]


def test_hundreds_of_copies_that_are_back_come_into_sync_with_one_decision(tmp_path: Path) -> None:
    count = 300
    led = Cluster(tmp_path, partitions=count)
    slow = Slow(led)
    led.node.advance(REPLICA_LAG_MS_MAX + 1)  # No follower has fetched.
    (asked,) = (request for request, _ in slow.asked)
    assert len(asked.partitions) == count
