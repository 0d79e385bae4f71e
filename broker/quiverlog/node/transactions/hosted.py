"""A led partition of an internal topic with its machine, and the table of them.

    led ─▶ replaying ─▶ rows are replayed, and all safe ─▶ serving ─▶ ended (unled)
             ▲ │ └─ damaged: failed, until another leadership  │
             │ └─ a read failed: again after a pause           │
             └──────── an append of unknown outcome ◀──────────┘

Invariants: what a machine that serves has applied is all that lies in the log below its newest
record, and safe at the level. One append is under way at a time; what is proposed meanwhile shares
the next. A proposal gets exactly one outcome.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from quiverlog.errors import (
    CoordinatorNotReady,
    CorruptLog,
    DiskFull,
    NotLeader,
    OutcomeUnknown,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
    UnknownTopicId,
)
from quiverlog.limits import KIB, MIB
from quiverlog.node.assignment.lookup import Lookup
from quiverlog.node.partitions.appends import Appends, OwnAppend
from quiverlog.node.partitions.replica import Replica
from quiverlog.node.partitions.trimming import Trims
from quiverlog.node.runtime.admission import Admission
from quiverlog.node.runtime.events import AT_ONCE_US
from quiverlog.node.runtime.jobs import Jobs, Urgency
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.transactions.kinds import Kind, Machine, Proposed, bytes_of, encode_rows
from quiverlog.node.transactions.replay import Piece, Replay, ReplayJob
from quiverlog.storage.segment.reading_jobs import LoadIndexJob
from quiverlog.types import Durability, Now

__all__ = ["Hosted", "Hosting"]

PENDING_RECORDS_MAX: Final = 20_000
PENDING_BYTES_MAX: Final = 32 * MIB
PENDING_WAITERS_MAX: Final = 10_000
"""Of one partition: proposals that have no outcome yet."""
APPEND_BYTES_MAX: Final = 4 * MIB
APPEND_RECORDS_MAX: Final = 1_000
"""Of one append, all of which is applied in one turn; a single proposal may have more."""
APPLY_RECORDS: Final = 1_000
"""Replayed in one turn of the loop."""
SNAPSHOT_LOG_BYTES_MIN: Final = 8 * MIB
SNAPSHOT_STATES: Final = 4
"""A snapshot is taken when the log is this many times as large as the state."""
LEISURE_US: Final = 1_000_000
"""Records that no answer waits for are appended with the next that one does, or after this."""
_COUNTED_PER_TURN: Final = 500
"""Records of the state, whose size is not known after a replay."""
_SNAPSHOT_PIECE_RECORDS: Final = 500
_SNAPSHOT_PIECE_BYTES: Final = 256 * KIB
_RETRY_US_MIN: Final = 50_000
_RETRY_US_MAX: Final = 2_000_000
_PASSING: Final = (OSError, StorageFault, MemoryError)
"""Errors of a read that may not be met again; another broker may lead because of them."""
_REFUSED: Final = (DiskFull, ThrottledBroker)
"""Errors of an append of which nothing is stored."""

Key = tuple[bytes, int]


class _Proposal:
    """`seen`: by the machine, which pends and applies its records; a snapshot's are not."""

    __slots__ = ("byte_count", "level", "records", "rows", "seen", "then")

    def __init__(
        self,
        records: Sequence[Any],
        rows: list[tuple[Any, ...]],
        level: int,
        then: Proposed,
        *,
        seen: bool = True,
    ) -> None:
        self.records = records
        self.rows = rows
        self.byte_count = sum(map(bytes_of, rows))
        self.level = level
        self.then = then
        self.seen = seen


class _Group(OwnAppend):
    """Proposals that share an append. `base_offset`: -1 while they are not admitted."""

    __slots__ = ("_hosted", "base_offset", "byte_count", "proposals")

    def __init__(self, hosted: Hosted) -> None:
        super().__init__()
        self._hosted = hosted
        self.proposals: list[_Proposal] = []
        self.base_offset = -1
        self.byte_count = 0

    def may_be_stored(self, error: Exception) -> bool:
        if not isinstance(error, QuiverlogError):
            return True
        return self.base_offset >= 0 and not isinstance(error, _REFUSED)

    def admit(self, appends: Appends, now: Now) -> None:
        self._hosted.admit(self, appends, now)

    def then(self, bug: Exception | None, now: Now) -> None:
        self._hosted.appended(self, bug, now)


class _Barrier(OwnAppend):
    """No rows: it ends when all that is in the log is safe."""

    __slots__ = ("_hosted", "end_offset")

    def __init__(self, hosted: Hosted) -> None:
        super().__init__()
        self._hosted = hosted
        self.end_offset = -1

    def admit(self, appends: Appends, now: Now) -> None:
        self._hosted.admit_barrier(self, appends, now)

    def then(self, bug: Exception | None, now: Now) -> None:
        self._hosted.barrier_passed(self, bug, now)


class _Snapshot:
    """`begin_offset`: of BEGIN, -1 before it is safe. `bytes_before`: of the log before it."""

    __slots__ = ("begin_offset", "byte_count", "bytes_before", "records")

    def __init__(self, records: Iterator[Any]) -> None:
        self.records = records
        self.begin_offset = -1
        self.byte_count = self.bytes_before = 0


class _State(enum.Enum):
    REPLAYING = "replaying"
    RESTING = "resting"
    SERVING = "serving"
    FAILED = "failed"
    ENDED = "ended"


class Hosted:
    """One leadership of one partition. `life`: counts machines; what belongs to an earlier one is
    ignored when it comes back."""

    __slots__ = (
        "_append_us", "_barrier", "_barrier_us", "_ended", "_failure", "_group", "_is_counted",
        "_job", "_life", "_log_bytes", "_machine", "_parts", "_pause_us", "_pending_bytes",
        "_pending_records", "_pending_waiters", "_queue", "_replay", "_replayed", "_safe_to",
        "_snapshot", "_state", "_state_bytes", "_unapplied", "_uncounted", "_why", "kind",
        "leader_epoch", "replica",
    )  # fmt: skip

    def __init__(self, parts: Hosting, kind: Kind, replica: Replica) -> None:
        assert replica.state.leads
        self._parts = parts
        self.kind = kind
        self.replica = replica
        self.leader_epoch = replica.state.leader_epoch
        self._state = _State.RESTING
        self._why = "its rows are being read"
        self._failure: QuiverlogError | None = None
        self._ended: QuiverlogError | None = None
        self._life = 0
        self._machine: Machine | None = None
        # Replaying.
        self._replay: Replay | None = None
        self._replayed = 0
        self._job: ReplayJob | LoadIndexJob | None = None
        self._unapplied: deque[tuple[int, Any]] = deque()
        self._barrier: _Barrier | None = None
        self._barrier_us = AT_ONCE_US
        self._safe_to = -1
        self._pause_us = _RETRY_US_MIN
        # Serving.
        self._queue: deque[_Proposal] = deque()
        # When what is queued is appended at the latest.
        self._append_us = AT_ONCE_US
        self._group: _Group | None = None
        self._pending_records = self._pending_bytes = self._pending_waiters = 0
        self._snapshot: _Snapshot | None = None
        # Of the state: when the last snapshot was taken, or, after a replay, when it is counted.
        self._log_bytes = self._state_bytes = 0
        self._is_counted = False
        self._uncounted: Iterator[Any] | None = None

    @property
    def is_serving(self) -> bool:
        return self._state is _State.SERVING

    @property
    def why_failed(self) -> str:
        """Why it is not served before another leadership; empty: it is, or will be."""
        return self._why if self._state is _State.FAILED else ""

    @property
    def machine(self) -> Machine:
        assert self._machine is not None
        return self._machine

    # --- asking --------------------------------------------------------------------------------
    def serve(self, *, under_lease: bool = False) -> Machine:
        """Return the machine.

        Raises CoordinatorNotReady: not now; CorruptLog, UnsupportedFormat: its rows cannot be used;
        NotLeader: another broker leads, or (`under_lease`) may; UnknownTopicId, BrokerShuttingDown.
        """
        replica = self.replica
        if under_lease:
            self._parts.lookup.leader_for_offsets(replica.topic.topic_id, replica.name.partition)
        if self._ended is not None:
            raise type(self._ended)(self._ended.message)
        if self._failure is not None:
            # Not "try again": the same rows are read by the next leader, too.
            failure = type(self._failure)(f"{replica.name} is not served: {self._why}")
            raise self._parts.lookup.unreadable_here(replica, failure)
        if self._state is not _State.SERVING:
            raise CoordinatorNotReady(f"{replica.name}: {self._why}.")
        return self.machine

    def propose(
        self,
        records: Sequence[Any],
        now: Now,
        then: Proposed,
        level: int | None = None,
        *,
        at_leisure: bool = False,
    ) -> None:
        """Pend the records at once and append them together; `then` when they are safe and applied.

        Without records: `then` when all that is pended now is safe, at once where nothing is.
        `at_leisure`: append them with the next ones, or after LEISURE_US.

        Raises, and nothing is pended: as `serve`; ThrottledBroker: too much is pending; what a
        produce gets that cannot be stored now. `then` gets one of these where nothing was stored,
        and OutcomeUnknown where it may have been.
        """
        machine = self.serve()
        rows = [self.kind.row(record) for record in records]
        proposal = _Proposal(records, rows, self.kind.level if level is None else level, then)
        if not records and self._group is None and not self._queue:
            then(-1, None, now)
            return
        self._check_room(proposal)
        if records:
            self._check_writable(proposal.level)
        try:
            for record in records:
                machine.pend(record)
        except Exception as bug:
            self._restart(bug, [], now)
            raise QuiverlogError from bug
        self._enqueue(proposal, now, now.mono_us + LEISURE_US if at_leisure else AT_ONCE_US)

    def _check_room(self, proposal: _Proposal) -> None:
        if (
            self._pending_records + len(proposal.records) > PENDING_RECORDS_MAX
            or self._pending_bytes + proposal.byte_count > PENDING_BYTES_MAX
            or self._pending_waiters >= PENDING_WAITERS_MAX
        ):
            raise ThrottledBroker(f"{self.replica.name}: too much waits to be recorded: try again.")

    def _check_writable(self, level: int) -> None:
        replica, parts = self.replica, self._parts
        parts.admission.check_writable()
        parts.lookup.leading(replica.topic.topic_id, replica.name.partition)
        replica.check_fault()
        replica.state.required_level(self._level(level))

    def _level(self, level: int) -> int:
        state = self.replica.state
        leadership = state.leadership
        if leadership is None or not leadership.is_replicated:
            level = Durability.FLUSHED
        return max(int(level), int(state.durability))

    def _enqueue(self, proposal: _Proposal, now: Now, append_us: int = AT_ONCE_US) -> None:
        assert self._state is _State.SERVING, "only a machine that serves has pended it"
        assert proposal.records or self._group or self._queue, "it waits for something"
        self._pending_records += len(proposal.records)
        self._pending_bytes += proposal.byte_count
        self._pending_waiters += 1
        if not proposal.records and not self._queue and self._group is not None:
            self._group.proposals.append(proposal)  # It waits for what is under way.
            return
        self._append_us = min(append_us, self._append_us) if self._queue else append_us
        self._queue.append(proposal)
        self._append_next(now)

    # --- appending -----------------------------------------------------------------------------
    def _append_next(self, now: Now) -> None:
        if self._queue and self._group is None:
            if self._append_us > now.mono_us:
                self._parts.step_at(self, self._append_us)
            else:
                self._group = _Group(self)
                self._parts.appends.add(self._group)

    def admit(self, group: _Group, appends: Appends, now: Now) -> None:
        """Take what was proposed by now."""
        if group is not self._group:
            return
        assert self._state is _State.SERVING
        assert self._queue, "an append has what was proposed"
        assert not group.proposals, "it is admitted once"
        queue, byte_count, level = self._queue, 0, int(Durability.MEMORY)
        rows: list[tuple[Any, ...]] = []
        while queue:
            more = queue[0]
            if rows and (
                byte_count + more.byte_count > APPEND_BYTES_MAX
                or len(rows) + len(more.rows) > APPEND_RECORDS_MAX
            ):
                break
            group.proposals.append(queue.popleft())
            rows += more.rows
            byte_count += more.byte_count
            level = max(level, more.level)
        replica = self.replica
        batches = encode_rows(self.kind.schema, replica.topic.schema_id, rows, now)
        group.byte_count = sum(len(view) for _, view in batches)
        group.base_offset = appends.put(
            group, replica, self.leader_epoch, self._level(level), batches, now
        )

    def appended(self, group: _Group, bug: Exception | None, now: Now) -> None:
        if group is not self._group:
            return  # All its proposals have their outcomes.
        self._group = None
        proposals, group.proposals = group.proposals, []
        error = bug or next((entry.error for entry in group.entries if entry.error), None)
        if error is None:
            self._safe(group, proposals, now)
        elif group.may_be_stored(error):
            self._restart(error, proposals, now)
        else:
            assert isinstance(error, QuiverlogError)
            self._refuse(proposals, error, now)

    def _safe(self, group: _Group, proposals: list[_Proposal], now: Now) -> None:
        life, offset = self._life, group.base_offset
        assert offset >= 0, "what is safe was admitted"
        assert offset + sum(len(one.rows) for one in proposals) <= self.replica.state.log_end_offset
        try:
            for proposal in proposals:
                for record in proposal.records if proposal.seen else ():
                    self.machine.apply(offset, record)
                    offset += 1
                offset += 0 if proposal.seen else len(proposal.records)
        except Exception as bug:
            self._restart(bug, proposals, now)
            return
        self._log_bytes += group.byte_count
        self._append_next(now)
        offset = group.base_offset
        for proposal in proposals:
            self._end(proposal, offset if proposal.records else -1, None, now)
            offset += len(proposal.records)
        if life == self._life:
            self._look_at_snapshot(now)

    def _refuse(self, proposals: list[_Proposal], error: QuiverlogError, now: Now) -> None:
        """Nothing was stored; what was pended behind rests on it."""
        self.machine.drop_pending()
        self._fail_all(proposals, error, error, now)

    def _fail_all(
        self,
        proposals: list[_Proposal],
        error: QuiverlogError,
        error_of_queue: QuiverlogError,
        now: Now,
    ) -> None:
        queue, self._queue = self._queue, deque()
        self._snapshot = None
        for proposal in proposals:
            self._end(proposal, -1, error, now)
        for proposal in queue:
            self._end(proposal, -1, error_of_queue, now)

    def _end(
        self, proposal: _Proposal, offset: int, error: QuiverlogError | None, now: Now
    ) -> None:
        self._pending_records -= len(proposal.records)
        self._pending_bytes -= proposal.byte_count
        self._pending_waiters -= 1
        assert self._pending_waiters >= 0
        assert self._pending_records >= 0
        assert self._pending_bytes >= 0
        try:
            proposal.then(offset, error, now)
        except Exception as bug:
            self._parts.outbox.internal_error(f"after a record of {self.replica.name}", bug)

    # --- ending --------------------------------------------------------------------------------
    def _restart(self, error: Exception, proposals: list[_Proposal], now: Now) -> None:
        """Throw the machine away, and begin again by a replay."""
        if not isinstance(error, QuiverlogError):
            self._parts.outbox.internal_error(f"recording in {self.replica.name}", error)
            error = QuiverlogError()
        unknown = OutcomeUnknown(f"{self.replica.name}: {error.message}")
        self._why = "its rows are being read again"
        self._leave(_State.RESTING, proposals, unknown, unknown, now)
        self._parts.step_at(self, AT_ONCE_US)

    def end(self, error: QuiverlogError, now: Now) -> None:
        """This broker leads it no longer, or stops."""
        unknown = error if isinstance(error, UnknownTopicId) else OutcomeUnknown(error.message)
        self._ended = error
        self._leave(_State.ENDED, [], unknown, error, now)

    def _leave(
        self,
        state: _State,
        proposals: list[_Proposal],
        error: QuiverlogError,
        error_of_queue: QuiverlogError,
        now: Now,
    ) -> None:
        assert self._state is not _State.ENDED, "a leadership ends once"
        was_serving = self._state is _State.SERVING
        self._state = state
        self._life += 1
        group, self._group, self._barrier = self._group, None, None
        if group is not None:
            proposals = [*proposals, *group.proposals]
            group.proposals = []
        self._replay = None
        self._unapplied.clear()
        self._fail_all(proposals, error, error_of_queue, now)
        if was_serving:
            try:
                self.kind.stopped(self, error, now)
            except Exception as bug:
                self._parts.outbox.internal_error(f"after serving {self.replica.name}", bug)
        self._machine = None

    def _fail(self, error: BaseException, now: Now) -> None:
        """Serve no more in this leadership: another replay would meet the same."""
        name, self._why = self.replica.name, "its rows cannot be used; see the log of the broker"
        if isinstance(error, QuiverlogError):
            self._failure, self._why = error.with_traceback(None), error.message
        else:
            self._parts.outbox.internal_error(f"reading {name}", error)
        if isinstance(error, CorruptLog):
            self._parts.lookup.corrupt_read(self.replica, error)
        self._parts.outbox.log(
            "error",
            "internal partition cannot be served",
            partition=str(name),
            why=self._why,
            advice="docs/operating.md, Internal partitions that are not served",
        )
        unknown = OutcomeUnknown(f"{name}: {self._why}")
        self._leave(_State.FAILED, [], unknown, unknown, now)

    # --- replaying -----------------------------------------------------------------------------
    def step(self, now: Now) -> None:
        if self._state is _State.RESTING:
            self._begin(now)
        elif self._state is _State.REPLAYING:
            self._go_on(now)
        elif self._state is _State.SERVING:
            self._append_next(now)

    def _begin(self, now: Now) -> None:
        assert self._group is None, "appends of an earlier life are ignored"
        assert not self._queue
        assert not self._pending_waiters, "each proposal of an earlier life has its outcome"
        replica = self.replica
        self._life += 1
        self._state = _State.REPLAYING
        self._unapplied.clear()  # Of a machine that is thrown away.
        try:
            self._machine = self.kind.new_machine(replica, self.leader_epoch)
        except Exception as bug:
            self._fail(bug, now)
            return
        self._replay = Replay(replica, self.kind)
        self._replayed = 0
        self._safe_to = -1
        self._barrier_us = AT_ONCE_US
        self._begin_barrier()  # Beside the reading: it may wait for a flush.
        self._go_on(now)

    def _go_on(self, now: Now) -> None:
        replay = self._replay
        assert replay is not None
        if self._job is None and replay.is_trimmed:
            self._begin(now)
            return
        try:
            self._read_next(replay, now)
            self._apply_some()
        except Exception as error:
            self._fail(error, now)
            return
        if self._unapplied:
            self._parts.step_at(self, AT_ONCE_US)
        elif self._job is None:
            if replay.is_done and not replay.extend():
                self._look_at_barrier(replay, now)
            else:
                self._parts.step_at(self, AT_ONCE_US)

    def _read_next(self, replay: Replay, now: Now) -> None:
        # One piece ahead: it is read while the last one is applied.
        if self._job is not None or replay.is_done or len(self._unapplied) > APPLY_RECORDS:
            return
        self._job = job = replay.next_job()
        self.replica.jobs_running += 1
        self._parts.jobs.start(job, partial(self._read, self._life, job), Urgency.CHECK)

    def _apply_some(self) -> None:
        unapplied, apply = self._unapplied, self.machine.apply
        for _ in range(min(APPLY_RECORDS, len(unapplied))):
            apply(*unapplied.popleft())
            self._replayed += 1

    def _read(
        self,
        life: int,
        job: ReplayJob | LoadIndexJob,
        result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        if self._job is not job:
            return  # It raised, and is called with that.
        self._job = None
        replica = self.replica
        replica.jobs_running -= 1
        assert replica.jobs_running >= 0
        if job.segment.dropped:
            job.segment.file.close()  # The job may have opened it again: that would keep its room.
        if life != self._life or self._state is not _State.REPLAYING:
            if self._state is _State.REPLAYING:
                self._go_on(now)  # The job of an earlier life kept this one from reading.
            return
        assert self._replay is not None
        if error is not None:
            if job.segment.dropped or isinstance(error, _PASSING):
                self._read_failed(job, error, now)
            else:
                self._fail(error, now)
        else:
            if isinstance(result, Piece):
                self._replay.passed(result)
                if result.records and self._unapplied:
                    assert self._unapplied[-1][0] < result.records[0][0], "in the order of the log"
                self._unapplied.extend(result.records)
            else:
                assert isinstance(job, LoadIndexJob)
                replica.log.reader.complete_read(job, result)
            self._go_on(now)

    def _read_failed(self, job: ReplayJob | LoadIndexJob, error: BaseException, now: Now) -> None:
        """Begin again; after a pause, unless its file was removed by a trim."""
        due_us = AT_ONCE_US
        if not job.segment.dropped:
            due_us = now.mono_us + self._pause()
            name = str(self.replica.name)
            self._parts.outbox.log(
                "warning", "internal partition not read", partition=name, why=str(error)
            )
            self._parts.lookup.unreadable(self.replica, error)
        self._state = _State.RESTING
        self._barrier = None  # Else it would end the pause when it passes.
        self._parts.step_at(self, due_us)

    def _pause(self) -> int:
        pause_us = self._pause_us
        self._pause_us = min(2 * pause_us, _RETRY_US_MAX)
        return pause_us

    # --- what is replayed must be safe -----------------------------------------------------------
    def _begin_barrier(self) -> None:
        self._barrier = _Barrier(self)
        self._parts.appends.add(self._barrier)

    def admit_barrier(self, barrier: _Barrier, appends: Appends, now: Now) -> None:
        if barrier is self._barrier:
            assert barrier.end_offset < 0, "it is admitted once"
            # Whatever the rows' own level: the machine goes on with what it finds. Had a power
            # failure of all brokers taken a publish row afterwards, it would get a second number.
            replica, level = self.replica, self._level(Durability.REPLICATED_FLUSHED)
            barrier.end_offset = appends.put(barrier, replica, self.leader_epoch, level, [], now)

    def barrier_passed(self, barrier: _Barrier, bug: Exception | None, now: Now) -> None:
        if barrier is not self._barrier:
            return
        assert self._state is _State.REPLAYING, "a life that ended waits for none"
        self._barrier = None
        error = bug or next((entry.error for entry in barrier.entries if entry.error), None)
        if error is None:
            self._safe_to = barrier.end_offset
        else:
            self._barrier_us = now.mono_us + self._pause()
        self._parts.step_at(self, self._barrier_us)

    def _look_at_barrier(self, replay: Replay, now: Now) -> None:
        """Serve when all that was replayed is safe: an earlier leader, or this one, may have
        answered by what only a replica has that leads next."""
        if self._barrier is not None:
            return
        if now.mono_us < self._barrier_us:
            self._parts.step_at(self, self._barrier_us)
        elif self._safe_to < replay.end_offset:
            self._begin_barrier()
        else:
            assert self.replica.state.is_current, "what is safe lies below the high watermark"
            self._begin_serving(replay, now)

    def _begin_serving(self, replay: Replay, now: Now) -> None:
        assert replay.is_done
        assert self._job is None
        assert not self._unapplied, "all that was read is applied"
        assert self._snapshot is None, "a snapshot is of one life"
        self._state = _State.SERVING
        self._pause_us = _RETRY_US_MIN
        self._log_bytes, self._state_bytes = replay.byte_count, 0
        self._is_counted, self._uncounted = False, None
        self._replay = None
        self._parts.outbox.log(
            "info",
            "internal partition served",
            partition=str(self.replica.name),
            leader_epoch=self.leader_epoch,
            records=self._replayed,
            bytes=replay.byte_count,
        )
        try:
            self.kind.serving(self, now)
        except Exception as bug:
            self._fail(bug, now)

    # --- snapshots -----------------------------------------------------------------------------
    def _look_at_snapshot(self, now: Now) -> None:
        if not self.kind.takes_snapshots or self._snapshot is not None:
            return
        if self._log_bytes <= SNAPSHOT_LOG_BYTES_MIN:
            return
        try:
            # Else each leadership would write the whole state, however little was added to it.
            if not self._is_counted and not self._count_state():
                return
            if self._log_bytes <= SNAPSHOT_STATES * self._state_bytes:
                return
            self._snapshot = snapshot = _Snapshot(self.kind.capture(self.machine))
            self._snapshot_piece(snapshot, now)
        except Exception as bug:
            self._snapshot = self._uncounted = None
            # Not with each append again.
            self._state_bytes, self._is_counted = self._log_bytes, True
            self._parts.outbox.internal_error(f"a snapshot of {self.replica.name}", bug)

    def _count_state(self) -> bool:
        """Count some more of it; return whether all is counted."""
        if self._uncounted is None:
            self._uncounted = self.kind.capture(self.machine)
        some = list(islice(self._uncounted, _COUNTED_PER_TURN))
        self._state_bytes += sum(bytes_of(self.kind.row(record)) for record in some)
        self._is_counted = len(some) < _COUNTED_PER_TURN
        if self._is_counted:
            self._uncounted = None
        return self._is_counted

    def _snapshot_piece(self, snapshot: _Snapshot, now: Now) -> None:
        records, rows, byte_count = [], [], 0
        for record in snapshot.records:
            records.append(record)
            rows.append(self.kind.row(record))
            byte_count += bytes_of(rows[-1])
            if len(records) >= _SNAPSHOT_PIECE_RECORDS or byte_count >= _SNAPSHOT_PIECE_BYTES:
                break
        if not records:
            self._snapshot_whole(snapshot, now)
            return
        then = partial(self._snapshot_safe, snapshot, byte_count)
        self._enqueue(_Proposal(records, rows, self.kind.level, then, seen=False), now)

    def _snapshot_safe(
        self,
        snapshot: _Snapshot,
        byte_count: int,
        offset: int,
        error: QuiverlogError | None,
        now: Now,
    ) -> None:
        if snapshot is not self._snapshot or error is not None:
            return
        if snapshot.begin_offset < 0:
            snapshot.begin_offset = offset
            snapshot.bytes_before = self._log_bytes - byte_count
        assert offset >= snapshot.begin_offset, "BEGIN is first"
        snapshot.byte_count += byte_count
        self._snapshot_piece(snapshot, now)

    def _snapshot_whole(self, snapshot: _Snapshot, now: Now) -> None:
        """Give up the rows before it."""
        assert snapshot.begin_offset >= 0, "a snapshot has BEGIN and END"
        self._snapshot = None
        self._state_bytes = snapshot.byte_count
        self._log_bytes = max(0, self._log_bytes - snapshot.bytes_before)
        # Promised: a start that is not on the disk would have the next replay read all again.
        self._parts.trims.trim(
            self.replica, snapshot.begin_offset, now, self._trimmed, promised=True
        )

    def _trimmed(self, _files: object, error: BaseException | None, _now: Now) -> None:
        if error is not None:
            name = str(self.replica.name)
            self._parts.outbox.log(
                "warning", "internal partition not trimmed", partition=name, why=str(error)
            )


class Hosting:
    """The partitions of internal topics that this broker leads.

    kinds: by the topic's name.
    """

    __slots__ = (
        "_due", "_hosted", "admission", "appends", "jobs", "kinds", "lookup", "outbox",
        "trims",
    )  # fmt: skip

    def __init__(
        self,
        appends: Appends,
        jobs: Jobs,
        lookup: Lookup,
        trims: Trims,
        admission: Admission,
        outbox: Outbox,
    ) -> None:
        self.appends = appends
        self.jobs = jobs
        self.lookup = lookup
        self.trims = trims
        self.admission = admission
        self.outbox = outbox
        self.kinds: dict[str, Kind] = {}
        self._hosted: dict[Key, Hosted] = {}
        self._due: dict[Hosted, int] = {}

    def find(self, topic_id: bytes, partition: int) -> Hosted:
        """Raises CoordinatorNotReady, and as `Lookup.replica`."""
        hosted = self._hosted.get((topic_id, partition))
        if hosted is None:
            replica = self.lookup.replica(topic_id, partition)
            raise CoordinatorNotReady(f"{replica.name}: it is not served here.")
        return hosted

    def failed(self) -> list[Hosted]:
        """Return those that are not served before another leadership."""
        return [one for one in self._hosted.values() if one.why_failed]

    # --- leaderships ---------------------------------------------------------------------------
    def led(self, replica: Replica, now: Now) -> None:
        kind = self.kinds.get(replica.topic.name)
        if kind is None:
            return
        key = (replica.topic.topic_id, replica.name.partition)
        assert key not in self._hosted, "the leadership before has ended"
        self._hosted[key] = hosted = Hosted(self, kind, replica)
        self.step_at(hosted, AT_ONCE_US)

    def unled(self, key: Key, now: Now) -> None:
        hosted = self._hosted.pop(key, None)
        if hosted is not None:
            self._due.pop(hosted, None)
            hosted.end(self._why_unled(hosted, key), now)

    def removed(self, key: Key, now: Now) -> None:
        assert key not in self._hosted, "nothing is kept of what is not led"

    def _why_unled(self, hosted: Hosted, key: Key) -> QuiverlogError:
        try:
            self.admission.check_running()
            self.lookup.replica(*key)
        except QuiverlogError as error:
            return error.with_traceback(None)
        return NotLeader(f"{hosted.replica.name}: another leader epoch has begun.")

    # --- turns ---------------------------------------------------------------------------------
    def step_at(self, hosted: Hosted, at_us: int) -> None:
        self._due[hosted] = min(at_us, self._due.get(hosted, at_us))

    def next_us(self) -> int | None:
        return min(self._due.values()) if self._due else None

    def run(self, now: Now) -> None:
        for hosted, due_us in list(self._due.items()):
            if due_us <= now.mono_us and self._due.pop(hosted, None) is not None:
                try:
                    hosted.step(now)
                except Exception as bug:  # The others' turns do not wait for it.
                    self.outbox.internal_error(f"a turn of {hosted.replica.name}", bug)
