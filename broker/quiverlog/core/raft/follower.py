"""What a replica does with its leader's messages, and how an observer finds the leader.

Invariants:
- An append is acknowledged only up to what is durable here (paper, section 5.3). The answer to a
  heartbeat waits for the term, but for no entries: a slow disk is no dead replica.
- Nothing is appended or committed while a snapshot is about to replace the log.
- Without a vote, a heartbeat commits only entries found equal to the log of this term's leader
  since the start: this replica may have restarted with an earlier state of its disk, while the
  leader still counts what it acknowledged before.
"""

from __future__ import annotations

from quiverlog.core.raft.log import LogView
from quiverlog.core.raft.membership import Membership
from quiverlog.core.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Observe,
    RaftConfig,
    ReplicaKey,
    SnapshotChunk,
    SnapshotMeta,
)
from quiverlog.core.raft.outbox import Outbox, Write
from quiverlog.core.raft.snapshots import SnapshotReceiver

__all__ = ["Follower"]

_SILENT_HEARTBEATS = 3
"""After this many heartbeats without a leader, an observer asks for the log again."""


class Follower:
    __slots__ = (
        "_equal_index",
        "_equal_term",
        "_key",
        "_log",
        "_membership",
        "_outbox",
        "_receiver",
        "_seeds",
        "_silence_us",
        "lost_entries",
        "named_leader",
        "observe_due_us",
    )

    def __init__(
        self,
        key: ReplicaKey,
        config: RaftConfig,
        log: LogView,
        membership: Membership,
        outbox: Outbox,
        seeds: tuple[int, ...],
        now_us: int,
    ) -> None:
        self._key = key
        self._log = log
        self._membership = membership
        self._outbox = outbox
        self._receiver = SnapshotReceiver(key, log, outbox)
        self._seeds = seeds
        self._silence_us = _SILENT_HEARTBEATS * config.heartbeat_us
        self._equal_term = 0
        self._equal_index = 0
        """Up to here this log was found equal to that of the leader of `_equal_term`."""
        self.observe_due_us = now_us
        self.named_leader: ReplicaKey | None = None
        """Named by a replica that was asked; not necessarily a voter as of this log."""
        self.lost_entries: dict[ReplicaKey, int] = {}
        """This replica and the index up to which it acknowledged entries, where its log is
        shorter."""

    # --- entries -------------------------------------------------------------------------------
    def on_append(self, message: Append) -> bool:
        if self._receiver.is_installing:
            return False  # The leader sends it again.
        if message.prev_index < self._log.commit:
            # A late message. What is committed here is in every later leader's log (paper, 5.4.3).
            self._accept(message, self._log.commit)
            return False
        if not self._log.matches(message.prev_index, message.prev_term):
            self._refuse(message)
            return False
        new = self._log.append_from_leader(message.prev_index, message.entries)
        changed = self._membership.appended(new)
        # Entries after this message may be an older leader's: nothing beyond it is committed.
        last_equal = message.prev_index + len(message.entries)
        assert last_equal >= self._log.commit
        assert last_equal <= self._log.last_index, "all that the message brought is here"
        self._found_equal(message.term, last_equal)
        self._log.commit_to(min(message.commit, last_equal))
        self._accept(message, last_equal)
        return changed

    def _accept(self, message: Append, index: int) -> None:
        assert index >= self._log.commit, "what is committed here equals the leader's log"
        assert index <= self._log.last_index, "only what is here is acknowledged"
        response = AppendResponse(
            source=self._key,
            target=message.source,
            term=message.term,
            accepted=True,
            index=index,
        )
        self._outbox.send_durable(response, index)

    def _refuse(self, message: Append) -> None:
        assert message.prev_index >= self._log.commit, "committed entries match every leader's"
        hint = self._log.newest_possible_match(message.prev_index, message.prev_term)
        assert hint.index <= message.prev_index
        response = AppendResponse(
            source=self._key,
            target=message.source,
            term=message.term,
            accepted=False,
            index=message.prev_index,
            hint_index=hint.index,
            hint_term=hint.term,
        )
        self._outbox.send_durable(response)

    def on_heartbeat(self, message: Heartbeat) -> None:
        if not self._receiver.is_installing:
            # The leader never sends more than this voter acknowledged: its disk shows an earlier
            # state.
            if message.commit > self._log.last_index and self._membership.is_voter(self._key):
                self.lost_entries = {self._key: message.commit}
            self._log.commit_to(min(message.commit, self._acknowledged(message.term)))
        response = HeartbeatResponse(
            source=self._key, target=message.source, term=message.term, sent_us=message.sent_us
        )
        self._outbox.send_durable(response)

    def _acknowledged(self, term: int) -> int:
        """Return up to where this replica keeps its acknowledgements to that term's leader.

        A voter keeps all. Nothing rests on an observer, which may restart with an earlier disk.
        """
        if self._membership.is_voter(self._key):
            return self._log.last_index
        equal = self._equal_index if term == self._equal_term else 0
        return max(self._log.commit, min(equal, self._log.last_index))

    def _found_equal(self, term: int, index: int) -> None:
        """Record an equal prefix. A leader's log only grows: it stays equal in that term."""
        known = self._equal_index if term == self._equal_term else 0
        assert term >= self._equal_term
        self._equal_term, self._equal_index = term, max(known, index)

    def answer_stale(self, message: Append | Heartbeat | SnapshotChunk, term: int) -> None:
        """Answer a leader of an older term: it steps down even where pre-vote keeps this replica
        from asking for votes (as in etcd's raft)."""
        assert message.term < term
        response = HeartbeatResponse(source=self._key, target=message.source, term=term)
        self._outbox.send_durable(response)

    # --- snapshots -----------------------------------------------------------------------------
    def on_chunk(self, message: SnapshotChunk) -> None:
        self._receiver.on_chunk(message)

    def chunk_written(self, write: Write, term: int) -> SnapshotMeta | None:
        chunk = write.chunk
        assert chunk is not None
        restored = None
        if self._receiver.written(chunk):
            restored = self._log.restored()
            assert restored == chunk.snapshot, "the store shows another snapshot"
            assert not self._receiver.is_installing
            self._membership.restored(restored.index, restored.voters)
        if chunk.term == term:
            self._receiver.answer_written(chunk)
        return restored

    def term_changed(self) -> None:
        self._receiver.drop_unwritten()

    # --- observing -----------------------------------------------------------------------------
    def on_leader_message(self, message: Append | Heartbeat | SnapshotChunk, now_us: int) -> None:
        """Postpone the next `observe`.

        Not at a heartbeat that counts more than this disk acknowledged: that leader sends no
        entries.
        """
        self.named_leader = None
        if not isinstance(message, Heartbeat) or message.commit <= self._acknowledged(message.term):
            self.observe_due_us = now_us + self._silence_us

    def observe(self, term: int, now_us: int) -> None:
        """Ask for the log: the leader answers with appends, hosts of others may name it."""
        self.observe_due_us = now_us + self._silence_us
        assert self.observe_due_us > now_us, "a replica does not ask without a pause"
        voters = self._membership.voters
        known = {voter.node_id for voter in voters}
        seeds = [ReplicaKey(node_id, "") for node_id in self._seeds if node_id not in known]
        named = () if self.named_leader in (None, *voters) else (self.named_leader,)
        for target in (*voters, *seeds, *named):
            if target.node_id != self._key.node_id:
                self._outbox.send(Observe(source=self._key, target=target, term=term))
