"""Hosts this node's replica of the metadata log: the duties that a Raft has a host for.

Owns, with `quorum_duties`, the Raft, its log, its jobs and its timer. What is decided goes to a
state machine, in order and once; what others are to be told leaves through `send`. A single broker
is a quorum of one, which has nobody to tell and leads as soon as its vote is on the disk. Any other
replica finds out on the loop, from those who lead, what is decided: `knows_all`.

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

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from quiverlog.core.raft.election import Role
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import Message, ProposalRefused, Refusal, ReplicaKey
from quiverlog.errors import BrokerShuttingDown, NotController, ThrottledBroker
from quiverlog.node.jobs import Then
from quiverlog.node.quorum_door import contradiction
from quiverlog.node.quorum_duties import NEVER, Duties
from quiverlog.node.quorum_parts import InlineRunner, StateMachine
from quiverlog.storage.metadata.quorum_jobs import Snapshot
from quiverlog.storage.metadata.quorum_log import QuorumLog
from quiverlog.types import Now

__all__ = ["Quorum"]

_ALL_BYTES: Final = 1 << 62


class Quorum(Duties):
    """See the module docstring."""

    __slots__ = ()

    # --- start ---------------------------------------------------------------------------------
    def start(self, log: QuorumLog, machine: StateMachine, now: Now) -> None:
        """Take over the log, and have the machine become what is known to be decided."""
        assert self.log is None
        self.log = log
        self._machine = machine
        self.applied_index = log.snapshot.index
        machine.restore(Snapshot(log.snapshot, log.take_records()), now)
        self._begin(now)
        self._starting = self.is_alone
        self._look_at_voters()
        if self.is_alone:
            for entry in log.entries(log.first_index, _ALL_BYTES):
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

    def follow(self, now: Now) -> None:
        """On the loop, or before it runs: begin, where others may have to be waited for."""
        assert not self.is_alone, "what it would wait for is on its own disk: `settle`"
        self.go_on(now)

    # --- looking -------------------------------------------------------------------------------
    @property
    def is_leading(self) -> bool:
        """True from `leads` to `interrupted`."""
        return self._told_term != 0

    @property
    def leading_term(self) -> int:
        """The term in which this node decides; 0 while it does not."""
        return self._told_term

    @property
    def is_changing(self) -> bool:
        """True while somebody waits for a change of the voters."""
        return self._change is not None

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
        if self._error is None and self.decides_alone:
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

    def when_decided(self, place: Place, then: Then, now: Now) -> None:
        """Call `then` when what was proposed there holds, or with NotController if it is lost, or
        with OutcomeUnknown if others may yet have it."""
        assert self._change is None, "one change of the voters at a time"
        self._change = (place, then)
        self.go_on(now)

    def step(self, message: Message, now: Now) -> None:
        """A message of another replica arrived."""
        self.take((message,), now)

    def take(self, messages: Sequence[Message], now: Now) -> None:
        """Messages of another replica arrived, in this order."""
        assert self.log is not None, "messages come when the log is open"

        def step() -> None:
            for message in messages:
                why_not = contradiction(self.raft, message)
                if why_not:
                    kind, node_id = type(message).__name__, message.source.node_id
                    self._report(
                        "warning", "message refused", f"{kind} of node {node_id}: {why_not}"
                    )
                else:
                    self.raft.step(message, now.mono_us)

        self._drive(step, now)

    def told_leader(self, leader: ReplicaKey, now: Now) -> None:
        """Another broker, asked for the leader, names it."""
        if self.log is not None and not self._is_stopped:
            self._drive(partial(self.raft.told_leader, leader), now)

    def tick(self, now: Now) -> None:
        """`next_us` has come; calling it early does nothing."""
        if now.mono_us < self.next_us:
            return
        if self._error is not None:
            self._retry(now)
        else:
            self._drive(partial(self.raft.tick, now.mono_us), now)

    def hand_over(self, now: Now) -> None:
        """The broker stops: let another voter lead, if this one does."""
        if self.raft.role is Role.LEADER and not self.is_alone:
            with contextlib.suppress(ProposalRefused):
                self.raft.transfer_leadership(None, now.mono_us)
            self.go_on(now)

    def stop(self, now: Now) -> None:
        """Write and promise nothing more: the log is about to be closed."""
        assert self._writing is None, "every job is back"
        self._is_stopped = True
        self._stop(BrokerShuttingDown(), now, out_of_service=True)
        self.next_us = self._retry_us = NEVER

    def try_again(self, now: Now) -> None:
        """What kept this replica from writing may be over."""
        if self._error is not None and not self._log.fault:
            self._retry(now)
