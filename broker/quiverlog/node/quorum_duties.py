"""What a host does for its Raft: messages out, writes, applied entries, snapshots.

Owns the jobs of a replica of the metadata log, its timer, and what is told to the state machine. It
is one machine with `quorum`, whose docstring draws it: here is what the Raft asks for, there what
others ask.

Must not know: what entries mean, how messages travel, who asks for what.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from quiverlog.core.raft.election import Role
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import (
    Entry,
    Message,
    RaftConfig,
    RandomSource,
    ReplicaKey,
    Voters,
)
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.raft import Raft, Ready
from quiverlog.core.raft.snapshots import SnapshotRead
from quiverlog.errors import NotController, QuiverlogError, StorageFault
from quiverlog.node.decision import outcome_unknown, why
from quiverlog.node.forgotten import tell_forgotten
from quiverlog.node.jobs import Then, Urgency
from quiverlog.node.quorum_parts import Runner, StateMachine, traceback_of
from quiverlog.storage.metadata.quorum_jobs import Chunk, Snapshot, SnapshotJob, WriteJob, Written
from quiverlog.storage.metadata.quorum_log import QuorumLog
from quiverlog.types import Now

__all__ = ["NEVER", "Duties"]

NEVER: Final = 1 << 62
_RETRY_US: Final = 1_000_000
_KEPT_ENTRIES: Final = 1_000
"""So many entries that a snapshot stands for stay where there are followers: one that was away for
a moment needs these, and not the whole snapshot."""


class Duties:
    """See the module docstring.

    Args:
        runner: runs jobs.
        report: writes a line of the log: level, event, reason.
        send: hands messages to the network, which may lose them.
        voters_changed: is told of the voters, at the start and whenever they are others.
        seeds: node ids to ask for the log while it names no voters.
    """

    __slots__ = ("_alone_from", "_change", "_config", "_error", "_is_stopped", "_machine",
                 "_pumping", "_random", "_report", "_restored", "_retry_us", "_runner", "_seeds",
                 "_send", "_snapshotting", "_starting", "_told_forgotten", "_told_term",
                 "_told_voters", "_voters_changed",
                 "_writing", "applied_index", "log", "next_us", "raft")  # fmt: skip

    _machine: StateMachine
    raft: Raft

    def __init__(
        self,
        runner: Runner,
        random: RandomSource,
        report: Callable[[str, str, str], None],
        *,
        send: Callable[[Sequence[Message], Now], None] = lambda _messages, _now: None,
        voters_changed: Callable[[Voters], None] = lambda _voters: None,
        config: RaftConfig | None = None,
        seeds: tuple[int, ...] = (),
    ) -> None:
        self._runner = runner
        self._random = random
        self._report = report
        self._send = send
        self._voters_changed = voters_changed
        self._told_forgotten: frozenset[ReplicaKey] = frozenset()
        self._told_voters: Voters | None = None
        self._alone_from = 0  # What others have decided ends there, where none of them votes now.
        self._config = config or RaftConfig()
        self._seeds = seeds
        self.log: QuorumLog | None = None
        self.applied_index = 0
        self.next_us = NEVER
        self._told_term = 0  # The term in which the machine was told that it leads.
        self._starting = True
        self._is_stopped = False
        self._change: tuple[Place, Then] | None = None  # Of the voters; who waits for it.
        self._pumping = False
        self._snapshotting = False
        self._writing: Write | None = None
        self._restored: Snapshot | None = None
        self._error: BaseException | None = None  # Why the Raft at hand is none any more.
        self._retry_us = NEVER

    def _begin(self, now: Now) -> None:
        """A Raft over what is on the disk."""
        log = self._log
        assert not self._snapshotting, "the log is about to be replaced"
        self._error = None
        self._writing = None
        self._retry_us = NEVER
        self._told_term = 0
        self.raft = Raft(
            log.key, self._config, self._random, log, log.hard_state, now.mono_us, seeds=self._seeds
        )

    @property
    def _log(self) -> QuorumLog:
        assert self.log is not None, "nothing happens before the start"
        return self.log

    @property
    def is_alone(self) -> bool:
        """True when this replica is the whole quorum: what its disk holds is decided."""
        voters = self.raft.voters
        return len(voters) == 1 and self._log.key in voters

    @property
    def decides_alone(self) -> bool:
        """True when nobody else decides, and all that others have decided before is applied.

        Not yet for who was left as the only voter while it followed: its log holds entries of the
        leader before that its machine has not seen, and what is decided comes after these.
        """
        return self.is_alone and self.applied_index >= self._alone_from

    def _retry(self, now: Now) -> None:
        if self._is_stopped or self._snapshotting or self._writing is not None:
            # The Raft would begin with what is about to be replaced.
            self._retry_us = self.next_us = now.mono_us + _RETRY_US
            return
        self._begin(now)
        # The last one may have ended before the machine was told of a snapshot.
        self._drive(partial(self._take_restored, now), now)

    def _drive(self, step: Callable[[], None], now: Now) -> None:
        """Do a step, and what the Raft wants done then; what goes wrong ends the Raft."""
        try:
            step()
        except Exception as error:
            self._met_bug(error, now)
        self.go_on(now)

    def _met_bug(self, error: Exception, now: Now) -> None:
        """A bug of ours. What the Raft believes to be done may not be: it begins anew."""
        if self._starting:
            raise error
        self._report("error", "the quorum met a bug", traceback_of(error))
        self._stop(error, now, out_of_service=False)

    # --- duties --------------------------------------------------------------------------------
    def go_on(self, now: Now) -> None:
        """Do what the Raft wants done. Called from within, it leaves that to the outer call."""
        if self._pumping:
            return
        self._pumping = True
        try:
            self._look_at_role(now)
            while self.raft.has_ready:
                ready = self.raft.ready()
                try:
                    self._do(ready, now)
                finally:
                    self.raft.advance(ready)
                self._look_at_role(now)
            self._snapshot_if_long(now)
        except Exception as error:
            self._met_bug(error, now)
        finally:
            self._pumping = False
        self.next_us = self._retry_us if self._error is not None else self.raft.next_deadline_us

    @property
    def knows_all(self) -> bool:
        """True when all is applied that was decided before the present leader was elected."""
        raft = self.raft
        return raft.leader is not None and raft.log.term(self.applied_index) == raft.term

    def _look_at_voters(self) -> None:
        voters = self.raft.voters
        if voters is not self._told_voters:
            was_one_of_many = len(self._told_voters or ()) > 1
            self._told_voters = voters
            if was_one_of_many and self.is_alone and not self._told_term:
                self._alone_from = self.raft.log.last_index
            self._voters_changed(voters)

    def _look_at_role(self, now: Now) -> None:
        raft = self.raft
        self._look_at_voters()
        if raft.forgotten:
            self._told_forgotten = tell_forgotten(
                self._report, self._log.key, raft.forgotten, self._told_forgotten
            )
        leads = raft.role is Role.LEADER
        if self._told_term and not (leads and raft.term == self._told_term):
            self._told_term = 0
            self._machine.interrupted(NotController(), now)
            self._lose_change(now)
        if leads and not self._told_term and (self.decides_alone or self.knows_all):
            self._told_term = raft.term
            self._machine.leads(now)

    def _do(self, ready: Ready, now: Now) -> None:
        if ready.messages:
            self._send(ready.messages, now)
        if ready.write is not None:
            self._start_write(ready.write)
        for read in ready.reads:
            self._start_read(read)
        if ready.restore is not None:
            assert self._restored is not None
            assert self._restored.meta == ready.restore
            self._take_restored(now)
            self._end_change(NotController(), now)
        for entry in ready.committed:
            self._apply(entry, now)

    def _take_restored(self, now: Now) -> None:
        """Have the machine become what a snapshot from elsewhere says; tried until it succeeds."""
        restored = self._restored
        if restored is not None:
            assert restored.meta.index > self.applied_index, "a snapshot takes nothing back"
            self._machine.restore(restored, now)
            self.applied_index = restored.meta.index
            self._restored = None

    def _apply(self, entry: Entry, now: Now) -> None:
        if entry.index <= self.applied_index:
            return  # An earlier Raft over the same log has told of it.
        assert entry.index == self.applied_index + 1, "entries are applied in order"
        self._machine.apply(entry, now)
        self.applied_index = entry.index
        if self._change is not None and entry.index >= self._change[0].index:
            is_it = (entry.index, entry.term) == (self._change[0].index, self._change[0].term)
            self._end_change(None if is_it else NotController(), now)

    def _end_change(self, error: BaseException | None, now: Now) -> None:
        """What is waited for holds, is lost (NotController), or may hold all the same."""
        change, self._change = self._change, None
        if change is not None:
            change[1](None, error, now)

    def _lose_change(self, now: Now) -> None:
        """This replica does not lead any more; what it knows to be committed will be applied."""
        change = self._change
        if change is not None:
            log = self.raft.log
            place = change[0]
            if log.commit < place.index or not log.matches(place.index, place.term):
                self._end_change(
                    outcome_unknown(NotController("this broker decides no more.")), now
                )

    # --- writing -------------------------------------------------------------------------------
    def _start_write(self, write: Write) -> None:
        assert self._writing is None, "one write at a time"
        job = self._log.begin_write(write)
        self._writing = write
        self._runner.start(job, partial(self._written, [job]))

    def _written(
        self, jobs: list[WriteJob], result: object, error: BaseException | None, now: Now
    ) -> None:
        if not jobs:  # What followed from the write has raised: see `Jobs`.
            assert error is not None
            self._stop(error, now, out_of_service=False)
            return
        job = jobs.pop()
        assert self._writing is job.write
        self._writing = None
        if error is not None:
            self._stop(error, now, out_of_service=self._log.fail_write(job, error))
            return
        assert isinstance(result, Written)
        self._log.complete_write(job, result)
        self._restored = result.restored or self._restored
        if not self.raft.is_failed:  # One that began anew has waited for this write.
            self.raft.persisted(job.write, now.mono_us)
        self.go_on(now)

    def _stop(self, error: BaseException, now: Now, *, out_of_service: bool) -> None:
        """This Raft writes no more; out of service: nor does any after it."""
        if self._error is not None and not out_of_service:
            return
        if self._error is None:
            # What broke it may keep it from handing over.
            with contextlib.suppress(Exception):
                self.raft.fail(now.mono_us)
        if out_of_service and not isinstance(error, QuiverlogError):
            error = StorageFault(f"the decision cannot be made durable: {why(error)}.")
        self._error = error
        self._retry_us = NEVER if out_of_service else now.mono_us + _RETRY_US
        self._told_term = 0
        self.next_us = self._retry_us
        self.go_on(now)
        self._machine.interrupted(error, now)
        self._end_change(outcome_unknown(error), now)

    # --- snapshots -----------------------------------------------------------------------------
    def _snapshot_if_long(self, now: Now) -> None:
        """Make a snapshot the beginning of the log, where most of it is history."""
        if self._snapshotting or self._error is not None or not self._log.wants_compaction:
            return
        if self._writing is not None and self._writing.chunk is not None:
            return
        if self.raft.log.applied != self.applied_index or not self._machine.may_be_captured:
            return
        if self.applied_index == self._log.snapshot.index:
            return
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        assert not self._snapshotting, "one snapshot at a time"
        point = self.raft.snapshot_point()
        assert point.index == self.applied_index
        kept = 0 if self.is_alone else _KEPT_ENTRIES
        self._snapshotting = True
        job = self._log.begin_snapshot(point, self._machine.capture(), kept=kept)
        self._runner.start(job, partial(self._snapshot_made, [job]))

    def _snapshot_made(
        self, jobs: list[SnapshotJob], result: object, error: BaseException | None, now: Now
    ) -> None:
        if not jobs:
            assert error is not None
            self._stop(error, now, out_of_service=False)
            return
        job = jobs.pop()
        assert self._snapshotting
        self._snapshotting = False
        out_of_service = False
        if error is None:
            assert isinstance(result, int)
            self._log.complete_snapshot(job, result)
            self.raft.snapshot_taken()
        else:
            out_of_service = self._log.fail_snapshot(job, error)
            level = "error" if out_of_service else "warning"
            self._report(level, "metadata log not compacted", why(error))
        self._machine.captured(now)
        if error is not None and out_of_service:
            self._stop(error, now, out_of_service=True)
        self.go_on(now)

    def _start_read(self, read: SnapshotRead) -> None:
        job = self._log.begin_read(read)
        self._runner.start(job, partial(self._read_done, self.raft, read), Urgency.READ)

    def _read_done(
        self, raft: Raft, read: SnapshotRead, result: object, error: BaseException | None, now: Now
    ) -> None:
        if raft is not self.raft:
            return  # It began anew, and with it the transfer.
        chunk = result if isinstance(result, Chunk) else Chunk(None, False)
        if error is not None:
            self._report("error", "a snapshot of the metadata cannot be read", why(error))
        raft.chunk_read(read, chunk.data, chunk.done, now.mono_us)
        self.go_on(now)
