"""PRODUCE of many entries: a few at a time, so that others have their turns.

Owns the steps. The body is copied, as that of any produce whose check takes long, and stands in the
line of its connection (checking.py). All entries are checked by one job, since the bounds of a
request are over all of them; then each step admits some, appends them and lets them wait for their
flush. One waiter answers for all: it stands in the queue of each partition from the moment in which
its rows are in the log there, so answers stay in their order.

Must not know: what an entry is refused for (produce.py).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Final, NamedTuple

from quiverlog.errors import DiskFull, ThrottledBroker
from quiverlog.node import produce
from quiverlog.node.acknowledgements import ProduceWaiter
from quiverlog.node.broker import Broker
from quiverlog.node.checking import CheckJob, HeldProduce
from quiverlog.node.events import RequestReceived
from quiverlog.node.jobs import Urgency
from quiverlog.node.staging import Staged, StagedEntry
from quiverlog.node.tasks import Call, Steps, Wait
from quiverlog.types import Now
from quiverlog.wire import messages as m

__all__ = ["handle_produce"]

ENTRIES_INLINE_MAX: Final = 64
"""A produce of more entries is taken in steps."""
ENTRIES_PER_STEP: Final = 2
STAGE_COST: Final = 1
_FILE_COST: Final = 4
"""In steps (see `Call.cost`): appending takes some 20 us an entry, and 200 to begin a file."""


class _Part(NamedTuple):
    """Some entries of a request, as a request. `first`: the number of the first of them."""

    request: m.ProduceRequest
    body: memoryview
    first: int


def handle_produce(broker: Broker, event: RequestReceived, now: Now) -> None:
    """Take a produce: at once (produce.py), or in steps where it has many entries."""
    request = event.request
    assert isinstance(request, m.ProduceRequest)
    if len(request.partitions) <= ENTRIES_INLINE_MAX:
        produce.handle_produce(broker, event, now)
        return
    produce.check_sizes(request.partitions, len(event.body))
    broker.admission.check_writable()
    if broker.purgatory.live >= broker.config.requests_waiting_max:
        raise ThrottledBroker
    held_produces = broker.held_produces
    assert not broker.staging.is_last(request), "a wide produce is staged in parts"
    is_first = not held_produces.has_line(event.connection_id)
    held = held_produces.hold(event.connection_id, request, event.body)
    held.begin = partial(_begin, broker, held)
    if is_first:
        held.begin(now)


def _begin(broker: Broker, held: HeldProduce, now: Now) -> None:
    call = Call(held.connection_id, held.request, now)
    broker.tasks.start(call, _in_steps(broker, held, call))


def _in_steps(broker: Broker, held: HeldProduce, call: Call) -> Steps:
    """Store it, then let the next of the connection have its turn."""
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
    produce.take_turns(broker, held, call.now)
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
    """Check all entries, then stage them part by part; the waiter is put into `waiters`."""
    parts = _parts(held)
    checked = []
    for part in parts:
        checked.append(produce.look(broker, part.request, part.body))
        yield None
    every = [entry for entries in checked for entry in entries]
    yield broker.jobs.starter(CheckJob(held.connection_id, every, call.now.wall_us), Urgency.CHECK)
    waiter = broker.staging.wait_for(held.connection_id, held.request, response, call.now)
    waiters.append(waiter)
    waiter.expect()
    assert len(every) == len(response.partitions), "each entry was looked at"
    for part, checks in zip(parts, checked, strict=True):
        # A leader that changed, a topic that was deleted, a fault: looked at again.
        entries = produce.look(broker, part.request, part.body)
        for entry, check in zip(entries, checks, strict=True):
            if entry.error is None:
                entry.take(check)
        try:
            broker.admission.check_room()
        except DiskFull as error:
            for entry in entries:
                entry.refuse(error)
        assert not broker.staging.produces, "steps are made between events"
        results = response.partitions[part.first : part.first + len(entries)]
        staged: list[StagedEntry] = []
        part_response = m.ProduceResponse(partitions=results)
        broker.staging.produces.append(
            Staged(held.connection_id, part.request, part_response, staged, waiter)
        )
        file_count = _file_count(entries)
        produce.admit_all(broker, entries, results, staged, call.now)
        broker.staging.finish(call.now)
        for entry, result in zip(entries, results, strict=True):
            if entry.replica is None and not waiter.done:
                waiter.nothing_to_wait_for(result)
        call.cost = STAGE_COST + _FILE_COST * (_file_count(entries) - file_count)
        yield None
        if waiter.done:
            return  # Its time is over; what was not staged is answered like what was.


def _file_count(entries: Sequence[produce.Entry]) -> int:
    return sum(e.replica.log.segment_count for e in entries if e.replica is not None)


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
