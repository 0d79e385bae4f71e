"""LIST_OFFSETS, EPOCH_END_OFFSETS, DESCRIBE_RANGES, DELETE_RECORDS: where rows lie.

Owns the long poll of LIST_OFFSETS: it waits until an offset differs from the one that the asker
knows, or until the metadata do, so that a tailing reader learns of rows, of new partitions and of
deleted topics by one request that costs nothing while nothing happens.

What may have to read a file (a time, a range) is answered in steps (tasks.py): the request waits
for the job, the broker does not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import ClassVar, Final, Protocol, TypeVar

from quiverlog.errors import (
    CorruptLog,
    InvalidRequest,
    QuiverlogError,
    StorageFault,
)
from quiverlog.limits import FETCH_MAX_WAIT_MS_MAX, PARTITIONS_PER_REQUEST_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.cold import cold_read
from quiverlog.node.events import RequestReceived
from quiverlog.node.fetch import out_of_range
from quiverlog.node.purgatory import Waiter
from quiverlog.node.replica import Replica
from quiverlog.node.tasks import Call, Outcome, Steps, Wait, gather
from quiverlog.storage.jobs import NotResident
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, Now
from quiverlog.wire import messages as m

__all__ = [
    "OffsetsWaiter",
    "handle_delete_records",
    "handle_describe_ranges",
    "handle_epoch_end_offsets",
    "handle_list_offsets",
]

_ENTRIES_PER_STEP: Final = 16
_LOADS_MAX: Final = 64
"""Index loads for one entry; then the disk is waited for."""
_TRIMS_AT_ONCE: Final = 8


class _EntryLike(Protocol):
    topic_id: bytes
    partition: int


class _ResultLike(Protocol):
    error_code: int
    error_message: str


_Entry = TypeVar("_Entry", bound=_EntryLike)
_Result = TypeVar("_Result", bound=_ResultLike)
_Fill = Callable[[Replica, _Entry, _Result, bool], None]
"""Fills in a result; the last argument is True where the disk may be waited for."""


# --- LIST_OFFSETS -------------------------------------------------------------------------------
class OffsetsWaiter(Waiter):
    """A parked LIST_OFFSETS."""

    __slots__ = ("_broker", "request")

    api: ClassVar[m.Api] = m.Api.LIST_OFFSETS

    def __init__(
        self, broker: Broker, connection_id: int, request: m.ListOffsetsRequest, deadline_us: int
    ) -> None:
        count = len(request.partitions)
        super().__init__(connection_id, request.correlation_id, deadline_us, count)
        self._broker = broker
        self.request = request

    def wake(self, indexes: Sequence[int], now: Now) -> None:
        """`index` -1: the metadata changed."""
        if any(map(self._has_news, indexes)):
            self.expire(now)

    def _has_news(self, index: int) -> bool:
        if index < 0:
            return _metadata_differs(self._broker, self.request)
        entry = self.request.partitions[index]
        return _differs(_list_entry(self._broker, entry), entry)

    def expire(self, now: Now) -> None:
        self.answer(self._broker.outbox, _list(self._broker, self.request))
        self._broker.purgatory.finish(self)
        self.release()

    def release(self) -> None:
        self._broker.metadata.waiters.pop(self, None)
        for entry in self.request.partitions:
            replica = self._broker.replicas.get((entry.topic_id, entry.partition))
            if replica is not None:
                replica.waiters.pop(self, None)


def handle_list_offsets(broker: Broker, event: RequestReceived, now: Now) -> None:
    """See the module docstring."""
    request = event.request
    assert isinstance(request, m.ListOffsetsRequest)
    _check_count(request.partitions)
    many = len(request.partitions) > _ENTRIES_PER_STEP
    if many or any(entry.at >= 0 for entry in request.partitions):
        call = Call(event.connection_id, request, now)
        broker.tasks.start(call, _list_in_steps(broker, call))
        return
    _answer_or_park(broker, event.connection_id, request, _list(broker, request), now)


def _list_in_steps(broker: Broker, call: Call) -> Generator[Wait, object, m.Response | None]:
    """Of many partitions, or times: these are looked up in files that may have to be read."""
    request = call.request
    assert isinstance(request, m.ListOffsetsRequest)
    results = yield from _answer_each(
        broker, request.partitions, m.ListOffsetsPartitionResult, _fill_offset
    )
    response = m.ListOffsetsResponse(
        metadata_version=broker.metadata.image.version, partitions=results
    )
    waiter = _answer_or_park(broker, call.connection_id, request, response, call.now)
    if waiter is not None:
        broker.wakeups.look(waiter)
    return None


def _answer_or_park(
    broker: Broker,
    connection_id: int,
    request: m.ListOffsetsRequest,
    response: m.ListOffsetsResponse,
    now: Now,
) -> OffsetsWaiter | None:
    client_id = broker.connections.get(connection_id)
    if (
        request.max_wait_ms <= 0
        or client_id is None
        or _metadata_differs(broker, request)
        or any(map(_differs, response.partitions, request.partitions))
        or not broker.purgatory.may_park(connection_id, client_id, len(request.partitions))
    ):
        broker.outbox.respond(connection_id, request.correlation_id, response)
        return None
    wait_ms = min(request.max_wait_ms, FETCH_MAX_WAIT_MS_MAX)
    waiter = OffsetsWaiter(broker, connection_id, request, now.mono_us + wait_ms * 1000)
    broker.purgatory.park(waiter, client_id)
    for index, entry in enumerate(request.partitions):
        replica = broker.replicas.get((entry.topic_id, entry.partition))
        if replica is not None:  # One that went while others were looked at shows in `look`.
            replica.waiters[waiter] = index
    if request.metadata_version >= 0:
        broker.metadata.waiters[waiter] = -1
    return waiter


def _list(broker: Broker, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
    return m.ListOffsetsResponse(
        metadata_version=broker.metadata.image.version,
        partitions=[_list_entry(broker, entry) for entry in request.partitions],
    )


def _list_entry(broker: Broker, entry: m.ListOffsetsPartition) -> m.ListOffsetsPartitionResult:
    """At once, whatever it takes."""
    result = m.ListOffsetsPartitionResult(entry.topic_id, entry.partition)
    replica: Replica | None = None
    try:
        replica = broker.replica(entry.topic_id, entry.partition)
        _fill_offset(replica, entry, result, True)
    except Exception as error:
        _fail(broker, replica, result, error)
    return result


def _metadata_differs(broker: Broker, request: m.ListOffsetsRequest) -> bool:
    version = broker.metadata.image.version
    return request.metadata_version >= 0 and request.metadata_version != version


def _differs(result: m.ListOffsetsPartitionResult, entry: m.ListOffsetsPartition) -> bool:
    return result.error_code != 0 or result.offset != entry.known_offset


def _fill_offset(
    replica: Replica,
    entry: m.ListOffsetsPartition,
    result: m.ListOffsetsPartitionResult,
    cold_ok: bool,
) -> None:
    state = replica.state
    state.check_leader_epoch(entry.leader_epoch)
    if entry.at == LATEST:
        result.offset = state.high_watermark
    elif entry.at == EARLIEST:
        result.offset = state.log_start_offset
    elif entry.at < 0:
        raise InvalidRequest(f"{entry.at} is neither LATEST, EARLIEST nor a time since 1970.")
    else:
        found = replica.log.offset_for_timestamp(entry.at, cold_ok=cold_ok)
        if found is None or found[0] >= state.high_watermark:
            return
        result.offset, result.timestamp_us = found
    result.leader_epoch = _epoch_before(replica, result.offset)


def _epoch_before(replica: Replica, offset: int) -> int:
    """The epoch of the row before `offset`: what a reader that starts there must carry."""
    return replica.log.epochs.epoch_for(offset - 1) if offset > 0 else NO_EPOCH


# --- the others ---------------------------------------------------------------------------------
def handle_epoch_end_offsets(broker: Broker, call: Call) -> Steps:
    """Answer where epochs end; -1 for an epoch that this log never had (KIP-101)."""
    request = call.request
    assert isinstance(request, m.EpochEndOffsetsRequest)
    results = yield from _answer_each(
        broker, request.partitions, m.EpochEndOffsetsPartitionResult, _fill_epoch_end
    )
    return m.EpochEndOffsetsResponse(partitions=results)


def _fill_epoch_end(
    replica: Replica,
    entry: m.EpochEndOffsetsPartition,
    result: m.EpochEndOffsetsPartitionResult,
    cold_ok: bool,
) -> None:
    replica.state.check_leader_epoch(entry.leader_epoch)
    if entry.epoch < 0:
        raise InvalidRequest(f"{entry.epoch} is no leader epoch.")
    result.epoch, result.end_offset = replica.log.epochs.end_offset_for(entry.epoch)


def handle_describe_ranges(broker: Broker, call: Call) -> Steps:
    """Answer how many bytes lie between two offsets, and how far so many bytes reach."""
    request = call.request
    assert isinstance(request, m.DescribeRangesRequest)
    results = yield from _answer_each(
        broker, request.partitions, m.RangePartitionResult, _fill_range
    )
    return m.DescribeRangesResponse(partitions=results)


def _fill_range(
    replica: Replica,
    entry: m.RangePartition,
    result: m.RangePartitionResult,
    cold_ok: bool,
) -> None:
    log_start, high_watermark = replica.state.log_start_offset, replica.state.high_watermark
    start = log_start if entry.start_offset == EARLIEST else entry.start_offset
    end = high_watermark if entry.end_offset == -1 else entry.end_offset
    if not log_start <= start <= high_watermark:
        raise out_of_range(replica, start)
    if not start <= end <= high_watermark:
        raise out_of_range(replica, end)
    result.end_offset = end
    if start < end:
        result.end_offset, result.byte_count = replica.log.bytes_between(
            start, end, entry.bytes_max, cold_ok=cold_ok
        )


# --- DELETE_RECORDS -----------------------------------------------------------------------------
_Deletions = list[tuple[m.DeleteRecordsPartition, m.DeleteRecordsPartitionResult]]
"""What a request wants of one partition."""


def handle_delete_records(broker: Broker, call: Call) -> Steps:
    """Rows below an offset are given up. Repeating it, or asking for less, changes nothing.

    One durable step per partition, however many entries name it, a few at a time, off the loop.
    """
    request = call.request
    assert isinstance(request, m.DeleteRecordsRequest)
    _check_count(request.partitions)
    results = [
        m.DeleteRecordsPartitionResult(entry.topic_id, entry.partition)
        for entry in request.partitions
    ]
    by_partition: dict[tuple[bytes, int], _Deletions] = {}
    for entry, result in zip(request.partitions, results, strict=True):
        by_partition.setdefault((entry.topic_id, entry.partition), []).append((entry, result))
    todo = list(by_partition.values())
    for first in range(0, len(todo), _TRIMS_AT_ONCE):
        yield from _delete_some(broker, call, todo[first : first + _TRIMS_AT_ONCE])
    return m.DeleteRecordsResponse(partitions=results)


def _delete_some(
    broker: Broker, call: Call, partitions: list[_Deletions]
) -> Generator[Wait, object, None]:
    """One trim for each of these partitions, up to the highest offset of its entries."""
    trims = []
    waiting: list[tuple[Replica, list[m.DeleteRecordsPartitionResult]]] = []
    for entries in partitions:
        replica: Replica | None = None
        highest = -1
        good: list[m.DeleteRecordsPartitionResult] = []
        for entry, result in entries:
            try:
                replica = broker.replica(entry.topic_id, entry.partition)
                highest = max(highest, _check_delete(replica, entry.before_offset))
                good.append(result)
            except Exception as error:
                _fail(broker, replica, result, error)
        if replica is not None and highest > replica.state.log_start_offset:
            trims.append(broker.trims.starter(replica, highest, call.now))
            waiting.append((replica, good))
            continue
        for result in good:
            assert replica is not None
            result.log_start_offset = replica.state.log_start_offset
    if not trims:
        yield None
        return
    outcomes = yield gather(trims, _TRIMS_AT_ONCE, call.now)
    assert isinstance(outcomes, list)
    for (replica, good), outcome in zip(waiting, outcomes, strict=True):
        assert isinstance(outcome, Outcome)
        for result in good:
            if outcome.error is not None:
                _fail(broker, replica, result, outcome.error)
            else:
                result.log_start_offset = replica.state.log_start_offset


def _check_delete(replica: Replica, before_offset: int) -> int:
    high_watermark = replica.state.high_watermark
    before = high_watermark if before_offset == -1 else before_offset
    if not 0 <= before <= high_watermark:
        raise out_of_range(replica, before)
    return before


# --- parts --------------------------------------------------------------------------------------
def _check_count(entries: Sequence[_EntryLike]) -> None:
    if len(entries) > PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{len(entries)} partitions in a request, allowed are {PARTITIONS_PER_REQUEST_MAX}."
        )


def _answer_each(
    broker: Broker,
    entries: Sequence[_Entry],
    make: Callable[[bytes, int], _Result],
    fill: _Fill[_Entry, _Result],
) -> Generator[Wait, object, list[_Result]]:
    """One result per entry: its replica is found and asked; an error becomes part of the result."""
    _check_count(entries)
    results: list[_Result] = []
    for number, entry in enumerate(entries, 1):
        result = make(entry.topic_id, entry.partition)
        results.append(result)
        replica: Replica | None = None
        for loads in range(_LOADS_MAX + 1):
            try:
                replica = broker.replica(entry.topic_id, entry.partition)
                fill(replica, entry, result, loads == _LOADS_MAX)
                break
            except NotResident as cold:
                assert replica is not None
                wait = cold_read(broker, replica, cold)
            except Exception as error:
                _fail(broker, replica, result, error)
                break
            try:
                yield wait
            except Exception as error:
                _fail(broker, replica, result, error)
                break
        if number % _ENTRIES_PER_STEP == 0:
            yield None
    return results


def _fail(
    broker: Broker, replica: Replica | None, result: _ResultLike, error: BaseException
) -> None:
    """The entry's error, in the words of the error table."""
    if isinstance(error, CorruptLog):
        broker.corrupt_read(replica, error)
    elif isinstance(error, OSError):
        error = StorageFault(f"the disk failed: {error.strerror or error}.")
    elif not isinstance(error, QuiverlogError):
        broker.outbox.internal_error("a partition's entry", error)
        error = QuiverlogError()
    result.error_code = error.code
    result.error_message = error.message
