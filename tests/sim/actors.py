"""Clients of the simulated brokers: what they have in common, readers and trimmers.

They speak the protocol directly, because a client that hides faults would hide bugs too: a reader
asks for odd offsets, odd sizes and odd ends. The shipped client runs beside them (`shipped`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from quiverlog.errors import (
    CorruptLog,
    FencedLeaderEpoch,
    LogTruncated,
    OffsetOutOfRange,
    QuiverlogError,
    StorageFault,
    UnknownLeaderEpoch,
    UnknownTopicId,
    error_class,
)
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH
from quiverlog.wire import messages as m
from quiverlog.wire.frames import FrameReceiver, decode_response, encode, peek_preamble

from .checker import Checker, Key, Violation
from .decoding import rows_of
from .host import Host
from .network import Connection
from .world import World

__all__ = ["Actor", "Asked", "Reader", "Trimmer"]

_LATE_US = 1_500_000
"""More than any latency, and than a cut that has just ended."""


@dataclass(slots=True)
class Asked:
    """A request that waits for its answer, and what was known when it was sent."""

    request: m.Request
    sent_us: int
    floors: dict[Key, int]
    """Log starts."""


class Actor:
    """A client with one connection, reopened after a random pause whenever it breaks."""

    def __init__(self, world: World, checker: Checker, name: str) -> None:
        self.world = world
        self.checker = checker
        self.name = name
        self.rng = random.Random(f"{name}-{world.scenario.seed}")
        self.connection: Connection | None = None
        self.retired = False
        """Asks for nothing any more."""
        self.epochs: dict[Key, int] = {}
        """Leader epochs as of the last answers."""
        self.last = Asked(m.HelloRequest(), 0, {})
        """What the answer in hand was asked by."""
        self._receiver = FrameReceiver(own_bodies=True)
        self._correlation = 0
        self._asked: dict[int, Asked] = {}
        self.connect()

    @property
    def host(self) -> Host:
        """The node that this client talks to."""
        return self.world.hosts[0]

    # --- the connection ------------------------------------------------------------------------
    def connect(self) -> None:
        """Open a connection and send HELLO; try again later when no broker listens."""
        self._asked.clear()
        self.connection = self.world.connect(self, self.host.node_id)
        if self.connection is None:
            self.world.at(self.rng.randrange(1_000, 50_000), self.connect)
            return
        self._receiver = FrameReceiver(own_bodies=True)
        self.ask(m.HelloRequest(client_id=self.name))

    def hang_up(self) -> None:
        """Give the connection up, and with it what is under way."""
        if self.connection is not None:
            self.connection.close(self)
            self.on_closed(self.connection)

    def hang_up_later(self, delay_us: int) -> None:
        """Give up this connection after a while, unless it has changed by then."""
        connection = self.connection

        def give_up() -> None:
            if self.connection is connection:
                self.hang_up()

        self.world.at(delay_us, give_up)

    def ask(self, request: m.Request, body: bytes = b"") -> int:
        """Send a request; returns its correlation id."""
        assert self.connection is not None
        self._correlation += 1
        floors = {key: model.log_start_offset for key, model in self.checker.partitions.items()}
        self._asked[self._correlation] = Asked(request, self.world.mono_us, floors)
        frame = encode(request, self._correlation, len(body)) + body
        self.connection.send(self, frame)
        if isinstance(request, m.FetchRequest | m.ListOffsetsRequest) and request.max_wait_ms:
            self._expect_in_time(self._correlation, self.connection, request.max_wait_ms)
        return self._correlation

    def _expect_in_time(self, correlation_id: int, connection: Connection, wait_ms: int) -> None:
        """A long poll is answered when its time is up, also when nothing came."""

        def look() -> None:
            cut = self.world.network.is_cut(self.name, self.host.name)
            if self.connection is connection and correlation_id in self._asked and not cut:
                raise Violation(f"{self.name}: a long poll of {wait_ms} ms has no answer in time")

        self.world.at(wait_ms * 1_000 + _LATE_US, look)

    def later(self, delay_us: int) -> None:
        """Call `act` after a while, unless the connection has changed by then."""
        connection = self.connection

        def act() -> None:
            if self.connection is connection and connection is not None and not self.retired:
                self.act()

        self.world.at(delay_us, act)

    def on_closed(self, connection: Connection) -> None:
        """Endpoint protocol."""
        if connection is self.connection:
            self.connection = None
            self.lost()
            self.world.at(self.rng.randrange(1_000, 50_000), self.connect)

    def on_bytes(self, connection: Connection, data: bytes) -> None:
        """Endpoint protocol."""
        while data and connection is self.connection:
            buffer = self._receiver.get_buffer()
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            for header, body in self._receiver.buffer_updated(size):
                if connection is self.connection:
                    self._answer(header, bytes(body))

    def _answer(self, header: memoryview, body: bytes) -> None:
        correlation_id = peek_preamble(header)[2]
        asked = self._asked.pop(correlation_id, None)
        if asked is None:
            raise Violation(f"an answer to nothing: correlation id {correlation_id}")
        response = decode_response(header, int(asked.request.API))
        self.last = asked
        parts = getattr(response, "partitions", None) or getattr(response, "topics", ())
        for part in (response, *parts):
            if part.error_code == QuiverlogError.code:
                raise Violation(f"internal error: {self.host.log_lines[-1][-2000:]}")
        self.answered(asked.request, response, body)

    @property
    def unanswered(self) -> list[Asked]:
        """Requests that wait, on a connection that is still there."""
        return [] if self.connection is None else list(self._asked.values())

    # --- what is known -------------------------------------------------------------------------
    def log_start(self, key: Key, offset: int) -> None:
        """Answers of two connections may overtake each other: hence the floors."""
        self.checker.log_start(key, offset, self.world.wall_us, self.last.floors.get(key, 0))

    @property
    def excused(self) -> bool:
        """May the answer in hand be an error because an operation was made to fail?"""
        return self.host.fault_until_us >= self.last.sent_us

    def epoch(self, key: Key) -> int:
        """The leader epoch to ask with: none, or the last one that was answered."""
        return self.epochs.get(key, NO_EPOCH) if self.rng.random() < 0.3 else NO_EPOCH

    def note_epoch(self, key: Key, epoch: int) -> None:
        """An answer carried this leader epoch."""
        if epoch >= 0:
            self.epochs[key] = epoch

    def refused(self, key: Key, code: int, message: str) -> None:
        """An error for one partition: is it one that a good request may get?"""
        self.checker.error(code)
        model = self.checker.partitions[key]
        if code in (FencedLeaderEpoch.code, UnknownLeaderEpoch.code):
            self.epochs.pop(key, None)
        if code == UnknownTopicId.code and model.topic.doomed:
            return
        if code in (CorruptLog.code, StorageFault.code):
            if not (model.damaged or model.torn or self.fault_excused(message)):
                raise Violation(f"{model.name}: {message} (nothing was damaged)")
        elif not error_class(code).retriable:
            raise Violation(f"{model.name}: a good request was refused: {message}")

    def fault_excused(self, message: str) -> bool:
        """May a request that was sent when the one in hand was meet a STORAGE_FAULT?

        Because an operation has just failed, a write or an fsync did in this life of the node, or a
        partition waits to be opened again.
        """
        failures = self.host.disk.failures
        if "is offline" in message and self.host.offline_until_us >= self.last.sent_us:
            return True
        return self.excused or bool(failures["EIO append"] or failures["EIO fsync"])

    def keys(self) -> list[Key]:
        """The partitions that this client works with."""
        return self.checker.live()

    # --- for subclasses ------------------------------------------------------------------------
    def lost(self) -> None:
        """The connection broke."""

    def act(self) -> None:
        """Do the next thing."""

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        """An answer came."""
        raise NotImplementedError


class Reader(Actor):
    """Fetches from odd places and compares."""

    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self._ends: dict[Key, int] = {}
        super().__init__(world, checker, f"reader-{number}")

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.ListOffsetsResponse):
            self._listed(request, response)
        elif isinstance(response, m.FetchResponse):
            self._fetched(request, response, body)
        self.later(self.rng.randrange(1_000, 60_000))

    def act(self) -> None:
        keys = self.keys()
        if not keys:
            self.later(10_000)
            return
        chosen = self.rng.sample(keys, min(len(keys), self.rng.choice((1, 1, 3))))
        unknown = [key for key in chosen if key not in self._ends]
        if unknown or self.rng.random() < 0.2:
            at = self.rng.choice((EARLIEST, LATEST))
            entries = [m.ListOffsetsPartition(*key, self.epoch(key), at) for key in chosen]
            self.ask(m.ListOffsetsRequest(partitions=entries))
            return
        self.ask(
            m.FetchRequest(
                max_wait_ms=self.rng.choice((0, 0, 50)),
                bytes_max=self.rng.choice((1, 2_000, 30_000)),
                partitions=[self._entry(key) for key in chosen],
            )
        )

    def _entry(self, key: Key) -> m.FetchPartition:
        end = self._ends[key]
        start = self.checker.partitions[key].log_start_offset
        return m.FetchPartition(
            *key,
            leader_epoch=self.epoch(key),
            offset=self.rng.randint(start, max(start, end)),
            bytes_max=self.rng.choice((1, 3_000, 30_000)),
            end_offset=self.rng.choice((-1, -1, end)),
        )

    def _listed(self, request: m.Request, response: m.ListOffsetsResponse) -> None:
        assert isinstance(request, m.ListOffsetsRequest)
        for asked, got in zip(request.partitions, response.partitions, strict=False):
            key = (got.topic_id, got.partition)
            if got.error_code:
                self.refused(key, got.error_code, got.error_message)
            elif asked.at == EARLIEST:
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
                self._failed(key, got)
                continue
            self.note_epoch(key, got.leader_epoch)
            self.log_start(key, got.log_start_offset)
            self._ends[key] = max(self._ends.get(key, 0), got.high_watermark)
            self.take(key, asked.offset, body[at : at + got.batch_bytes])
            at += got.batch_bytes

    def _failed(self, key: Key, got: m.FetchPartitionResult) -> None:
        if got.error_code in (OffsetOutOfRange.code, LogTruncated.code):
            self.checker.error(got.error_code)
            self._ends.pop(key, None)
        else:
            self.refused(key, got.error_code, got.error_message)

    def take(self, key: Key, asked_offset: int, body: bytes) -> int:
        """Decode and compare; returns the offset after the last row."""
        after, found = rows_of(self.checker.partitions[key], asked_offset, body)
        for base_offset, values in found:
            self.checker.read(key, base_offset, values)
        return after


class Trimmer(Actor):
    """Deletes rows up to odd offsets, mostly inside batches, or all there are."""

    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self._pause_us = world.scenario.trim_interval_ms * 1_000
        super().__init__(world, checker, f"trimmer-{number}")
        checker.on_full.append(self._clear)

    def _clear(self) -> None:
        """A disk is full: give up all that is known, when what is under way has come to an end."""
        connection = self.connection

        def clear() -> None:
            if self.connection is connection and connection is not None and not self.retired:
                ends = {key: self._end(key) for key in self.checker.live()}
                self._delete(ends)

        for _ in range(3):
            self.world.at(self.rng.randrange(5_000, 600_000), clear)

    def _end(self, key: Key) -> int:
        model = self.checker.partitions[key]
        known = (model.seen, model.acknowledged, model.acknowledged_memory)
        return max(max(rows, default=-1) for rows in known) + 1

    def act(self) -> None:
        offsets: dict[Key, int] = {}
        keys = self.checker.live()
        for key in self.rng.sample(keys, min(len(keys), self.rng.choice((1, 1, 2)))):
            newest = max(self.checker.partitions[key].seen, default=0)
            inside = self.rng.randint(0, newest)
            offsets[key] = self.rng.choice((newest, inside, self._end(key), self._end(key)))
        self._delete(offsets)
        self.later(self.rng.randrange(self._pause_us // 10, self._pause_us))

    def _delete(self, offsets: dict[Key, int]) -> None:
        entries: list[m.DeleteRecordsPartition] = []
        for key, before in offsets.items():
            if before > self.checker.partitions[key].log_start_offset:
                self.checker.trimmed(key, before)
                entries.append(m.DeleteRecordsPartition(*key, before))
        if entries:
            self.ask(m.DeleteRecordsRequest(partitions=entries))

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.HelloResponse):
            self.later(1_000)
        elif isinstance(response, m.DeleteRecordsResponse):
            assert isinstance(request, m.DeleteRecordsRequest)
            for asked, got in zip(request.partitions, response.partitions, strict=False):
                key = (got.topic_id, got.partition)
                if got.error_code == OffsetOutOfRange.code:
                    self.checker.error(got.error_code)
                elif got.error_code:
                    self.refused(key, got.error_code, got.error_message)
                else:
                    self.log_start(key, got.log_start_offset)
                    self.checker.trim_done(key, min(got.log_start_offset, asked.before_offset))
                    self.world.events["rows deleted"] += 1
