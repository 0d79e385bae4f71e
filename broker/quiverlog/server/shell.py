"""The parts of a running broker, put together: node, performer, listener, HTTP, watches.

Owns their life on the loop. Must not know signals, exit codes or where sockets come from.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from quiverlog.addresses import Address
from quiverlog.errors import AddressInUse
from quiverlog.node.config import NodeConfig
from quiverlog.node.events import DiskSpace, Shutdown
from quiverlog.node.node import Node
from quiverlog.server.config import BrokerConfig
from quiverlog.server.connections import (
    ConnectionLimits,
    ConnectionTable,
    log_files_max,
    overdue,
    raise_file_limit,
)
from quiverlog.server.http import HttpServer
from quiverlog.server.logs import Logger
from quiverlog.server.metrics import LogSize, MetricsExporter, ServerMetrics
from quiverlog.server.performer import Performer, read_clocks
from quiverlog.server.protocol import ClientProtocol, Shell
from quiverlog.storage.posix import RESERVED_DESCRIPTORS, PosixDisk
from quiverlog.version import VERSION
from quiverlog.wire.buffers import BufferPool
from quiverlog.wire.frames import SCRATCH_BYTES

__all__ = ["BrokerShell"]

_LAG_PROBE_S = 0.1
_DISK_PROBE_S = 1.0
_FLUSH_REPLIES_S = 2.0
_BACKLOG = 4_096


class BrokerShell:
    """See the module docstring.

    Args:
        advertised: what clients are told to connect to.
    """

    def __init__(self, config: BrokerConfig, log: Logger, *, advertised: Address) -> None:
        self._config = config
        self._log = log
        self._advertised = advertised
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_exception)
        self._metrics = ServerMetrics()
        files_max = raise_file_limit()
        self._disk = PosixDisk(
            files_open_max=log_files_max(files_max), reserved_descriptors=RESERVED_DESCRIPTORS
        )
        limits = ConnectionLimits.from_config(config, files_max=files_max)
        if limits.connections_max < config.connections_max:
            log.warning(
                "fewer connections than configured: the limit on open files is too low",
                connections=limits.connections_max,
                files_max=files_max,
            )
        self._connections = ConnectionTable(limits)
        self._node: Node | None = None
        self._performer: Performer | None = None
        self._server: asyncio.Server | None = None
        self._http: HttpServer | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._addresses = ("", "off")
        self._state = "recovering"

    # --- start ---------------------------------------------------------------------------------
    async def start(
        self,
        listen: socket.socket,
        http: socket.socket | None,
        *,
        entropy: Callable[[int], bytes],
    ) -> None:
        """Recover, then take clients on `listen`.

        Raises:
            QuiverlogError: the data directory cannot be used; the message says why.
        """
        if http is not None:
            await self._start_http(http)
        started = time.monotonic()
        node = Node(self._node_config(), self._disk, entropy=entropy, metrics=self._metrics.node)
        effects = await self._loop.run_in_executor(None, node.start, read_clocks())
        self._node = node
        self._performer = Performer(
            self._loop,
            node,
            self._connections,
            metrics=self._metrics,
            log=self._log,
            job_threads=self._config.fsync_threads,
        )
        self._performer.perform(effects)
        self._performer.flush()
        self._probe_disk()
        self._probe_lag(self._loop.time())
        self._check_connections()
        await self._accept(listen)
        self._addresses = (_name(listen), _name(http) if http is not None else "off")
        self._state = ""
        self._log.info(
            "ready",
            clients=self._addresses[0],
            http=self._addresses[1],
            advertised=str(self._advertised),
            recovery_ms=round((time.monotonic() - started) * 1000),
            version=VERSION,
        )

    async def _start_http(self, sock: socket.socket) -> None:
        exporter = MetricsExporter(
            self._metrics,
            self._log_sizes,
            topics_max=self._config.metrics_topics_max,
            version=VERSION,
        )
        self._http = HttpServer(render_metrics=exporter.render, not_ready=lambda: self._state)
        await self._http.start(sock)

    async def _accept(self, listen: socket.socket) -> None:
        assert self._performer is not None
        shared = Shell(
            self._performer,
            self._connections,
            self._metrics,
            self._log,
            bytearray(SCRATCH_BYTES),
            BufferPool(),
        )
        try:
            listen.listen(_BACKLOG)
        except OSError as error:  # two that only bound did not clash (SO_REUSEADDR)
            raise AddressInUse(f"{_name(listen)}: another program listens there.") from error
        self._server = await self._loop.create_server(
            lambda: ClientProtocol(shared), sock=listen, backlog=_BACKLOG
        )

    def _node_config(self) -> NodeConfig:
        config = self._config
        return NodeConfig(
            data_dir=config.data_dir,
            node_id=config.node_id,
            cluster_id=config.cluster_id,
            advertised_host=self._advertised.host,
            advertised_port=self._advertised.port,
            rack=config.rack,
            software_version=VERSION,
            topic_defaults=dict(config.topic_defaults),
            disk_reserve_bytes=config.disk_reserve_bytes,
            frame_bytes_max=config.frame_bytes_max,
            syncs_in_flight_max=config.fsync_threads * 2,
        )

    def ready_line(self) -> str:
        """What a person (and a test) waits for."""
        config = self._config
        durability = config.topic_defaults.get("durability", "flushed")
        clients, http = self._addresses
        return (
            f"quiverlog broker {config.node_id} ready: clients {clients}, http {http},"
            f" data {config.data_dir}, durability {durability}"
        )

    # --- stop ----------------------------------------------------------------------------------
    async def stop(self, timeout_s: float) -> bool:
        """Take no more clients, answer and flush what is in flight. True when all was in time."""
        assert self._performer is not None
        deadline = self._loop.time() + timeout_s
        self._state = "stopping"
        if self._server is not None:
            self._server.close()
        self._performer.tell(Shutdown())
        clean = True
        try:
            async with asyncio.timeout_at(deadline):
                await self._performer.shutdown_complete.wait()
        except TimeoutError:
            clean = False
            self._log.error("not stopped in time: no clean-shutdown mark", timeout_s=timeout_s)
        await self._part_from_clients(deadline)
        self._performer.close(max(0.0, deadline - self._loop.time()))
        await self.abandon()
        self._log.info("process ends", clean=clean)
        return clean

    async def abandon(self) -> None:
        """Let go of everything, whatever state it is in."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections.by_id.values()):
            connection.close_soon("broker stops")
        if self._performer is not None:
            self._performer.close(0.0)
        if self._http is not None:
            await self._http.close()

    async def _part_from_clients(self, deadline: float) -> None:
        """Let replies reach those who still read, for a moment."""
        until = min(deadline, self._loop.time() + _FLUSH_REPLIES_S)
        while self._loop.time() < until:
            if not any(c.waiting_bytes for c in self._connections.by_id.values()):
                return
            await asyncio.sleep(0.01)

    # --- watches -------------------------------------------------------------------------------
    def _probe_lag(self, expected: float) -> None:
        lag_us = max(0, round((self._loop.time() - expected) * 1e6))
        self._metrics.loop_lag.observe(lag_us)
        self._metrics.loop_lag_max_us = max(self._metrics.loop_lag_max_us, lag_us)
        due = self._loop.time() + _LAG_PROBE_S
        self._timers["lag"] = self._loop.call_at(due, self._probe_lag, due)

    def _probe_disk(self) -> None:
        assert self._performer is not None
        try:
            free = self._disk.free_bytes(self._config.data_dir)
        except OSError as error:
            self._log.error("free space cannot be measured", error=str(error))
        else:
            self._metrics.disk_free_bytes = free
            self._performer.tell(DiskSpace(free))
        self._timers["disk"] = self._loop.call_later(_DISK_PROBE_S, self._probe_disk)

    def _check_connections(self) -> None:
        limits = self._connections.limits
        now_us = time.monotonic_ns() // 1000
        for connection in list(self._connections.by_id.values()):
            waiting = connection.waiting_bytes
            reason = overdue(
                connection.state, limits, now_us, sent=connection.sent_bytes, waiting=waiting
            )
            if reason is not None:
                connection.abort(reason)
        self._timers["connections"] = self._loop.call_later(limits.check_s, self._check_connections)

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised, which is a bug: it goes no further than that connection or timer."""
        self._metrics.node.internal_errors += 1
        self._log.error(
            "internal error", during=context.get("message"), exc_info=context.get("exception")
        )

    def _log_sizes(self) -> Iterator[LogSize]:
        """Runs in the metrics thread: takes one atomic copy, then reads plain numbers."""
        if self._node is None:
            return
        for replica in list(self._node.broker.replicas.values()):
            log = replica.log
            yield LogSize(replica.name.topic, log.size_bytes, log.segment_count)


def _name(sock: socket.socket) -> str:
    return str(Address(*sock.getsockname()[:2]))
