"""The sender: encoded batches in, produce requests out; answers in, fates out. No I/O, no clock.

Per partition, oldest first (a `PartitionQueue`):

    queued -> in flight -> acknowledged
       ^         |-> failed for good
       '- retry <'            same bytes, same numbers, in the order of the first try

Invariants:

- At most `PRODUCER_IN_FLIGHT_MAX` batches lie from the oldest unanswered one to the newest sent
  one, answered ones in between included: the broker recognises no more of them as duplicates, and
  answers of one partition may overtake each other when requests span partitions.
- Batches were sent in the order of their sequence numbers. When one must be tried again, the
  partition sends nothing until all its answers are in, then starts again from the oldest.
- A batch keeps producer id, epoch and sequence over all tries, so the broker stores it once. Only
  a batch that is *known* not to be stored may be given other numbers (`producer_identity`).
- An answer is waited for as long as whoever owes it leads. After a while without one the metadata
  are looked at, again and again; once they name another leader, that one gets the batches.
- Whatever fails is told to its receivers; nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from quiverlog.errors import (
    ConnectionFailed,
    CorruptFrame,
    DeliveryTimedOut,
    DiskFull,
    FencedLeaderEpoch,
    InvalidResponse,
    NotLeader,
    OutOfOrderSequence,
    QuiverlogError,
    ThrottledBroker,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownProducerId,
    UnknownSchema,
)
from quiverlog.limits import BATCH_BYTES_DEFAULT_MAX
from quiverlog.types import Durability, Now
from quiverlog.wire import messages as m

from .answers import named
from .partition_queue import SILENCE_US, PartitionQueue
from .producer_identity import Numbering
from .producer_types import EncodedBatch, Identity, ProduceCall, ProducerOptions, Receiver
from .results import Produced, TopicInfo
from .routing import pause_s

__all__ = ["Sender"]

REQUEST_BODY_BYTES_MAX = BATCH_BYTES_DEFAULT_MAX
"""Batches of several partitions share a request up to here: it fits the smallest
`frame.bytes.max` that a broker may have. A larger batch travels alone."""

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

UNTRUSTED = (CorruptFrame, InvalidResponse)
"""The broker did something and its answer cannot be believed: the batch may be stored."""


class Sender:
    """See the module's docstring.

    Args:
        failed: takes the receivers of what will never be stored.
        jitter: an even draw from [0, 1), for the pauses between tries.
    """

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
        self.buffered_bytes = 0
        """Bytes of batches that are neither acknowledged nor failed."""
        self.finished = 0
        """Grows with every batch that was acknowledged or failed."""
        self.needs_metadata = False
        self.needs_identity = False
        self.silent: set[int] = set()
        self.deposed: set[int] = set()
        self._options = options
        self._identity = identity
        self._failed = failed
        self._jitter = jitter
        self._queues: dict[int, PartitionQueue] = {}

    def queue_of(self, partition: int) -> PartitionQueue:
        """The queue of a partition, made at its first batch."""
        found = self._queues.get(partition)
        if found is None:
            numbering = Numbering(self._identity, is_idempotent=self._options.idempotent)
            found = self._queues[partition] = PartitionQueue(partition, numbering)
        return found

    def append(self, partition: int, batch: EncodedBatch) -> None:
        """Take a closed batch."""
        self.queue_of(partition).append(batch)
        self.buffered_bytes += len(batch.encoded)

    @property
    def has_unsent(self) -> bool:
        """Some batch is neither acknowledged nor failed."""
        return any(not queue.is_idle for queue in self._queues.values())

    def outstanding(self) -> list[EncodedBatch]:
        """All batches that are neither acknowledged nor failed."""
        return [batch for queue in self._queues.values() for batch in queue.batches()]

    # --- what to send ---------------------------------------------------------------------------
    def poll(self, now: Now) -> list[ProduceCall]:
        """What to send now; sets `needs_metadata`, `needs_identity`, `silent` and `deposed`."""
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
            if queue.must_renew_first():
                self.needs_identity = True
                continue
            while (batch := queue.next_batch(now)) is not None:
                leader = self._leader(queue.partition)
                if leader is None:
                    break
                queue.queue.popleft()
                self._enter(open_calls, calls, leader, queue, batch, now)
        calls.extend(open_calls.values())
        return [self._timed(call, now) for call in calls]

    def _mind_silence(self, queue: PartitionQueue, now: Now) -> None:
        """A machine that lost its power says nothing: the others know who leads instead."""
        if not queue.in_flight or now.mono_us - queue.in_flight[0].sent_us < SILENCE_US:
            return
        owing = queue.in_flight[0].leader
        if self._leader_of(queue.partition) not in (owing, -1):
            self.deposed.add(owing)
            return
        due_us = queue.look_at_us
        assert due_us is not None
        if now.mono_us >= due_us:
            queue.looked_us = now.mono_us
            self.silent.add(owing)
            self.needs_metadata = True

    def _timed(self, call: ProduceCall, now: Now) -> ProduceCall:
        """No request is waited for longer than its youngest batch may take in all."""
        left_us = max(batch.deadline_us for batch in call.batches.values()) - now.mono_us
        assert left_us > 0, "what is too old was given up before"
        timeout_us = min(self._options.request_timeout_us, left_us)
        call.request.timeout_ms = max(1, timeout_us // 1000)
        return call._replace(timeout_us=timeout_us)

    def give_up_expired(self, now: Now) -> None:
        """Fail the batches whose time is up, unless their reply is still awaited."""
        for queue in self._queues.values():
            expired = [b for b in queue.retry if b.deadline_us <= now.mono_us]
            # The queue is in the order of age, so a look at its head is all that is needed.
            expired.extend(takewhile(lambda b: b.deadline_us <= now.mono_us, queue.queue))
            for batch in expired:
                seconds = self._options.delivery_timeout_us / 1_000_000
                why = batch.last_failure and f" Last failure: {batch.last_failure}"
                text = f"{batch.row_count} rows waited {seconds:g} s.{why}"
                self._fail(queue, batch, DeliveryTimedOut(text))

    def wake_at_us(self, now: Now) -> int | None:
        """When something may be sent or given up that could not be now."""
        moments = []
        for queue in self._queues.values():
            waiting = queue.queue or queue.retry
            if waiting:
                moments.append(waiting[0].deadline_us)
                # A pause that is over waits for metadata or an identity, which call in the end.
                if not queue.in_flight and queue.not_before_us > now.mono_us:
                    moments.append(queue.not_before_us)
            if (look_at_us := queue.look_at_us) is not None:
                moments.append(look_at_us)
        return min(moments, default=None)

    def _leader_of(self, partition: int) -> int:
        """As far as is known; -1: nobody."""
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
        """Put a batch into its leader's request; one request holds one batch per partition."""
        call = open_calls.get(leader)
        if call is not None:
            size = sum(p.batch_bytes for p in call.request.partitions) + len(batch.encoded)
            if queue.partition in call.batches or size > REQUEST_BODY_BYTES_MAX:
                calls.append(open_calls.pop(leader))
                call = None
        if call is None:
            timeout_us = self._options.request_timeout_us
            request = m.ProduceRequest(durability=self._options.durability, partitions=[])
            call = open_calls[leader] = ProduceCall(leader, request, [], {}, timeout_us)
        info = self.topic.partitions[queue.partition]
        call.request.partitions.append(
            m.ProducePartition(
                self.topic.topic_id, queue.partition, info.leader_epoch, len(batch.encoded)
            )
        )
        call.body.append(batch.encoded)
        call.batches[queue.partition] = batch
        batch.attempts += 1
        batch.leader, batch.sent_us = leader, now.mono_us
        queue.in_flight.append(batch)

    # --- what became of it ----------------------------------------------------------------------
    def acknowledge(self, partition: int, batch: EncodedBatch, r: m.ProducePartitionResult) -> None:
        """The broker has stored a batch."""
        queue = self._queues[partition]
        if batch.is_done:
            return
        queue.in_flight.remove(batch)
        queue.numbering.is_known = True
        if not queue.in_flight:
            queue.not_before_us = 0
        offset = r.base_offset
        level = Durability(r.durability)
        for receiver, row_count in batch.pieces:
            receiver.acknowledge(Produced(partition, offset, row_count, level, r.duplicate))
            offset += row_count
        self._finish(batch)

    def failed_try(
        self, partition: int, batch: EncodedBatch, error: QuiverlogError, now: Now
    ) -> None:
        """A try has failed: again, under new numbers, or for good."""
        queue = self._queues[partition]
        if batch.is_done:
            return
        batch.last_failure = error.message
        queue.awaits_metadata = queue.awaits_metadata or error.refresh_metadata
        if isinstance(error, (OutOfOrderSequence, UnknownProducerId)) and self._options.idempotent:
            if self._resolve_hole(queue, batch, error, now):
                return
        elif error.retriable and now.mono_us < batch.deadline_us:
            if not isinstance(error, REFUSED):
                batch.maybe_stored = True
            self._try_again(queue, batch, error, now)
            return
        batch.maybe_stored = batch.maybe_stored or isinstance(error, UNTRUSTED)
        self._fail(queue, batch, error)

    def identity_renewed(self, identity: Identity) -> None:
        """A new producer id: number anew what is known not to be stored."""
        self._identity = identity
        for queue in self._queues.values():
            if not queue.numbering.is_broken or queue.in_flight or queue.retry:
                continue
            if queue.queue and queue.queue[0].maybe_stored:
                continue
            queue.numbering.renew(identity, queue.queue)

    def topic_changed(self, topic: TopicInfo) -> None:
        """Fresh metadata of the same topic."""
        self.topic = topic
        for queue in self._queues.values():
            queue.awaits_metadata = False

    def fail_all(self, error: QuiverlogError) -> None:
        """Give up everything that is not acknowledged."""
        for queue in self._queues.values():
            for batch in list(queue.batches()):
                self._fail(queue, batch, error)

    def _resolve_hole(
        self, queue: PartitionQueue, batch: EncodedBatch, error: QuiverlogError, now: Now
    ) -> bool:
        """The broker misses what comes before this batch. True: it will be tried again."""
        others = (b for b in (*queue.in_flight, *queue.retry) if b is not batch)
        is_oldest = all(b.index > batch.index for b in others)
        if not is_oldest:
            # Its predecessor was not stored, so it was not either; both go again, in order.
            batch.maybe_stored = False
            self._try_again(queue, batch, error, now)
            return True
        has_forgotten = isinstance(error, UnknownProducerId) and queue.numbering.is_known
        if batch.maybe_stored and (has_forgotten or not queue.numbering.is_broken):
            return False  # an earlier try may have stored it, and the broker cannot tell any more
        batch.maybe_stored = False
        queue.numbering.break_off()
        self._try_again(queue, batch, error, now)
        return True

    def _try_again(
        self, queue: PartitionQueue, batch: EncodedBatch, error: QuiverlogError, now: Now
    ) -> None:
        queue.in_flight.remove(batch)
        queue.retry.append(batch)
        wait_us = round(pause_s(error, batch.attempts - 1, self._jitter()) * 1_000_000)
        queue.not_before_us = max(queue.not_before_us, now.mono_us + wait_us)

    def _fail(self, queue: PartitionQueue, batch: EncodedBatch, error: QuiverlogError) -> None:
        for holder in (queue.in_flight, queue.retry, queue.queue):
            if batch in holder:
                holder.remove(batch)
        # Its numbers are used up: those that follow would be out of order for the broker.
        queue.numbering.break_off()
        for receiver, _ in batch.pieces:
            self._failed(receiver, self._final_error(queue, batch, error))
        self._finish(batch)

    def _final_error(
        self, queue: PartitionQueue, batch: EncodedBatch, error: QuiverlogError
    ) -> QuiverlogError:
        """A copy of the error for one batch: one request may fail batches of several partitions."""
        if error.retriable:  # it was tried until its time was up
            text = f"{batch.row_count} rows. Last failure: {error.message}"
            final: QuiverlogError = DeliveryTimedOut(text)
        else:
            final = type(error)(error.message, **error.details)
            if batch.maybe_stored:
                final.add_note("A try had no good answer: the rows may be stored nevertheless.")
        return named(final, self.topic.name, queue.partition)

    def _finish(self, batch: EncodedBatch) -> None:
        batch.is_done = True
        self.buffered_bytes -= len(batch.encoded)
        assert self.buffered_bytes >= 0
        self.finished += 1
