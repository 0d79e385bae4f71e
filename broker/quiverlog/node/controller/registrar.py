"""The controller's side of registrations: hosts core.controller.registrations.

Owns also the callers that wait until all live brokers have applied the present metadata
(`everywhere`): heartbeats report versions, and a broker that lags is fenced. Refuses everything
while this node is not the controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from quiverlog.addresses import Address, parse_address
from quiverlog.core.controller.records import BrokerChangeRecord, BrokerRecord, Record, in_entries
from quiverlog.core.controller.registrations import Heartbeat, Registrations
from quiverlog.core.raft.messages import ReplicaKey
from quiverlog.errors import (
    BrokerShuttingDown,
    DuplicateNodeId,
    EarlierDiskState,
    InvalidRequest,
    NotController,
    QuiverlogError,
    ThrottledBroker,
)
from quiverlog.limits import BROKER_RETRY_MS, EPOCH_WAITS_MAX
from quiverlog.node.metadata.metadata import ENTRY_BYTES_MAX, Metadata
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.runtime.config import LISTENER_DEFAULT, NodeConfig
from quiverlog.node.runtime.jobs import Starter, Then
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.peers import BrokerAddresses
from quiverlog.types import Now
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)

__all__ = ["Registrar"]

_INCARNATION_BYTES: Final = 16
_LONG_AGO_MS: Final = 2**31 - 1


class Registrar:
    """Proposes the machine's records; a registering broker gets its answer when they are decided.

    Args:
        incarnation: of this start of this node.
        controller_contact_us: when the previous controller last answered, by its node id.
        reach: passes None when the broker may be registered at its address, else the error.
    """

    __slots__ = (
        "_broker_addresses",
        "_config",
        "_controller_contact_us",
        "_due_us",
        "_faulted",
        "_faults",
        "_full_disks",
        "_incarnation",
        "_is_disk_full",
        "_is_stopped",
        "_machine",
        "_metadata",
        "_outbox",
        "_quorum",
        "_reach",
        "_term",
        "_waiting",
    )

    def __init__(
        self,
        config: NodeConfig,
        quorum: Quorum,
        metadata: Metadata,
        outbox: Outbox,
        incarnation: Callable[[], bytes],
        controller_contact_us: Callable[[], dict[int, int]],
        is_disk_full: Callable[[], bool],
        faulted: Callable[[], int],
        broker_addresses: BrokerAddresses,
        reach: Callable[[BrokerRecord, Now, Then], None],
    ) -> None:
        self._config = config
        self._quorum = quorum
        self._metadata = metadata
        self._outbox = outbox
        self._incarnation = incarnation
        self._controller_contact_us = controller_contact_us
        self._is_disk_full = is_disk_full
        self._faulted = faulted
        self._faults: dict[int, int] = {}  # Of other brokers: partitions that accept no writes.
        self._broker_addresses = broker_addresses
        self._reach = reach
        self._full_disks: set[int] = set()  # Of other brokers, by their last heartbeat.
        self._machine: Registrations | None = None
        self._is_stopped = False
        self._term = 0  # In which the machine has begun; 0: it has not.
        self._due_us: int | None = None
        self._waiting: deque[tuple[int, Then]] = deque()  # By version, ascending.

    # --- when ----------------------------------------------------------------------------------
    def next_us(self) -> int | None:
        return self._due_us if self._quorum.leading_term == self._term else 0

    def tick(self, now: Now) -> None:
        machine = self._follow_quorum(now)
        if machine is None:
            return
        if self._due_us is not None and now.mono_us >= self._due_us:
            metadata = self._metadata
            while records := machine.silent(metadata.image, metadata.pending, now.mono_us):
                change = records[0]
                assert isinstance(change, BrokerChangeRecord)
                self._outbox.log("warning", "broker fenced", node=change.node_id, why="silent")
                self._full_disks.discard(change.node_id)  # It leads nothing any more.
                self._propose(records, now)
            self._fence_lagging(machine, now)
        self._answer_waiting(machine, now)
        self._due_us = _next_us(machine, now)

    def _fence_lagging(self, machine: Registrations, now: Now) -> None:
        metadata = self._metadata
        while records := machine.lagging(metadata.image, metadata.pending, now.mono_us):
            change = records[0]
            assert isinstance(change, BrokerChangeRecord)
            why = "its metadata come too late"
            self._outbox.log("warning", "broker fenced", node=change.node_id, why=why)
            self._full_disks.discard(change.node_id)
            self._propose(records, now)

    def _last_contact_us(self) -> dict[int, int]:
        """Return the last contact with the previous controller, which may not have found this one
        yet.
        """
        # No session of an earlier controller outlasts `led_before_us` by more than its length: no
        # broker is fenced too soon.
        led_before_us = self._quorum.raft.led_before_us
        assert led_before_us >= 0
        contact_us = self._controller_contact_us()
        return {node_id: max(us, led_before_us) for node_id, us in contact_us.items()}

    def _follow_quorum(self, now: Now) -> Registrations | None:
        term = self._quorum.leading_term
        if term != self._term:
            if self._machine is None:
                session_us = self._config.broker_session_ms * 1000
                node_id, incarnation = self._config.node_id, self._incarnation()
                self._machine = Registrations(node_id, incarnation, session_us)
            self._machine.end()
            self._refuse_waiting(NotController("another broker is the controller now."), now)
            self._full_disks.clear()
            self._faults.clear()
            self._due_us = None
            if term:
                self._machine.begin(self._metadata.image, now.mono_us, self._last_contact_us())
                self._due_us = _next_us(self._machine, now)
            self._term = term
        assert self._term == self._quorum.leading_term
        return self._machine if term else None

    def _deciding(self, now: Now) -> Registrations:
        machine = self._follow_quorum(now)
        if machine is None:
            raise NotController
        return machine

    # --- requests ------------------------------------------------------------------------------
    def register(self, request: RegisterBrokerRequest, then: Then, now: Now) -> None:
        """Register a broker; `then` gets the response when that is decided.

        Where brokers prove who they are, the address counts when the broker was reached there: the
        others are given it, and clients.

        Raises:
            NotController, InvalidRequest, DuplicateNodeId, EarlierDiskState, PolicyViolation,
            UnsupportedFeatureLevel.
        """
        machine = self._deciding(now)
        assert self._quorum.is_leading
        newcomer = _newcomer(request)
        self._check_disk(newcomer)
        try:
            machine.check(self._metadata.pending, newcomer, now.mono_us)
        except DuplicateNodeId:
            self._second_seen(newcomer.node_id, str(Address(newcomer.host, newcomer.port)), now)
            raise
        clean = request.clean_incarnation
        self._reach(newcomer, now, partial(self._reached, newcomer, clean, then))

    def _reached(
        self,
        newcomer: BrokerRecord,
        clean: bytes,
        then: Then,
        _: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        try:
            if error is not None:
                raise error
            self._decide(newcomer, clean, then, now)
        except QuiverlogError as failure:
            then(None, failure, now)

    def _decide(self, newcomer: BrokerRecord, clean: bytes, then: Then, now: Now) -> None:
        machine = self._deciding(now)
        records = machine.register(self._metadata.pending, newcomer, clean, now.mono_us)
        self._due_us = _next_us(machine, now)

        def decided(_image: object, error: BaseException | None, now: Now) -> None:
            broker = self._metadata.image.brokers.get(newcomer.node_id)
            self._answer_waiting(machine, now)
            if error is not None:
                then(None, error, now)
            elif broker is None or broker.incarnation != newcomer.incarnation:
                then(None, ThrottledBroker("the registration was not committed: try again."), now)
            else:
                session_ms = self._config.broker_session_ms
                then(
                    RegisterBrokerResponse(broker_epoch=broker.broker_epoch, session_ms=session_ms),
                    None,
                    now,
                )

        if records:
            self._outbox.log("info", "broker registers", node=newcomer.node_id, host=newcomer.host)
            self._propose(records, now, decided)
        else:
            self._metadata.after_pending(now)(decided)

    def _check_disk(self, newcomer: BrokerRecord) -> None:
        """Raise EarlierDiskState for a voter that lacks entries it has acknowledged."""
        # It gets no decisions: it would serve nothing, and keep its newer disk out.
        key = ReplicaKey(newcomer.node_id, newcomer.directory_id)
        index = self._quorum.raft.lost_entries.get(key)
        if index is not None:
            raise EarlierDiskState(
                f"node {key.node_id} has acknowledged entry {index} of the metadata log, and its"
                f" disk does not have it: directory {key.directory_id} is in an earlier state."
            )

    def _second_seen(self, node_id: int, second_at: str, now: Now) -> None:
        first = self._metadata.pending.brokers.get(node_id)
        at = self._config.endpoint if first is None else Address(first.host, first.port)
        self._broker_addresses.second_seen(node_id, second_at, str(at), now)

    def heartbeat(self, request: BrokerHeartbeatRequest, then: Then, now: Now) -> None:
        """Pass the response to `then` at once. Raises like `beat`."""
        then(self.beat(request, now), None, now)

    def beat(self, request: BrokerHeartbeatRequest, now: Now) -> BrokerHeartbeatResponse:
        """Process a heartbeat, and propose what follows from it.

        Raises:
            NotController, StaleBrokerEpoch.
        """
        machine = self._deciding(now)
        version = min(request.metadata_version, self._metadata.image.version)
        beat = Heartbeat(request.node_id, request.broker_epoch, version, request.wants_to_stop)
        metadata = self._metadata
        verdict = machine.heartbeat(metadata.image, metadata.pending, beat, now.mono_us)
        if request.is_disk_full:
            self._full_disks.add(request.node_id)
        else:
            self._full_disks.discard(request.node_id)
        self._faults[request.node_id] = request.faulted_count
        if request.second_node_id in metadata.image.brokers:
            try:
                second_at = str(parse_address(request.second_at))
            except ValueError as error:
                raise InvalidRequest(f"the second process' address {error}.") from None
            self._second_seen(request.second_node_id, second_at, now)
        if self._due_us is None:
            self._due_us = _next_us(machine, now)
        self._answer_waiting(machine, now)
        if verdict.records:
            self._log_change(verdict.records[0])
            self._propose(verdict.records, now)
        return BrokerHeartbeatResponse(
            is_caught_up=verdict.is_caught_up,
            is_fenced=verdict.is_fenced,
            may_stop=verdict.may_stop,
            session_ms=self._config.broker_session_ms,
            confirmed_ms=self._confirmed_ms(now),
            metadata_version=self._metadata.image.version,
            second_at=self._broker_addresses.second_at(request.node_id, now),
        )

    def _confirmed_ms(self, now: Now) -> int:
        """Return how long ago a majority surely had contact with this controller; rounded up."""
        confirmed_us = self._quorum.raft.majority_confirmed_us
        if confirmed_us is None:
            raise NotController
        age_us = max(0, now.mono_us - confirmed_us)
        return min(-(-age_us // 1000), _LONG_AGO_MS)

    @property
    def full_disks(self) -> frozenset[int]:
        is_own = self._is_disk_full()
        if not (self._full_disks or is_own) or not self._quorum.is_leading:
            return frozenset()
        return frozenset({*self._full_disks, *((self._config.node_id,) if is_own else ())})

    def faulted(self, node_id: int) -> int:
        """0 unless this node is the controller."""
        if not self._quorum.is_leading:
            return 0
        if node_id == self._config.node_id:
            return self._faulted()
        return self._faults.get(node_id, 0)

    def metadata_lag(self, node_id: int) -> int:
        """Entries that a broker lacked at its last heartbeat; -1: unknown."""
        version = self._metadata.image.version
        if not self._quorum.is_leading or self._machine is None:
            return -1
        if node_id == self._config.node_id:
            return 0
        known = self._machine.sessions.version_of(node_id)
        return -1 if known < 0 else max(0, version - known)

    def has_session(self, node_id: int, now: Now) -> bool:
        """Return whether a broker has a session: then its reports will come."""
        assert node_id >= 0
        if node_id == self._config.node_id:
            return True
        return self._machine is not None and self._machine.sessions.is_alive(node_id, now.mono_us)

    # --- waiting for all brokers ---------------------------------------------------------------
    def everywhere(self, now: Now) -> Starter:
        """Return a wait until all live brokers have applied the present metadata, to be yielded.

        Bounded by a session and a half, plus the record that fences a lagging broker. Raises:
            BrokerShuttingDown: this broker gets no more heartbeats.
            NotController: another broker is the controller now.
            ThrottledBroker: too many callers wait.
        """

        def start(then: Then) -> None:
            machine = self._follow_quorum(now)
            image = self._metadata.image
            if all(one.node_id == self._config.node_id for one in image.live_brokers()):
                then(None, None, now)
            elif self._is_stopped or machine is None:
                then(None, BrokerShuttingDown() if self._is_stopped else NotController(), now)
            elif machine.applied_everywhere(image) >= image.version:
                then(None, None, now)
            elif len(self._waiting) >= EPOCH_WAITS_MAX:
                then(
                    None,
                    ThrottledBroker("too many requests wait for other brokers: try again."),
                    now,
                )
            else:
                self._waiting.append((image.version, then))
                machine.awaited.add(image.version, now.mono_us)
                self._due_us = _next_us(machine, now)

        return start

    def stop(self, now: Now) -> None:
        self._is_stopped = True
        self._refuse_waiting(BrokerShuttingDown(), now)

    def _answer_waiting(self, machine: Registrations, now: Now) -> None:
        if not self._waiting:
            return
        version = machine.applied_everywhere(self._metadata.image)
        while self._waiting and self._waiting[0][0] <= version:
            self._waiting.popleft()[1](None, None, now)

    def _refuse_waiting(self, error: QuiverlogError, now: Now) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, then in waiting:
            then(None, error, now)

    # --- parts ---------------------------------------------------------------------------------
    def _log_change(self, change: Record) -> None:
        assert isinstance(change, BrokerChangeRecord)
        assert change.fenced is not None or change.in_shutdown is not None
        if change.in_shutdown:
            self._outbox.log("info", "broker stops", node=change.node_id)
        elif change.fenced:
            self._outbox.log("info", "broker fenced", node=change.node_id, why="it has stopped")
        else:
            self._outbox.log("info", "broker unfenced", node=change.node_id)

    def _propose(self, records: list[Record], now: Now, then: Then | None = None) -> None:
        """Propose one entry, or several if it would be too large (core/controller/records.py)."""
        assert records
        parts = in_entries(records, ENTRY_BYTES_MAX)
        for number, part in enumerate(parts, start=1):
            is_last = number == len(parts)
            try:
                self._metadata.propose(part, now, then if then and is_last else self._proposed)
            except QuiverlogError as error:
                self._outbox.log("error", "a decision about a broker is refused", why=str(error))
                raise

    def _proposed(self, _image: object, error: BaseException | None, now: Now) -> None:
        """After a failure, give a session to brokers without one."""
        if error is None and self._machine is not None and self._term:
            self._answer_waiting(self._machine, now)  # Perhaps one broker fewer has to apply it.
        if error is not None and self._machine is not None and self._term:
            # A live broker without a session would never be fenced.
            known = self._machine.sessions
            for broker in self._metadata.image.live_brokers():
                if broker.node_id != self._config.node_id and not known.has(broker.node_id):
                    known.renew(broker.node_id, now.mono_us)
            self._due_us = _next_us(self._machine, now)


def _next_us(machine: Registrations, now: Now) -> int | None:
    session_us, late_us = machine.sessions.next_us(), machine.awaited.next_us()
    if late_us is None:
        return session_us
    late_us = max(late_us, now.mono_us + BROKER_RETRY_MS * 1000)  # The fencing is in progress.
    return late_us if session_us is None else min(session_us, late_us)


def _newcomer(request: RegisterBrokerRequest) -> BrokerRecord:
    """Return the registration of a request. Raises InvalidRequest."""
    if len(request.incarnation) != _INCARNATION_BYTES:
        raise InvalidRequest(f"an incarnation has {_INCARNATION_BYTES} bytes.")
    if not request.directory_id:
        raise InvalidRequest("a registration names its data directory.")
    assert request.node_id >= 0
    names = [one.name for one in request.listeners]
    if LISTENER_DEFAULT not in names or len(set(names)) != len(names):
        raise InvalidRequest(f"a broker has a listener {LISTENER_DEFAULT!r}, and each name once.")
    if not request.host or any(not one.host or not one.name for one in request.listeners):
        raise InvalidRequest("each listener has a name and a host.")
    return BrokerRecord(
        request.node_id,
        request.incarnation,
        request.host,
        request.port,
        request.rack,
        tuple((one.name, one.host, one.port) for one in request.listeners),
        directory_id=request.directory_id,
        wants_vote=request.wants_vote,
        takes_partitions=request.takes_partitions,
        feature_level_min=request.feature_level_min,
        feature_level_max=request.feature_level_max,
    )
