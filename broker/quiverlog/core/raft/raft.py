"""One replica of the quorum's log: messages, ticks and finished jobs in, one `Ready` out.

Owns the glue between the state machines of this package, and nothing else: `election` (role, term,
votes), `leader` (`replication`, `progress`), `follower`, `membership` (voters), `snapshots` (both
ends of a transfer), `outbox` (what waits for the disk), `log`.

The host's duties. After every call, while `has_ready` is true, it takes one `ready()` and does, in
this order and in one go:

1. Send `messages`. They may get lost, late, doubled or out of order.
2. Start `write` as a job: hard state first, then entries, then the chunk (see `Write`), fsync. Only
   when all of it is durable, and `store` shows it, call `persisted`. There is one write at a
   time. When it fails, nobody knows what the disk holds: call `fail`, never `persisted`.
3. Start each of `reads` as a job, and report it with `chunk_read`.
4. If there is `restore`, the state machine becomes what that snapshot holds.
5. Apply `committed` in order. An entry is decided; a proposal that was taken over by another
   leader's entry at the same index is not.
6. Call `advance`.

It calls `tick` when `next_deadline_us` has come, on a clock that only grows. When its log has
become long it asks for `snapshot_point`, has a job write the state machine as of then, and when
that is durable and the store shows it, calls `snapshot_taken`.

Invariants: no call does I/O, waits, or looks at a clock. Nothing that a message promises is
undurable when `ready` hands it out. A proposal is only a proposal until it is in `committed`.

Must not know: what entries mean, where anybody is, how anything is encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from quiverlog.core.raft.election import Election, Role
from quiverlog.core.raft.follower import Follower
from quiverlog.core.raft.leader import Leader
from quiverlog.core.raft.log import LogStore, LogView, Place
from quiverlog.core.raft.membership import Membership
from quiverlog.core.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Message,
    Observe,
    PreVote,
    PreVoteResponse,
    ProposalRefused,
    RaftConfig,
    RandomSource,
    Refusal,
    ReplicaKey,
    SnapshotChunk,
    SnapshotChunkResponse,
    SnapshotMeta,
    TimeoutNow,
    Vote,
    VoteResponse,
    Voters,
)
from quiverlog.core.raft.outbox import Outbox, Write
from quiverlog.core.raft.snapshots import SnapshotRead

__all__ = ["Raft", "Ready"]

_NEVER_US: Final = 1 << 62
_OF_LEADERS: Final = (Vote, Append, Heartbeat, SnapshotChunk)
"""What is sent by replicas that lead, or want to."""


class Ready(NamedTuple):
    """What the host has to do now; see the module docstring."""

    messages: tuple[Message, ...]
    write: Write | None
    reads: tuple[SnapshotRead, ...]
    restore: SnapshotMeta | None
    committed: tuple[Entry, ...]


class Raft:
    """See the module docstring.

    Args:
        key: this node, and the directory that holds the log and the hard state.
        store: the durable log.
        hard_state: as it was stored last; term 0 and no vote in a new directory.
        seeds: node ids to ask for the log while this replica knows of no voters.
    """

    def __init__(
        self,
        key: ReplicaKey,
        config: RaftConfig,
        random: RandomSource,
        store: LogStore,
        hard_state: HardState,
        now_us: int,
        *,
        seeds: tuple[int, ...] = (),
    ) -> None:
        assert key.directory_id, "a disk without an identity cannot keep promises"
        self.key = key
        self._config = config
        self._now_us = now_us
        self._log = LogView(store)
        self._membership = Membership(self._log)
        self._outbox = Outbox(key, hard_state, self._log)
        self._election = Election(
            key, config, random, hard_state, self._log, self._membership, self._outbox, now_us
        )
        self._follower = Follower(
            key, config, self._log, self._membership, self._outbox, seeds, now_us
        )
        self._leader: Leader | None = None
        self._restore: SnapshotMeta | None = None
        self._handed_out: Ready | None = None
        self.is_failed = False
        if self._membership.is_only_voter(key):
            self._ask_for_votes(now_us)  # There is nobody to wait for.

    # --- looking -------------------------------------------------------------------------------
    @property
    def role(self) -> Role:
        return self._election.role

    @property
    def term(self) -> int:
        return self._election.term

    @property
    def leader(self) -> ReplicaKey | None:
        """Who leads, as far as this replica knows."""
        return self._election.leader

    @property
    def voters(self) -> Voters:
        """The voters as of the newest entry here, committed or not."""
        return self._membership.voters

    @property
    def match_indexes(self) -> dict[ReplicaKey, int]:
        """Where this leader knows others' logs to equal its own, durably. For any thread."""
        leader = self._leader
        return {} if leader is None else leader.match_indexes

    @property
    def forgotten(self) -> dict[ReplicaKey, int]:
        """Replicas that lack entries which they have acknowledged, and up to where they did: this
        one, as its leader's heartbeats prove, or, where this one leads, others. Their disks are in
        an earlier state. Nothing is sent again, for it may be acknowledged once only."""
        return self._follower.forgotten if self._leader is None else self._leader.forgotten

    @property
    def heard_us(self) -> dict[ReplicaKey, int]:
        """When this leader last heard of each replica that it follows up."""
        return {} if self._leader is None else self._leader.heard_us

    @property
    def majority_confirmed_us(self) -> int | None:
        """A majority has heard this leader then, or later: whoever is elected next finds a moment
        that is no earlier in `led_before_us`. None: it does not lead."""
        return None if self._leader is None else self._leader.majority_confirmed_us

    @property
    def led_before_us(self) -> int:
        """Of a leader: no leader of an earlier term was confirmed by a majority after that."""
        return self._election.led_before_us

    @property
    def log(self) -> LogView:
        """To look at only."""
        return self._log

    @property
    def next_deadline_us(self) -> int:
        """When `tick` is to be called at the latest."""
        if self.is_failed:
            return _NEVER_US
        if self._leader is not None:
            return self._leader.deadline_us
        if self._election.may_campaign:
            return self._election.deadline_us
        return self._follower.observe_due_us

    # --- messages ------------------------------------------------------------------------------
    def step(self, message: Message, now_us: int) -> None:
        """A message arrived."""
        self._at(now_us)
        if self.is_failed or not self._is_meant(message.target):
            return
        if isinstance(message, PreVote):
            self._election.on_pre_vote(message, now_us)
            if self._leader is not None and not self._membership.is_voter(message.source):
                # It was removed while it was away, and learns so from the log.
                self._leader.on_observe(message.source, now_us)
            return
        if message.term > self.term:
            if isinstance(message, _OF_LEADERS) and self._election.ignores(message.source, now_us):
                return  # Who has lost its vote may speak all the same: it only wants to follow.
            self._step_down(message.term, now_us)
        if isinstance(message, Append | Heartbeat | SnapshotChunk):
            self._on_leader_message(message, now_us)
        elif isinstance(message, Vote):
            self._election.on_vote(message, now_us)
        elif isinstance(message, PreVoteResponse):
            if self._election.on_pre_vote_response(message):
                self._election.campaign(now_us)
        elif isinstance(message, VoteResponse):
            if self._election.on_vote_response(message, now_us):
                self._lead(now_us)
        elif isinstance(message, TimeoutNow):
            if message.term == self.term and message.source == self.leader != self.key:
                self._take_over(now_us)
        elif isinstance(message, Observe):
            if self._leader is not None:
                self._leader.on_observe(message.source, now_us)
        elif message.term == self.term:
            self._on_answer(message, now_us)

    def told_leader(self, leader: ReplicaKey) -> None:
        """A replica that was asked for the log, and does not lead, names the leader it follows."""
        if not self.is_failed and self.leader is None and leader.node_id != self.key.node_id:
            self._follower.told_leader = leader

    def _at(self, now_us: int) -> None:
        """The host calls: the moment is not before the last one, and roles are as they must be.

        A leader judges the time that has passed before it believes what has waited for it: after a
        pause, answers in its buffers were given long ago.
        """
        assert now_us >= self._now_us, "the clock only grows"
        assert (self._leader is None) == (self.role is not Role.LEADER)
        assert self._leader is None or self.leader == self.key
        self._now_us = now_us
        if self._leader is not None and now_us >= self._leader.quorum_deadline_us:
            self._step_down(self.term, now_us)
            assert self._leader is None

    def _is_meant(self, target: ReplicaKey) -> bool:
        """A message for another disk of this node is not for us: it may ask to keep a promise that
        only that disk remembers."""
        if target.node_id != self.key.node_id:
            return False
        return target.directory_id in ("", self.key.directory_id)

    def _on_leader_message(self, message: Append | Heartbeat | SnapshotChunk, now_us: int) -> None:
        if message.term < self.term:
            self._follower.answer_stale(message, self.term)
            return
        assert message.term == self.term, "a newer term was taken over before"
        self._election.hear_leader(message.source, now_us)
        self._follower.heard_leader(message, now_us)
        if isinstance(message, Append):
            self._follower.on_append(message)
        elif isinstance(message, Heartbeat):
            self._follower.on_heartbeat(message)
        else:
            self._follower.on_chunk(message)

    def _on_answer(
        self, message: AppendResponse | HeartbeatResponse | SnapshotChunkResponse, now_us: int
    ) -> None:
        if self._leader is not None and self._leader.on_message(message, now_us):
            self._commit_moved(now_us)

    # --- time ----------------------------------------------------------------------------------
    def tick(self, now_us: int) -> None:
        """Time has passed. Calling it early does nothing."""
        self._at(now_us)
        if self.is_failed:
            return
        if self._leader is not None:
            self._leader.tick(now_us)
        elif not self._election.may_campaign:
            if now_us >= self._follower.observe_due_us:
                self._follower.observe(self.term, now_us)
        elif now_us >= self._election.deadline_us:
            self._ask_for_votes(now_us)

    # --- roles ---------------------------------------------------------------------------------
    def _ask_for_votes(self, now_us: int) -> None:
        if self._election.timed_out(now_us):
            self._election.campaign(now_us)
        else:
            # Perhaps there is a leader, and this replica was removed while it was away.
            self._follower.observe(self.term, now_us)

    def _take_over(self, now_us: int) -> None:
        # The leader has chosen this replica, so nobody needs to be asked whether it is dead.
        if self._election.may_campaign:
            self._election.campaign(now_us)

    def _lead(self, now_us: int) -> None:
        assert self._leader is None, "one leadership in a term"
        self._election.lead()
        self._leader = Leader(
            self.key, self.term, self._config, self._log, self._membership, self._outbox, now_us
        )

    def _step_down(self, term: int, now_us: int) -> None:
        assert term >= self.term
        if term > self.term:
            self._follower.term_changed()
        self._leader = None
        self._election.follow(term, None, now_us)

    def _commit_moved(self, now_us: int) -> None:
        """A leader that was removed leads until that is committed (thesis, section 4.2.2)."""
        assert self._leader is not None
        if not self._membership.is_voter(self.key) and self._membership.index <= self._log.commit:
            self._leader.hand_over_now()
            self._step_down(self.term, now_us)

    # --- proposals -----------------------------------------------------------------------------
    def propose(self, data: Sequence[bytes], now_us: int) -> Place:
        """Append entries, one behind the other. Returns the place of the last one.

        They are decided when an entry of that term is in `committed` at that index, and lost when
        one of another term is.

        Raises:
            ProposalRefused: nothing was appended.
        """
        return self._must_lead(now_us).propose(data, now_us)

    def is_caught_up(self, key: ReplicaKey, now_us: int) -> bool:
        """True when this leader would make that replica a voter now."""
        return self._leader is not None and self._leader.is_caught_up(key, now_us)

    def is_silent(self, voter: ReplicaKey, now_us: int) -> bool:
        """True when this leader has not heard that voter for an election timeout: it decides with
        others, of whom a majority is heard, or it would not lead."""
        return self._leader is not None and self._leader.is_silent(voter, now_us)

    def add_voter(
        self, key: ReplicaKey, endpoint: str, now_us: int, *, own_endpoint: str = ""
    ) -> Place:
        """Propose one voter more: a replica that has observed and caught up."""
        return self._must_lead(now_us).add_voter(key, endpoint, own_endpoint, now_us)

    def remove_voter(self, key: ReplicaKey, now_us: int) -> Place:
        """Propose one voter less; it may be the leader itself."""
        stay = self.check_removal(key, now_us)
        return self._must_lead(now_us).propose_voters(stay, now_us)

    def check_removal(self, key: ReplicaKey, now_us: int) -> Voters:
        """The voters without that one. Raises ProposalRefused where they could decide nothing."""
        leader = self._must_lead(now_us)
        stay = self._membership.without_voter(key)
        leader.check_heard(stay, now_us)
        return stay

    def move_voter(self, key: ReplicaKey, endpoint: str, now_us: int) -> Place:
        """Propose another endpoint for a voter."""
        leader = self._must_lead(now_us)
        return leader.propose_voters(self._membership.with_endpoint(key, endpoint), now_us)

    def transfer_leadership(self, target: ReplicaKey | None, now_us: int) -> None:
        """Hand leadership to another voter (None: the one that lags least), or go on leading."""
        self._must_lead(now_us).transfer(target, now_us)

    def _must_lead(self, now_us: int) -> Leader:
        self._at(now_us)
        if self._leader is None:
            raise ProposalRefused(Refusal.NOT_LEADER, self.leader)
        return self._leader

    # --- finished jobs -------------------------------------------------------------------------
    def persisted(self, write: Write, now_us: int) -> None:
        """A write is durable, and the store shows it."""
        assert self._handed_out is None, "the duties of a Ready are done in one go"
        assert not self.is_failed
        self._at(now_us)
        self._outbox.complete_write(write)
        if write.chunk is not None:
            self._restore = self._follower.chunk_written(write, self.term) or self._restore
        for message in self._outbox.take_own():
            self.step(message, now_us)
        if self._leader is not None and self._leader.advance_commit():
            self._commit_moved(now_us)

    def chunk_read(self, read: SnapshotRead, data: bytes | None, done: bool, now_us: int) -> None:
        """A chunk was read, the last one if `done`; None when that snapshot is not there."""
        self._at(now_us)
        if self._leader is not None:
            self._leader.chunk_read(read, data, done, now_us)

    def snapshot_point(self) -> SnapshotMeta:
        """What a snapshot of the state machine, as it is now, stands for.

        That is what was applied, which is committed and durable here. What is only in the log may
        still be replaced (paper, section 7; KIP-630).
        """
        index = self._log.applied
        term = self._log.term(index)
        assert term is not None
        assert index <= self._log.durable_index, "a snapshot never runs ahead of the disk"
        return SnapshotMeta(index, term, self._membership.at(index))

    def snapshot_taken(self) -> None:
        """The store shows a newer snapshot, and may have dropped entries that it stands for."""
        assert self._log.snapshot.index <= self._log.applied
        assert self._log.first_index <= self._log.snapshot.index + 1, "entries without a gap"
        self._membership.snapshot_taken(self._log.snapshot.index)

    def fail(self, now_us: int) -> None:
        """The disk is out of service: hand over if this replica leads, and promise nothing more."""
        # First, so that one that a bug has broken writes nothing either.
        self._outbox.fail()
        self.is_failed = True
        if self._leader is not None:
            self._leader.hand_over_now()
            self._step_down(self.term, now_us)

    # --- out -----------------------------------------------------------------------------------
    @property
    def has_ready(self) -> bool:
        if self._handed_out is not None:
            return False
        return (
            (self._leader is not None and self._leader.wants_to_send)
            or self._outbox.has_messages
            or self._outbox.has_write
            or self._restore is not None
            or self._log.has_to_apply
        )

    def ready(self) -> Ready:
        """What the host has to do now."""
        assert self._handed_out is None, "advance comes first"
        reads: tuple[SnapshotRead, ...] = ()
        if self._leader is not None:
            reads = self._leader.send(self._now_us)
        self._handed_out = Ready(
            messages=self._outbox.take_messages(),
            write=self._outbox.begin_write(),
            reads=reads,
            restore=self._restore,
            committed=self._log.to_apply(self._config.apply_bytes_max),
        )
        committed = self._handed_out.committed
        assert not committed or committed[0].index == self._log.applied + 1, "each entry once"
        return self._handed_out

    def advance(self, ready: Ready) -> None:
        """The duties of this `Ready` are done, jobs started."""
        assert ready is self._handed_out
        self._handed_out = None
        self._restore = None
        if ready.committed:
            self._log.applied_to(ready.committed[-1].index)
