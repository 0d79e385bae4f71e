"""The quorum's messages in requests and out of them again: every kind, every size, any bytes."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog import limits
from quiverlog.core.raft import messages as r
from quiverlog.core.raft.membership import pack_voters
from quiverlog.errors import CorruptFrame, FrameTooLarge, InvalidRequest, QuiverlogError
from quiverlog.node.metadata.quorum_wire import Packed, pack, unpack
from quiverlog.wire import frames
from quiverlog.wire import quorum_messages as q

NUMBERS = st.integers(0, 2**62)
SOURCE = r.ReplicaKey(1, "disk-1")
KEYS = st.builds(r.ReplicaKey, st.integers(0, 2**31 - 1), st.text(min_size=1, max_size=64))
VOTERS = st.dictionaries(KEYS, st.text(max_size=30), max_size=4)
SETS = st.dictionaries(KEYS, st.text(max_size=30), min_size=1, max_size=4)
TARGETS = st.builds(r.ReplicaKey, st.integers(0, 2), st.text(max_size=64))
FIELDS: dict[type, st.SearchStrategy[Any]] = {int: NUMBERS, bool: st.booleans()}


@st.composite
def entries_behind(draw: st.DrawFn, index: int) -> tuple[r.Entry, ...]:
    found = []
    for at in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(r.EntryKind))
        data = draw(st.binary(max_size=50))
        if kind is r.EntryKind.VOTERS:
            data = pack_voters(draw(SETS))
        found.append(r.Entry(index + 1 + at, draw(NUMBERS), kind, data))
    return tuple(found)


@st.composite
def messages(draw: st.DrawFn, cls: type[Any] | None = None) -> r.Message:
    cls = cls or draw(st.sampled_from(get_args(r.Message)))
    fields: dict[str, Any] = {"source": SOURCE, "target": draw(TARGETS)}
    for name, hint in get_type_hints(cls).items():
        if hint in FIELDS:
            fields[name] = draw(FIELDS[hint])
    if cls is r.Append:
        fields["entries"] = draw(entries_behind(fields["prev_index"]))
    if cls is r.SnapshotChunk:
        fields["snapshot"] = r.SnapshotMeta(draw(NUMBERS), draw(NUMBERS), draw(VOTERS))
        fields["data"] = draw(st.binary(max_size=50))
    found: r.Message = cls(**fields)
    return found


def sent(packed: Packed) -> tuple[q.QuorumRequest, bytes]:
    """As the other end reads it."""
    frame = frames.encode(packed.request, 7, packed.body_bytes) + b"".join(packed.body)
    receiver = frames.FrameReceiver(own_bodies=True)
    view, found = memoryview(frame), []
    while len(view):
        room = receiver.get_buffer()
        count = min(len(room), len(view))
        room[:count] = view[:count]
        view = view[count:]
        found += receiver.buffer_updated(count)
    (received,) = found
    request = frames.decode_request(received.header)
    assert isinstance(request, q.QuorumRequest)
    return request, bytes(received.body)


@pytest.mark.parametrize("cls", get_args(r.Message), ids=lambda cls: cls.__name__)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_kind_arrives_as_it_was_sent(cls: type[Any], data: st.DataObject) -> None:
    message = data.draw(messages(cls))
    (packed,) = pack("c", [message])
    request, body = sent(packed)
    assert packed.node_id == request.target_id == message.target.node_id
    assert (request.cluster_id, request.source_id) == ("c", SOURCE.node_id)
    assert unpack(request, body) == [message]


@pytest.mark.parametrize(
    ("message", "added"),
    [
        (
            r.VoteResponse(source=SOURCE, target=SOURCE, term=3, granted=True, silent_us=9),
            "silent_us",
        ),
        (r.Heartbeat(source=SOURCE, target=SOURCE, term=3, commit=2, sent_us=9), "sent_us"),
        (r.HeartbeatResponse(source=SOURCE, target=SOURCE, term=3, sent_us=9), "sent_us"),
    ],
)
def test_a_sender_without_a_newer_field_has_its_default(message: r.Message, added: str) -> None:
    """Brokers of earlier releases vote and answer as ever."""
    (packed,) = pack("c", [message])
    request, body = sent(packed)
    as_ever = msgspec.to_builtins(request.messages[0])[:-1]
    earlier = msgspec.structs.replace(request, messages=[msgspec.convert(as_ever, q.QuorumMessage)])
    assert unpack(earlier, body) == [msgspec.structs.replace(message, **{added: 0})]


@settings(max_examples=50, deadline=None)
@given(st.lists(messages(), max_size=12))
def test_many_messages_keep_their_order_for_each_node(sent_messages: list[r.Message]) -> None:
    arrived: dict[int, list[r.Message]] = {}
    for packed in pack("c", sent_messages):
        arrived.setdefault(packed.node_id, []).extend(unpack(*sent(packed)))
    wanted: dict[int, list[r.Message]] = {}
    for message in sent_messages:
        wanted.setdefault(message.target.node_id, []).append(message)
    assert arrived == wanted


@settings(max_examples=50, deadline=None)
@given(messages(r.Append) | messages(r.SnapshotChunk))
def test_a_second_implementation_reads_and_writes_a_request(message: r.Message) -> None:
    (packed,) = pack("c", [message])
    read = msgpack.unpackb(frames.encode(packed.request, 7)[8:])
    ((tag, directory, term, *rest),) = read[7]
    assert (directory, term) == (message.target.directory_id, message.term)
    if isinstance(message, r.Append):
        assert tag == 5
        assert [size for _, _, size in rest[3]] == [len(e.data) for e in message.entries]
    else:
        assert (tag, rest[4]) == (9, len(packed.body[0]))
    request = frames.decode_request(msgpack.packb(read))
    assert isinstance(request, q.QuorumRequest)
    assert unpack(request, b"".join(packed.body)) == [message]


def append(count: int, data: bytes, index: int = 0) -> r.Append:
    entries = tuple(r.Entry(index + 1 + n, 1, r.EntryKind.DATA, data) for n in range(count))
    target = r.ReplicaKey(2, "disk-2")
    return r.Append(
        source=SOURCE, target=target, term=1, prev_index=index, prev_term=0, entries=entries,
        commit=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "each", "requests"),
    [
        (limits.QUORUM_MESSAGES_MAX, append(0, b""), 1),
        (limits.QUORUM_MESSAGES_MAX + 1, append(0, b""), 2),
        (3, append(limits.QUORUM_ENTRIES_MAX // 2, b""), 2),
        (4, append(1, bytes(limits.RAFT_APPEND_BYTES_MAX)), 1),
        (5, append(1, bytes(limits.RAFT_APPEND_BYTES_MAX)), 2),
    ],
)
def test_what_is_too_much_for_one_request_goes_into_the_next(
    count: int, each: r.Append, requests: int
) -> None:
    packed = pack("c", [each] * count)
    assert len(packed) == requests
    arrived = [message for one in packed for message in unpack(*sent(one))]
    assert arrived == [each] * count


def test_the_largest_append_of_the_quorum_fits() -> None:
    count = limits.RAFT_APPEND_BYTES_MAX // r.ENTRY_OVERHEAD_BYTES
    message = append(count, b"", index=2**62)
    (packed,) = pack("c", [message])
    assert unpack(*sent(packed)) == [message]


def test_the_widest_snapshot_of_the_quorum_fits() -> None:
    voters = {
        r.ReplicaKey(n, "\N{GRINNING FACE}" * limits.DIRECTORY_ID_CHARS_MAX): (
            "\N{GRINNING FACE}" * limits.ENDPOINT_CHARS_MAX
        )
        for n in range(limits.QUORUM_VOTERS_MAX)
    }
    message = r.SnapshotChunk(
        source=SOURCE, target=r.ReplicaKey(2, ""), term=1,
        snapshot=r.SnapshotMeta(9, 1, voters), offset=0,
        data=bytes(limits.RAFT_CHUNK_BYTES_MAX), done=True,
    )  # fmt: skip
    packed = pack("c", [message, message])
    assert [unpack(*sent(one)) for one in packed] == [[message], [message]]


@pytest.mark.parametrize(
    "message",
    [
        append(limits.QUORUM_ENTRIES_MAX + 1, b""),
        append(1, bytes(limits.QUORUM_BODY_BYTES_MAX + 1)),
        r.Observe(source=SOURCE, target=r.ReplicaKey(2, "x" * 65), term=0),
        r.Observe(source=r.ReplicaKey(1, "x" * 65), target=r.ReplicaKey(2, ""), term=0),
    ],
    ids=["entries", "bytes", "target", "source"],
)
def test_a_message_that_no_receiver_would_take_is_not_sent(message: r.Message) -> None:
    with pytest.raises(FrameTooLarge):
        pack("c", [message])


def request_of(*found: q.QuorumMessage, source: str = "d") -> q.QuorumRequest:
    return q.QuorumRequest(
        cluster_id="c", source_id=1, source_directory=source, messages=list(found)
    )


MANY = {r.ReplicaKey(n, "d"): "" for n in range(limits.QUORUM_VOTERS_MAX + 1)}


def voters_entry(voters: r.Voters) -> q.QuorumRequest:
    entry = q.QuorumEntry(1, int(r.EntryKind.VOTERS), len(pack_voters(voters)))
    return request_of(q.QuorumAppend(entries=[entry]))


@pytest.mark.parametrize(
    ("request_", "body", "why"),
    [
        (request_of(q.QuorumObserve(), source=""), b"", "no directory id"),
        (request_of(q.QuorumObserve()), b"x", "names 0"),
        (request_of(q.QuorumSnapshotChunk(data_bytes=2)), b"x", "names 2"),
        (request_of(q.QuorumAppend(entries=[q.QuorumEntry(1, 3, 0)])), b"", "unknown kind 3"),
        (request_of(q.QuorumAppend(entries=[q.QuorumEntry(1, 2, 1)])), b"\xc1", "the voters of"),
        (request_of(q.QuorumAppend(entries=[q.QuorumEntry(1, 2, 3)])), b"\x92\x00\x90", "voters"),
        (voters_entry({}), pack_voters({}), "length"),
        (voters_entry(MANY), pack_voters(MANY), "length"),
        (
            request_of(q.QuorumAppend(prev_index=2**63 - 1, entries=[q.QuorumEntry()])),
            b"",
            "end above",
        ),
    ],
)
def test_what_means_nothing_is_refused(request_: q.QuorumRequest, body: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        unpack(request_, body)


def test_a_header_that_claims_millions_of_entries_is_refused_before_they_are_made() -> None:
    entries = b"\xdd" + limits.QUORUM_ENTRIES_MAX.to_bytes(4, "big")
    entries += b"\x90" * limits.QUORUM_ENTRIES_MAX
    message = b"\x97\x05\xa1d\x00\x00\x00\x00" + entries
    head = b"".join(map(msgspec.msgpack.encode, [40, 1, 7, "c", 1, "d", 0]))
    many = limits.QUORUM_MESSAGES_MAX
    header = b"\x98" + head + b"\xdc" + many.to_bytes(2, "big") + message * many
    with pytest.raises(CorruptFrame, match="arrays and maps"):
        frames.decode_request(header)
    assert frames.decode_request(b"\x98" + head + b"\x91" + message)


@settings(max_examples=300, deadline=None)
@given(message=messages(), edits=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)),
       min_size=1, max_size=8), body=st.binary(max_size=60))  # fmt: skip
def test_damaged_requests_are_messages_or_typed_errors(
    message: r.Message, edits: list[tuple[int, int]], body: bytes
) -> None:
    (packed,) = pack("c", [message])
    header = bytearray(frames.encode(packed.request, 7)[8:])
    for at, value in edits:
        header[at % len(header)] = value
    for some in (body, b"".join(packed.body)):
        try:
            request = frames.decode_request(bytes(header))
            if isinstance(request, q.QuorumRequest):
                for found in unpack(request, some):
                    assert pack(request.cluster_id, [found])
        except QuiverlogError:
            continue


def test_two_disks_of_one_node_are_two_senders() -> None:
    other = r.ReplicaKey(1, "disk-9")
    target = r.ReplicaKey(2, "")
    both = [r.Observe(source=key, target=target, term=0) for key in (SOURCE, other, SOURCE)]
    packed = pack("c", both)
    assert [p.request.source_directory for p in packed] == ["disk-1", "disk-9"]
    assert [len(p.request.messages) for p in packed] == [2, 1]
