"""HTTP beside the broker, by aiohttp on the same loop: `/metrics`, `/healthz`, `/readyz`, a page.

`/healthz` answers 200 while the loop turns; `/readyz` 200 while the broker takes clients, else 503
with the reason. Answers name no library and no version. Imported at the port's first use: aiohttp
takes long.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from logging import Logger as StandardLogger
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from quiverlog.server.net.listener import Acceptor
from quiverlog.server.net.peer import peer_name
from quiverlog.server.net.tls import Handshakes, TlsHolder
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics

__all__ = ["HttpServer", "prefers_openmetrics"]

PAGE_S: Final = 1.0
"""A page of this age is answered again."""
_PAGE: Final = "page"
_PAGE_SHARE: Final = 0.8
"""Of `request_s`: then the page's client gets 503."""

HEAD_BYTES_MAX: Final = 8_192
"""Bound on all bytes of a connection up to the end of its request's head."""
_HEAD_S_MAX: Final = 5.0

_TLS_ONLY: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port takes TLS: https://\n"
)
OPENMETRICS: Final = "application/openmetrics-text"
_PLAIN: Final = ("text/plain", "text/*", "*/*")
"""Media ranges that accept the plain text, the most specific first."""
_WEIGHT: Final = re.compile(r"0(?:\.[0-9]*)?|1(?:\.0*)?")


def prefers_openmetrics(accept: str) -> bool:
    """Return whether the Accept field names OpenMetrics with no less weight than the plain text."""
    weights: dict[str, float] = {}
    for entry in accept.split(","):
        name, *parameters = (part.strip() for part in entry.lower().split(";"))
        # Prometheus names each version that it reads: the best counts.
        weights[name] = max(weights.get(name, 0.0), _weight(parameters))
    plain = next((weights[name] for name in _PLAIN if name in weights), 0.0)
    wanted = weights.get(OPENMETRICS, 0.0)
    return wanted > 0 and wanted >= plain


def _weight(parameters: list[str]) -> float:
    """Return the parameter q; 1 where it is missing or invalid."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            match = _WEIGHT.fullmatch(value.strip())
            return float(match[0]) if match else 1.0
    return 1.0


class HttpServer:
    """
    Args:
        render_metrics: content type (empty: the plain text) -> text and its full type.
        render_page: the page at `/`; called in a thread. None: there is none.
        not_ready: the reason why no clients are taken, or empty.
        connections_max, request_s: bounds, read at each connection.
    """

    def __init__(
        self,
        *,
        render_metrics: Callable[[str], tuple[bytes, str]],
        render_page: Callable[[], str] | None = None,
        not_ready: Callable[[], str],
        connections_max: Callable[[], int],
        request_s: Callable[[], float],
        metrics: ServerMetrics,
        log: Logger,
    ) -> None:
        self._render_metrics = render_metrics
        self._render_page = render_page
        self._not_ready = not_ready
        self._connections_max = connections_max
        self.request_s = request_s
        self.metrics = metrics
        self.log = log
        self.open: dict[HttpConnection, None] = {}
        """All connections, the oldest first."""
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor | None = None
        self._rendering: dict[str, asyncio.Future[tuple[bytes, str]]] = {}
        self._shaking = 0

    async def start(self, sock: socket.socket, tls: TlsHolder | None = None) -> None:
        app = web.Application(middlewares=[_begin_request])
        app.router.add_get("/metrics", self._answer_metrics)
        if self._render_page is not None:
            app.router.add_get("/", self._answer_page)
        app.router.add_get("/healthz", self._answer_healthz)
        app.router.add_get("/readyz", self._answer_readyz)
        app.on_response_prepare.append(_finish_head)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        manager = self._runner.server
        assert manager is not None
        loop = asyncio.get_running_loop()
        handshakes = None
        if tls is not None:
            handshakes = Handshakes(
                loop,
                tls,
                lambda _: HttpConnection(self, manager, has_place=True),
                self,
                plain_answer=_TLS_ONLY,
                metrics=self.metrics,
                log=self.log,
                yields=True,
            )
        self._acceptor = Acceptor(
            loop,
            sock,
            lambda: HttpConnection(self, manager),
            log=self.log,
            handshakes=handshakes,
        )

    async def close(self) -> None:
        """Stop; requests in progress get a second."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for connection in list(self.open):
            connection.cut_off("the broker stops")

    # --- connections before their handshake is over ---------------------------------------------
    def enter(self, _peer: str) -> bool | None:
        """Return a place for a handshake; None: there is none, unless a silent client gives way."""
        if self._shaking >= self._connections_max():
            return None
        self._shaking += 1
        return True

    def leave(self, _place: object = True) -> None:
        """Free the place: the handshake is over, or was none."""
        self._shaking -= 1

    def admit(self, connection: HttpConnection) -> bool:
        """Admit the connection; False: there is no room."""
        if len(self.open) >= self._connections_max():
            # The oldest without a request gives way: silent connections keep no scraper out.
            unfinished = next((one for one in self.open if not one.has_begun), None)
            if unfinished is None:
                return False
            unfinished.cut_off("another client takes its place")
            self.open.pop(unfinished, None)
        self.open[connection] = None
        return True

    # --- answers -------------------------------------------------------------------------------
    async def _answer_metrics(self, request: web.Request) -> web.Response:
        wanted = prefers_openmetrics(",".join(request.headers.getall("Accept", [])))
        kind = OPENMETRICS if wanted else ""
        # In a thread: a thousand series take tens of milliseconds.
        return await self._rendered_once(kind, lambda: self._render_metrics(kind))

    async def _answer_page(self, _request: web.Request) -> web.Response:
        assert self._render_page is not None
        render = self._render_page
        bound_s = self.request_s() * _PAGE_SHARE
        page = self._rendered_once(_PAGE, lambda: (render().encode(), "text/html; charset=utf-8"))
        try:
            return await asyncio.wait_for(page, bound_s)
        except TimeoutError:
            text = (
                f"The brokers have not all answered within {bound_s:g} s. Load the page again, or "
                "type `quiverlog cluster brokers`, which waits longer.\n"
            )
            return web.Response(text=text, status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def _rendered_once(
        self, kind: str, render: Callable[[], tuple[bytes, str]]
    ) -> web.Response:
        # One rendering of a kind at a time, shared: clients cannot pile up threads.
        rendering = self._rendering.get(kind)
        if rendering is None:
            if kind == _PAGE:
                rendering = _in_daemon(render)
            else:
                rendering = asyncio.get_running_loop().run_in_executor(None, render)
            self._rendering[kind] = rendering
            rendering.add_done_callback(lambda done: self._rendered(kind, done))
        text, content_type = await asyncio.shield(rendering)
        return web.Response(body=text, headers={"Content-Type": content_type})

    def _rendered(self, kind: str, done: asyncio.Future[tuple[bytes, str]]) -> None:
        if kind == _PAGE:
            asyncio.get_running_loop().call_later(PAGE_S, self._rendering.pop, kind)
        else:
            del self._rendering[kind]
        if not done.cancelled() and (error := done.exception()) is not None:
            what = "the page" if kind == _PAGE else "metrics"
            self.log.error(f"{what} cannot be rendered", error=repr(error))

    async def _answer_healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _answer_readyz(self, _request: web.Request) -> web.Response:
        reason = self._not_ready()
        if reason:
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        return web.json_response({"status": "ready"})


def _in_daemon(render: Callable[[], tuple[bytes, str]]) -> asyncio.Future[tuple[bytes, str]]:
    """Render in a thread for which no stop waits: a frozen peer delays the page."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[bytes, str]] = loop.create_future()

    def settle(text: tuple[bytes, str] | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if text is not None:
            done.set_result(text)
        else:
            assert error is not None
            done.set_exception(error)

    def run() -> None:
        text, error = None, None
        try:
            text = render()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, text, error)

    threading.Thread(target=run, name="quiverlog-page", daemon=True).start()
    return done


class HttpConnection(web.RequestHandler):
    """aiohttp's connection with bounds: one request, `HEAD_BYTES_MAX`, two deadlines.

    `has_begun`: the head was parsed, and a handler runs. `has_place`: it was counted before its
    handshake.
    """

    def __init__(self, server: HttpServer, manager: web.Server, *, has_place: bool = False) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            access_log=cast(StandardLogger, None),  # As the AppRunner turns it off.
            keepalive_timeout=0.0,
            lingering_time=0.0,
            max_line_size=HEAD_BYTES_MAX,
            max_field_size=HEAD_BYTES_MAX,
        )
        self._http_server = server
        self._socket = cast(asyncio.Transport, None)
        self._peer = "?"
        self._deadline: asyncio.TimerHandle | None = None
        self._received_bytes = 0
        self._is_refused = False
        self.has_begun = self.is_made = self._is_tls = False
        self._has_place = has_place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_made = True
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        if self._has_place:
            self._http_server.leave()
        self._socket = cast(asyncio.Transport, transport)
        self._peer = peer_name(transport)
        if not self._http_server.admit(self):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
            return
        super().connection_made(transport)
        head_s = min(_HEAD_S_MAX, self._http_server.request_s())
        self._set_deadline(head_s, self._refuse, HTTPStatus.REQUEST_TIMEOUT, "no request in time")

    def data_received(self, data: bytes) -> None:
        if self.has_begun or self._is_refused:
            return  # Neither a body nor pipelined requests cost memory.
        self._received_bytes += len(data)
        if self._received_bytes > HEAD_BYTES_MAX:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._refuse(status, f"more than {HEAD_BYTES_MAX} bytes")
            return
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio takes a bool, aiohttp gives none
        # A client may close its sending side and still wait for the answer; TLS has no such half.
        return self._received_bytes > 0 and not self._is_tls

    def connection_lost(self, exc: BaseException | None) -> None:
        self._http_server.open.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        super().connection_lost(exc)

    def begin(self) -> None:
        self.has_begun = True
        self._http_server.metrics.http_requests += 1
        self._set_deadline(self._http_server.request_s(), self.cut_off, "not answered in time")

    def cut_off(self, why: str) -> None:
        self._http_server.metrics.http_refused += 1
        self._http_server.log.info("http connection cut off", peer=self._peer, why=why)
        self._socket.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer without aiohttp's banner; the returned response finds the connection closed."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._http_server.log.error("http request failed", peer=self._peer, error=repr(exc))
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the broker's log has the reason")
        else:
            self._refuse(HTTPStatus(status), "not an HTTP request")
        return web.Response(status=status)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        self._http_server.metrics.http_refused += 1
        self._http_server.log.info(
            "http request refused", peer=self._peer, status=int(status), why=why
        )
        text = f"{status.phrase}: {why}.\n"
        self._socket.write(
            f"HTTP/1.1 {int(status)} {status.phrase}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
        )
        if self._deadline is not None:
            self._deadline.cancel()
        self._socket.close()

    def _set_deadline(self, after_s: float, call: Callable[..., None], *arguments: object) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(after_s, call, *arguments)


@web.middleware
async def _begin_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    connection.begin()
    return await handler(request)


async def _finish_head(_request: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Connection"] = "close"
    response.headers.pop("Server", None)
