"""A program that moves partitions to other brokers all the time, through the shipped client.

Owns which partitions go where, and when a move is given up. A move may end or not while machines
fail; when all is calm every partition has as many copies as ever, all in sync (`run`), and no row
of it is lost (`checker`).

Must not know: how a move is carried out.
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

__all__ = ["Mover"]

_REFUSED = (InvalidReplicaAssignment, PolicyViolation, UnknownPartition)
"""A broker is down just now, or nobody leads."""


class Mover(Program):
    """See the module docstring."""

    def __init__(self, cluster: Cluster, checker: ClusterChecker, number: int) -> None:
        self.stopped = False
        self.is_idle = False
        self._nodes = [host.node_id for host in cluster.hosts]
        super().__init__(cluster, checker, f"mover-{number}")

    async def main(self) -> None:
        while not self.stopped:
            await self.nap(self.rng.uniform(0.2, 2.0))
            if not self.stopped:
                await self._move()
        self.is_idle = True

    async def _move(self) -> None:
        """Those of the topics that a run begins with: all have as many copies."""
        topics = [topic for topic in self.checker.topics.values() if topic.name.startswith("topic")]
        topic = self.rng.choice(topics)
        number = self.rng.choice([key[1] for key in self.checker.partitions
                                  if key[0] == topic.topic_id])  # fmt: skip
        gives_up = self.rng.random() < 0.2
        target = None if gives_up else self.rng.sample(self._nodes, min(3, len(self._nodes)))
        try:
            await self.client().reassign_partitions(topic.name, {number: target})
        except QuiverlogError as error:
            self.checker.error(error.code)
            if not (error.retriable or isinstance(error, _REFUSED)):
                raise Violation(f"{self.name}: moving {topic.name}-{number}: {error!r}") from error
            return
        self.world.events["move given up" if gives_up else "partition moved by command"] += 1
