"""PRODUCE: rows in.

Owns the order of checks: leader epoch, durability, room, bytes, producer. Entries are checked at
once, or by a job where that takes long, then admitted; `Staging.finish` writes once per log for
all requests of one socket read.

Invariants: the batches of an entry are stored together or not at all, entries independently; an
answer with `flushed` is sent after the fsync that covers the rows, also for a repetition.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Final, NamedTuple

from quiverlog.batch.header import BatchHeader, stamp_times
from quiverlog.errors import (
    BatchTooLarge,
    DiskFull,
    InvalidProducerEpoch,
    InvalidRequest,
    NotLeader,
    OutOfOrderSequence,
    QuiverlogError,
    ThrottledBroker,
    UnknownProducerId,
)
from quiverlog.limits import BATCH_HEADER_BYTES, PARTITIONS_PER_REQUEST_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.partitions.acknowledgements import ProduceWaiter, fail_result
from quiverlog.node.partitions.admitted import (
    STAGED_BYTES_MAX,
    STAGED_ROWS_MAX,
    Staged,
    StagedEntry,
)
from quiverlog.node.partitions.produce_checks import CheckJob, EntryCheck, HeldProduce, check_quick
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.jobs import Urgency
from quiverlog.node.runtime.tasks import Call, Steps, Wait
from quiverlog.types import PRODUCER_IDS_END, Durability, Now
from quiverlog.wire import messages as m

__all__ = ["ENTRIES_INLINE_MAX", "ENTRIES_PER_STEP", "STAGE_COST", "check_sizes", "handle_produce"]


_MEMORY: Final = Durability.MEMORY


ENTRIES_INLINE_MAX: Final = 64
ENTRIES_PER_STEP: Final = 2
STAGE_COST: Final = 1
_FILE_COST: Final = 4
"""In steps (see `Call.cost`): an append takes some 20 us, a new file 200."""


def handle_produce(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Check and admit the batches at once, or hold the produce: behind others of its connection,
    for a check that takes longer, or for its steps.
    """
    request, body, connection_id = event.request, event.body, event.connection_id
    assert isinstance(request, m.ProduceRequest)
    check_sizes(request.partitions, len(body))
    held_produces = broker.held_produces
    is_wide = len(request.partitions) > ENTRIES_INLINE_MAX
    is_first = not held_produces.has_line(connection_id)
    if is_first and not is_wide:
        entries = look(broker, request, body)
        if check_quick(entries, now.wall_us):
            _stage_whole(broker, connection_id, request, body, entries, now)
            return
    broker.admission.check_writable()
    if is_wide and broker.purgatory.live >= broker.config.requests_waiting_max:
        raise ThrottledBroker
    held = held_produces.hold(connection_id, request, body)
    held.begin = partial(_begin, broker, held) if is_wide else None
    if not is_first:
        return
    try:
        _go_on(broker, held, now)
    except Exception:
        held_produces.release(held)
        raise


class Entry(EntryCheck):
    __slots__ = ("level", "replica")

    def __init__(self, view: memoryview) -> None:
        EntryCheck.__init__(self, view)  # On every request; `super()` costs as much again.
        self.replica: Replica | None = None
        self.level = _MEMORY


def look(broker: Broker, request: m.ProduceRequest, body: memoryview) -> list[Entry]:
    """Find each entry's partition, rules and durability; read no batch."""
    found: list[Entry] = []
    at = 0
    leading = broker.leading
    for asked in request.partitions:
        end = at + asked.batch_bytes
        entry = Entry(body[at:end])
        found.append(entry)
        at = end
        try:
            entry.replica = replica = leading(asked.topic_id, asked.partition)
            state = replica.state
            if asked.leader_epoch != state.leader_epoch:
                state.check_leader_epoch(asked.leader_epoch)
            entry.level = state.required_level(request.durability)
            if replica.fault is not None:
                raise replica.fault
            topic = replica.topic
            entry.rules(topic.schemas, topic.config)
        except Exception as error:
            entry.refuse(error)
    return found


def _look_again(
    broker: Broker, request: m.ProduceRequest, body: memoryview, checked: Sequence[Entry]
) -> list[Entry]:
    # While the job ran, a leader may have changed, a topic gone, a disk failed.
    entries = look(broker, request, body)
    for entry, check in zip(entries, checked, strict=True):
        if entry.error is None:
            entry.take(check)
    return entries


def _stage_whole(
    broker: Broker,
    connection_id: int,
    request: m.ProduceRequest,
    body: memoryview,
    entries: list[Entry],
    now: Now,
) -> None:
    staging = broker.staging
    # Only here, between requests: a failed append must not part the entries of one request.
    if staging.produces and staging.byte_count + len(body) > STAGED_BYTES_MAX:
        staging.finish(now)
    broker.admission.check_room()
    if broker.purgatory.live >= broker.config.requests_waiting_max:
        raise ThrottledBroker
    staging.byte_count += len(body)
    results = [m.ProducePartitionResult(a.topic_id, a.partition) for a in request.partitions]
    _stage(broker, connection_id, request, entries, results, None, now)


def _stage(
    broker: Broker,
    connection_id: int,
    request: m.ProduceRequest,
    entries: list[Entry],
    results: list[m.ProducePartitionResult],
    waiter: ProduceWaiter | None,
    now: Now,
) -> None:
    """Admit entries of a request: all of them if there is no waiter."""
    staged: list[StagedEntry] = []
    # First of all: whatever its entries raise, `finish` answers the request.
    response = m.ProduceResponse(partitions=results)
    broker.staging.produces.append(Staged(connection_id, request, response, staged, waiter))
    _admit_all(broker, entries, results, staged, now)


def _admit_all(
    broker: Broker,
    entries: list[Entry],
    results: list[m.ProducePartitionResult],
    staged: list[StagedEntry],
    now: Now,
) -> None:
    for entry, result in zip(entries, results, strict=True):
        replica = entry.replica
        end_offset = 0
        try:
            if entry.error is not None:
                raise entry.error
            assert replica is not None
            end_offset = _admit(broker, replica, entry, result, now)
            assert end_offset > 0, "an entry that is admitted has rows"
        except QuiverlogError as error:
            fail_result(result, error)
            broker.metrics.batches_refused += 1
        except Exception as error:
            broker.outbox.internal_error("PRODUCE", error)
            fail_result(result, QuiverlogError())
        if replica is not None:
            staged.append((replica, end_offset, result))


# --- produces that wait ------------------------------------------------------------------------
def _go_on(broker: Broker, held: HeldProduce, now: Now) -> None:
    if held.begin is not None:
        held.begin(now)
        return
    entries = look(broker, held.request, held.body)
    job = CheckJob(held.connection_id, entries, now.wall_us)
    broker.jobs.start(job, partial(_checked, broker, held, entries), Urgency.CHECK)


def _checked(
    broker: Broker,
    held: HeldProduce,
    checked: list[Entry],
    _result: object,
    error: BaseException | None,
    now: Now,
) -> None:
    if held.checked:
        return  # Called again after a bug of ours, which was answered.
    assert len(checked) == len(held.request.partitions)
    held.checked = True
    try:
        if error is not None:
            raise error
        entries = _look_again(broker, held.request, held.body, checked)
        _stage_whole(broker, held.connection_id, held.request, held.body, entries, now)
    except Exception as failure:
        _fail(broker, held, failure)
    finally:
        _take_turns(broker, held, now)


def _take_turns(broker: Broker, held: HeldProduce, now: Now) -> None:
    """Take the produces after a finished one, up to one that has to wait."""
    following = broker.held_produces.release(held)
    while following is not None:
        assert following.connection_id == held.connection_id, "a line is one connection's"
        assert not following.checked
        if following.begin is not None:
            following.begin(now)
            return
        request, body = following.request, following.body
        try:
            entries = look(broker, request, body)
            if not check_quick(entries, now.wall_us):
                _go_on(broker, following, now)
                return
            _stage_whole(broker, following.connection_id, request, body, entries, now)
        except Exception as failure:
            _fail(broker, following, failure)
        following = broker.held_produces.release(following)


def _fail(broker: Broker, held: HeldProduce, failure: Exception) -> None:
    if isinstance(failure, QuiverlogError):
        broker.fail(held.connection_id, held.request, failure)
        return
    broker.outbox.internal_error("PRODUCE", failure)
    if not broker.staging.is_last(held.request):  # Else `finish` answers.
        broker.fail(held.connection_id, held.request, QuiverlogError())


def check_sizes(entries: list[m.ProducePartition], body_bytes: int) -> None:
    total = 0
    for entry in entries:
        if entry.batch_bytes < BATCH_HEADER_BYTES:
            raise InvalidRequest(
                f"an entry has {entry.batch_bytes} bytes of batches; a batch has at least"
                f" {BATCH_HEADER_BYTES}."
            )
        total += entry.batch_bytes
    if total != body_bytes:  # Where one entry ends and the next begins is unknown.
        raise InvalidRequest(f"the entries add up to {total} bytes, the body has {body_bytes}.")
    if len(entries) > PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{len(entries)} partitions in a request, allowed are {PARTITIONS_PER_REQUEST_MAX}."
        )


def _admit(
    broker: Broker,
    replica: Replica,
    entry: Entry,
    result: m.ProducePartitionResult,
    now: Now,
) -> int:
    """Return the offset after its last row."""
    if replica.fault is not None:
        raise replica.fault  # Met after the entry's check.
    state = replica.state
    batches = entry.headers
    row_count = batches[0][0].row_count if len(batches) == 1 else _row_count(batches)
    # Here, not with the other checks: batches admitted just before count (replication rule 21).
    known = _check_producer(broker, replica, batches, result, now)
    if known is None:
        if replica.admitted_rows + row_count > STAGED_ROWS_MAX:
            raise BatchTooLarge(f"{replica.name}: too many rows at once: send them one by one.")
        if replica.topic.config.stamps_arrival:
            assert now.wall_us >= 0, "a batch's time is not negative"
            batches = [(stamp_times(view, one, now.wall_us), view) for one, view in batches]
        base_offset = replica.admit(batches, now)
        broker.staging.appending[replica] = None
    else:
        base_offset = known
        result.duplicate = True
        broker.metrics.batches_deduplicated += 1
    assert base_offset + row_count <= state.log_end_offset + replica.admitted_rows
    result.base_offset = base_offset
    result.row_count = row_count
    result.durability = entry.level
    result.leader_epoch = state.leader_epoch
    result.log_start_offset = state.log_start_offset
    return base_offset + row_count


def _row_count(batches: list[tuple[BatchHeader, memoryview]]) -> int:
    return sum(header.row_count for header, _ in batches)


def _check_producer(
    broker: Broker,
    replica: Replica,
    batches: list[tuple[BatchHeader, memoryview]],
    result: m.ProducePartitionResult,
    now: Now,
) -> int | None:
    """Return the offset under which the entry was stored before; None: it is new.

    Raises what the body does, and as `ProducerStates.check`.
    """
    header = batches[0][0]
    if len(batches) > 1:
        if any(one.producer_id >= 0 for one, _ in batches):  # docs/adr/0016
            raise InvalidRequest(
                f"{replica.name}: an entry of an idempotent producer is one batch,"
                f" this one has {len(batches)}."
            )
        return None
    producer_id = header.producer_id
    if producer_id < 0:
        return None
    if producer_id >= PRODUCER_IDS_END:
        raise InvalidRequest(f"producer id {producer_id} is above {PRODUCER_IDS_END - 1}.")
    if broker.leader_lease.is_over:
        raise NotLeader(
            f"{replica.name}: the controller is out of reach, and may have assigned a newer epoch"
            f" of producer {producer_id}."
        )
    ids = broker.producer_ids
    epoch = header.producer_epoch
    if producer_id >= ids.next and not ids.may_be_assigned(producer_id):
        if ids.may_be_new_elsewhere(producer_id, epoch, now):
            raise ThrottledBroker(
                f"producer id {producer_id} is not in this broker's metadata yet: try again."
            )
        raise UnknownProducerId(f"producer id {producer_id} was never assigned.")
    given = ids.assigned_epoch(producer_id)
    if epoch < given:  # The newer holder has taken over, even if it has not written yet.
        offset, next_sequence = replica.producers.under_ended_epoch(header)
        if offset is not None:
            return offset
        result.next_sequence = next_sequence
        raise InvalidProducerEpoch(
            f"producer {producer_id} wrote with epoch {epoch}, {given} was assigned since."
        )
    if epoch > given and epoch > replica.producers.newest_epoch(producer_id):
        if ids.may_be_new_elsewhere(producer_id, epoch, now):
            raise ThrottledBroker(
                f"epoch {epoch} of producer {producer_id} is not in this broker's metadata yet:"
                " try again."
            )
        raise InvalidProducerEpoch(
            f"epoch {epoch} of producer {producer_id} was never assigned: send INIT_PRODUCER_ID."
        )
    try:
        return replica.producers.check(header)
    except (OutOfOrderSequence, UnknownProducerId):
        broker.lookup.check_end(replica)  # Another leader may have what is missing here.
        raise


# --- many entries -------------------------------------------------------------------------------
class _Part(NamedTuple):
    """`first`: the index of its first entry."""

    request: m.ProduceRequest
    body: memoryview
    first: int


def _begin(broker: Broker, held: HeldProduce, now: Now) -> None:
    call = Call(held.connection_id, held.request, now)
    broker.tasks.start(call, _in_steps(broker, held, call))


def _in_steps(broker: Broker, held: HeldProduce, call: Call) -> Steps:
    failure: Exception | None = None
    response = m.ProduceResponse(
        partitions=[
            m.ProducePartitionResult(asked.topic_id, asked.partition)
            for asked in held.request.partitions
        ]
    )
    waiters: list[ProduceWaiter] = []
    try:
        yield from _store(broker, held, call, response, waiters)
    except Exception as error:
        failure = error
    _take_turns(broker, held, call.now)
    if broker.staging.produces:
        broker.staging.finish(call.now)
    if failure is not None:
        if not waiters:
            raise failure
        for waiter in waiters:
            broker.purgatory.fail(waiter, "PRODUCE", failure)
    return None


def _store(
    broker: Broker,
    held: HeldProduce,
    call: Call,
    response: m.ProduceResponse,
    waiters: list[ProduceWaiter],
) -> Generator[Wait, object, None]:
    """Stage the entries part by part, and append the waiter to `waiters`."""
    parts = _parts(held)
    checked = []
    for part in parts:
        checked.append(look(broker, part.request, part.body))
        yield None
    every = [entry for entries in checked for entry in entries]
    yield broker.jobs.starter(CheckJob(held.connection_id, every, call.now.wall_us), Urgency.CHECK)
    waiter = broker.staging.wait_for(held.connection_id, held.request, response, call.now)
    waiters.append(waiter)
    waiter.expect()
    assert len(every) == len(response.partitions), "each entry was looked at"
    for part, checks in zip(parts, checked, strict=True):
        entries = _look_again(broker, part.request, part.body, checks)
        try:
            broker.admission.check_room()
        except DiskFull as error:
            for entry in entries:
                entry.refuse(error)
        assert not broker.staging.produces, "steps are made between events"
        results = response.partitions[part.first : part.first + len(entries)]
        file_count = _file_count(entries)
        _stage(broker, held.connection_id, part.request, entries, results, waiter, call.now)
        broker.staging.finish(call.now)
        for entry, result in zip(entries, results, strict=True):
            if entry.replica is None and not waiter.done:
                waiter.nothing_to_wait_for(result)
        call.cost = STAGE_COST + _FILE_COST * (_file_count(entries) - file_count)
        yield None
        if waiter.done:
            return  # It timed out: entries that were not staged are answered like the others.


def _file_count(entries: Sequence[Entry]) -> int:
    return sum(e.replica.log.reader.segment_count for e in entries if e.replica is not None)


def _parts(held: HeldProduce) -> list[_Part]:
    request = held.request
    found: list[_Part] = []
    at = 0
    for first in range(0, len(request.partitions), ENTRIES_PER_STEP):
        entries = request.partitions[first : first + ENTRIES_PER_STEP]
        end = at + sum(entry.batch_bytes for entry in entries)
        part = m.ProduceRequest(
            durability=request.durability, timeout_ms=request.timeout_ms, partitions=entries
        )
        part.correlation_id = request.correlation_id
        found.append(_Part(part, held.body[at:end], first))
        at = end
    assert at == len(held.body)
    return found
