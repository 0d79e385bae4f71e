"""Raft messages as QUORUM requests: packing, parsing, and which messages are refused.

Any request becomes messages or an error that names the fault. What `contradiction` finds comes from
a copied disk, bad memory or a stranger, and does not reach the Raft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from quiverlog.core.raft import messages as r
from quiverlog.core.raft.election import Role
from quiverlog.core.raft.membership import unpack_voters
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
from quiverlog.errors import FrameTooLarge, InvalidRequest
from quiverlog.limits import (
    CLUSTER_ID_CHARS_MAX,
    DIRECTORY_ID_CHARS_MAX,
    ENDPOINT_CHARS_MAX,
    QUORUM_BODY_BYTES_MAX,
    QUORUM_ENTRIES_MAX,
    QUORUM_MESSAGES_MAX,
    QUORUM_VOTERS_MAX,
    RAFT_APPEND_BYTES_MAX,
    RAFT_TERM_JUMP_MAX,
)
from quiverlog.types import Now
from quiverlog.wire import quorum_messages as q

__all__ = ["Packed", "QuorumInbox", "Receiver", "contradiction", "pack", "unpack"]


_INDEX_MAX: Final = 2**63 - 1
_PLAIN: Final[dict[type[Any], type[Any]]] = {
    r.PreVote: q.QuorumPreVote,
    r.PreVoteResponse: q.QuorumPreVoteResponse,
    r.Vote: q.QuorumVote,
    r.VoteResponse: q.QuorumVoteResponse,
    r.AppendResponse: q.QuorumAppendResponse,
    r.Heartbeat: q.QuorumHeartbeat,
    r.HeartbeatResponse: q.QuorumHeartbeatResponse,
    r.SnapshotChunkResponse: q.QuorumSnapshotChunkResponse,
    r.TimeoutNow: q.QuorumTimeoutNow,
    r.Observe: q.QuorumObserve,
}
"""Messages whose fields are numbers and flags, with the same names on both sides."""
_VALUES: Final[dict[type[Any], type[Any]]] = {wire: value for value, wire in _PLAIN.items()}
_FIELDS: Final[dict[type[Any], tuple[str, ...]]] = {
    wire: wire.__struct_fields__[1:] for wire in _VALUES
}
_ADDRESSES: Final = {"source", "target"}

for _value, _wire in _PLAIN.items():
    assert set(_FIELDS[_wire]) == set(_value.__struct_fields__) - _ADDRESSES, _value
assert {*_PLAIN, r.Append, r.SnapshotChunk} == set(r.Message.__args__), "every kind has its struct"
assert RAFT_APPEND_BYTES_MAX // r.ENTRY_OVERHEAD_BYTES <= QUORUM_ENTRIES_MAX, (
    "the entries of the largest append fit a request"
)


class Packed(NamedTuple):
    node_id: int
    request: q.QuorumRequest
    body: tuple[bytes, ...]

    @property
    def body_bytes(self) -> int:
        return sum(map(len, self.body))


def pack(
    cluster_id: str,
    messages: Iterable[r.Message],
    *,
    endpoint: str = "",
    is_controller: bool = True,
) -> list[Packed]:
    """Return as few requests as the bounds allow; messages to one node keep their order.

    Args:
        endpoint: the sender's address.
        is_controller: whether the sender may become a voter.

    Raises:
        FrameTooLarge: a message is above the quorum's own bounds.
    """
    _check_length("cluster id", cluster_id, CLUSTER_ID_CHARS_MAX)
    _check_length("endpoint", endpoint, ENDPOINT_CHARS_MAX)
    sender = (endpoint, is_controller)
    builders: dict[tuple[int, r.ReplicaKey], _Builder] = {}
    for message in messages:
        key = (message.target.node_id, message.source)
        builder = builders.get(key)
        if builder is None:
            builder = builders[key] = _Builder(cluster_id, message.source, key[0], sender)
        builder.add(message)
    return [packed for builder in builders.values() for packed in builder.requests()]


class _Builder:
    def __init__(
        self, cluster_id: str, source: r.ReplicaKey, target_id: int, sender: tuple[str, bool]
    ) -> None:
        _check_length("directory id", source.directory_id, DIRECTORY_ID_CHARS_MAX)
        self._head = (cluster_id, source.node_id, source.directory_id, target_id)
        self._sender = sender
        self._done: list[Packed] = []
        self._messages: list[q.QuorumMessage] = []
        self._body: list[bytes] = []
        self._entries = self._voters = self._body_bytes = 0

    def add(self, message: r.Message) -> None:
        assert message.source == r.ReplicaKey(*self._head[1:3]), "one sender"
        assert message.target.node_id == self._head[3], "one node"
        wire, body = _to_wire(message)
        entries = len(body) if isinstance(message, r.Append) else 0
        voters = len(message.snapshot.voters) if isinstance(message, r.SnapshotChunk) else 0
        body_bytes = sum(map(len, body))
        if body_bytes > QUORUM_BODY_BYTES_MAX or entries > QUORUM_ENTRIES_MAX:
            raise FrameTooLarge(f"a message of {entries} entries and {body_bytes} bytes.")
        if (
            len(self._messages) == QUORUM_MESSAGES_MAX
            or self._entries + entries > QUORUM_ENTRIES_MAX
            or self._voters + voters > QUORUM_VOTERS_MAX
            or self._body_bytes + body_bytes > QUORUM_BODY_BYTES_MAX
        ):
            self._finish()
        self._messages.append(wire)
        self._body += body
        self._entries += entries
        self._voters += voters
        self._body_bytes += body_bytes

    def requests(self) -> list[Packed]:
        self._finish()
        return self._done

    def _finish(self) -> None:
        if self._messages:
            assert len(self._messages) <= QUORUM_MESSAGES_MAX
            assert self._entries <= QUORUM_ENTRIES_MAX
            assert self._body_bytes <= QUORUM_BODY_BYTES_MAX
            cluster_id, source_id, source_directory, target_id = self._head
            request = q.QuorumRequest(
                cluster_id=cluster_id,
                source_id=source_id,
                source_directory=source_directory,
                target_id=target_id,
                messages=self._messages,
                source_endpoint=self._sender[0],
                source_is_controller=self._sender[1],
            )
            self._done.append(Packed(target_id, request, tuple(self._body)))
        self._messages, self._body = [], []
        self._entries = self._voters = self._body_bytes = 0


def _to_wire(message: r.Message) -> tuple[q.QuorumMessage, list[bytes]]:
    directory = message.target.directory_id
    _check_length("directory id", directory, DIRECTORY_ID_CHARS_MAX)
    if isinstance(message, r.Append):
        return _append_to_wire(message, directory)
    if isinstance(message, r.SnapshotChunk):
        return _chunk_to_wire(message, directory)
    assert type(message) in _PLAIN, "every other kind is plain"
    wire = _PLAIN[type(message)]
    fields = (getattr(message, name) for name in _FIELDS[wire])
    found: q.QuorumMessage = wire(directory, *fields)
    return found, []


def _append_to_wire(message: r.Append, directory: str) -> tuple[q.QuorumMessage, list[bytes]]:
    entries = []
    for index, entry in enumerate(message.entries, message.prev_index + 1):
        assert entry.index == index, "entries of a message are in a row"
        entries.append(q.QuorumEntry(entry.term, int(entry.kind), len(entry.data)))
    wire = q.QuorumAppend(
        directory, message.term, message.prev_index, message.prev_term, message.commit, entries
    )
    return wire, [entry.data for entry in message.entries]


def _chunk_to_wire(message: r.SnapshotChunk, directory: str) -> tuple[q.QuorumMessage, list[bytes]]:
    snapshot = message.snapshot
    if len(snapshot.voters) > QUORUM_VOTERS_MAX:
        raise FrameTooLarge(
            f"a snapshot of {len(snapshot.voters)} voters is above {QUORUM_VOTERS_MAX}."
        )
    voters = []
    for key, endpoint in snapshot.voters.items():
        _check_length("directory id", key.directory_id, DIRECTORY_ID_CHARS_MAX)
        _check_length("endpoint", endpoint, ENDPOINT_CHARS_MAX)
        voters.append(q.QuorumVoter(key.node_id, key.directory_id, endpoint))
    wire = q.QuorumSnapshotChunk(
        directory,
        message.term,
        snapshot.index,
        snapshot.term,
        voters,
        message.offset,
        len(message.data),
        message.done,
    )
    return wire, [message.data]


def _check_length(what: str, text: str, chars_max: int) -> None:
    if len(text) > chars_max:
        raise FrameTooLarge(f"a {what} of {len(text)} characters is above {chars_max}.")


def unpack(request: q.QuorumRequest, body: memoryview | bytes) -> list[r.Message]:
    """Return the messages of a request, with copies of their parts of the body.

    Raises:
        InvalidRequest: the sender names no disk, the sizes are not the body's or too large, or an
            entry cannot be read.
    """
    if not request.source_directory:
        raise InvalidRequest("the sender has no directory id.")
    _check_body(request, len(body))
    source = r.ReplicaKey(request.source_id, request.source_directory)
    pieces = _Pieces(body)
    found = [_to_value(message, source, request.target_id, pieces) for message in request.messages]
    assert pieces.is_used_up, "the sizes were compared with the body"
    return found


def _check_body(request: q.QuorumRequest, body_bytes: int) -> None:
    # Before anything is copied by sizes that the sender chose.
    named = 0
    for message in request.messages:
        if isinstance(message, q.QuorumAppend):
            named += sum(entry.data_bytes for entry in message.entries)
        elif isinstance(message, q.QuorumSnapshotChunk):
            named += message.data_bytes
    if named != body_bytes:
        raise InvalidRequest(f"the body has {body_bytes} bytes, the header names {named}.")
    if body_bytes > QUORUM_BODY_BYTES_MAX:
        raise InvalidRequest(f"a body of {body_bytes} bytes is above {QUORUM_BODY_BYTES_MAX}.")


class _Pieces:
    def __init__(self, body: memoryview | bytes) -> None:
        self._body = memoryview(body)
        self._at = 0

    @property
    def is_used_up(self) -> bool:
        return self._at == len(self._body)

    def take(self, length: int) -> bytes:
        start, self._at = self._at, self._at + length
        assert self._at <= len(self._body), "the sizes were compared with the body"
        return bytes(self._body[start : self._at])


def _to_value(
    message: q.QuorumMessage, source: r.ReplicaKey, target_id: int, pieces: _Pieces
) -> r.Message:
    target = r.ReplicaKey(target_id, message.target_directory)
    if isinstance(message, q.QuorumAppend):
        return r.Append(
            source=source,
            target=target,
            term=message.term,
            prev_index=message.prev_index,
            prev_term=message.prev_term,
            entries=tuple(_entries(message, pieces)),
            commit=message.commit,
        )
    if isinstance(message, q.QuorumSnapshotChunk):
        voters = {r.ReplicaKey(v.node_id, v.directory_id): v.endpoint for v in message.voters}
        return r.SnapshotChunk(
            source=source,
            target=target,
            term=message.term,
            snapshot=r.SnapshotMeta(message.index, message.index_term, voters),
            offset=message.offset,
            data=pieces.take(message.data_bytes),
            done=message.done,
        )
    assert type(message) in _VALUES, "every other kind is plain"
    names = _FIELDS[type(message)]
    fields = {name: getattr(message, name) for name in names}
    found: r.Message = _VALUES[type(message)](source=source, target=target, **fields)
    return found


def _entries(message: q.QuorumAppend, pieces: _Pieces) -> Iterator[r.Entry]:
    if message.prev_index + len(message.entries) > _INDEX_MAX:
        raise InvalidRequest(f"entries after index {message.prev_index} end above {_INDEX_MAX}.")
    for index, entry in enumerate(message.entries, message.prev_index + 1):
        try:
            kind = r.EntryKind(entry.kind)
        except ValueError:
            raise InvalidRequest(f"entry {index} has the unknown kind {entry.kind}.") from None
        data = pieces.take(entry.data_bytes)
        if kind is r.EntryKind.VOTERS:  # Read by the Raft as soon as they are in its log.
            try:
                unpack_voters(data)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                raise InvalidRequest(f"the voters of entry {index}: {error}.") from None
        yield r.Entry(index, entry.term, kind, data)


def contradiction(raft: Raft, message: Message) -> str:
    """Return why no correct replica can have sent the message; empty: no reason was found."""
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
        return f"a message of term {message.term} names later terms"
    if isinstance(message, AppendResponse) and message.term == raft.term and message.accepted:
        last_index = raft.log.last_index
        if message.index > last_index:
            return f"entry {message.index} is acknowledged, and the log ends at {last_index}"
    return ""


def _has_later_terms(message: Message) -> bool:
    # From the earlier entries to the message's own, terms only grow.
    terms = [message.term]
    if isinstance(message, Append):
        terms = [message.prev_term, *(entry.term for entry in message.entries), message.term]
    elif isinstance(message, SnapshotChunk):
        terms = [message.snapshot.term, message.term]
    elif isinstance(message, Vote | PreVote):
        terms = [message.last_term, message.term]
    return any(later < earlier for earlier, later in pairwise(terms))


Receiver = Callable[[Sequence[Message], Now], None]
"""Takes messages in their order; some may be for a disk that this node had before."""


class QuorumInbox:
    __slots__ = ("_receiver",)

    def __init__(self) -> None:
        self._receiver: Receiver | None = None

    @property
    def is_served(self) -> bool:
        return self._receiver is not None

    def serve(self, receiver: Receiver) -> None:
        assert self._receiver is None, "a node has one quorum"
        self._receiver = receiver

    def take(self, messages: Sequence[Message], now: Now) -> None:
        assert self._receiver is not None, "asked before"
        if messages:
            self._receiver(messages, now)
