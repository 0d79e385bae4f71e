"""The real node behind real sockets, inside the test's process, with a script of faults.

Owns a loop in a thread, a temporary data directory, the doors (listening sockets) through which
clients reach the node, and what happens to requests and answers on their way. It answers nothing
by itself: every answer is the node's, unless the script changes it.

    with ScriptedBroker() as broker:
        broker.fault(m.ProduceRequest, "drop_reply")     # the next one is stored, never answered
        client = quiverlog.connect(broker.bootstrap)

A second door takes the part of a second broker of the cluster: `broker.door(1)` reaches the same
node, and `leader_of` decides which of the doors METADATA names as a partition's leader.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from quiverlog.errors import QuiverlogError
from quiverlog.node.node import Node
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.effects import CloseConnection, Effect, Respond, StartJob
from quiverlog.node.runtime.events import ConnectionClosed, Event, JobDone, RequestReceived, Tick
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.storage.disk.posix import PosixDisk
from quiverlog.types import Now
from quiverlog.wire import frames, registry
from quiverlog.wire import messages as m

__all__ = ["Answer", "Cut", "Door", "Later", "ScriptedBroker"]

STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Answer:
    """A fault that replaces the node's answer.

    `change(request, response, body)` gives the response and body to send, or the bytes of a whole
    frame, or None for no answer at all.
    """

    change: Callable[[Any, Any, bytes], tuple[m.Response, bytes] | bytes | None]


@dataclass(frozen=True)
class Later:
    """A fault that delays the node's answer by this time; other answers overtake it."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """A fault that sends this many bytes of the node's answer, and closes, or resets."""

    bytes_sent: int
    resets: bool = False


Fault = str | QuiverlogError | Answer | Cut | Later | Callable[[Any], None]
"""`drop`: the connection breaks before the node sees the request. `drop_reply`: it breaks before
the answer. `hang`: never answered. An error: answered with it, per partition where there are any,
without the node. A function: may change the request before the node sees it."""


class Door:
    """One listening socket. `requests` lists what arrived, in order."""

    def __init__(self, broker: ScriptedBroker, node_id: int) -> None:
        self.node_id = node_id
        self.requests: list[m.Request] = []
        self.connections = 0
        self.port = 0
        self._broker = broker
        self._faults: dict[type[m.Request], deque[Fault]] = {}
        self._always: dict[type[m.Request], Fault] = {}
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._is_deaf = False

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def has_connections(self) -> bool:
        return bool(self._open)

    def fault(self, request: type[m.Request], *faults: Fault) -> None:
        """The next requests of this type meet these faults, one each."""
        self._faults.setdefault(request, deque()).extend(faults)

    def always(self, request: type[m.Request], fault: Fault) -> None:
        """Every request of this type meets this fault, once the list of `fault` is used up."""
        self._always[request] = fault

    def heal(self) -> None:
        """No more faults."""
        self._faults.clear()
        self._always.clear()

    def seen(self, request: type[m.Request]) -> list[Any]:
        """The requests of a type that have arrived."""
        return [r for r in list(self.requests) if type(r) is request]

    def drop_connections(self) -> None:
        """Close every connection, as a broker does with idle ones; later ones are read."""
        self._is_deaf = False
        self._broker.on_loop(lambda: [c.abort() for c in list(self._open)])

    def stop_reading(self) -> None:
        """Of no connection, from now on; on the broker's thread.

        Also of later ones: a client that gives one up for its silence tries another.
        """
        self._is_deaf = True
        for connection in self._open:
            connection.stop_reading()

    def next_fault(self, request: m.Request) -> Fault | None:
        waiting = self._faults.get(type(request))
        return waiting.popleft() if waiting else self._always.get(type(request))

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._broker, self), "127.0.0.1", 0, ssl=self._broker.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.abort()

    def opened(self, connection: _Connection) -> None:
        self.connections += 1
        self._open.add(connection)
        if self._is_deaf:
            # Not at once: asyncio of Python 3.11.2 reads what was paused in `connection_made`.
            asyncio.get_running_loop().call_soon(connection.stop_reading)

    def closed(self, connection: _Connection) -> None:
        self._open.discard(connection)


class ScriptedBroker(Door):
    """See the module's docstring. `config` are fields of NodeConfig; `tls` is of all doors."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, **config: Any) -> None:
        super().__init__(self, 0)
        self.tls = tls
        self.leader_of: Callable[[int], int] = lambda _partition: 0
        """Partition -> the door that METADATA names as its leader."""
        self.decides: Callable[[], int] = lambda: 0
        """The door that METADATA names as the controller."""
        self.doors: list[Door] = [self]
        self._directory = tempfile.TemporaryDirectory(prefix="quiverlog-test-")
        self._loop = asyncio.new_event_loop()
        self._connection_ids = itertools.count(1)
        self._by_id: dict[int, _Connection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.on_loop(lambda: self._start(config))
        self._listen(self)

    def __enter__(self) -> ScriptedBroker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def door(self, node_id: int) -> Door:
        """One more way in, which METADATA shows as a broker of its own."""
        door = Door(self, node_id)
        self._listen(door)
        self.doors.append(door)
        return door

    def stop(self) -> None:
        """Close all doors and end the thread; the data directory goes."""
        asyncio.run_coroutine_threadsafe(self._wind_down(), self._loop).result(STOP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), "the broker's thread hangs"
        self._loop.close()
        self._directory.cleanup()

    def on_loop(self, action: Callable[[], Any]) -> Any:
        """Run something on the broker's thread and wait for it."""

        async def run() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(STOP_TIMEOUT_S)

    async def _wind_down(self) -> None:
        """Leave no socket behind: not that of a client who was accepted a moment ago either.

        Its transport is made by a task of the loop. One that meets a closed server, or a loop that
        has ended, drops the socket without closing it (CPython's `Server._attach`).
        """
        while accepting := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(accepting)
        for door in self.doors:
            door.close()
        while any(d.has_connections for d in self.doors):  # noqa: ASYNC110 - the loop ends them
            await asyncio.sleep(0)

    # --- the node -------------------------------------------------------------------------------
    def _start(self, config: dict[str, Any]) -> None:
        settings = NodeConfig(data_dir=self._directory.name, **{"disk_reserve_bytes": 0, **config})
        self.node = Node(settings, PosixDisk(), entropy=os.urandom, metrics=NodeMetrics())
        self._perform(self.node.start(_now()))

    def _listen(self, door: Door) -> None:
        asyncio.run_coroutine_threadsafe(door.listen(), self._loop).result(STOP_TIMEOUT_S)

    def connected(self, connection: _Connection) -> int:
        number = next(self._connection_ids)
        self._by_id[number] = connection
        return number

    def gone(self, connection_id: int) -> None:
        if self._by_id.pop(connection_id, None) is not None:
            self.handle(ConnectionClosed(connection_id))

    def handle(self, *events: Event) -> None:
        """Give events to the node and do what it asks, jobs at once."""
        self._perform(self.node.handle_many(events, _now()))
        deadline_us = self.node.next_deadline_us()
        if self._timer is not None:
            self._timer.cancel()
        if deadline_us is not None:
            delay_s = max(0.0, (deadline_us - _now().mono_us) / 1e6) + 0.000_5
            self._timer = self._loop.call_later(delay_s, self.handle, Tick())

    def _perform(self, effects: list[Effect]) -> None:
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Respond):
                connection = self._by_id.get(effect.connection_id)
                if connection is not None:
                    connection.answer(effect.correlation_id, effect.response, b"".join(effect.body))
            elif isinstance(effect, StartJob):
                result, error = None, None
                try:
                    result = effect.job.run()
                except Exception as failure:
                    error = failure
                waiting.extend(self.node.handle_many((JobDone(effect.job, result, error),), _now()))
            elif isinstance(effect, CloseConnection):
                connection = self._by_id.get(effect.connection_id)
                if connection is not None:
                    connection.abort()

    def show_doors(self, response: m.MetadataResponse) -> None:
        """The node has one address; the cluster that this broker plays may have several."""
        response.controller_id = self.decides()
        response.brokers = [m.BrokerEndpoint(d.node_id, "127.0.0.1", d.port) for d in self.doors]
        for topic in response.topics:
            for partition in topic.partitions:
                partition.leader_id = self.leader_of(partition.partition)


class _Connection(asyncio.BufferedProtocol):
    """Bytes to requests, the script, and answers back."""

    def __init__(self, broker: ScriptedBroker, door: Door) -> None:
        self._broker = broker
        self._door = door
        self._receiver = frames.FrameReceiver(own_bodies=True)
        self._faults: dict[int, tuple[m.Request, Fault | None]] = {}
        self._transport: asyncio.Transport | None = None
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._number = self._broker.connected(self)
        self._door.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.closed(self)
        self._broker.gone(self._number)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._receiver.buffer_updated(nbytes):
            self._take(frames.decode_request(frame.header), memoryview(bytearray(frame.body)))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """RST, behind what the kernel has been given."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def stop_reading(self) -> None:
        """Take nothing more of what this client sends."""
        if self._transport is not None:
            self._transport.pause_reading()

    def close(self) -> None:
        """Send what was written, and then the end."""
        if self._transport is not None:
            self._transport.close()

    def _take(self, request: m.Request, body: memoryview) -> None:
        self._door.requests.append(request)
        fault = self._door.next_fault(request)
        self._faults[request.correlation_id] = (request, fault)
        if fault == "drop":
            self.abort()
        elif isinstance(fault, QuiverlogError):
            self.answer(request.correlation_id, _refusal(request, fault), b"")
        else:
            if callable(fault):
                fault(request)
            self._broker.handle(RequestReceived(self._number, request, body))

    def answer(self, correlation_id: int, response: m.Response, body: bytes) -> None:
        """Send the node's answer, as the script wants it."""
        # A copy: the node keeps parts of its answers for the next request.
        response = msgspec.msgpack.decode(msgspec.msgpack.encode(response), type=type(response))
        if isinstance(response, m.MetadataResponse):
            self._broker.show_doors(response)
        request, fault = self._faults.pop(correlation_id)
        if fault == "drop_reply":
            self.abort()
            return
        if fault == "hang":
            return
        sent: tuple[m.Response, bytes] | bytes | None = (response, body)
        if isinstance(fault, Answer):
            sent = fault.change(request, response, body)
        if isinstance(sent, tuple):
            changed, body = sent
            sent = frames.encode(changed, correlation_id, len(body)) + body
        if isinstance(fault, Cut) and isinstance(sent, bytes):
            self._write(sent[: fault.bytes_sent])
            if fault.resets:
                self.reset()
            else:
                self.close()
        elif sent is not None:
            delay_s = fault.seconds if isinstance(fault, Later) else 0.0
            if delay_s:
                asyncio.get_running_loop().call_later(delay_s, self._write, sent)
            else:
                self._write(sent)

    def _write(self, sent: bytes) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(sent)


def _now() -> Now:
    return Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)


def _refusal(request: m.Request, error: QuiverlogError) -> m.Response:
    response_type = registry.APIS[int(request.API)].response
    parts = getattr(request, "partitions", None)
    if not isinstance(parts, list):
        return response_type(error_code=error.code, error_message=error.message)
    result_type = getattr(m, type(parts[0]).__name__ + "Result")
    return response_type(  # type: ignore[call-arg]
        partitions=[result_type(p.topic_id, p.partition, error.code, error.message) for p in parts]
    )
