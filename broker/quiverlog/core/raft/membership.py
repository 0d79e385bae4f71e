"""The voters, at every place of the log that may still matter.

A voter set is an entry and counts from the moment it is appended, committed or not (thesis, section
4.1); when the entry is truncated, the previous set counts again. One replica is added or removed at
a time, so that any majority before a change shares a replica with any majority after it, without a
joint phase.

Invariants:
- `history` ascends by index; its first entry is the set at or before the snapshot.
- A leader appends a set only when all sets before it are committed (`check_change`).
- No set in the log is empty, or larger than a snapshot's message can name.
- Two disks of one node are never voters at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from quiverlog.core.raft.log import LogView
from quiverlog.core.raft.messages import (
    Entry,
    EntryKind,
    ProposalRefused,
    Refusal,
    ReplicaKey,
    Voters,
)
from quiverlog.limits import DIRECTORY_ID_CHARS_MAX, ENDPOINT_CHARS_MAX, QUORUM_VOTERS_MAX

__all__ = ["Membership", "pack_voters", "unpack_voters"]

_VERSION: Final = 1
_SCAN_BYTES: Final = 1024 * 1024


_NodeId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_DirectoryId = Annotated[str, Meta(min_length=1, max_length=DIRECTORY_ID_CHARS_MAX)]
_Endpoint = Annotated[str, Meta(max_length=ENDPOINT_CHARS_MAX)]


class _VotersRecord(msgspec.Struct, array_like=True):
    """`data` of a VOTERS entry. Fields are appended, never changed."""

    version: Annotated[int, Meta(ge=_VERSION)]
    voters: Annotated[
        list[tuple[_NodeId, _DirectoryId, _Endpoint]],
        Meta(min_length=1, max_length=QUORUM_VOTERS_MAX),
    ]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_VotersRecord)


def pack_voters(voters: Voters) -> bytes:
    """Equal sets give equal bytes."""
    flat = [(*key, endpoint) for key, endpoint in sorted(voters.items())]
    return _encoder.encode(_VotersRecord(_VERSION, flat))


def unpack_voters(data: bytes) -> dict[ReplicaKey, str]:
    record = _decoder.decode(data)
    return {ReplicaKey(node, directory): endpoint for node, directory, endpoint in record.voters}


class _Version(msgspec.Struct, frozen=True):
    index: int
    voters: Voters


class Membership:
    __slots__ = ("_history",)

    def __init__(self, log: LogView) -> None:
        self._history = [_Version(log.snapshot.index, dict(log.snapshot.voters))]
        index = log.snapshot.index + 1
        while index <= log.last_index:
            entries = log.entries(index, _SCAN_BYTES)
            assert entries[0].index == index
            self.appended(entries)
            index = entries[-1].index + 1
        assert index == log.last_index + 1

    # --- looking -------------------------------------------------------------------------------
    @property
    def voters(self) -> Voters:
        return self._history[-1].voters

    @property
    def index(self) -> int:
        return self._history[-1].index

    def is_voter(self, key: ReplicaKey) -> bool:
        return key in self.voters

    def is_only_voter(self, key: ReplicaKey) -> bool:
        return len(self.voters) == 1 and key in self.voters

    def may_campaign(self, key: ReplicaKey, commit: int) -> bool:
        """Return whether this replica may ask for votes.

        A removed voter may until its removal is committed: its log may be the only one that can win
        (thesis, section 4.2.2 and figure 4.6).
        """
        if key in self.voters:
            return True
        assert self._history[0].index <= commit, "the set before the last one is known"
        return self.index > commit and key in self._history[-2].voters

    def at(self, index: int) -> Voters:
        assert index >= self._history[0].index
        return next(v.voters for v in reversed(self._history) if v.index <= index)

    # --- following the log ---------------------------------------------------------------------
    def appended(self, entries: Iterable[Entry]) -> bool:
        before = self.voters
        first = True
        for entry in entries:
            if first:
                self._truncated(entry.index)
                first = False
            if entry.kind is EntryKind.VOTERS:
                assert entry.index > self.index, "sets are in the order of the log"
                self._history.append(_Version(entry.index, unpack_voters(entry.data)))
        return self.voters != before

    def _truncated(self, index: int) -> None:
        while self._history[-1].index >= index:
            assert len(self._history) > 1, "the set of a snapshot is committed"
            del self._history[-1]

    def snapshot_taken(self, index: int) -> None:
        while len(self._history) > 1 and self._history[1].index <= index:
            del self._history[0]
        assert self._history[0].index <= index, "the set as of the snapshot is known"

    def restored(self, index: int, voters: Voters) -> None:
        assert index > self._history[0].index, "a snapshot is newer than the one before"
        self._history = [_Version(index, dict(voters))]

    # --- changing --------------------------------------------------------------------------------
    def check_change(self, log: LogView, term: int) -> None:
        # Without a committed entry of this term, a set of an earlier leader may still win
        # elections, and the two sets need not overlap (Ongaro's correction of 2015 to the thesis).
        if log.term(log.commit) != term:
            raise ProposalRefused(Refusal.NOTHING_COMMITTED_YET)
        # Two pending changes would break the overlap of majorities (thesis, section 4.1).
        if self.index > log.commit:
            raise ProposalRefused(Refusal.CHANGE_PENDING)

    def with_voter(self, key: ReplicaKey, endpoint: str) -> dict[ReplicaKey, str]:
        assert key.directory_id
        # Another disk of the node must be removed first (KIP-853): the two would fail together.
        if any(voter.node_id == key.node_id for voter in self.voters):
            raise ProposalRefused(Refusal.ALREADY_VOTER)
        if len(self.voters) >= QUORUM_VOTERS_MAX:
            raise ProposalRefused(Refusal.TOO_MANY_VOTERS)
        return {**self.voters, key: endpoint}

    def without_voter(self, key: ReplicaKey) -> dict[ReplicaKey, str]:
        if key not in self.voters:
            raise ProposalRefused(Refusal.NOT_VOTER)
        if len(self.voters) == 1:
            raise ProposalRefused(Refusal.LAST_VOTER)
        return {k: endpoint for k, endpoint in self.voters.items() if k != key}

    def with_endpoint(self, key: ReplicaKey, endpoint: str) -> dict[ReplicaKey, str]:
        if key not in self.voters:
            raise ProposalRefused(Refusal.NOT_VOTER)
        return {**self.voters, key: endpoint}
