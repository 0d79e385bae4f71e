"""PRODUCE and INIT_PRODUCER_ID: rows in.

Owns the order in which a produce is looked at (leader epoch, durability, room, bytes, producer),
the answer per partition, and the wait for the disk. All batches of one entry are stored together
or not at all; entries are independent of each other.

An acknowledgement that says `flushed` is sent after the fsync that covers its rows has returned:
a crash before that may lose the rows, and the producer, having heard nothing, sends them again.
A repetition waits for the same fsync: its rows are stored, but perhaps not on the disk yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quiverlog.batch.codec import split_batches
from quiverlog.batch.header import BatchHeader, peek
from quiverlog.batch.validate import validate_batch
from quiverlog.core.controller.topics import next_producer_id_block
from quiverlog.errors import (
    CorruptBatch,
    DiskFull,
    InvalidRequest,
    OutOfOrderSequence,
    QuiverlogError,
    RequestTimedOut,
    StorageFault,
)
from quiverlog.limits import BATCH_HEADER_BYTES, PARTITIONS_PER_REQUEST_MAX
from quiverlog.node.events import RequestReceived
from quiverlog.node.purgatory import Waiter
from quiverlog.node.replica import Replica
from quiverlog.types import NO_PRODUCER_ID, Durability, Now
from quiverlog.wire import messages as m

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = ["ProduceWaiter", "handle_init_producer_id", "handle_produce"]

_TIMEOUT_MS_MAX: Final = 24 * 3_600_000
_PRODUCER_EPOCH_MAX: Final = 2**15 - 1


class ProduceWaiter(Waiter):
    """A produce whose rows are in the log but not all on the disk. `remaining` counts entries."""

    __slots__ = ("remaining", "response")

    def __init__(
        self, connection_id: int, correlation_id: int, deadline_us: int, response: m.ProduceResponse
    ) -> None:
        super().__init__(connection_id, correlation_id, deadline_us)
        self.response = response
        self.remaining = 0

    def flushed(self, broker: Broker) -> None:
        """One entry is on the disk."""
        self.remaining -= 1
        if self.remaining == 0 and not self.done:
            self._answer(broker)

    def failed(self, broker: Broker, index: int, error: QuiverlogError) -> None:
        """One entry will never be known to be on the disk."""
        if not self.done:
            _fail(self.response.partitions[index], error)
            self.flushed(broker)

    def expire(self, broker: Broker, now: Now) -> None:
        """The rows may yet reach the disk: the outcome is unknown, and the answer says so."""
        error = RequestTimedOut("the disk did not confirm the rows in time.")
        for result in self.response.partitions:
            if not result.error_code and result.durability >= Durability.FLUSHED:
                _fail(result, error)
        broker.metrics.produces_timed_out += 1
        self._answer(broker)

    def _answer(self, broker: Broker) -> None:
        broker.purgatory.finish(self)
        if self.connection_id in broker.connections:
            broker.respond(self.connection_id, self.correlation_id, self.response)


def _fail(result: m.ProducePartitionResult, error: QuiverlogError) -> None:
    result.error_code = error.code
    result.error_message = error.message
    result.base_offset = -1


def handle_produce(broker: Broker, event: RequestReceived, now: Now) -> None:
    """See the module docstring."""
    request = event.request
    assert isinstance(request, m.ProduceRequest)
    entries = request.partitions
    body = event.body
    _check_sizes(entries, len(body))
    broker.check_writable()
    response = m.ProduceResponse()
    results = response.partitions = []
    waiter: ProduceWaiter | None = None
    at = 0
    for entry in entries:
        result = m.ProducePartitionResult(entry.topic_id, entry.partition)
        results.append(result)
        end = at + entry.batch_bytes
        try:
            replica = broker.replica(entry.topic_id, entry.partition)
            wait_until = _store(broker, replica, entry, request, body[at:end], result, now)
        except QuiverlogError as error:
            _fail(result, error)
            broker.metrics.batches_refused += 1
        else:
            if wait_until > replica.state.flushed_offset:
                if waiter is None:
                    waiter = _waiter(event, request, response, now)
                waiter.remaining += 1
                replica.acks.append((wait_until, waiter, len(results) - 1))
                broker.want_sync(replica)
        at = end
    if waiter is None:
        broker.respond(event.connection_id, request.correlation_id, response)
    else:
        broker.purgatory.add(waiter, by_connection=False)


def _waiter(
    event: RequestReceived, request: m.ProduceRequest, response: m.ProduceResponse, now: Now
) -> ProduceWaiter:
    timeout_ms = min(max(request.timeout_ms, 1), _TIMEOUT_MS_MAX)
    deadline_us = now.mono_us + timeout_ms * 1000
    return ProduceWaiter(event.connection_id, request.correlation_id, deadline_us, response)


def _check_sizes(entries: list[m.ProducePartition], body_bytes: int) -> None:
    """Before anything is stored: a wrong sum means that no boundary can be trusted."""
    total = 0
    for entry in entries:
        if entry.batch_bytes < BATCH_HEADER_BYTES:
            raise InvalidRequest(
                f"an entry has {entry.batch_bytes} bytes of batches; a batch has at least"
                f" {BATCH_HEADER_BYTES}."
            )
        total += entry.batch_bytes
    if total != body_bytes:
        raise InvalidRequest(f"the entries add up to {total} bytes, the body has {body_bytes}.")
    if len(entries) > PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{len(entries)} partitions in a request, allowed are {PARTITIONS_PER_REQUEST_MAX}."
        )


def _store(
    broker: Broker,
    replica: Replica,
    entry: m.ProducePartition,
    request: m.ProduceRequest,
    body: memoryview,
    result: m.ProducePartitionResult,
    now: Now,
) -> int:
    """Validate and append one entry; fill in `result`.

    Returns the offset that the disk must have reached before the answer may go (0: none).
    """
    state = replica.state
    if entry.leader_epoch != state.leader_epoch:
        state.check_leader_epoch(entry.leader_epoch)
    level = state.required_level(request.durability)
    if replica.fault:
        replica.check_fault()
    batches = _validate(replica, body, now)
    if len(batches) == 1:
        header = batches[0][0]
        row_count = header.row_count
        known = replica.producers.check(header)
        end = 0 if known is None else known + row_count
    else:
        known, end = _check_all(replica, [header for header, _ in batches])
        row_count = sum(header.row_count for header, _ in batches)
    if known is None:
        known = _append(broker, replica, batches, now)
        end = state.log_end_offset
    else:
        result.duplicate = True
        broker.metrics.batches_deduplicated += len(batches)
    result.base_offset = known
    result.row_count = row_count
    result.durability = level
    result.leader_epoch = state.leader_epoch
    result.log_start_offset = replica.log.log_start_offset
    return end if level >= Durability.FLUSHED else 0


def _validate(replica: Replica, body: memoryview, now: Now) -> list[tuple[BatchHeader, memoryview]]:
    topic = replica.topic
    config = topic.config
    schemas = topic.schemas
    limit, full, wall_us = config.batch_bytes_max, config.validate_full, now.wall_us
    if peek(body)[2] == len(body):  # One batch, as nearly always.
        header = validate_batch(
            body, schemas=schemas, bytes_max=limit, full=full, now_wall_us=wall_us
        )
        return [(header, body)]
    batches = [
        (
            validate_batch(view, schemas=schemas, bytes_max=limit, full=full, now_wall_us=wall_us),
            view,
        )
        for _, view in split_batches(body)
    ]
    if not batches:
        raise CorruptBatch("the entry holds no batch.")
    return batches


def _check_all(replica: Replica, headers: list[BatchHeader]) -> tuple[int | None, int]:
    """(offset of the first, end of the last) when all are repetitions, (None, 0) when all are new.

    Raises:
        OutOfOrderSequence: some are repetitions and some are not. A retry must carry the same
            batches: one answer could not say where the rows of both kinds lie.
    """
    answers = replica.producers.check_all(headers)
    known = [answer for answer in answers if answer is not None]
    if not known:
        return None, 0
    if len(known) < len(answers):
        raise OutOfOrderSequence(
            f"{replica.name}: {len(known)} of {len(answers)} batches of this entry are stored"
            " already; a retry must carry the batches of the first try."
        )
    return known[0], known[-1] + headers[-1].row_count


def _append(
    broker: Broker, replica: Replica, batches: list[tuple[BatchHeader, memoryview]], now: Now
) -> int:
    try:
        base_offset, moved = replica.append(batches, now)
    except DiskFull:
        broker.disk_filled()
        raise
    except StorageFault as error:
        broker.declare_fault(replica, error.message)
        raise
    if moved:
        broker.moved[replica] = None
    return base_offset


# --- INIT_PRODUCER_ID -----------------------------------------------------------------------------
def handle_init_producer_id(broker: Broker, event: RequestReceived, now: Now) -> None:
    """A producer id that nobody had before; or the next epoch of the one that the asker has."""
    request = event.request
    assert isinstance(request, m.InitProducerIdRequest)
    if request.transactional_id:
        raise InvalidRequest("this broker has no transactions: leave transactional_id empty.")
    producer_id, epoch = request.producer_id, request.producer_epoch + 1
    if producer_id == NO_PRODUCER_ID or epoch > _PRODUCER_EPOCH_MAX:
        producer_id, epoch = _new_producer_id(broker), 0
    elif not (0 <= producer_id < broker.producer_id_next and epoch > 0):
        raise InvalidRequest(
            f"producer id {producer_id} with epoch {request.producer_epoch} was never given out."
        )
    broker.respond(
        event.connection_id,
        request.correlation_id,
        m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch),
    )


def _new_producer_id(broker: Broker) -> int:
    if broker.producer_id_next >= broker.producer_id_end:
        broker.check_writable()
        start = broker.image.next_producer_id
        broker.commit([next_producer_id_block(broker.image)])
        broker.producer_id_next, broker.producer_id_end = start, broker.image.next_producer_id
    producer_id = broker.producer_id_next
    broker.producer_id_next += 1
    return producer_id
