"""The machine that stages the rows of transactions, without I/O, thread and clock.

Rows become batches of their topics, and each batch a row of `__staged`, which the producer's
machine sends. One transaction at a time: `begin` names it, `attempts` is what its commit names.

Invariant: `attempts` covers what brokers have acknowledged of the transaction, and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from quiverlog.client.base.arguments import shown
from quiverlog.client.base.commands import Operation
from quiverlog.client.base.results import Produced, TopicInfo
from quiverlog.client.producer.accumulator import Accumulator
from quiverlog.client.producer.core import ProducerCore
from quiverlog.client.producer.identity import Numbering
from quiverlog.client.producer.types import (
    Delivery,
    EncodedBatch,
    Identity,
    ProducerOptions,
    Receiver,
    Work,
)
from quiverlog.errors import (
    BatchTooLarge,
    QuiverlogError,
    TransactionClosed,
    TransactionTooLarge,
    UnknownTopicId,
)
from quiverlog.limits import (
    BATCH_DECODED_BYTES_MAX,
    BATCH_ROWS_MAX,
    PRODUCER_BATCH_BYTES_DEFAULT,
    PRODUCER_BATCH_ROWS_DEFAULT,
)
from quiverlog.types import NO_SEQUENCE, STAGED_TOPIC, Compression, Durability, Now
from quiverlog.wire.transaction_messages import CommittedAttempt, CommittedPart

if TYPE_CHECKING:
    from quiverlog.client.rows.convert import Converter

__all__ = ["StagingCore", "Target", "staging_options"]

_UNNUMBERED: Final = Numbering(Identity(), is_idempotent=False)
_LEADERS_MAX: Final = 8
"""With more leaders of targets, rows go where others went: a commit names few parts."""

_ROW_BYTES: Final = 4096
"""At most, of a row of `__staged` and its batch, beside the batch that the row holds."""

_STAGED_ROWS_MAX: Final = 64
"""Of one staged batch: 64 batches of a producer stay within the bounds of one PRODUCE."""

_TARGET_ROWS_MAX: Final = 2**31 - 1
"""Of one transaction, for one partition."""

assert _STAGED_ROWS_MAX * PRODUCER_BATCH_ROWS_DEFAULT <= BATCH_ROWS_MAX
assert _STAGED_ROWS_MAX * PRODUCER_BATCH_BYTES_DEFAULT < BATCH_DECODED_BYTES_MAX


def staging_options(options: ProducerOptions) -> ProducerOptions:
    """Return how a producer with these options sends rows of `__staged`."""
    # A batch is compressed itself; brokers publish it from where it lies.
    return replace(
        options,
        batch_rows=_STAGED_ROWS_MAX,
        linger_us=1,  # Until the next poll: batches that are closed together share one.
        compression=Compression.NONE,
        durability=Durability.TOPIC_DEFAULT,
    )


@dataclass(slots=True, eq=False)
class Target:
    """A topic that the transaction writes to."""

    topic: TopicInfo
    converter: Converter
    rows: Accumulator


class _StagedBatch:
    """The receiver of one row of `__staged`: passes its outcome to the sends of its rows."""

    __slots__ = ("_attempt", "_batch", "_core", "_partition")

    def __init__(
        self, core: StagingCore, attempt: bytes, partition: int, batch: EncodedBatch
    ) -> None:
        self._core = core
        self._attempt = attempt
        self._partition = partition
        self._batch = batch

    def add_piece(self) -> None:
        """Do nothing: its sends were counted when their rows came."""

    def acknowledge(self, produced: Produced) -> None:
        self._core.staged(self._attempt, produced, self._batch.row_count)
        for receiver, row_count in self._batch.pieces:
            receiver.acknowledge(
                Produced(
                    self._partition,
                    -1,
                    row_count,
                    produced.durability,
                    produced.duplicate,
                )
            )

    def fail(self, error: QuiverlogError) -> None:
        for receiver, _ in self._batch.pieces:
            receiver.fail(error)

    def failed(self) -> Sequence[Delivery]:
        return [one for receiver, _ in self._batch.pieces for one in receiver.failed()]

    def halves(self, row_count: int) -> tuple[_StagedBatch, _StagedBatch]:
        raise AssertionError("a staged batch is one row")


class StagingCore(ProducerCore):
    """Stages rows as a producer of `__staged`.

    Args:
        topic, converter, schema_id: of `__staged`.
    """

    def __init__(
        self,
        topic: TopicInfo,
        converter: Converter,
        schema_id: int,
        options: ProducerOptions,
        identity: Identity,
        *,
        jitter: Callable[[], float],
    ) -> None:
        super().__init__(topic, converter, schema_id, options, identity, jitter=jitter)
        self._jitter = jitter
        self._targets: dict[str, Target] = {}
        self._row_counts: dict[tuple[bytes, int], int] = {}
        self._now = Now(0, 0)
        self._names: tuple[str, int, int, bytes] = ("", 0, 0, b"")
        self._parts: dict[int, CommittedPart] = {}
        self._chosen: dict[int, int] = {}
        # By target: rows of two places are published side by side, and would lie in any order.
        self._places: dict[tuple[bytes, int], int] = {}
        self.durability = Durability.REPLICATED_FLUSHED
        # Why nothing of the transaction can be committed any more.
        self.lost: QuiverlogError | None = None
        self._sign_of_life: Callable[[], Operation[int] | None] = lambda: None
        self._life_due_us: int | None = None
        self._life_us = 0
        self._find_targets: Callable[[list[TopicInfo]], Operation[int]] | None = None
        self._is_target_unconfirmed = False
        self._too_large: QuiverlogError | None = None

    # --- the transaction -----------------------------------------------------------------------
    def ask(
        self,
        sign_of_life: Callable[[], Operation[int] | None],
        life_us: int,
        find_targets: Callable[[list[TopicInfo]], Operation[int]],
        now: Now,
    ) -> None:
        """Set the questions, whose errors end the transaction.

        Args:
            sign_of_life: each `life_us`, without which the coordinator closes the epoch. It returns
                the epoch; None: the client is gone.
            find_targets: when a broker does not know a target. It raises UnknownTopicId for one
                that is gone.
        """
        self._sign_of_life = sign_of_life
        self._life_us = life_us
        self._life_due_us = now.mono_us + life_us
        self._find_targets = find_targets

    def rest(self) -> None:
        """Show no life until `ask` is called again: no rows are staged meanwhile."""
        self._life_due_us = None

    def begin(
        self,
        transactional_id: str,
        epoch: int,
        sequence: int,
        attempt: bytes,
        options: ProducerOptions,
    ) -> None:
        """Begin a transaction; nothing of one before may be under way."""
        assert not self.buffered_bytes, "what is sent belongs to one transaction"
        self._names = (transactional_id, epoch, sequence, attempt)
        self._targets.clear()
        self._row_counts.clear()
        self._parts = {}
        self._chosen = {}
        self._places.clear()
        self._is_target_unconfirmed = False
        self._too_large = None
        self.failures.clear()
        self.durability = Durability.REPLICATED_FLUSHED
        self._use(staging_options(options))
        self._ask_level(options.durability)

    def _ask_level(self, level: Durability) -> None:
        # It gives one level more than its own, where it has several replicas.
        if level == Durability.REPLICATED_FLUSHED and self.topic.replicas > 1:
            self._use(replace(self.options, durability=level))

    def _use(self, options: ProducerOptions) -> None:
        self.options = options
        self._sender.options = options
        self._accumulator.options = options

    def lose(self, error: QuiverlogError) -> None:
        """Fail all rows: nothing can be committed any more."""
        if self.lost is None:
            self.lost = error
            self._life_due_us = None
            self.fail_all(error)

    def on_answer(self, answer: int, error: QuiverlogError | None) -> None:
        """Take the outcome of a question: the epoch that the coordinator has, or 0."""
        if error is not None:
            # Else it is asked again: the next sign in time, a target by the next refusal.
            if not error.retriable:
                self.lose(error)
            return
        transactional_id, epoch, _, _ = self._names
        if answer and answer != epoch:
            self.lose(TransactionClosed(f"epoch {epoch} of {shown(transactional_id)} has ended."))

    def target(self, name: str) -> Target | None:
        return self._targets.get(name)

    def add_target(
        self, topic: TopicInfo, converter: Converter, schema_id: int, options: ProducerOptions
    ) -> Target:
        # A row of `__staged` holds a whole batch.
        room = (self.topic.batch_bytes_max or 2 * options.batch_bytes) - _ROW_BYTES
        bytes_max = min(topic.batch_bytes_max or room, room)
        rows = Accumulator(
            replace(topic, batch_bytes_max=bytes_max),
            converter,
            schema_id,
            options,
            numbering=lambda _partition: _UNNUMBERED,
            closed=partial(self._stage, topic),
            failed=self._failed if bytes_max < room else partial(self._failed_row, topic, room),
            jitter=self._jitter,
        )
        # Rows are staged as safely as their topics keep them.
        self._ask_level(topic.durability)
        self._targets[topic.name] = target = Target(topic, converter, rows)
        return target

    def _failed_row(
        self, topic: TopicInfo, room: int, receiver: Receiver, error: QuiverlogError
    ) -> None:
        if isinstance(error, BatchTooLarge):
            # Not the topic's bound, which its owner would raise in vain.
            error = TransactionTooLarge(
                f"A single row for topic {topic.name!r} makes a batch of more than {room} bytes. A"
                f" transaction stages none above, as {STAGED_TOPIC!r} keeps it with columns of its"
                " own: write the row without a transaction."
            )
        self._failed(receiver, error)

    # --- rows ----------------------------------------------------------------------------------
    def split_for(
        self, target: Target, batch: pa.RecordBatch, partition: int | None
    ) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        return target.rows.split(batch, partition)

    def add_to(
        self,
        target: Target,
        partition: int | None,
        rows: pa.RecordBatch | Mapping[str, Any],
        delivery: Delivery,
        now: Now,
    ) -> bool:
        """Add rows, or one as a mapping. True: poll now."""
        self._now = now
        if isinstance(rows, Mapping):
            wake = target.rows.add_row(partition, rows, delivery, now)
        else:
            wake = target.rows.add(partition, rows, delivery, now)
        self._check_size()
        return wake

    def _check_size(self) -> None:
        # Behind the closing of batches, in whose middle no others may fail.
        if self._too_large is not None:
            self.lose(self._too_large)

    def _stage(self, topic: TopicInfo, partition: int, batch: EncodedBatch) -> None:
        transactional_id, epoch, sequence, attempt = self._names
        key = topic.topic_id, partition
        total = self._row_counts[key] = self._row_counts.get(key, 0) + batch.row_count
        if total > _TARGET_ROWS_MAX:
            self._too_large = TransactionTooLarge(
                f"{total} rows of the transaction are for {topic.name}-{partition}, the most are"
                f" {_TARGET_ROWS_MAX}."
            )
        row = {
            "kind": 0,
            "transactional_id": transactional_id,
            "epoch": epoch,
            "sequence": sequence,
            "attempt": attempt,
            "topic_id": topic.topic_id,
            "partition": partition,
            "row_count": batch.row_count,
        }
        schema = self.converter.schema
        columns = [_one(row[field.name], field.type) for field in schema if field.name in row]
        columns.append(_one(batch.encoded, pa.binary()))  # The last column.
        staged = pa.RecordBatch.from_arrays(columns, schema=schema)
        receiver: Any = _StagedBatch(self, attempt, partition, batch)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._place(topic.partitions[partition].leader)
        self._accumulator.add(place, staged, receiver, self._now)

    def _place(self, leader: int) -> int:
        """Return a partition of `__staged` that this broker leads: publishing stays on it."""
        partitions = self.topic.partitions
        chosen = self._chosen.get(leader)
        if chosen is not None and partitions[chosen].leader == leader:
            return chosen
        # Leaders change: the choice is made anew, among those that the commit names already when
        # these are many.
        used = sorted({*self._chosen.values(), *self._parts})
        choice = used if len(used) >= _LEADERS_MAX else range(len(partitions))
        led = [i for i in choice if partitions[i].leader == leader]
        found = self._chosen[leader] = self._any_of(led or choice)
        return found

    def _any_of(self, choice: Sequence[int]) -> int:
        return choice[int(self._jitter() * len(choice))]

    def staged(self, attempt: bytes, produced: Produced, row_count: int) -> None:
        """Take the acknowledgement of one staged batch of `row_count` rows."""
        if attempt != self._names[3]:
            return  # Of a transaction that has ended.
        first, end = produced.base_offset, produced.base_offset + 1
        known = self._parts.get(produced.partition)
        if known is not None:
            first, end = min(first, known.first_offset), max(end, known.next_offset)
            row_count += known.row_count
        self._parts[produced.partition] = CommittedPart(
            staged_partition=produced.partition,
            first_offset=first,
            next_offset=end,
            row_count=row_count,
        )
        self.durability = min(self.durability, produced.durability)

    def attempts(self) -> list[CommittedAttempt]:
        """Return what COMMIT_TRANSACTION names: the attempt with all of its parts."""
        parts = [self._parts[number] for number in sorted(self._parts)]
        if not parts:
            return []
        row_count = sum(part.row_count for part in parts)
        return [CommittedAttempt(attempt=self._names[3], row_count=row_count, parts=parts)]

    # --- the host's view -----------------------------------------------------------------------
    @property
    def buffered_bytes(self) -> int:
        return super().buffered_bytes + self._unstaged_bytes

    @property
    def _unstaged_bytes(self) -> int:
        return sum(target.rows.buffered_bytes for target in self._targets.values())

    def close_batches(self, now: Now) -> None:
        self._now = now
        for target in self._targets.values():
            target.rows.close_all(now)
        super().close_batches(now)
        self._check_size()

    def poll(self, now: Now, *, may_ask: bool = False) -> Work:
        self._now = now
        for target in self._targets.values():
            target.rows.close_lingered(now)
        self._accumulator.close_all(now)
        self._check_size()
        work = super().poll(now)
        question = self._question(now) if may_ask else None
        return work if question is None else work._replace(question=question)

    def _question(self, now: Now) -> Operation[int] | None:
        if self._is_target_unconfirmed and self._find_targets is not None:
            self._is_target_unconfirmed = False
            return self._find_targets([one.topic for one in self._targets.values()])
        if self._life_due_us is None or now.mono_us < self._life_due_us:
            return None
        question = self._sign_of_life()
        self._life_due_us = None if question is None else now.mono_us + self._life_us
        return question

    def wake_moments(self, now: Now) -> list[int | None]:
        rows = [target.rows.wake_at_us() for target in self._targets.values()]
        due_us = self._life_due_us
        if due_us is not None and due_us <= now.mono_us:
            due_us = None  # The answer to the question that is under way wakes.
        return [*super().wake_moments(now), *rows, due_us]

    def _failed_try(
        self,
        partition: int,
        batch: EncodedBatch,
        error: QuiverlogError,
        now: Now,
        next_sequence: int = NO_SEQUENCE,
    ) -> None:
        # Of `__staged`, or of the topic of a row in it.
        if isinstance(error, UnknownTopicId):
            self._is_target_unconfirmed = True
        super()._failed_try(partition, batch, error, now, next_sequence)

    def fail_all(self, error: QuiverlogError) -> None:
        for target in self._targets.values():
            target.rows.fail_all(error)
        super().fail_all(error)


def _one(value: Any, kind: pa.DataType) -> pa.Array:
    """Return a column of one value; bytes are not copied."""
    # `pa.array` imports pandas: a third of a second of a Spark worker's first task.
    if pa.types.is_integer(kind):
        data = value.to_bytes(kind.bit_width // 8, "little", signed=True)
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(data)])
    data = value.encode() if isinstance(value, str) else value
    buffers = [None, pa.py_buffer(data)]
    if not pa.types.is_fixed_size_binary(kind):
        buffers.insert(1, pa.py_buffer(struct.pack("<ii", 0, len(data))))
    return pa.Array.from_buffers(kind, 1, buffers)
