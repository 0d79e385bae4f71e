"""Clients of the simulated broker: idempotent producers, suspicious readers, trimmers.

They speak the protocol directly, because a client that hides faults would hide bugs too: a producer
resends the very same batches after a broken connection, and never more than the rule of five in
flight; a reader asks for odd offsets, odd sizes and odd ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pyarrow as pa

from quiverlog.batch.codec import decode_batch, encode_batch, split_batches
from quiverlog.batch.schema import SchemaHistory
from quiverlog.errors import (
    CorruptBatch,
    CorruptLog,
    InvalidProducerEpoch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    QuiverlogError,
    StorageFault,
    UnknownProducerId,
    error_class,
)
from quiverlog.types import EARLIEST, LATEST, Durability
from quiverlog.wire import messages as m

from .checker import Checker, Violation
from .world import World

__all__ = ["SCHEMA", "Actor", "Producer", "Reader", "Trimmer"]

SCHEMA = pa.schema([("value", pa.int64()), ("padding", pa.string())])
_IN_FLIGHT_MAX = 5
_IDENTITY_LOST = (UnknownProducerId.code, OutOfOrderSequence.code, InvalidProducerEpoch.code)

Key = tuple[bytes, int]


class Actor:
    """A client with one connection, reopened after a random pause whenever it breaks."""

    def __init__(self, world: World, checker: Checker, name: str) -> None:
        self.world = world
        self.checker = checker
        self.rng = random.Random(f"{name}-{world.scenario.seed}")
        self.connection = -1
        self._correlation = 0
        self._asked: dict[int, tuple[m.Request, dict[Key, int]]] = {}
        self.floors: dict[Key, int] = {}
        """Log starts that were known when the request that is being answered was sent."""
        self.connect()

    def connect(self) -> None:
        """Open a connection and say HELLO; try again later when nobody listens."""
        self._asked.clear()
        self.connection = self.world.connect(self)
        if self.connection < 0:
            self.world.at(self.rng.randrange(1_000, 50_000), self.connect)
            return
        self.ask(m.HelloRequest(client_id="sim"))

    def ask(self, request: m.Request, body: bytes = b"") -> int:
        """Send a request; returns its correlation id."""
        self._correlation += 1
        starts = {key: model.log_start_offset for key, model in self.checker.partitions.items()}
        self._asked[self._correlation] = (request, starts)
        self.world.send(self.connection, request, self._correlation, body)
        return self._correlation

    def later(self, delay_us: int) -> None:
        """Call `act` after a while, unless the connection has changed by then."""
        connection = self.connection

        def act() -> None:
            if self.connection == connection and connection in self.world.connections:
                self.act()

        self.world.at(delay_us, act)

    def on_closed(self, connection: int) -> None:
        """Owner protocol."""
        if connection == self.connection:
            self.connection = -1
            self.lost()
            self.world.at(self.rng.randrange(1_000, 50_000), self.connect)

    def on_response(self, connection: int, response: m.Response, body: bytes) -> None:
        """Owner protocol."""
        if connection != self.connection:
            return
        asked = self._asked.pop(response.correlation_id, None)
        if asked is None:
            raise Violation(f"an answer to nothing: {response}")
        request, self.floors = asked
        if response.error_code == QuiverlogError.code:
            raise Violation(f"internal error: {self.world.log_lines[-1]}")
        self.answered(request, response, body)

    def log_start(self, key: Key, offset: int) -> None:
        """Answers of two connections may overtake each other: hence the floors."""
        self.checker.log_start(key, offset, self.world.wall_us, self.floors[key])

    def lost(self) -> None:
        """The connection broke."""

    def act(self) -> None:
        """Do the next thing."""

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        """An answer came."""
        raise NotImplementedError


@dataclass(slots=True)
class _Batch:
    """A batch that was numbered; it is sent again unchanged until its fate is known."""

    values: list[int]
    sequence: int
    at_us: int
    data: bytes
    sent: bool = False
    correlation: int = -1


class Producer(Actor):
    """Writes unique, ascending values to one partition until told to stop."""

    def __init__(self, world: World, checker: Checker, number: int, key: Key) -> None:
        self.key = key
        self.number = number
        self.stopped = False
        self._next_value = 0
        self._identity: tuple[int, int] | None = None
        self._sequence = 0
        self._batches: list[_Batch] = []
        self._stalled = False
        super().__init__(world, checker, f"producer-{number}")

    @property
    def idle(self) -> bool:
        """Is everything that was numbered decided?"""
        return not self._batches

    def lost(self) -> None:
        self._stalled = False
        for batch in self._batches:
            batch.sent = False

    def act(self) -> None:
        if self._identity is None:
            return
        if not self.stopped and len(self._batches) < self.rng.randint(1, _IN_FLIGHT_MAX):
            self._make()
        if not self._stalled:
            for batch in self._batches:
                if not batch.sent:
                    self._send(batch)
        self.later(self.rng.randrange(1_000, 60_000))

    def _make(self) -> None:
        assert self._identity is not None
        rows = self.rng.randint(1, self.world.scenario.rows_max)
        first = (self.number << 32) + self._next_value
        self._next_value += rows
        values = list(range(first, first + rows))
        padding = [self.rng.choice("ab") * self.rng.randrange(0, 200)] * rows
        data = pa.record_batch([pa.array(values), pa.array(padding)], schema=SCHEMA)
        at_us = self.world.wall_us
        encoded = encode_batch(
            data,
            schema_id=1,
            timestamp_us=at_us,
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            base_sequence=self._sequence,
        )
        self._batches.append(_Batch(values, self._sequence, at_us, bytes(encoded)))
        self._sequence += rows

    def _send(self, batch: _Batch) -> None:
        topic_id, partition = self.key
        level = self.rng.choice((Durability.TOPIC_DEFAULT, Durability.TOPIC_DEFAULT, 1))
        entry = m.ProducePartition(topic_id, partition, -1, len(batch.data))
        request = m.ProduceRequest(durability=int(level), partitions=[entry])
        batch.sent = True
        batch.correlation = self.ask(request, batch.data)

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.HelloResponse):
            if self._identity is None:
                self.ask(m.InitProducerIdRequest())
            else:
                self.act()
        elif isinstance(response, m.InitProducerIdResponse):
            if response.error_code:
                self.world.at(50_000, lambda: self.world.drop(self.connection))
                return
            self._identity = (response.producer_id, response.producer_epoch)
            self._sequence = 0
            self.act()
        elif isinstance(response, m.ProduceResponse):
            answered = response.correlation_id
            batch = next((b for b in self._batches if b.correlation == answered), None)
            if batch is None:
                return  # Given up with the identity that it was numbered for.
            if response.error_code:
                self._refused(batch, response.error_code)
                return
            result = response.partitions[0]
            if result.error_code:
                self._refused(batch, result.error_code)
                return
            if result.row_count != len(batch.values):
                raise Violation(f"{len(batch.values)} rows sent, {result.row_count} acknowledged")
            self._batches.remove(batch)
            flushed = result.durability >= Durability.FLUSHED
            self.checker.acked(self.key, result.base_offset, batch.values, batch.at_us, flushed)

    def _refused(self, batch: _Batch, code: int) -> None:
        """Wait until all in flight are answered, then send again in order; or start anew."""
        self.checker.errors_seen[code] = self.checker.errors_seen.get(code, 0) + 1
        if code in _IDENTITY_LOST and batch is self._batches[0]:
            self._identity_lost(code)
            return
        if code not in _IDENTITY_LOST and not error_class(code).retriable:
            raise Violation(f"a good batch was refused with {error_class(code).code_name()}")
        batch.sent = False
        self._stalled = any(b.sent for b in self._batches)
        connection = self.connection
        if not self._stalled:
            return
        # The rest is refused as out of order, or was stored before: either way it is answered.
        self.world.at(200_000, lambda: self.world.drop(connection))

    def _identity_lost(self, code: int) -> None:
        """The oldest undecided batch can never be stored under its number.

        Right only where rows may vanish (`memory`), or its rows were acknowledged to nobody while
        retention forgot the producer. On a `flushed` topic the broker must remember us.
        """
        model = self.checker.partitions[self.key]
        lossy = model.plan.durability == "memory" or model.damaged
        retained = model.plan.retention_ms >= 0 or model.plan.retention_bytes >= 0
        if not lossy and not retained and model.trimmed_to == 0:
            raise Violation(f"the broker forgot producer {self.number}: error {code}")
        self._batches.clear()
        self._identity = None
        self.number += 1_000
        self._next_value = 0
        self.ask(m.InitProducerIdRequest())


class Reader(Actor):
    """Fetches from odd places and compares."""

    def __init__(self, world: World, checker: Checker, number: int, keys: list[Key]) -> None:
        self.keys = keys
        self._schemas = SchemaHistory({1: SCHEMA})
        self._ends: dict[Key, int] = {}
        super().__init__(world, checker, f"reader-{number}")

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.ListOffsetsResponse):
            self._listed(request, response)
        elif isinstance(response, m.FetchResponse):
            self._fetched(request, response, body)
        self.later(self.rng.randrange(1_000, 30_000))

    def act(self) -> None:
        key = self.rng.choice(self.keys)
        if key not in self._ends or self.rng.random() < 0.2:
            at = self.rng.choice((EARLIEST, LATEST))
            self.ask(m.ListOffsetsRequest(partitions=[m.ListOffsetsPartition(*key, at=at)]))
            return
        start = self.checker.partitions[key].log_start_offset
        end = self._ends[key]
        offset = self.rng.randint(start, max(start, end))
        self.ask(
            m.FetchRequest(
                max_wait_ms=self.rng.choice((0, 0, 50)),
                bytes_max=self.rng.choice((1, 2_000, 100_000)),
                partitions=[
                    m.FetchPartition(
                        *key,
                        offset=offset,
                        bytes_max=self.rng.choice((1, 3_000, 100_000)),
                        end_offset=self.rng.choice((-1, -1, end)),
                    )
                ],
            )
        )

    def _listed(self, request: m.Request, response: m.ListOffsetsResponse) -> None:
        assert isinstance(request, m.ListOffsetsRequest)
        for asked, got in zip(request.partitions, response.partitions, strict=False):
            if got.error_code:
                continue
            key = (got.topic_id, got.partition)
            if asked.at == EARLIEST:
                self.log_start(key, got.offset)
                self._ends.setdefault(key, got.offset)
            else:
                self._ends[key] = got.offset

    def _fetched(self, request: m.Request, response: m.FetchResponse, body: bytes) -> None:
        assert isinstance(request, m.FetchRequest)
        at = 0
        for asked, got in zip(request.partitions, response.partitions, strict=False):
            key = (got.topic_id, got.partition)
            if got.error_code:
                self._refused(key, asked, got)
                continue
            self.log_start(key, got.log_start_offset)
            self._ends[key] = max(self._ends.get(key, 0), got.high_watermark)
            self.take(key, asked.offset, body[at : at + got.batch_bytes])
            at += got.batch_bytes

    def _refused(self, key: Key, asked: m.FetchPartition, got: m.FetchPartitionResult) -> None:
        code = got.error_code
        model = self.checker.partitions[key]
        self.checker.errors_seen[code] = self.checker.errors_seen.get(code, 0) + 1
        if code == OffsetOutOfRange.code:
            self._ends.pop(key, None)
        elif code in (CorruptLog.code, StorageFault.code):
            if not model.damaged:
                raise Violation(f"offset {asked.offset}: {got.error_message}, and no bit flipped")
        elif not error_class(code).retriable:
            raise Violation(f"a good fetch was refused: {got.error_message}")

    def take(self, key: Key, asked_offset: int, body: bytes) -> int:
        """Decode, slice as a reader would, compare; returns the offset after the last row."""
        expected = -1
        model = self.checker.partitions[key]
        try:
            for header, view in split_batches(memoryview(body)):
                if expected < 0 and not header.base_offset <= asked_offset < header.next_offset:
                    raise Violation(
                        f"asked for {asked_offset}, got rows {header.base_offset} to"
                        f" {header.next_offset}"
                    )
                if expected >= 0 and header.base_offset != expected:
                    raise Violation(f"a gap: {expected} was due, {header.base_offset} came")
                data = decode_batch(view, header, self._schemas)
                values = data.column(0).to_pylist()
                self.checker.read(key, header.base_offset, values)
                expected = header.next_offset
        except CorruptBatch as error:
            if not model.damaged:
                raise Violation(f"damaged bytes were served: {error}") from error
        return max(expected, asked_offset)


class Trimmer(Actor):
    """Deletes rows up to odd offsets."""

    def __init__(self, world: World, checker: Checker, number: int, keys: list[Key]) -> None:
        self.keys = keys
        super().__init__(world, checker, f"trimmer-{number}")

    def act(self) -> None:
        key = self.rng.choice(self.keys)
        model = self.checker.partitions[key]
        newest = max(model.seen, default=0)
        before = self.rng.randint(0, newest)
        if before > model.log_start_offset:
            self.checker.trimmed(key, before)
            self.ask(m.DeleteRecordsRequest(partitions=[m.DeleteRecordsPartition(*key, before)]))
        self.later(self.rng.randrange(200_000, 3_000_000))

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.HelloResponse):
            self.later(1_000)
        elif isinstance(response, m.DeleteRecordsResponse):
            assert isinstance(request, m.DeleteRecordsRequest)
            for asked, got in zip(request.partitions, response.partitions, strict=False):
                if not got.error_code:
                    key = (got.topic_id, got.partition)
                    self.log_start(key, got.log_start_offset)
                    self.checker.trim_done(key, min(got.log_start_offset, asked.before_offset))
