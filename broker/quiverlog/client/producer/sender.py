"""From encoded batches to requests, and from answers to outcomes. No I/O, no clock.

    queued -> in flight -> acknowledged | failed for good
       '- retry <'    same bytes, same numbers, in the order of the first try

Invariants, per partition:

- At most `PRODUCER_IN_FLIGHT_MAX` batches from the oldest unanswered to the newest sent.
- Batches are sent in the order of their sequence numbers; a retry waits for all answers.
- A batch keeps id, epoch and sequence over all tries; only one *known* not to be stored gets
  others.
- The sender waits for an answer while its leader leads: a silence has the metadata refreshed.
- Every failure reaches its receivers.
- After an answer with `throttle_ms` its broker gets nothing for that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from quiverlog.client.base.arguments import counted
from quiverlog.client.base.results import Produced, TopicInfo
from quiverlog.client.cluster.answers import named
from quiverlog.client.cluster.routing import pause_s
from quiverlog.errors import (
    BatchTooLarge,
    ConnectionFailed,
    CorruptBatch,
    CorruptFrame,
    DeliveryTimedOut,
    DiskFull,
    FencedLeaderEpoch,
    InvalidProducerEpoch,
    InvalidResponse,
    InvalidTimestamp,
    NotLeader,
    OutOfOrderSequence,
    PolicyViolation,
    QuiverlogError,
    QuotaExceeded,
    ThrottledBroker,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownProducerId,
    UnknownSchema,
)
from quiverlog.limits import (
    BATCH_BYTES_DEFAULT_MAX,
    LEADER_SILENCE_MS,
    PRODUCER_IN_FLIGHT_MAX,
    THROTTLE_MS_MAX,
)
from quiverlog.types import NO_SEQUENCE, Durability, Now
from quiverlog.wire import messages as m

from .identity import Numbering
from .types import EncodedBatch, Identity, ProduceCall, ProducerOptions, Receiver

__all__ = ["SILENCE_US", "PartitionQueue", "Sender"]


SILENCE_US = LEADER_SILENCE_MS * 1_000


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """`in_flight` and `retry` are older than `queue`."""

    partition: int
    numbering: Numbering
    queue: deque[EncodedBatch] = field(default_factory=deque)
    in_flight: list[EncodedBatch] = field(default_factory=list)
    retry: list[EncodedBatch] = field(default_factory=list)
    not_before_us: int = 0
    next_index: int = 0
    # After a failure another broker may lead: nothing is sent to the old one.
    awaits_metadata: bool = False
    # When a silence last had the metadata refreshed.
    looked_us: int = 0

    @property
    def is_idle(self) -> bool:
        return not (self.queue or self.in_flight or self.retry)

    def batches(self) -> Iterator[EncodedBatch]:
        yield from self.in_flight
        yield from self.retry
        yield from self.queue

    def append(self, batch: EncodedBatch) -> None:
        assert not batch.is_done
        batch.index = self.next_index
        self.next_index += 1
        self.queue.append(batch)

    def requeue(self) -> None:
        # After all answers: they go first again, in the old order.
        if self.retry and not self.in_flight:
            self.queue.extendleft(sorted(self.retry, key=lambda b: -b.index))
            self.retry.clear()
            assert self.queue[0].index <= self.queue[-1].index

    def next_batch(self, now: Now) -> EncodedBatch | None:
        if not self.queue or self.retry or now.mono_us < self.not_before_us:
            return None
        batch = self.queue[0]
        if self.numbering.is_broken and not batch.maybe_stored:
            return None
        if not self.in_flight:
            return batch
        # After a failed try, one batch at a time until it is acknowledged.
        if (
            batch.attempts
            or self.numbering.is_broken
            or any(b.attempts > 1 for b in self.in_flight)
        ):
            return None
        oldest = min(b.index for b in self.in_flight)
        return batch if batch.index - oldest < PRODUCER_IN_FLIGHT_MAX else None

    @property
    def look_at_us(self) -> int | None:
        if not self.in_flight:
            return None
        # In the order of sending, so the first has waited longest.
        return max(self.in_flight[0].sent_us, self.looked_us) + SILENCE_US

    def must_renew_first(self) -> bool:
        # A batch that may be stored keeps its numbers.
        if not self.numbering.is_broken or self.in_flight or not self.queue:
            return False
        return not self.queue[0].maybe_stored


# Fits the smallest `frame.bytes.max` of brokers; a larger batch is sent alone.
REQUEST_BODY_BYTES_MAX = BATCH_BYTES_DEFAULT_MAX

# Retriable errors that prove the batch not stored; after any other it may be.
REFUSED = (
    ConnectionFailed,
    NotLeader,
    FencedLeaderEpoch,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownSchema,
    DiskFull,
    QuotaExceeded,
    ThrottledBroker,
)

# The broker checks the batch itself before it stores anything.
NOT_STORED = (BatchTooLarge, CorruptBatch, InvalidTimestamp, PolicyViolation)

# Invalid answers: the batch may be stored.
UNTRUSTED = (CorruptFrame, InvalidResponse)


class Sender:
    """The closed batches of one producer, by partition; `failed` gets those that fail."""

    def __init__(
        self,
        topic: TopicInfo,
        options: ProducerOptions,
        identity: Identity,
        *,
        failed: Callable[[Receiver, QuiverlogError], None],
        jitter: Callable[[], float],
    ) -> None:
        self.topic = topic
        # Of batches that are neither acknowledged nor failed.
        self.buffered_bytes = 0
        # Batches that were acknowledged or failed.
        self.finished = 0
        self.needs_metadata = False
        self.needs_identity = False
        self.silent: set[int] = set()
        self.deposed: set[int] = set()
        # The newest one, to which batches of older ones change.
        self.identity = identity
        self.options = options
        self._failed = failed
        self._jitter = jitter
        self._queues: dict[int, PartitionQueue] = {}
        # Leader -> when it takes the next request: this client is over its quota there.
        self._throttled_us: dict[int, int] = {}

    def queue_of(self, partition: int) -> PartitionQueue:
        found = self._queues.get(partition)
        if found is None:
            numbering = Numbering(self.identity, is_idempotent=self.options.idempotent)
            found = self._queues[partition] = PartitionQueue(partition, numbering)
        return found

    def append(self, partition: int, batch: EncodedBatch) -> None:
        self.queue_of(partition).append(batch)
        self.buffered_bytes += len(batch.encoded)

    @property
    def has_unsent(self) -> bool:
        return any(not queue.is_idle for queue in self._queues.values())

    def outstanding(self) -> list[EncodedBatch]:
        return [batch for queue in self._queues.values() for batch in queue.batches()]

    def oldest(self) -> tuple[int, EncodedBatch] | None:
        heads = [
            (queue.partition, next(queue.batches()))
            for queue in self._queues.values()
            if not queue.is_idle
        ]
        return min(heads, key=lambda one: one[1].deadline_us, default=None)

    def poll(self, now: Now) -> list[ProduceCall]:
        """Return what to send; set `needs_metadata`, `needs_identity`, `silent`, `deposed`."""
        self.needs_metadata = self.needs_identity = False
        self.silent, self.deposed = set(), set()
        open_calls: dict[int, ProduceCall] = {}
        calls: list[ProduceCall] = []
        for queue in self._queues.values():
            if queue.is_idle:
                continue
            queue.requeue()
            self._mind_silence(queue, now)
            if queue.awaits_metadata:
                self.needs_metadata = True
                continue
            if queue.must_renew_first() and not self._renew(queue):
                self.needs_identity = True
                continue
            if queue.numbering.wants_epoch:
                self.needs_identity = True
            while (batch := queue.next_batch(now)) is not None:
                leader = self._leader(queue.partition)
                if leader is None or self._throttled_us.get(leader, 0) > now.mono_us:
                    break
                queue.queue.popleft()
                self._enter(open_calls, calls, leader, queue, batch, now)
        calls.extend(open_calls.values())
        return [self._timed(call, now) for call in calls]

    def _renew(self, queue: PartitionQueue) -> bool:
        """False: another identity is needed to number the waiting batches anew."""
        numbering = queue.numbering
        if numbering.identity == self.identity and numbering.needs_epoch:
            return False
        assert not queue.in_flight, "what is under way keeps its numbers"
        numbering.renew(self.identity, queue.queue)
        return True

    def _mind_silence(self, queue: PartitionQueue, now: Now) -> None:
        # Other brokers' metadata show whether a silent leader was replaced.
        if not queue.in_flight or now.mono_us - queue.in_flight[0].sent_us < SILENCE_US:
            return
        late_leader = queue.in_flight[0].leader
        if self._leader_of(queue.partition) not in (late_leader, -1):
            self.deposed.add(late_leader)
            return
        due_us = queue.look_at_us
        assert due_us is not None
        if now.mono_us >= due_us:
            queue.looked_us = now.mono_us
            self.silent.add(late_leader)
            self.needs_metadata = True

    def _timed(self, call: ProduceCall, now: Now) -> ProduceCall:
        left_us = max(batch.deadline_us for batch in call.batches.values()) - now.mono_us
        assert left_us > 0, "what is too old was given up before"
        timeout_us = min(self.options.request_timeout_us, left_us)
        call.request.timeout_ms = max(1, timeout_us // 1000)
        return call._replace(timeout_us=timeout_us)

    def give_up_expired(self, now: Now) -> None:
        for queue in self._queues.values():
            expired = [b for b in queue.retry if b.deadline_us <= now.mono_us]
            # In the order of age, so the expired ones are at the head.
            expired.extend(takewhile(lambda b: b.deadline_us <= now.mono_us, queue.queue))
            for batch in expired:
                seconds = self.options.delivery_timeout_us / 1_000_000
                why = batch.last_failure and f" Last failure: {batch.last_failure}"
                if self._throttled_us.get(self._leader_of(queue.partition), 0) > now.mono_us:
                    why += (
                        " The broker makes this client wait: `quiverlog quota list` shows quotas."
                    )
                text = f"{counted(batch.row_count, 'row', 'rows')} waited {seconds:g} s.{why}"
                self._fail(queue, batch, DeliveryTimedOut(text))

    def throttle(self, leader: int, throttle_ms: int, now: Now) -> None:
        if throttle_ms:
            wait_us = min(throttle_ms, THROTTLE_MS_MAX) * 1_000
            self._throttled_us[leader] = now.mono_us + wait_us

    def wake_at_us(self, now: Now) -> int | None:
        moments = []
        for queue in self._queues.values():
            waiting = queue.queue or queue.retry
            if waiting:
                moments.append(waiting[0].deadline_us)
                # After the pause a batch waits for metadata or an identity, whose arrival polls.
                if not queue.in_flight and queue.not_before_us > now.mono_us:
                    moments.append(queue.not_before_us)
                throttled_us = self._throttled_us.get(self._leader_of(queue.partition), 0)
                if throttled_us > now.mono_us:
                    moments.append(throttled_us)
            if (look_at_us := queue.look_at_us) is not None:
                moments.append(look_at_us)
        return min(moments, default=None)

    def _leader_of(self, partition: int) -> int:
        partitions = self.topic.partitions
        return partitions[partition].leader if partition < len(partitions) else -1

    def _leader(self, partition: int) -> int | None:
        leader = self._leader_of(partition)
        if leader < 0:
            self.needs_metadata = True
            return None
        return leader

    def _enter(
        self,
        open_calls: dict[int, ProduceCall],
        calls: list[ProduceCall],
        leader: int,
        queue: PartitionQueue,
        batch: EncodedBatch,
        now: Now,
    ) -> None:
        """Put a batch into its leader's request, which holds one per partition."""
        call = open_calls.get(leader)
        if call is not None:
            size = sum(p.batch_bytes for p in call.request.partitions) + len(batch.encoded)
            if queue.partition in call.batches or size > REQUEST_BODY_BYTES_MAX:
                calls.append(open_calls.pop(leader))
                call = None
        if call is None:
            timeout_us = self.options.request_timeout_us
            request = m.ProduceRequest(durability=self.options.durability, partitions=[])
            call = open_calls[leader] = ProduceCall(leader, request, [], {}, timeout_us)
        info = self.topic.partitions[queue.partition]
        call.request.partitions.append(
            m.ProducePartition(
                self.topic.topic_id, queue.partition, info.leader_epoch, len(batch.encoded)
            )
        )
        call.body.append(batch.encoded)
        assert queue.partition not in call.batches
        call.batches[queue.partition] = batch
        batch.attempts += 1
        batch.leader, batch.sent_us = leader, now.mono_us
        queue.in_flight.append(batch)
        assert len(queue.in_flight) <= PRODUCER_IN_FLIGHT_MAX

    def acknowledge(self, partition: int, batch: EncodedBatch, r: m.ProducePartitionResult) -> None:
        queue = self._queues[partition]
        if batch.is_done:
            return
        queue.in_flight.remove(batch)
        queue.numbering.acknowledged(batch, self.identity)
        if not queue.in_flight:
            queue.not_before_us = 0
        offset = r.base_offset
        level = Durability(r.durability)
        for receiver, row_count in batch.pieces:
            receiver.acknowledge(Produced(partition, offset, row_count, level, r.duplicate))
            offset += row_count
        assert offset - r.base_offset == batch.row_count, "each row has one receiver"
        self._finish(batch)

    def failed_try(
        self,
        partition: int,
        batch: EncodedBatch,
        error: QuiverlogError,
        now: Now,
        next_sequence: int = NO_SEQUENCE,
    ) -> None:
        queue = self._queues[partition]
        if batch.is_done:
            return
        batch.last_failure, batch.last_reason = error.message, type(error).__name__
        queue.awaits_metadata = queue.awaits_metadata or error.refresh_metadata
        is_answer = isinstance(error, REFUSED) or not error.retriable
        if not is_answer or isinstance(error, UNTRUSTED):
            batch.maybe_stored = True
            queue.numbering.unsettle()
        if isinstance(error, (OutOfOrderSequence, UnknownProducerId)) and self.options.idempotent:
            if self._resolve_hole(queue, batch, error, now):
                return
        elif isinstance(error, InvalidProducerEpoch) and self.options.idempotent:
            if self._epoch_ended(queue, batch, error, now, next_sequence):
                return
        elif error.retriable and now.mono_us < batch.deadline_us:
            self._try_again(queue, batch, error, now)
            return
        self._fail(queue, batch, error)

    def identity_renewed(self, identity: Identity) -> None:
        # Batches in flight, or perhaps stored, keep the old numbers until known not to be stored;
        # all others are numbered anew.
        self.identity = identity
        for queue in self._queues.values():
            if queue.numbering.identity == identity:
                continue
            queue.numbering.supersede()
            if queue.is_idle and queue.numbering.is_broken:
                queue.numbering.renew(identity, ())

    def topic_changed(self, topic: TopicInfo) -> None:
        self.topic = topic
        for queue in self._queues.values():
            queue.awaits_metadata = False

    def fail_all(self, error: QuiverlogError) -> None:
        for queue in self._queues.values():
            for batch in list(queue.batches()):
                self._fail(queue, batch, error)

    def _resolve_hole(
        self, queue: PartitionQueue, batch: EncodedBatch, error: QuiverlogError, now: Now
    ) -> bool:
        """Handle a broker that lacks the numbers before this batch's. True: it will be retried."""
        numbering = queue.numbering
        others = (b for b in (*queue.in_flight, *queue.retry) if b is not batch)
        is_oldest = all(b.index > batch.index for b in others)
        if is_oldest and batch.maybe_stored:
            has_lost_state = isinstance(error, UnknownProducerId) and numbering.is_known
            if has_lost_state or not numbering.is_broken:
                return False  # an earlier try may be stored, and the broker has no record of it
            # Not stored now, but an earlier try may still arrive, after the one that has failed.
            # The next epoch prevents that; if the producer has it, the leader does not yet.
            numbering.wants_epoch = numbering.identity == self.identity
        elif is_oldest and not numbering.is_broken:
            numbering.break_off(batch)
        # A batch that is not the oldest: its predecessor was not stored, so it was not either.
        self._try_again(queue, batch, error, now)
        return True

    def _epoch_ended(
        self,
        queue: PartitionQueue,
        batch: EncodedBatch,
        error: QuiverlogError,
        now: Now,
        next_sequence: int,
    ) -> bool:
        """Handle the end of the batch's epoch. True: not stored, retried under another one."""
        if batch.maybe_stored and not queue.numbering.is_never_stored(batch, next_sequence):
            return False
        batch.maybe_stored = False
        queue.numbering.break_off(batch)
        self._try_again(queue, batch, error, now)
        return True

    def _try_again(
        self, queue: PartitionQueue, batch: EncodedBatch, error: QuiverlogError, now: Now
    ) -> None:
        assert not batch.is_done
        queue.in_flight.remove(batch)
        queue.retry.append(batch)
        wait_us = round(pause_s(error, batch.attempts - 1, self._jitter()) * 1_000_000)
        queue.not_before_us = max(queue.not_before_us, now.mono_us + wait_us)

    def _fail(self, queue: PartitionQueue, batch: EncodedBatch, error: QuiverlogError) -> None:
        for holder in (queue.in_flight, queue.retry, queue.queue):
            if batch in holder:
                holder.remove(batch)
        # Its numbers are a hole: the broker would refuse the batches after it as out of order.
        was_refused = error.retriable or isinstance(error, (DeliveryTimedOut, *NOT_STORED))
        is_at_large = any(one.maybe_stored for one in (batch, *queue.batches()))
        is_settled = was_refused and not is_at_large
        queue.numbering.break_off(batch, is_settled=is_settled)
        for receiver, _ in batch.pieces:
            self._failed(receiver, self._final_error(queue, batch, error))
        self._finish(batch)

    def _final_error(
        self, queue: PartitionQueue, batch: EncodedBatch, error: QuiverlogError
    ) -> QuiverlogError:
        # A copy: one error may be that of several batches.
        if error.retriable:  # retried until the deadline
            text = f"{counted(batch.row_count, 'row', 'rows')}. Last failure: {error.message}"
            final: QuiverlogError = DeliveryTimedOut(text)
        else:
            final = type(error)(error.message, **error.details)
        if batch.maybe_stored:
            final.add_note("A try had no valid answer: the rows may be stored.")
        return named(final, self.topic.name, queue.partition)

    def _finish(self, batch: EncodedBatch) -> None:
        assert not batch.is_done, "a batch is acknowledged or failed, once"
        batch.is_done = True
        self.buffered_bytes -= len(batch.encoded)
        assert self.buffered_bytes >= 0
        self.finished += 1
