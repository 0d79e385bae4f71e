"""FETCH: rows out, up to the high watermark.

A fetch with too few bytes waits, and reads partitions again whose high watermark moved. A follower
serves up to the high watermark that its leader sent (docs/adr/0036); a reader on this machine may
get ranges of files (docs/adr/0068).

Invariant: no row is decoded. Bodies are views of the log's files, or of few bytes read from them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import ClassVar, Final, NamedTuple

from quiverlog.errors import (
    CorruptLog,
    InvalidRequest,
    LogTruncated,
    OffsetNotAvailable,
    OffsetOutOfRange,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
)
from quiverlog.limits import (
    FETCH_MAX_WAIT_MS_MAX,
    FETCH_PARTITION_BYTES_DEFAULT,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    KIB,
    PARTITIONS_PER_REQUEST_MAX,
)
from quiverlog.node.assignment.lookup import RULES_CHANGED, Lookup
from quiverlog.node.broker import Broker
from quiverlog.node.partitions.cold_reads import Loaded
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.events import RequestReceived
from quiverlog.node.runtime.purgatory import Waiter, Waits
from quiverlog.node.runtime.tasks import Call, Wait, gather
from quiverlog.storage.segment.reading import Answer, views_of
from quiverlog.storage.segment.reading_jobs import JustRead, NotResident
from quiverlog.types import NO_EPOCH, IsolationLevel, Now
from quiverlog.wire import messages as m

__all__ = [
    "FetchAnswer",
    "FetchWaiter",
    "check_is_consumer",
    "check_isolation",
    "ends_wait",
    "handle_fetch",
    "is_short",
    "out_of_range",
    "partition_limit",
    "read_entry",
]


FILE_RANGE_BYTES_MIN: Final = 64 * KIB
"""Fewer bytes of a file arrive sooner when they are sent; it bounds the names in an answer, too."""
_FETCH: Final = int(m.Api.FETCH)
_BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - HEADER_BYTES_MAX


class Missing(NamedTuple):
    replica: Replica
    cold: NotResident
    loaded: Loaded


class FetchAnswer:
    __slots__ = (
        "_bytes_max",
        "_loaded",
        "_lookup",
        "_rules_seen",
        "at",
        "body",
        "byte_count",
        "final",
        "ranges_bytes",
        "request",
        "response",
        "rows",
    )

    def __init__(self, lookup: Lookup, request: m.FetchRequest) -> None:
        self._lookup = lookup
        self._rules_seen = lookup.rules_seen
        self.request = request
        self.response = m.FetchResponse()
        self.response.partitions = []
        self.body: list[memoryview] = []
        self.at = 0
        self.byte_count = 0
        self.ranges_bytes = 0
        self.final = False
        self.rows: list[tuple[Replica, int, int]] = []
        self._loaded: dict[int, Loaded] = {}
        limit = request.bytes_max if request.bytes_max > 0 else lookup.fetch_bytes_default
        self._bytes_max = min(limit, _BODY_BYTES_MAX)

    def look(self, end: int) -> list[Missing]:
        """Evaluate the entries before `end`, up to the first whose rows are not in memory.

        Returns what to load before the next call, for that one and for others after it.
        """
        missing: list[Missing] = []
        missing_bytes = 0
        entries = self.request.partitions
        assert self.at < end <= len(entries)
        for index in range(self.at, end):
            entry = entries[index]
            room = min(self._bytes_max - self.byte_count, partition_limit(entry))
            loaded = self._loaded.get(index) if self._loaded else None
            answers: list[Answer] = []
            replica: Replica | None = None
            try:
                if loaded is not None and loaded.error is not None:
                    found = self._lookup.read(
                        entry.topic_id, entry.partition, from_follower=entry.from_follower
                    )
                    result = _failed(entry, self._lookup.unreadable_here(found, loaded.error))
                else:
                    reads = loaded.reads if loaded is not None else ()
                    in_files = self.request.file_ranges
                    result, answers, replica = read_entry(
                        self._lookup, entry, room, reads, in_files=in_files
                    )
            except NotResident as cold:
                try:
                    loaded = self._loaded.setdefault(index, Loaded())
                    loaded.take(cold)
                except ThrottledBroker as error:
                    result = _failed(entry, error)
                else:
                    replica = self._lookup.replica(
                        entry.topic_id, entry.partition, from_follower=entry.from_follower
                    )
                    missing.append(Missing(replica, cold, loaded))
                    # Loads about as much as the answer may hold.
                    missing_bytes += getattr(cold.job, "size", 0)
                    if self.byte_count + missing_bytes >= self._bytes_max:
                        break
                    continue
            if not missing:
                self._add(entry, result, answers, replica)
        return missing

    def _add(
        self,
        entry: m.FetchPartition,
        result: m.FetchPartitionResult,
        answers: list[Answer],
        replica: Replica | None,
    ) -> None:
        if self.byte_count and result.batch_bytes > self._bytes_max - self.byte_count:
            # Only the first batch of the first partition with rows may exceed the bound.
            answers, result.batch_bytes, result.file_ranges = [], 0, []
        assert len(self.response.partitions) == self.at, "results are in the order of the entries"
        self.response.partitions.append(result)
        self.at += 1
        if ends_wait(result):
            self.final = True
        if answers:
            assert replica is not None
            if result.file_ranges:
                self.ranges_bytes += result.batch_bytes
            else:
                self.body.extend(views_of(answers))
            self.byte_count += result.batch_bytes
            rows = answers[-1].next_offset - entry.offset
            assert rows > 0, "what is read has the row that was asked for"
            self.rows.append((replica, result.batch_bytes, rows))
            assert self.byte_count <= self._bytes_max or len(self.rows) == 1

    @property
    def complete(self) -> bool:
        return self.at == len(self.request.partitions)

    @property
    def is_outdated(self) -> bool:
        """True if rights have changed since the first entry was read: read anew."""
        return self._rules_seen != self._lookup.rules_seen

    def enough(self) -> bool:
        if self.final or self.byte_count >= self.request.min_bytes:
            return True
        for entry in self.request.partitions:
            if entry.end_offset < 0 or is_short(self._lookup, entry):
                return False
        return True

    def count(self, connection_id: int) -> None:
        """Count, and audit, what is sent now."""
        for replica, byte_count, rows in self.rows:
            replica.counters.bytes_out += byte_count
            replica.counters.rows_out += rows
        self._lookup.audit_reads(connection_id, (one.topic.name for one, _, _ in self.rows))
        if self.ranges_bytes:
            self._lookup.count_local_read(self.ranges_bytes)


def partition_limit(entry: m.FetchPartition) -> int:
    return entry.bytes_max if entry.bytes_max > 0 else FETCH_PARTITION_BYTES_DEFAULT


def ends_wait(result: m.FetchPartitionResult) -> bool:
    assert result.error_code >= 0
    # Rows that are not copied yet may come while the fetch waits.
    return result.error_code not in (0, OffsetNotAvailable.code)


def is_short(lookup: Lookup, entry: m.FetchPartition) -> bool:
    """True if the entry may get rows by waiting."""
    if entry.end_offset < 0:
        return True
    replica = lookup.read(entry.topic_id, entry.partition, from_follower=entry.from_follower)
    return replica is not None and replica.state.high_watermark < entry.end_offset


def read_entry(
    lookup: Lookup,
    entry: m.FetchPartition,
    bytes_max: int,
    just_read: JustRead = (),
    *,
    in_files: bool = False,
) -> tuple[m.FetchPartitionResult, list[Answer], Replica | None]:
    """Read one entry; errors are part of the result.

    Args:
        in_files: where it pays, the result has `file_ranges`, and the answers no views.

    Raises:
        NotResident: its rows, or their index, are not in memory.
    """
    result = m.FetchPartitionResult(entry.topic_id, entry.partition)
    replica: Replica | None = None
    answers: list[Answer] = []
    try:
        replica = lookup.replica(entry.topic_id, entry.partition, from_follower=entry.from_follower)
        answers = _read_replica(replica, entry, bytes_max, result, just_read, in_files)
        # At the end there: a later leader may have rows that are missing here.
        if entry.offset >= result.high_watermark and not entry.from_follower:
            lookup.check_end(replica)
    except QuiverlogError as error:
        if isinstance(error, CorruptLog):
            lookup.corrupt_read(replica, error)
            damage = error.damage()
            error = lookup.unreadable_here(replica, error)
            if isinstance(error, CorruptLog):
                result.damage_start_offset, result.damage_end_offset = damage
        _fail(result, error)
    except OSError as error:
        if replica is not None:
            lookup.unreadable(replica, error)
        _fail(result, lookup.unreadable_here(replica, StorageFault(f"reading failed: {error}.")))
    for answer in answers:
        result.batch_bytes += answer.byte_count
    return result, answers, replica


def _failed(entry: m.FetchPartition, error: QuiverlogError) -> m.FetchPartitionResult:
    result = m.FetchPartitionResult(entry.topic_id, entry.partition)
    _fail(result, error)
    return result


def _fail(result: m.FetchPartitionResult, error: QuiverlogError) -> None:
    result.error_code = error.code
    result.error_message = error.message


def _read_replica(
    replica: Replica,
    entry: m.FetchPartition,
    bytes_max: int,
    result: m.FetchPartitionResult,
    just_read: JustRead,
    in_files: bool,
) -> list[Answer]:
    state = replica.state
    log = replica.log.reader
    high_watermark = state.high_watermark
    assert high_watermark <= log.log_end_offset
    result.leader_epoch = state.leader_epoch
    result.log_start_offset = log.log_start_offset
    result.high_watermark = high_watermark
    result.last_stable_offset = high_watermark  # All rows are committed (ADR 0082).
    if entry.leader_epoch != state.leader_epoch:
        state.check_leader_epoch(entry.leader_epoch)
    if entry.offset > log.log_end_offset and state.leadership is None:
        _check_copied(replica, entry)
    if entry.last_epoch not in (NO_EPOCH, state.leader_epoch) or entry.offset > high_watermark:
        _check_divergence(replica, entry, result)
    if not log.log_start_offset <= entry.offset <= log.log_end_offset:
        raise out_of_range(replica, entry.offset)
    end = high_watermark
    if 0 <= entry.end_offset < end:
        end = entry.end_offset
    assert end <= high_watermark, "no reader gets rows that may vanish"
    if entry.offset >= end or bytes_max <= 0:
        return []
    read = partial(
        log.read_answers,
        entry.offset,
        bytes_max=bytes_max,
        end_offset=end,
        cold_ok=False,
        just_read=just_read,
    )
    if in_files and log.size_bytes >= FILE_RANGE_BYTES_MIN:
        answers = read(in_files=True)
        result.file_ranges = _file_ranges(answers)
        if result.file_ranges or all(answer.views for answer in answers):
            return answers
    return read()


def _file_ranges(answers: list[Answer]) -> list[m.FileRange]:
    """Return where the rows lie; empty: they are few, or a file has no name for clients."""
    total = sum(answer.byte_count for answer in answers)
    if total < FILE_RANGE_BYTES_MIN * len(answers):
        return []
    ranges = []
    for answer in answers:
        place = answer.segment.file.place()
        if place is None or answer.views:
            return []
        assert answer.byte_count > 0, "a segment that was read gave rows"
        where = (answer.position, answer.byte_count, answer.last_header)
        ranges.append(m.FileRange(*place, *where))
    return ranges


def _check_copied(replica: Replica, entry: m.FetchPartition) -> None:
    """Refuse an offset beyond the end of a copy: only the leader has the end of the log."""
    assert not replica.state.leads
    assert entry.offset > replica.state.high_watermark, "the log ends above the high watermark"
    # Unless the reader's rows are of an older epoch: `_check_divergence` finds where that ended.
    newest_epoch, _ = replica.log.epochs.latest()
    if entry.last_epoch == NO_EPOCH or entry.last_epoch >= newest_epoch:
        raise OffsetNotAvailable(
            f"{replica.name}: offset {entry.offset} has not been copied yet, rows up to"
            f" {replica.log.log_end_offset} have."
        )


def _check_divergence(
    replica: Replica, entry: m.FetchPartition, result: m.FetchPartitionResult
) -> None:
    """Raise LogTruncated if the reader's row before `offset` was truncated (KIP-320)."""
    if entry.last_epoch == NO_EPOCH:
        return
    replica.state.check_seen_epoch(entry.last_epoch)
    epoch, end_offset = replica.log.epochs.end_offset_for(entry.last_epoch)
    if end_offset < 0:
        # The reader has rows of an epoch that this log never had: all after its end are lost.
        epoch, end_offset = replica.state.leader_epoch, replica.log.log_end_offset
    elif epoch == entry.last_epoch and end_offset >= entry.offset:
        return
    result.diverging_epoch = epoch
    assert 0 <= end_offset <= replica.log.log_end_offset
    assert epoch <= replica.state.leader_epoch, "the log has no later epoch"
    result.diverging_end_offset = min(end_offset, entry.offset)
    raise LogTruncated(
        f"{replica.name}: the row before offset {entry.offset} was read under leader epoch"
        f" {entry.last_epoch}, which ended at {result.diverging_end_offset}."
    )


def out_of_range(replica: Replica, offset: int) -> OffsetOutOfRange:
    start, end = replica.log.log_start_offset, replica.state.high_watermark
    return OffsetOutOfRange(
        f"{replica.name}: offset {offset} is not in the valid range {start} to {end}.",
        log_start_offset=start,
        high_watermark=end,
    )


_ISOLATION_LEVELS: Final = frozenset(map(int, IsolationLevel))
"""Both levels return the same rows: a topic holds committed ones only."""
_CONSUMER: Final = -1


def check_isolation(level: int) -> None:
    if level not in _ISOLATION_LEVELS:
        raise InvalidRequest(
            f"no isolation level has the number {level}: 0 is read uncommitted, 1 read committed."
        )


def check_is_consumer(replica_id: int) -> None:
    # A follower would take the high watermark for the log's end.
    if replica_id != _CONSUMER:
        raise InvalidRequest(
            f"replica_id {replica_id} is a follower's, which sends REPLICA_FETCH: give -1."
        )


ENTRIES_PER_STEP: Final = 16
"""One takes some microseconds, fifty where it has rows."""
_READS_PER_COST: Final = 2
"""Entries with rows that count as one ordinary step (see `Call.cost`)."""


class FetchWaiter(Waiter):
    """A parked fetch.

    `sizes`: bytes that each entry could get when last evaluated; `byte_count`: their sum; `short`:
    entries of `is_short`; `looking`: all are evaluated, in steps; `missed`: changed meanwhile.
    """

    __slots__ = (
        "_lookup",
        "_waits",
        "byte_count",
        "looking",
        "missed",
        "request",
        "short",
        "sizes",
    )

    api: ClassVar[m.Api] = m.Api.FETCH

    def __init__(
        self,
        lookup: Lookup,
        waits: Waits,
        connection_id: int,
        request: m.FetchRequest,
        deadline_us: int,
    ) -> None:
        count = len(request.partitions)
        super().__init__(connection_id, request.correlation_id, deadline_us, count)
        self._lookup = lookup
        self._waits = waits
        self.request = request
        self.sizes = [0] * count
        self.byte_count = 0
        self.short: set[int] = set()
        self.looking = False
        self.missed: set[int] = set()

    def watch(self, answer: FetchAnswer, first: int) -> None:
        lookup = self._lookup
        if not first:
            lookup.watch_rules(self)
        for index in range(first, answer.at):
            entry = self.request.partitions[index]
            size = answer.response.partitions[index].batch_bytes
            self.byte_count += size - self.sizes[index]
            self.sizes[index] = size
            assert self.byte_count >= 0
            replica = lookup.read(
                entry.topic_id, entry.partition, from_follower=entry.from_follower
            )
            if replica is None:
                continue  # An error, which ends the wait.
            # If a partition is named several times, only its last entry is watched.
            self.short.discard(replica.watch(self, index))
            if is_short(lookup, entry):
                self.short.add(index)

    # --- looking in steps ----------------------------------------------------------------------
    def look(self, answer: FetchAnswer, now: Now, *, final: bool = False) -> None:
        """Complete `answer` in steps, then send it or wait; `final`: send it in any case."""
        assert not self.looking
        self.looking = True
        call = Call(self.connection_id, self.request, now)
        self._waits.start(call, self._in_steps(answer, call, final))

    def _in_steps(
        self, answer: FetchAnswer, call: Call, final: bool
    ) -> Generator[Wait, object, None]:
        try:
            while True:
                yield from self._read(answer, call)
                if self.done:
                    return
                if not answer.is_outdated:
                    break
                answer = FetchAnswer(self._lookup, self.request)
            assert answer.complete
            assert self.byte_count == sum(self.sizes)
            self.looking = False
            if final or answer.enough() or call.now.mono_us >= self.deadline_us:
                self._answer(answer)
            elif self.missed:
                self._waits.look_again(self, self.missed)
                self.missed = set()
        except Exception as error:
            self._waits.fail(self, "FETCH", error)

    def _read(self, answer: FetchAnswer, call: Call) -> Generator[Wait, object, None]:
        lookup = self._lookup
        count = len(self.request.partitions)
        assert self.looking, "a change meanwhile is kept for later"
        while not answer.complete and not self.done:
            first = answer.at
            reads = len(answer.rows)
            missing = answer.look(min(first + ENTRIES_PER_STEP, count))
            call.cost = 1 + (len(answer.rows) - reads) // _READS_PER_COST
            self.watch(answer, first)
            if missing:
                loads = [lookup.cold_read(one.replica, one.cold) for one in missing]
                outcomes = yield gather(loads, len(loads), call.now)
                assert isinstance(outcomes, list)
                for one, outcome in zip(missing, outcomes, strict=True):
                    one.loaded.failed(outcome.error, lookup)
            elif not answer.complete:
                yield None

    def wake(self, indexes: Sequence[int], now: Now) -> None:
        assert not self.done, "an answered request is not woken"
        if self.looking:
            self.missed.update(indexes)
            return
        request = self.request
        lookup = self._lookup
        if RULES_CHANGED in indexes:
            if not all(map(self._is_readable, request.partitions)):
                self._end(now)
                return
            indexes = [index for index in indexes if index != RULES_CHANGED]
        if len(request.partitions) == 1:
            # The change is nearly always enough: read once, for the answer itself.
            answer = FetchAnswer(lookup, request)
            if answer.look(1):
                self.look(FetchAnswer(lookup, request), now)
            elif answer.enough():
                self._answer(answer)
            return
        failed = False
        for index in indexes:
            entry = request.partitions[index]
            try:
                result, _, _ = read_entry(lookup, entry, partition_limit(entry))
            except NotResident:
                self.look(FetchAnswer(lookup, request), now)
                return
            self.byte_count += result.batch_bytes - self.sizes[index]
            self.sizes[index] = result.batch_bytes
            if not is_short(lookup, entry):
                self.short.discard(index)
            failed = failed or ends_wait(result)
        if failed or self.byte_count >= request.min_bytes or not self.short:
            self._end(now)

    def _is_readable(self, entry: m.FetchPartition) -> bool:
        found = self._lookup.read(
            entry.topic_id, entry.partition, from_follower=entry.from_follower
        )
        return found is not None

    def expire(self, now: Now) -> None:
        assert not self.done
        if self.looking:
            # Answered when the rows that are being read have come.
            self.deadline_us = 0
        else:
            self._end(now)

    def _end(self, now: Now) -> None:
        answer = FetchAnswer(self._lookup, self.request)
        count = len(self.request.partitions)
        if count > ENTRIES_PER_STEP or (count and answer.look(count)):
            self.look(FetchAnswer(self._lookup, self.request), now, final=True)
        else:
            self._answer(answer)

    def _answer(self, answer: FetchAnswer) -> None:
        answer.count(self.connection_id)
        self._waits.answer(self, answer.response, answer.body)

    def release(self) -> None:
        self._lookup.unwatch_rules(self)
        for entry in self.request.partitions:
            self._lookup.unwatch(self, entry.topic_id, entry.partition)


def handle_fetch(broker: Broker, event: RequestReceived, now: Now) -> None:
    request = event.request
    assert isinstance(request, m.FetchRequest)
    check_isolation(request.isolation_level)
    check_is_consumer(request.replica_id)
    count = len(request.partitions)
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"{count} partitions in a request, allowed are {PARTITIONS_PER_REQUEST_MAX}."
        )
    connection_id = event.connection_id
    wait_ms = min(max(request.max_wait_ms, 0), FETCH_MAX_WAIT_MS_MAX)
    may_park = broker.purgatory.may_park(connection_id, count)
    if not may_park:
        wait_ms = 0
    lookup = broker.lookup
    if broker.authoriser.is_on:
        lookup = lookup.guarded(broker.authoriser.guard(connection_id, _FETCH))
        if broker.clients.listener_of(connection_id) in broker.config.authentication:
            request.file_ranges = request.file_ranges and broker.config.local_reads_authenticated
    answer = FetchAnswer(lookup, request)
    in_steps = count > ENTRIES_PER_STEP
    if in_steps and not may_park:
        raise ThrottledBroker(
            "waiting requests name too many partitions: try again, or name fewer."
        )
    if not in_steps:
        in_steps = bool(count and answer.look(count))
        if not in_steps and (wait_ms == 0 or answer.enough()):
            answer.count(connection_id)
            correlation_id = request.correlation_id
            broker.outbox.respond(connection_id, correlation_id, answer.response, answer.body)
            return
    deadline_us = now.mono_us + wait_ms * 1000
    waiter = FetchWaiter(lookup, broker.waits, connection_id, request, deadline_us)
    broker.purgatory.park(waiter)
    if in_steps:
        waiter.look(FetchAnswer(lookup, request), now)
    else:
        waiter.watch(answer, 0)
