"""LIST_OFFSETS: the oldest row, the newest, or the first at or after a time.

Owns the long poll: it waits until an offset differs from the one that the asker knows, or until the
metadata do, so that a tailing reader learns of rows, of new partitions and of deleted topics by one
request that costs nothing while nothing happens.

Many entries, and times, are looked up in steps (see offsets.py), also when the long poll wakes up.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import ClassVar

from quiverlog.errors import InvalidRequest, ThrottledBroker
from quiverlog.limits import FETCH_MAX_WAIT_MS_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.cold import Loaded
from quiverlog.node.events import RequestReceived
from quiverlog.node.lookup import Lookup
from quiverlog.node.offsets import (
    ENTRIES_PER_STEP,
    answer_each,
    check_count,
    check_current,
    fail_entry,
)
from quiverlog.node.purgatory import Waiter
from quiverlog.node.readers import check_isolation
from quiverlog.node.replica import Replica
from quiverlog.node.tasks import Call, Wait
from quiverlog.node.waits import Waits
from quiverlog.types import EARLIEST, LATEST, NO_EPOCH, Now
from quiverlog.wire import messages as m

__all__ = ["OffsetsWaiter", "handle_list_offsets"]


class OffsetsWaiter(Waiter):
    """A parked LIST_OFFSETS.

    `looking`: its entries are being looked at, in steps; `missed`: those that changed meanwhile.
    """

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
        """Enter the waiter with its partitions, and with the metadata where it compares them."""
        for index, entry in enumerate(self.request.partitions):
            replica = self._lookup.led(entry.topic_id, entry.partition)
            if replica is not None:  # One that is not there differs from what is known.
                replica.watch(self, index)
        if self.request.metadata_version >= 0:
            self._lookup.watch_metadata(self)

    def wake(self, indexes: Sequence[int], now: Now) -> None:
        """`index` -1: the metadata changed."""
        assert not self.done, "nobody wakes who has an answer"
        if self.looking:
            self.missed.update(indexes)
        elif _takes_steps(self.request):
            if any(map(self._may_have_news, indexes)):
                self.look(now)
        elif any(map(self._may_have_news, indexes)):
            self._answer(_list(self._lookup, self.request))

    def _may_have_news(self, index: int) -> bool:
        if index < 0:
            return _metadata_differs(self._lookup, self.request)
        entry = self.request.partitions[index]
        return entry.at >= 0 or _differs(_list_entry(self._lookup, entry), entry)

    def expire(self, now: Now) -> None:
        """The deadline has come: answer with what there is."""
        assert not self.done
        if self.looking:
            self.deadline_us = 0
        elif _takes_steps(self.request):
            self.deadline_us = 0
            self.look(now)
        else:
            self._answer(_list(self._lookup, self.request))

    def look(self, now: Now) -> None:
        """Look at all entries, in steps; then answer, or go on waiting."""
        assert not self.looking
        self.looking = True
        call = Call(self.connection_id, self.request, now)
        self._waits.start(call, self._in_steps(call))

    def _in_steps(self, call: Call) -> Generator[Wait, object, None]:
        """Of many partitions, or times: these are looked up in files that may have to be read."""
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
        for entry in self.request.partitions:
            self._lookup.unwatch(self, entry.topic_id, entry.partition)


def handle_list_offsets(broker: Broker, event: RequestReceived, now: Now) -> None:
    """See the module docstring."""
    request = event.request
    assert isinstance(request, m.ListOffsetsRequest)
    check_isolation(request.isolation_level)
    count = len(request.partitions)
    check_count(request.partitions)
    connection_id = event.connection_id
    in_steps = _takes_steps(request)
    may_park = broker.purgatory.may_park(connection_id, count)
    if in_steps and not may_park:
        raise ThrottledBroker("too many partitions are asked for by requests that wait.")
    wait_ms = min(max(request.max_wait_ms, 0), FETCH_MAX_WAIT_MS_MAX) if may_park else 0
    if not in_steps:
        response = _list(broker.lookup, request)
        if (
            wait_ms == 0
            or _metadata_differs(broker.lookup, request)
            or any(map(_differs, response.partitions, request.partitions))
        ):
            broker.outbox.respond(connection_id, request.correlation_id, response)
            return
    deadline_us = now.mono_us + wait_ms * 1000
    waiter = OffsetsWaiter(broker.lookup, broker.waits, connection_id, request, deadline_us)
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
    """The newest or oldest offset, which needs no file."""
    assert entry.at < 0
    result = m.ListOffsetsPartitionResult(entry.topic_id, entry.partition)
    replica: Replica | None = None
    try:
        replica = lookup.telling(entry.topic_id, entry.partition)
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
        found = replica.log.offset_for_timestamp(
            entry.at, from_offset=loaded.offset, cold_ok=False, just_read=loaded.reads
        )
        if found is None or found[0] >= state.high_watermark:
            check_current(replica)
            return
        result.offset, result.timestamp_us = found
    assert result.offset <= state.high_watermark, "nobody learns of rows that may vanish"
    result.leader_epoch = _epoch_before(replica, result.offset)
    assert result.leader_epoch <= state.leader_epoch


def _epoch_before(replica: Replica, offset: int) -> int:
    """The epoch of the row before `offset`: what a reader that starts there must carry."""
    return replica.log.epochs.epoch_for(offset - 1) if offset > 0 else NO_EPOCH
