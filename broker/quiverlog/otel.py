"""Traces of produces and fetches, with OpenTelemetry: off unless `instrument` is called.

The client has no hook: `instrument` wraps methods of the connections and `uninstrument` restores
them, so a program without traces pays nothing. Needs the extra `otel`.

    quiverlog.otel.instrument()  # spans go to the global tracer provider
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from quiverlog.client.base.arguments import extra
from quiverlog.client.drivers.asynchronous import AsyncConnection
from quiverlog.client.drivers.blocking import BlockingConnection
from quiverlog.version import VERSION
from quiverlog.wire.messages import FetchRequest, ProduceRequest

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from quiverlog.client.base.commands import Call, Reply
    from quiverlog.client.base.results import Address
    from quiverlog.wire.messages import Request

__all__ = ["instrument", "uninstrument"]

_OPERATIONS: Final = {ProduceRequest: "produce", FetchRequest: "fetch"}
_originals: list[tuple[type, str, Any]] = []
"""Replaced methods: class, name, method."""
_lock: Final = threading.Lock()
"""Two threads that instrument at once would put a span around each span."""


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Give every produce and fetch of this process a span. A second call changes nothing.

    Args:
        tracer_provider: where the spans go; None: the global one.

    Raises:
        InvalidArgument: OpenTelemetry is not installed.
    """
    with _lock:
        if _originals:
            return
        api = extra("opentelemetry.trace", "instrument")
        spans = _Spans(api.get_tracer("quiverlog", VERSION, tracer_provider), api)
        _replace(BlockingConnection, "send", spans.around_send)
        for name in ("receive", "receive_ready"):
            _replace(BlockingConnection, name, spans.around_receive)
        _replace(BlockingConnection, "close", spans.around_close)
        _replace(AsyncConnection, "request", spans.around_request)


def uninstrument() -> None:
    """End tracing, and restore the methods."""
    with _lock:
        while _originals:
            owner, name, method = _originals.pop()
            setattr(owner, name, method)


def _replace(owner: type, name: str, around: Callable[[Any], Any]) -> None:
    method = getattr(owner, name)
    _originals.append((owner, name, method))
    setattr(owner, name, around(method))


class _Spans:
    def __init__(self, tracer: Tracer, api: Any) -> None:
        self._tracer = tracer
        self._api = api
        self._open: dict[BlockingConnection, Span] = {}
        """One request at a time is on a blocking connection."""

    def around_send(self, send: Any) -> Any:
        def traced(
            connection: BlockingConnection, call: Call, send_by_s: float, reply_by_s: float
        ) -> None:
            span = self._begin(call.request, connection.address)
            try:
                send(connection, call, send_by_s, reply_by_s)
            except BaseException as error:
                self._end(span, error)
                raise
            if span is not None:
                # Only once it is sent: an error has ended the span above.
                self._open[connection] = span

        return traced

    def around_receive(self, receive: Any) -> Any:
        def traced(connection: BlockingConnection) -> Reply | None:
            try:
                reply: Reply | None = receive(connection)
            except BaseException as error:
                self._end(self._open.pop(connection, None), error)
                raise
            if reply is not None:
                self._end(self._open.pop(connection, None))
            return reply

        return traced

    def around_close(self, close: Any) -> Any:
        """End the span of a request that is given up."""

        def traced(connection: BlockingConnection) -> None:
            close(connection)
            self._end(self._open.pop(connection, None))

        return traced

    def around_request(self, request_: Any) -> Any:
        def traced(
            connection: AsyncConnection, request: Request, *rest: Any, **options: Any
        ) -> asyncio.Future[Reply]:
            span = self._begin(request, connection.address)
            try:
                waiting: asyncio.Future[Reply] = request_(connection, request, *rest, **options)
            except BaseException as error:
                self._end(span, error)
                raise
            if span is not None:
                # The future ends with the answer, an error or its caller's cancellation.
                waiting.add_done_callback(lambda done: self._end(span, _failure(done)))
            return waiting

        return traced

    def _begin(self, request: Request, address: Address) -> Span | None:
        operation = _OPERATIONS.get(type(request))
        if operation is None:
            return None
        assert isinstance(request, ProduceRequest | FetchRequest)
        return self._tracer.start_span(
            f"quiverlog {operation}",
            kind=self._api.SpanKind.CLIENT,
            attributes={
                "messaging.system": "quiverlog",
                "messaging.operation.name": operation,
                "server.address": address.host,
                "server.port": address.port,
                "quiverlog.partitions": len(request.partitions),
            },
        )

    def _end(self, span: Span | None, error: BaseException | None = None) -> None:
        if span is None:
            return
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(self._api.StatusCode.ERROR, str(error))
        span.end()


def _failure(done: asyncio.Future[Reply]) -> BaseException | None:
    return asyncio.CancelledError() if done.cancelled() else done.exception()
