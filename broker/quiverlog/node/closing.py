"""Stopping: to a directory that the next start trusts without a scan.

    RUNNING ──Shutdown──▶ CLOSING: draining ──▶ logs ──▶ mark ──▶ CLOSED

Draining: no new requests of clients, long polls answered, all flushed, every job back. A log with a
fault, one that is offline, or one whose rows cannot be flushed costs the mark: the next start
scans. Files that only shorten a start (indexes, recovery points) do not.
"""

from __future__ import annotations

import contextlib
import enum
from functools import partial
from typing import ClassVar, Final

from quiverlog.errors import BrokerShuttingDown, QuiverlogError, RequestTimedOut
from quiverlog.node.broker import Broker
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.admission import Phase
from quiverlog.node.runtime.effects import ShutdownComplete
from quiverlog.storage.directory.data_directory import ClockNote, DataDirectory
from quiverlog.storage.log.checkpoint import Bounds
from quiverlog.types import Now
from quiverlog.wire.messages import Api

__all__ = ["CloseLogJob", "Closing", "MarkCleanJob"]


class CloseLogJob:
    """Flush the rest, and write what lets the next start skip the scan."""

    __slots__ = ("_clean", "_log", "key")

    kind: ClassVar[str] = "close log"

    def __init__(self, replica: Replica) -> None:
        self.key = replica.log.directory
        self._log = replica.log
        self._log.release_indexes()  # Here on the loop: the cache is shared by all logs.
        self._clean = replica.fault is None and not replica.log.fault

    def run(self) -> bool:
        """Close the log; True: cleanly. The files are released under any error."""
        self._log.close(clean=self._clean)
        return self._clean


class MarkCleanJob:
    """Release the data directory; `clean`: with the mark."""

    __slots__ = (
        "_clean",
        "_clock_note",
        "_directory",
        "_metadata_bytes",
        "_written",
        "key",
        "kind",
    )

    def __init__(
        self,
        directory: DataDirectory,
        *,
        clean: bool,
        clock_note: ClockNote | None,
        metadata_bytes: int,
        written: dict[str, Bounds],
    ) -> None:
        self.key = directory.data.path
        self.kind = "clean mark"
        self._directory = directory
        self._clean = clean
        self._clock_note = clock_note
        self._metadata_bytes = metadata_bytes
        self._written = written

    def run(self) -> None:
        """Raises OSError or QuiverlogError: the directory is released without the mark."""
        if self._clock_note is not None:
            with contextlib.suppress(OSError, QuiverlogError):  # The note before it counts.
                self._directory.note_clock(self._clock_note)
        self._directory.close(
            clean=self._clean, metadata_bytes=self._metadata_bytes, written=self._written
        )


class _Step(enum.Enum):
    SERVING = "serving"
    DRAINING = "draining"
    CLOSING_LOGS = "closing logs"
    MARKING = "marking"
    DONE = "done"


_AFTER: Final = {
    _Step.SERVING: _Step.DRAINING,
    _Step.DRAINING: _Step.CLOSING_LOGS,
    _Step.CLOSING_LOGS: _Step.MARKING,
    _Step.MARKING: _Step.DONE,
}


class Closing:
    __slots__ = ("_broker", "_clean", "_clock_note", "_is_untouched", "_open", "_step")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._step = _Step.SERVING
        self._clean = True
        self._is_untouched = False  # No log was opened: the last stop's bounds are still true.
        self._clock_note: ClockNote | None = None  # None: the clock is not trusted yet.
        self._open: dict[Replica, None] = {}

    def _go_on(self, step: _Step) -> None:
        assert _AFTER.get(self._step) is step, f"{step} does not follow {self._step}"
        self._step = step

    def begin(self, now: Now) -> None:
        broker = self._broker
        if broker.admission.phase not in (Phase.RUNNING, Phase.STARTING, Phase.JOINING):
            return  # Already stopping.
        self._is_untouched = broker.admission.phase is Phase.JOINING
        self._clean = (broker.directory.clean and self._is_untouched) or (
            broker.admission.phase is Phase.RUNNING
            and not broker.assignment.offline
            and not broker.metadata.has_unsaved_start_records
        )
        if broker.admission.phase is Phase.RUNNING:
            self._clock_note = broker.clock.last_note(now)
        broker.admission.enter(Phase.CLOSING)
        broker.assignment.stop(now)
        broker.retention.stop()
        broker.removal.stop()
        broker.membership.stop(now)
        broker.peers.stop(now)
        broker.copied_starts.stop(now)
        # While the loop still runs: the next leader needs no election timeout.
        broker.quorum.hand_over(now)
        self._go_on(_Step.DRAINING)
        broker.outbox.log("info", "stopping", partitions=len(broker.replicas))
        broker.tasks.refuse(BrokerShuttingDown())
        for waiter in broker.purgatory.all_live():
            if waiter.api is not Api.PRODUCE:
                try:
                    waiter.expire(now)
                except Exception as error:
                    broker.purgatory.fail(waiter, "answering at the end", error)
        for replica in broker.replicas.values():
            if replica.state.flushed_offset < replica.state.log_end_offset:
                broker.flushes.want(replica)

    def run(self, now: Now) -> None:
        broker = self._broker
        if self._step is not _Step.DRAINING:
            return
        if not broker.flushes.idle or broker.tasks.live or broker.jobs.unfinished:
            return
        broker.quorum.stop(now)
        assert not broker.appends.pending, "rows are admitted after the stop"
        assert broker.admission.phase is Phase.CLOSING
        self._go_on(_Step.CLOSING_LOGS)
        broker.flushes.stop()
        broker.removal.close()
        self._open = dict.fromkeys(broker.assignment.all_open())  # In an order that repeats.
        for replica in list(self._open):
            if replica.fault is None and replica.log.is_as_left:
                # With thousands of idle logs, the way to a thread and back takes longest.
                replica.log.close(clean=True)
                self._log_closed(replica, True, None, now)
            else:
                broker.jobs.start(CloseLogJob(replica), partial(self._log_closed, replica))
        if not self._open:
            self._mark()

    def _log_closed(
        self, replica: Replica, result: object, error: BaseException | None, now: Now
    ) -> None:
        self._open.pop(replica, None)
        assert not replica.flush_running, "every flush is back before a log is closed"
        if error is not None:
            self._clean = False
            self._broker.outbox.log(
                "error", "log not closed", partition=str(replica.name), why=str(error)
            )
        elif result is not True:
            self._clean = False
        self._answer_rest(replica, now)
        if not self._open:
            self._mark()

    @staticmethod
    def _answer_rest(replica: Replica, now: Now) -> None:
        replica.state.flushed(replica.log.flushed_offset)
        replica.answers.advance(replica.state, now)
        why = "the broker stopped before the rows were flushed; the outcome is unknown."
        replica.answers.fail(RequestTimedOut(why), now)
        assert not replica.answers.unflushed

    def _mark(self) -> None:
        if self._step is not _Step.CLOSING_LOGS:
            return
        assert not self._open, "the mark would vouch for a log that is not closed"
        self._go_on(_Step.MARKING)
        broker = self._broker
        metadata_bytes = broker.metadata.log.size_bytes
        broker.metadata.log.close()
        assert broker.metadata.idle, "a decision would be logged after the mark"
        every = broker.assignment.all_open()
        # What each log held: the next start distinguishes a lost directory from one never created.
        written: dict[str, Bounds] = dict(broker.directory.written)
        if not self._is_untouched:
            written = {
                str(one.name): Bounds(one.log.log_start_offset, one.log.log_end_offset)
                for one in every
                if one.log.log_end_offset > 0
            }
        job = MarkCleanJob(
            broker.directory,
            clean=self._clean,
            clock_note=self._clock_note,
            metadata_bytes=metadata_bytes,
            written=written,
        )
        broker.jobs.start(job, self._marked)

    def _marked(self, _result: object, error: BaseException | None, _now: Now) -> None:
        if self._step is _Step.DONE:
            return
        self._go_on(_Step.DONE)
        if error is not None:
            # Nothing is lost: the next start scans, as after a crash.
            self._clean = False
            self._broker.outbox.log("error", "clean mark not written", why=str(error))
        self._broker.admission.enter(Phase.CLOSED)
        self._broker.outbox.log("info", "stopped", clean=self._clean)
        self._broker.outbox.emit(ShutdownComplete(self._clean))
