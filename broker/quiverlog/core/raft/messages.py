"""The values that a quorum exchanges and stores, and their bounds.

Invariants: every message names its sender and its target, each by node id AND directory id (but
the target of an `Observe`), and the sender's term. All times are microseconds of a clock that never
goes back.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from quiverlog.limits import (
    KIB,
    MIB,
    RAFT_APPEND_BYTES_MAX,
    RAFT_CHUNK_BYTES_MAX,
    RAFT_ELECTION_TIMEOUT_MS,
    RAFT_HEARTBEAT_MS,
    RAFT_OBSERVERS_MAX,
)

__all__ = [
    "ENTRY_OVERHEAD_BYTES",
    "NO_SNAPSHOT",
    "Append",
    "AppendResponse",
    "Entry",
    "EntryKind",
    "HardState",
    "Heartbeat",
    "HeartbeatResponse",
    "Message",
    "Observe",
    "PreVote",
    "PreVoteResponse",
    "ProposalRefused",
    "RaftConfig",
    "RandomSource",
    "Refusal",
    "ReplicaKey",
    "SnapshotChunk",
    "SnapshotChunkResponse",
    "SnapshotMeta",
    "TimeoutNow",
    "Vote",
    "VoteResponse",
    "Voters",
]


class ReplicaKey(NamedTuple):
    """A node together with the disk that holds its votes and entries.

    A node whose disk was wiped has lost what it promised: it comes back with another directory id
    and is another replica (KIP-853). In a target, an empty directory id means any disk of the node;
    only `Observe` is sent so.
    """

    node_id: int
    directory_id: str

    def __str__(self) -> str:
        return f"{self.node_id}@{self.directory_id[:8]}"


Voters: TypeAlias = Mapping[ReplicaKey, str]
"""The replicas that elect and count, each with its endpoint: a voter must find the others before it
has applied anything."""


class EntryKind(enum.IntEnum):
    """Only `DATA` reaches the state machine."""

    DATA = 0
    NO_OP = 1
    """The first entry of a leader's term: committing it commits everything before it."""
    VOTERS = 2
    """The voters from here on; `data` comes from `membership.pack_voters`."""


class Entry(msgspec.Struct, frozen=True):
    index: int
    term: int
    kind: EntryKind
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data) + ENTRY_OVERHEAD_BYTES


# A bound, so that a size needs no encoding: index, term and kind as msgpack integers.
ENTRY_OVERHEAD_BYTES: Final = 32


class HardState(NamedTuple):
    term: int
    vote: ReplicaKey | None


class SnapshotMeta(msgspec.Struct, frozen=True):
    """Replaces all entries up to `index`, which is committed; `voters` are those as of `index`."""

    index: int
    term: int
    voters: Voters


NO_SNAPSHOT: Final = SnapshotMeta(0, 0, {})


# --- messages ---------------------------------------------------------------------------------
class _Message(msgspec.Struct, frozen=True, kw_only=True):
    """`term` is the sender's own. A pre-vote asks about the term after it."""

    source: ReplicaKey
    target: ReplicaKey
    term: int


class PreVote(_Message, frozen=True, kw_only=True):
    last_index: int
    last_term: int


class PreVoteResponse(_Message, frozen=True, kw_only=True):
    granted: bool
    asked_term: int
    """The term of the request: an answer to an older request does not count."""


class Vote(_Message, frozen=True, kw_only=True):
    """The paper's RequestVote (section 5.2)."""

    last_index: int
    last_term: int


class VoteResponse(_Message, frozen=True, kw_only=True):
    granted: bool
    silent_us: int = 0
    """Time since the sender last had contact with a leader, led itself, or started. 0: not
    reported."""


class Append(_Message, frozen=True, kw_only=True):
    """The paper's AppendEntries (section 5.3). Without entries it carries the commit index, or
    checks that earlier entries arrived."""

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendResponse(_Message, frozen=True, kw_only=True):
    """`accepted`: the log equals the leader's up to `index`, durably. Otherwise `index` is the
    previous index that did not match, and the hint is the newest place that may match."""

    accepted: bool
    index: int
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(_Message, frozen=True, kw_only=True):
    """`commit` is at most what the target has acknowledged. `sent_us` is by the leader's clock and
    comes back in the answer; 0: not reported."""

    commit: int
    sent_us: int = 0


class HeartbeatResponse(_Message, frozen=True, kw_only=True):
    """The sender is alive in this term; nothing about its log."""

    sent_us: int = 0


class SnapshotChunk(_Message, frozen=True, kw_only=True):
    """The paper's InstallSnapshot (section 7)."""

    snapshot: SnapshotMeta
    offset: int
    data: bytes
    done: bool


class SnapshotChunkResponse(_Message, frozen=True, kw_only=True):
    snapshot_index: int
    offset: int
    installed: bool


class TimeoutNow(_Message, frozen=True, kw_only=True):
    """The leader asks its chosen successor to begin an election at once (thesis 3.10)."""


class Observe(_Message, frozen=True, kw_only=True):
    """A replica without a vote asks the leader for the log."""


Message: TypeAlias = (
    PreVote
    | PreVoteResponse
    | Vote
    | VoteResponse
    | Append
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | SnapshotChunk
    | SnapshotChunkResponse
    | TimeoutNow
    | Observe
)


# --- refusals ---------------------------------------------------------------------------------
class Refusal(enum.Enum):
    """Nothing of the proposal is in the log."""

    NOT_LEADER = "this replica does not lead the quorum"
    TRANSFERRING = "leadership is being handed over"
    TOO_LARGE = "the proposal is larger than an append may be"
    TOO_MUCH_UNCOMMITTED = "too much is waiting for the quorum already"
    NOTHING_COMMITTED_YET = "the leader has not committed an entry of its own term yet"
    CHANGE_PENDING = "another change of the voters is not committed yet"
    ALREADY_VOTER = "the replica, or another disk of its node, is a voter already"
    NOT_VOTER = "the replica is no voter"
    NOT_CAUGHT_UP = "the replica does not follow the log closely enough yet"
    TOO_MANY_VOTERS = "there are as many voters as there may be"
    LAST_VOTER = "the last voter cannot be removed"
    TOO_FEW_REACHABLE = "no majority of the remaining voters answers: they could commit nothing"


class ProposalRefused(Exception):
    def __init__(self, refusal: Refusal, leader: ReplicaKey | None = None) -> None:
        self.refusal = refusal
        self.leader = leader
        super().__init__(refusal.value)


# --- what is handed in --------------------------------------------------------------------------
class RandomSource(Protocol):
    def randrange(self, stop: int, /) -> int: ...


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas of a quorum should use the same times."""

    election_timeout_us: int = RAFT_ELECTION_TIMEOUT_MS * 1_000
    """A follower waits this long, and at random up to twice as long, before it asks for votes. A
    leader without contact to a majority for this long steps down."""
    heartbeat_us: int = RAFT_HEARTBEAT_MS * 1_000
    append_bytes_max: int = RAFT_APPEND_BYTES_MAX
    """Bytes of entries in one message, and in one proposed entry. A single entry is always sent."""
    inflight_messages_max: int = 64
    inflight_bytes_max: int = 4 * MIB
    uncommitted_bytes_max: int = 16 * MIB
    """A bound on memory without a majority."""
    chunk_bytes_max: int = RAFT_CHUNK_BYTES_MAX
    apply_bytes_max: int = MIB
    """One call of the host stays short."""
    catch_up_entries_max: int = 64
    """A replica that lags by more may not become a voter: commits would wait for it."""
    observers_max: int = RAFT_OBSERVERS_MAX

    def __post_init__(self) -> None:
        # Two heartbeats may get lost before a follower doubts its leader.
        if not 0 < 3 * self.heartbeat_us <= self.election_timeout_us:
            raise ValueError("three heartbeats must fit into the election timeout")
        if self.inflight_bytes_max < self.append_bytes_max:
            raise ValueError("the largest append must fit into what may be in flight")
        if self.uncommitted_bytes_max < self.append_bytes_max:
            raise ValueError("the largest proposal must fit into what may be uncommitted")
        if min(self.append_bytes_max, self.chunk_bytes_max, self.apply_bytes_max) < KIB // 16:
            raise ValueError("messages and chunks must have room for something")
        if min(self.inflight_messages_max, self.catch_up_entries_max, self.observers_max) < 1:
            raise ValueError("counts must be at least 1")
