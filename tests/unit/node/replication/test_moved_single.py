"""A topic of one replica moves: the next leader has every row that was acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiverlog.errors import NotEnoughReplicasAfterAppend
from quiverlog.node.runtime.effects import SendToPeer
from quiverlog.types import Durability
from tests.support.members import Member
from tests.support.node import batch_of

from .test_reassignment import IDS, World

BEFORE = 3
LEVELS = [Durability.MEMORY, Durability.FLUSHED]


class Moving(World):
    """Rows lie on broker 2 alone, and are to lie on `targets`."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, partitions=2, replicas=1, configs={"durability": level.label})
        if self.partition.replicas != (2,):
            self.reassign(2)
            self.members.run_until(lambda: not self.partition.moves, 60_000)
        self.old = self.members.by_id[2]
        self.level = level
        self.write(*range(BEFORE), level=level)

    def cut_off(self) -> None:
        """Broker 2 gets no messages."""
        self.members.cut |= {frozenset((2, other)) for other in IDS if other != 2}

    def send(self) -> int:
        return self.old.produce(self.topic_id, batch_of([BEFORE]), durability=self.level)

    def code(self, asked: int) -> int | None:
        """The answer's code; None as long as there is none."""
        answer = self.old.answer(asked)
        return None if answer is None else int(answer[0].partitions[0].error_code)


def leads(world: Moving) -> bool:
    replica = world.old.node.broker.replicas.get((world.topic_id, 0))
    return replica is not None and replica.state.leads


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.label)
def test_a_former_leader_without_the_new_metadata_acknowledges_nothing(
    tmp_path: Path, level: Durability
) -> None:
    """The moment between the decision and its news: rows taken then would lie where no reader
    looks."""
    world = Moving(tmp_path, level)
    world.reassign(3)
    members, deliver = world.members, world.members._deliver

    def until_decided(source: Member, effect: SendToPeer) -> None:
        deliver(source, effect)
        if world.partition.leader_id == 3:
            world.cut_off()

    members._deliver = until_decided  # type: ignore[method-assign]
    members.run_until(lambda: bool(members.cut), 60_000)
    assert leads(world), "as it believes"
    asked = world.send()
    members.run(500)
    assert world.code(asked) is None
    members._deliver = deliver  # type: ignore[method-assign]
    members.cut.clear()
    members.run_until(lambda: world.code(asked) is not None, 60_000)
    assert world.code(asked) == NotEnoughReplicasAfterAppend.code
    members.run_until(lambda: not world.partition.moves, 60_000)
    assert world.read() == list(range(BEFORE))


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.label)
def test_one_that_has_more_copies_than_its_topic_asks_for_waits_for_them(
    tmp_path: Path, level: Durability
) -> None:
    """The topic's number of replicas follows when the last of its partitions has got them."""
    world = Moving(tmp_path, level)
    world.reassign(2, 3, changes_count=True)
    world.members.run_until(lambda: set(world.partition.in_sync_replicas) == {2, 3}, 60_000)
    assert world.one.node.broker.metadata.image.topics["t"].replication_factor == 1
    world.members.run(1_000)
    world.members.cut.add(frozenset((2, 3)))
    asked = world.send()
    world.members.run(500)
    assert world.code(asked) is None
    world.members.cut.clear()
    world.members.run_until(lambda: world.code(asked) is not None, 60_000)
    assert world.code(asked) == 0
    assert world.read() == list(range(BEFORE + 1))
