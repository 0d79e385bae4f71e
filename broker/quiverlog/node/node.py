"""The node: a whole broker as one machine. Events in, effects out; no clock, socket or thread.

Invariants:
- Every request is answered exactly once, or its connection is gone.
- `handle_many` raises nothing: an unexpected exception becomes an INTERNAL error for its request
  and a line in the log. Each part guards its callbacks; the rest is caught here.
- Requests get a bounded amount of work in one call; if some is left, `next_deadline_us` returns "at
  once". A change of a broker or the configuration visits all partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from quiverlog.addresses import Address
from quiverlog.core.security.principals import of_broker
from quiverlog.errors import (
    AuthenticationFailed,
    CorruptFrame,
    CredentialsExpired,
    FrameTooLarge,
    ListenerWithoutAdministration,
    NotAuthenticated,
    NotNegotiated,
    QuiverlogError,
    QuotaExceeded,
    StorageFault,
    UnknownApi,
    UnsupportedVersion,
)
from quiverlog.limits import PARKED_ENTRY_BYTES
from quiverlog.node import lifecycle
from quiverlog.node.apis.brokers import check_peer
from quiverlog.node.apis.changes import CHANGES, audited
from quiverlog.node.apis.handlers import HANDLERS, STEPS_HANDLERS
from quiverlog.node.broker import Broker, Timed
from quiverlog.node.closing import Closing
from quiverlog.node.lifecycle import Joining
from quiverlog.node.runtime.admission import Phase
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.effects import Effect
from quiverlog.node.runtime.events import (
    AT_ONCE_US,
    ConfigReloaded,
    ConnectionClosed,
    ConnectionOpened,
    DiskSpace,
    Event,
    JobDone,
    PeerClosed,
    RequestReceived,
    RequestsEnded,
    ResponseReceived,
    SecretsChanged,
    Shutdown,
    Tick,
)
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.purgatory import Waiter
from quiverlog.node.runtime.tasks import Call, waiting_bytes
from quiverlog.node.security.authoriser import WHOLE
from quiverlog.storage.disk.disk import Disk
from quiverlog.types import Now
from quiverlog.wire import messages as m
from quiverlog.wire.authentication_messages import AuthenticateRequest
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest, RegisterBrokerRequest
from quiverlog.wire.quorum_messages import QuorumRequest
from quiverlog.wire.registry import ADMINISTRATION, SENDERS

__all__ = ["Node"]

_PROTOCOL_ERRORS: Final = (
    CorruptFrame, FrameTooLarge, UnknownApi, UnsupportedVersion, NotNegotiated, NotAuthenticated,
    AuthenticationFailed, CredentialsExpired, QuotaExceeded,
)  # fmt: skip
"""After one of these the connection is closed: what comes over it can no longer be trusted, or has
no place."""

# Looking a member up in its enum costs more than the comparison.
_RUNNING: Final = Phase.RUNNING
_SERVED_ALWAYS: Final = frozenset(
    (
        *(m.HelloRequest, AuthenticateRequest),
        *(QuorumRequest, RegisterBrokerRequest, BrokerHeartbeatRequest),
    )
)
"""What other brokers need before this one serves clients, and while it stops."""
_BEFORE_PROOF: Final = frozenset((m.HelloRequest, AuthenticateRequest))


class Node:
    """Dispatches events to the parts. `entropy` returns random bytes, as for topic ids."""

    __slots__ = (
        "_asked", "_asked_running", "_closing", "_ends", "_ends_running", "_handlers", "_joining",
        "_steps_handlers", "_turns", "_turns_always", "broker",
    )  # fmt: skip

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        *,
        entropy: Callable[[int], bytes],
        metrics: NodeMetrics,
    ) -> None:
        self.broker = Broker(config, disk, entropy, metrics)
        self._closing = Closing(self.broker)
        self._joining = Joining(self.broker)
        self._handlers = dict(HANDLERS)
        self._steps_handlers = dict(STEPS_HANDLERS)
        self._list_turns()

    def _list_turns(self) -> None:
        """List by phase the deadlines, the turns of a tick, and the turns that end a call."""
        timed = [*self.broker.timed(), Timed(self._joining.next_us, None)]
        self._turns_always = [one.run for one in timed if one.run and not one.phases]
        self._turns = {
            phase: [one.run for one in timed if one.run and phase in one.phases] for phase in Phase
        }
        self._asked = {
            phase: [one.next_us for one in timed if not one.phases or phase in one.phases]
            for phase in Phase
        }
        self._asked_running = self._asked[_RUNNING]
        endings = self.broker.endings()
        self._ends = {
            phase: [one[:3] for one in endings if not one.phases or phase in one.phases]
            for phase in Phase
        }
        self._ends_running = self._ends[_RUNNING]

    # --- from outside --------------------------------------------------------------------------
    def start(self, now: Now) -> list[Effect]:
        """Lock and read the data directory, then begin to open logs, or to join. Blocks.

        Clients may connect after the effect StartComplete.

        Raises:
            DataDirectoryInUse, ForeignDataDirectory, UnsupportedFormat, UnsupportedFeatureLevel
            CorruptLog: the metadata log is damaged.
            InvalidConfig: a topic default contradicts a topic, or there is no quorum to join.
            DiskFull, ThrottledBroker, StorageFault, OSError: the disk.
        """
        lifecycle.start(self.broker, self._joining.begin, now)
        return self._effects(now)

    def handle_many(self, events: Iterable[Event], now: Now) -> list[Effect]:
        """Process events that came together, in order; every body stays valid until this returns.

        One call for many lets produces to a log share a write, and all share a flush.
        """
        # First: a leader that does not reach the controller steps down (replication rule 16).
        self._guarded(self.broker.leader_lease.look, now)
        self._guarded(self.broker.retention.watch, now)
        for event in events:
            try:
                if type(event) is RequestReceived:
                    self._request(event, now)
                else:
                    self._take(event, now)
            except Exception as error:
                self._event_broken(event, error, now)
        return self._effects(now)

    @property
    def held_bytes(self) -> int:
        broker = self.broker
        parked_bytes = broker.purgatory.parked_entries * PARKED_ENTRY_BYTES
        return parked_bytes + broker.held_produces.byte_count + broker.tasks.held_bytes

    @property
    def why_fenced(self) -> str:
        return self.broker.membership.registration.why_fenced

    def next_deadline_us(self) -> int | None:
        """Return when (monotonic) the node needs a Tick at the latest; None: never."""
        broker = self.broker
        phase = broker.admission.phase
        earliest: int | None = None
        try:
            # Asked after every call: the lists are made once.
            asked = self._asked_running if phase is _RUNNING else self._asked[phase]
            for next_us in asked:
                due_us = next_us()
                if due_us is not None and (earliest is None or due_us < earliest):
                    earliest = due_us
                    if due_us <= AT_ONCE_US:
                        break
        except Exception as error:
            broker.outbox.internal_error("looking for the next deadline", error)
            return None
        return earliest

    # --- events --------------------------------------------------------------------------------
    def _effects(self, now: Now) -> list[Effect]:
        broker = self.broker
        if broker.appends.pending:
            self._guarded(broker.appends.finish, now)
            if broker.appends.pending:  # After a bug: their batches end with this call.
                broker.appends.abandon(now)
        phase = broker.admission.phase
        for part, is_due, run in self._ends_running if phase is _RUNNING else self._ends[phase]:
            if is_due(part):
                self._guarded(run, now)
        phase = broker.admission.phase  # A part's turn may have changed it.
        if phase is not _RUNNING:
            self._go_on_with(phase, now)
        broker.metrics.parked_requests = broker.purgatory.live
        broker.metrics.parked_entries = broker.purgatory.parked_entries
        if broker.quotas.is_on:
            self._guarded(broker.quotas.settle, now)
        return broker.outbox.take()

    def _go_on_with(self, phase: Phase, now: Now) -> None:
        if phase is Phase.JOINING:
            self._guarded(self._joining.run, now)
        elif phase is Phase.STARTING:
            self._guarded(lambda now: lifecycle.run_if_started(self.broker, now), now)
        elif phase is Phase.CLOSING:
            self._guarded(self._closing.run, now)

    def _guarded(self, work: Callable[[Now], None], now: Now) -> None:
        try:
            work(now)
        except Exception as error:
            self.broker.outbox.internal_error("the end of a call", error)

    def _event_broken(self, event: Event, error: Exception, now: Now) -> None:
        """After a bug in taking an event: no request or job may wait for it in vain."""
        if isinstance(event, RequestReceived):
            self._broken(event, error)
            return
        self.broker.outbox.internal_error(type(event).__name__, error)
        if isinstance(event, JobDone) and self.broker.jobs.waits_for(event.job):
            self._guarded(lambda now: self.broker.jobs.done(event, now), now)

    def _take(self, event: Event, now: Now) -> None:
        broker = self.broker
        if broker.appends.pending:
            broker.appends.finish(now)
        match event:
            case JobDone():
                broker.jobs.done(event, now)
            case ConnectionOpened():
                broker.clients.opened(event.connection_id, event.peer, event.listener)
                if event.is_own:
                    own = of_broker(broker.config.node_id)
                    broker.clients.authenticated(event.connection_id, own)
                    return
                is_brokers = broker.proofs.opened(event.connection_id, event.listener, event.names)
                broker.logins.opened(event.connection_id, event.listener, event.names)
                if is_brokers:
                    broker.logins.proved(event.connection_id)
            case ConnectionClosed():
                broker.drop_connection(event.connection_id, now)
            case RequestsEnded():
                self._expire(broker.purgatory.of_connection(event.connection_id), now)
            case ResponseReceived():
                broker.peers.received(event, now)
            case PeerClosed():
                broker.peers.closed(event, now)
            case Tick():
                self._tick(now)
            case DiskSpace():
                broker.admission.measured(event.load)
                if broker.admission.phase is not Phase.RUNNING:
                    pass  # No write is admitted, and a stop releases the directory.
                elif event.is_owned:
                    broker.admission.directory_held()
                    lifecycle.disk_space(broker, event.free_bytes, now)
                else:
                    broker.admission.directory_lost()
            case SecretsChanged():
                broker.proofs.secrets_changed(event.secrets)
            case ConfigReloaded():
                broker.live_config.reload(event.given, now)
            case Shutdown():
                # Other brokers lead first, if there are any (replication rule 15).
                if not broker.membership.registration.leave(now):
                    self._closing.begin(now)

    def _tick(self, now: Now) -> None:
        broker = self.broker
        self._expire(broker.purgatory.expired(now.mono_us), now)
        for run in self._turns_always:
            self._guarded(run, now)
        if broker.membership.registration.has_left(now):
            self._closing.begin(now)
        for run in self._turns[broker.admission.phase]:
            self._guarded(run, now)

    def _expire(self, waiters: list[Waiter], now: Now) -> None:
        for waiter in waiters:
            if not waiter.done:
                try:
                    waiter.expire(now)
                except Exception as error:
                    self.broker.purgatory.fail(waiter, "a deadline", error)

    # --- requests ------------------------------------------------------------------------------
    def _request(self, event: RequestReceived, now: Now) -> None:
        broker = self.broker
        request = event.request
        kind = type(request)
        try:
            if event.connection_id not in broker.clients.accounts:
                if kind is not m.HelloRequest:
                    raise NotNegotiated
            elif broker.admission.phase is not _RUNNING and kind not in _SERVED_ALWAYS:
                broker.admission.check_running()
            if event.connection_id in broker.proofs.unproved and kind not in _BEFORE_PROOF:
                raise NotAuthenticated(
                    f"this listener of broker {broker.config.node_id} is for brokers: nothing but"
                    " HELLO and AUTHENTICATE is served before the proof."
                )
            if (
                event.connection_id in broker.logins.unserved
                and kind not in _BEFORE_PROOF
                and not broker.logins.admits(event.connection_id, now)
            ):
                return
            if kind in SENDERS:
                check_peer(broker, event, now)
            elif broker.authoriser.is_on and kind in WHOLE:
                broker.authoriser.check_whole(event.connection_id, request)
            if broker.quotas.is_on and kind is m.ProduceRequest:
                byte_count = event.header_bytes + len(event.body)
                broker.quotas.received(event.connection_id, byte_count, now)
            # Admitted rows are in no log yet: no other request is handled before they are.
            if broker.appends.pending and kind is not m.ProduceRequest:
                broker.appends.finish(now)
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(broker, event, now)
            else:
                self._start_steps(event, now)
        except QuiverlogError as error:
            self._fail(event, error)
        except OSError as error:
            broker.outbox.log("error", "the disk failed", api=request.API.name, why=str(error))
            self._fail(event, StorageFault(f"the disk failed: {error.strerror or error}."))
        except Exception as error:
            self._broken(event, error)

    def _start_steps(self, event: RequestReceived, now: Now) -> None:
        broker = self.broker
        if event.request.API in ADMINISTRATION and not event.request.only_asks:
            self._check_administration(event)
        held_bytes = waiting_bytes(event)
        broker.tasks.check_room(event.connection_id, held_bytes)
        call = Call(event.connection_id, event.request, now, held_bytes=held_bytes)
        assert call.held_bytes > 0, "a request that waits takes memory"
        try:
            kind = type(event.request)
            steps = self._steps_handlers[kind](broker, call)
            if broker.audit.is_on and kind in CHANGES:
                steps = audited(broker, call, steps)
        except Exception:
            if call.on_end is not None:
                call.on_end(now)
            raise
        broker.tasks.start(call, steps, bare=True)

    def _check_administration(self, event: RequestReceived) -> None:
        config = self.broker.config
        listener = self.broker.clients.listener_of(event.connection_id)
        if listener not in config.listeners_without_administration:
            return
        others = ", ".join(
            f"{name!r} ({Address(host, port)})"
            for name, host, port in config.endpoints
            if name not in config.listeners_without_administration
        )
        raise ListenerWithoutAdministration(
            f"the listener {listener!r} of broker {config.node_id} serves no"
            f" {event.request.API.name}: ask at {others}."
        )

    def _fail(self, event: RequestReceived, error: QuiverlogError) -> None:
        self.broker.fail(event.connection_id, event.request, error)
        if isinstance(error, _PROTOCOL_ERRORS):
            self.broker.outbox.close_connection(event.connection_id, error.code_name())

    def _broken(self, event: RequestReceived, error: Exception) -> None:
        """Answer a request once after a bug, whatever the handler has begun."""
        broker = self.broker
        request = event.request
        waiters = broker.purgatory.of_request(event.connection_id, request.correlation_id)
        for waiter in waiters:
            broker.purgatory.fail(waiter, request.API.name, error)
        if not waiters:
            broker.outbox.internal_error(request.API.name, error)
            self._fail(event, QuiverlogError())
