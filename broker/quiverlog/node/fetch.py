"""FETCH: rows out.

Owns what a fetch may see (never above the high watermark), how much of it travels, and the long
poll. A fetch that finds too little is parked on its partitions; it looks again at those whose
high watermark moved, and the whole is read when the sum is enough.

Rows that are not in memory are read by jobs first: the fetch waits for them, nobody else does. The
third look takes what it finds, so that it ends on a machine with little memory, too.

Bodies are views of the log's files: nothing is copied or decoded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

from quiverlog.batch.header import BatchHeader, peek
from quiverlog.errors import (
    CorruptLog,
    InvalidRequest,
    LogTruncated,
    OffsetOutOfRange,
    QuiverlogError,
    StorageFault,
)
from quiverlog.limits import (
    FETCH_MAX_WAIT_MS_MAX,
    FETCH_PARTITION_BYTES_DEFAULT,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    PARTITIONS_PER_REQUEST_MAX,
)
from quiverlog.node.broker import Broker
from quiverlog.node.cold import start_cold
from quiverlog.node.effects import Respond
from quiverlog.node.events import RequestReceived
from quiverlog.node.purgatory import Waiter
from quiverlog.node.replica import Replica
from quiverlog.storage.jobs import NotResident
from quiverlog.types import NO_EPOCH, Now
from quiverlog.wire import messages as m

__all__ = ["FetchWaiter", "handle_fetch", "out_of_range"]

_BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - HEADER_BYTES_MAX
_LOADS_MAX: Final = 3
"""After so many rounds (an index, its rows, and once more) the disk is waited for."""


class FetchWaiter(Waiter):
    """A parked fetch. `sizes`: bytes that each entry could get when it was last looked at.

    `byte_count` is their sum. `short`: entries that may get rows by waiting (see `_is_short`).
    `loading`: jobs that bring its rows into memory; nothing is looked at while they run.
    """

    __slots__ = ("_broker", "byte_count", "loading", "loads", "request", "short", "sizes")

    api: ClassVar[m.Api] = m.Api.FETCH

    def __init__(
        self, broker: Broker, connection_id: int, request: m.FetchRequest, deadline_us: int
    ) -> None:
        count = len(request.partitions)
        super().__init__(connection_id, request.correlation_id, deadline_us, count)
        self._broker = broker
        self.request = request
        self.sizes = [0] * count
        self.byte_count = 0
        self.short: set[int] = set()
        self.loading = 0
        self.loads = 0

    def wait(self, answer: _Answer) -> None:
        """Be told when one of the partitions moves."""
        self.sizes = [result.batch_bytes for result in answer.response.partitions]
        self.byte_count = sum(self.sizes)
        replicas = self._broker.replicas
        for index, entry in enumerate(self.request.partitions):
            replicas[entry.topic_id, entry.partition].waiters[self] = index
        for index, entry in enumerate(self.request.partitions):
            # Of a partition that is there several times, the last entry is told.
            told = replicas[entry.topic_id, entry.partition].waiters[self] == index
            if told and _is_short(self._broker, entry):
                self.short.add(index)

    def load(self, answer: _Answer) -> None:
        """Bring into memory what `answer` has missed, then look again."""
        assert answer.cold
        self.loading = len(answer.cold)
        self.loads += 1
        for replica, cold in answer.cold:
            start_cold(self._broker, replica, cold, partial(self._loaded, [True]))

    def _loaded(
        self, first: list[bool], _result: object, _error: BaseException | None, now: Now
    ) -> None:
        """One job is back. What went wrong shows when the rows are read."""
        if not first or self.done:
            return
        first.clear()
        self.loading -= 1
        if self.loading:
            return
        try:
            answer = _Answer(self._broker, self.request, cold_ok=self.loads >= _LOADS_MAX)
            if answer.cold:
                self.load(answer)
            elif answer.enough() or now.mono_us >= self.deadline_us:
                self._answer(answer)
            else:
                self.wait(answer)
        except Exception as error:
            self._broker.purgatory.fail(self, "FETCH", error)

    def wake(self, indexes: Sequence[int], now: Now) -> None:
        """These changed: look there and nowhere else, and answer when the sum is enough."""
        if self.loading:
            return
        request = self.request
        broker = self._broker
        if len(request.partitions) == 1:
            # What changed is nearly always enough: read once, for the answer itself.
            answer = _Answer(broker, request)
            if answer.cold:
                self.load(answer)
            elif answer.enough():
                self._answer(answer)
            return
        failed = False
        for index in indexes:
            entry = request.partitions[index]
            result, _, _ = _read(broker, entry, _partition_limit(entry), cold_ok=True)
            self.byte_count += result.batch_bytes - self.sizes[index]
            self.sizes[index] = result.batch_bytes
            if not _is_short(broker, entry):
                self.short.discard(index)
            failed = failed or result.error_code != 0
        if failed or self.byte_count >= request.min_bytes or not self.short:
            self._look(now)

    def expire(self, now: Now) -> None:
        if self.loading:
            # Its rows are on their way: a read of a disk takes a moment, not for ever.
            self.deadline_us = 0
            return
        self._answer(_Answer(self._broker, self.request, cold_ok=True))

    def _look(self, now: Now) -> None:
        answer = _Answer(self._broker, self.request)
        if answer.cold:
            self.load(answer)
        else:
            self._answer(answer)

    def _answer(self, answer: _Answer) -> None:
        answer.count()
        self.answer(self._broker.outbox, answer.response, answer.body)
        self._broker.purgatory.finish(self)
        self.release()

    def release(self) -> None:
        for entry in self.request.partitions:
            replica = self._broker.replicas.get((entry.topic_id, entry.partition))
            if replica is not None:
                replica.waiters.pop(self, None)


class _Answer:
    """One evaluation of a fetch. `cold`: what it would have had to wait for the disk for."""

    __slots__ = ("body", "broker", "byte_count", "cold", "final", "request", "response", "rows")

    def __init__(self, broker: Broker, request: m.FetchRequest, *, cold_ok: bool = False) -> None:
        self.broker = broker
        self.request = request
        self.response = m.FetchResponse()
        self.response.partitions = results = []
        self.body: list[memoryview] = []
        self.byte_count = 0
        self.final = False
        self.rows: list[tuple[Replica, int, int]] = []
        self.cold: list[tuple[Replica, NotResident]] = []
        limit = request.bytes_max if request.bytes_max > 0 else broker.config.fetch_bytes_default
        limit = min(limit, _BODY_BYTES_MAX)
        cold_bytes = 0
        for entry in request.partitions:
            room = min(limit - self.byte_count, _partition_limit(entry))
            try:
                result, views, replica = _read(broker, entry, room, cold_ok=cold_ok)
            except NotResident as cold:
                self.cold.append((broker.replica(entry.topic_id, entry.partition), cold))
                cold_bytes += getattr(cold.job, "size", 0)
                if self.byte_count + cold_bytes >= limit:
                    break
                continue
            if views and self.byte_count and result.batch_bytes > limit - self.byte_count:
                # Only the first batch of the first partition with rows may exceed the bound.
                views, result.batch_bytes = [], 0
            results.append(result)
            if result.error_code:
                self.final = True
            if views:
                assert replica is not None
                self.body.extend(views)
                self.byte_count += result.batch_bytes
                self.rows.append((replica, result.batch_bytes, _rows_from(views, entry.offset)))

    def enough(self) -> bool:
        """True when there is no reason to wait for more rows."""
        return (
            self.final
            or self.byte_count >= self.request.min_bytes
            or _exhausted(self.broker, self.request)
        )

    def count(self) -> None:
        """It is sent: count what leaves."""
        for replica, byte_count, rows in self.rows:
            replica.counters.bytes_out += byte_count
            replica.counters.rows_out += rows


def handle_fetch(broker: Broker, event: RequestReceived, now: Now) -> None:
    """See the module docstring."""
    request = event.request
    assert isinstance(request, m.FetchRequest)
    if len(request.partitions) > PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{len(request.partitions)} partitions in a request, allowed are"
            f" {PARTITIONS_PER_REQUEST_MAX}."
        )
    answer = _Answer(broker, request)
    connection_id = event.connection_id
    client_id = broker.connections[connection_id]
    wait_ms = min(max(request.max_wait_ms, 0), FETCH_MAX_WAIT_MS_MAX)
    if not broker.purgatory.may_park(connection_id, client_id, len(request.partitions)):
        wait_ms = 0
    if not answer.cold and (wait_ms == 0 or answer.enough()):
        answer.count()
        broker.outbox.effects.append(
            Respond(connection_id, answer.response, request.correlation_id, answer.body)
        )
        return
    waiter = FetchWaiter(broker, connection_id, request, now.mono_us + wait_ms * 1000)
    broker.purgatory.park(waiter, client_id)
    if answer.cold:
        waiter.load(answer)
    else:
        waiter.wait(answer)


def _partition_limit(entry: m.FetchPartition) -> int:
    return entry.bytes_max if entry.bytes_max > 0 else FETCH_PARTITION_BYTES_DEFAULT


def _exhausted(broker: Broker, request: m.FetchRequest) -> bool:
    """True when waiting brings no rows: every entry has an end, and is readable up to it."""
    for entry in request.partitions:
        if entry.end_offset < 0 or _is_short(broker, entry):
            return False
    return True


def _is_short(broker: Broker, entry: m.FetchPartition) -> bool:
    """True when the entry may get rows by waiting: it has no end, or is not readable up to it."""
    if entry.end_offset < 0:
        return True
    replica = broker.replicas.get((entry.topic_id, entry.partition))
    return replica is not None and replica.state.high_watermark < entry.end_offset


def _read(
    broker: Broker, entry: m.FetchPartition, bytes_max: int, *, cold_ok: bool
) -> tuple[m.FetchPartitionResult, list[memoryview], Replica | None]:
    """What one entry gets. Errors are part of the result; `bytes_max` <= 0 reads nothing.

    Raises:
        NotResident: only when not `cold_ok`.
    """
    result = m.FetchPartitionResult(entry.topic_id, entry.partition)
    replica: Replica | None = None
    views: list[memoryview] = []
    try:
        replica = broker.replica(entry.topic_id, entry.partition)
        views = _read_replica(replica, entry, bytes_max, result, cold_ok=cold_ok)
    except QuiverlogError as error:
        if isinstance(error, CorruptLog):
            broker.corrupt_read(replica, error)
            result.damage_start_offset, result.damage_end_offset = error.damage()
        result.error_code = error.code
        result.error_message = error.message
    except OSError as error:
        result.error_code = StorageFault.code
        result.error_message = f"reading failed: {error}."
    result.batch_bytes = sum(map(len, views))
    return result, views, replica


def _read_replica(
    replica: Replica,
    entry: m.FetchPartition,
    bytes_max: int,
    result: m.FetchPartitionResult,
    *,
    cold_ok: bool,
) -> list[memoryview]:
    state = replica.state
    log = replica.log
    high_watermark = state.high_watermark
    result.leader_epoch = state.leader_epoch
    result.log_start_offset = log.log_start_offset
    result.high_watermark = high_watermark
    result.last_stable_offset = high_watermark
    if entry.leader_epoch != state.leader_epoch:
        state.check_leader_epoch(entry.leader_epoch)
    if entry.last_epoch not in (NO_EPOCH, state.leader_epoch) or entry.offset > high_watermark:
        _check_divergence(replica, entry, result)
    if not log.log_start_offset <= entry.offset <= log.log_end_offset:
        raise out_of_range(replica, entry.offset)
    end = high_watermark
    if 0 <= entry.end_offset < end:
        end = entry.end_offset
    if entry.offset >= end or bytes_max <= 0:
        return []
    return log.read(entry.offset, bytes_max=bytes_max, end_offset=end, cold_ok=cold_ok)


def _check_divergence(
    replica: Replica, entry: m.FetchPartition, result: m.FetchPartitionResult
) -> None:
    """Tell a reader whose row before `offset` was truncated where the epochs part (KIP-320)."""
    if entry.last_epoch == NO_EPOCH:
        return
    epoch, end_offset = replica.log.epochs.end_offset_for(entry.last_epoch)
    if end_offset < 0:
        # The reader has seen an epoch that this log never had: everything after its end is lost.
        epoch, end_offset = replica.state.leader_epoch, replica.log.log_end_offset
    elif epoch == entry.last_epoch and end_offset >= entry.offset:
        return
    result.diverging_epoch = epoch
    result.diverging_end_offset = min(end_offset, entry.offset)
    raise LogTruncated(
        f"{replica.name}: the row before offset {entry.offset} was read under leader epoch"
        f" {entry.last_epoch}, which ended at {result.diverging_end_offset}."
    )


def out_of_range(replica: Replica, offset: int) -> OffsetOutOfRange:
    """The error that names the range one may read."""
    start, end = replica.log.log_start_offset, replica.state.high_watermark
    return OffsetOutOfRange(
        f"{replica.name}: offset {offset} is not in the valid range {start} to {end}.",
        log_start_offset=start,
        high_watermark=end,
    )


def _rows_from(views: list[memoryview], offset: int) -> int:
    """Rows at or after `offset` in whole batches (for the counters).

    The log hands out the last batch in a view of its own nearly always: the walk is one step.
    """
    first, tail = views[0], views[-1]
    base_offset = peek(first)[0]
    at, (_, _, total) = 0, peek(tail)
    while at + total < len(tail):
        at += total
        total = peek(tail, at)[2]
    return BatchHeader.unpack(tail, at).next_offset - max(offset, base_offset)
