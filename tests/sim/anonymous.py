"""A producer without an identity: its entries hold several batches, and nothing is sent twice.

Owns what the protocol still promises to such a producer: an entry is acknowledged as a whole, its
rows lie together and in order. What was under way when a connection broke was stored or not; the
next connection's rows carry another number, because they may be stored before it.
"""

from __future__ import annotations

from quiverlog.errors import StorageFault, UnknownTopicId, error_class
from quiverlog.types import Durability
from quiverlog.wire import messages as m

from .actors import Actor
from .checker import Checker, Key, Violation
from .rows import encode_rows
from .world import World

__all__ = ["AnonymousProducer"]

_BATCHES_MAX = 4
_FIRST_NUMBER = 100
_ANONYMOUS = (-1, -1)


class AnonymousProducer(Actor):
    """Writes unique, ascending values until stopped."""

    def __init__(self, world: World, checker: Checker, number: int) -> None:
        self.number = _FIRST_NUMBER + number
        self.stopped = False
        self._next_value = 0
        self._sent: dict[int, tuple[Key, list[int], int]] = {}
        """By correlation id: the partition, the values and their time."""
        super().__init__(world, checker, f"anonymous-{number}")

    @property
    def idle(self) -> bool:
        """True when nothing is under way."""
        return not self._sent

    def lost(self) -> None:
        self._sent.clear()
        self.number += 1_000
        self._next_value = 0

    def act(self) -> None:
        keys = self.checker.live()
        if keys and not self.stopped:
            self._send(self.rng.choice(keys))
        self.later(self.rng.randrange(5_000, 100_000))

    def _send(self, key: Key) -> None:
        topic = self.checker.partitions[key].topic
        at_us = self.world.wall_us
        values: list[int] = []
        parts: list[bytes] = []
        for _ in range(self.rng.randint(1, _BATCHES_MAX)):
            rows = self.rng.randint(1, self.world.scenario.rows_max)
            first = (self.number << 32) + self._next_value
            self._next_value += rows
            chunk = list(range(first, first + rows))
            schema_id = self.rng.randint(1, topic.schema_id)
            parts.append(
                encode_rows(
                    chunk,
                    self.rng,
                    schema_id=schema_id,
                    at_us=at_us,
                    producer=_ANONYMOUS,
                    sequence=-1,
                )
            )
            values += chunk
        self.checker.sent(key, values)
        self.world.events["batches of one entry"] += len(parts) > 1
        data = b"".join(parts)
        entry = m.ProducePartition(*key, self.epoch(key), len(data))
        self._sent[self.ask(m.ProduceRequest(partitions=[entry]), data)] = (key, values, at_us)

    def answered(self, request: m.Request, response: m.Response, body: bytes) -> None:
        if isinstance(response, m.HelloResponse):
            self.act()
        elif isinstance(response, m.ProduceResponse):
            key, values, at_us = self._sent.pop(response.correlation_id)
            result = response.partitions[0] if response.partitions else response
            if result.error_code:
                self._refused(key, result.error_code, result.error_message)
                return
            assert isinstance(result, m.ProducePartitionResult)
            self.note_epoch(key, result.leader_epoch)
            if result.row_count != len(values):
                raise Violation(f"{len(values)} rows sent, {result.row_count} acknowledged")
            flushed = result.durability >= Durability.FLUSHED
            self.checker.acked(key, result.base_offset, values, at_us, flushed)

    def _refused(self, key: Key, code: int, message: str) -> None:
        """The row is not sent again: one that was refused may be stored, or not."""
        self.checker.error(code)
        self.epochs.pop(key, None)
        model = self.checker.partitions[key]
        if code == UnknownTopicId.code and model.topic.doomed:
            return
        if code == StorageFault.code and not self.fault_excused(message):
            raise Violation(f"{model.name} takes no writes and no write ever failed: {message}")
        if not error_class(code).retriable:
            raise Violation(f"{model.name}: a good entry was refused: {message}")
