"""FETCH: rows out.

Owns the long poll. A fetch that finds too little is parked on its partitions; it looks again at
those whose high watermark moved, and the whole is read when the sum is enough.

Rows that are not in memory are read by jobs first: the fetch waits for them, nobody else does. A
fetch of many partitions is looked at in steps (tasks.py), for the same reason. What one look finds
is in fetch_answer.py.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import ClassVar, Final

from quiverlog.errors import InvalidRequest, ThrottledBroker
from quiverlog.limits import FETCH_MAX_WAIT_MS_MAX, PARTITIONS_PER_REQUEST_MAX
from quiverlog.node.broker import Broker
from quiverlog.node.events import RequestReceived
from quiverlog.node.fetch_answer import (
    FetchAnswer,
    ends_wait,
    is_short,
    partition_limit,
    read_entry,
)
from quiverlog.node.lookup import Lookup
from quiverlog.node.purgatory import Waiter
from quiverlog.node.readers import check_is_consumer, check_isolation
from quiverlog.node.tasks import Call, Wait, gather
from quiverlog.node.waits import Waits
from quiverlog.storage.segment.reading_jobs import NotResident
from quiverlog.types import Now
from quiverlog.wire import messages as m

__all__ = ["FetchWaiter", "handle_fetch"]

ENTRIES_PER_STEP: Final = 16
"""Looking at one takes some microseconds, fifty where it has rows."""
_READS_PER_COST: Final = 2
"""So many entries with rows count as one ordinary step (see `Call.cost`)."""


class FetchWaiter(Waiter):
    """A parked fetch.

    `sizes`: bytes that each entry could get when it was last looked at; `byte_count`: their sum.
    `short`: entries that may get rows by waiting (see `is_short`).
    `looking`: all entries are being looked at, in steps; `missed`: those that changed meanwhile.
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
        """Enter the waiter with the partitions that `answer` has looked at since `first`."""
        lookup = self._lookup
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
                continue  # Its result is an error, which ends the wait.
            # Of a partition that is there several times, the last entry is told.
            self.short.discard(replica.watch(self, index))
            if is_short(lookup, entry):
                self.short.add(index)

    # --- looking in steps ----------------------------------------------------------------------
    def look(self, answer: FetchAnswer, now: Now, *, final: bool = False) -> None:
        """Go on with `answer`, in steps, then say it or wait; `final`: say it in any case."""
        assert not self.looking
        self.looking = True
        call = Call(self.connection_id, self.request, now)
        self._waits.start(call, self._in_steps(answer, call, final))

    def _in_steps(
        self, answer: FetchAnswer, call: Call, final: bool
    ) -> Generator[Wait, object, None]:
        lookup = self._lookup
        count = len(self.request.partitions)
        try:
            while not answer.complete:
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
                if self.done:
                    return
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

    def wake(self, indexes: Sequence[int], now: Now) -> None:
        """Look at the entries that changed, and answer when all entries together have enough."""
        assert not self.done, "nobody wakes who has an answer"
        if self.looking:
            self.missed.update(indexes)
            return
        request = self.request
        lookup = self._lookup
        if len(request.partitions) == 1:
            # What changed is nearly always enough: read once, for the answer itself.
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

    def expire(self, now: Now) -> None:
        """The deadline has come: answer with what there is."""
        assert not self.done
        if self.looking:
            # Its rows are on their way: a read of a disk takes a moment, not for ever.
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
        answer.count()
        self._waits.answer(self, answer.response, answer.body)

    def release(self) -> None:
        for entry in self.request.partitions:
            self._lookup.unwatch(self, entry.topic_id, entry.partition)


def handle_fetch(broker: Broker, event: RequestReceived, now: Now) -> None:
    """See the module docstring."""
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
    answer = FetchAnswer(broker.lookup, request)
    in_steps = count > ENTRIES_PER_STEP
    if in_steps and not may_park:
        raise ThrottledBroker("too many partitions are asked for by requests that wait.")
    if not in_steps:
        in_steps = bool(count and answer.look(count))
        if not in_steps and (wait_ms == 0 or answer.enough()):
            answer.count()
            correlation_id = request.correlation_id
            broker.outbox.respond(connection_id, correlation_id, answer.response, answer.body)
            return
    deadline_us = now.mono_us + wait_ms * 1000
    waiter = FetchWaiter(broker.lookup, broker.waits, connection_id, request, deadline_us)
    broker.purgatory.park(waiter)
    if in_steps:
        waiter.look(FetchAnswer(broker.lookup, request), now)
    else:
        waiter.watch(answer, 0)
