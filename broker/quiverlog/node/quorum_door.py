"""What no replica that keeps the rules can have sent: such a message is refused, not believed.

Owns the contradictions between a message and what this replica knows. The Raft takes its messages
for those of other Rafts and asserts what follows from that; here is what may come from anybody: a
copy of this disk that somebody has started, a broker with bad memory, a stranger.

Must not know: connections, what becomes of a message that is let in.
"""

from __future__ import annotations

from itertools import pairwise

from quiverlog.core.raft.election import Role
from quiverlog.core.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    Message,
    PreVote,
    SnapshotChunk,
    TimeoutNow,
    Vote,
)
from quiverlog.core.raft.raft import Raft
from quiverlog.limits import RAFT_TERM_JUMP_MAX

__all__ = ["contradiction"]


def contradiction(raft: Raft, message: Message) -> str:
    """Why the message cannot be true; empty where it can be."""
    if message.source == raft.key:
        return "the sender has this node's id and disk: a disk was copied"
    if message.term > raft.term + RAFT_TERM_JUMP_MAX:
        return f"term {message.term} cannot be reached from {raft.term}"
    is_alone = set(raft.voters) == {raft.key}
    if is_alone and isinstance(message, Append | Heartbeat | SnapshotChunk | TimeoutNow | Vote):
        return "this replica is the only voter, so no other can lead"
    if isinstance(message, Append | Heartbeat | SnapshotChunk) and message.term == raft.term:
        leads_here = raft.role is Role.LEADER
        if leads_here or raft.leader not in (None, message.source):
            return f"two lead in term {message.term}"
    if _has_later_terms(message):
        return f"a message of term {message.term} speaks of later ones"
    if isinstance(message, AppendResponse) and message.term == raft.term and message.accepted:
        last_index = raft.log.last_index
        if message.index > last_index:
            return f"entry {message.index} is acknowledged, and the log ends at {last_index}"
    return ""


def _has_later_terms(message: Message) -> bool:
    """True when terms fall, from what lies before to the message's own."""
    terms = [message.term]
    if isinstance(message, Append):
        terms = [message.prev_term, *(entry.term for entry in message.entries), message.term]
    elif isinstance(message, SnapshotChunk):
        terms = [message.snapshot.term, message.term]
    elif isinstance(message, Vote | PreVote):
        terms = [message.last_term, message.term]
    return any(later < earlier for earlier, later in pairwise(terms))
