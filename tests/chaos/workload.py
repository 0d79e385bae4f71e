"""The clients of a run: shipped producers, consumers and an administrator, and their history.

Owns the topics, what each client does in a loop until it is stopped, and the translation of its
answers into the history. Every loop is bounded in rate; a client that fails is opened again.

Not here: faults, how history is judged.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import pyarrow as pa

from quiverlog import aio
from quiverlog.client.rows.decoding import ConsumerBatch
from quiverlog.errors import (
    BufferExhausted,
    CommitUnknown,
    ConnectionClosed,
    ConnectionFailed,
    DeliveryTimedOut,
    InvalidReplicationFactor,
    QuiverlogError,
    RequestTimedOut,
    StagedRowsLost,
    TopicExists,
    TransactionClosed,
    UnknownTopic,
)
from quiverlog.types import Durability
from tests.sim.cluster.linear import Operation

from .history import History, Outcome, Read, Send, Stored, TopicRow, value

__all__ = ["TOPICS", "Workload"]

SCHEMA: Final = pa.schema([("v", pa.int64())])
TOPICS: Final = (
    TopicRow("memory", "memory", 3, 2),
    TopicRow("flushed", "flushed", 3, 2),
    TopicRow("replicated", "replicated", 3, 3),
    TopicRow("replicated-flushed", "replicated_flushed", 3, 2),
    TopicRow("alone-memory", "memory", 1, 3),
    TopicRow("alone-flushed", "flushed", 1, 3),
)
PRODUCERS: Final = ("memory", "flushed", "replicated", "replicated", "replicated-flushed",
                    "alone-memory", "alone-flushed")  # fmt: skip
READERS: Final = (
    *(("leader", topic.name) for topic in TOPICS),
    ("follower", "replicated"),
    ("follower", "replicated-flushed"),
    ("nearest", "replicated"),
    ("nearest", "memory"),
    ("nearest", "flushed"),
)
TRANSACTORS: Final = 3
TRANSACTED: Final = ("replicated", "replicated-flushed")
"""Topics that plain producers write, too."""
TRANSACTION_TIMEOUT_S: Final = 10.0
ROWS_PER_SEND_MAX: Final = 20
SENDS_UNANSWERED_MAX: Final = 16
PACE_S: Final = 0.05
DELIVERY_TIMEOUT_S: Final = 60.0
CHANGES_PER_NAME_MAX: Final = 8
"""Short histories: the search for an order grows with the operations of unknown outcome."""
REPEATED_US: Final = 300_000
"""A change of topics that takes longer may have been asked for more than once."""
PASSING = (ConnectionClosed, ConnectionFailed, RequestTimedOut)


class Workload:
    """Times are of `time.monotonic`."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.history = History(topics=TOPICS)
        self._bootstrap = bootstrap
        self._seed = seed
        self._writing = True
        self._ends: dict[tuple[str, int], int] | None = None
        """Where readers may stop; None while rows still come."""
        self._writers: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []

    async def create_topics(self, within_s: float) -> None:
        """Once, before anything goes wrong, when all brokers take replicas."""
        deadline_s = time.monotonic() + within_s
        async with self._client("founder") as client:
            for topic in TOPICS:
                while True:
                    try:
                        await client.create_topic(
                            topic.name,
                            SCHEMA,
                            partitions=topic.partitions,
                            replication_factor=topic.replicas,
                            config={"durability": topic.level, "segment.bytes": 65_536},
                        )
                        break
                    except InvalidReplicationFactor:
                        if time.monotonic() > deadline_s:
                            raise
                        await asyncio.sleep(0.1)

    def start(self) -> None:
        """All clients begin."""
        for number, topic in enumerate(PRODUCERS):
            self._writers.append(asyncio.create_task(self._produce(number, topic)))
        for number in range(2):
            self._writers.append(asyncio.create_task(self._administer(number)))
        for number in range(TRANSACTORS):
            self._writers.append(asyncio.create_task(self._transact(len(PRODUCERS) + number)))
        for number, (where, topic) in enumerate(READERS):
            self._readers.append(asyncio.create_task(self._consume(number, where, topic)))

    async def stop_writing(self, within_s: float) -> None:
        """No more sends; each that is under way comes to its outcome."""
        self._writing = False
        await _ended(self._writers, within_s, "producers", self.history)

    async def stop_reading(self, within_s: float) -> None:
        """Read everything once more, and wait until each reader is there."""
        await self._read_all()
        self._ends = {}
        for read in self.history.final:
            self._ends[read.key] = read.base_offset + len(read.values)
        await _ended(self._readers, within_s, "readers", self.history)

    def _client(self, name: str) -> Any:
        return aio.connect(self._bootstrap, client_id=f"client-{name}")

    # --- producers -----------------------------------------------------------------------------
    async def _produce(self, number: int, topic_name: str) -> None:
        topic = next(topic for topic in TOPICS if topic.name == topic_name)
        rng = random.Random(f"{self._seed}/producer/{number}")
        state = _Producing(self.history, topic, number, rng)

        async def life() -> None:
            async with self._client(f"producer-{number}") as client:
                producer = await client.producer(topic_name, delivery_timeout=DELIVERY_TIMEOUT_S)
                try:
                    while self._writing:
                        await state.step(producer)
                    await state.outcome_of_all()
                finally:
                    await producer.abort()
                    await state.outcome_of_all()

        await self._again_and_again(f"producer-{number}", life, lambda: self._writing)

    async def _transact(self, number: int) -> None:
        state = _Transacting(self.history, number, random.Random(f"{self._seed}/{number}"))

        async def life() -> None:
            async with self._client(f"transactor-{number}") as client:
                while self._writing:
                    await state.step(client)

        await self._again_and_again(f"transactor-{number}", life, lambda: self._writing)

    # --- consumers -----------------------------------------------------------------------------
    async def _consume(self, number: int, where: str, topic: str) -> None:
        name = f"reader-{number}-{where}"
        positions: dict[int, int] = {}

        def is_reading() -> bool:
            if self._ends is None:
                return True
            ends = {key[1]: end for key, end in self._ends.items() if key[0] == topic}
            return any(positions.get(partition, 0) < end for partition, end in ends.items())

        async def life() -> None:
            async with self._client(name) as client:
                start: Any = dict(positions) if positions else "earliest"
                consumer = client.consumer(
                    topic, start=start, follow=True, fetch_from=where, client_rack="rack-2"
                )
                try:
                    while is_reading():
                        batch = await consumer.poll(1.0)
                        if batch is not None:
                            self.history.reads.append(_read(name, batch))
                            positions[batch.partition] = batch.next_offset
                finally:
                    await consumer.close()

        await self._again_and_again(name, life, is_reading)

    async def _read_all(self) -> None:
        """Each topic once from its first row to its end, from the leaders."""
        async with self._client("last-reader") as client:
            for topic in TOPICS:
                async for batch in client.consumer(topic.name):
                    self.history.final.append(_read("last-reader", batch))

    # --- topics --------------------------------------------------------------------------------
    async def _administer(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/admin/{number}")
        name_number = 0

        async def life() -> None:
            nonlocal name_number
            async with self._client(f"admin-{number}") as client:
                while self._writing:
                    # Both administrators work on the same names.
                    name = f"passing-{name_number // CHANGES_PER_NAME_MAX}"
                    name_number += 1
                    await self._change(client, name, rng)
                    await asyncio.sleep(rng.uniform(0.2, 1.0))

        await self._again_and_again(f"admin-{number}", life, lambda: self._writing)

    async def _change(self, client: aio.AsyncClient, name: str, rng: random.Random) -> None:
        operation = self._create if rng.random() < 0.55 else self._delete
        changes = self.history.changes.setdefault(name, [])
        called_us = _now_us()
        try:
            kind, argument, answer = await operation(client, name, rng)
        except QuiverlogError as error:
            is_open = bool(getattr(error, "__notes__", ()))
            if isinstance(error, InvalidReplicationFactor):
                if is_open:
                    changes.append(Operation("change", (False, True), None, called_us))
                return  # Fewer brokers than copies live just now.
            self.history.unknown[type(error).__name__] += 1
            if not (error.retriable or is_open or isinstance(error, PASSING)):
                self.history.errors.append(f"error: an administrator of {name}: {error}")
            # Unknown: it may have happened, or may yet.
            kind, argument, answer = "write", operation == self._create, None
            changes.append(Operation(kind, argument, answer, called_us))
        else:
            returned_us = _now_us()
            changes.append(Operation(kind, argument, answer, called_us, returned_us))
            if kind != "read" and returned_us - called_us > REPEATED_US:
                # An answer was lost perhaps, and what was asked for twice may have held twice.
                changes.append(Operation(kind, argument, None, called_us))

    async def _create(
        self, client: aio.AsyncClient, name: str, rng: random.Random
    ) -> tuple[str, object, object]:
        """The question to the register, whether the topic exists, and its answer."""
        partitions, replicas = rng.randint(1, 3), rng.randint(1, 3)
        # Like no other: a client that has lost an answer recognises its own topic by its settings.
        config = {"retention.ms": 3_600_000 + rng.randrange(1 << 30)}
        try:
            await client.create_topic(
                name, SCHEMA, partitions=partitions, replication_factor=replicas, config=config
            )
        except TopicExists as error:
            if getattr(error, "__notes__", ()):
                raise
            return "read", None, True
        except UnknownTopic:
            # It was created, and another client has deleted it before any broker showed it.
            return "change", (False, True), True
        return "change", (False, True), True

    async def _delete(
        self, client: aio.AsyncClient, name: str, rng: random.Random
    ) -> tuple[str, object, object]:
        try:
            await client.delete_topic(name)
        except UnknownTopic:
            return "read", None, False
        # After a lost answer its absence is success: which client deleted it is open.
        return "write", False, None

    # --- all -----------------------------------------------------------------------------------
    async def _again_and_again(
        self, name: str, life: Callable[[], Awaitable[None]], goes_on: Callable[[], bool]
    ) -> None:
        """A client is opened again after an error that faults may cause."""
        while goes_on():
            try:
                await life()
            except QuiverlogError as error:
                if not error.retriable and not isinstance(error, (*PASSING, DeliveryTimedOut)):
                    self.history.errors.append(f"error: {name}: {error}")
                await asyncio.sleep(0.2)


class _Producing:
    """One producer's rows, over all its lives."""

    def __init__(self, history: History, topic: TopicRow, number: int, rng: random.Random) -> None:
        self._history = history
        self._topic = topic
        self._number = number
        self._rng = rng
        self._next = 0
        self._waiting: set[asyncio.Task[None]] = set()

    async def step(self, producer: aio.AsyncProducer) -> None:
        """One send; waits while too many are without an answer."""
        rows, partition = (
            self._rng.randint(1, ROWS_PER_SEND_MAX),
            self._rng.randrange(self._topic.partitions),
        )
        send = Send((self._topic.name, partition), self._number, self._next, rows, time.monotonic())
        self._next += rows
        self._history.sends.append(send)
        values = [value(self._number, send.number + index) for index in range(rows)]
        data = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
        future = await producer.send(data, partition=partition)
        task = asyncio.create_task(self._outcome(send, future))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        await asyncio.sleep(self._rng.uniform(0, 2 * PACE_S))
        while len(self._waiting) >= SENDS_UNANSWERED_MAX:
            await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)

    async def outcome_of_all(self) -> None:
        """Wait until each send has an outcome: the client's delivery timeout bounds it."""
        if self._waiting:
            await asyncio.wait(self._waiting)

    async def _outcome(self, send: Send, future: aio.AsyncSendFuture) -> None:
        try:
            produced = await future.result()
        except QuiverlogError as error:
            self._failed(send, error)
            return
        send.returned_s = time.monotonic()
        number = send.number
        stored = []
        for run in produced:
            stored.append(Stored(run.base_offset, number, run.rows))
            number += run.rows
            if run.durability < Durability[self._topic.level.upper()]:
                self._history.errors.append(f"error: {run} in {self._topic.name}")
        send.stored = tuple(stored)
        send.outcome = Outcome.OK

    def _failed(self, send: Send, error: QuiverlogError) -> None:
        send.error = str(error)
        is_timeout = isinstance(error, DeliveryTimedOut | BufferExhausted)
        # A note lists what an earlier try may have stored.
        if not is_timeout and not getattr(error, "__notes__", ()) and error.code < 1000:
            send.outcome = Outcome.FAILED
        # Where rows may go with a leader, what is known of their producers may go too.
        if not is_timeout and error.code < 1000 and self._topic.is_kept:
            self._history.errors.append(f"error: producer-{self._number}: {error}")


class _Transacting:
    """One transactional id, and its rows over all its lives."""

    def __init__(self, history: History, number: int, rng: random.Random) -> None:
        self._history = history
        self._number = number
        self._rng = rng
        self._next = self._begun = 0

    async def step(self, client: aio.AsyncClient) -> None:
        """One transaction, committed or aborted."""
        rng = self._rng
        wait: Any = rng.choice(("decided", "published"))
        transaction = await client.transaction(
            f"program-{self._number}",
            wait=wait,
            timeout=DELIVERY_TIMEOUT_S,
            transaction_timeout=TRANSACTION_TIMEOUT_S,
        )
        self._begun += 1
        sends: list[Send] = []
        commits = rng.random() < 0.8
        try:
            try:
                for _ in range(rng.randint(1, 5)):
                    await self._send(transaction, sends)
            finally:
                if not commits or sys.exception() is not None:
                    # Nothing was asked for that could publish them.
                    _ended_with(sends, Outcome.FAILED)
                    await transaction.abort()
            if commits:
                await self._commit(transaction, sends)
        except (TransactionClosed, StagedRowsLost) as error:
            self._history.unknown[type(error).__name__] += 1
        await asyncio.sleep(rng.uniform(0, 4 * PACE_S))

    async def _send(self, transaction: aio.AsyncTransaction, sends: list[Send]) -> None:
        rows = self._rng.randint(1, ROWS_PER_SEND_MAX)
        topic = self._rng.choice([one for one in TOPICS if one.name in TRANSACTED])
        key = topic.name, self._rng.randrange(topic.partitions)
        send = Send(key, self._number, self._next, rows, time.monotonic(), transaction=self._begun)
        self._next += rows
        sends.append(send)
        self._history.sends.append(send)
        values = [value(self._number, send.number + index) for index in range(rows)]
        data = pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)
        await transaction.send(key[0], data, partition=key[1])

    async def _commit(self, transaction: aio.AsyncTransaction, sends: list[Send]) -> None:
        try:
            await transaction.commit()
        except CommitUnknown:
            self._history.unknown["CommitUnknown"] += 1
        except QuiverlogError:
            _ended_with(sends, Outcome.FAILED)
            raise
        else:
            _ended_with(sends, Outcome.OK)


def _ended_with(sends: Iterable[Send], outcome: Outcome) -> None:
    for send in sends:
        send.outcome, send.returned_s = outcome, time.monotonic()


def _read(reader: str, batch: ConsumerBatch) -> Read:
    values = array("q", batch.data.column(0).to_pylist())
    key = (batch.topic, batch.partition)
    return Read(reader, key, batch.base_offset, batch.leader_epoch, values, time.monotonic())


def _now_us() -> int:
    return time.monotonic_ns() // 1000


async def _ended(
    tasks: Iterable[asyncio.Task[None]], within_s: float, what: str, history: History
) -> None:
    tasks = list(tasks)
    done, late = await asyncio.wait(tasks, timeout=within_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    if late:
        history.errors.append(f"bound: {len(late)} {what} did not come to an end in {within_s:g} s")
    for task in done:
        task.result()
