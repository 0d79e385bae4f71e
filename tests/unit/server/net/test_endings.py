"""How a connection ends: requests are answered, then the error is sent, then it is closed."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from quiverlog.errors import CorruptFrame, FrameTooLarge, QuiverlogError, error_class
from quiverlog.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from quiverlog.node.runtime.effects import CloseConnection, Effect, Respond
from quiverlog.node.runtime.events import ConnectionClosed, RequestReceived, RequestsEnded
from quiverlog.server.net import connection
from quiverlog.server.net.connection import REQUESTS_PER_TURN
from quiverlog.wire import messages as m
from tests.support.server import Server, echo, request, serving, until

BAD_HEADER = struct.pack("<II", 8, 4) + b"\xc1" * 4
BAD_FRAMES: list[tuple[bytes, type[QuiverlogError]]] = [
    (BAD_HEADER, CorruptFrame),
    (struct.pack("<II", 0, 0), CorruptFrame),
    (struct.pack("<II", 4, 0), CorruptFrame),
    (struct.pack("<II", 8, 9), CorruptFrame),
    (struct.pack("<II", FRAME_BYTES_MAX - 4, HEADER_BYTES_MAX + 1), CorruptFrame),
    (struct.pack("<II", FRAME_BYTES_MAX, 10), FrameTooLarge),
    (request(1), CorruptFrame),
]
"""What ends a connection: no message, no header, a header above its frame or its bound, a frame
above its bound, an id that is in flight (behind a request that is not answered)."""
BAD_IDS = ["no-message", "zeros", "no-header", "header-above-frame", "header-above-bound",
           "frame-above-bound", "id-in-flight"]  # fmt: skip


def unanswered(event: Any) -> list[Effect]:
    return []


def answer_all(server: Server) -> None:
    """The node answers all that it was asked."""
    events = server.node.events(RequestReceived)
    server.runner.perform([effect for event in events for effect in echo(event)])
    server.runner.flush()


@pytest.mark.parametrize(("bad", "error"), BAD_FRAMES, ids=BAD_IDS)
@pytest.mark.parametrize("reads", [1, 2])
async def test_what_was_asked_before_bad_bytes_is_answered_before_the_error(
    bad: bytes, error: type[QuiverlogError], reads: int
) -> None:
    """Produces that wait for the disk, reads that wait for a job: their answers come later."""
    async with serving() as server:
        server.node.answer = unanswered
        client = await server.connect()
        good = request(1) + request(2, b"body") + request(3)
        if reads == 1:
            client.writer.write(good + bad)
        else:
            client.writer.write(good)
            await until(lambda: len(server.node.bodies) == 3)
            client.writer.write(bad)
        await until(lambda: server.node.events(RequestsEnded))
        assert server.node.bodies == [b"", b"body", b""]
        assert not client.responses
        assert len(server.table) == 1
        answer_all(server)
        answers = await client.receive(4)
        assert [(a.correlation_id, a.error_code) for a in answers[:3]] == [(1, 0), (2, 0), (3, 0)]
        assert answers[3].error_code == error.code
        assert await client.ended()
        assert server.metrics.connections_closed_by == {"protocol": 1}


async def test_good_requests_of_many_turns_are_answered_before_the_error() -> None:
    count = 3 * REQUESTS_PER_TURN + 5
    async with serving(in_flight_max=100) as server:
        server.node.answer = unanswered
        client = await server.connect()
        client.writer.write(b"".join(map(request, range(1, count + 1))) + bytes(8))
        server.node.answer = echo
        answers = await client.receive(count + 1)
        assert [a.correlation_id for a in answers] == [*range(1, count + 1), 0]
        assert answers[-1].error_code == CorruptFrame.code
        assert await client.ended()


async def test_long_polls_that_a_later_turn_brings_end_as_well() -> None:
    """Such long polls are parked after the error was seen, and before it is sent."""
    waiting: list[RequestReceived] = []

    def park(event: Any) -> list[Effect]:
        if isinstance(event, RequestReceived):
            waiting.append(event)
        elif isinstance(event, RequestsEnded):
            effects = [effect for request in waiting for effect in echo(request)]
            waiting.clear()
            return effects
        return []

    count = 2 * REQUESTS_PER_TURN
    async with serving() as server:
        server.node.answer = park
        client = await server.connect()
        client.writer.write(b"".join(map(request, range(1, count + 1))) + bytes(8))
        answers = await client.receive(count + 1)
        assert [a.correlation_id for a in answers] == [*range(1, count + 1), 0]
        assert await client.ended()


async def test_the_first_of_two_errors_is_sent() -> None:
    """The second lies behind a request that a later turn finds unreadable."""
    count = REQUESTS_PER_TURN + 7
    async with serving() as server:
        client = await server.connect()
        good = b"".join(map(request, range(1, count + 1)))
        unknown = bytes([0x93, 126, 1, 42])
        no_api = struct.pack("<II", 4 + len(unknown), len(unknown)) + unknown
        client.writer.write(good + no_api + request(count + 1) + bytes(8))
        answers = await client.receive(count + 2)
        assert [a.correlation_id for a in answers] == [*range(1, count + 1), 42]
        assert error_class(answers[-1].error_code).code_name() == "UNKNOWN_API"
        assert await client.ended()
        assert server.metrics.connections_closed_by == {"protocol": 1}
        assert len(server.node.bodies) == count


async def test_the_error_does_not_wait_for_an_answer_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "ANSWERS_S_MAX", 0.05)
    async with serving() as server:
        server.node.answer = unanswered
        client = await server.connect()
        client.writer.write(request(1) + bytes(8))
        (answer,) = await client.receive(1)
        assert (answer.correlation_id, answer.error_code) == (0, CorruptFrame.code)
        assert await client.ended()
        answer_all(server)  # too late, which is harmless
        assert not client.responses


async def test_nothing_is_taken_up_behind_bad_bytes() -> None:
    async with serving() as server:
        server.node.answer = unanswered
        client = await server.connect()
        client.writer.write(request(1) + bytes(8) + request(2))
        await until(lambda: server.node.events(RequestsEnded))
        client.writer.write(request(3))
        answer_all(server)
        assert [a.correlation_id for a in await client.receive(2)] == [1, 0]
        assert await client.ended()
        assert len(server.node.bodies) == 1


async def test_a_client_that_is_gone_before_its_answers_leaves_nothing() -> None:
    async with serving() as server:
        server.node.answer = unanswered
        client = await server.connect()
        client.writer.write(request(1) + bytes(8))
        await until(lambda: server.node.events(RequestsEnded))
        client.writer.transport.abort()
        answer_all(server)
        await until(lambda: not server.table.by_id)
        assert len(server.node.events(ConnectionClosed)) == 1
        assert server.memory.used_bytes == 0
        assert server.table.lingering == 0


async def test_a_correlation_id_in_flight_cannot_be_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a client could have any number of requests wait under the bound of one."""
    monkeypatch.setattr(connection, "ANSWERS_S_MAX", 0.05)
    async with serving(in_flight_max=4) as server:
        server.node.answer = lambda event: []
        client, other = await server.connect(), await server.connect()
        client.writer.write(request(7) * 100)
        (answer,) = await client.receive(1)
        assert error_class(answer.error_code) is CorruptFrame
        assert "7 is still in flight" in answer.error_message
        assert await client.ended()
        assert len(server.node.bodies) == 1
        server.node.answer = echo
        other.writer.write(request(7) + request(8))
        assert [a.error_code for a in await other.receive(2)] == [0, 0]
        other.writer.write(request(7))  # answered, so free again
        assert [a.correlation_id for a in await other.receive(1)] == [7]


async def test_long_polls_are_answered_before_the_error_that_ends_the_connection() -> None:
    waiting: list[RequestReceived] = []

    def park(event: Any) -> list[Effect]:
        if isinstance(event, RequestReceived):
            waiting.append(event)
        elif isinstance(event, RequestsEnded):
            return [effect for request in waiting for effect in echo(request)]
        return []

    async with serving() as server:
        server.node.answer = park
        client = await server.connect()
        no_request = (8).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"\xc1" * 4
        client.writer.write(request(50) + no_request)
        answers = await client.receive(2)
        assert [(a.correlation_id, a.error_code) for a in answers] == [
            (50, 0),
            (0, CorruptFrame.code),
        ]
        assert await client.ended()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "CORRUPT_FRAME"),
        (b"\xff" * 64, "CORRUPT_FRAME"),
        ((70 << 20).to_bytes(4, "little") + (50).to_bytes(4, "little"), "FRAME_TOO_LARGE"),
        (bytes(64), "CORRUPT_FRAME"),
        (
            (8).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"\xc1\xc1\xc1\xc1",
            "CORRUPT_FRAME",
        ),
    ],
    ids=["http", "ones", "oversized", "zeros", "msgpack"],
)
async def test_bytes_that_are_no_frames(data: bytes, error: str) -> None:
    async with serving() as server:
        client, good = await server.connect(), await server.connect()
        client.writer.write(request(1))
        assert (await client.receive(1))[0].error_code == 0
        client.writer.write(data + bytes(100_000))
        (refusal,) = await client.receive(1)
        assert error_class(refusal.error_code).code_name() == error
        assert await client.ended()
        assert server.metrics.connections_closed_by == {"protocol": 1}
        good.writer.write(request(5))
        assert (await good.receive(1))[0].correlation_id == 5


async def test_a_client_that_is_still_sending_gets_the_refusal() -> None:
    """Closing at once would reset the connection under its hands, and the answer with it."""
    async with serving() as server:
        client = await server.connect()
        client.writer.write(bytes(64))
        (refusal,) = await client.receive(1)
        assert refusal.error_code
        for _ in range(64):
            client.writer.write(bytes(128 << 10))
            await client.writer.drain()
            assert not client.writer.transport.is_closing()
        assert await client.ended()


@pytest.mark.parametrize(
    ("api", "version", "error"), [(126, 1, "UNKNOWN_API"), (1, 9, "UNSUPPORTED_VERSION")]
)
async def test_unknown_api_or_version_keeps_the_correlation_id(
    api: int, version: int, error: str
) -> None:
    async with serving() as server:
        client = await server.connect()
        header = bytes([0x93, api, version, 42])
        client.writer.write((4 + len(header)).to_bytes(4, "little"))
        client.writer.write(len(header).to_bytes(4, "little") + header)
        (refusal,) = await client.receive(1)
        assert refusal.correlation_id == 42
        assert error_class(refusal.error_code).code_name() == error
        assert await client.ended()


async def test_the_node_may_close_a_connection_after_its_answer() -> None:
    async with serving() as server:
        server.node.answer = lambda event: [
            *echo(event),
            *([CloseConnection(event.connection_id, "why")] if echo(event) else []),
        ]
        client = await server.connect()
        client.writer.write(request(1))
        assert len(await client.receive(1)) == 1
        assert await client.ended()
        assert "why=why" in server.log.getvalue()
        client.writer.close()
        await until(lambda: server.node.events(ConnectionClosed))


async def test_each_connection_is_removed_once() -> None:
    async with serving() as server:
        client = await server.connect()
        client.writer.write(request(1))
        await client.receive(1)
        client.writer.close()
        await until(lambda: server.node.events(ConnectionClosed))
        assert len(server.node.events(ConnectionClosed)) == 1
        assert server.metrics.connections_open == len(server.table) == 0
        # An answer that comes too late is dropped.
        server.runner.perform([Respond(1, m.MetadataResponse(), 1)])
        server.runner.flush()
