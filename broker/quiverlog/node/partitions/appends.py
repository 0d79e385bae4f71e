"""Appends before they are in the log.

Rows of clients are admitted in their request, and written once per log by `finish`. No other
request is handled and no decision is applied in between. Rows of this broker's own are admitted at
the end of a call of the node, by `run`: wherever they are added, also where another append ends,
nothing is half done then.

Invariant: when `finish` returns, every append that was begun has called its caller or waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quiverlog.batch.header import BatchHeader, stamp_times
from quiverlog.core.partition.levels import safe_offset
from quiverlog.errors import DiskFull, NotLeader, QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.limits import MIB
from quiverlog.node.partitions.acknowledgements import Append, AppendEntry
from quiverlog.node.partitions.flushing import Flushes
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.runtime.admission import Admission
from quiverlog.node.runtime.events import AT_ONCE_US
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.purgatory import Wakeups
from quiverlog.types import Durability, Now

__all__ = ["ADMITTED_BYTES_MAX", "Appends", "OwnAppend"]

ADMITTED_BYTES_MAX: Final = 1 * MIB
"""Small batches that arrive together are written together, up to this size."""
_REPLICATED_FLUSHED: Final = Durability.REPLICATED_FLUSHED
_FLUSHED: Final = frozenset((int(Durability.FLUSHED), int(Durability.REPLICATED_FLUSHED)))


class OwnAppend(Append):
    """Rows of this broker's own, for which no connection waits."""

    __slots__ = ()

    def admit(self, appends: Appends, now: Now) -> None:
        """Give the rows to `Appends.put`; called once, and `then` after it in any case."""
        raise NotImplementedError


class Appends:
    """Args:
    leading: `Lookup.leading`.
    """

    __slots__ = (
        "_admission", "_appending", "_flushes", "_leading", "_outbox", "_wakeups", "_watched",
        "added", "byte_count", "pending",
    )  # fmt: skip

    def __init__(
        self,
        flushes: Flushes,
        wakeups: Wakeups,
        admission: Admission,
        outbox: Outbox,
        leading: Callable[[bytes, int], Replica],
    ) -> None:
        self._leading = leading
        self._flushes = flushes
        self._wakeups = wakeups
        self._admission = admission
        self._outbox = outbox
        self._appending: dict[Replica, None] = {}
        self._watched: list[tuple[Replica, Callable[[Now], None]]] = []
        self.byte_count = 0
        self.pending: list[Append] = []
        self.added: list[OwnAppend] = []

    # --- rows of this broker's own ---------------------------------------------------------------
    def add(self, append: OwnAppend) -> None:
        """Admit its rows when this call of the node ends, or in the next, which is at once."""
        self.added.append(append)

    def next_us(self) -> int | None:
        return AT_ONCE_US if self.added else None

    def run(self, now: Now) -> None:
        """Append what was added so far; what is added meanwhile waits for its next turn."""
        added, self.added = self.added, []
        for append in added:
            self.begin(append)
            try:
                append.admit(self, now)
            except Exception as bug:
                self.pending.remove(append)
                self._outbox.internal_error("admitting", bug)
                append.fail(bug, now)
        self.finish(now)

    def put(
        self,
        append: OwnAppend,
        replica: Replica,
        leader_epoch: int,
        level: int,
        batches: list[tuple[BatchHeader, memoryview]],
        now: Now,
    ) -> int:
        """Admit batches that need no check, from `OwnAppend.admit`; returns their base offset.

        -1: its entry has the error, as it would be answered to a client that produces. No batches:
        wait until what is in the log is as safe as that.
        """
        entry = AppendEntry(replica, level, 0)
        append.entries.append(entry)
        try:
            if batches:
                self._admission.check_writable()
            else:
                self._admission.check_running()
            if self._leading(replica.topic.topic_id, replica.name.partition) is not replica:
                raise NotLeader(f"{replica.name} was closed here.")
            replica.state.check_leader_epoch(leader_epoch)
            replica.check_fault()
            entry.level = replica.state.required_level(level)
            if batches:
                base_offset = self.admit(replica, batches, now)
            else:
                base_offset = replica.state.log_end_offset + replica.admitted_rows
        except QuiverlogError as error:
            entry.error = error.with_traceback(None)  # It would hold the batches.
            return -1
        entry.end_offset = replica.state.log_end_offset + replica.admitted_rows
        assert entry.end_offset >= base_offset
        return base_offset

    # --- rows of clients -------------------------------------------------------------------------
    def begin(self, append: Append, byte_count: int = 0) -> None:
        """Let `finish` end it, whatever becomes of its entries."""
        self.byte_count += byte_count
        self.pending.append(append)

    def admit(
        self, replica: Replica, batches: list[tuple[BatchHeader, memoryview]], now: Now
    ) -> int:
        """Admit checked batches; returns their base offset, for the entry that the caller adds to
        its append. The views must stay valid until `finish`.
        """
        assert replica.fault is None, "nothing is acknowledged on top of what is lost"
        if replica.topic.config.stamps_arrival:
            assert now.wall_us >= 0, "a batch's time is not negative"
            batches = [(stamp_times(view, one, now.wall_us), view) for one, view in batches]
        base_offset = replica.admit(batches, now)
        self._appending[replica] = None
        return base_offset

    def watch(self, replica: Replica, then: Callable[[Now], None]) -> None:
        """`then` when what was admitted is in the log, though not safe: before anything else is
        admitted, or any append of this `finish` ends. Not where it cannot be stored."""
        assert replica.admitted
        self._watched.append((replica, then))

    def finish(self, now: Now) -> None:
        pending, self.pending = self.pending, []
        self.byte_count = 0
        try:
            errors = self._append(now)
            if self._watched:
                self._call_watchers(errors, now)
        except Exception as bug:
            self._abandon(pending, bug, now)
            return
        assert not self._appending
        for append in pending:
            try:
                self._settle(append, errors, now)
            except Exception as bug:
                append.fail(bug, now)

    def abandon(self, now: Now) -> None:
        """Fail all: `finish` could not be called, and their batches are no longer valid."""
        pending, self.pending = self.pending, []
        self._abandon(pending, RuntimeError("appends were admitted and not finished"), now)

    def _call_watchers(self, errors: dict[Replica, QuiverlogError], now: Now) -> None:
        watched, self._watched = self._watched, []
        for replica, then in watched:
            if replica in errors:
                continue
            try:
                then(now)
            except Exception as bug:  # The rows are stored, whatever becomes of the watcher.
                self._outbox.internal_error("after an append", bug)

    def _abandon(self, pending: list[Append], bug: Exception, now: Now) -> None:
        self._watched.clear()
        appending, self._appending = self._appending, {}
        for replica in appending:
            replica.drop_admitted()
            assert not replica.admitted
        for append in pending:
            append.fail(bug, now)

    def _append(self, now: Now) -> dict[Replica, QuiverlogError]:
        """Append to each log in one write; returns the errors of those that fail."""
        errors: dict[Replica, QuiverlogError] = {}
        appending, self._appending = self._appending, {}
        for replica in appending:
            if not replica.admitted:
                continue
            try:
                if replica.append(now):
                    self._wakeups.changed(replica)
                else:
                    self._wakeups.grown(replica)
                self._flushes.appended(replica)
            except DiskFull as error:
                self._admission.disk_filled()
                errors[replica] = error
            except ThrottledBroker as error:
                errors[replica] = error  # Nothing was tried: the client sends it again.
            except StorageFault as error:
                self._flushes.declare_fault(replica, error.message, now)
                errors[replica] = error
            except Exception as error:
                self._outbox.internal_error("appending", error)
                errors[replica] = QuiverlogError()
        return errors

    def _settle(self, append: Append, errors: dict[Replica, QuiverlogError], now: Now) -> None:
        """Complete it, or queue its entries in the order of their partitions."""
        entries = append.entries[append.queued :] if append.queued else append.entries
        append.queued = len(append.entries)
        waits = append.waiting > 0
        for entry in entries:
            replica: Replica = entry.replica
            assert not replica.admitted, "all that was admitted is appended or refused"
            self._look(entry, errors)
            if entry.end_offset or replica.answers:
                waits = True
        if not waits:
            append.complete(now)
            return
        if not append.waiting:
            append.on_wait(now)
        for entry in entries:
            replica, end_offset = entry.replica, entry.end_offset
            replica.answers.enqueue(entry, append)
            if end_offset and entry.level in _FLUSHED:
                self._flushes.want(replica, append.asker)
                if entry.level == _REPLICATED_FLUSHED and replica.want_copies_flushed(end_offset):
                    self._wakeups.grown(replica)
        for entry in entries:  # What is safe waits for its turn.
            entry.replica.answers.advance(entry.replica.state, now)

    @staticmethod
    def _look(entry: AppendEntry, errors: dict[Replica, QuiverlogError]) -> None:
        """Wait for nothing where the rows are safe already, or will not be."""
        replica: Replica = entry.replica
        end_offset, state = entry.end_offset, replica.state
        assert state.flushed_offset <= state.log_end_offset
        if end_offset > state.log_end_offset:
            entry.error = errors.get(replica) or StorageFault(f"{replica.name}: not stored.")
        elif end_offset > safe_offset(entry.level, state):
            if replica.fault is None:
                return
            entry.error = replica.fault
        entry.end_offset = 0
