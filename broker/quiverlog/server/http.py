"""HTTP beside the broker: `/metrics`, `/healthz` and `/readyz`, on the same loop.

Owns the three paths and nothing else. `/healthz` answers 200 as long as the loop turns (a
supervisor should restart a broker that does not answer); `/readyz` answers 200 while the broker
takes clients and 503 with the reason while it recovers or stops. `/metrics` is rendered in a
thread: a thousand series take tens of milliseconds, which the loop has no time for.

Who may connect, for how long, and how an answer looks on the wire is the guard's (`http_guard`).
There is no web framework: for three paths without parameters, importing one took longer than
everything else that a broker's start imports.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from quiverlog.server.acceptor import Acceptor, begin_to_listen
from quiverlog.server.http_guard import HttpAnswer, HttpGuard, HttpLimits
from quiverlog.server.logs import Logger
from quiverlog.server.metrics import ServerMetrics

__all__ = ["HttpServer"]

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_JSON_TYPE: Final = "application/json; charset=utf-8"
_BACKLOG: Final = 64
_PATIENCE_S: Final = 1.0


class HttpServer:
    """Serves until `close`.

    Args:
        render_metrics: makes the text; runs in a thread.
        not_ready: the reason why no clients are taken, empty when they are.
    """

    def __init__(
        self,
        *,
        render_metrics: Callable[[], bytes],
        not_ready: Callable[[], str],
        limits: HttpLimits,
        metrics: ServerMetrics,
        log: Logger,
    ) -> None:
        self._render_metrics = render_metrics
        self._not_ready = not_ready
        self._log = log
        self._guard = HttpGuard(limits, self._answer, metrics=metrics, log=log)
        self._acceptor: Acceptor | None = None
        self._rendering: asyncio.Future[bytes] | None = None
        self._answers: dict[str, Callable[[], Awaitable[HttpAnswer]]] = {
            "/metrics": self._answer_metrics,
            "/healthz": self._answer_healthz,
            "/readyz": self._answer_readyz,
        }

    def start(self, sock: socket.socket) -> None:
        """Serve on a bound socket.

        Raises:
            AddressInUse: another program listens there.
        """
        begin_to_listen(sock, _BACKLOG)
        loop = asyncio.get_running_loop()
        self._acceptor = Acceptor(loop, sock, self._guard, log=self._log)

    async def close(self) -> None:
        """Stop; requests that are being answered get a second."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        await self._guard.finish(_PATIENCE_S)
        self._guard.close()

    async def _answer(self, path: str) -> HttpAnswer:
        answer = self._answers.get(path)
        if answer is None:
            return HttpAnswer(404, "text/plain; charset=utf-8", b"404: Not Found")
        return await answer()

    async def _answer_metrics(self) -> HttpAnswer:
        # One rendering at a time, shared by all who ask meanwhile: scrapers cannot pile up threads.
        if self._rendering is None:
            loop = asyncio.get_running_loop()
            self._rendering = loop.run_in_executor(None, self._render_metrics)
            self._rendering.add_done_callback(self._rendered)
        return HttpAnswer(200, _METRICS_TYPE, await asyncio.shield(self._rendering))

    def _rendered(self, done: asyncio.Future[bytes]) -> None:
        self._rendering = None
        if not done.cancelled() and (error := done.exception()) is not None:
            self._log.error("metrics cannot be rendered", error=repr(error))

    async def _answer_healthz(self) -> HttpAnswer:
        return _json(200, {"status": "ok"})

    async def _answer_readyz(self) -> HttpAnswer:
        reason = self._not_ready()
        if reason:
            return _json(503, {"status": "not ready", "reason": reason})
        return _json(200, {"status": "ready"})


def _json(status: int, what: dict[str, str]) -> HttpAnswer:
    body = msgspec.json.format(msgspec.json.encode(what), indent=0)  # With blanks, for people.
    return HttpAnswer(status, _JSON_TYPE, body)
