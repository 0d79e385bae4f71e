"""HTTP beside the broker: `/metrics`, `/healthz` and `/readyz`, on the same loop.

Owns the three paths and nothing else. `/healthz` answers 200 as long as the loop turns (a
supervisor should restart a broker that does not answer); `/readyz` answers 200 while the broker
takes clients and 503 with the reason while it recovers or stops. `/metrics` is rendered in a
thread: a thousand series take tens of milliseconds, which the loop has no time for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web

__all__ = ["HttpServer"]

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpServer:
    """Serves until `close`.

    Args:
        render_metrics: makes the text; runs in a thread.
        not_ready: the reason why no clients are taken, empty when they are.
    """

    def __init__(
        self, *, render_metrics: Callable[[], bytes], not_ready: Callable[[], str]
    ) -> None:
        self._render_metrics = render_metrics
        self._not_ready = not_ready
        self._runner: web.AppRunner | None = None
        # One rendering at a time: impatient scrapers must not pile up threads.
        self._rendering = asyncio.Lock()

    async def start(self, sock: socket.socket) -> None:
        """Serve on a bound socket."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, sock, backlog=128).start()

    async def close(self) -> None:
        """Stop; requests that are being answered get a second."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, _request: web.Request) -> web.Response:
        async with self._rendering:
            text = await asyncio.get_running_loop().run_in_executor(None, self._render_metrics)
        return web.Response(body=text, headers={"Content-Type": _METRICS_TYPE})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        reason = self._not_ready()
        if reason:
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        return web.json_response({"status": "ready"})
