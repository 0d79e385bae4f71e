"""The values that a quorum exchanges and stores, and the bounds on them.

Owns the vocabulary of the Raft: who a replica is, what the log holds, every message, and
`RaftConfig`. A message is a value; how it travels (frames, connections, retries) is the host's.

Invariants: every message names its sender and the replica it is meant for, by node id AND
directory id, and the sender's term. All times are microseconds of a clock that only grows.

Must not know: who leads, what is durable, how a message is encoded.
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
    """One replica of the log: a node together with the disk that holds its promises.

    A node whose disk was wiped has forgotten its votes and the entries it acknowledged, so it comes
    back with another directory id and is another replica (KIP-853). An empty directory id in a
    target stands for whatever disk the node has: only `Observe` is sent so.
    """

    node_id: int
    directory_id: str

    def __str__(self) -> str:
        return f"{self.node_id}@{self.directory_id[:8]}"


Voters: TypeAlias = Mapping[ReplicaKey, str]
"""The replicas that elect and count, each with its endpoint: text that only the host reads. The
endpoints are part of the log because a voter must find the others before anything is applied."""


class EntryKind(enum.IntEnum):
    """What an entry of the log is for. Only `DATA` means something to the state machine."""

    DATA = 0
    NO_OP = 1
    """The first entry of a leader's term: with it, everything before is committed."""
    VOTERS = 2
    """The voters from here on; `data` is what `membership.pack_voters` made."""


class Entry(msgspec.Struct, frozen=True):
    """One place of the log."""

    index: int
    term: int
    kind: EntryKind
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data) + ENTRY_OVERHEAD_BYTES


ENTRY_OVERHEAD_BYTES: Final = 32
"""More than the numbers of an entry take in a message or a file."""


class HardState(NamedTuple):
    """What a replica must never forget: its term, and whom it voted for in that term."""

    term: int
    vote: ReplicaKey | None


class SnapshotMeta(msgspec.Struct, frozen=True):
    """A snapshot stands for all entries up to `index`, which is committed. `voters`: as of it."""

    index: int
    term: int
    voters: Voters


NO_SNAPSHOT: Final = SnapshotMeta(0, 0, {})


# --- messages ---------------------------------------------------------------------------------
class _Message(msgspec.Struct, frozen=True, kw_only=True):
    """`term` is always the sender's own; a pre-vote asks about the term after it."""

    source: ReplicaKey
    target: ReplicaKey
    term: int


class PreVote(_Message, frozen=True, kw_only=True):
    """Asks whether an election would be won, without beginning one (thesis 9.6, KIP-996)."""

    last_index: int
    last_term: int


class PreVoteResponse(_Message, frozen=True, kw_only=True):
    granted: bool
    asked_term: int
    """The term of the question, so that an answer to an older one does not count."""


class Vote(_Message, frozen=True, kw_only=True):
    """The paper's RequestVote (section 5.2)."""

    last_index: int
    last_term: int


class VoteResponse(_Message, frozen=True, kw_only=True):
    granted: bool
    silent_us: int = 0
    """For so long the sender had heard no leader, and was none; 0 also where it does not say."""


class Append(_Message, frozen=True, kw_only=True):
    """The paper's AppendEntries (section 5.3). Without entries it carries the commit index, or
    asks whether what was sent before it has arrived."""

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendResponse(_Message, frozen=True, kw_only=True):
    """`accepted`: the log equals the leader's up to `index`, durably. Otherwise `index` is the
    previous index that did not fit, and the hint is the newest place where it may fit."""

    accepted: bool
    index: int
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(_Message, frozen=True, kw_only=True):
    """`commit` is at most what the target has acknowledged. `sent_us`: by the leader's clock, which
    nobody else reads; 0: it does not say."""

    commit: int
    sent_us: int = 0


class HeartbeatResponse(_Message, frozen=True, kw_only=True):
    """Says that the sender is alive in this term, and nothing about its log. `sent_us`: that of the
    heartbeat which it answers."""

    sent_us: int = 0


class SnapshotChunk(_Message, frozen=True, kw_only=True):
    """The paper's InstallSnapshot (section 7)."""

    snapshot: SnapshotMeta
    offset: int
    data: bytes
    done: bool


class SnapshotChunkResponse(_Message, frozen=True, kw_only=True):
    """`offset`: the next byte that is wanted. `installed`: the log stands at the snapshot."""

    snapshot_index: int
    offset: int
    installed: bool


class TimeoutNow(_Message, frozen=True, kw_only=True):
    """The leader asks its chosen successor to begin an election at once (thesis 3.10)."""


class Observe(_Message, frozen=True, kw_only=True):
    """A replica that is no voter asks the leader, whoever it is, to send it the log."""


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
    """Why a proposal was not taken. Nothing of it is in the log."""

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
    TOO_FEW_HEARD = "a majority of the voters that stay is not heard, and could decide nothing"


class ProposalRefused(Exception):
    """`leader`: whom to ask instead, if that is known."""

    def __init__(self, refusal: Refusal, leader: ReplicaKey | None = None) -> None:
        self.refusal = refusal
        self.leader = leader
        super().__init__(refusal.value)


# --- what is handed in --------------------------------------------------------------------------
class RandomSource(Protocol):
    """`random.Random` is one. Tests and the simulator hand in a seeded one."""

    def randrange(self, stop: int, /) -> int: ...


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times and bounds of one replica. All replicas of a quorum should have the same times."""

    election_timeout_us: int = RAFT_ELECTION_TIMEOUT_MS * 1_000
    """A follower waits this long, and up to twice as long by chance, before it asks for votes. A
    leader that has not heard a quorum for this long steps down."""
    heartbeat_us: int = RAFT_HEARTBEAT_MS * 1_000
    append_bytes_max: int = RAFT_APPEND_BYTES_MAX
    """Entries of one message; one entry always goes, and a proposal is never larger."""
    inflight_messages_max: int = 64
    """Appends that were sent to one follower and not yet acknowledged."""
    inflight_bytes_max: int = 4 * MIB
    uncommitted_bytes_max: int = 16 * MIB
    """Proposals above it are refused: a leader without a quorum must not fill its memory."""
    chunk_bytes_max: int = RAFT_CHUNK_BYTES_MAX
    apply_bytes_max: int = MIB
    """Committed entries in one `Ready`, so that a call of the host stays short."""
    catch_up_entries_max: int = 64
    """A replica that is further behind may not become a voter: commits would wait for it."""
    observers_max: int = RAFT_OBSERVERS_MAX

    def __post_init__(self) -> None:
        """A configuration that cannot work is refused at once, with the reason."""
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
