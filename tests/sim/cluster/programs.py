"""Programs that use a cluster through the shipped client: its producer, its consumer, its routing.

Owns what such a program may rely on. A producer: a row that was acknowledged at a level that no
fault had the right to break is stored once, at the acknowledged offset; rows do not fail because a
broker lost count, or lacked a topic that exists. A consumer: every row, in order, none twice, from
any replica; it gets an error for lost rows (LOG_TRUNCATED) if a fault took rows that it may have
read since it began, else never; what it was handed without one is what the log holds at the end.

Not here: how leaders are found, which the client does by itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from quiverlog.client.consumer.async_consumer import AsyncConsumer
from quiverlog.client.producer.async_producer import AsyncProducer, AsyncSendFuture
from quiverlog.errors import (
    CorruptLog,
    DeliveryTimedOut,
    LogTruncated,
    OffsetOutOfRange,
    QuiverlogError,
    StorageFault,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.types import Durability
from tests.sim.checker import Key, TopicModel, Violation
from tests.sim.shipped import ClientConsumer, ClientProducer, ShippedClient

from .client_plan import HASTY_US
from .promises import ClusterChecker

if TYPE_CHECKING:
    from .cluster import Cluster

__all__ = ["ConsumingProgram", "ProducingProgram", "Program"]

_NAP_S = 0.5
_WHOLE_US = 10_000_000
"""How long after everything is in sync rows may still wait."""


class Program(ShippedClient):
    """A program with the addresses of all brokers, that rests when all clients do."""

    checker: ClusterChecker

    def __init__(self, cluster: Cluster, checker: ClusterChecker, name: str) -> None:
        self.prepare(cluster)
        super().__init__(cluster.world, checker, name)

    def prepare(self, cluster: Cluster) -> None:
        """To be called before the program begins."""
        self._cluster = cluster
        self._leisure = cluster.leisure
        self._scale = cluster.scenario.tempo.scale
        self._addresses = [f"{host.name}:9292" for host in cluster.hosts]
        self.request_timeout_s = 20.0 * self._scale
        self.delivery_timeout_s = 30.0 * self._scale
        if cluster.scenario.clients.hasty:
            self.delivery_timeout_s = HASTY_US / 1e6 * self._scale
        self.patience_s = ShippedClient.patience_s * self._scale

    def bootstrap(self) -> list[str]:
        return self.rng.sample(self._addresses, len(self._addresses))

    async def nap(self, seconds: float) -> None:
        scale = 1 if self.world.calm else self._scale
        await asyncio.sleep(seconds * scale)
        # Not longer than what it takes to notice that the world is calm.
        rest_us = self._leisure.nap_us(int(seconds * 1e6))
        until_us = self.world.mono_us + rest_us
        while self._leisure.is_quiet and self.world.mono_us < until_us:  # noqa: ASYNC110
            await asyncio.sleep(_NAP_S * self._scale)


class ProducingProgram(Program, ClientProducer):
    """Sends rows to one topic after the other, at levels of its own choice."""

    def __init__(self, cluster: Cluster, checker: ClusterChecker, number: int) -> None:
        self.prepare(cluster)
        ClientProducer.__init__(self, cluster.world, checker, number)

    async def _open(self, topic: TopicModel) -> AsyncProducer:
        levels = [level.label for level in Durability if level >= 0]
        self._level = self.rng.choice((None, None, *levels))
        return await self.client().producer(
            topic.name,
            linger=self.rng.choice((0.0, 0.005, 0.05)),
            batch_rows=self.rng.choice((1, 8, 64)),
            delivery_timeout=self.delivery_timeout_s,
            durability=self._level,
        )

    async def _use(self, producer: AsyncProducer, topic_id: bytes) -> None:
        if topic_id in self.checker.topics:
            await super()._use(producer, topic_id)
        else:
            await producer.close()  # The name is another topic's by now.

    async def _outcome(
        self, future: AsyncSendFuture, key: Key, values: list[int], at_us: int
    ) -> None:
        try:
            error = await future.exception()
        finally:
            self._undecided -= 1
        if error is not None:
            self._check_failure(key, error)
            return
        pieces = future.produced
        if sum(piece.rows for piece in pieces) != len(values):
            raise Violation(f"{self.name}: not {len(values)} rows acknowledged")
        if any(piece.partition != key[1] for piece in pieces):
            raise Violation(f"{self.name}: rows for {key[1]} went to {pieces}")
        level = min(piece.durability for piece in pieces)
        self._check_level(key, level)
        self.world.events["rows acknowledged to the shipped producer"] += len(values)
        if len(pieces) > 1 and (level < Durability.REPLICATED or key in self.checker.unclean):
            return  # Some may be gone, and others in their places: which is which is unknown.
        done = 0
        for piece in pieces:
            stored = values[done : done + piece.rows]
            self.checker.acked_at(key, piece.base_offset, stored, at_us, piece.durability)
            done += piece.rows

    def _check_level(self, key: Key, level: Durability) -> None:
        topic = self.checker.partitions[key].topic
        weakest = min(Durability[name.upper()] for name in topic.durabilities)
        if level < weakest:
            raise Violation(f"{self.name}: {level.label} was acknowledged, asked for {weakest}")
        self.world.events[f"acknowledged as {level.label}"] += 1

    def _check_failure(self, key: Key, error: QuiverlogError) -> None:
        super()._check_failure(key, error)
        topic = self.checker.partitions[key].topic
        if isinstance(error, (UnknownTopic, UnknownTopicId)) and not topic.doomed:
            raise Violation(f"{self.name}: {topic.name} is unknown: {error!r}")
        whole_us = self._cluster.whole_us
        if isinstance(error, DeliveryTimedOut) and whole_us is not None:
            waited_us = self.world.mono_us - whole_us
            if waited_us >= _WHOLE_US * self._scale:
                raise Violation(f"{self.name}: all is well for {waited_us / 1e6:.1f} s: {error!r}")


class ConsumingProgram(Program, ClientConsumer):
    """Follows one topic after the other, from leaders, from followers or from the nearest."""

    def __init__(self, cluster: Cluster, checker: ClusterChecker, number: int) -> None:
        self.copies: dict[Key, dict[int, int]] = {}
        """What was handed out since the consumer began or was last notified of a loss."""
        self._opened_us = 0
        self._racks = sorted({host.config().rack for host in cluster.hosts})
        self.prepare(cluster)
        ClientConsumer.__init__(self, cluster.world, checker, number)

    def _open(self, topic: TopicModel, start: object) -> AsyncConsumer:
        if start == "earliest":
            self.copies = {}
            self._opened_us = self.world.mono_us
        choices: tuple[Literal["leader", "follower", "nearest"], ...]
        choices = ("leader", "follower", "nearest")
        chosen = self.rng.choice(choices)
        self.world.events[f"consumer of the {chosen}"] += 1
        return self.client().consumer(
            topic.name,
            start=start,  # type: ignore[arg-type]
            follow=True,
            fetch_bytes=self.rng.choice((64 * 1024, 1024 * 1024)),
            fetch_from=chosen,
            client_rack=self.rng.choice(self._racks),
        )

    def given(self, key: Key, base_offset: int, values: list[int]) -> None:
        if self.checker.are_from_before(key, base_offset + len(values)):
            self.world.events["rows given out that a fault had taken meanwhile"] += 1
        else:
            super().given(key, base_offset, values)
        self.copies.setdefault(key, {}).update(enumerate(values, base_offset))

    async def _follow(self, topic: TopicModel, consumer: AsyncConsumer) -> AsyncConsumer | None:
        going_on = await super()._follow(topic, consumer)
        if not self.retired:
            await self.nap(0.02)
        return going_on

    async def _failed(
        self, topic: TopicModel, consumer: AsyncConsumer, error: QuiverlogError
    ) -> AsyncConsumer | None:
        self.checker.error(error.code)
        await consumer.close()
        keys = [key for key in self.checker.partitions if key[0] == topic.topic_id]
        if isinstance(error, (UnknownTopic, UnknownTopicId)):
            if not topic.doomed:
                raise Violation(f"{self.name}: {topic.name} is unknown: {error!r}")
            return None
        if isinstance(error, OffsetOutOfRange):
            gone = topic.retained or any(self.checker.partitions[k].trimmed_to for k in keys)
            if not (gone or topic.doomed or self._may_be_lost(keys)):
                raise Violation(f"{self.name}: nothing had the right to take rows: {error!r}")
            return self._begin_again(topic)
        if isinstance(error, LogTruncated):
            if not (topic.doomed or self._may_be_lost(keys)):
                raise Violation(f"{self.name}: rows that it read are gone: {error!r}")
            self.world.events["a shipped consumer got an error for lost rows"] += 1
            return self._begin_again(topic)
        is_damaged = isinstance(error, (CorruptLog, StorageFault))
        if not error.retriable and not (is_damaged and any(map(self._has_one_bad_copy, keys))):
            raise Violation(f"{self.name}: reading {topic.name} failed: {error!r}")
        await self.nap(0.1)
        if any(self.checker.partitions[key].forgetful for key in keys):
            # A new consumer lacks the epoch of the last row: no broker could report the loss.
            return self._begin_again(topic)
        return self._open(topic, {key[1]: at for key, at in self.positions.items()})

    def _has_one_bad_copy(self, key: Key) -> bool:
        """Return whether the leader cannot read its rows, with no other replica in sync to lead."""
        for host in self._cluster.hosts:
            replica = None if host.node is None else host.node.broker.assignment.find(key)
            if replica is None or replica.state.leadership is None:
                continue
            is_bad = bool(replica.damage) or bool(host.disk.failures["EIO read"])
            if is_bad and len(replica.state.leadership.in_sync.maximal) == 1:
                self.world.events["damage with no other replica in sync"] += 1
                return True
        return False

    def _begin_again(self, topic: TopicModel) -> AsyncConsumer:
        self.positions = {}
        return self._open(topic, "earliest")

    def _may_be_lost(self, keys: list[Key]) -> bool:
        lost = self.checker.lost_us
        return any(
            key in self.checker.unclean or lost.get(key, -1) >= self._opened_us for key in keys
        )

    def check_copies(self) -> None:
        """At the end, when all rows were read once more: is what it was handed what is there?"""
        for key, copy in self.copies.items():
            model = self.checker.partitions[key]
            if model.topic.doomed or key not in self.positions:
                continue
            for offset, value in copy.items():
                now = model.seen.get(offset, value)
                if now != value:
                    raise Violation(
                        f"{model.name}: {self.name} was handed {value} at {offset}, the log holds"
                        f" {now}, and no error reported it"
                    )
