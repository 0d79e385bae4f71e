"""The shipped client in the simulation: its producer, its consumer, and their promises.

Owns what a program that uses `quiverlog.aio` may rely on: each row whose future was fulfilled is
stored once, at the acknowledged offset, in the order in which a producer sent; a producer never
reports stored rows as failed because the broker lost count; a consumer hands out every row, in
order, without a gap and without a repetition, and raises when it cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa

from quiverlog.client.async_client import AsyncClient
from quiverlog.client.base.results import Address
from quiverlog.client.base.waits import Waits
from quiverlog.client.consumer.async_consumer import AsyncConsumer
from quiverlog.client.drivers import asynchronous
from quiverlog.client.drivers.name_lookup import Found
from quiverlog.client.producer import base as producer_base
from quiverlog.client.producer.async_producer import AsyncProducer, AsyncSendFuture
from quiverlog.client.transactions import async_transaction
from quiverlog.errors import (
    CorruptBatch,
    CorruptLog,
    InvalidProducerEpoch,
    InvalidResponse,
    LogTruncated,
    OffsetOutOfRange,
    OutOfOrderSequence,
    QuiverlogError,
    StorageFault,
    UnknownProducerId,
    UnknownTopic,
    UnknownTopicId,
)
from quiverlog.types import Durability, Now

from .checker import Checker, Key, TopicModel, Violation
from .loop import SimLoop
from .rows import schema_of
from .world import World

__all__ = ["ClientConsumer", "ClientProducer", "ShippedClient", "clients_world", "live_in"]

_LOST_COUNT = (OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch)
_FIRST_NUMBER = 500
_UNDECIDED_MAX = 10


@contextlib.contextmanager
def clients_world(world: World) -> Iterator[None]:
    """What the shipped client asks the system itself, for the length of a run: the world's.

    The producer's time; and where a name is, for which it would have a real thread ask.
    """

    def now() -> Now:
        return Now(world.mono_us, world.wall_us)

    def numeric(address: Address) -> Found:
        return [(None, None, 0, "", (address.host, address.port))]

    def dropped(_: object) -> None:
        """A program that dies warns of nothing, nor does a run that is broken off."""

    entropy = random.Random(f"entropy-{world.scenario.seed}")
    system = SimpleNamespace(urandom=entropy.randbytes, getpid=os.getpid)
    with (
        mock.patch.object(producer_base, "now", now),
        mock.patch.object(async_transaction, "now", now),
        mock.patch.object(async_transaction, "os", system),
        mock.patch.object(async_transaction.AsyncTransaction, "__del__", dropped),
        mock.patch.object(asynchronous, "numeric", numeric),
    ):
        yield


def live_in(client: AsyncClient, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
    """Give a client that was not used yet the clock and the jitter of a world."""
    client.cluster.clock = clock
    client.cluster.jitter = jitter
    # They time the tries of every request: by the machine's clock its uptime would decide.
    client.cluster.waits = Waits(clock)


class ShippedClient:
    """A program with a client of its own, on a loop of its own."""

    request_timeout_s = 5.0
    delivery_timeout_s = 30.0
    patience_s = 0.2
    """How long a consumer is asked to wait for rows."""

    def __init__(self, world: World, checker: Checker, name: str) -> None:
        self.world = world
        self.checker = checker
        self.name = name
        self.rng = random.Random(f"{name}-{world.scenario.seed}")
        self.retired = False
        self.loop = SimLoop(world, name)
        self._client: AsyncClient | None = None
        self.loop.enter(self._begin)

    def _begin(self) -> None:
        self._task = self.loop.create_task(self._guarded(self.main()))

    async def _guarded(self, main: Coroutine[None, None, None]) -> None:
        try:
            await main
        except asyncio.CancelledError:
            raise
        except Violation as violation:
            self.world.fail(violation)
        except Exception as error:
            self.world.fail(Violation(f"{self.name} met {type(error).__name__}: {error}"))

    async def main(self) -> None:
        """What the program does."""
        raise NotImplementedError

    def client(self) -> AsyncClient:
        """The client, whose clock and jitter are the world's."""
        if self._client is None:
            self._client = AsyncClient(
                self.bootstrap(),
                client_id=self.name,
                connect_timeout=2.0,
                request_timeout=self.request_timeout_s,
            )
            live_in(self._client, self.loop.time, self.rng.random)
        return self._client

    def bootstrap(self) -> list[str]:
        """Addresses that the program is given."""
        return ["node-0:9292"]

    async def nap(self, seconds: float) -> None:
        """The program has something else to do."""
        await asyncio.sleep(seconds)

    def topics(self) -> list[TopicModel]:
        """Topics that no client has deleted."""
        return [topic for topic in self.checker.topics.values() if not topic.doomed]

    def may_lose(self, key: Key) -> bool:
        """Return whether rows of this partition may go although no client trimmed them."""
        model = self.checker.partitions[key]
        return model.topic.lossy or model.damaged or model.topic.doomed

    def stop(self) -> None:
        """The program ends."""
        self.retired = True
        self.loop.enter(self._task.cancel)


class ClientProducer(ShippedClient):
    """Sends rows through the shipped producer, each send to one partition."""

    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self.stopped = False
        self.number = _FIRST_NUMBER + number
        self._next_value = 0
        self._undecided = 0
        super().__init__(world, checker, f"client-producer-{number}")

    @property
    def idle(self) -> bool:
        """Has every send an outcome?"""
        return self._undecided == 0

    async def main(self) -> None:
        while not self.stopped:
            topics = self.topics()
            if not topics:
                await self.nap(0.05)
                continue
            topic = self.rng.choice(topics)
            try:
                producer = await self._open(topic)
                # A run that is broken off drops it with its rows: another test would be warned.
                producer.warn_of_lost_rows = lambda: None  # type: ignore[method-assign]
            except QuiverlogError as error:
                self._check_open(topic, error)
                await self.nap(0.05)
                continue
            topic_id = producer._core.topic.topic_id
            await self._use(producer, topic_id)
            self.number += 1_000
            self._next_value = 0

    async def _open(self, topic: TopicModel) -> AsyncProducer:
        return await self.client().producer(
            topic.name,
            linger=self.rng.choice((0.0, 0.005, 0.05)),
            batch_rows=self.rng.choice((1, 8, 64)),
            delivery_timeout=self.delivery_timeout_s,
        )

    def _check_open(self, topic: TopicModel, error: QuiverlogError) -> None:
        self.checker.error(error.code)
        if not (error.retriable or topic.doomed):
            raise Violation(f"{self.name} cannot open {topic.name}: {error!r}")

    async def _use(self, producer: AsyncProducer, topic_id: bytes) -> None:
        sends = self.rng.randrange(20, 400)
        for _ in range(sends):
            if self.stopped or self.checker.topics[topic_id].doomed:
                break
            await self.nap(self.rng.random() * 0.05)
            if self._undecided >= _UNDECIDED_MAX:
                continue
            try:
                await self._send(producer, topic_id)
            except QuiverlogError as error:
                self.checker.error(error.code)
                break
        try:
            await producer.close()
        except QuiverlogError as error:
            self.checker.error(error.code)  # Each send has raised its own failure.

    async def _send(self, producer: AsyncProducer, topic_id: bytes) -> None:
        partitions = len(producer._core.topic.partitions)
        key = (topic_id, self.rng.randrange(partitions))
        if key not in self.checker.partitions:
            return  # It has grown, and the client that let it grow has no answer yet.
        rows = self.rng.randint(1, 8)
        first = (self.number << 32) + self._next_value
        self._next_value += rows
        values = list(range(first, first + rows))
        self.checker.sent(key, values)
        self.checker.resending.add(self.number)
        padding = [self.rng.randbytes(self.rng.randrange(100))] * rows
        data = pa.record_batch([pa.array(values), pa.array(padding)], schema=schema_of(1))
        at_us = self.world.wall_us
        self._undecided += 1
        try:
            future = await producer.send(data, partition=key[1])
        except BaseException:
            self._undecided -= 1
            raise
        self.loop.create_task(self._guarded(self._outcome(future, key, values, at_us)))

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
        if self.checker.partitions[key].topic.lossy and len(future.produced) > 1:
            # Some may be from before a power failure, and gone; and they come by their offsets.
            if sum(piece.rows for piece in future.produced) != len(values):
                raise Violation(f"{self.name}: not {len(values)} rows acknowledged")
            return
        done = 0
        for piece in future.produced:
            if piece.partition != key[1]:
                raise Violation(f"{self.name}: rows for {key[1]} went to {piece.partition}")
            stored = values[done : done + piece.rows]
            flushed = piece.durability >= Durability.FLUSHED
            self.checker.acked(key, piece.base_offset, stored, at_us, flushed)
            self.world.events["rows acknowledged to the shipped producer"] += piece.rows
            done += piece.rows
        if done != len(values):
            raise Violation(f"{self.name}: {len(values)} rows sent, {done} acknowledged")

    def _check_failure(self, key: Key, error: QuiverlogError) -> None:
        self.checker.error(error.code)
        model = self.checker.partitions[key]
        if isinstance(error, _LOST_COUNT) and not model.may_lose_producers:
            raise Violation(f"{self.name}: rows of {model.name} reported as failed: {error!r}")


class ClientConsumer(ShippedClient):
    """Follows a topic through the shipped consumer from its first row on."""

    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self.positions: dict[Key, int] = {}
        super().__init__(world, checker, f"client-consumer-{number}")

    async def main(self) -> None:
        while not self.retired:
            topics = self.topics()
            if not topics:
                await self.nap(0.05)
                continue
            topic = self.rng.choice(topics)
            self.positions = {}
            consumer = self._open(topic, "earliest")
            while consumer is not None and not (topic.doomed or self.retired):
                consumer = await self._follow(topic, consumer)
                if self.rng.random() < 0.005 and not self.world.calm:
                    break

    def _open(self, topic: TopicModel, start: object) -> AsyncConsumer:
        return self.client().consumer(
            topic.name,
            start=start,  # type: ignore[arg-type]
            follow=True,
            fetch_bytes=self.rng.choice((64 * 1024, 1024 * 1024)),
        )

    async def _follow(self, topic: TopicModel, consumer: AsyncConsumer) -> AsyncConsumer | None:
        """Some batches; the consumer to go on with."""
        try:
            for _ in range(20):
                batch = await consumer.poll(self.patience_s)
                if batch is None:
                    continue
                if topic.topic_id not in consumer._core._fetches.names:
                    return None  # The name belongs to another topic by now.
                key = (topic.topic_id, batch.partition)
                if key not in self.checker.partitions:
                    return None
                values = batch.data.column(0).to_pylist()
                expected = self.positions.get(key)
                if expected is not None and batch.base_offset != expected:
                    raise Violation(
                        f"{self.name}: {self.checker.partitions[key].name} was read up to"
                        f" {expected}, then came {batch.base_offset}"
                    )
                self.given(key, batch.base_offset, values)
                self.positions[key] = batch.base_offset + len(values)
            return consumer
        except QuiverlogError as error:
            return await self._failed(topic, consumer, error)

    def given(self, key: Key, base_offset: int, values: list[int]) -> None:
        """The consumer has handed these rows to the program."""
        self.checker.read(key, base_offset, values)
        self.world.events["rows given out by the shipped consumer"] += len(values)

    async def _failed(
        self, topic: TopicModel, consumer: AsyncConsumer, error: QuiverlogError
    ) -> AsyncConsumer | None:
        """Is the error one that a good reader may get? Then begin again behind it."""
        self.checker.error(error.code)
        await consumer.close()
        keys = [key for key in self.checker.partitions if key[0] == topic.topic_id]
        models = [self.checker.partitions[key] for key in keys]
        may_lose = any(map(self.may_lose, keys))
        excused = self.world.hosts[0].fault_until_us + 6_000_000 >= self.world.mono_us
        if isinstance(error, (UnknownTopic, UnknownTopicId)):
            if not topic.doomed:
                raise Violation(f"{self.name}: {topic.name} is unknown: {error!r}")
            return None
        if isinstance(error, OffsetOutOfRange):
            gone = topic.retained or any(model.trimmed_to for model in models)
            if not (gone or may_lose):
                raise Violation(f"{self.name}: nothing had the right to take rows: {error!r}")
            self.positions = {}
            return self._open(topic, "earliest")
        if isinstance(error, LogTruncated):
            if not may_lose:
                raise Violation(f"{self.name}: flushed rows are gone: {error!r}")
            self.positions = {}
            return self._open(topic, "earliest")
        if isinstance(error, (CorruptLog, CorruptBatch, InvalidResponse, StorageFault)):
            if not (excused or any(model.damaged or model.torn for model in models)):
                raise Violation(f"{self.name}: nothing was damaged: {error!r}")
            return None
        if not error.retriable:
            raise Violation(f"{self.name}: reading {topic.name} failed: {error!r}")
        await asyncio.sleep(0.1)
        if may_lose:
            # A new consumer lacks the epoch of the last row: no broker could report the loss.
            self.positions = {}
            return self._open(topic, "earliest")
        return self._open(topic, {key[1]: at for key, at in self.positions.items()})

    def behind(self, key: Key, end: int) -> bool:
        """Are there rows that the program was not given?"""
        return key in self.positions and self.positions[key] < end
