"""One replica of the quorum's log: messages, ticks and finished jobs in, one `Ready` out.

The host, after every call and while `has_ready` is true, takes one `ready()` and at once:
1. sends `messages` (they may get lost, late, doubled or out of order);
2. starts `write` as a job (see `Write`), one at a time; calls `persisted` when all of it is durable
   and `store` shows it, or `fail` when it failed, as the disk's state is then unknown;
3. starts each of `reads` as a job, reported with `chunk_read`;
4. sets the state machine to the snapshot `restore`, if any; then applies `committed` in order;
5. calls `advance`.
It calls `tick` at `next_deadline_us`. No call does I/O, waits, or reads a clock.
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


class Ready(NamedTuple):
    messages: tuple[Message, ...]
    write: Write | None
    reads: tuple[SnapshotRead, ...]
    restore: SnapshotMeta | None
    committed: tuple[Entry, ...]


class Raft:
    """`hard_state`: as stored last. `seeds`: node ids that a replica without a vote asks for the
    log, besides the voters."""

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
            self._ask_for_votes(now_us)  # The only voter need not wait for a leader.

    # --- looking -------------------------------------------------------------------------------
    @property
    def role(self) -> Role:
        return self._election.role

    @property
    def term(self) -> int:
        return self._election.term

    @property
    def leader(self) -> ReplicaKey | None:
        return self._election.leader

    @property
    def voters(self) -> Voters:
        return self._membership.voters

    @property
    def match_indexes(self) -> dict[ReplicaKey, int]:
        """Return up to where each follower's log equals this one, durably. For any thread."""
        leader = self._leader
        return {} if leader is None else leader.match_indexes

    @property
    def lost_entries(self) -> dict[ReplicaKey, int]:
        """Return the voters that lack entries which they acknowledged, each with that index: this
        one, by its leader's heartbeats, or followers of this leader. Their disks show an earlier
        state.

        The leader does not send those entries again: a second acknowledgement would count twice.
        """
        return self._follower.lost_entries if self._leader is None else self._leader.lost_entries

    @property
    def last_contact_us(self) -> dict[ReplicaKey, int]:
        return {} if self._leader is None else self._leader.last_contact_us

    @property
    def majority_confirmed_us(self) -> int | None:
        """A majority had contact with this leader then or later; None: this replica does not
        lead."""
        return None if self._leader is None else self._leader.majority_confirmed_us

    @property
    def led_before_us(self) -> int:
        return self._election.led_before_us

    @property
    def log(self) -> LogView:
        return self._log

    @property
    def next_deadline_us(self) -> int:
        if self.is_failed:
            return _NEVER_US
        if self._leader is not None:
            return self._leader.deadline_us
        if self._election.may_campaign:
            return self._election.deadline_us
        return self._follower.observe_due_us

    # --- messages ------------------------------------------------------------------------------
    def step(self, message: Message, now_us: int) -> None:
        self._at(now_us)
        if self.is_failed or not self._is_addressed(message.target):
            return
        if isinstance(message, PreVote):
            self._election.on_pre_vote(message, now_us)
            if self._leader is not None and not self._membership.is_voter(message.source):
                # It was removed while it was away; the log it gets has the removal.
                self._leader.on_observe(message.source, now_us)
            return
        if message.term > self.term:
            if isinstance(message, _OF_LEADERS) and self._election.ignores(message.source, now_us):
                return  # A replica without a vote would only raise the term.
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

    def on_leader_named(self, leader: ReplicaKey) -> None:
        if not self.is_failed and self.leader is None and leader.node_id != self.key.node_id:
            self._follower.named_leader = leader

    def _at(self, now_us: int) -> None:
        """A leader judges the time that has passed before it counts answers: after a pause, those
        in its buffers are old."""
        assert now_us >= self._now_us, "the clock only grows"
        assert (self._leader is None) == (self.role is not Role.LEADER)
        assert self._leader is None or self.leader == self.key
        self._now_us = now_us
        if self._leader is not None and now_us >= self._leader.quorum_deadline_us:
            self._step_down(self.term, now_us)
            assert self._leader is None

    def _is_addressed(self, target: ReplicaKey) -> bool:
        if target.node_id != self.key.node_id:
            return False
        return target.directory_id in ("", self.key.directory_id)

    def _on_leader_message(self, message: Append | Heartbeat | SnapshotChunk, now_us: int) -> None:
        if message.term < self.term:
            self._follower.answer_stale(message, self.term)
            return
        assert message.term == self.term, "a newer term was taken over before"
        self._election.on_leader_message(message.source, now_us)
        self._follower.on_leader_message(message, now_us)
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
            # There may be a leader, and this replica was removed while it was away.
            self._follower.observe(self.term, now_us)

    def _take_over(self, now_us: int) -> None:
        # The leader chose this replica, so no pre-vote has to find out whether the leader is alive.
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
        assert self._leader is not None
        if not self._membership.is_voter(self.key) and self._membership.index <= self._log.commit:
            self._leader.hand_over_now()
            self._step_down(self.term, now_us)

    # --- proposals -----------------------------------------------------------------------------
    def propose(self, data: Sequence[bytes], now_us: int) -> Place:
        """Append entries; return the place of the last one.

        They are decided when an entry of that term is in `committed` at that index, and lost when
        one of another term is. Raises ProposalRefused: nothing was appended.
        """
        return self._must_lead(now_us).propose(data, now_us)

    def is_caught_up(self, key: ReplicaKey, now_us: int) -> bool:
        return self._leader is not None and self._leader.is_caught_up(key, now_us)

    def is_silent(self, voter: ReplicaKey, now_us: int) -> bool:
        return self._leader is not None and self._leader.is_silent(voter, now_us)

    def add_voter(
        self, key: ReplicaKey, endpoint: str, now_us: int, *, own_endpoint: str = ""
    ) -> Place:
        return self._must_lead(now_us).add_voter(key, endpoint, own_endpoint, now_us)

    def remove_voter(self, key: ReplicaKey, now_us: int) -> Place:
        stay = self.check_removal(key, now_us)
        return self._must_lead(now_us).propose_voters(stay, now_us)

    def check_removal(self, key: ReplicaKey, now_us: int) -> Voters:
        leader = self._must_lead(now_us)
        stay = self._membership.without_voter(key)
        leader.check_majority_reachable(stay, now_us)
        return stay

    def move_voter(self, key: ReplicaKey, endpoint: str, now_us: int) -> Place:
        leader = self._must_lead(now_us)
        return leader.propose_voters(self._membership.with_endpoint(key, endpoint), now_us)

    def transfer_leadership(self, target: ReplicaKey | None, now_us: int) -> None:
        """Hand leadership over (None: to the voter that lags least); without success, go on
        leading."""
        self._must_lead(now_us).transfer(target, now_us)

    def _must_lead(self, now_us: int) -> Leader:
        self._at(now_us)
        if self._leader is None:
            raise ProposalRefused(Refusal.NOT_LEADER, self.leader)
        return self._leader

    # --- finished jobs -------------------------------------------------------------------------
    def persisted(self, write: Write, now_us: int) -> None:
        assert self._handed_out is None, "the duties of a Ready are done in one go"
        assert not self.is_failed
        self._at(now_us)
        self._outbox.complete_write(write)
        if write.chunk is not None:
            self._restore = self._follower.chunk_written(write, self.term) or self._restore
        # Own votes and acknowledgements count only now that they are durable (paper, section 5.1).
        for message in self._outbox.take_own():
            self.step(message, now_us)
        if self._leader is not None and self._leader.advance_commit():
            self._commit_moved(now_us)

    def chunk_read(self, read: SnapshotRead, data: bytes | None, done: bool, now_us: int) -> None:
        self._at(now_us)
        if self._leader is not None:
            self._leader.chunk_read(read, data, done, now_us)

    def snapshot_point(self) -> SnapshotMeta:
        """Return what a snapshot covers: what was applied, which is committed and durable here.

        Entries that are only in the log may still be replaced (paper, section 7; KIP-630).
        """
        index = self._log.applied
        term = self._log.term(index)
        assert term is not None
        assert index <= self._log.durable_index, "a snapshot never runs ahead of the disk"
        return SnapshotMeta(index, term, self._membership.at(index))

    def snapshot_taken(self) -> None:
        assert self._log.snapshot.index <= self._log.applied
        assert self._log.first_index <= self._log.snapshot.index + 1, "entries without a gap"
        self._membership.snapshot_taken(self._log.snapshot.index)

    def fail(self, now_us: int) -> None:
        """Stop for a failed disk: hand leadership over, and promise nothing more."""
        # First, so that a replica that a bug has broken writes nothing either.
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
        assert ready is self._handed_out
        self._handed_out = None
        self._restore = None
        if ready.committed:
            self._log.applied_to(ready.committed[-1].index)
