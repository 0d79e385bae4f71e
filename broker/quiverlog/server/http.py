"""HTTP beside the broker: `/metrics`, `/healthz` and `/readyz`, on the same loop.

Owns the three paths and nothing else. `/healthz` answers 200 as long as the loop turns (a
supervisor should restart a broker that does not answer); `/readyz` answers 200 while the broker
takes clients and 503 with the reason while it recovers or stops. `/metrics` is rendered in a
thread: a thousand series take tens of milliseconds, which the loop has no time for.

Who may connect, and for how long, is the guard's (`http_guard`). Answers name no library and no
version, quiverlog's included: what runs here is not for everybody who can reach the port.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web

from quiverlog.server.http_guard import OPENMETRICS, HttpGuard, HttpLimits
from quiverlog.server.net.listener import Acceptor
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics

__all__ = ["HttpServer"]


class HttpServer:
    """Serves until `close`.

    Args:
        render_metrics: from what a scraper accepts to the text and its content type; runs in a
            thread.
        not_ready: the reason why no clients are taken, empty when they are.
    """

    def __init__(
        self,
        *,
        render_metrics: Callable[[str], tuple[bytes, str]],
        not_ready: Callable[[], str],
        limits: HttpLimits,
        metrics: ServerMetrics,
        log: Logger,
    ) -> None:
        self._render_metrics = render_metrics
        self._not_ready = not_ready
        self.limits = limits
        self._metrics = metrics
        self._log = log
        self._runner: web.AppRunner | None = None
        self._guard: HttpGuard | None = None
        self._acceptor: Acceptor | None = None
        self._rendering: dict[str, asyncio.Future[tuple[bytes, str]]] = {}

    async def start(self, sock: socket.socket) -> None:
        """Serve on a socket that listens."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer_metrics)
        app.router.add_get("/healthz", self._answer_healthz)
        app.router.add_get("/readyz", self._answer_readyz)
        app.on_response_prepare.append(_finish_head)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True
        )
        await self._runner.setup()
        make_handler = self._runner.server
        assert make_handler is not None
        self._guard = HttpGuard(self.limits, make_handler, metrics=self._metrics, log=self._log)
        loop = asyncio.get_running_loop()
        self._acceptor = Acceptor(loop, sock, self._guard, log=self._log)

    async def close(self) -> None:
        """Stop; requests that are being answered get a second."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._guard is not None:
            self._guard.close()

    async def _answer_metrics(self, request: web.Request) -> web.Response:
        wanted = request.headers.get("Accept", "")
        kind = OPENMETRICS if OPENMETRICS in wanted else ""
        # One rendering of a kind at a time, shared by all who ask meanwhile: scrapers cannot pile
        # up threads.
        rendering = self._rendering.get(kind)
        if rendering is None:
            loop = asyncio.get_running_loop()
            rendering = loop.run_in_executor(None, self._render_metrics, kind)
            self._rendering[kind] = rendering
            rendering.add_done_callback(lambda done: self._rendered(kind, done))
        text, content_type = await asyncio.shield(rendering)
        return web.Response(body=text, headers={"Content-Type": content_type})

    def _rendered(self, kind: str, done: asyncio.Future[tuple[bytes, str]]) -> None:
        del self._rendering[kind]
        if not done.cancelled() and (error := done.exception()) is not None:
            self._log.error("metrics cannot be rendered", error=repr(error))

    async def _answer_healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _answer_readyz(self, _request: web.Request) -> web.Response:
        reason = self._not_ready()
        if reason:
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        return web.json_response({"status": "ready"})


async def _finish_head(_request: web.Request, response: web.StreamResponse) -> None:
    """Every answer: the last of its connection, and without a banner."""
    response.force_close()
    response.headers["Connection"] = "close"
    response.headers.pop("Server", None)
