"""PRODUCE and INIT_PRODUCER_ID: rows in.

Owns the order in which a produce is looked at (leader epoch, durability, room, bytes, producer),
the answer per partition, and the wait for the disk. All batches of one entry are stored together
or not at all; entries are independent of each other.

An acknowledgement that says `flushed` is sent after the fsync that covers its rows has returned:
a crash before that may lose the rows, and the producer, having heard nothing, sends them again.
A repetition waits for the same fsync: its rows are stored, but perhaps not on the disk yet.

Two steps: `handle_produce` admits the batches of one request to their logs; `finish_produces`
writes, in one go per log, what all requests of one socket read have brought, and answers them.
Nothing that is not a produce is handled between the two.
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
    ThrottledBroker,
)
from quiverlog.limits import BATCH_HEADER_BYTES, MIB, PARTITIONS_PER_REQUEST_MAX
from quiverlog.node.events import RequestReceived
from quiverlog.node.purgatory import Waiter
from quiverlog.node.replica import Replica
from quiverlog.types import NO_PRODUCER_ID, Durability, Now
from quiverlog.wire import messages as m

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = ["ProduceWaiter", "finish_produces", "handle_init_producer_id", "handle_produce"]

_TIMEOUT_MS_MAX: Final = 24 * 3_600_000
_ADMITTED_BYTES_MAX: Final = 1 * MIB
"""Small batches that arrive together are written together, up to this size."""
_PRODUCER_EPOCH_MAX: Final = 2**15 - 1


class ProduceWaiter(Waiter):
    """A produce whose rows are in the log but not all on the disk. `waiting`: results, by id."""

    __slots__ = ("response", "waiting")

    def __init__(
        self, connection_id: int, correlation_id: int, deadline_us: int, response: m.ProduceResponse
    ) -> None:
        super().__init__(connection_id, correlation_id, deadline_us)
        self.response = response
        self.waiting: dict[int, m.ProducePartitionResult] = {}

    def flushed(self, broker: Broker, result: m.ProducePartitionResult) -> None:
        """One entry is on the disk."""
        del self.waiting[id(result)]
        if not self.waiting and not self.done:
            self._answer(broker)

    def failed(
        self, broker: Broker, result: m.ProducePartitionResult, error: QuiverlogError
    ) -> None:
        """One entry will never be known to be on the disk."""
        if not self.done:
            _fail(result, error)
            self.flushed(broker, result)

    def expire(self, broker: Broker, now: Now) -> None:
        """The rows may yet reach the disk: the outcome is unknown, and the answer says so."""
        error = RequestTimedOut("the disk did not confirm the rows in time.")
        for result in self.waiting.values():
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
    """Admit the batches; `finish_produces` appends them, with all that were admitted meanwhile."""
    request = event.request
    assert isinstance(request, m.ProduceRequest)
    entries = request.partitions
    body = event.body
    _check_sizes(entries, len(body))
    # Only here, between requests: entries of one request must not be parted by a failed append.
    if broker.produces and broker.admitted_bytes + len(body) > _ADMITTED_BYTES_MAX:
        finish_produces(broker, now)
    broker.check_writable()
    if broker.purgatory.live >= broker.config.requests_waiting_max:
        raise ThrottledBroker
    broker.admitted_bytes += len(body)
    response = m.ProduceResponse()
    results = response.partitions = []
    stored: list[tuple[Replica, int, m.ProducePartitionResult]] = []
    at = 0
    for entry in entries:
        result = m.ProducePartitionResult(entry.topic_id, entry.partition)
        results.append(result)
        end = at + entry.batch_bytes
        try:
            replica = broker.replica(entry.topic_id, entry.partition)
            end_offset = _admit(broker, replica, entry, request, body[at:end], result, now)
        except QuiverlogError as error:
            _fail(result, error)
            broker.metrics.batches_refused += 1
        else:
            stored.append((replica, end_offset, result))
        at = end
    broker.produces.append((event, response, stored))


def finish_produces(broker: Broker, now: Now) -> None:
    """Append what was admitted, one write per log, then answer or wait for the disk."""
    produces, broker.produces = broker.produces, []
    broker.admitted_bytes = 0
    errors = _append_admitted(broker, now)
    for event, response, stored in produces:
        waiter: ProduceWaiter | None = None
        for replica, end_offset, result in stored:
            state = replica.state
            if end_offset > state.log_end_offset:
                _fail(result, errors.get(replica) or StorageFault(f"{replica.name}: not stored."))
            elif end_offset > state.flushed_offset and result.durability >= Durability.FLUSHED:
                if replica.fault:
                    _fail(result, StorageFault(f"{replica.name}: {replica.fault}."))
                    continue
                if waiter is None:
                    waiter = _waiter(event, response, now)
                waiter.waiting[id(result)] = result
                replica.acks.append((end_offset, waiter, result))
                broker.want_sync(replica)
        if waiter is None:
            broker.respond(event.connection_id, event.request.correlation_id, response)
        else:
            broker.purgatory.add(waiter, by_connection=False)


def _append_admitted(broker: Broker, now: Now) -> dict[Replica, QuiverlogError]:
    """Every log gets its batches in one write; those that fail come back with the reason."""
    errors: dict[Replica, QuiverlogError] = {}
    appending, broker.appending = broker.appending, []
    for replica in appending:
        if not replica.admitted:
            continue
        try:
            if replica.append(now):
                broker.moved[replica] = None
        except DiskFull as error:
            broker.disk_filled()
            errors[replica] = error
        except StorageFault as error:
            broker.declare_fault(replica, error.message)
            errors[replica] = error
    return errors


def _waiter(event: RequestReceived, response: m.ProduceResponse, now: Now) -> ProduceWaiter:
    request = event.request
    assert isinstance(request, m.ProduceRequest)
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


def _admit(
    broker: Broker,
    replica: Replica,
    entry: m.ProducePartition,
    request: m.ProduceRequest,
    body: memoryview,
    result: m.ProducePartitionResult,
    now: Now,
) -> int:
    """Validate one entry, admit it and fill in `result`. Returns the offset after its last row."""
    state = replica.state
    if entry.leader_epoch != state.leader_epoch:
        state.check_leader_epoch(entry.leader_epoch)
    level = state.required_level(request.durability)
    if replica.fault:
        replica.check_fault()
    batches = _validate(replica, body, now)
    known, row_count = _check_producers(replica, batches)
    if known is None:
        if not replica.admitted:
            broker.appending.append(replica)
        known = replica.admit(batches, now)
    else:
        result.duplicate = True
        broker.metrics.batches_deduplicated += len(batches)
    result.base_offset = known
    result.row_count = row_count
    result.durability = level
    result.leader_epoch = state.leader_epoch
    result.log_start_offset = replica.log.log_start_offset
    return known + row_count


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


def _check_producers(
    replica: Replica, batches: list[tuple[BatchHeader, memoryview]]
) -> tuple[int | None, int]:
    """(offset of the entry if it is a repetition, its rows).

    Raises:
        OutOfOrderSequence: some batches are repetitions and some are not, or the repeated ones do
            not lie together. A retry must carry the batches of the first try: one answer could
            not say where the rows of both kinds lie.
    """
    if len(batches) == 1:
        header = batches[0][0]
        return replica.producers.check(header), header.row_count
    headers = [header for header, _ in batches]
    row_count = sum(header.row_count for header in headers)
    answers = replica.producers.check_all(headers)
    known = [answer for answer in answers if answer is not None]
    if not known:
        return None, row_count
    if len(known) < len(answers) or known[-1] + headers[-1].row_count != known[0] + row_count:
        raise OutOfOrderSequence(
            f"{replica.name}: {len(known)} of {len(answers)} batches of this entry are stored"
            " already; a retry must carry the batches of the first try."
        )
    return known[0], row_count


# --- INIT_PRODUCER_ID ---------------------------------------------------------------------------
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
