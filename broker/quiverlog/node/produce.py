"""PRODUCE and INIT_PRODUCER_ID: rows in.

Owns the order in which a produce is looked at (leader epoch, durability, room, bytes, producer) and
what is said of each entry. All batches of one entry are stored together or not at all; entries are
independent of each other.

An acknowledgement that says `flushed` is sent after the fsync that covers its rows has returned:
a crash before that may lose the rows, and the producer, having heard nothing, sends them again.
A repetition waits for the same fsync: its rows are stored, but perhaps not on the disk yet.

An entry of an idempotent producer is one batch (docs/adr/0016): what is remembered of it follows
from the log, batch by batch, and one answer could not say where the rows of several lie.

Two steps: `handle_produce` admits the batches of one request to their logs; `Staging.finish`
writes, in one go per log, what all requests of one socket read have brought, and answers them.
"""

from __future__ import annotations

from typing import Final

from quiverlog.batch.codec import split_batches
from quiverlog.batch.header import BatchHeader, peek
from quiverlog.batch.validate import validate_batch
from quiverlog.core.controller.records import ProducerEpochRecord
from quiverlog.core.controller.topics import next_producer_id_block
from quiverlog.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidProducerEpoch,
    InvalidRequest,
    QuiverlogError,
    ThrottledBroker,
    UnknownProducerId,
)
from quiverlog.limits import BATCH_HEADER_BYTES, BATCH_ROWS_MAX, PARTITIONS_PER_REQUEST_MAX
from quiverlog.node.acknowledgements import fail_result
from quiverlog.node.broker import Broker
from quiverlog.node.events import RequestReceived
from quiverlog.node.replica import Replica
from quiverlog.node.staging import STAGED_BYTES_MAX, STAGED_ROWS_MAX, Staged, StagedEntry
from quiverlog.node.tasks import Call, Steps, Wait
from quiverlog.types import NO_PRODUCER_ID, Now
from quiverlog.wire import messages as m

__all__ = ["handle_init_producer_id", "handle_produce"]

_PRODUCER_EPOCH_MAX: Final = 2**15 - 1


def handle_produce(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Admit the batches; `Staging.finish` appends them, with all that were admitted meanwhile."""
    request = event.request
    assert isinstance(request, m.ProduceRequest)
    entries = request.partitions
    body = event.body
    staging = broker.staging
    _check_sizes(entries, len(body))
    # Only here, between requests: entries of one request must not be parted by a failed append.
    if staging.produces and staging.byte_count + len(body) > STAGED_BYTES_MAX:
        staging.finish(now)
    broker.admission.check_writable()
    if broker.purgatory.live >= broker.config.requests_waiting_max:
        raise ThrottledBroker
    staging.byte_count += len(body)
    response = m.ProduceResponse()
    results = response.partitions = []
    staged: list[StagedEntry] = []
    # Before its entries are admitted: whatever they meet, `finish` answers this request.
    staging.produces.append(Staged(event.connection_id, request, response, staged))
    at = 0
    for entry in entries:
        result = m.ProducePartitionResult(entry.topic_id, entry.partition)
        results.append(result)
        end = at + entry.batch_bytes
        replica: Replica | None = None
        end_offset = 0
        try:
            replica = broker.replica(entry.topic_id, entry.partition)
            end_offset = _admit(broker, replica, entry, request, body[at:end], result, now)
        except QuiverlogError as error:
            fail_result(result, error)
            broker.metrics.batches_refused += 1
        except Exception as error:
            broker.outbox.internal_error("PRODUCE", error)
            fail_result(result, QuiverlogError())
        if replica is not None:
            staged.append((replica, end_offset, result))
        at = end


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
    if replica.fault is not None:
        raise replica.fault
    batches = _validate(replica, body, now)
    row_count = batches[0][0].row_count if len(batches) == 1 else _row_count(batches)
    known = _check_producer(broker, replica, batches)
    if known is None:
        if replica.admitted_rows + row_count > STAGED_ROWS_MAX:
            raise BatchTooLarge(f"{replica.name}: too many rows at once: send them one by one.")
        base_offset = replica.admit(batches, now)
        broker.staging.appending[replica] = None
    else:
        base_offset = known
        result.duplicate = True
        broker.metrics.batches_deduplicated += 1
    result.base_offset = base_offset
    result.row_count = row_count
    result.durability = level
    result.leader_epoch = state.leader_epoch
    result.log_start_offset = state.log_start_offset
    return base_offset + row_count


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


def _row_count(batches: list[tuple[BatchHeader, memoryview]]) -> int:
    """Rows of an entry of several batches: no more than one batch may have."""
    row_count = sum(header.row_count for header, _ in batches)
    if row_count > BATCH_ROWS_MAX:
        raise BatchTooLarge(f"an entry has {row_count} rows, allowed are {BATCH_ROWS_MAX}.")
    return row_count


def _check_producer(
    broker: Broker, replica: Replica, batches: list[tuple[BatchHeader, memoryview]]
) -> int | None:
    """None: new. A number: the entry was stored before, and this is its offset.

    Raises:
        InvalidRequest: an entry of several batches has a producer id.
        UnknownProducerId, InvalidProducerEpoch, OutOfOrderSequence: see `ProducerStates.check`;
            or id or epoch were never given out.
    """
    header = batches[0][0]
    if len(batches) > 1:
        if any(one.producer_id >= 0 for one, _ in batches):
            raise InvalidRequest(
                f"{replica.name}: an entry of an idempotent producer is one batch,"
                f" this one has {len(batches)}."
            )
        return None
    producer_id = header.producer_id
    if producer_id < 0:
        return None
    ids = broker.producer_ids
    if producer_id >= ids.next:
        raise UnknownProducerId(f"producer id {producer_id} was never given out.")
    epoch = header.producer_epoch
    if (
        epoch > 0
        and epoch > replica.producers.newest_epoch(producer_id)
        and not ids.has_epoch(producer_id, epoch)
    ):
        raise InvalidProducerEpoch(
            f"epoch {epoch} of producer {producer_id} was never given out: INIT_PRODUCER_ID does."
        )
    return replica.producers.check(header)


# --- INIT_PRODUCER_ID ---------------------------------------------------------------------------
def handle_init_producer_id(broker: Broker, call: Call) -> Steps:
    """A producer id that nobody had before; or the next epoch of the one that the asker has.

    The epoch never goes back: whoever asks with an older one gets the one after the newest.
    """
    request = call.request
    assert isinstance(request, m.InitProducerIdRequest)
    if request.transactional_id:
        raise InvalidRequest("this broker has no transactions: leave transactional_id empty.")
    ids = broker.producer_ids
    producer_id = request.producer_id
    if producer_id != NO_PRODUCER_ID:
        if not 0 <= producer_id < ids.next or request.producer_epoch < 0:
            raise InvalidRequest(
                f"producer id {producer_id} with epoch {request.producer_epoch} was never given"
                " out."
            )
        newest = ids.newest_epoch(producer_id)
        # An epoch that is not known any more (or was given out by an older broker) cannot be
        # followed by one that is surely new: a new id can.
        if request.producer_epoch <= newest < _PRODUCER_EPOCH_MAX:
            broker.admission.check_writable()
            record = ProducerEpochRecord(producer_id, newest + 1)
            yield broker.metadata.proposal([record], call.now)
            return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=record.epoch)
    while ids.exhausted:
        yield _another_block(broker, call)
    return m.InitProducerIdResponse(producer_id=ids.take(), producer_epoch=0)


def _another_block(broker: Broker, call: Call) -> Wait:
    broker.admission.check_writable()
    return broker.metadata.proposal([next_producer_id_block(broker.metadata.pending)], call.now)
