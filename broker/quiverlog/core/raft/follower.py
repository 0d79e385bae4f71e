"""What a replica does with the messages of its leader, and how an observer finds one.

Owns the answers to appends, heartbeats and chunks, and the moment at which a replica without a vote
asks for the log again. (A voter asks when it finds no majority: it may be none any more.)

Invariants:
- An append is acknowledged only up to what is durable here (paper, section 5.3); the answer
  waits in the outbox. A heartbeat is answered at once: a slow disk is no dead replica.
- Nothing is appended or committed while a snapshot is about to take the place of the log.
- Without a vote, a replica commits at a heartbeat's word only what it has found equal to the log of
  this term's leader since it started: it may have come back with an earlier state of its disk,
  while the leader still counts what its earlier life had acknowledged.

Must not know: roles and terms (whoever calls has settled that the sender leads this term).
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
"""After so many heartbeats without a leader an observer asks for the log again."""


class Follower:
    """See the module docstring."""

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
        "forgotten",
        "observe_due_us",
        "told_leader",
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
        self.told_leader: ReplicaKey | None = None
        """Named by a replica that was asked. It need not be among those that are known here."""
        self.forgotten: dict[ReplicaKey, int] = {}
        """This replica, and the index up to which it acknowledged more than it has."""

    # --- entries -------------------------------------------------------------------------------
    def on_append(self, message: Append) -> bool:
        """Take entries over, and answer. True when the voters changed."""
        if self._receiver.is_installing:
            return False  # The leader sends it again.
        if message.prev_index < self._log.commit:
            # An old message: what is committed here is in the leader's log (leader completeness).
            self._accept(message, self._log.commit)
            return False
        if not self._log.matches(message.prev_index, message.prev_term):
            self._refuse(message)
            return False
        new = self._log.append_from_leader(message.prev_index, message.entries)
        changed = self._membership.appended(new)
        # Only up to the end of this message is the log known to be the leader's.
        last_equal = message.prev_index + len(message.entries)
        assert last_equal >= self._log.commit
        assert last_equal <= self._log.last_index, "all that the message brought is here"
        self._found_equal(message.term, last_equal)
        self._log.commit_to(min(message.commit, last_equal))
        self._accept(message, last_equal)
        return changed

    def _accept(self, message: Append, index: int) -> None:
        assert index >= self._log.commit, "what is committed here equals the leader's log"
        assert index <= self._log.last_index, "nobody acknowledges what is not here"
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
        """The leader lives, and has committed up to an index that this replica acknowledged."""
        if not self._receiver.is_installing:
            if message.commit > self._log.last_index and self._membership.is_voter(self._key):
                self.forgotten = {self._key: message.commit}
            self._log.commit_to(min(message.commit, self._acknowledged(message.term)))
        response = HeartbeatResponse(
            source=self._key, target=message.source, term=message.term, sent_us=message.sent_us
        )
        self._outbox.send_durable(response)

    def _acknowledged(self, term: int) -> int:
        """Up to where this replica keeps its word to that term's leader. A voter has promised to
        forget nothing. Nothing rests on an observer, which may begin anew with an earlier disk."""
        if self._membership.is_voter(self._key):
            return self._log.last_index
        equal = self._equal_index if term == self._equal_term else 0
        return max(self._log.commit, min(equal, self._log.last_index))

    def _found_equal(self, term: int, index: int) -> None:
        """A leader's log only grows, so what was equal in a term stays so."""
        known = self._equal_index if term == self._equal_term else 0
        assert term >= self._equal_term
        self._equal_term, self._equal_index = term, max(known, index)

    def answer_stale(self, message: Append | Heartbeat | SnapshotChunk, term: int) -> None:
        """Somebody leads an older term and does not know it. The answer's term tells, also where
        pre-vote keeps this replica from asking for votes (etcd's raft does so for that reason)."""
        assert message.term < term
        response = HeartbeatResponse(source=self._key, target=message.source, term=term)
        self._outbox.send_durable(response)

    # --- snapshots -----------------------------------------------------------------------------
    def on_chunk(self, message: SnapshotChunk) -> None:
        """Take bytes of a snapshot."""
        self._receiver.on_chunk(message)

    def chunk_written(self, write: Write, term: int) -> SnapshotMeta | None:
        """A write with a chunk is durable. Returns the snapshot that is the log from now on."""
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
        """Chunks of an older leader that are in no write yet are not wanted."""
        self._receiver.forget_unwritten()

    # --- observing -----------------------------------------------------------------------------
    def heard_leader(self, message: Append | Heartbeat | SnapshotChunk, now_us: int) -> None:
        """No need to ask, unless the leader counts on an earlier life and sends nothing more."""
        self.told_leader = None
        if not isinstance(message, Heartbeat) or message.commit <= self._acknowledged(message.term):
            self.observe_due_us = now_us + self._silence_us

    def observe(self, term: int, now_us: int) -> None:
        """Ask every voter that is known, by the log or by the host, for the log, and the leader
        that one of them has named. The leader answers with appends; the others send no message,
        but their hosts may say which leader they follow."""
        self.observe_due_us = now_us + self._silence_us
        assert self.observe_due_us > now_us, "a replica does not ask without a pause"
        voters = self._membership.voters
        known = {voter.node_id for voter in voters}
        seeds = [ReplicaKey(node_id, "") for node_id in self._seeds if node_id not in known]
        told = () if self.told_leader in (None, *voters) else (self.told_leader,)
        for target in (*voters, *seeds, *told):
            if target.node_id != self._key.node_id:
                self._outbox.send(Observe(source=self._key, target=target, term=term))
