"""One leadership: a new object, in which nothing of an older term can be counted.

Checks proposals, and passes them and the answers to `replication` and `snapshots`.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.core.raft.log import LogView, Place
from quiverlog.core.raft.membership import Membership, pack_voters
from quiverlog.core.raft.messages import (
    AppendResponse,
    EntryKind,
    HeartbeatResponse,
    ProposalRefused,
    RaftConfig,
    Refusal,
    ReplicaKey,
    SnapshotChunkResponse,
    Voters,
)
from quiverlog.core.raft.outbox import Outbox
from quiverlog.core.raft.replication import Replication
from quiverlog.core.raft.snapshots import SnapshotRead, SnapshotSender

__all__ = ["Leader"]


class Leader:
    __slots__ = ("_key", "_log", "_membership", "_replication", "_sender", "_term")

    def __init__(
        self,
        key: ReplicaKey,
        term: int,
        config: RaftConfig,
        log: LogView,
        membership: Membership,
        outbox: Outbox,
        now_us: int,
    ) -> None:
        self._key = key
        self._term = term
        self._log = log
        self._membership = membership
        self._replication = Replication(key, term, config, log, membership, outbox, now_us)
        self._sender = SnapshotSender(key, term, config, log, outbox)
        # Nothing older can be committed before an entry of this leader's own term (paper, section
        # 8).
        self._replication.append(EntryKind.NO_OP, b"", now_us)
        self._replication.tick(now_us)
        assert log.last.term == term
        assert log.commit < log.last_index, "an election commits nothing"

    # --- proposals -----------------------------------------------------------------------------
    def propose(self, data: Sequence[bytes], now_us: int) -> Place:
        assert data
        self._replication.check_proposal(data)
        index = 0
        for each in data:
            index = self._replication.append(EntryKind.DATA, each, now_us)
        assert index == self._log.last_index
        return Place(index, self._term)

    @property
    def match_indexes(self) -> dict[ReplicaKey, int]:
        # A copy: metrics read it from another thread.
        return {key: one.match for key, one in list(self._replication.progress.items())}

    @property
    def lost_entries(self) -> dict[ReplicaKey, int]:
        return self._replication.lost_entries

    @property
    def last_contact_us(self) -> dict[ReplicaKey, int]:
        return {key: one.last_contact_us for key, one in list(self._replication.progress.items())}

    def is_caught_up(self, key: ReplicaKey, now_us: int) -> bool:
        try:
            self._replication.check_caught_up(key, now_us)
        except ProposalRefused:
            return False
        return True

    def is_silent(self, voter: ReplicaKey, now_us: int) -> bool:
        return self._replication.is_silent(voter, now_us)

    def add_voter(self, key: ReplicaKey, endpoint: str, own_endpoint: str, now_us: int) -> Place:
        voters = self._membership.with_voter(key, endpoint)
        if own_endpoint and self._key in voters:
            voters[self._key] = own_endpoint
        self._replication.check_caught_up(key, now_us)
        return self.propose_voters(voters, now_us)

    def check_majority_reachable(self, stay: Voters, now_us: int) -> None:
        self._replication.check_majority_reachable(stay, now_us)

    def propose_voters(self, voters: Voters, now_us: int) -> Place:
        changed = voters.keys() ^ self._membership.voters.keys()
        assert len(changed) <= 1, "the majorities before and after share a replica"
        data = pack_voters(voters)
        self._membership.check_change(self._log, self._term)
        self._replication.check_proposal([data])
        index = self._replication.append(EntryKind.VOTERS, data, now_us)
        assert self._membership.voters == voters, "a set counts from the moment it is appended"
        return Place(index, self._term)

    def transfer(self, target: ReplicaKey | None, now_us: int) -> None:
        target = target or self._replication.closest_voter()
        if target is None:
            raise ProposalRefused(Refusal.LAST_VOTER)
        self._replication.transfer(target, now_us)

    def hand_over_now(self) -> None:
        # First, so that the followers get this leader's last commits, as far as they may be sent.
        self._replication.send()
        successor = self._replication.closest_voter()
        if successor is not None:
            self._replication.ask_to_take_over(successor)

    # --- answers -------------------------------------------------------------------------------
    def on_observe(self, key: ReplicaKey, now_us: int) -> None:
        self._replication.on_observe(key, now_us)

    def on_message(
        self,
        message: AppendResponse | HeartbeatResponse | SnapshotChunkResponse,
        now_us: int,
    ) -> bool:
        assert message.term == self._term
        progress = self._replication.contact(message.source, now_us)
        if progress is None:
            return False
        assert progress.key == message.source
        if isinstance(message, AppendResponse):
            return self._replication.on_append_response(progress, message)
        if isinstance(message, HeartbeatResponse):
            self._replication.on_heartbeat_response(progress, message, now_us)
            return False
        if not self._sender.on_response(progress, message, now_us):
            return False
        self._replication.wants_to_send = True  # The entries after the snapshot.
        return self._replication.advance_commit()

    def chunk_read(self, read: SnapshotRead, data: bytes | None, done: bool, now_us: int) -> None:
        progress = self._replication.progress.get(read.target)
        if progress is not None:
            assert progress.key == read.target
            self._sender.on_read(progress, read, data, done, now_us)
            self._replication.wants_to_send = True

    def advance_commit(self) -> bool:
        return self._replication.advance_commit()

    # --- time and sending ------------------------------------------------------------------------
    @property
    def majority_confirmed_us(self) -> int:
        confirmed_us = self._replication.majority_confirmed_us
        assert confirmed_us >= 0
        return confirmed_us

    @property
    def quorum_deadline_us(self) -> int:
        return self._replication.quorum_deadline_us

    @property
    def deadline_us(self) -> int:
        return self._replication.deadline_us

    def tick(self, now_us: int) -> None:
        self._replication.tick(now_us)

    @property
    def wants_to_send(self) -> bool:
        return self._replication.wants_to_send or self._sender.has_reads

    def send(self, now_us: int) -> tuple[SnapshotRead, ...]:
        self._replication.send()
        for progress in self._replication.progress.values():
            self._sender.continue_transfer(progress, now_us)
        return self._sender.take_reads()
