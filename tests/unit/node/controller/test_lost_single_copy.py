"""A partition whose only copy lay on a disk that is gone, and what an operator can do about it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from quiverlog.batch.schema import serialize_schema
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.topic_image import PartitionImage
from quiverlog.wire import messages as m
from quiverlog.wire.election_messages import ElectLeadersRequest
from tests.support.members import Member, Members
from tests.support.node import SCHEMA

PARTITIONS = 6


class World:
    """Three brokers, a topic with one replica; the disk of broker 3 has been replaced."""

    def __init__(self, root: Path, configs: dict[str, str]) -> None:
        self.members = members = Members(root)
        members.add(1)
        for node_id in (2, 3):
            member = members.add(node_id, seeds=(1,))
            members.run_until(lambda member=member: member.started)  # type: ignore[misc]
        members.run_until(lambda: len(self.image.live_brokers()) == 3, 20_000)
        self.first.call(m.HelloRequest())
        new = m.NewTopic("t", serialize_schema(SCHEMA), PARTITIONS, 1, [], configs)
        asked = self.first.request(m.CreateTopicsRequest(topics=[new]))
        members.run_until(lambda: self.first.answer(asked) is not None)
        self.lost = [p.partition for p in self.partitions if p.replicas == (3,)]
        assert self.lost
        self.restart(lambda path: shutil.rmtree(path))

    @property
    def first(self) -> Member:
        return self.members.by_id[1]

    @property
    def third(self) -> Member:
        return self.members.by_id[3]

    @property
    def image(self) -> Image:
        return self.first.node.broker.metadata.image

    @property
    def partitions(self) -> list[PartitionImage]:
        return self.image.topics["t"].partitions

    def restart(self, change: Callable[[Path], None]) -> None:
        """Broker 3 is gone, its disk changes, and it is back."""
        self.third.stop()
        self.members.down.add(3)
        self.members.run_until(lambda: len(self.image.live_brokers()) == 2)
        change(Path(self.third.config.data_dir))
        self.members.down.discard(3)
        self.members.add(3, seeds=(1,))
        self.members.run_until(lambda: len(self.image.live_brokers()) == 3, 20_000)

    def leads(self, number: int) -> bool:
        replica = self.third.node.broker.replicas.get((self.image.topics["t"].topic_id, number))
        return replica is not None and replica.state.leads

    def give_up(self) -> None:
        asked = self.first.request(
            ElectLeadersRequest(name="t", partitions=self.lost, unclean=True)
        )
        self.members.run_until(lambda: self.first.answer(asked) is not None)


def test_rows_that_are_gone_for_good_are_given_up(tmp_path: Path) -> None:
    world = World(tmp_path, {})
    world.members.run(7_000)
    assert {world.partitions[n].leader_id for n in world.lost} == {-1}, "not an empty log"
    world.give_up()
    world.members.run_until(lambda: all(world.leads(n) for n in world.lost))
    assert {world.partitions[n].in_sync_replicas for n in world.lost} == {(3,)}


def test_they_are_given_up_as_soon_as_that_is_asked(tmp_path: Path) -> None:
    world = World(tmp_path, {})
    world.give_up()
    world.members.run_until(lambda: all(world.leads(n) for n in world.lost))


def test_a_topic_that_waits_for_no_replica_begins_again(tmp_path: Path) -> None:
    world = World(tmp_path, {"unclean.leader.election.enable": "true"})
    world.members.run_until(lambda: all(world.leads(n) for n in world.lost))


def test_a_directory_that_is_missing_on_the_same_disk_is_not_made_anew(tmp_path: Path) -> None:
    """An operator may bring it back; its rows count, so no empty log takes their place until they
    are given up. The same where its power failed before the directory was on the disk."""
    world = World(tmp_path, {})
    world.give_up()
    world.members.run_until(lambda: all(world.leads(n) for n in world.lost))
    number = world.lost[0]
    world.restart(lambda path: shutil.rmtree(path / "data" / f"t-{number}"))
    world.members.run(7_000)
    assert not world.leads(number)
    assert all(world.leads(n) for n in world.lost[1:])
    assert world.partitions[number].leader_id == -1, "and the metadata have it"
    world.lost = [number]
    world.give_up()
    world.members.run_until(lambda: world.leads(number))
