"""An event loop in simulated time: the shipped client and a broker's peers run there unchanged.

Owns the loop's face as asyncio asks for it (`call_soon`, timers, tasks, `create_connection`) on top
of the world's heap of moments, and a transport on top of the simulated network. Nothing sleeps; the
order of callbacks is the order in which they were asked for.

Not here: what runs on it.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from asyncio import events
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from .network import Connection

if TYPE_CHECKING:
    from .world import World

__all__ = ["SimLoop"]

_CONNECT_US = 300


class _Transport(asyncio.Transport):
    """A connection as a protocol sees it; an endpoint as the network sees it."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        super().__init__()
        self.name = name
        self.connection: Connection | None = None
        self.protocol: asyncio.BufferedProtocol | None = None
        self._loop = loop
        self._closing = False

    # --- the network's side --------------------------------------------------------------------
    def on_bytes(self, connection: Connection, data: bytes) -> None:
        """Endpoint protocol."""
        self._loop.enter(self._received, data)

    def _received(self, data: bytes) -> None:
        protocol = self.protocol
        while data and not self._closing and protocol is not None:
            buffer = protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            memoryview(buffer)[:size] = data[:size]
            data = data[size:]
            protocol.buffer_updated(size)

    def on_closed(self, connection: Connection) -> None:
        """Endpoint protocol."""
        self._lose()

    def _lose(self) -> None:
        if self.protocol is not None:
            protocol, self.protocol = self.protocol, None
            self._closing = True
            self._loop.call_soon(protocol.connection_lost, None)

    # --- asyncio's side ------------------------------------------------------------------------
    def write(self, data: Any) -> None:
        if self.connection is not None and not self._closing:
            self.connection.send(self, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0  # The network takes everything at once.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing and self.connection is not None:
            self.connection.close(self)
        self._lose()

    def abort(self) -> None:
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class SimLoop(asyncio.AbstractEventLoop):
    """`complaints`: what asyncio would have logged."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.complaints: list[str] = []
        self._world = world
        self._transports: list[_Transport] = []
        self._is_dead = False

    # --- running -------------------------------------------------------------------------------
    def enter(self, call: Callable[..., object], *args: object) -> None:
        """Call something as the running loop would."""
        if self._is_dead:
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            call(*args)
        finally:
            events._set_running_loop(before)

    def die(self) -> None:
        """The process ends: nothing of it runs any more, and its connections break."""
        self._is_dead = True
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self.enter(handle._run)

    def time(self) -> float:
        return self._world.mono_us / 1e6

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._world.at(0, lambda: self._run(handle))
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        # Never at once: with a clock that does not move a wait of 1e-9 s would be repeated for
        # ever.
        delay_us = max(1, math.ceil(when * 1e6) - self._world.mono_us)
        self._world.at(delay_us, lambda: self._run(timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._world.tasks.add(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "was destroyed but it is pending" not in context["message"]:
            self.complaints.append(f"{context['message']}: {error!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # --- connections ---------------------------------------------------------------------------
    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BufferedProtocol],
        host: str,
        port: int,
        **_: Any,
    ) -> tuple[asyncio.Transport, asyncio.BufferedProtocol]:
        await asyncio.sleep(_CONNECT_US / 1e6)
        # A stranger may have given brokers a name that is none.
        node_id = next((h.node_id for h in self._world.hosts if h.name == host), None)
        transport = _Transport(self, self.name)
        connection = None if node_id is None else self._world.connect(transport, node_id)
        if connection is None:
            raise ConnectionRefusedError(111, "Connection refused")
        transport.connection = connection
        self._transports.append(transport)
        transport.protocol = protocol_factory()
        transport.protocol.connection_made(transport)
        return transport, transport.protocol
