"""Replicas of a Raft for exact tests: a store in memory, and a host that acts at the test's
command.

Owns `MemoryStore` and `Replica`. Nothing happens by itself: a test lets writes become durable,
hands messages over, and lets time pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quiverlog.core.raft import messages as m
from quiverlog.core.raft.election import Role
from quiverlog.core.raft.membership import pack_voters
from quiverlog.core.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    Message,
    RaftConfig,
    ReplicaKey,
    SnapshotMeta,
)
from quiverlog.core.raft.outbox import Write
from quiverlog.core.raft.raft import Raft
from quiverlog.core.raft.snapshots import SnapshotRead

__all__ = [
    "CONFIG",
    "MemoryStore",
    "Replica",
    "accepted",
    "alive",
    "append",
    "entries",
    "grant",
    "heartbeat",
    "key",
    "leader",
    "refused",
    "sent",
    "voters",
    "voters_entry",
]

CONFIG = RaftConfig(
    election_timeout_us=1_000,
    heartbeat_us=100,
    append_bytes_max=1_000,
    inflight_messages_max=2,
    inflight_bytes_max=2_000,
    uncommitted_bytes_max=2_000,
    chunk_bytes_max=64,
    apply_bytes_max=1_000,
    catch_up_entries_max=2,
    observers_max=2,
)


def key(node_id: int, directory: str = "disk") -> ReplicaKey:
    return ReplicaKey(node_id, directory)


def voters(*nodes: int) -> dict[ReplicaKey, str]:
    return {key(n): f"node{n}" for n in nodes}


def entries(first: int, terms: Sequence[int]) -> list[Entry]:
    """Entries of these terms from `first` on; an index and a term always have the same data."""
    return [
        Entry(first + n, term, EntryKind.DATA, b"%d.%d" % (first + n, term))
        for n, term in enumerate(terms)
    ]


def voters_entry(index: int, term: int, *nodes: int) -> Entry:
    return Entry(index, term, EntryKind.VOTERS, pack_voters(voters(*nodes)))


class MemoryStore:
    """A durable log."""

    def __init__(self, snapshot: SnapshotMeta, stored: Iterable[Entry] = ()) -> None:
        self.snapshot = snapshot
        self.stored = list(stored)
        self.first_index = self.stored[0].index if self.stored else snapshot.index + 1

    @property
    def last_index(self) -> int:
        return self.stored[-1].index if self.stored else self.first_index - 1

    def term(self, index: int) -> int:
        return self.stored[index - self.first_index].term

    def entries(self, first: int, bytes_max: int) -> Sequence[Entry]:
        found = self.stored[first - self.first_index :]
        size = 0
        for count, entry in enumerate(found):
            size += entry.size_bytes
            if count and size > bytes_max:
                return found[:count]
        return found

    def write(self, write: Write) -> None:
        if write.entries:
            del self.stored[write.entries[0].index - self.first_index :]
            self.stored.extend(write.entries)
        if write.chunk is not None and write.chunk.done:
            self.compact(write.chunk.snapshot)
            self.stored.clear()
            self.first_index = self.snapshot.index + 1

    def compact(self, snapshot: SnapshotMeta) -> None:
        self.stored = [e for e in self.stored if e.index > snapshot.index]
        self.first_index = snapshot.index + 1
        self.snapshot = snapshot


class _FirstChoice:
    """Every timeout is the shortest."""

    def randrange(self, stop: int, /) -> int:
        assert stop > 0
        return 0


class Replica:
    """A Raft and its host. `outgoing` gathers messages, `write` is the job under way."""

    def __init__(
        self,
        node_id: int,
        *,
        members: dict[ReplicaKey, str] | None = None,
        stored: Iterable[Entry] = (),
        term: int = 0,
        vote: ReplicaKey | None = None,
        snapshot: SnapshotMeta | None = None,
        config: RaftConfig = CONFIG,
        seeds: tuple[int, ...] = (),
    ) -> None:
        self.key = key(node_id)
        members = voters(0, 1, 2) if members is None else members
        self.store = MemoryStore(snapshot or SnapshotMeta(0, 0, members), stored)
        self.now_us = 0
        self.outgoing: list[Message] = []
        self.write: Write | None = None
        self.reads: list[SnapshotRead] = []
        self.restored: list[SnapshotMeta] = []
        self.applied: list[Entry] = []
        self.hard_state = HardState(term, vote)
        self.raft = Raft(
            self.key, config, _FirstChoice(), self.store, self.hard_state, 0, seeds=seeds
        )
        self.pump()

    # --- host ----------------------------------------------------------------------------------
    def pump(self) -> None:
        while self.raft.has_ready:
            ready = self.raft.ready()
            self.outgoing.extend(ready.messages)
            if ready.write is not None:
                assert self.write is None
                self.write = ready.write
            self.reads.extend(ready.reads)
            if ready.restore is not None:
                self.restored.append(ready.restore)
            self.applied.extend(ready.committed)
            self.raft.advance(ready)

    def persist(self) -> Replica:
        """The write under way becomes durable, and no other."""
        write, self.write = self.write, None
        assert write is not None
        self.hard_state = write.hard_state or self.hard_state
        self.store.write(write)
        self.raft.persisted(write, self.now_us)
        self.pump()
        return self

    def settle(self) -> Replica:
        """Everything that is to be written becomes durable."""
        while self.write is not None:
            self.persist()
        return self

    def step(self, *messages: Message) -> Replica:
        for message in messages:
            self.raft.step(message, self.now_us)
            self.pump()
        return self

    def wait(self, duration_us: int) -> Replica:
        self.now_us += duration_us
        self.raft.tick(self.now_us)
        self.pump()
        return self

    def take(self, kind: type | None = None) -> list[Message]:
        """The messages that were sent since the last time, of one kind; all are forgotten."""
        found = [m for m in self.outgoing if kind is None or isinstance(m, kind)]
        self.outgoing.clear()
        return found

    def propose(self, *data: bytes) -> Replica:
        self.raft.propose(data, self.now_us)
        self.pump()
        return self

    @property
    def committed(self) -> int:
        return self.raft.log.commit

    # --- shortcuts -------------------------------------------------------------------------------
    def win(self) -> Replica:
        """Become leader with the votes of everybody, everything durable."""
        self.wait(self.raft.next_deadline_us - self.now_us)
        for kind in (m.PreVote, m.Vote):
            self.settle()
            for ask in self.take(kind):
                assert isinstance(ask, m.PreVote | m.Vote)
                self.step(grant(ask))
        return self.settle()


def grant(ask: Message) -> Message:
    """The answer of a voter that agrees."""
    if isinstance(ask, m.PreVote):
        return m.PreVoteResponse(
            source=ask.target,
            target=ask.source,
            term=ask.term,
            granted=True,
            asked_term=ask.term,
        )
    assert isinstance(ask, m.Vote)
    return m.VoteResponse(source=ask.target, target=ask.source, term=ask.term, granted=True)


# --- messages of others ------------------------------------------------------------------------
def append(
    prev_index: int, prev_term: int, sent: list[Entry], *, term: int, commit: int = 0
) -> m.Append:
    return m.Append(
        source=key(1),
        target=key(0),
        term=term,
        prev_index=prev_index,
        prev_term=prev_term,
        entries=tuple(sent),
        commit=commit,
    )


def accepted(source: int, index: int, term: int = 1) -> m.AppendResponse:
    return m.AppendResponse(
        source=key(source), target=key(0), term=term, accepted=True, index=index
    )


def refused(
    index: int, hint_index: int, hint_term: int = 1, *, term: int = 1, source: int = 1
) -> m.AppendResponse:
    return m.AppendResponse(
        source=key(source),
        target=key(0),
        term=term,
        accepted=False,
        index=index,
        hint_index=hint_index,
        hint_term=hint_term,
    )


def heartbeat(commit: int = 0, *, term: int = 1, source: int = 1, target: int = 0) -> m.Heartbeat:
    return m.Heartbeat(source=key(source), target=key(target), term=term, commit=commit)


def alive(source: int, term: int = 1) -> m.HeartbeatResponse:
    return m.HeartbeatResponse(source=key(source), target=key(0), term=term)


def sent(replica: Replica, target: int) -> list[m.Append]:
    """Appends to one follower; everything that was sent is forgotten."""
    return [a for a in replica.take() if isinstance(a, m.Append) and a.target == key(target)]


def leader(**options: object) -> Replica:
    """Leads term 1 over an empty log; its first entry is durable, no other replica has it."""
    replica = Replica(0, **options).win()  # type: ignore[arg-type]
    assert replica.raft.role is Role.LEADER
    return replica
