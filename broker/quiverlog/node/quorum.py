"""Hosts this node's replica of the metadata log: the duties that a Raft has a host for.

Owns the Raft, its log, its jobs and its timer. What is decided goes to a state machine, in order
and once; what others are to be told leaves through `send`. A single broker is a quorum of one,
which has nobody to tell and leads as soon as its vote is on the disk.

```
 propose ─▶ Raft ─▶ Write ─▶ job ─▶ persisted ─▶ committed ─▶ machine.apply
 step    ─▶      ─▶ messages ─▶ send
```

A full disk, and a process without descriptors, are to the Raft what a crash is: it hands over, and
forgets what is not on the disk. `interrupted` tells the machine; a new Raft begins a second later,
or when somebody wants to decide something. After any other failure of the disk nobody knows what it
holds, and nothing is tried again before a restart.

Invariants:
- Entries reach the machine in order, each once, also when a Raft begins anew over the same log.
- The only voter's machine has all that its log holds before it leads: nobody else decides anything.
  Any other leader is told that it leads when it has applied an entry of its own term.
- One snapshot of the machine is being made at a time, and none while one arrives from elsewhere.

Must not know: what entries mean, how messages travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from quiverlog.core.raft.election import Role
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import (
    Entry,
    Message,
    ProposalRefused,
    RaftConfig,
    RandomSource,
    Refusal,
)
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.raft import Raft, Ready
from quiverlog.core.raft.snapshots import SnapshotRead
from quiverlog.errors import NotController, QuiverlogError, StorageFault, ThrottledBroker
from quiverlog.node.decision import why
from quiverlog.node.jobs import Urgency
from quiverlog.node.quorum_parts import InlineRunner, Runner, StateMachine, traceback_of
from quiverlog.storage.quorum_items import Snapshot
from quiverlog.storage.quorum_jobs import Chunk, SnapshotJob, WriteJob, Written
from quiverlog.storage.quorum_log import QuorumLog
from quiverlog.types import Now

__all__ = ["Quorum"]

_NEVER: Final = 1 << 62
_RETRY_US: Final = 1_000_000
_KEPT_ENTRIES: Final = 1_000
"""So many entries that a snapshot stands for stay where there are followers: one that was away for
a moment needs these, and not the whole snapshot."""


class Quorum:
    """See the module docstring.

    Args:
        runner: runs jobs.
        report: writes a line of the log: level, event, reason.
        send: hands messages to the network, which may lose them.
        seeds: node ids to ask for the log while it names no voters.
    """

    __slots__ = ("_config", "_error", "_machine", "_pumping", "_random", "_report", "_restored",
                 "_retry_us", "_runner", "_seeds", "_send", "_snapshotting", "_starting",
                 "_told_term", "_writing", "applied_index", "log", "next_us", "raft")  # fmt: skip

    _machine: StateMachine
    raft: Raft

    def __init__(
        self,
        runner: Runner,
        random: RandomSource,
        report: Callable[[str, str, str], None],
        *,
        send: Callable[[Sequence[Message]], None] = lambda _messages: None,
        config: RaftConfig | None = None,
        seeds: tuple[int, ...] = (),
    ) -> None:
        self._runner = runner
        self._random = random
        self._report = report
        self._send = send
        self._config = config or RaftConfig()
        self._seeds = seeds
        self.log: QuorumLog | None = None
        self.applied_index = 0
        self.next_us = _NEVER
        self._told_term = 0  # The term in which the machine was told that it leads.
        self._starting = True
        self._pumping = False
        self._snapshotting = False
        self._writing: Write | None = None
        self._restored: Snapshot | None = None
        self._error: BaseException | None = None  # Why the Raft at hand is none any more.
        self._retry_us = _NEVER

    # --- start ---------------------------------------------------------------------------------
    def start(self, log: QuorumLog, machine: StateMachine, now: Now) -> None:
        """Take over the log, and have the machine become what is known to be decided."""
        assert self.log is None
        self.log = log
        self._machine = machine
        self.applied_index = log.snapshot.index
        machine.restore(Snapshot(log.snapshot, log.take_records()), now)
        self._begin(now)
        if self.is_alone:
            for entry in log.entries(log.first_index, _NEVER):
                self._apply(entry, now)

    def settle(self, now: Now) -> None:
        """Off the loop, before anybody is served: do all there is to do, jobs too.

        Raises: what keeps this replica from writing.
        """
        assert self._starting, "only before anybody is served"
        runner = self._runner
        self._runner = inline = InlineRunner()
        try:
            self.go_on(now)
            inline.run(now)
        finally:
            self._runner = runner
        self._starting = False
        if self._error is not None:
            raise self._error

    def _begin(self, now: Now) -> None:
        """A Raft over what is on the disk."""
        log = self._log
        assert not self._snapshotting, "the log is about to be replaced"
        self._error = None
        self._writing = None
        self._retry_us = _NEVER
        self._told_term = 0
        self.raft = Raft(
            log.key, self._config, self._random, log, log.hard_state, now.mono_us, seeds=self._seeds
        )

    # --- looking -------------------------------------------------------------------------------
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
    def is_leading(self) -> bool:
        """True from `leads` to `interrupted`."""
        return self._told_term != 0

    def check_leading(self, now: Now) -> bool:
        """True: propose; False: wait for `leads`, or for `interrupted`.

        Raises:
            StorageFault: nothing is decided here before a restart.
            NotController: another node decides, or nobody yet.
        """
        self._log.check_usable()
        if self.is_leading:
            return True
        if self._error is not None:
            self._retry(now)
        if self._error is None and self.is_alone:
            return False
        raise NotController

    # --- from outside --------------------------------------------------------------------------
    def propose(self, data: Sequence[bytes], now: Now) -> Place:
        """Propose entries, one behind the other; returns the place of the last. Call `go_on` then.

        They are decided when they are applied with that index and term; others may be instead.

        Raises:
            NotController, ThrottledBroker: nothing was proposed.
        """
        try:
            return self.raft.propose(data, now.mono_us)
        except ProposalRefused as refused:
            if refused.refusal in (Refusal.NOT_LEADER, Refusal.TRANSFERRING):
                raise NotController from refused
            raise ThrottledBroker("too many decisions wait for the quorum.") from refused

    def step(self, message: Message, now: Now) -> None:
        """A message of another replica arrived."""
        self.raft.step(message, now.mono_us)
        self.go_on(now)

    def tick(self, now: Now) -> None:
        """`next_us` has come; calling it early does nothing."""
        if now.mono_us < self.next_us:
            return
        if self._error is not None:
            self._retry(now)
        else:
            self.raft.tick(now.mono_us)
            self.go_on(now)

    def try_again(self, now: Now) -> None:
        """What kept this replica from writing may be over."""
        if self._error is not None and not self._log.fault:
            self._retry(now)

    def _retry(self, now: Now) -> None:
        if self._snapshotting or self._writing is not None:
            return  # The Raft would begin with what is about to be replaced.
        self._begin(now)
        self.go_on(now)

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
            if self._starting:
                raise
            # A bug of ours. What the Raft believes to be done may not be: it begins anew.
            self._report("error", "the quorum met a bug", traceback_of(error))
            self._stop(error, now, out_of_service=False)
        finally:
            self._pumping = False
        self.next_us = self._retry_us if self._error is not None else self.raft.next_deadline_us

    def _look_at_role(self, now: Now) -> None:
        raft = self.raft
        leads = raft.role is Role.LEADER
        if self._told_term and not (leads and raft.term == self._told_term):
            self._told_term = 0
            self._machine.interrupted(NotController(), now)
        if leads and not self._told_term and (self.is_alone or self._knows_all()):
            self._told_term = raft.term
            self._machine.leads(now)

    def _knows_all(self) -> bool:
        """All that earlier leaders have decided is applied: an entry of this term is."""
        return self.raft.log.term(self.applied_index) == self.raft.term

    def _do(self, ready: Ready, now: Now) -> None:
        if ready.messages:
            self._send(ready.messages)
        if ready.write is not None:
            self._start_write(ready.write)
        for read in ready.reads:
            self._start_read(read)
        if ready.restore is not None:
            restored, self._restored = self._restored, None
            assert restored is not None
            assert restored.meta == ready.restore
            self.applied_index = restored.meta.index
            self._machine.restore(restored, now)
        for entry in ready.committed:
            self._apply(entry, now)

    def _apply(self, entry: Entry, now: Now) -> None:
        if entry.index <= self.applied_index:
            return  # An earlier Raft over the same log has told of it.
        assert entry.index == self.applied_index + 1, "entries are applied in order"
        self._machine.apply(entry, now)
        self.applied_index = entry.index

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
        """This Raft writes no more."""
        if self._error is not None:
            return
        self.raft.fail(now.mono_us)
        if out_of_service and not isinstance(error, QuiverlogError):
            error = StorageFault(f"the decision cannot be made durable: {why(error)}.")
        self._error = error
        self._retry_us = _NEVER if out_of_service else now.mono_us + _RETRY_US
        self._told_term = 0
        self.next_us = self._retry_us
        self.go_on(now)
        self._machine.interrupted(error, now)

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
