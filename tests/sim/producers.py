"""A producer that keeps the rules of the protocol and uses all the freedom that they leave.

Owns the numbering: one identity, a sequence per partition, entries of one batch (ADR 0016) that are
sent again unchanged until their fate is known, requests of one or several entries, at most five
entries of a partition unanswered. Answers are checked against what was sent; acknowledged rows are
reported to the checker.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiverlog.errors import (
    FencedLeaderEpoch,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    StorageFault,
    UnknownLeaderEpoch,
    UnknownProducerId,
    UnknownTopicId,
    error_class,
)
from quiverlog.types import Durability
from quiverlog.wire import messages as m

from .actors import Actor
from .checker import Checker, Key, Violation
from .network import Connection
from .rows import encode_rows
from .world import World

__all__ = ["Producer"]

_IN_FLIGHT_MAX = 5
_LANES_MAX = 3
_IDENTITY_LOST = (UnknownProducerId.code, OutOfOrderSequence.code, InvalidProducerEpoch.code)


@dataclass(slots=True, eq=False)
class _Entry:
    """A batch that was numbered; it is sent again until its fate is known."""

    key: Key
    values: list[int]
    at_us: int
    data: bytes
    connection: Connection | None = None
    """Where it was sent last; None while it waits to be sent."""
    number: int = 0
    """The entry's place among all entries of its partition."""
    order: int = 0
    """The entry's place among all that was sent, at its last sending."""


@dataclass(slots=True, eq=False)
class _Partition:
    """One partition's entries, oldest first."""

    sequence: int = 0
    count: int = 0
    entries: list[_Entry] = field(default_factory=list)
    stalled: bool = False
    """Something failed: wait for all answers, then begin again from the oldest."""

    @property
    def span(self) -> int:
        """Entries from the oldest undecided one to the newest."""
        return self.count - self.entries[0].number if self.entries else 0

    @property
    def unanswered(self) -> list[_Entry]:
        return [entry for entry in self.entries if entry.connection is not None]


class Producer(Actor):
    """Writes unique, ascending values to some partitions until stopped."""

    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self.number = number
        self.stopped = False
        self._next_value = 0
        self._identity: tuple[int, int] | None = None
        self._partitions: dict[Key, _Partition] = {}
        self._requests: dict[int, list[_Entry]] = {}
        self._order = 0
        super().__init__(world, checker, f"producer-{number}")

    @property
    def idle(self) -> bool:
        """Is everything that was numbered decided?"""
        return not any(partition.entries for partition in self._partitions.values())

    def lost(self) -> None:
        self._requests.clear()
        for partition in self._partitions.values():
            partition.stalled = False
            for entry in partition.entries:
                entry.connection = None

    # --- sending -------------------------------------------------------------------------------
    def act(self) -> None:
        if self._identity is None:
            return
        self._choose_partitions()
        for key, partition in self._partitions.items():
            if not self.stopped and partition.span < self.rng.randint(1, _IN_FLIGHT_MAX):
                self._make(key, partition)
        self._send_all()
        self.later(self.rng.randrange(1_000, 60_000))

    def _choose_partitions(self) -> None:
        for key in [k for k in self._partitions if self.checker.partitions[k].topic.doomed]:
            del self._partitions[key]  # What becomes of its entries cannot be known any more.
        keys = [key for key in self.keys() if key not in self._partitions]
        wanted = min(self.world.scenario.entries_max, _LANES_MAX)
        if keys and not self.stopped and len(self._partitions) < wanted:
            self._partitions[self.rng.choice(keys)] = _Partition()

    def _make(self, key: Key, partition: _Partition) -> None:
        assert self._identity is not None
        scenario = self.world.scenario
        model = self.checker.partitions[key]
        at_us = self.world.wall_us
        rows = self.rng.randint(1, scenario.rows_max)
        first = (self.number << 32) + self._next_value
        self._next_value += rows
        values = list(range(first, first + rows))
        self.checker.sent(key, values)
        lookalike = None
        if self.rng.random() < scenario.payload_batches:
            newest = max(max(model.seen, default=0), max(model.acknowledged, default=0))
            lookalike = (newest, self.epochs.get(key, 0))
        data = encode_rows(
            values,
            self.rng,
            schema_id=self.rng.randint(1, model.topic.schema_id),
            at_us=at_us,
            producer=self._identity,
            sequence=partition.sequence,
            lookalike=lookalike,
        )
        partition.sequence += rows
        entry = _Entry(key, values, at_us, data, number=partition.count)
        partition.count += 1
        partition.entries.append(entry)

    def _send_all(self) -> None:
        """Everything that waits, in order, spread over requests at random."""
        waiting = [
            [entry for entry in partition.entries if entry.connection is None]
            for partition in self._partitions.values()
            if not partition.stalled
        ]
        while any(waiting):
            entries = [queue.pop(0) for queue in waiting if queue]
            if len(entries) > 1 and self.rng.random() < 0.3:
                for entry in entries:
                    self._send([entry])
            else:
                self._send(entries)

    def _send(self, entries: list[_Entry]) -> None:
        request = m.ProduceRequest(
            durability=self._level(entries),
            timeout_ms=20 if self.rng.random() < self.world.scenario.hasty else 30_000,
            partitions=[
                m.ProducePartition(*entry.key, self.epoch(entry.key), len(entry.data))
                for entry in entries
            ],
        )
        for entry in entries:
            self._order += 1
            entry.connection, entry.order = self.connection, self._order
        self._requests[self.ask(request, b"".join(e.data for e in entries))] = entries

    def _level(self, entries: list[_Entry]) -> int:
        """What to ask for: anything, or more of what is sent again than at first."""
        if self.rng.random() < self.world.scenario.stronger_again:
            again = any(entry.order for entry in entries)
            return int(Durability.FLUSHED if again else Durability.TOPIC_DEFAULT)
        levels = (Durability.TOPIC_DEFAULT, Durability.TOPIC_DEFAULT, Durability.FLUSHED)
        return int(self.rng.choice(levels))

    # --- answers -------------------------------------------------------------------------------
    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.HelloResponse):
            if self._identity is None:
                self.ask(m.InitProducerIdRequest())
            else:
                self.act()
        elif isinstance(response, m.InitProducerIdResponse):
            self._introduced(response)
        elif isinstance(response, m.ProduceResponse):
            entries = self._requests.pop(response.correlation_id, [])
            for index, entry in enumerate(entries):
                partition = self._partitions.get(entry.key)
                if partition is None or entry not in partition.entries:
                    continue  # Given up with the identity that it was numbered for.
                if response.error_code:
                    self._refused(partition, entry, response.error_code, response.error_message)
                else:
                    self._decided(partition, entry, response.partitions[index])

    def _introduced(self, response: m.InitProducerIdResponse) -> None:
        if response.error_code:
            self.checker.error(response.error_code)
            self.hang_up_later(50_000)
            return
        self._identity = (response.producer_id, response.producer_epoch)
        self.checker.producer_given(*self._identity)
        self.act()

    def _decided(
        self, partition: _Partition, entry: _Entry, result: m.ProducePartitionResult
    ) -> None:
        before = [e for e in partition.unanswered if e.order < entry.order]
        if not result.error_code and any(e.connection is entry.connection for e in before):
            raise Violation(f"acknowledgements of {entry.key[1]} overtook each other")
        if result.error_code:
            self._refused(partition, entry, result.error_code, result.error_message)
            return
        self.note_epoch(entry.key, result.leader_epoch)
        if result.row_count != len(entry.values):
            raise Violation(f"{len(entry.values)} rows sent, {result.row_count} acknowledged")
        partition.entries.remove(entry)
        flushed = result.durability >= Durability.FLUSHED
        self.checker.acked(entry.key, result.base_offset, entry.values, entry.at_us, flushed)

    def _refused(self, partition: _Partition, entry: _Entry, code: int, message: str) -> None:
        """Wait until all in flight are answered, then send again in order; or start anew."""
        self.checker.error(code)
        model = self.checker.partitions[entry.key]
        if code == UnknownTopicId.code and model.topic.doomed:
            self._partitions.pop(entry.key, None)
            return
        if code in (FencedLeaderEpoch.code, UnknownLeaderEpoch.code):
            self.epochs.pop(entry.key, None)
        if code == StorageFault.code and not self.fault_excused(message):
            raise Violation(f"{model.name} takes no writes and no write ever failed: {message}")
        if code in _IDENTITY_LOST and entry is partition.entries[0]:
            self._identity_lost(partition, entry, message)
            return
        if code not in _IDENTITY_LOST and not error_class(code).retriable:
            raise Violation(f"{model.name}: a good batch was refused: {message}")
        entry.connection = None
        partition.stalled = bool(partition.unanswered)
        if partition.stalled:
            # The rest is refused as out of order, or was stored before: either way answered.
            self.hang_up_later(200_000)

    def _identity_lost(self, partition: _Partition, entry: _Entry, message: str) -> None:
        """The oldest undecided entry can never be stored under its number.

        Right only where rows may vanish. On a `flushed` topic the broker must remember us.
        """
        if not self.checker.partitions[entry.key].may_lose_producers:
            raise Violation(f"the broker forgot producer {self.number}: {message}")
        self._partitions.clear()
        self._identity = None
        self.number += 1_000
        self._next_value = 0
        self.ask(m.InitProducerIdRequest())
