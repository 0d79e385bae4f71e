"""The HTTP port on a loop of its own: what is answered, and what becomes of answers at a stop."""

from __future__ import annotations

import asyncio
import io
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from quiverlog.server.http import HttpServer
from quiverlog.server.http_guard import HttpLimits
from quiverlog.server.logs import make_logger
from quiverlog.server.metrics import ServerMetrics

REQUEST = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def serving(
    render: Callable[[], bytes] = lambda: b"a 1\n",
    not_ready: str = "",
    log: io.StringIO | None = None,
) -> AsyncIterator[tuple[HttpServer, tuple[str, int]]]:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    server = HttpServer(
        render_metrics=render,
        not_ready=lambda: not_ready,
        limits=HttpLimits(connections_max=10, request_s=20.0),
        metrics=ServerMetrics(),
        log=make_logger(level="info", format="logfmt", stream=log or io.StringIO()),
    )
    server.start(sock)
    try:
        yield server, sock.getsockname()
    finally:
        await server.close()


async def asked(address: tuple[str, int], request: bytes) -> tuple[bytes, bytes]:
    """The head and the body of the answer."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    writer.close()
    return head, body


async def test_each_path_is_answered_whatever_is_asked_of_it() -> None:
    async with serving(not_ready="recovering") as (_, address):
        head, body = await asked(address, REQUEST % b"/metrics?name[]=x")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
        assert body == b"a 1\n"
        assert (await asked(address, REQUEST % b"/healthz"))[1] == b'{"status": "ok"}'
        head, body = await asked(address, REQUEST % b"/readyz")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert body == b'{"status": "not ready", "reason": "recovering"}'
        assert (await asked(address, REQUEST % b"/metrics/"))[0].startswith(b"HTTP/1.1 404 ")


async def test_a_head_says_how_long_the_body_would_be() -> None:
    async with serving() as (_, address):
        head, body = await asked(address, b"HEAD /metrics HTTP/1.0\r\n\r\n")
        assert b"Content-Length: 4\r\n" in head
        assert body == b""


async def test_a_rendering_that_fails_is_an_answer_and_a_line_in_the_log() -> None:
    log = io.StringIO()

    def render() -> bytes:
        raise RuntimeError("no such series")

    async with serving(render, log=log) as (_, address):
        head, body = await asked(address, REQUEST % b"/metrics")
        assert head.startswith(b"HTTP/1.1 500 ")
        assert b"series" not in body
        assert (await asked(address, REQUEST % b"/healthz"))[0].startswith(b"HTTP/1.1 200 ")
    assert "no such series" in log.getvalue()


async def test_what_was_asked_before_a_stop_is_answered() -> None:
    asked_for, go_on = threading.Event(), threading.Event()

    def render() -> bytes:
        asked_for.set()
        assert go_on.wait(20)
        return b"late 1\n"

    async with serving(render) as (server, address):
        answer = asyncio.create_task(asked(address, REQUEST % b"/metrics"))
        await asyncio.to_thread(asked_for.wait, 20)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        assert (await answer)[1] == b"late 1\n"


async def test_a_client_that_goes_away_leaves_no_task() -> None:
    asked_for, go_on = threading.Event(), threading.Event()

    def render() -> bytes:
        asked_for.set()
        assert go_on.wait(20)
        return b"a 1\n"

    async with serving(render) as (server, address):
        _, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST % b"/metrics")
        await asyncio.to_thread(asked_for.wait, 20)
        (connection,) = server._guard.open
        assert connection.answering is not None
        # Closed with a reset: one that has only ended its requests still waits.
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await asyncio.wait([connection.answering], timeout=20)
        assert not server._guard.open
        go_on.set()
        assert (await asked(address, REQUEST % b"/metrics"))[1] == b"a 1\n"
