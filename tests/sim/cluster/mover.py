"""Programs that move partitions to other brokers all the time, through the shipped client.

Owns which partitions go where, how many copies they have, how fast they move, and when a move is
given up. A move may end or not while machines fail; when all is calm all copies of a partition are
in sync (`run`), as many as before or as were asked for last, and no row of it is lost (`checker`).

Not here: how a move is carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiverlog.errors import (
    InvalidReplicaAssignment,
    PolicyViolation,
    QuiverlogError,
    UnknownPartition,
)
from tests.sim.checker import Violation

from .programs import Program
from .promises import ClusterChecker

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Mover", "Resizer"]

_REFUSED = (InvalidReplicaAssignment, PolicyViolation, UnknownPartition)
"""A broker is down just now, or there is no controller, or the keeper of settings has not finalised
yet that the number of replicas may change.
"""


class Mover(Program):
    """One that leaves partitions as many copies as they have."""

    kind = "mover"

    def __init__(self, cluster: Cluster, checker: ClusterChecker, number: int) -> None:
        self.stopped = False
        self.is_idle = False
        self._nodes = [host.node_id for host in cluster.hosts]
        super().__init__(cluster, checker, f"{self.kind}-{number}")

    async def main(self) -> None:
        while not self.stopped:
            await self.nap(self.rng.uniform(0.2, 2.0))
            if not self.stopped:
                await self._move()
        self.is_idle = True

    async def _move(self) -> None:
        """Those of the topics that a run begins with: all begin with as many copies."""
        topics = [topic for topic in self.checker.topics.values() if topic.name.startswith("topic")]
        topic = self.rng.choice(topics)
        number = self.rng.choice([key[1] for key in self.checker.partitions
                                  if key[0] == topic.topic_id])  # fmt: skip
        gives_up = self.rng.random() < 0.2
        target = None if gives_up else self.rng.sample(self._nodes, self._count())
        try:
            await self._ask(topic.name, {number: target})
        except QuiverlogError as error:
            self.checker.error(error.code)
            if not (error.retriable or isinstance(error, _REFUSED)):
                raise Violation(f"{self.name}: moving {topic.name}-{number}: {error!r}") from error
            return
        self.world.events["move given up" if gives_up else "partition moved by command"] += 1

    def _count(self) -> int:
        return min(3, len(self._nodes))

    async def _ask(self, topic: str, targets: dict[int, list[int] | None]) -> None:
        await self.client().reassign_partitions(topic, targets)

    def check(self) -> None:
        """Nothing was promised that `run` and `checker` do not look at."""


class Resizer(Mover):
    """One that gives partitions more or fewer copies, at a bounded speed now and then.

    Never fewer than two: a partition with one replica promises what its disk does, and no fault of
    a machine would be allowed any more.
    """

    kind = "resizer"

    def _count(self) -> int:
        return self.rng.randint(2, min(5, len(self._nodes)))

    async def _ask(self, topic: str, targets: dict[int, list[int] | None]) -> None:
        throttle = self.rng.choice((0, 0, 20_000, 200_000))
        await self.client().reassign_partitions(
            topic, targets, throttle=throttle, change_count=True
        )
