"""PRODUCE: rows in.

Owns the order of checks: leader epoch, durability, room, bytes, producer. Entries are checked at
once, or by a job where that takes long, then admitted; `Appends.finish` writes once per log for
all requests of one socket read.

Invariants: the batches of an entry are stored together or not at all, entries independently; an
answer with `flushed` is sent after the fsync that covers the rows, also for a repetition.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import ClassVar, Final, NamedTuple

from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.internal_topics import STAGED, refuse_internal
from quiverlog.core.security.acls import NO_RULE
from quiverlog.errors import (
    DiskFull,
    InvalidProducerEpoch,
    InvalidRequest,
    NotLeader,
    OutOfOrderSequence,
    QuiverlogError,
    RequestTimedOut,
    ThrottledBroker,
    UnknownProducerId,
)
from quiverlog.limits import BATCH_HEADER_BYTES, PARTITIONS_PER_REQUEST_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.partitions.acknowledgements import Append, AppendEntry
from quiverlog.node.partitions.appends import ADMITTED_BYTES_MAX
from quiverlog.node.partitions.produce_checks import CheckJob, EntryCheck, HeldProduce, check_quick
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.partitions.staged_checks import InnerChecks, named_row
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.jobs import Urgency
from quiverlog.node.runtime.purgatory import Waiter
from quiverlog.node.runtime.tasks import Call, Steps, Wait
from quiverlog.node.security.authoriser import Rights
from quiverlog.types import PRODUCER_IDS_END, Durability, Now, Operation, ResourceKind
from quiverlog.wire import messages as m

__all__ = [
    "ENTRIES_INLINE_MAX",
    "ENTRIES_PER_STEP",
    "PART_COST",
    "Produce",
    "ProduceWaiter",
    "check_sizes",
    "handle_produce",
]


_MEMORY: Final = Durability.MEMORY
_PRODUCE: Final = int(m.Api.PRODUCE)
_TIMEOUT_MS_MAX: Final = 24 * 3_600_000


ENTRIES_INLINE_MAX: Final = 64
ENTRIES_PER_STEP: Final = 2
PART_COST: Final = 1
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
        entries = look(broker, connection_id, request, body)
        if check_quick(entries, now.wall_us):
            _append_whole(broker, connection_id, request, body, entries, now)
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


class Produce(Append):
    """The rows of a request, which is answered when they are as safe as the answer promises."""

    __slots__ = ("_broker", "_request", "response", "waiter")

    def __init__(self, broker: Broker, connection_id: int, request: m.ProduceRequest) -> None:
        Append.__init__(self, connection_id)  # See `Entry`.
        self._broker = broker
        self._request = request
        self.waiter: ProduceWaiter | None = None
        results = [m.ProducePartitionResult(a.topic_id, a.partition) for a in request.partitions]
        self.response = m.ProduceResponse(partitions=results)

    def on_wait(self, now: Now) -> None:
        timeout_ms = min(max(self._request.timeout_ms, 1), _TIMEOUT_MS_MAX)
        waiter = ProduceWaiter(self, self._request, now.mono_us + timeout_ms * 1000)
        purgatory = self._broker.purgatory
        purgatory.add(waiter)
        self.waiter = waiter

    def then(self, bug: Exception | None, now: Now) -> None:
        broker, waiter = self._broker, self.waiter
        if bug is not None:
            self._fail(bug)
            return
        for entry in self.entries:
            if entry.error is not None and not entry.result.error_code:
                fail_result(entry.result, entry.error)
        if waiter is None:
            broker.outbox.respond(self.asker, self._request.correlation_id, self.response)
            return
        waiter.answer(broker.outbox, self.response)
        broker.purgatory.finish(waiter)
        del waiter.produce  # Else they would hold each other until the next collection.

    def _fail(self, bug: Exception) -> None:
        broker = self._broker
        if self.waiter is None:
            broker.outbox.internal_error("PRODUCE", bug)
            broker.fail(self.asker, self._request, QuiverlogError())
        else:
            broker.purgatory.fail(self.waiter, "PRODUCE", bug)

    def expire(self, now: Now) -> None:
        """Answer that the outcome is unknown: the rows may yet reach the disk."""
        self._broker.metrics.produces_timed_out += 1
        self.give_up(_timed_out(), now)


class ProduceWaiter(Waiter):
    """The deadline of a produce."""

    __slots__ = ("produce",)

    api: ClassVar[m.Api] = m.Api.PRODUCE

    def __init__(self, produce: Produce, request: m.ProduceRequest, deadline_us: int) -> None:
        super().__init__(produce.asker, request.correlation_id, deadline_us)
        self.produce = produce

    def expire(self, now: Now) -> None:
        assert not self.done
        self.produce.expire(now)

    def release(self) -> None:
        self.produce.done = True


def _timed_out() -> RequestTimedOut:
    return RequestTimedOut("the disk did not confirm the rows in time; the outcome is unknown.")


def fail_result(result: m.ProducePartitionResult, error: QuiverlogError) -> None:
    result.error_code = error.code
    result.error_message = error.message
    result.base_offset = -1


def look(
    broker: Broker, connection_id: int, request: m.ProduceRequest, body: memoryview
) -> list[Entry]:
    """Find each entry's partition, rules and durability; read no batch."""
    found: list[Entry] = []
    at = 0
    leading = broker.leading
    if broker.authoriser.is_on:
        guard = broker.authoriser.guard(connection_id, _PRODUCE)
        if guard is not None:
            leading = guard.leading or broker.lookup.guarded(guard).leading
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
                replica.check_fault()
            topic = replica.topic
            if topic.is_internal:
                if topic.name != STAGED:
                    refuse_internal(topic.name, "only brokers write it")
                entry.staged_rules(broker.metadata.image.topics_by_id, topic.config)
            else:
                entry.rules(topic.schemas, topic.config)
        except Exception as error:
            entry.refuse(error)
    return found


def _look_again(
    broker: Broker,
    connection_id: int,
    request: m.ProduceRequest,
    body: memoryview,
    checked: Sequence[Entry],
) -> list[Entry]:
    # While the job ran, a leader may have changed, a topic gone, a disk failed, a right ended.
    entries = look(broker, connection_id, request, body)
    for entry, check in zip(entries, checked, strict=True):
        if entry.error is None:
            entry.take(check)
    return entries


def _append_whole(
    broker: Broker,
    connection_id: int,
    request: m.ProduceRequest,
    body: memoryview,
    entries: list[Entry],
    now: Now,
) -> None:
    appends = broker.appends
    # Only here, between requests: a failed append must not part the entries of one request.
    if appends.pending and appends.byte_count + len(body) > ADMITTED_BYTES_MAX:
        appends.finish(now)
    broker.admission.check_room()
    if broker.purgatory.live >= broker.config.requests_waiting_max:
        raise ThrottledBroker
    produce = Produce(broker, connection_id, request)
    _admit_all(broker, produce, len(body), entries, produce.response.partitions, now)


def _admit_all(
    broker: Broker,
    produce: Produce,
    byte_count: int,
    entries: list[Entry],
    results: list[m.ProducePartitionResult],
    now: Now,
) -> None:
    rights = broker.authoriser.rights_of(produce.asker) if broker.authoriser.is_on else None
    broker.appends.begin(produce, byte_count)  # From here on, `finish` answers.
    for entry, result in zip(entries, results, strict=True):
        replica = entry.replica
        end_offset = 0
        try:
            if rights is not None and entry.inner is not None:
                _check_staged(rights, entry.inner)
            if entry.error is not None:
                raise entry.error
            assert replica is not None
            end_offset = _admit(broker, replica, entry, result, now)
            assert end_offset > 0, "an entry that is admitted has rows"
            if broker.audit.has_topics:
                _audit(broker, produce.asker, rights, entry)
        except QuiverlogError as error:
            # Not kept for later: its traceback holds the body.
            fail_result(result, error)
            broker.metrics.batches_refused += 1
        except Exception as error:
            broker.outbox.internal_error("PRODUCE", error)
            fail_result(result, QuiverlogError())
        if replica is not None:
            produce.entries.append(AppendEntry(replica, entry.level, end_offset, result))


def _check_staged(rights: Rights, inner: InnerChecks) -> None:
    """Check the id and the topic of each row, up to the first bad one; on the loop, after the job.

    What is wrong with a batch for a hidden topic would show its schema: this error comes first.
    """
    assert inner.named or not inner.rows, "each row names both"
    for (tid, topic_id), row in inner.named.items():
        try:
            rights.check(m.Api.PRODUCE, Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, tid)
            rights.guard(_PRODUCE).check(topic_id)
        except QuiverlogError as error:
            raise named_row(error, row) from None


def _audit(broker: Broker, asker: int, rights: Rights | None, entry: Entry) -> None:
    """Record the topic that is written; of staged rows, those where a commit puts them."""
    assert entry.replica is not None
    names = [entry.replica.topic.name]
    if entry.inner is not None:
        topics = broker.view.image.topics_by_id
        staged = dict.fromkeys(topic_id for _, topic_id in entry.inner.named)
        names = [topics[topic_id].name for topic_id in staged if topic_id in topics]
    for name in names:
        rule = NO_RULE if rights is None else rights.rule_for(Operation.WRITE, name)
        broker.audit.allowed(asker, m.Api.PRODUCE, Operation.WRITE, name, rule)


# --- produces that wait ------------------------------------------------------------------------
def _go_on(broker: Broker, held: HeldProduce, now: Now) -> None:
    if held.begin is not None:
        held.begin(now)
        return
    entries = look(broker, held.connection_id, held.request, held.body)
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
        asker = held.connection_id
        entries = _look_again(broker, asker, held.request, held.body, checked)
        _append_whole(broker, asker, held.request, held.body, entries, now)
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
            entries = look(broker, following.connection_id, request, body)
            if not check_quick(entries, now.wall_us):
                _go_on(broker, following, now)
                return
            _append_whole(broker, following.connection_id, request, body, entries, now)
        except Exception as failure:
            _fail(broker, following, failure)
        following = broker.held_produces.release(following)


def _fail(broker: Broker, held: HeldProduce, failure: Exception) -> None:
    if isinstance(failure, QuiverlogError):
        broker.fail(held.connection_id, held.request, failure)
        return
    broker.outbox.internal_error("PRODUCE", failure)
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
    replica.check_fault()  # Met after the entry's check.
    state = replica.state
    batches = entry.headers
    # Here, not with the other checks: batches admitted just before count (replication rule 21).
    known = _check_producer(broker, replica, batches, result, now)
    if known is None:
        if entry.inner is not None:
            broker.staging.check_room(replica, entry.inner.rows)
        base_offset = broker.appends.admit(replica, batches, now)
        if entry.inner is not None:
            broker.staging.admitted(replica, base_offset, entry.inner.rows)
        end_offset = state.log_end_offset + replica.admitted_rows
    else:
        base_offset = known
        end_offset = known + batches[0][0].row_count
        result.duplicate = True
        broker.metrics.batches_deduplicated += 1
    assert end_offset <= state.log_end_offset + replica.admitted_rows
    result.base_offset = base_offset
    result.row_count = end_offset - base_offset
    result.durability = entry.level
    result.leader_epoch = state.leader_epoch
    result.log_start_offset = state.log_start_offset
    return end_offset


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
    if not ids.may_be_assigned(producer_id):
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

    def of(self, results: list[m.ProducePartitionResult]) -> list[m.ProducePartitionResult]:
        return results[self.first : self.first + len(self.request.partitions)]


def _begin(broker: Broker, held: HeldProduce, now: Now) -> None:
    call = Call(held.connection_id, held.request, now)
    broker.tasks.start(call, _in_steps(broker, held, call))


def _in_steps(broker: Broker, held: HeldProduce, call: Call) -> Steps:
    failure: Exception | None = None
    produce = Produce(broker, held.connection_id, held.request)
    try:
        yield from _append_parts(broker, held, call, produce)
    except Exception as error:
        failure = error
    _take_turns(broker, held, call.now)
    if broker.appends.pending:
        broker.appends.finish(call.now)
    if failure is not None:
        if produce.waiter is None:
            raise failure
        produce.fail(failure, call.now)
    return None


def _append_parts(
    broker: Broker, held: HeldProduce, call: Call, produce: Produce
) -> Generator[Wait, object, None]:
    parts = _parts(held)
    results = produce.response.partitions
    late = _timed_out()
    checked = []
    for part in parts:
        checked.append(look(broker, held.connection_id, part.request, part.body))
        for result in part.of(results):
            fail_result(result, late)  # Until it is admitted.
        yield None
    every = [entry for entries in checked for entry in entries]
    yield broker.jobs.starter(CheckJob(held.connection_id, every, call.now.wall_us), Urgency.CHECK)
    assert len(every) == len(results), "each entry was looked at"
    produce.hold()
    produce.on_wait(call.now)
    for part, checks in zip(parts, checked, strict=True):
        entries = _look_again(broker, held.connection_id, part.request, part.body, checks)
        try:
            broker.admission.check_room()
        except DiskFull as error:
            for entry in entries:
                entry.refuse(error)
        assert not broker.appends.pending, "steps are made between events"
        file_count = _file_count(entries)
        for result in part.of(results):
            result.error_code, result.error_message = 0, ""
        _admit_all(broker, produce, len(part.body), entries, part.of(results), call.now)
        broker.appends.finish(call.now)
        if part is parts[-1]:
            produce.release(call.now)
        call.cost = PART_COST + _FILE_COST * (_file_count(entries) - file_count)
        yield None
        if produce.done:
            return  # It timed out: entries that were not admitted are answered like the others.


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
