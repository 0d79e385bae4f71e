"""The producer's machine: rows in, produce requests out. No I/O, no thread, no clock.

Owns batching, sequence numbers, order, retries and bounds. A host hands in rows and replies and
asks `poll(now)` what to send; every call takes the time as an argument.

From row to acknowledgement, per partition (a *lane*):

    pending dicts -> open batch -> sealed batch (encoded, numbered) -> in flight -> acknowledged
                                        ^------- retry, same bytes -------'

Invariants:

- At most five batches of a lane are in flight (the broker recognises as many as duplicates), and
  they were sent in the order of their sequence numbers. When one must be tried again, the lane
  sends nothing until all its replies are in, then starts again from the oldest: order holds.
- A batch keeps producer id, epoch and sequence over all tries, so the broker stores it once. Only
  a batch that is *known* not to be stored may be given other numbers.
- When a batch fails for good, those after it have a hole before them. The lane then resolves what
  may be stored under the old numbers, and takes a new producer id for the rest (`renewing`).
- Whatever fails is told to its `Delivery`; nothing is dropped silently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from quiverlog.batch.codec import encode_batch
from quiverlog.batch.partitioner import partition_rows
from quiverlog.errors import (
    BatchTooLarge,
    ConnectionFailed,
    DeliveryTimedOut,
    DiskFull,
    FencedLeaderEpoch,
    InvalidArgument,
    InvalidProducerEpoch,
    NotLeader,
    OutOfOrderSequence,
    QuiverlogError,
    SchemaMismatch,
    ThrottledBroker,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownProducerId,
    UnknownSchema,
    UnknownTopic,
    UnknownTopicId,
    error_from_code,
)
from quiverlog.limits import MIB, PRODUCER_IN_FLIGHT_MAX
from quiverlog.types import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Compression, Durability, Now
from quiverlog.wire import messages as m

from .answers import named
from .delivery import Delivery, RowsDelivery
from .restamp import restamp
from .results import Produced, TopicInfo
from .routing import backoff_s

if TYPE_CHECKING:
    from .convert import Converter

__all__ = ["Identity", "ProduceCall", "ProducerCore", "ProducerOptions", "Work"]

REQUEST_BODY_BYTES_MAX = 16 * MIB
SEQUENCES = 1 << 31
ROW_BYTES_GUESS = 256
"""What a pending dict counts against the buffer until the first batch shows better."""

METADATA_AGE_US = 10_000_000
"""A producer that sends looks for new partitions as often."""

FAILURES_KEPT_MAX = 1_000
"""A program that never flushes must not collect failed sends for ever."""

REFUSED = (
    ConnectionFailed,
    NotLeader,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownSchema,
    DiskFull,
    ThrottledBroker,
)
"""Retriable errors after which the batch is known not to be stored; any other leaves it open."""


Receiver: TypeAlias = Delivery | RowsDelivery
"""Who is told what becomes of a piece of a batch."""


class Identity(NamedTuple):
    """What a broker recognises a producer by."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer batches and how long it tries. Times in microseconds."""

    batch_rows: int
    batch_bytes: int
    linger_us: int
    compression: Compression
    durability: Durability
    buffer_bytes: int
    delivery_timeout_us: int
    request_timeout_us: int
    idempotent: bool = True
    partition: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_rows", "batch_bytes", "buffer_bytes", "delivery_timeout_us"):
            if getattr(self, name) <= 0:
                raise InvalidArgument(f"{name.removesuffix('_us')} must be above 0.")
        if self.linger_us < 0:
            raise InvalidArgument("linger must not be negative.")


@dataclass(slots=True)
class Open:
    """A batch that still takes rows."""

    opened_us: int
    pieces: list[tuple[pa.RecordBatch, Receiver]] = field(default_factory=list)
    row_count: int = 0
    byte_count: int = 0


@dataclass(slots=True)
class PendingRows:
    """Rows that were sent one by one, not yet converted. Both lists have the same length."""

    opened_us: int
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    byte_count: int = 0
    """A guess; what these rows count against the buffer."""


@dataclass(slots=True, eq=False)
class Sealed:
    """An encoded batch on its way."""

    serial: int
    encoded: bytearray
    row_count: int
    identity: Identity
    sequence: int
    deadline_us: int
    pieces: list[tuple[Receiver, int]]
    attempts: int = 0
    maybe_stored: bool = False
    """An attempt ended without telling whether the broker had stored it."""
    last_failure: str = ""
    is_done: bool = False


@dataclass(slots=True, eq=False)
class Lane:
    """One partition's batches, oldest first: `in_flight`, then `retry`, then `queue`."""

    partition: int
    identity: Identity
    next_sequence: int = 0
    open: Open | None = None
    queue: deque[Sealed] = field(default_factory=deque)
    in_flight: list[Sealed] = field(default_factory=list)
    retry: list[Sealed] = field(default_factory=list)
    not_before_us: int = 0
    renewing: bool = False
    """The numbers have a hole or are not known any more: a new producer id is needed."""
    awaits_metadata: bool = False
    """The last failure said that the leader may be another one: do not ask the old one again."""

    @property
    def is_idle(self) -> bool:
        return not (self.queue or self.in_flight or self.retry)


class ProduceCall(NamedTuple):
    """A request for one leader and the batches in it, one per partition."""

    leader: int
    request: m.ProduceRequest
    body: list[bytearray]
    batches: dict[int, Sealed]
    timeout_us: int


class Work(NamedTuple):
    """What the host has to do now. `wake_at_us`: when to poll again if nothing happens before."""

    calls: list[ProduceCall]
    needs_metadata: bool
    needs_identity: bool
    wake_at_us: int | None


class ProducerCore:
    """See the module's docstring.

    Args:
        topic: the topic as the metadata shows it; replaced by `topic_changed`.
        schema_id: of the schema that the converter makes.
        identity: the first producer id; `Identity()` for a producer that is not idempotent.
        jitter: an even draw from [0, 1), for the pauses between tries.
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
        self.topic = topic
        self.options = options
        self.buffered_bytes = 0
        self.failures: list[Delivery] = []
        """Deliveries that failed since the last flush."""
        self.finished = 0
        """Grows with every batch that was acknowledged or failed."""
        self.converter = converter
        self._schema_id = schema_id
        self._identity = identity
        self._jitter = jitter
        self._lanes: dict[int, Lane] = {}
        self._pending: dict[int | None, PendingRows] = {}
        self._sticky = int(jitter() * len(topic.partitions))
        self._serial = 0
        self._row_bytes = ROW_BYTES_GUESS
        self._needs_metadata = False
        self._look_again_us: int | None = None
        self._encoded_bytes_max = topic.batch_bytes_max or options.batch_bytes * 2
        self._batch_bytes = min(options.batch_bytes, max(1, self._encoded_bytes_max * 7 // 8))

    # --- rows in --------------------------------------------------------------------------------
    def split(
        self, batch: pa.RecordBatch, partition: int | None
    ) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        """Cut rows by key and into what one batch can take; each part goes to `add`."""
        parts: Sequence[tuple[int | None, pa.RecordBatch]] = [(partition, batch)]
        if partition is None and self.topic.key_columns:
            keys, count = self.topic.key_columns, len(self.topic.partitions)
            parts = partition_rows(batch, list(keys), count)
        for target, rows in parts:
            step = self._rows_per_batch(rows)
            for start in range(0, rows.num_rows, step):
                yield target, rows.slice(start, step) if step < rows.num_rows else rows

    def add(
        self, partition: int | None, batch: pa.RecordBatch, delivery: Delivery, now: Now
    ) -> bool:
        """Take rows of one partition (None: the one whose turn it is). True: poll now."""
        if self._pending:
            self._convert_pending(now)  # rows sent before must stay before
        return self._add(partition, batch, delivery, now)

    def add_row(
        self, partition: int | None, row: Mapping[str, Any], delivery: Delivery, now: Now
    ) -> bool:
        """Take one row, to be converted with its neighbours. True: poll now."""
        pending = self._pending.get(partition)
        if pending is None:
            if partition is not None:
                self.check_partition(partition)
            pending = self._pending[partition] = PendingRows(now.mono_us)
        delivery.add_piece()
        delivery.seal()
        pending.rows.append(row)
        pending.deliveries.append(delivery)
        pending.byte_count += self._row_bytes
        self.buffered_bytes += self._row_bytes
        count = len(pending.rows)
        if count >= self.options.batch_rows or pending.byte_count >= self._batch_bytes:
            self._convert_pending(now)
            return True
        return count == 1

    def check_partition(self, partition: int) -> None:
        """Raise unless the topic has the partition."""
        if not isinstance(partition, int):
            raise InvalidArgument(f"partition={partition!r} is not a number.")
        if not 0 <= partition < len(self.topic.partitions):
            raise UnknownPartition(
                f"Topic {self.topic.name!r} has {len(self.topic.partitions)} partitions; "
                f"{partition} is not one of them."
            )

    def seal_all(self, now: Now) -> None:
        """Close all open batches, whatever their age."""
        self._convert_pending(now)
        for lane in self._lanes.values():
            self._seal(lane, now)

    def outstanding(self) -> list[Sealed]:
        """All sealed batches that are neither acknowledged nor failed."""
        return [
            batch
            for lane in self._lanes.values()
            for batch in (*lane.in_flight, *lane.retry, *lane.queue)
        ]

    def _rows_per_batch(self, batch: pa.RecordBatch) -> int:
        if not batch.num_rows:
            return 1
        by_bytes: int = self._batch_bytes * batch.num_rows // max(1, batch.nbytes)
        return max(1, min(self.options.batch_rows, by_bytes))

    def _add(
        self, partition: int | None, batch: pa.RecordBatch, delivery: Receiver, now: Now
    ) -> bool:
        assert 0 < batch.num_rows <= self.options.batch_rows
        is_sticky = partition is None
        lane = self._lane(self._sticky if partition is None else partition)
        size = batch.nbytes
        opened = lane.open
        sealed = False
        if opened is not None and (
            opened.row_count + batch.num_rows > self.options.batch_rows
            or opened.byte_count + size > self._batch_bytes
        ):
            self._seal(lane, now)
            sealed = True
            if is_sticky:
                lane = self._lane(self._sticky)
            opened = lane.open
        if opened is None:
            opened = lane.open = Open(now.mono_us)
        delivery.add_piece()
        opened.pieces.append((batch, delivery))
        opened.row_count += batch.num_rows
        opened.byte_count += size
        self.buffered_bytes += size
        is_first = len(opened.pieces) == 1
        if (
            self.options.linger_us == 0
            or opened.row_count >= self.options.batch_rows
            or opened.byte_count >= self._batch_bytes
        ):
            self._seal(lane, now)
            sealed = True
        return sealed or is_first

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            self.check_partition(partition)
            lane = self._lanes[partition] = Lane(partition, self._identity)
        return lane

    def _convert_pending(self, now: Now) -> None:
        pending, self._pending = self._pending, {}
        for partition, group in pending.items():
            self.buffered_bytes -= group.byte_count
            try:
                batch = self.converter.from_rows(group.rows)
            except SchemaMismatch:
                self._convert_singly(partition, group, now)
                continue
            self._row_bytes = max(1, batch.nbytes // len(group.rows))
            self._add_converted(partition, batch, group.deliveries, now)

    def _convert_singly(self, partition: int | None, group: PendingRows, now: Now) -> None:
        """One bad row must not take its neighbours with it."""
        for row, delivery in zip(group.rows, group.deliveries, strict=True):
            try:
                batch = self.converter.from_rows([row])
            except SchemaMismatch as error:
                self._fail_delivery(delivery, error)
                continue
            self._add_converted(partition, batch, [delivery], now)

    def _add_converted(
        self,
        partition: int | None,
        batch: pa.RecordBatch,
        deliveries: list[Delivery],
        now: Now,
    ) -> None:
        if partition is None and self.topic.key_columns and len(self.topic.partitions) > 1:
            # Which row went where must be known per row: number them, and cut by that.
            numbers = pa.array(range(batch.num_rows), pa.int32())
            numbered = batch.append_column("\0row", numbers)
            for target, rows in self.split(numbered, None):
                indexes = rows.column(rows.num_columns - 1).to_pylist()
                plain = rows.select(range(rows.num_columns - 1))
                self._add(target, plain, RowsDelivery([deliveries[i] for i in indexes]), now)
            return
        done = 0
        for target, rows in self.split(batch, partition):
            part = RowsDelivery(deliveries[done : done + rows.num_rows])
            done += rows.num_rows
            self._add(target, rows, part, now)

    # --- sealing --------------------------------------------------------------------------------
    def _seal(self, lane: Lane, now: Now) -> None:
        opened, lane.open = lane.open, None
        if opened is None:
            return
        if lane.partition == self._sticky:
            self._sticky = (self._sticky + 1) % len(self.topic.partitions)
        self.buffered_bytes -= opened.byte_count
        self._encode(lane, opened.pieces, now)

    def _encode(self, lane: Lane, pieces: list[tuple[pa.RecordBatch, Receiver]], now: Now) -> None:
        batches = [batch for batch, _ in pieces]
        data = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        try:
            encoded = self._encoded(lane, data, now)
        except BatchTooLarge:
            self._encode_smaller(lane, pieces, data.nbytes, now)
            return
        if len(encoded) > self._encoded_bytes_max:
            self._encode_smaller(lane, pieces, len(encoded), now)
            return
        self._serial += 1
        sealed = Sealed(
            serial=self._serial,
            encoded=encoded,
            row_count=data.num_rows,
            identity=lane.identity,
            sequence=lane.next_sequence,
            deadline_us=now.mono_us + self.options.delivery_timeout_us,
            pieces=[(delivery, batch.num_rows) for batch, delivery in pieces],
        )
        lane.next_sequence = (lane.next_sequence + data.num_rows) % SEQUENCES
        lane.queue.append(sealed)
        self.buffered_bytes += len(encoded)

    def _encoded(self, lane: Lane, data: pa.RecordBatch, now: Now) -> bytearray:
        return encode_batch(
            data,
            schema_id=self._schema_id,
            compression=self.options.compression,
            timestamp_us=now.wall_us,
            producer_id=lane.identity.producer_id,
            producer_epoch=lane.identity.producer_epoch,
            base_sequence=lane.next_sequence if self.options.idempotent else NO_SEQUENCE,
        )

    def _encode_smaller(
        self, lane: Lane, pieces: list[tuple[pa.RecordBatch, Receiver]], size: int, now: Now
    ) -> None:
        """The topic takes no batch of this size: halve it, down to a single row."""
        if len(pieces) > 1:
            middle = len(pieces) // 2
            self._encode(lane, pieces[:middle], now)
            self._encode(lane, pieces[middle:], now)
            return
        batch, delivery = pieces[0]
        if batch.num_rows == 1:
            self._fail_delivery(
                delivery,
                BatchTooLarge(
                    f"A single row takes {size} bytes; topic {self.topic.name!r} takes batches of "
                    f"at most {self._encoded_bytes_max}."
                ),
            )
            return
        middle = batch.num_rows // 2
        first, second = delivery.halves(middle)
        self._encode(lane, [(batch.slice(0, middle), first)], now)
        self._encode(lane, [(batch.slice(middle), second)], now)

    # --- what to send ---------------------------------------------------------------------------
    def poll(self, now: Now) -> Work:
        """Seal what has waited long enough, give up what is too old, and say what to send."""
        self._seal_expired(now)
        self.give_up_expired(now)
        calls: dict[int, ProduceCall] = {}
        finished: list[ProduceCall] = []
        needs_identity = False
        for lane in self._lanes.values():
            if lane.is_idle:
                continue
            if lane.retry and not lane.in_flight:
                lane.queue.extendleft(sorted(lane.retry, key=lambda b: -b.serial))
                lane.retry.clear()
            if lane.awaits_metadata:
                self._needs_metadata = True
                continue
            if self._must_renew_first(lane):
                needs_identity = True
                continue
            while (batch := self._next_batch(lane, now)) is not None:
                leader = self._leader(lane.partition)
                if leader is None:
                    break
                lane.queue.popleft()
                self._enter(calls, finished, leader, lane, batch, now)
        finished.extend(calls.values())
        needs_metadata, self._needs_metadata = self._needs_metadata, False
        if finished and self._is_picture_old(now):
            needs_metadata = True
        return Work(finished, needs_metadata, needs_identity, self._wake_at_us(now))

    def _is_picture_old(self, now: Now) -> bool:
        """Partitions may have been added: the keys of other producers go there by now."""
        due_us = self._look_again_us
        if due_us is not None and now.mono_us < due_us:
            return False
        self._look_again_us = now.mono_us + METADATA_AGE_US
        return due_us is not None

    def _seal_expired(self, now: Now) -> None:
        latest_us = now.mono_us - self.options.linger_us
        if any(group.opened_us <= latest_us for group in self._pending.values()):
            self._convert_pending(now)
            latest_us = now.mono_us  # these rows have lingered already
        for lane in self._lanes.values():
            if lane.open is not None and lane.open.opened_us <= latest_us:
                self._seal(lane, now)

    @property
    def has_unsent(self) -> bool:
        """Some sealed batch is neither acknowledged nor failed."""
        return any(not lane.is_idle for lane in self._lanes.values())

    def give_up_expired(self, now: Now) -> None:
        """Fail the batches whose time is up, unless their reply is still awaited."""
        for lane in self._lanes.values():
            expired = [b for b in lane.retry if b.deadline_us <= now.mono_us]
            # The queue is in the order of age, so a look at its head is all that is needed.
            expired.extend(takewhile(lambda b: b.deadline_us <= now.mono_us, lane.queue))
            for batch in expired:
                seconds = self.options.delivery_timeout_us / 1_000_000
                where = f"{self.topic.name}-{lane.partition}"
                why = batch.last_failure and f" Last failure: {batch.last_failure}"
                message = f"{batch.row_count} rows for {where} waited {seconds:g} s.{why}"
                self._fail(lane, batch, DeliveryTimedOut(message))

    def _must_renew_first(self, lane: Lane) -> bool:
        if not lane.renewing or lane.in_flight or not lane.queue:
            return False
        # What may be stored under the old numbers must be asked for under the old numbers.
        return not lane.queue[0].maybe_stored

    def _next_batch(self, lane: Lane, now: Now) -> Sealed | None:
        if not lane.queue or lane.retry or now.mono_us < lane.not_before_us:
            return None
        batch = lane.queue[0]
        # After a failed try, one at a time until it has gone through.
        in_flight_max = 1 if batch.attempts or lane.renewing else PRODUCER_IN_FLIGHT_MAX
        if lane.renewing and not batch.maybe_stored:
            return None
        if len(lane.in_flight) >= in_flight_max or any(b.attempts > 1 for b in lane.in_flight):
            return None
        return batch

    def _leader(self, partition: int) -> int | None:
        partitions = self.topic.partitions
        leader = partitions[partition].leader if partition < len(partitions) else -1
        if leader < 0:
            self._needs_metadata = True
            return None
        return leader

    def _enter(
        self,
        calls: dict[int, ProduceCall],
        finished: list[ProduceCall],
        leader: int,
        lane: Lane,
        batch: Sealed,
        now: Now,
    ) -> None:
        """Put a batch into its leader's request; one request holds one batch per partition."""
        call = calls.get(leader)
        if call is not None:
            size = sum(p.batch_bytes for p in call.request.partitions) + len(batch.encoded)
            if lane.partition in call.batches or size > REQUEST_BODY_BYTES_MAX:
                finished.append(calls.pop(leader))
                call = None
        if call is None:
            request = m.ProduceRequest(durability=self.options.durability, partitions=[])
            call = calls[leader] = ProduceCall(
                leader, request, [], {}, self.options.request_timeout_us
            )
            request.timeout_ms = max(1, self.options.request_timeout_us // 1000)
        info = self.topic.partitions[lane.partition]
        call.request.partitions.append(
            m.ProducePartition(
                self.topic.topic_id, lane.partition, info.leader_epoch, len(batch.encoded)
            )
        )
        call.body.append(batch.encoded)
        call.batches[lane.partition] = batch
        batch.attempts += 1
        lane.in_flight.append(batch)

    def _wake_at_us(self, now: Now) -> int | None:
        moments = [g.opened_us + self.options.linger_us for g in self._pending.values()]
        for lane in self._lanes.values():
            if lane.open is not None:
                moments.append(lane.open.opened_us + self.options.linger_us)
            waiting = lane.queue or lane.retry
            if waiting:
                moments.append(waiting[0].deadline_us)
                # A pause that is over and sent nothing waits for metadata or an identity, which
                # call when they are there.
                if not lane.in_flight and lane.not_before_us > now.mono_us:
                    moments.append(lane.not_before_us)
        return min(moments, default=None)

    # --- replies --------------------------------------------------------------------------------
    def on_response(self, call: ProduceCall, response: m.Response, now: Now) -> None:
        """The leader answered."""
        if response.error_code:
            self.on_failure(call, error_from_code(response.error_code, response.error_message), now)
            return
        assert isinstance(response, m.ProduceResponse)
        answered = {r.partition: r for r in response.partitions}
        for partition, batch in call.batches.items():
            result = answered.get(partition)
            if result is None:
                error = QuiverlogError(f"The broker left partition {partition} unanswered.")
                self._failed_try(partition, batch, error, now)
            elif result.error_code:
                error = error_from_code(result.error_code, result.error_message)
                self._failed_try(partition, batch, error, now)
            else:
                self._acknowledge(partition, batch, result)

    def on_failure(self, call: ProduceCall, error: QuiverlogError, now: Now) -> None:
        """The request as a whole failed: no connection, no reply, refused."""
        for partition, batch in call.batches.items():
            self._failed_try(partition, batch, error, now)

    def identity_renewed(self, identity: Identity) -> None:
        """A new producer id: number anew what is known not to be stored."""
        self._identity = identity
        for lane in self._lanes.values():
            if not lane.renewing or lane.in_flight or lane.retry:
                continue
            if lane.queue and lane.queue[0].maybe_stored:
                continue
            lane.renewing = False
            lane.identity = identity
            lane.next_sequence = 0
            for batch in lane.queue:
                batch.identity = identity
                # None of them is stored: each comes after one that is not, under the old numbers.
                batch.maybe_stored = False
                batch.sequence = lane.next_sequence
                restamp(batch.encoded, *identity, batch.sequence)
                lane.next_sequence = (lane.next_sequence + batch.row_count) % SEQUENCES

    def topic_changed(self, topic: TopicInfo) -> None:
        """Fresh metadata arrived."""
        if topic.topic_id != self.topic.topic_id:
            self.fail_all(
                UnknownTopicId(f"Topic {topic.name!r} is not the one this producer was opened for.")
            )
            return
        self.topic = topic
        for lane in self._lanes.values():
            lane.awaits_metadata = False

    def fail_all(self, error: QuiverlogError) -> None:
        """Give up everything that is not acknowledged."""
        pending, self._pending = self._pending, {}
        for group in pending.values():
            self.buffered_bytes -= group.byte_count
            for delivery in group.deliveries:
                self._fail_delivery(delivery, error)
        for lane in self._lanes.values():
            if lane.open is not None:
                opened, lane.open = lane.open, None
                self.buffered_bytes -= opened.byte_count
                for _, receiver in opened.pieces:
                    self._fail_delivery(receiver, error)
            for batch in (*lane.in_flight, *lane.retry, *lane.queue):
                self._fail(lane, batch, error)

    def _acknowledge(self, partition: int, batch: Sealed, r: m.ProducePartitionResult) -> None:
        lane = self._lanes[partition]
        if batch.is_done:
            return
        lane.in_flight.remove(batch)
        if not lane.in_flight:
            lane.not_before_us = 0
        offset = r.base_offset
        level = Durability(r.durability)
        for delivery, row_count in batch.pieces:
            delivery.acknowledge(Produced(partition, offset, row_count, level, r.duplicate))
            offset += row_count
        self._finish(batch)

    def _failed_try(self, partition: int, batch: Sealed, error: QuiverlogError, now: Now) -> None:
        lane = self._lanes[partition]
        if batch.is_done:
            return
        batch.last_failure = error.message
        lane.awaits_metadata = lane.awaits_metadata or error.refresh_metadata
        if isinstance(error, (OutOfOrderSequence, UnknownProducerId)) and self.options.idempotent:
            if self._resolve_hole(lane, batch, error, now):
                return
        elif error.retriable and now.mono_us < batch.deadline_us:
            if not isinstance(error, REFUSED):
                batch.maybe_stored = True
            self._try_again(lane, batch, now)
            return
        self._fail(lane, batch, error)
        if isinstance(error, (UnknownTopic, UnknownTopicId)):
            self.fail_all(error)

    def _resolve_hole(self, lane: Lane, batch: Sealed, error: QuiverlogError, now: Now) -> bool:
        """The broker misses what comes before this batch. True: it will be tried again."""
        is_oldest = all(
            b.serial > batch.serial for b in (*lane.in_flight, *lane.retry) if b is not batch
        )
        if not is_oldest:
            # Its predecessor was not stored, so it was not either; both go again, in order.
            batch.maybe_stored = False
            self._try_again(lane, batch, now)
            return True
        if batch.maybe_stored and not lane.renewing:
            return False  # an earlier try may have stored it, and the broker cannot tell any more
        batch.maybe_stored = False
        lane.renewing = True
        self._try_again(lane, batch, now)
        return True

    def _try_again(self, lane: Lane, batch: Sealed, now: Now) -> None:
        lane.in_flight.remove(batch)
        lane.retry.append(batch)
        pause_us = round(backoff_s(batch.attempts - 1, self._jitter()) * 1_000_000)
        lane.not_before_us = max(lane.not_before_us, now.mono_us + pause_us)

    def _fail(self, lane: Lane, batch: Sealed, error: QuiverlogError) -> None:
        for holder in (lane.in_flight, lane.retry, lane.queue):
            if batch in holder:
                holder.remove(batch)
        # Its numbers are used up: those that follow would be out of order for the broker.
        lane.renewing = lane.renewing or self.options.idempotent
        # One error each: several batches of one request fail together, in different partitions.
        error = named(type(error)(error.message, **error.details), self.topic.name, lane.partition)
        if isinstance(error, InvalidProducerEpoch):
            for other in lane.queue:
                other.maybe_stored = False
        if error.retriable:  # it was tried until its time was up
            where = f"{self.topic.name}-{lane.partition}"
            error = DeliveryTimedOut(
                f"{batch.row_count} rows for {where}. Last failure: {error.message}",
                topic=self.topic.name,
                partition=lane.partition,
            )
        elif batch.maybe_stored:
            error.add_note("An earlier try had no answer: the rows may be stored nevertheless.")
        for delivery, _ in batch.pieces:
            self._fail_delivery(delivery, error)
        self._finish(batch)

    def _finish(self, batch: Sealed) -> None:
        batch.is_done = True
        self.buffered_bytes -= len(batch.encoded)
        self.finished += 1

    def _fail_delivery(self, delivery: Receiver, error: QuiverlogError) -> None:
        delivery.fail(error)
        if len(self.failures) < FAILURES_KEPT_MAX:
            self.failures.extend(delivery.failed())
        self.finished += 1
