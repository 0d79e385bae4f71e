"""Programs that die anywhere and come back: the lives of one transactional id.

Owns when a life ends and the next begins. A life is a program with a client and a loop of its own;
when it dies nothing of it runs any more, and its connections break. Some go on beside the next one:
they are zombies, which the next one fences.

Not here: what a life does, what was promised of it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from quiverlog.errors import QuiverlogError
from tests.sim.checker import TopicModel, Violation

from .programs import Program
from .promises import ClusterChecker

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["Life", "Lives"]

_CALM = 3
"""Transactions after all faults: work goes on."""
_LIVES_MAX = 60
_AGAIN_US = 50_000


class Life(Program):
    """One of the programs that use an id."""

    def __init__(self, lives: Lives, number: int) -> None:
        self.lives = lives
        self.ledger = lives.ledger
        self.is_dead = False
        super().__init__(lives.cluster, lives.checker, f"{lives.tid}-{number}")

    @property
    def timeout_s(self) -> float:
        """How long it waits for a commit; at times not long enough for an answer."""
        choices = (30.0,) if self.lives.stopped else (0.2, 1.0, 30.0)
        return self.rng.choice(choices) * self._scale

    def die(self) -> None:
        """End here, without a message to any broker."""
        self.is_dead = True
        self.loop.die()

    def is_over(self) -> bool:
        """Is there nothing more to do in the calm?"""
        return self.lives.stopped and self.lives.calm_count >= _CALM

    async def main(self) -> None:
        try:
            while not self.is_over():
                await self.nap(self.rng.choice((0.0, 0.2)) * self.rng.random())
                try:
                    await self.transact()
                except QuiverlogError as error:
                    self.checker.error(error.code)
                    if not await self.goes_on(error):
                        break
            await self._end()
        finally:
            if not self.is_dead:
                self.lives.ended(self)

    async def _end(self) -> None:
        if not self.is_over():
            return
        try:
            await self.leave()
        except QuiverlogError as error:
            self.checker.error(error.code)
        self.lives.is_left = True
        self.die()

    async def leave(self) -> None:
        """Do what only brokers can clear up."""

    async def transact(self) -> None:
        raise NotImplementedError

    async def goes_on(self, error: QuiverlogError) -> bool:
        """Is the error one after which the same program may try again?"""
        if not error.retriable:
            raise Violation(f"{self.name}: {error!r}") from error
        await self.nap(0.1)
        return True

    def committed(self, *, counts: bool = True) -> None:
        self.world.events["transaction committed"] += 1
        self.lives.calm_count += self.lives.stopped and counts

    def targets(self) -> list[TopicModel]:
        """Topics that rows go to: those that stay, and few that are made and deleted beside."""
        topics = [topic for topic in self.topics() if topic.topic_id in self.lives.fixed]
        others = [topic for topic in self.topics() if topic.topic_id not in self.lives.fixed]
        if others and not self.lives.stopped and self.rng.random() < 0.1:
            return [*topics, self.rng.choice(others)]
        return topics


class Lives:
    """All programs that use one id, one after the other or beside each other."""

    kind: type[Life]

    def __init__(
        self, cluster: Cluster, checker: ClusterChecker, tid: str, kind: type[Life]
    ) -> None:
        self.cluster = cluster
        self.checker = checker
        self.ledger = checker.ledger
        self.tid = tid
        self.kind = kind
        self.rng = random.Random(f"{tid}-{cluster.scenario.seed}")
        self.fixed = set(checker.topics)
        self.calm_count = 0
        self.is_left = False
        self.checkpoint = 0
        """The next batch of a query, which is atomic."""
        self._stopped = False
        self._lives: list[Life] = []
        self._begin()

    @property
    def stopped(self) -> bool:
        return self._stopped

    @stopped.setter
    def stopped(self, value: bool) -> None:
        # The calm: the newest goes on alone.
        self._stopped = value
        for life in self._lives[:-1]:
            life.die()

    @property
    def idle(self) -> bool:
        return self._stopped and self.is_left

    def _begin(self) -> None:
        life = self.kind(self, len(self._lives))
        self._lives.append(life)
        if len(self._lives) < _LIVES_MAX:
            self._wait_for_death(life)

    def _wait_for_death(self, life: Life) -> None:
        def end() -> None:
            if self._stopped or self._lives[-1] is not life:
                return
            if self.rng.random() < 0.5:
                life.die()
                self.cluster.world.events["a transactional program died"] += 1
            else:
                self.cluster.world.events["a transactional program became a zombie"] += 1
            self._begin()

        self.cluster.leisure.at(1 + int(self.rng.expovariate(1 / 1_500_000)), end)

    def ended(self, life: Life) -> None:
        """A life has ended by itself: fenced, or done."""
        if self._lives[-1] is life and not self.idle:
            self.cluster.world.at(_AGAIN_US, lambda: self._again(life))

    def _again(self, life: Life) -> None:
        if self._lives[-1] is life and not self.idle:
            self._begin()

    def stop(self) -> None:
        for life in self._lives:
            life.die()

    def complaints(self) -> list[str]:
        return [text for life in self._lives for text in life.loop.complaints]
