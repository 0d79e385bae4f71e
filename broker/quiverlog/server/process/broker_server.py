"""The parts of a running broker: node, connections, listeners, HTTP, periodic checks.

Owns their start, reload and stop, and the part of the configuration that each gets.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quiverlog.addresses import Address
from quiverlog.core.controller.records import UserRecord
from quiverlog.errors import InvalidConfig
from quiverlog.node.node import Node
from quiverlog.node.runtime.config import LISTENER_DEFAULT, Asked, NodeConfig
from quiverlog.node.runtime.events import ConfigReloaded, DiskSpace, Load, SecretsChanged, Shutdown
from quiverlog.server.config.config import BrokerConfig
from quiverlog.server.config.listeners import HTTP
from quiverlog.server.config.reload import compare_configs, with_values
from quiverlog.server.config.secret_file import SecretWatch, read_admin_file, read_secret_file
from quiverlog.server.net.clocks import monotonic_us, read_clocks
from quiverlog.server.net.connection import ClientProtocol, ConnectionContext
from quiverlog.server.net.connections import Connection, ConnectionLimits, ConnectionTable
from quiverlog.server.net.listener import (
    Dial,
    EarlyPort,
    Listeners,
    OwnConnections,
    socket_address,
)
from quiverlog.server.net.memory import Holder, MemoryBudget
from quiverlog.server.net.places import Place, PlaceLimits
from quiverlog.server.net.replies import path_hider
from quiverlog.server.net.scheduler import FairScheduler
from quiverlog.server.net.tls import TlsWatch, read_tls
from quiverlog.server.observe.audit import LOG_STREAM, AuditLog
from quiverlog.server.observe.logs import LogControl, Logger
from quiverlog.server.observe.metrics import Gauges, RecentRates, ServerMetrics
from quiverlog.server.peers.link import PeerSecrets
from quiverlog.server.peers.peers import PeerConnections
from quiverlog.server.process.collector import Collector
from quiverlog.server.process.descriptors import DescriptorPlan, plan_descriptors, raise_file_limit
from quiverlog.server.process.disk_watch import DiskLook, DiskWatch
from quiverlog.server.process.node_runner import NodeRunner
from quiverlog.storage.disk.posix import RESERVED_DESCRIPTORS, PosixDisk
from quiverlog.tls import ServerTls
from quiverlog.version import VERSION
from quiverlog.wire.buffers import BufferPool
from quiverlog.wire.frames import SCRATCH_BYTES
from quiverlog.wire.peer_proof import NO_SECRETS, ClusterSecrets

if TYPE_CHECKING:
    from quiverlog.server.http import HttpServer
    from quiverlog.server.observe.metrics_text import MetricsExporter

__all__ = ["BrokerServer", "Page", "connection_limits", "node_config"]


_PROOF_REQUIRED: Final = {"auto": None, "true": True, "false": False}


Page = Callable[[str, Dial, ServerTls | None, str], str]


def node_config(
    config: BrokerConfig,
    advertised: Mapping[str, Address],
    secrets: ClusterSecrets = NO_SECRETS,
    first_user: UserRecord | None = None,
) -> NodeConfig:
    """`advertised`: the address that METADATA returns at each listener."""
    host, port = advertised[LISTENER_DEFAULT]
    between = config.listeners_tls.get(config.inter_broker_listener)
    return NodeConfig(
        data_dir=config.data_dir,
        node_id=config.node_id,
        cluster_id=config.cluster_id,
        advertised_host=host,
        advertised_port=port,
        listeners=dict(advertised),
        listeners_without_administration=config.listeners_without_administration,
        authentication=config.authentication,
        super_users=config.super_users,
        first_user=first_user,
        inter_broker_listener=config.inter_broker_listener,
        brokers_have_certificates=between is not None
        and between.is_required
        and between.client_auth != "none",
        cluster_secrets=secrets,
        proof_required=_PROOF_REQUIRED[config.cluster_secret_required],
        rack=config.rack,
        roles=config.process_roles,
        controllers=dict(config.controller_quorum_bootstrap_servers),
        moved_controllers=dict(config.controller_quorum_moved_servers),
        joins_quorum=config.controller_quorum_auto_join == "true",
        broker_session_ms=config.broker_session_ms,
        software_version=VERSION,
        topic_defaults=dict(config.topic_defaults),
        disk_reserve_bytes=config.disk_reserve_bytes,
        frame_bytes_max=config.frame_bytes_max,
        # As many as run at once: the others wait in the node's queue, where partitions take turns.
        flushes_in_flight_max=config.fsync_threads,
        damaged_replicas_kept=config.damaged_replicas_kept,
        leader_balance_period_ms=config.leader_balance_period_ms,
        leader_balance_moves_max=config.leader_balance_moves_max,
        move_bytes_per_s=config.partition_move_bytes_per_second,
        staged_bytes_max=config.staged_bytes_max,
        transactional_id_expiry_ms=config.transactional_id_expiry_ms,
        offsets_retention_ms=config.offsets_retention_ms,
        staged_partitions=config.staged_partitions,
        audit_wanted=bool(config.audit_file),
        audit_topics=config.audit_topics,
        # Only where it is set: the files have rows that rules may hide.
        local_reads_authenticated="local.reads" in config.given and config.local_reads == "true",
        disk_bytes=_disk_bytes(config.data_dir),
        feature_level_max=config.feature_level_max,
        given=dict(config.given),
    )


def _disk_bytes(data_dir: str) -> int:
    """Return the size of the file system; 0: it cannot be measured."""
    place = Path(data_dir).absolute()
    while not place.exists():  # A new data directory is made later.
        place = place.parent
    try:
        return shutil.disk_usage(place).total
    except OSError:
        return 0


def connection_limits(
    config: BrokerConfig, *, places: PlaceLimits, lingering_max: int
) -> ConnectionLimits:
    assert places.clients <= config.connections_max
    return ConnectionLimits(
        places=places,
        lingering_max=lingering_max,
        idle_us=config.connections_idle_ms * 1000,
        frame_us=config.connections_frame_timeout_ms * 1000,
        write_stall_us=config.connections_write_stall_ms * 1000,
        write_buffer_bytes=config.connections_write_buffer_bytes,
        in_flight_max=config.connections_in_flight_max,
        frame_bytes_max=config.frame_bytes_max,
        local_reads=config.local_reads == "true",
    )


def _open_audit(node_id: int, path: str) -> AuditLog:
    """Raises InvalidConfig."""
    try:
        return AuditLog(node_id, path or LOG_STREAM)
    except OSError as error:
        raise InvalidConfig(f"`audit.file` {path!r} cannot be opened: {error.strerror}.") from None


_LAG_PROBE_S = 0.1
_FLUSH_REPLIES_S = 2.0


def _http_server_class() -> type[HttpServer]:
    # Imported with aiohttp, which takes long: in a thread, at the first connection.
    from quiverlog.server.http import HttpServer

    return HttpServer


class BrokerServer:
    """
    Args:
        advertised: the address that METADATA returns at each listener.
        page: makes the page at `/` of the HTTP port, from this broker's own address (empty: it
            takes no clients yet), what connects to it, the TLS of its clients and the reason why
            it takes none; called in a thread.

    Raises:
        InvalidConfig: the process may open too few files, or cannot read the cluster's secret, or a
            file of TLS.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: Logger,
        *,
        control: LogControl,
        advertised: Mapping[str, Address],
        page: Page | None = None,
    ) -> None:
        self._config = self._given = config
        self._page = page
        self._secrets = read_secret_file(config.cluster_secret_file)
        self._first_user = read_admin_file(config.admin_credential_file)
        self._secret_watch: SecretWatch | None = None
        self._tls = read_tls(config.listeners_tls)
        self._tls_watch: TlsWatch | None = None
        self._log = log
        self._log_control = control
        self._advertised = advertised
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_exception)
        self._metrics = ServerMetrics()
        self._files_max = raise_file_limit()
        plan = self._plan = self._plan_descriptors(config)
        if plan.clients < config.connections_max:
            log.warning(
                "fewer connections than configured: the limit on open files is too low",
                connections=plan.clients,
                http_connections=plan.http,
                log_files=plan.log_files,
                files_max=plan.files_max,
            )
        self._disk = PosixDisk(
            files_open_max=plan.log_files, reserved_descriptors=RESERVED_DESCRIPTORS
        )
        self._connections = ConnectionTable(self._limits(config))
        self._memory = MemoryBudget(
            config.memory_buffer_bytes,
            self._memory_holders,
            now_us=monotonic_us,
            kept_bytes=lambda: self._node.held_bytes if self._node is not None else 0,
        )
        self._scheduler = FairScheduler(self._loop, now_us=monotonic_us)
        self._http_connections_max = plan.http
        self._exporter: MetricsExporter | None = None  # Made at the first scrape.
        self._node: Node | None = None
        self._runner: NodeRunner | None = None
        self._peers: PeerConnections | None = None
        self._audit: AuditLog | None = None
        self._listeners = Listeners(self._loop)
        self._http_port: EarlyPort | None = None
        self._disk_watch: DiskWatch | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._collector = Collector(lambda: self._metrics.bytes_in)
        self._rates = RecentRates()
        self._addresses = ("", "off")
        own = advertised[LISTENER_DEFAULT]
        self._own = OwnConnections(self._loop, own, self._own_protocol)
        self._state = "recovering"

    def _plan_descriptors(self, config: BrokerConfig) -> DescriptorPlan:
        return plan_descriptors(
            self._files_max,
            clients_wanted=config.connections_max,
            http_wanted=config.http_connections_max,
            job_threads=config.fsync_threads + config.work_threads,
            listeners=1 + len(config.listeners),
        )

    def _limits(self, config: BrokerConfig) -> ConnectionLimits:
        plan = self._plan_descriptors(config)
        places = PlaceLimits(
            clients=plan.clients,
            per_address=config.connections_max_per_address,
            operators=plan.operators,
            brokers=plan.brokers,
            door=plan.door,
        )
        return connection_limits(config, places=places, lingering_max=plan.refusals - plan.door)

    async def start(
        self,
        listen: Mapping[str, socket.socket],
        http: socket.socket | None,
        *,
        entropy: Callable[[int], bytes],
        stop: asyncio.Event,
    ) -> bool:
        """Recover, then accept clients on all of `listen`; False: `stop` was set before.

        Raises:
            QuiverlogError: the data directory cannot be used.
        """
        assert self._node is None, "started twice"
        self._collector.rest()
        if http is not None:
            # Probes get an answer while the node recovers; without any, nothing is imported.
            self._http_port = EarlyPort(self._loop, http, self._serve_http, log=self._log)
        started = time.monotonic()
        config = node_config(self._config, self._advertised, self._secrets, self._first_user)
        node = Node(config, self._disk, entropy=entropy, metrics=self._metrics.node)
        effects = await self._loop.run_in_executor(None, node.start, read_clocks())
        self._node = node
        if node.broker.audit.is_on:
            self._audit = _open_audit(node.broker.config.node_id, self._config.audit_file)
        self._runner = NodeRunner(
            self._loop,
            node,
            self._connections,
            metrics=self._metrics,
            log=self._log,
            audit=self._audit,
            flush_threads=self._config.fsync_threads,
            work_threads=self._config.work_threads,
        )
        self._peers = self._runner.peers = self._make_peers(node, self._runner, entropy)
        self._watch_secrets()
        if self._tls:
            self._tls_watch = TlsWatch(self._loop, self._tls, metrics=self._metrics, log=self._log)
        context = self._connection_context(self._runner)
        between = self._config.inter_broker_listener
        self._runner.listen_to_brokers = lambda: self._listen({between: listen[between]}, context)
        self._runner.apply_config = self._apply
        self._check_connections()
        self._runner.perform(effects)
        if not await self._runner.has_started(stop):
            return False
        self._watch_disk(node)
        self._probe_lag(self._loop.time())
        self._collector.start()
        self._listen(listen, context)
        of_http = str(socket_address(http)) if http is not None else "off"
        self._addresses = (str(self._listeners.addresses[LISTENER_DEFAULT]), of_http)
        self._state = ""
        self._log.info(
            "ready",
            clients=self._addresses[0],
            http=self._addresses[1],
            advertised=", ".join(f"{n} {where}" for n, where in self._advertised.items()),
            recovery_ms=round((time.monotonic() - started) * 1000),
            version=VERSION,
        )
        return True

    def _make_peers(
        self, node: Node, runner: NodeRunner, entropy: Callable[[int], bytes]
    ) -> PeerConnections:
        node_id, is_required = self._config.node_id, node.broker.proofs.is_required
        return PeerConnections(
            self._loop,
            node_id=node_id,
            cluster_id=node.broker.directory.cluster_id,
            proof=PeerSecrets(node_id, self._secrets, entropy, is_required=is_required),
            connections_max=self._plan.peers,
            seed=int.from_bytes(entropy(8), "big"),
            deliver=runner.deliver,
            memory=self._memory,
            metrics=self._metrics,
            log=self._log,
            tls=self._tls.get(self._config.inter_broker_listener),
        )

    def _watch_secrets(self) -> None:
        path = self._config.cluster_secret_file
        if path:
            self._secret_watch = SecretWatch(
                self._loop, path, self._secrets, self._secrets_changed, log=self._log
            )

    def _memory_holders(self) -> list[Holder]:
        peers = self._peers.links if self._peers is not None else ()
        return [*self._connections.by_id.values(), *peers]

    async def _serve_http(self, sock: socket.socket) -> HttpServer:
        page = self._page

        def not_ready() -> str:
            return self._state or (self._node.why_fenced if self._node else "")

        server = (await self._loop.run_in_executor(None, _http_server_class))(
            render_metrics=self._render_metrics,
            render_page=None if page is None else lambda: page(*self._to_ask(), not_ready()),
            not_ready=not_ready,
            connections_max=lambda: self._http_connections_max,
            request_s=lambda: self._config.http_timeout_ms / 1000,
            metrics=self._metrics,
            log=self._log,
        )
        await server.start(sock, self._tls.get(HTTP))
        return server

    def _to_ask(self) -> tuple[str, Dial, ServerTls | None]:
        """Return this broker's address for clients, what connects to it, and the TLS of others."""
        tls = self._config.listeners_tls.get(LISTENER_DEFAULT)
        if tls is not None and not tls.client_ca_file:
            between = self._config.listeners_tls.get(self._config.inter_broker_listener)
            tls = tls._replace(client_ca_file=between.client_ca_file if between else "")
        address = str(self._advertised[LISTENER_DEFAULT]) if self._addresses[0] else ""
        return address, self._own.dial, tls

    def _own_protocol(self) -> ClientProtocol:
        assert self._runner is not None, "clients connect before the page asks for an address"
        context = self._connection_context(self._runner)
        return ClientProtocol(context._replace(is_own=True, local_reads=False))

    def _connection_context(self, runner: NodeRunner) -> ConnectionContext:
        data_dir = self._config.data_dir
        return ConnectionContext(
            runner=runner,
            connections=self._connections,
            metrics=self._metrics,
            log=self._log,
            scheduler=self._scheduler,
            memory=self._memory,
            scratch=bytearray(SCRATCH_BYTES),
            pool=BufferPool(),
            hide_paths=path_hider(data_dir, os.path.abspath(data_dir), os.path.realpath(data_dir)),
        )

    def _listen(self, listen: Mapping[str, socket.socket], context: ConnectionContext) -> None:
        for name, sock in listen.items():
            if name not in self._listeners.addresses:
                serves_brokers = name == self._config.inter_broker_listener
                assert self._node is not None
                proves = serves_brokers and self._node.broker.proofs.is_required
                at = self._config.authentication.get(name)
                needs_login = at is not None and at.asked is Asked.REQUIRED
                self._listeners.open(
                    sock,
                    context._replace(
                        listener=name,
                        serves_brokers=serves_brokers,
                        proves_brokers=proves,
                        needs_login=needs_login,
                        local_reads=name not in self._config.listeners_without_local_reads,
                    ),
                    self._tls.get(name),
                )

    def ready_line(self) -> str:
        config = self._config
        durability = config.topic_defaults.get("durability", "flushed")
        clients, http = self._addresses
        return (
            f"quiverlog broker {config.node_id} ready: clients {clients}, http {http},"
            f" data {config.data_dir}, durability {durability}"
        )

    def reload(self, found: BrokerConfig) -> None:
        """Apply keys that may change at once and are not set in the cluster; log the others."""
        assert self._runner is not None
        reload = compare_configs(self._given, found)
        self._given = reload.config
        self._runner.deliver(ConfigReloaded(found.given))
        in_cluster = self._runner.node.broker.live_config.overrides(reload.changed)
        self._log.warning("configuration reloaded", **reload.log_fields(in_cluster))

    def read_files(self) -> None:
        """Read the cluster's secrets and the files of TLS again, if there are any."""
        for watch in (self._secret_watch, self._tls_watch):
            if watch is not None:
                watch.request()

    def _secrets_changed(self, secrets: ClusterSecrets) -> None:
        assert self._runner is not None
        assert self._peers is not None
        # First the links: the node's answers may need them.
        self._peers.secrets_changed(secrets)
        self._runner.deliver(SecretsChanged(secrets))

    def _apply(self, values: Mapping[str, str]) -> None:
        config = self._config = with_values(self._config, values)
        self._connections.limits = self._limits(config)
        self._all_connections("changing limits", lambda c: c.limits_changed())
        self._memory.bytes_max = config.memory_buffer_bytes
        self._http_connections_max = self._plan_descriptors(config).http
        self._log_control.set_level(config.log_level)

    @property
    def shutdown_timeout_s(self) -> float:
        return self._config.shutdown_timeout_ms / 1000

    async def stop(self) -> bool:
        """Accept no more clients, answer and flush what is in flight.

        Returns whether the data directory is marked clean, so that the next start need not scan.
        """
        assert self._runner is not None
        deadline = self._loop.time() + self.shutdown_timeout_s
        self._state = "stopping"
        self._listeners.close()
        self._stop_disk_watch()
        self._runner.deliver(Shutdown())
        try:
            async with asyncio.timeout_at(deadline):
                await self._runner.shutdown_complete.wait()
        except TimeoutError:
            self._log.error(
                "not stopped in time: no clean-shutdown mark", timeout_s=self.shutdown_timeout_s
            )
        await self._part_from_clients(deadline)
        clean = self._runner.marked_clean
        self._runner.close(max(0.0, deadline - self._loop.time()))
        await self.abandon()
        self._log.info("process ends", clean=clean)
        return clean

    async def abandon(self) -> None:
        """Release everything, in any state."""
        self._stop_disk_watch()
        for watch in (self._secret_watch, self._tls_watch):
            if watch is not None:
                watch.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._collector.stop()
        self._listeners.close()
        self._all_connections("closing a connection", lambda c: c.close_soon("broker stops"))
        if self._peers is not None:
            self._peers.close()
        if self._runner is not None:
            self._runner.close(0.0)
        if self._audit is not None:
            await self._loop.run_in_executor(None, self._audit.close)
        if self._http_port is not None:
            await self._http_port.close()

    async def _part_from_clients(self, deadline: float) -> None:
        """Let replies reach clients that still read, for up to `_FLUSH_REPLIES_S`."""
        until = min(deadline, self._loop.time() + _FLUSH_REPLIES_S)
        while self._loop.time() < until:
            if not any(c.waiting_bytes for c in self._connections.by_id.values()):
                return
            await asyncio.sleep(0.01)

    def _probe_lag(self, expected: float) -> None:
        lag_us = max(0, round((self._loop.time() - expected) * 1e6))
        self._metrics.loop_lag.observe(lag_us)
        self._metrics.loop_lag_max.observe(lag_us, time.monotonic())
        due = self._loop.time() + _LAG_PROBE_S
        self._timers["lag"] = self._loop.call_at(due, self._probe_lag, due)

    def _watch_disk(self, node: Node) -> None:
        self._disk_watch = DiskWatch(
            self._loop,
            is_owned=node.broker.directory.is_owned,
            free_bytes=lambda: self._disk.free_bytes(self._config.data_dir),
            found=self._disk_looked_at,
        )

    def _disk_looked_at(self, look: DiskLook) -> None:
        assert self._runner is not None
        if look.free_bytes is None:
            self._log.error("free space cannot be measured", error=look.error)
        else:
            self._metrics.disk_free_bytes = look.free_bytes
        self._runner.deliver(DiskSpace(self._metrics.disk_free_bytes, look.is_owned, self._load()))

    def _load(self) -> Load:
        metrics = self._metrics
        rates = self._rates.observe(
            time.monotonic(), time.process_time() * 1000, metrics.bytes_in, metrics.bytes_out
        )
        return Load() if rates is None else Load(*map(round, rates))

    def _stop_disk_watch(self) -> None:
        if self._disk_watch is not None:
            self._disk_watch.stop()

    def _check_connections(self) -> None:
        for error in self._connections.look(monotonic_us()):
            self._on_exception(self._loop, {"message": "checking a connection", "exception": error})
        self._log_control.write_left_out(self._log)
        self._metrics.lines_left_out = self._log_control.left_out_total
        if self._audit is not None:
            self._audit.tick()
            self._metrics.audit_lines_lost = self._audit.lost_total
        check_s = self._connections.limits.check_s
        self._timers["connections"] = self._loop.call_later(check_s, self._check_connections)

    def _all_connections(self, during: str, act: Callable[[Connection], None]) -> None:
        for error in self._connections.for_each(act):
            self._on_exception(self._loop, {"message": during, "exception": error})

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A callback raised, which is a bug: only that connection or timer fails.
        self._metrics.node.internal_errors += 1
        self._log.error(
            "internal error", during=context.get("message"), exc_info=context.get("exception")
        )

    def _render_metrics(self, accept: str) -> tuple[bytes, str]:
        if self._exporter is None:
            from quiverlog.node.cluster_gauges import (
                cluster_gauges,
                publish_waiting_rows,
                transaction_gauges,
            )
            from quiverlog.server.observe.metrics_text import MetricsExporter, log_sizes

            self._exporter = MetricsExporter(
                self._metrics,
                lambda: log_sizes(self._node),
                topics_max=self._config.metrics_topics_max,
                gauges=self._gauges,
                cluster=lambda: cluster_gauges(self._node, monotonic_us()),
                transactions=lambda: transaction_gauges(self._node, read_clocks()),
                waiting_rows=lambda: publish_waiting_rows(self._node),
            )
        self._exporter.topics_max = self._config.metrics_topics_max
        self._exporter.shows_offsets = self._config.metrics_partition_offsets == "true"
        return self._exporter.render(accept)

    def _gauges(self) -> Gauges:
        jobs = self._runner.jobs if self._runner is not None else None
        return Gauges(
            memory_bytes=self._memory.used_bytes + self._memory.kept_bytes,
            memory_bytes_max=self._memory.bytes_max,
            memory_bytes_peak=self._memory.used_bytes_peak,
            turns_waiting=len(self._scheduler),
            jobs_waiting=jobs.waiting_by_queue if jobs is not None else {},
            jobs_running=jobs.uncollected if jobs is not None else 0,
            places={p.value: self._connections.places.taken(p) for p in Place if p.is_counted},
            awaiting_login=self._connections.anonymous,
        )
