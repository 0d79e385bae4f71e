"""The bounds of one HTTP connection, without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import ClientError, ClientSession, web

from quiverlog.local.authority import Authority
from quiverlog.server.http import (
    HEAD_BYTES_MAX,
    PAGE_S,
    HttpConnection,
    HttpServer,
    prefers_openmetrics,
)
from quiverlog.server.net import tls as tls_module
from quiverlog.server.net.tls import TlsHolder
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.tls import ServerTls, client_context
from tests.support.server import until as reached
from tests.support.tls import write_files
from tests.support.until import until

REQUEST_S = 0.05


def connected(server: HttpServer, manager: web.Server) -> tuple[HttpConnection, Mock]:
    connection, transport = HttpConnection(server, manager), Mock(asyncio.Transport)
    transport.get_extra_info.return_value = None
    connection.connection_made(transport)
    return connection, transport


def on_a_loop(case: Callable[[HttpServer, web.Server], Awaitable[None]]) -> None:
    async def run() -> None:
        server = HttpServer(
            render_metrics=lambda _kind: (b"", ""), not_ready=str, connections_max=lambda: 2,
            request_s=lambda: REQUEST_S, metrics=ServerMetrics(), log=Mock(),
        )  # fmt: skip
        runner = web.AppRunner(web.Application())
        await runner.setup()
        assert runner.server is not None
        await case(server, runner.server)
        for connection in list(server.open):
            connection.connection_lost(None)
        await runner.cleanup()

    asyncio.run(run())


async def called(method: Mock) -> None:
    event = asyncio.Event()
    method.side_effect = lambda *_: event.set()
    async with asyncio.timeout(10):
        await event.wait()


def test_a_page_is_made_once_for_all_that_ask_in_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    metrics = ServerMetrics()

    def page() -> str:
        until(lambda: metrics.http_requests >= 2)
        made.append(True)
        return "<p>ö</p>"

    async def run() -> None:
        server = HttpServer(
            render_metrics=lambda _kind: (b"", ""), render_page=page, not_ready=str,
            connections_max=lambda: 9, request_s=lambda: 10.0, metrics=metrics, log=Mock(),
        )  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as sock:
            sock.setblocking(False)
            await server.start(sock)
            url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
            async with ClientSession() as session:
                both = [asyncio.ensure_future(session.get(url)) for _ in range(2)]
                for answer in await asyncio.gather(*both):
                    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
                    assert await answer.text() == "<p>ö</p>"
                assert (await session.get(url)).status == HTTPStatus.OK
                assert made == [True], "and a while after"
                loop = asyncio.get_running_loop()
                monkeypatch.setattr(loop, "time", lambda now=loop.time: now() + PAGE_S)
                assert (await session.get(url)).status == HTTPStatus.OK
            await server.close()

    asyncio.run(run())
    assert made == [True] * 2


def test_a_page_that_takes_long_is_answered_in_time_and_delays_no_stop() -> None:
    let_go = threading.Event()
    ended = threading.Event()

    def page() -> str:
        let_go.wait(30)
        ended.set()
        return "late"

    async def run() -> None:
        server = HttpServer(
            render_metrics=lambda _kind: (b"", ""), render_page=page, not_ready=str,
            connections_max=lambda: 9, request_s=lambda: 0.5, metrics=ServerMetrics(), log=Mock(),
        )  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as sock:
            sock.setblocking(False)
            await server.start(sock)
            async with ClientSession() as session:
                answer = await session.get(f"http://127.0.0.1:{sock.getsockname()[1]}/")
                assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
                assert "have not all answered within 0.4 s" in await answer.text()
            await server.close()

    asyncio.run(run())
    assert not ended.is_set(), "the stop has waited for the page"
    let_go.set()
    assert ended.wait(30)


def test_a_page_that_fails_is_an_error_for_its_second() -> None:
    made = []

    def page() -> str:
        made.append(True)
        raise ValueError("broken")

    async def run() -> None:
        server = HttpServer(
            render_metrics=lambda _kind: (b"", ""), render_page=page, not_ready=str,
            connections_max=lambda: 9, request_s=lambda: 10.0, metrics=ServerMetrics(), log=Mock(),
        )  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as sock:
            sock.setblocking(False)
            await server.start(sock)
            url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
            async with ClientSession() as session:
                for _ in range(2):
                    answer = await session.get(url)
                    assert answer.status == HTTPStatus.INTERNAL_SERVER_ERROR
            await server.close()

    asyncio.run(run())
    assert made == [True]


def test_an_answer_that_is_not_taken_in_time_is_cut_off() -> None:
    async def case(server: HttpServer, manager: web.Server) -> None:
        connection, transport = connected(server, manager)
        connection.begin()
        await called(transport.abort)
        transport.write.assert_not_called()

    on_a_loop(case)


def test_a_head_that_does_not_come_in_time_is_answered() -> None:
    async def case(server: HttpServer, manager: web.Server) -> None:
        _, transport = connected(server, manager)
        await called(transport.close)
        assert transport.write.call_args.args[0].startswith(b"HTTP/1.1 408 ")
        transport.abort.assert_not_called()

    on_a_loop(case)


def test_what_comes_behind_a_request_is_discarded() -> None:
    async def case(server: HttpServer, manager: web.Server) -> None:
        connection, transport = connected(server, manager)
        connection.begin()
        connection.data_received(bytes(HEAD_BYTES_MAX + 1))
        transport.write.assert_not_called()
        transport.close.assert_not_called()

    on_a_loop(case)


def test_a_full_port_refuses_only_while_every_request_has_begun() -> None:
    async def case(server: HttpServer, manager: web.Server) -> None:
        (first, _), (second, idle) = connected(server, manager), connected(server, manager)
        first.begin()
        third, _ = connected(server, manager)
        idle.abort.assert_called_once()
        assert list(server.open) == [first, third]
        third.begin()
        _, refused = connected(server, manager)
        assert refused.write.call_args.args[0].startswith(b"HTTP/1.1 503 ")
        refused.close.assert_called_once()
        assert list(server.open) == [first, third]
        second.connection_lost(None)

    on_a_loop(case)


@pytest.mark.parametrize("said", [b"", b"\x16"])
def test_connections_without_a_handshake_keep_no_probe_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(tls_module, "CROWDED_S", 0.05)
    files = write_files(tmp_path, "broker", authority=Authority.make("tests"))
    holder = TlsHolder(ServerTls(files.cert, files.key))
    context = client_context(files.ca, "", "")

    async def run() -> None:
        server = HttpServer(
            render_metrics=lambda _kind: (b"", ""), not_ready=str, connections_max=lambda: 2,
            request_s=lambda: 10.0, metrics=ServerMetrics(), log=Mock(),
        )  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as sock:
            sock.setblocking(False)
            await server.start(sock, holder)
            port = sock.getsockname()[1]
            mute = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _, writer in mute:
                writer.write(said)
            await reached(lambda: server._shaking == 2)
            async with asyncio.timeout(4), ClientSession() as session:
                url = f"https://127.0.0.1:{port}/healthz"
                while True:
                    with contextlib.suppress(ClientError):
                        async with session.get(url, ssl=context) as answer:
                            assert answer.status == HTTPStatus.OK
                            break
            for _, writer in mute:
                writer.close()
            await server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5, text/plain;q=0.5", True),
        ("application/openmetrics-text;q=0.4, text/*;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", True),
        ("*/*", False),
        ("", False),
    ],
)
def test_the_weights_of_accept_choose_the_text(accept: str, wanted: bool) -> None:
    assert prefers_openmetrics(accept) is wanted
