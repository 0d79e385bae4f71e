"""Hosts this node's Raft: messages, writes, timers, snapshots, applied entries.

    propose ─▶ Raft ─▶ Write ─▶ job ─▶ persisted ─▶ committed ─▶ machine.apply
    step ─▶      ─▶ messages ─▶ send

After a write that failed and may be tried again (a full disk, no file descriptor, a snapshot's
temporary file) the Raft counts as crashed: it hands over, and a new one begins a second later over
the same log. After any other failed write nothing is written before a restart.

Invariants: entries reach the machine in order, each once; the only voter leads after its machine
has applied its whole log, any other leader after an entry of its own term.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from quiverlog.addresses import parse_address
from quiverlog.core.raft.election import Role
from quiverlog.core.raft.log import Place
from quiverlog.core.raft.messages import (
    Entry,
    Message,
    ProposalRefused,
    RaftConfig,
    RandomSource,
    Refusal,
    ReplicaKey,
    Voters,
)
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.raft import Raft, Ready
from quiverlog.core.raft.snapshots import SnapshotRead
from quiverlog.errors import (
    BrokerShuttingDown,
    DuplicateNodeId,
    NotController,
    QuiverlogError,
    StorageFault,
    ThrottledBroker,
)
from quiverlog.limits import PEER_LOG_INTERVAL_MS
from quiverlog.node.metadata.decision import outcome_unknown, why
from quiverlog.node.metadata.quorum_wire import Packed, contradiction, pack
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.effects import Job, Peer, Purpose
from quiverlog.node.runtime.jobs import Then, Urgency
from quiverlog.node.runtime.peers import Answer, BrokerAddresses, Peers
from quiverlog.roles import ROLE_CONTROLLER
from quiverlog.storage.metadata.quorum_jobs import Chunk, Snapshot, SnapshotJob, WriteJob, Written
from quiverlog.storage.metadata.quorum_log import QuorumLog
from quiverlog.types import Now
from quiverlog.wire.quorum_messages import QuorumObserve, QuorumResponse

__all__ = [
    "NEVER",
    "Dice",
    "InlineRunner",
    "Quorum",
    "Runner",
    "StateMachine",
    "report_lost_entries",
    "sender",
    "traceback_of",
]


_EVENT = "a voter has forgotten decisions"


def report_lost_entries(
    report: Callable[[str, str, str], None],
    own: ReplicaKey,
    lost: Mapping[ReplicaKey, int],
    reported: frozenset[ReplicaKey],
) -> frozenset[ReplicaKey]:
    """Report the voters that are not in `reported`; return all that are reported by now."""
    for key, index in lost.items():
        if key not in reported:
            report("error", _EVENT, _lost_entries_advice(own, key, index))
    assert lost, "a voter lacks entries"
    return reported | lost.keys()


def _lost_entries_advice(own: ReplicaKey, key: ReplicaKey, index: int) -> str:
    assert index > 0
    whose = "this broker's" if key == own else f"broker {key.node_id}'s"
    return (
        f"{whose} metadata log ends before entry {index}, which it has acknowledged: its disk is in"
        " an earlier state, as that of a restored backup. It gets no decisions under this leader,"
        f" and its votes cannot be relied on. Stop broker {key.node_id}, empty its data directory,"
        f" `quiverlog quorum remove {key.node_id} --directory-id {key.directory_id}`, and"
        " start it again."
    )


class StateMachine(Protocol):
    """The state that the log's entries result in."""

    def apply(self, entry: Entry, now: Now) -> None: ...

    def restore(self, snapshot: Snapshot, now: Now) -> None: ...

    def leads(self, now: Now) -> None:
        """This node leads, and all entries of earlier leaders are applied."""

    def interrupted(self, error: BaseException, now: Now) -> None:
        """This node no longer leads: proposals that are not applied may be lost."""

    @property
    def may_be_captured(self) -> bool:
        """True if the state equals what has been applied."""

    def capture(self) -> Callable[[], bytes]:
        """Return a job's function that encodes the state, unchanged until `captured`."""

    def captured(self, now: Now) -> None:
        """The snapshot is written, or has failed."""


class Runner(Protocol):
    def start(self, job: Job, then: Then, urgency: Urgency = Urgency.FLUSH) -> None: ...


class InlineRunner:
    """For a start, which may wait for the disk: the loop does not run yet."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Job, Then]] = deque()

    def start(self, job: Job, then: Then, urgency: Urgency = Urgency.FLUSH) -> None:
        self._queue.append((job, then))

    def run(self, now: Now) -> None:
        while self._queue:
            job, then = self._queue.popleft()
            try:
                result = job.run()
            except (OSError, QuiverlogError) as error:
                then(None, error, now)
            else:
                then(result, None, now)


class Dice:
    """A `RandomSource` made of the node's entropy."""

    __slots__ = ("_entropy",)

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy

    def randrange(self, stop: int, /) -> int:
        return int.from_bytes(self._entropy(8), "big") % stop


def traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


NEVER: Final = 1 << 62
_RETRY_US: Final = 1_000_000
_KEPT_ENTRIES: Final = 1_000
"""Behind a snapshot: a follower that was away for a moment needs these, not the whole snapshot."""
_ALL_BYTES: Final = 1 << 62


class Quorum:
    """This node's replica of the metadata log.

    Args:
        report: logs an event: level, event, reason.
        send: hands messages to the network, which may lose them.
        voters_changed: called with the voters, at the start and after each change.
        seeds: node ids to ask for the log, besides the voters.
    """

    __slots__ = (
        "_alone_from", "_announced_term", "_announced_voters", "_change", "_config", "_due_us",
        "_error", "_is_stopped", "_machine", "_pumping", "_random", "_report", "_reported_lost",
        "_restored", "_retry_us", "_runner", "_seeds", "_send", "_snapshotting", "_starting",
        "_voters_changed", "_writing", "applied_index", "log", "raft",
    )  # fmt: skip

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
        self._reported_lost: frozenset[ReplicaKey] = frozenset()
        self._announced_voters: Voters | None = None
        self._alone_from = 0  # The end of other leaders' entries, if this is the only voter now.
        self._config = config or RaftConfig()
        self._seeds = seeds
        self.log: QuorumLog | None = None
        self.applied_index = 0
        self._due_us = NEVER
        self._announced_term = 0  # The term for which `leads` was called; 0 after `interrupted`.
        self._starting = True
        self._is_stopped = False
        self._change: tuple[Place, Then] | None = None  # A change of the voters, and its caller.
        self._pumping = False
        self._snapshotting = False
        self._writing: Write | None = None
        self._restored: Snapshot | None = None
        self._error: BaseException | None = None  # Why the current Raft was stopped.
        self._retry_us = NEVER

    # --- start ---------------------------------------------------------------------------------
    def start(self, log: QuorumLog, machine: StateMachine, now: Now) -> None:
        assert self.log is None
        self.log = log
        self._machine = machine
        self.applied_index = log.snapshot.index
        machine.restore(Snapshot(log.snapshot, log.take_records()), now)
        self._begin(now)
        self._starting = self.is_alone
        self._look_at_voters()
        # What the only voter's disk holds is committed.
        if self.is_alone:
            for entry in log.entries(log.first_index, _ALL_BYTES):
                self._apply(entry, now)

    def settle(self, now: Now) -> None:
        """Do all pending work, jobs too; raise the error that keeps this replica from writing."""
        assert self._starting, "no request is served yet"
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
        assert not self.is_alone, "what it would wait for is on its own disk: `settle`"
        self.go_on(now)

    @property
    def is_leading(self) -> bool:
        """True from `leads` to `interrupted`."""
        return self._announced_term != 0

    @property
    def leading_term(self) -> int:
        return self._announced_term

    @property
    def is_changing(self) -> bool:
        return self._change is not None

    def check_leading(self, now: Now) -> bool:
        """True: propose; False: wait for `leads` or `interrupted`.

        Raises:
            StorageFault: no write succeeds before a restart.
            NotController: another node leads, or none.
        """
        self._log.check_usable()
        if self.is_leading:
            return True
        if self._error is not None:
            self._retry(now)
        if self._error is None and self.decides_alone:
            return False
        raise NotController

    def propose(self, data: Sequence[bytes], now: Now) -> Place:
        """Propose entries in this order; return the place of the last. Call `go_on` then.

        Another entry may be committed at their index: compare the term.

        Raises:
            NotController, ThrottledBroker: nothing was proposed.
        """
        try:
            return self.raft.propose(data, now.mono_us)
        except ProposalRefused as refused:
            if refused.refusal in (Refusal.NOT_LEADER, Refusal.TRANSFERRING):
                raise NotController from refused
            raise ThrottledBroker("too many decisions wait for the quorum: try again.") from refused

    def when_decided(self, place: Place, then: Then, now: Now) -> None:
        """Call `then` when the change at `place` is applied; with NotController if another entry
        is there, with OutcomeUnknown if other replicas may have it.
        """
        assert self._change is None, "one change of the voters at a time"
        self._change = (place, then)
        self.go_on(now)

    def step(self, message: Message, now: Now) -> None:
        self.take((message,), now)

    def take(self, messages: Sequence[Message], now: Now) -> None:
        assert self.log is not None, "messages come when the log is open"

        def step() -> None:
            for message in messages:
                # The Raft asserts on its messages; a stranger's must not stop it.
                why_not = contradiction(self.raft, message)
                if why_not:
                    kind, node_id = type(message).__name__, message.source.node_id
                    self._report(
                        "warning", "message refused", f"{kind} of node {node_id}: {why_not}"
                    )
                else:
                    self.raft.step(message, now.mono_us)

        self._drive(step, now)

    def on_leader_named(self, leader: ReplicaKey, now: Now) -> None:
        if self.log is not None and not self._is_stopped:
            self._drive(partial(self.raft.on_leader_named, leader), now)

    def next_us(self) -> int:
        return self._due_us

    def tick(self, now: Now) -> None:
        if now.mono_us < self._due_us:
            return
        if self._error is not None:
            self._retry(now)
        else:
            self._drive(partial(self.raft.tick, now.mono_us), now)

    def hand_over(self, now: Now) -> None:
        if self.raft.role is Role.LEADER and not self.is_alone:
            with contextlib.suppress(ProposalRefused):
                self.raft.transfer_leadership(None, now.mono_us)
            self.go_on(now)

    def stop(self, now: Now) -> None:
        """Write and acknowledge nothing more."""
        assert self._writing is None, "every job is back"
        self._is_stopped = True
        self._stop(BrokerShuttingDown(), now, out_of_service=True)
        self._due_us = self._retry_us = NEVER

    def try_again(self, now: Now) -> None:
        """Begin again without the pause, if the last failed write allows it."""
        if self._error is not None and not self._log.fault:
            self._retry(now)

    def _begin(self, now: Now) -> None:
        log = self._log
        assert not self._snapshotting, "the log is about to be replaced"
        self._error = None
        self._writing = None
        self._retry_us = NEVER
        self._announced_term = 0
        self.raft = Raft(
            log.key, self._config, self._random, log, log.hard_state, now.mono_us, seeds=self._seeds
        )

    @property
    def _log(self) -> QuorumLog:
        assert self.log is not None, "nothing happens before the start"
        return self.log

    @property
    def is_alone(self) -> bool:
        voters = self.raft.voters
        return len(voters) == 1 and self._log.key in voters

    @property
    def decides_alone(self) -> bool:
        """True on the only voter, when all entries of other leaders are applied."""
        # A follower that became the only voter may have some left.
        return self.is_alone and self.applied_index >= self._alone_from

    def _retry(self, now: Now) -> None:
        if self._is_stopped or self._snapshotting or self._writing is not None:
            # The Raft would begin with a log that is about to be replaced.
            self._retry_us = self._due_us = now.mono_us + _RETRY_US
            return
        self._begin(now)
        # The last Raft may have ended between writing a snapshot and restoring it.
        self._drive(partial(self._take_restored, now), now)

    def _drive(self, step: Callable[[], None], now: Now) -> None:
        try:
            step()
        except Exception as error:
            self._met_bug(error, now)
        self.go_on(now)

    def _met_bug(self, error: Exception, now: Now) -> None:
        if self._starting:
            raise error
        # The Raft's state may differ from what was done: a new one begins from the disk.
        self._report("error", "the quorum met a bug", traceback_of(error))
        self._stop(error, now, out_of_service=False)

    # --- duties --------------------------------------------------------------------------------
    def go_on(self, now: Now) -> None:
        if self._pumping:
            return  # Called by that work: the outer call goes on with it.
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
        self._due_us = self._retry_us if self._error is not None else self.raft.next_deadline_us

    @property
    def has_applied_earlier_terms(self) -> bool:
        """True if everything committed before the present leader's election is applied."""
        # An entry of the leader's own term commits all before it (replication rule 27).
        raft = self.raft
        return raft.leader is not None and raft.log.term(self.applied_index) == raft.term

    def _look_at_voters(self) -> None:
        voters = self.raft.voters
        if voters is not self._announced_voters:
            was_one_of_many = len(self._announced_voters or ()) > 1
            self._announced_voters = voters
            # Entries of the leader before may be committed, and are not applied yet.
            if was_one_of_many and self.is_alone and not self._announced_term:
                self._alone_from = self.raft.log.last_index
            self._voters_changed(voters)

    def _look_at_role(self, now: Now) -> None:
        raft = self.raft
        self._look_at_voters()
        if raft.lost_entries:
            self._reported_lost = report_lost_entries(
                self._report, self._log.key, raft.lost_entries, self._reported_lost
            )
        leads = raft.role is Role.LEADER
        if self._announced_term and not (leads and raft.term == self._announced_term):
            self._announced_term = 0
            self._machine.interrupted(NotController(), now)
            self._lose_change(now)
        if (
            leads
            and not self._announced_term
            and (self.decides_alone or self.has_applied_earlier_terms)
        ):
            self._announced_term = raft.term
            self._machine.leads(now)

    def _do(self, ready: Ready, now: Now) -> None:
        if ready.messages:  # They rest on nothing that the write has yet to make durable.
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
        """Restore the machine from a leader's snapshot; repeated until it succeeds."""
        restored = self._restored
        if restored is not None:
            assert restored.meta.index > self.applied_index, "a snapshot takes nothing back"
            self._machine.restore(restored, now)
            self.applied_index = restored.meta.index
            self._restored = None

    def _apply(self, entry: Entry, now: Now) -> None:
        if entry.index <= self.applied_index:
            return  # An earlier Raft over the same log has applied it.
        assert entry.index == self.applied_index + 1, "entries are applied in order"
        self._machine.apply(entry, now)
        self.applied_index = entry.index
        if self._change is not None and entry.index >= self._change[0].index:
            is_it = (entry.index, entry.term) == (self._change[0].index, self._change[0].term)
            self._end_change(None if is_it else NotController(), now)

    def _end_change(self, error: BaseException | None, now: Now) -> None:
        change, self._change = self._change, None
        if change is not None:
            change[1](None, error, now)

    def _lose_change(self, now: Now) -> None:
        """End the wait for a change that is not committed: this replica no longer leads."""
        change = self._change
        if change is not None:
            log = self.raft.log
            place = change[0]
            if log.commit < place.index or not log.matches(place.index, place.term):
                self._end_change(
                    outcome_unknown(NotController("this broker is no longer the controller.")), now
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
        if not self.raft.is_failed:  # A new Raft begins only when this write has ended.
            self.raft.persisted(job.write, now.mono_us)
        self.go_on(now)

    def _stop(self, error: BaseException, now: Now, *, out_of_service: bool) -> None:
        """Stop this Raft; `out_of_service`: no other one begins before a restart."""
        if self._error is not None and not out_of_service:
            return
        if self._error is None:
            # The fault may keep it from handing over.
            with contextlib.suppress(Exception):
                self.raft.fail(now.mono_us)
        if out_of_service and not isinstance(error, QuiverlogError):
            error = StorageFault(f"the decision cannot be made durable: {why(error)}.")
        self._error = error
        self._retry_us = NEVER if out_of_service else now.mono_us + _RETRY_US
        self._announced_term = 0
        self._due_us = self._retry_us
        self.go_on(now)
        self._machine.interrupted(error, now)
        self._end_change(outcome_unknown(error), now)

    # --- snapshots -----------------------------------------------------------------------------
    def _snapshot_if_long(self, now: Now) -> None:
        """Replace the log's beginning by a snapshot, if most of it is outdated."""
        if self._snapshotting or self._error is not None or not self._log.wants_compaction:
            return
        if self._writing is not None and self._writing.chunk is not None:
            return  # The leader's snapshot, which replaces the whole log.
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
            return  # A new Raft begins the transfer again.
        chunk = result if isinstance(result, Chunk) else Chunk(None, False)
        if error is not None:
            self._report("error", "a snapshot of the metadata cannot be read", why(error))
        raft.chunk_read(read, chunk.data, chunk.done, now.mono_us)
        self.go_on(now)


_SAME_NODE_ID: Final = "another broker has this node id"


def sender(
    config: NodeConfig,
    peers: Peers,
    broker_addresses: BrokerAddresses,
    cluster_id: Callable[[], str],
    leads: Callable[[ReplicaKey, Now], None],
    log: Callable[..., None],
) -> Callable[[Sequence[Message], Now], None]:
    """Return the function that sends messages of this node's replica.

    `leads` is called with the leader that another broker names.
    """
    refusal, logged_us = "", 0  # The last answer that another broker has this node id.
    endpoint = str(config.endpoint)
    is_controller = ROLE_CONTROLLER in config.roles

    def answered(answer: object, error: BaseException | None, now: Now) -> None:
        nonlocal refusal, logged_us
        response = answer.response if isinstance(answer, Answer) else None
        if response is not None and response.error_code == DuplicateNodeId.code:
            is_old = now.mono_us >= logged_us + PEER_LOG_INTERVAL_MS * 1000
            if is_old or response.error_message != refusal:
                refusal, logged_us = response.error_message, now.mono_us
                log("error", _SAME_NODE_ID, why=refusal)
        if not isinstance(response, QuorumResponse) or response.error_code:
            return
        leader = ReplicaKey(response.leader_id, response.leader_directory)
        if leader.node_id in (-1, config.node_id) or not leader.directory_id:
            return
        with contextlib.suppress(ValueError):
            broker_addresses.leader_named(leader.node_id, parse_address(response.leader_endpoint))
        leads(leader, now)

    def ask(packed: Packed, now: Now) -> None:
        peer = Peer(packed.node_id, Purpose.CONTROL)
        try:
            peers.ask(peer, packed.request, answered, now, body=packed.body)
        except QuiverlogError:  # No address, too many in flight, or stopping: it may get lost.
            peers.send(packed.node_id, packed.request, packed.body)

    def send(messages: Sequence[Message], now: Now) -> None:
        for packed in pack(cluster_id(), messages, endpoint=endpoint, is_controller=is_controller):
            if any(isinstance(one, QuorumObserve) for one in packed.request.messages):
                ask(packed, now)
            else:
                peers.send(packed.node_id, packed.request, packed.body)

    return send
