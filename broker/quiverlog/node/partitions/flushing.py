"""Which log is flushed when, and what a finished flush means.

Connections take turns: before the single flush that one waits for, at most one of each other
connection begins, and a few in the background. There a log is flushed at a roll, after 64 MiB and
after 30 s; of many such logs the oldest begins earlier, to avoid a burst.

Invariants:
- A log has at most one flush under way, the broker `flushes_in_flight_max`; all appends meanwhile
  share the next one (group commit).
- A log with a fault is not flushed again: a second fsync that succeeds would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from quiverlog.errors import OutcomeUnknown, StorageFault
from quiverlog.limits import UNFLUSHED_MS_MAX
from quiverlog.node.partitions.acknowledgements import BROKER
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.jobs import Jobs
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.purgatory import Wakeups
from quiverlog.storage.log.jobs import FlushJob, FlushResult
from quiverlog.types import Now

__all__ = ["AT_ONCE", "DueFlushes", "FlushQueue", "Flushes"]


BACKGROUND: Final = -2
"""Asks for a flush that is not waited for."""
_BACKGROUND_EVERY: Final = 16
_ALONE_AFTER: Final = 64


class FlushQueue:
    """Logs that want a flush, one of each asker in turn.

    Invariant: a replica is in the queues of all its askers or, without any, in the background's;
    an asker without replicas has no queue.
    """

    __slots__ = (
        "_askers",
        "_background",
        "_by_asker",
        "_in_a_row",
        "_in_flight_max",
        "_last_asker",
        "_long",
        "_taken",
        "_under_way",
    )

    def __init__(self, in_flight_max: int) -> None:
        assert in_flight_max >= 1
        self._in_flight_max = in_flight_max
        # With the asker whose turn it was.
        self._under_way: dict[Replica, int] = {}
        self._long: dict[Replica, int] = {}
        self._by_asker: dict[int, dict[Replica, None]] = {}
        self._background: dict[Replica, None] = {}
        # Of the next flush, queued or not.
        self._askers: dict[Replica, dict[int, None]] = {}
        self._taken = 0
        # Flushes of the last asker since another one had a turn.
        self._in_a_row = 0
        self._last_asker = BROKER

    @property
    def idle(self) -> bool:
        return not (self._under_way or self._by_asker or self._background)

    @property
    def waiting(self) -> bool:
        return (
            bool(self._by_asker or self._background) and len(self._under_way) < self._in_flight_max
        )

    def ask(self, replica: Replica, asker: int) -> None:
        """Have `asker` wait for the next flush, which `put` queues."""
        self._askers.setdefault(replica, {})[asker] = None

    def put(self, replica: Replica) -> None:
        """Queue it for all its askers, or for the background. May be called again."""
        assert replica not in self._under_way, "the next flush waits for the one under way"
        askers = self._askers.get(replica)
        if askers is None:
            self._background[replica] = None
            return
        self._background.pop(replica, None)
        for asker in askers:
            self._by_asker.setdefault(asker, {})[replica] = None

    def take(self) -> Replica | None:
        places = self._in_flight_max - len(self._under_way)
        if not places or not self.waiting:
            return None
        # An asker with a flush under way leaves the last place to the others.
        having = list((self._under_way if places == 1 else self._long).values())
        if places > 1 and len(having) == 1 and self._in_a_row >= _ALONE_AFTER:
            having = []
        background = bool(self._background) and BACKGROUND not in having
        if background and ((self._taken + 1) % _BACKGROUND_EVERY == 0 or not self._by_asker):
            replica = next(iter(self._background))
            return self._take(replica, BACKGROUND)
        for asker, mine in self._by_asker.items():
            if asker == BROKER or asker not in having:
                self._by_asker[asker] = self._by_asker.pop(asker)  # The next turn is the others'.
                return self._take(next(iter(mine)), asker)
        return self._take(next(iter(self._background)), BACKGROUND) if background else None

    def _take(self, replica: Replica, asker: int) -> Replica:
        assert replica not in self._under_way, "a log has one flush at a time"
        assert len(self._under_way) < self._in_flight_max
        self._taken += 1
        self._in_a_row = self._in_a_row + 1 if asker == self._last_asker else 0
        self._last_asker = asker
        self.drop(replica)
        self._under_way[replica] = asker
        return replica

    def takes_long(self, replica: Replica) -> None:
        assert replica in self._under_way
        self._long[replica] = self._under_way[replica]

    def done(self, replica: Replica) -> None:
        """May be called again."""
        self._under_way.pop(replica, None)
        self._long.pop(replica, None)
        assert len(self._long) <= len(self._under_way)

    def drop(self, replica: Replica) -> None:
        self._background.pop(replica, None)
        for asker in self._askers.pop(replica, ()):
            queue = self._by_asker.get(asker)
            if queue is not None:
                queue.pop(replica, None)
                if not queue:
                    del self._by_asker[asker]


AT_ONCE: Final = 100
"""How many may be due together, and are taken in one call of the node."""


class DueFlushes:
    __slots__ = ("_due", "_early_us")

    def __init__(self) -> None:
        # In the order of entering, which is that of their dates but for moments.
        self._due: dict[Replica, int] = {}
        self._early_us = 0

    def __len__(self) -> int:
        return len(self._due)

    def enter(self, replica: Replica, due_us: int) -> None:
        """A replica that is here already keeps its date."""
        assert due_us > 0
        self._due.setdefault(replica, due_us)

    def drop(self, replica: Replica) -> None:
        self._due.pop(replica, None)

    def clear(self) -> None:
        self._due.clear()

    def next_us(self) -> int | None:
        first = next(iter(self._due.values()), None)
        if first is None or len(self._due) <= AT_ONCE:
            return first
        return min(first, self._early_us)

    def take(self, now_us: int) -> Replica | None:
        next_us = self.next_us()
        if next_us is None or next_us > now_us:
            return None
        count = len(self._due)
        last_us = next(reversed(self._due.values()))
        self._early_us = now_us + max(0, last_us - now_us) // count
        replica = next(iter(self._due))
        del self._due[replica]
        assert len(self._due) == count - 1
        return replica


_RETRY_US: Final = 1_000_000
"""After a flush that could not even be tried (no descriptor)."""


class Flushes:
    __slots__ = (
        "_due",
        "_jobs",
        "_metrics",
        "_on_fault",
        "_outbox",
        "_queue",
        "_retry",
        "_wakeups",
    )

    def __init__(
        self,
        jobs: Jobs,
        wakeups: Wakeups,
        outbox: Outbox,
        metrics: NodeMetrics,
        *,
        in_flight_max: int,
    ) -> None:
        self._jobs = jobs
        self._wakeups = wakeups
        self._outbox = outbox
        self._metrics = metrics
        self._queue = FlushQueue(in_flight_max)
        self._on_fault: Callable[[Replica], None] = lambda replica: None
        self._due = DueFlushes()
        self._retry: dict[Replica, int] = {}

    def listen(self, on_fault: Callable[[Replica], None]) -> None:
        self._on_fault = on_fault

    @property
    def idle(self) -> bool:
        return self._queue.idle

    @property
    def waiting(self) -> bool:
        return self._queue.waiting

    def next_us(self) -> int | None:
        due_us = self._due.next_us()
        if not self._retry:
            return due_us
        retry_us = next(iter(self._retry.values()))
        return retry_us if due_us is None else min(due_us, retry_us)

    # --- asking --------------------------------------------------------------------------------
    def want(self, replica: Replica, asker: int = BROKER) -> None:
        """`asker`: a connection whose produce waits for it."""
        if replica.fault is None:
            replica.flush_wanted = True
            self._queue.ask(replica, asker)
            self._enqueue(replica)

    def _enqueue(self, replica: Replica) -> None:
        if replica.fault is None:
            replica.flush_queued = True
            if not replica.flush_running:
                self._queue.put(replica)

    def appended(self, replica: Replica) -> None:
        """Flush in the background, if no flush is wanted before."""
        if replica.flush_queued or replica.fault is not None:
            return
        assert not replica.deleted
        due_us = replica.log.flush_due_us()
        if due_us == 0:
            self._enqueue(replica)
        elif due_us is not None:
            self._due.enter(replica, due_us)

    def run(self, now: Now) -> None:
        for _ in range(AT_ONCE):
            due = self._due.take(now.mono_us)
            if due is None:
                break
            self._enqueue(due)
        while self._retry and next(iter(self._retry.values())) <= now.mono_us:
            again = next(iter(self._retry))
            del self._retry[again]
            self.want(again)
        while (taken := self._queue.take()) is not None:
            taken.flush_queued = False
            if taken.deleted or taken.cutting or taken.fault is not None:
                self._queue.done(taken)
            else:
                try:
                    self._start(taken, now)
                except Exception:
                    if not taken.flush_running:
                        self._queue.done(taken)  # Or its place would be taken for ever.
                    raise

    def _start(self, replica: Replica, now: Now) -> None:
        assert not replica.flush_running
        assert not replica.deleted
        assert replica.fault is None, "a second fsync that succeeds would prove nothing"
        self._due.drop(replica)
        self._retry.pop(replica, None)
        # No request waits: there is time to record how far the next start need not read.
        background, replica.flush_wanted = not replica.flush_wanted, False
        try:
            job = replica.log.begin_flush(background=background)
        except Exception as error:
            self._outbox.internal_error("beginning a flush", error)
            self._queue.done(replica)
            self.declare_fault(replica, f"no flush can be begun: {error}", now)
            return
        if job.names_changed:
            self._queue.takes_long(replica)
        replica.flush_running = True
        replica.jobs_running += 1
        done = partial(self._done, replica, job)
        try:
            self._jobs.start(job, done)
        except Exception as error:
            self._outbox.internal_error("starting a flush", error)
            done(None, error, now)

    # --- coming back ---------------------------------------------------------------------------
    def _done(
        self,
        replica: Replica,
        job: FlushJob,
        result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        if replica.flush_running:
            replica.flush_running = False
            replica.jobs_running -= 1
            assert replica.jobs_running >= 0
            self._queue.done(replica)
        if replica.deleted:
            return
        if error is None and replica.log.fault:
            error = StorageFault(replica.log.fault)  # Found before this flush: it proves nothing.
        if error is not None:
            self._failed(replica, job, error, now)
            return
        assert isinstance(result, FlushResult)
        flushed_offset = replica.log.complete_flush(job, result)
        assert flushed_offset >= replica.state.flushed_offset, "what is flushed stays flushed"
        self._metrics.syncs_completed += 1
        moved = replica.state.epoch_saved(replica.log.saved_epoch)
        if replica.state.flushed(flushed_offset) or moved:
            self._wakeups.changed(replica)
        replica.answers.advance(replica.state, now)
        leadership = replica.state.leadership
        if leadership is None or leadership.leaving:
            # Its leader counts what is flushed; a move may wait for the leader's own flush last.
            self._wakeups.grown(replica)
        self._look_again(replica)
        if not result.epochs_saved and replica.fault is None:
            # No room, or no descriptor. No row may come that would have the list saved with it.
            self._due.enter(replica, now.mono_us + UNFLUSHED_MS_MAX * 1000)

    def _look_again(self, replica: Replica) -> None:
        if replica.flush_queued:
            self._queue.put(replica)
        else:
            self.appended(replica)

    def _failed(self, replica: Replica, job: FlushJob, error: BaseException, now: Now) -> None:
        self._metrics.sync_failures += 1
        if not replica.log.fail_flush(job, error):
            # Nothing was tried, so nothing is lost: produces go on waiting.
            self._outbox.log(
                "warning", "flush postponed", partition=str(replica.name), why=str(error)
            )
            replica.flush_queued = False
            replica.flush_wanted = True
            self._queue.drop(replica)
            self._retry[replica] = now.mono_us + _RETRY_US
            return
        # The kernel may have thrown away the pages that it could not write: only recovery from the
        # disk finds what is there.
        self.declare_fault(replica, f"flush failed: {error}", now)

    def declare_fault(self, replica: Replica, why: str, now: Now) -> None:
        if replica.fault is None:
            replica.fault = StorageFault(f"{replica.name} takes no writes: {why}.")
            self._metrics.partitions_with_faults += 1
            self._outbox.log("error", "partition fault", partition=str(replica.name), why=why)
            self._on_fault(replica)
        self._due.drop(replica)
        self._retry.pop(replica, None)
        self._queue.drop(replica)
        # A restart reads back what the disk holds, and other replicas may have the rows.
        unknown = f"{replica.name}: {why}. The rows may be stored."
        replica.answers.fail(OutcomeUnknown(unknown), now)

    def stop(self) -> None:
        """Begin no other flush: closing the logs flushes what is left."""
        assert self.idle, "a flush is under way"
        self._due.clear()
        self._retry.clear()

    def drop(self, replica: Replica) -> None:
        assert replica.deleted
        self._due.drop(replica)
        self._retry.pop(replica, None)
        self._queue.drop(replica)
