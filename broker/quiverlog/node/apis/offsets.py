"""LIST_OFFSETS, EPOCH_END_OFFSETS, DESCRIBE_RANGES, DELETE_RECORDS: where rows lie.

LIST_OFFSETS may be a long poll: it waits until an offset differs from the reader's, or the metadata
change.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import ClassVar, Final, Protocol, TypeVar

from quiverlog.core.controller.internal_topics import refuse_internal
from quiverlog.errors import (
    CorruptLog,
    InvalidRequest,
    NotEnoughReplicas,
    OffsetNotAvailable,
    OffsetOutOfRange,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
)
from quiverlog.limits import FETCH_MAX_WAIT_MS_MAX, PARTITIONS_PER_REQUEST_MAX
from quiverlog.node.apis.fetch import check_isolation, out_of_range
from quiverlog.node.assignment.lookup import RULES_CHANGED, Lookup
from quiverlog.node.broker import Broker
from quiverlog.node.partitions.cold_reads import Loaded
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.purgatory import Waiter, Waits
from quiverlog.node.runtime.tasks import Call, Outcome, Steps, Wait, gather
from quiverlog.storage.segment.reading_jobs import NotResident
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, Now
from quiverlog.wire import messages as m

__all__ = [
    "ENTRIES_PER_STEP",
    "OffsetsWaiter",
    "answer_each",
    "check_count",
    "fail_entry",
    "handle_delete_records",
    "handle_describe_ranges",
    "handle_epoch_end_offsets",
    "handle_list_offsets",
]


_WALKS_PER_STEP: Final = 2
"""An entry that reads headers of batches takes as long as ten others."""
ENTRIES_PER_STEP: Final = 16
_TRIMS_AT_ONCE: Final = 8
_TIMEOUT_MS_MAX: Final = 24 * 3_600_000


def _client_lookup(broker: Broker, connection_id: int, api: m.Api) -> Lookup:
    if not broker.authoriser.is_on:
        return broker.lookup
    return broker.lookup.guarded(broker.authoriser.guard(connection_id, api))


class _EntryLike(Protocol):
    topic_id: bytes
    partition: int


class _ResultLike(Protocol):
    error_code: int
    error_message: str


_Entry = TypeVar("_Entry", bound=_EntryLike)
_Result = TypeVar("_Result", bound=_ResultLike)
_Fill = Callable[[Replica, _Entry, _Result, Loaded], None]
"""Fills in a result from what was loaded for it, or raises NotResident."""


def handle_epoch_end_offsets(broker: Broker, call: Call) -> Steps:
    """Answer for an epoch that this log lacks with the newest older one and its end (KIP-101)."""
    request = call.request
    assert isinstance(request, m.EpochEndOffsetsRequest)
    results = yield from answer_each(
        _client_lookup(broker, call.connection_id, request.API),
        request.partitions,
        m.EpochEndOffsetsPartitionResult,
        _fill_epoch_end,
    )
    return m.EpochEndOffsetsResponse(partitions=results)


def _fill_epoch_end(
    replica: Replica,
    entry: m.EpochEndOffsetsPartition,
    result: m.EpochEndOffsetsPartitionResult,
    _loaded: Loaded,
) -> None:
    replica.state.check_leader_epoch(entry.leader_epoch)
    if entry.epoch < 0:
        raise InvalidRequest(f"leader epoch {entry.epoch} is negative.")
    replica.state.check_seen_epoch(entry.epoch)
    result.epoch, result.end_offset = replica.log.epochs.end_offset_for(entry.epoch)
    assert result.epoch <= replica.state.leader_epoch
    assert result.end_offset <= replica.log.log_end_offset


def handle_describe_ranges(broker: Broker, call: Call) -> Steps:
    request = call.request
    assert isinstance(request, m.DescribeRangesRequest)
    lookup = _client_lookup(broker, call.connection_id, request.API)
    results = yield from answer_each(
        lookup, request.partitions, m.RangePartitionResult, _fill_range, walks=True
    )
    return m.DescribeRangesResponse(partitions=results)


def _fill_range(
    replica: Replica,
    entry: m.RangePartition,
    result: m.RangePartitionResult,
    loaded: Loaded,
) -> None:
    log_start, high_watermark = replica.state.log_start_offset, replica.state.high_watermark
    start = log_start if entry.start_offset == EARLIEST else entry.start_offset
    end = high_watermark if entry.end_offset == -1 else entry.end_offset
    if not log_start <= start <= high_watermark:
        raise out_of_range(replica, start)
    if end < start <= high_watermark:
        raise OffsetOutOfRange(
            f"{replica.name}: a range from offset {start} cannot end at {end}.",
            log_start_offset=log_start,
            high_watermark=high_watermark,
        )
    if end > high_watermark:
        raise out_of_range(replica, end)
    result.end_offset = end
    if start < end:
        result.end_offset, result.byte_count, first_us = replica.log.reader.bytes_between(
            max(start, loaded.offset),
            end,
            entry.bytes_max,
            counted=loaded.counted,
            first_us=loaded.first_us,
            cold_ok=False,
            just_read=loaded.reads,
        )
        result.first_row_us = first_us
        assert start <= result.end_offset <= end
        assert result.byte_count >= 0


# --- DELETE_RECORDS -----------------------------------------------------------------------------
_Deletions = list[tuple[m.DeleteRecordsPartition, m.DeleteRecordsPartitionResult]]


def handle_delete_records(broker: Broker, call: Call) -> Steps:
    """Give up rows below an offset; repeated, or with a lower one, it changes nothing."""
    request = call.request
    assert isinstance(request, m.DeleteRecordsRequest)
    check_count(request.partitions)
    results = [
        m.DeleteRecordsPartitionResult(entry.topic_id, entry.partition)
        for entry in request.partitions
    ]
    timeout_ms = min(max(request.timeout_ms, 0), _TIMEOUT_MS_MAX)
    deadline_us = call.now.mono_us + timeout_ms * 1000
    # One durable step per partition, however many entries name it.
    by_partition: dict[tuple[bytes, int], _Deletions] = {}
    for entry, result in zip(request.partitions, results, strict=True):
        by_partition.setdefault((entry.topic_id, entry.partition), []).append((entry, result))
    todo = list(by_partition.values())
    for first in range(0, len(todo), _TRIMS_AT_ONCE):
        some = todo[first : first + _TRIMS_AT_ONCE]
        yield from _delete_some(broker, call, some)
        yield from _wait_for_copies(broker, call, some, deadline_us)
    return m.DeleteRecordsResponse(partitions=results)


def _delete_some(
    broker: Broker, call: Call, partitions: list[_Deletions]
) -> Generator[Wait, object, None]:
    trims = []
    waiting: list[tuple[Replica, list[m.DeleteRecordsPartitionResult]]] = []
    for entries in partitions:
        replica: Replica | None = None
        highest = -1
        good: list[m.DeleteRecordsPartitionResult] = []
        for entry, result in entries:
            try:
                # Each time: the client may have gone, or lost a right, since the partition before.
                lookup = _client_lookup(broker, call.connection_id, m.Api.DELETE_RECORDS)
                replica = lookup.leader_for_offsets(entry.topic_id, entry.partition)
                refuse_internal(replica.topic.name, "it is trimmed by the brokers alone")
                highest = max(highest, _check_delete(replica, entry.before_offset))
                assert highest <= replica.state.high_watermark
                good.append(result)
            except Exception as error:
                fail_entry(broker.lookup, replica, result, error)
        # Compared with what is saved: until retention frees a file, what it took may come back.
        if replica is not None and highest > replica.log.start_saved:
            trims.append(broker.trims.starter(replica, highest, call.now))
            waiting.append((replica, good))
            continue
        for result in good:
            assert replica is not None
            result.log_start_offset = replica.state.log_start_offset
    assert len(trims) == len(waiting)
    if not trims:
        yield None
        return
    outcomes = yield gather(trims, _TRIMS_AT_ONCE, call.now)
    assert isinstance(outcomes, list)
    for (replica, good), outcome in zip(waiting, outcomes, strict=True):
        assert isinstance(outcome, Outcome)
        for result in good:
            if outcome.error is not None:
                fail_entry(broker.lookup, replica, result, outcome.error)
            else:
                result.log_start_offset = replica.state.log_start_offset


def _wait_for_copies(
    broker: Broker, call: Call, partitions: list[_Deletions], deadline_us: int
) -> Generator[Wait, object, None]:
    """Wait until all live replicas have given up the rows, or the deadline (rule 20)."""
    waits = []
    waiting: list[tuple[Replica, list[m.DeleteRecordsPartitionResult]]] = []
    for entries in partitions:
        good = [result for _, result in entries if not result.error_code]
        if not good:
            continue
        # Copies follow the leader's start: a broker that leads no more promises nothing.
        try:
            replica = broker.lookup.leading(good[0].topic_id, good[0].partition)
        except QuiverlogError as error:
            for result in good:
                fail_entry(broker.lookup, None, result, error)
            continue
        leadership = replica.state.leadership
        assert leadership is not None
        if not leadership.followers:
            continue
        asked = [entry.before_offset for entry, result in entries if not result.error_code]
        offset = replica.log.start_saved if -1 in asked else max(asked)
        assert offset <= replica.log.start_saved, "the leader's own start is durable first"
        waits.append(broker.copied_starts.starter(replica, offset, deadline_us, call.now))
        waiting.append((replica, good))
    assert len(waits) <= _TRIMS_AT_ONCE
    if not waits:
        return
    outcomes = yield gather(waits, _TRIMS_AT_ONCE, call.now)
    assert isinstance(outcomes, list)
    for (replica, good), outcome in zip(waiting, outcomes, strict=True):
        for result in good:
            if outcome.error is not None:
                fail_entry(broker.lookup, replica, result, outcome.error)


def _check_delete(replica: Replica, before_offset: int) -> int:
    high_watermark = replica.state.high_watermark
    if before_offset == -1 or before_offset > high_watermark:
        check_current(replica)
    before = high_watermark if before_offset == -1 else before_offset
    if not 0 <= before <= high_watermark:
        raise out_of_range(replica, before)
    leadership = replica.state.leadership
    assert leadership is not None
    is_new = before > replica.log.start_saved
    if is_new and leadership.is_replicated and leadership.is_under_min:
        # A replica that is away may lead next, and would bring the rows back.
        raise NotEnoughReplicas(
            f"{replica.name}: {len(leadership.in_sync.committed)} of the"
            f" {leadership.min_in_sync} replicas that must record a deletion are in sync."
        )
    return before


def check_current(replica: Replica) -> None:
    """Refuse to report an end of readable rows that may go back (replication rule 5)."""
    if not replica.state.is_current:
        raise OffsetNotAvailable(
            f"{replica.name}: this leader has not confirmed yet up to where rows are readable."
        )


# --- parts --------------------------------------------------------------------------------------
def check_count(entries: Sequence[_EntryLike]) -> None:
    if len(entries) > PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{len(entries)} partitions in a request, allowed are {PARTITIONS_PER_REQUEST_MAX}."
        )


def answer_each(
    lookup: Lookup,
    entries: Sequence[_Entry],
    make: Callable[[bytes, int], _Result],
    fill: _Fill[_Entry, _Result],
    *,
    walks: bool = False,
) -> Generator[Wait, object, list[_Result]]:
    check_count(entries)
    results: list[_Result] = []
    for number, entry in enumerate(entries, 1):
        result = make(entry.topic_id, entry.partition)
        results.append(result)
        yield from _answer_one(lookup, entry, result, fill)
        if number % (_WALKS_PER_STEP if walks else ENTRIES_PER_STEP) == 0:
            yield None
    return results


def _answer_one(
    lookup: Lookup, entry: _Entry, result: _Result, fill: _Fill[_Entry, _Result]
) -> Generator[Wait, object, None]:
    loaded = Loaded()
    replica: Replica | None = None
    while True:
        try:
            replica = lookup.leader_for_offsets(entry.topic_id, entry.partition)
            try:
                fill(replica, entry, result, loaded)
                return
            except NotResident as cold:
                loaded.take(cold)
                wait = lookup.cold_read(replica, cold)
            yield wait
        except Exception as error:
            fail_entry(lookup, replica, result, error)
            return


def fail_entry(
    lookup: Lookup, replica: Replica | None, result: _ResultLike, error: BaseException
) -> None:
    if isinstance(error, CorruptLog):
        lookup.corrupt_read(replica, error)
        error = lookup.unreadable_here(replica, error)
    elif isinstance(error, OSError):
        error = StorageFault(f"the disk failed: {error.strerror or error}.")
    elif not isinstance(error, QuiverlogError):
        lookup.internal_error("a partition's entry", error)
        error = QuiverlogError()
    result.error_code = error.code
    result.error_message = error.message


class OffsetsWaiter(Waiter):
    """A parked LIST_OFFSETS; `looking` and `missed` as in `FetchWaiter`."""

    __slots__ = ("_lookup", "_waits", "looking", "missed", "request")

    api: ClassVar[m.Api] = m.Api.LIST_OFFSETS

    def __init__(
        self,
        lookup: Lookup,
        waits: Waits,
        connection_id: int,
        request: m.ListOffsetsRequest,
        deadline_us: int,
    ) -> None:
        count = len(request.partitions)
        super().__init__(connection_id, request.correlation_id, deadline_us, count)
        self._lookup = lookup
        self._waits = waits
        self.request = request
        self.looking = False
        self.missed: set[int] = set()

    def watch(self) -> None:
        for index, entry in enumerate(self.request.partitions):
            replica = self._lookup.find_leader(entry.topic_id, entry.partition)
            if replica is not None:  # The entry of one that is missing differs, and ends the wait.
                replica.watch(self, index)
        if self.request.metadata_version >= 0:
            self._lookup.watch_metadata(self)
        self._lookup.watch_rules(self)

    def wake(self, indexes: Sequence[int], now: Now) -> None:
        """Index -1: the metadata changed."""
        assert not self.done, "an answered request is not woken"
        if self.looking:
            self.missed.update(indexes)
        elif _takes_steps(self.request):
            if any(map(self._may_have_news, indexes)):
                self.look(now)
        elif any(map(self._may_have_news, indexes)):
            self._answer(_list(self._lookup, self.request))

    def _may_have_news(self, index: int) -> bool:
        assert index >= RULES_CHANGED, "an entry, the metadata or the rules"
        find = self._lookup.find_leader
        if index == RULES_CHANGED:
            return any(find(one.topic_id, one.partition) is None for one in self.request.partitions)
        if index < 0:
            return _metadata_differs(self._lookup, self.request)
        entry = self.request.partitions[index]
        return entry.at >= 0 or _differs(_list_entry(self._lookup, entry), entry)

    def expire(self, now: Now) -> None:
        assert not self.done
        if self.looking:
            self.deadline_us = 0
        elif _takes_steps(self.request):
            self.deadline_us = 0
            self.look(now)
        else:
            self._answer(_list(self._lookup, self.request))

    def look(self, now: Now) -> None:
        assert not self.looking
        self.looking = True
        call = Call(self.connection_id, self.request, now)
        self._waits.start(call, self._in_steps(call))

    def _in_steps(self, call: Call) -> Generator[Wait, object, None]:
        lookup, request = self._lookup, self.request
        try:
            if not self.done:  # Its connection may have gone before this first step.
                self.watch()
            results = yield from answer_each(
                lookup,
                request.partitions,
                m.ListOffsetsPartitionResult,
                _fill_offset,
                walks=any(entry.at >= 0 for entry in request.partitions),
            )
            if self.done:
                return
            self.looking = False
            if (
                call.now.mono_us >= self.deadline_us
                or _metadata_differs(lookup, request)
                or any(map(_differs, results, request.partitions))
            ):
                version = lookup.metadata_version
                self._answer(m.ListOffsetsResponse(metadata_version=version, partitions=results))
            elif self.missed:
                self._waits.look_again(self, self.missed)
                self.missed = set()
        except Exception as error:
            self._waits.fail(self, "LIST_OFFSETS", error)

    def _answer(self, response: m.ListOffsetsResponse) -> None:
        self._waits.answer(self, response)

    def release(self) -> None:
        self._lookup.unwatch_metadata(self)
        self._lookup.unwatch_rules(self)
        for entry in self.request.partitions:
            self._lookup.unwatch(self, entry.topic_id, entry.partition)


def handle_list_offsets(broker: Broker, event: RequestReceived, now: Now) -> None:
    request = event.request
    assert isinstance(request, m.ListOffsetsRequest)
    check_isolation(request.isolation_level)
    count = len(request.partitions)
    check_count(request.partitions)
    connection_id = event.connection_id
    in_steps = _takes_steps(request)
    lookup = _client_lookup(broker, connection_id, m.Api.LIST_OFFSETS)
    may_park = broker.purgatory.may_park(connection_id, count)
    if in_steps and not may_park:
        raise ThrottledBroker(
            "waiting requests name too many partitions: try again, or name fewer."
        )
    wait_ms = min(max(request.max_wait_ms, 0), FETCH_MAX_WAIT_MS_MAX) if may_park else 0
    if not in_steps:
        response = _list(lookup, request)
        if (
            wait_ms == 0
            or _metadata_differs(lookup, request)
            or any(map(_differs, response.partitions, request.partitions))
        ):
            broker.outbox.respond(connection_id, request.correlation_id, response)
            return
    deadline_us = now.mono_us + wait_ms * 1000
    waiter = OffsetsWaiter(lookup, broker.waits, connection_id, request, deadline_us)
    broker.purgatory.park(waiter)
    if in_steps:
        waiter.look(now)
    else:
        waiter.watch()


def _takes_steps(request: m.ListOffsetsRequest) -> bool:
    entries = request.partitions
    return len(entries) > ENTRIES_PER_STEP or any(entry.at >= 0 for entry in entries)


def _list(lookup: Lookup, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
    return m.ListOffsetsResponse(
        metadata_version=lookup.metadata_version,
        partitions=[_list_entry(lookup, entry) for entry in request.partitions],
    )


def _list_entry(lookup: Lookup, entry: m.ListOffsetsPartition) -> m.ListOffsetsPartitionResult:
    assert entry.at < 0
    result = m.ListOffsetsPartitionResult(entry.topic_id, entry.partition)
    replica: Replica | None = None
    try:
        replica = lookup.leader_for_offsets(entry.topic_id, entry.partition)
        _fill_offset(replica, entry, result, Loaded())
    except Exception as error:
        fail_entry(lookup, replica, result, error)
    return result


def _metadata_differs(lookup: Lookup, request: m.ListOffsetsRequest) -> bool:
    version = lookup.metadata_version
    return request.metadata_version >= 0 and request.metadata_version != version


def _differs(result: m.ListOffsetsPartitionResult, entry: m.ListOffsetsPartition) -> bool:
    return result.error_code != 0 or result.offset != entry.known_offset


def _fill_offset(
    replica: Replica,
    entry: m.ListOffsetsPartition,
    result: m.ListOffsetsPartitionResult,
    loaded: Loaded,
) -> None:
    state = replica.state
    state.check_leader_epoch(entry.leader_epoch)
    if entry.at == LATEST:
        check_current(replica)
        result.offset = state.high_watermark
    elif entry.at == EARLIEST:
        result.offset = state.log_start_offset
    elif entry.at < 0:
        raise InvalidRequest(f"{entry.at} is neither LATEST, EARLIEST nor a time since 1970.")
    else:
        found = replica.log.reader.offset_for_timestamp(
            entry.at, from_offset=loaded.offset, cold_ok=False, just_read=loaded.reads
        )
        if found is None or found[0] >= state.high_watermark:
            check_current(replica)
            return
        result.offset, result.timestamp_us = found
    assert result.offset <= state.high_watermark, "no reader learns of rows that may vanish"
    result.leader_epoch = _epoch_before(replica, result.offset)
    assert result.leader_epoch <= state.leader_epoch


def _epoch_before(replica: Replica, offset: int) -> int:
    """Return the epoch that a reader from `offset` on sends (replication rule 4)."""
    return replica.log.epochs.epoch_for(offset - 1) if offset > 0 else NO_EPOCH
