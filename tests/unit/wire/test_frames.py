"""Frames: any cut of the stream gives the same frames; bounds hold before memory is taken."""

from __future__ import annotations

import gc
import struct
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiverlog.errors import (
    CorruptFrame,
    FrameTooLarge,
    NotNegotiated,
    UnknownApi,
    UnsupportedVersion,
)
from quiverlog.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX, KIB, MIB
from quiverlog.wire import frames, messages
from quiverlog.wire.buffers import BUFFERS_MAX, BufferPool
from quiverlog.wire.frames import FrameReceiver
from quiverlog.wire.registry import APIS, LateDecoder, api_ranges

SMALL_SCRATCH = frames.DEDICATED_BYTES_MIN + KIB
TURNS_MAX = 2_000
"""Cuts of a stream that is drawn: two megabytes byte by byte show no more."""


def frame_bytes(correlation_id: int, body: bytes) -> bytes:
    return frames.encode(messages.ProduceRequest(), correlation_id, len(body)) + body


def feed(receiver: FrameReceiver, data: bytes, step: int = 1 << 30) -> list[tuple[int, bytes]]:
    """Receive as a socket would; (correlation id, body) of every frame, copied at once."""
    seen = []
    left = memoryview(data)
    while left:
        room = receiver.get_buffer()
        n = min(len(room), len(left), step)
        room[:n] = left[:n]
        left = left[n:]
        seen += [
            (frames.peek_preamble(frame.header)[2], bytes(frame.body))
            for frame in receiver.buffer_updated(n)
        ]
    return seen


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 63, 1000, 40_000, 70_000, 300_000]), max_size=6),
    steps=st.lists(st.integers(1, 200_000), min_size=1, max_size=8),
    own_bodies=st.booleans(),
)
def test_frames_do_not_depend_on_how_the_stream_is_cut(
    sizes: list[int], steps: list[int], own_bodies: bool
) -> None:
    bodies = [bytes([i % 251 + 1]) * size for i, size in enumerate(sizes)]
    data = b"".join(frame_bytes(i, body) for i, body in enumerate(bodies))
    receiver = FrameReceiver(own_bodies=own_bodies)
    seen, at, turn = [], 0, 0
    while at < len(data):
        step = steps[turn % len(steps)] if turn < TURNS_MAX else len(data)
        seen += feed(receiver, data[at : at + step])
        at, turn = at + step, turn + 1
    assert seen == list(enumerate(bodies))
    assert not receiver.partial


def test_byte_by_byte() -> None:
    data = frame_bytes(1, b"") + frame_bytes(2, b"abc") + frame_bytes(3, b"")
    assert feed(FrameReceiver(), data, step=1) == [(1, b""), (2, b"abc"), (3, b"")]


def test_connections_share_one_scratch() -> None:
    scratch = bytearray(SMALL_SCRATCH)
    one, two = FrameReceiver(scratch=scratch), FrameReceiver(scratch=scratch)
    first, second = frame_bytes(1, b"x" * 5000), frame_bytes(2, b"y" * 5000)
    assert feed(one, first[:3000]) == []
    assert one.partial
    assert feed(two, second[:4000]) == []
    assert feed(one, first[3000:]) == [(1, b"x" * 5000)]
    assert feed(two, second[4000:]) == [(2, b"y" * 5000)]
    assert not one.partial


def test_get_buffer_may_be_called_again_without_bytes() -> None:
    receiver = FrameReceiver()
    data = frame_bytes(7, b"z" * 100)
    assert feed(receiver, data[:50]) == []
    receiver.get_buffer()
    receiver.get_buffer()
    assert feed(receiver, data[50:]) == [(7, b"z" * 100)]


def test_small_frames_are_views_of_the_scratch() -> None:
    scratch = bytearray(SMALL_SCRATCH)
    receiver = FrameReceiver(scratch=scratch)
    data = frame_bytes(1, b"abc")
    receiver.get_buffer()[: len(data)] = data
    (frame,) = receiver.buffer_updated(len(data))
    assert frame.body.obj is scratch


def test_own_bodies_stay_valid() -> None:
    receiver = FrameReceiver(own_bodies=True)
    kept = []
    for i in range(8):
        size = 10 if i % 2 else 100_000
        left = memoryview(frame_bytes(i, bytes([i]) * size))
        while left:
            room = receiver.get_buffer()
            n = min(len(room), len(left))
            room[:n] = left[:n]
            left = left[n:]
            kept += [f.body for f in receiver.buffer_updated(n)]
    assert [(body[0], len(set(bytes(body)))) for body in kept] == [(i, 1) for i in range(8)]


def test_large_frames_are_received_straight_into_their_buffer() -> None:
    receiver = FrameReceiver(own_bodies=True)
    data = frame_bytes(1, b"b" * MIB)
    room = receiver.get_buffer()
    room[:KIB] = data[:KIB]
    assert receiver.buffer_updated(KIB) == []
    rest = receiver.get_buffer()
    assert len(rest) == len(data) - KIB, "exactly the rest: nothing of a next frame comes along"
    rest[:] = data[KIB:]
    (frame,) = receiver.buffer_updated(len(rest))
    assert frame.body.obj is rest.obj
    assert len(receiver.get_buffer()) == frames.PROBE_BYTES, "look before taking much again"


def test_an_idle_receiver_holds_nothing() -> None:
    receiver = FrameReceiver(scratch=bytearray(SMALL_SCRATCH))
    feed(receiver, frame_bytes(1, b"b" * 2 * MIB))
    assert not receiver.partial
    assert receiver._pending == b""
    assert receiver._dedicated is None


# --- bounds ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("prefix", "error"),
    [
        (struct.pack("<II", 0, 0), CorruptFrame),
        (struct.pack("<II", 3, 1), CorruptFrame),
        (struct.pack("<II", 10, 0), CorruptFrame),
        (struct.pack("<II", 10, 7), CorruptFrame),
        (struct.pack("<II", 2**32 - 1, 2**32 - 1), CorruptFrame),
        (struct.pack("<II", FRAME_BYTES_MAX, HEADER_BYTES_MAX + 1), CorruptFrame),
        (struct.pack("<II", FRAME_BYTES_MAX - 3, 10), FrameTooLarge),
        (b"GET / HTTP/1.1\r\n", CorruptFrame),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", CorruptFrame),
    ],
)
def test_bad_prefixes_are_refused_before_anything_is_allocated(
    prefix: bytes, error: type[Exception]
) -> None:
    receiver = FrameReceiver()
    with pytest.raises(error):
        feed(receiver, prefix)
    assert receiver._dedicated is None


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 63, 40_000, 300_000]), max_size=5),
    steps=st.lists(st.integers(1, 400_000), min_size=1, max_size=8),
    bad=st.sampled_from(
        [
            struct.pack("<II", 0, 0),
            struct.pack("<II", 10, 7),
            struct.pack("<II", FRAME_BYTES_MAX - 4, HEADER_BYTES_MAX + 1),
            struct.pack("<II", FRAME_BYTES_MAX, 10),
        ]
    ),
)
def test_frames_before_bytes_that_are_none_are_given_wherever_the_stream_is_cut(
    sizes: list[int], steps: list[int], bad: bytes
) -> None:
    bodies = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    data = b"".join(frame_bytes(i, body) for i, body in enumerate(bodies)) + bad
    receiver = FrameReceiver()
    seen: list[tuple[int, bytes]] = []
    at = turn = 0
    raised = False
    while at < len(data) and not raised and receiver.error is None:
        room = receiver.get_buffer()
        step = steps[turn % len(steps)] if turn < TURNS_MAX else len(data)
        n = min(len(room), len(data) - at, step)
        room[:n] = data[at : at + n]
        at, turn = at + n, turn + 1
        try:
            given = receiver.buffer_updated(n)
        except (CorruptFrame, FrameTooLarge):
            raised = True
        else:
            assert given or receiver.error is None, "the error comes behind frames"
            seen += [(frames.peek_preamble(f.header)[2], bytes(f.body)) for f in given]
    assert seen == list(enumerate(bodies))
    assert receiver.error is not None
    assert not receiver.partial
    with pytest.raises(type(receiver.error)):
        receiver.buffer_updated(0)


def test_the_largest_frame_is_taken_and_one_byte_more_is_not() -> None:
    body = b"x" * 100
    data = frame_bytes(1, body)
    assert feed(FrameReceiver(frame_bytes_max=len(data)), data) == [(1, body)]
    with pytest.raises(FrameTooLarge):
        feed(FrameReceiver(frame_bytes_max=len(data) - 1), data)


def test_encode_refuses_what_a_peer_would_refuse() -> None:
    with pytest.raises(FrameTooLarge):
        frames.encode(messages.ProduceRequest(), 1, FRAME_BYTES_MAX)
    with pytest.raises(FrameTooLarge):
        frames.encode(messages.MetadataRequest(topics=["x" * HEADER_BYTES_MAX]), 1)


# --- headers --------------------------------------------------------------------------------------
@pytest.mark.parametrize("spec", APIS.values(), ids=lambda spec: spec.api.name)
def test_every_message_comes_back(spec) -> None:  # type: ignore[no-untyped-def]
    request = frames.decode_request(frames.encode(spec.request(), 300)[8:])
    assert type(request) is spec.request
    assert (request.api, request.version, request.correlation_id) == (spec.api, 1, 300)
    response = frames.decode_response(frames.encode(spec.response(), 70_000)[8:], spec.api)
    assert type(response) is spec.response
    assert response.correlation_id == 70_000


def test_older_and_newer_headers() -> None:
    import msgspec

    short = msgspec.msgpack.encode([messages.Api.FETCH, 1, 9])
    request = frames.decode_request(short)
    assert isinstance(request, messages.FetchRequest)
    assert request.min_bytes == 1, "a field that an older peer does not send has its default"
    full = msgspec.msgpack.decode(frames.encode(messages.FetchRequest(rack="r"), 9)[8:])
    longer = msgspec.msgpack.encode([*full, "a field of the future", {"more": [1, None]}])
    newer = frames.decode_request(longer)
    assert isinstance(newer, messages.FetchRequest)
    assert newer.rack == "r"


def test_unknown_apis_and_versions_are_named() -> None:
    import msgspec

    with pytest.raises(UnknownApi, match="99"):
        frames.decode_request(msgspec.msgpack.encode([99, 1, 5]))
    with pytest.raises(UnknownApi, match="1000"):
        frames.decode_request(msgspec.msgpack.encode([1000, 1, 5]))
    with pytest.raises(UnsupportedVersion, match="FETCH version 2"):
        frames.decode_request(msgspec.msgpack.encode([messages.Api.FETCH, 2, 5, "new", "layout"]))
    with pytest.raises(UnsupportedVersion):
        frames.decode_request(msgspec.msgpack.encode([messages.Api.FETCH, 0, 5]))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x93",
        b"\xc0",
        b"\x93\x01\x01",
        b"\x93\xa1x\x01\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\x81",
    ],
)
def test_headers_that_are_no_messages(header: bytes) -> None:
    for decode in (frames.decode_request, frames.peek_preamble, frames.decode_error):
        with pytest.raises((CorruptFrame, UnknownApi)):
            decode(header)
    with pytest.raises(CorruptFrame):
        frames.decode_response(header, messages.Api.FETCH)


def test_a_response_of_another_api_is_refused() -> None:
    head = frames.encode(messages.FetchResponse(), 1)
    with pytest.raises(CorruptFrame, match="PRODUCE"):
        frames.decode_response(head[8:], messages.Api.PRODUCE)


def test_an_error_can_be_read_as_any_response() -> None:
    error = NotNegotiated("say hello")
    for spec in APIS.values():
        head = frames.encode_error(error, api=spec.api, correlation_id=4)
        response = frames.decode_response(head[8:], spec.api)
        assert (response.error_code, response.error_message) == (6, "say hello")
        assert response.correlation_id == 4
    assert frames.decode_error(frames.encode_error(error)[8:]).error_code == 6


def test_hello_lists_every_api_once() -> None:
    assert sorted(r.api for r in api_ranges(between_brokers=True)) == sorted(messages.Api)


# --- buffers --------------------------------------------------------------------------------------
def test_a_buffer_is_used_again_only_when_every_view_is_gone() -> None:
    pool = BufferPool()
    first = pool.take(100_000)
    part = first[10:20]
    second = pool.take(100_000)
    assert second.obj is not first.obj
    used = id(first.obj)
    del first
    assert id(pool.take(100_000).obj) != used, "a part of it is still looked at"
    del part
    gc.collect()
    assert id(pool.take(100_000).obj) == used


def test_an_array_keeps_its_buffer() -> None:
    import pyarrow as pa

    pool = BufferPool()
    array = pa.Array.from_buffers(pa.int64(), 100, [None, pa.py_buffer(pool.take(70_000))])
    for _ in range(5):
        pool.take(70_000)[:8] = b"\xff" * 8
    assert array[0].as_py() == 0


def test_the_pool_keeps_no_more_than_its_bound() -> None:
    pool = BufferPool(bytes_max=MIB)
    for size in (MIB, 100_000, 2 * MIB, 70_000):
        pool.take(size)
        assert pool._bytes <= MIB
    held = [pool.take(70_000) for _ in range(3 * BUFFERS_MAX)]
    assert len(pool._buffers) <= BUFFERS_MAX
    assert len({id(view.obj) for view in held}) == len(held)


def test_a_decoder_is_made_for_the_first_message_that_needs_it() -> None:
    """To make all of them took 9 ms of each start, and of each command."""
    decoder = LateDecoder(messages.HelloRequest)
    with mock.patch.object(msgspec.msgpack, "Decoder", side_effect=msgspec.msgpack.Decoder) as made:
        header = msgspec.msgpack.encode(messages.HelloRequest(client_id="c"))
        assert not made.called
        assert decoder.decode(header).client_id == "c"
        assert decoder.decode(header).client_id == "c"
    assert made.call_count == 1
    assert not hasattr(decoder, "encode")
