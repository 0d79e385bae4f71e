"""When which log is flushed, and what a flush that is back means.

Owns which logs want a flush (flush_queue.py gives the order), the flushes under way, the
acknowledgements that they bring, the faults that they find, and the flush in the background: at a
roll, after 64 MiB and after 30 s a log is flushed whatever its topic's level, so that a start after
a crash has little to scan. Of many logs due_flushes.py begins some before that.

Invariants:
- A log has at most one flush under way, the broker at most `flushes_in_flight_max`; everything that
  is appended meanwhile shares the next one (group commit).
- A log with a fault is never flushed again: a second fsync that succeeds would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from quiverlog.errors import OutcomeUnknown, StorageFault
from quiverlog.limits import UNFLUSHED_MS_MAX
from quiverlog.node.due_flushes import AT_ONCE, DueFlushes
from quiverlog.node.flush_queue import BROKER, FlushQueue
from quiverlog.node.jobs import Jobs
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.outbox import Outbox
from quiverlog.node.replica import Replica
from quiverlog.node.wakeups import Wakeups
from quiverlog.storage.log.jobs import FlushJob, FlushResult
from quiverlog.types import Now

__all__ = ["Flushes"]

_RETRY_US: Final = 1_000_000
"""After a flush that could not even be tried (no descriptor)."""


class Flushes:
    """See the module docstring."""

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
        # Who else is to hear of a replica that takes no writes.
        self._on_fault: Callable[[Replica], None] = lambda replica: None
        # Replicas with rows that the disk may not have, and nobody waits for.
        self._due = DueFlushes()
        # Replicas whose flush could not be tried: when it is tried again.
        self._retry: dict[Replica, int] = {}

    def listen(self, on_fault: Callable[[Replica], None]) -> None:
        """Have somebody else hear of each replica that takes no writes from now on."""
        self._on_fault = on_fault

    @property
    def idle(self) -> bool:
        """True when no flush is under way or wanted at once."""
        return self._queue.idle

    @property
    def waiting(self) -> bool:
        """True when a flush is wanted and may be started now."""
        return self._queue.waiting

    def next_us(self) -> int | None:
        """When the next flush in the background is due: the one whose rows have waited longest."""
        due_us = self._due.next_us()
        if not self._retry:
            return due_us
        retry_us = next(iter(self._retry.values()))
        return retry_us if due_us is None else min(due_us, retry_us)

    # --- asking --------------------------------------------------------------------------------
    def want(self, replica: Replica, asker: int = BROKER) -> None:
        """Flush at the next turn of `asker`, a connection whose produce waits for it."""
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
        """Rows were appended: they are flushed in the background if nobody asks before."""
        if replica.flush_queued or replica.fault is not None:
            return
        assert not replica.deleted
        due_us = replica.log.flush_due_us()
        if due_us == 0:
            self._enqueue(replica)
        elif due_us is not None:
            self._due.enter(replica, due_us)

    def run(self, now: Now) -> None:
        """Want what is due, then start what the bound allows."""
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
                        self._queue.done(taken)  # Or its place would be nobody's for ever.
                    raise

    def _start(self, replica: Replica, now: Now) -> None:
        assert not replica.flush_running
        assert not replica.deleted
        assert replica.fault is None, "a second fsync that succeeds would prove nothing"
        self._due.drop(replica)
        self._retry.pop(replica, None)
        # Nobody waits: there is time to write down how far the next start need not look.
        background, replica.flush_wanted = not replica.flush_wanted, False
        try:
            job = replica.log.begin_flush(background=background)
        except Exception as error:
            self._outbox.internal_error("beginning a flush", error)
            self._queue.done(replica)
            self.declare_fault(replica, f"no flush can be begun: {error}")
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
        """Acknowledge what the flush covers; want the next if rows came meanwhile."""
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
        replica.answers.advance(replica.state)
        if not replica.state.leads:
            self._wakeups.grown(replica)  # Its leader is to know.
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
            # Nothing was tried, so nothing is lost: those who wait go on waiting.
            self._outbox.log(
                "warning", "flush postponed", partition=str(replica.name), why=str(error)
            )
            replica.flush_queued = False
            replica.flush_wanted = True
            self._queue.drop(replica)
            self._retry[replica] = now.mono_us + _RETRY_US
            return
        # The kernel may have thrown away the pages that it could not write. Only recovery from
        # the disk tells what is there.
        self.declare_fault(replica, f"flush failed: {error}")

    def declare_fault(self, replica: Replica, why: str) -> None:
        """Writing to the replica's log failed: see `Replica`. Those who wait are told."""
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
        replica.answers.fail(OutcomeUnknown(unknown))

    def stop(self) -> None:
        """The logs are about to be closed, which flushes what is left: no other flush begins."""
        assert self.idle, "a flush is under way"
        self._due.clear()
        self._retry.clear()

    def forget(self, replica: Replica) -> None:
        """The replica is deleted."""
        assert replica.deleted
        self._due.drop(replica)
        self._retry.pop(replica, None)
        self._queue.drop(replica)
