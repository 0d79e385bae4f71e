"""LIST_OFFSETS, EPOCH_END_OFFSETS, DESCRIBE_RANGES, DELETE_RECORDS: where rows lie.

Owns the long poll of LIST_OFFSETS: it waits until an offset differs from the one that the asker
knows, or until the metadata do, so that a tailing reader learns of rows, of new partitions and of
deleted topics by one request that costs nothing while nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from quiverlog.errors import (
    CorruptLog,
    InvalidRequest,
    QuiverlogError,
    StorageFault,
)
from quiverlog.limits import FETCH_MAX_WAIT_MS_MAX, PARTITIONS_PER_REQUEST_MAX
from quiverlog.node.events import RequestReceived
from quiverlog.node.fetch import out_of_range
from quiverlog.node.purgatory import Waiter
from quiverlog.node.replica import Replica
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, Now
from quiverlog.wire import messages as m

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = [
    "OffsetsWaiter",
    "handle_delete_records",
    "handle_describe_ranges",
    "handle_epoch_end_offsets",
    "handle_list_offsets",
]


class _EntryLike(Protocol):
    topic_id: bytes
    partition: int


class _ResultLike(Protocol):
    error_code: int
    error_message: str


_Entry = TypeVar("_Entry", bound=_EntryLike)
_Result = TypeVar("_Result", bound=_ResultLike)


# --- LIST_OFFSETS -------------------------------------------------------------------------------
class OffsetsWaiter(Waiter):
    """A parked LIST_OFFSETS."""

    __slots__ = ("request",)

    def __init__(self, connection_id: int, request: m.ListOffsetsRequest, deadline_us: int) -> None:
        super().__init__(connection_id, request.correlation_id, deadline_us)
        self.request = request

    def wake(self, broker: Broker, index: int, now: Now) -> None:
        """`index` -1: the metadata changed."""
        if index >= 0:
            entry = self.request.partitions[index]
            results = _answer_each(broker, [entry], m.ListOffsetsPartitionResult, _fill_offset)
            if not _differs(results[0], entry):
                return
        elif not _metadata_differs(broker, self.request):
            return
        self.expire(broker, now)

    def expire(self, broker: Broker, now: Now) -> None:
        self.release(broker)
        broker.purgatory.finish(self)
        broker.respond(self.connection_id, self.correlation_id, _list(broker, self.request))

    def release(self, broker: Broker) -> None:
        broker.metadata_waiters.pop(self, None)
        for entry in self.request.partitions:
            replica = broker.replicas.get((entry.topic_id, entry.partition))
            if replica is not None:
                replica.waiters.pop(self, None)


def handle_list_offsets(broker: Broker, event: RequestReceived, now: Now) -> None:
    """See the module docstring."""
    request = event.request
    assert isinstance(request, m.ListOffsetsRequest)
    response = _list(broker, request)
    if (
        request.max_wait_ms <= 0
        or _metadata_differs(broker, request)
        or any(map(_differs, response.partitions, request.partitions))
        or broker.purgatory.live >= broker.config.parked_requests_max
    ):
        broker.respond(event.connection_id, request.correlation_id, response)
        return
    wait_ms = min(request.max_wait_ms, FETCH_MAX_WAIT_MS_MAX)
    waiter = OffsetsWaiter(event.connection_id, request, now.mono_us + wait_ms * 1000)
    for index, entry in enumerate(request.partitions):
        broker.replicas[entry.topic_id, entry.partition].waiters[waiter] = index
    if request.metadata_version >= 0:
        broker.metadata_waiters[waiter] = None
    broker.purgatory.add(waiter, by_connection=True)


def _list(broker: Broker, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
    return m.ListOffsetsResponse(
        metadata_version=broker.image.version,
        partitions=_answer_each(
            broker, request.partitions, m.ListOffsetsPartitionResult, _fill_offset
        ),
    )


def _metadata_differs(broker: Broker, request: m.ListOffsetsRequest) -> bool:
    return request.metadata_version >= 0 and request.metadata_version != broker.image.version


def _differs(result: m.ListOffsetsPartitionResult, entry: m.ListOffsetsPartition) -> bool:
    return result.error_code != 0 or result.offset != entry.known_offset


def _fill_offset(
    broker: Broker,
    replica: Replica,
    entry: m.ListOffsetsPartition,
    result: m.ListOffsetsPartitionResult,
) -> None:
    replica.state.check_leader_epoch(entry.leader_epoch)
    log = replica.log
    if entry.at == LATEST:
        result.offset = replica.state.high_watermark
    elif entry.at == EARLIEST:
        result.offset = log.log_start_offset
    elif entry.at < 0:
        raise InvalidRequest(f"{entry.at} is neither LATEST, EARLIEST nor a time since 1970.")
    else:
        found = log.offset_for_timestamp(entry.at)
        if found is None or found[0] >= replica.state.high_watermark:
            return
        result.offset, result.timestamp_us = found
    result.leader_epoch = _epoch_before(replica, result.offset)


def _epoch_before(replica: Replica, offset: int) -> int:
    """The epoch of the row before `offset`: what a reader that starts there must carry."""
    return replica.log.epochs.epoch_for(offset - 1) if offset > 0 else NO_EPOCH


# --- the others ---------------------------------------------------------------------------------
def handle_epoch_end_offsets(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Where did an epoch end? -1 for an epoch that this log never had (KIP-101)."""
    request = event.request
    assert isinstance(request, m.EpochEndOffsetsRequest)
    results = _answer_each(
        broker, request.partitions, m.EpochEndOffsetsPartitionResult, _fill_epoch_end
    )
    response = m.EpochEndOffsetsResponse(partitions=results)
    broker.respond(event.connection_id, request.correlation_id, response)


def _fill_epoch_end(
    broker: Broker,
    replica: Replica,
    entry: m.EpochEndOffsetsPartition,
    result: m.EpochEndOffsetsPartitionResult,
) -> None:
    replica.state.check_leader_epoch(entry.leader_epoch)
    if entry.epoch < 0:
        raise InvalidRequest(f"{entry.epoch} is no leader epoch.")
    result.epoch, result.end_offset = replica.log.epochs.end_offset_for(entry.epoch)


def handle_describe_ranges(broker: Broker, event: RequestReceived, now: Now) -> None:
    """How many bytes lie between two offsets, and how far do so many bytes reach?"""
    request = event.request
    assert isinstance(request, m.DescribeRangesRequest)
    results = _answer_each(broker, request.partitions, m.RangePartitionResult, _fill_range)
    response = m.DescribeRangesResponse(partitions=results)
    broker.respond(event.connection_id, request.correlation_id, response)


def _fill_range(
    broker: Broker,
    replica: Replica,
    entry: m.RangePartition,
    result: m.RangePartitionResult,
) -> None:
    log_start, high_watermark = replica.log.log_start_offset, replica.state.high_watermark
    start = log_start if entry.start_offset == EARLIEST else entry.start_offset
    end = high_watermark if entry.end_offset == -1 else entry.end_offset
    if not log_start <= start <= high_watermark:
        raise out_of_range(replica, start)
    if not start <= end <= high_watermark:
        raise out_of_range(replica, end)
    result.end_offset = end
    if start < end:
        result.end_offset, result.byte_count = replica.log.bytes_between(
            start, end, entry.bytes_max
        )


def handle_delete_records(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Rows below an offset are given up. Repeating it, or asking for less, changes nothing."""
    request = event.request
    assert isinstance(request, m.DeleteRecordsRequest)
    results = _answer_each(
        broker, request.partitions, m.DeleteRecordsPartitionResult, _delete_records
    )
    response = m.DeleteRecordsResponse(partitions=results)
    broker.respond(event.connection_id, request.correlation_id, response)


def _delete_records(
    broker: Broker,
    replica: Replica,
    entry: m.DeleteRecordsPartition,
    result: m.DeleteRecordsPartitionResult,
) -> None:
    high_watermark = replica.state.high_watermark
    before = high_watermark if entry.before_offset == -1 else entry.before_offset
    if not 0 <= before <= high_watermark:
        raise out_of_range(replica, before)
    if before > replica.log.log_start_offset:
        replica.log.delete_before(before)
        broker.moved[replica] = None
    result.log_start_offset = replica.log.log_start_offset


# --- parts --------------------------------------------------------------------------------------
def _answer_each(
    broker: Broker,
    entries: Sequence[_Entry],
    make: Callable[[bytes, int], _Result],
    fill: Callable[[Broker, Replica, _Entry, _Result], None],
) -> list[_Result]:
    """One result per entry: its replica is found and asked; an error becomes part of the result."""
    if len(entries) > PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{len(entries)} partitions in a request, allowed are {PARTITIONS_PER_REQUEST_MAX}."
        )
    results: list[_Result] = []
    for entry in entries:
        result = make(entry.topic_id, entry.partition)
        results.append(result)
        replica: Replica | None = None
        try:
            replica = broker.replica(entry.topic_id, entry.partition)
            fill(broker, replica, entry, result)
        except QuiverlogError as error:
            if isinstance(error, CorruptLog):
                broker.corrupt_read(replica, error)
            result.error_code = error.code
            result.error_message = error.message
        except OSError as error:
            result.error_code = StorageFault.code
            result.error_message = f"the disk failed: {error}."
    return results
