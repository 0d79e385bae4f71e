"""Runs the node: gives it events and performs the effects that it returns.

`handle_many` gathers replies, `flush` sends those of a connection in one write. The timer is set
for `next_deadline_us`, or still for an earlier one, at which the node then does nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from quiverlog.node.node import Node
from quiverlog.node.runtime.effects import (
    Audited,
    CloseConnection,
    ClosePeer,
    ConfigChanged,
    ConnectionMuted,
    ConnectionProved,
    Effect,
    Job,
    ListenToBrokers,
    LogLine,
    PeerAddresses,
    Respond,
    SendToPeer,
    ShutdownComplete,
    StartComplete,
    StartJob,
)
from quiverlog.node.runtime.events import Event, JobDone, Tick
from quiverlog.server.net.clocks import read_clocks
from quiverlog.server.net.connections import Connection, ConnectionTable
from quiverlog.server.observe.audit import AuditLog
from quiverlog.server.observe.logs import Logger
from quiverlog.server.observe.metrics import ServerMetrics
from quiverlog.server.peers.peers import PeerConnections
from quiverlog.server.process.jobs import FLUSH, JobPool
from quiverlog.types import Now

__all__ = ["NodeRunner"]

_REST_S: Final = 0.001
"""The pause between two pieces of work less urgent than a flush: the loop's smallest unit."""


class NodeRunner:
    """`marked_clean`: the node has marked the data directory, so the next start need not scan."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: Node,
        connections: ConnectionTable,
        *,
        metrics: ServerMetrics,
        log: Logger,
        audit: AuditLog | None,
        flush_threads: int,
        work_threads: int,
        clocks: Callable[[], Now] = read_clocks,
    ) -> None:
        self._loop = loop
        self.node = node
        self._connections = connections.by_id
        self._metrics = metrics
        self._log = log
        self._audit = audit
        self._clocks = clocks
        self.jobs = JobPool(
            flush_threads=flush_threads,
            work_threads=work_threads,
            wake=lambda: loop.call_soon_threadsafe(self._jobs_done),
        )
        self.peers: PeerConnections | None = None
        """Set before the node's first effect, as are the next two."""
        self.listen_to_brokers: Callable[[], None] = lambda: None
        """Opens the listener for other brokers."""
        self.apply_config: Callable[[Mapping[str, str]], None] = lambda _values: None
        """Applies changed keys to the running server."""
        self._dirty: list[Connection] = []
        self._timer: asyncio.Handle | None = None
        self._timer_us = 0
        self._rests = False
        self._closed = False
        self.start_complete = asyncio.Event()
        self.shutdown_complete = asyncio.Event()
        self.marked_clean = False

    async def has_started(self, stop: asyncio.Event) -> bool:
        """Wait until the start is complete; False: `stop` was set before."""
        self.flush()
        waits = [asyncio.ensure_future(one.wait()) for one in (self.start_complete, stop)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.start_complete.is_set()

    def handle_many(self, events: Iterable[Event], now: Now) -> None:
        if self._closed:
            return  # The node would start jobs, and the threads have ended.
        effects = self.node.handle_many(events, now)
        if effects:
            self.perform(effects)

    def deliver(self, *events: Event) -> None:
        self.handle_many(events, self._clocks())
        self.flush()

    def perform(self, effects: list[Effect]) -> None:
        jobs: list[Job] = []
        for effect in effects:
            if type(effect) is Respond:
                connection = self._connections.get(effect.connection_id)
                if connection is not None:
                    if not connection.replies.parts:
                        self._dirty.append(connection)
                    connection.queue(effect.response, effect.correlation_id, effect.body)
            elif type(effect) is StartJob:
                jobs.append(effect.job)
            elif type(effect) is LogLine:
                getattr(self._log, effect.level)(effect.event, **effect.fields)
            elif type(effect) is Audited:
                if self._audit is not None:
                    self._audit.take(effect.fields)
            elif type(effect) is CloseConnection:
                connection = self._connections.get(effect.connection_id)
                if connection is not None:
                    connection.close_soon(effect.why)
            elif type(effect) is ConnectionProved:
                connection = self._connections.get(effect.connection_id)
                if connection is not None:
                    connection.proved()
            elif type(effect) is ConnectionMuted:
                connection = self._connections.get(effect.connection_id)
                if connection is not None:
                    connection.mute(is_muted=effect.is_muted)
            elif isinstance(effect, SendToPeer | ClosePeer | PeerAddresses):
                self._to_peers(effect)
            elif type(effect) is ConfigChanged:
                self.apply_config(effect.values)
            elif type(effect) is ListenToBrokers:
                self.listen_to_brokers()
            elif type(effect) is StartComplete:
                self.start_complete.set()
            elif type(effect) is ShutdownComplete:
                self.marked_clean = effect.clean
                self.shutdown_complete.set()
        if jobs:
            self.jobs.submit(*jobs)

    def _to_peers(self, effect: SendToPeer | ClosePeer | PeerAddresses) -> None:
        assert self.peers is not None, "the node speaks to others when there are connections"
        if type(effect) is SendToPeer:
            self.peers.send(effect)
        elif type(effect) is ClosePeer:
            self.peers.give_up(effect.peer, effect.why)
        elif type(effect) is PeerAddresses:
            self.peers.change_addresses(effect.by_node)

    def flush(self) -> None:
        """Send the gathered replies, one write per connection; then set the timer."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                try:
                    connection.flush()
                except Exception as error:  # Ends this connection; the others get their answers.
                    self._broken(connection, error)
        deadline_us = None if self._closed else self.node.next_deadline_us()
        if deadline_us is None:
            return
        if self._timer is None or deadline_us < self._timer_us:
            self._set_timer(deadline_us)
        elif deadline_us <= 0 and not self._rests and self.jobs.uncollected_flushes:
            self._set_timer(deadline_us)  # A flush was submitted since: the tick waits for it.

    def _broken(self, connection: Connection, error: Exception) -> None:
        # An OSError is the socket's; any other is a bug.
        if not isinstance(error, OSError):
            self._metrics.node.internal_errors += 1
            self._log.error("internal error", during="sending replies", exc_info=error)
        connection.abort("gone")

    def close(self, timeout_s: float) -> bool:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self.jobs.close(timeout_s)

    def _set_timer(self, deadline_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = deadline_us
        self._rests = deadline_us <= 0 and self.jobs.uncollected_flushes > 0
        if deadline_us <= 0:  # The node has more to do; the loop polls its sockets first.
            if self._rests:
                # A thread that comes back from fsync waits for the interpreter while the loop is
                # busy; the pause lets it finish.
                self._timer = self._loop.call_later(_REST_S, self._tick)
            else:
                self._timer = self._loop.call_soon(self._tick)
            return
        # The loop's clock has milliseconds: a tick that is too early would be followed by another.
        delay_s = max(0.0, (deadline_us - time.monotonic_ns() // 1000) / 1e6)
        self._timer = self._loop.call_later(delay_s + 0.000_5, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.deliver(Tick())

    def _jobs_done(self) -> None:
        metrics = self._metrics
        events = []
        for job, result, error, waited_us, elapsed_us in self.jobs.collect():
            metrics.job_wait.observe(waited_us)
            if job.kind == FLUSH:
                metrics.sync.observe(elapsed_us)
            metrics.count_job(job.kind, elapsed_us)
            if error is not None:
                self._log.error("job failed", kind=job.kind, error=repr(error))
            events.append(JobDone(job, result, error))
        self.handle_many(events, self._clocks())
        self.flush()
