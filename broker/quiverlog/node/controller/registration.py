"""This broker's own registration: register, heartbeat, lead under a lease, leave.

    serving ──▶ registering ──decided──▶ heartbeats ──asked to stop──▶ leaving ──▶ may stop
                     ▲                       │
                     └──── a session ◀───────┴── displaced: see displaced.py

A leader without an answer for a session counts itself as fenced. A controller that is not fenced
and does not stop sends nothing. `Registered` reads registrations from the image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from quiverlog.core.controller.alter_partition import fit_epoch
from quiverlog.core.controller.records import UNKNOWN_BROKER_EPOCH
from quiverlog.errors import (
    DuplicateNodeId,
    NotController,
    OutcomeUnknown,
    PeerUnreachable,
    QuiverlogError,
    StaleBrokerEpoch,
)
from quiverlog.limits import (
    BROKER_HEARTBEATS_PER_SESSION,
    BROKER_RETRY_MS,
    BROKER_STOP_MS_MAX,
    FEATURE_LEVEL_MIN,
)
from quiverlog.node.controller.controller_link import ControllerLink
from quiverlog.node.controller.displaced import DISK_REPLACED, HELD, REPLACED, Displaced
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.peers import BrokerAddresses
from quiverlog.roles import ROLE_BROKER, ROLE_CONTROLLER
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.types import Now
from quiverlog.wire.broker_messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RegisteredListener,
)

__all__ = ["Registered", "Registration", "wants_vote"]


_OFTEN: Final = (NotController, OutcomeUnknown, PeerUnreachable)
"""The controller is about to change, which the quorum logs."""


def wants_vote(config: NodeConfig) -> bool:
    return config.joins_quorum and ROLE_CONTROLLER in config.roles


_UNREGISTERED: Final = "the cluster has unregistered this broker"


class Registration:
    """This broker's registration.

    Args:
        is_alone: true while no other node could be the controller, and what those before it decided
            is applied here.
        holds_back: true until the controller has the replicas here that do not count: the broker
            stays fenced, so none of them leads.
        is_disk_full: true while there is no room for rows; a change is reported at once.
        faulted: partitions here that accept no writes, because a write or fsync has failed.
    """

    __slots__ = (
        "_awaited_version",
        "_broker_addresses",
        "_config",
        "_directory",
        "_epoch",
        "_faulted",
        "_give_up_us",
        "_holds_back",
        "_in_flight",
        "_is_alone",
        "_is_disk_full",
        "_is_disk_replaced",
        "_is_fenced",
        "_is_held",
        "_is_replaced",
        "_is_unregistered",
        "_known_us",
        "_lease_us",
        "_led",
        "_link",
        "_logged",
        "_metadata",
        "_next_us",
        "_outbox",
        "_place",
        "_reported_full",
        "_reported_version",
        "_serves",
        "_session_us",
        "_stop_us",
        "_versions",
        "_was_registered",
        "controller_contact_us",
        "may_stop",
    )

    def __init__(
        self,
        config: NodeConfig,
        link: ControllerLink,
        outbox: Outbox,
        metadata: MetadataView,
        directory: Callable[[], DataDirectory],
        is_alone: Callable[[], bool],
        holds_back: Callable[[], bool],
        is_disk_full: Callable[[], bool],
        faulted: Callable[[], int],
        broker_addresses: BrokerAddresses,
    ) -> None:
        self._config = config
        self._link = link
        self._outbox = outbox
        self._metadata = metadata
        self._directory = directory
        self._is_alone = is_alone
        self._holds_back = holds_back
        self._is_disk_full = is_disk_full
        self._faulted = faulted
        self._broker_addresses = broker_addresses
        self._place = Displaced(config, outbox, metadata)
        self._reported_full = False
        self._reported_version = self._awaited_version = 0
        self._known_us = 0
        # (version, moment): the controller had applied the version when it decided at that moment.
        self._versions: tuple[int, int] | None = None
        self._session_us = config.broker_session_ms * 1000
        self._epoch = UNKNOWN_BROKER_EPOCH
        self._is_fenced = True
        self._was_registered = False
        self._is_replaced = self._is_unregistered = self._is_held = False
        self._is_disk_replaced = False
        self._in_flight = False
        self._next_us: int | None = None  # None: nothing is served yet.
        self._lease_us = 0
        self._led = False
        self._serves = False
        self._stop_us: int | None = None
        # Until then, a controller that could move leadership may still answer.
        self._give_up_us = 0
        self._logged = ""
        self.may_stop = False
        # The other node that last answered as the controller, and when.
        self.controller_contact_us: dict[int, int] = {}

    # --- the metadata --------------------------------------------------------------------------
    def begin(self, now: Now) -> None:
        assert self._next_us is None, "a broker begins once"
        self._next_us = now.mono_us

    def serve(self, now: Now) -> None:
        self._serves = True
        self.changed()
        self._next_us = now.mono_us

    @property
    def is_registered(self) -> bool:
        self.changed()
        return self._epoch >= 0

    @property
    def epoch(self) -> int:
        return self._epoch

    def changed(self) -> None:
        broker = self._metadata.image.brokers.get(self._config.node_id)
        own = broker is not None and broker.incarnation == self._directory().incarnation
        self._epoch = broker.broker_epoch if broker is not None and own else UNKNOWN_BROKER_EPOCH
        self._is_fenced = broker is None or not own or broker.fenced
        if self._was_registered and broker is None and not self._is_unregistered:
            self._is_unregistered = True
            self._outbox.log("error", _UNREGISTERED)
        is_replaced = self._was_registered and broker is not None and not own
        if is_replaced and not self._is_replaced:
            self._place.due_us = None  # Also if it was registered for a moment between two calls.
        self._is_replaced = is_replaced
        was_disk_replaced = self._is_disk_replaced
        self._is_disk_replaced = (
            is_replaced and broker is not None
            and broker.directory_id != self._directory().directory_id
        )  # fmt: skip
        if self._is_disk_replaced and not was_disk_replaced:
            self._place.disk_was_replaced()
        self._is_held = (
            own and broker is not None and broker.in_shutdown and self._serves
            and self._stop_us is None and self._next_us is not None
        )  # fmt: skip
        self._was_registered = self._was_registered or own

    @property
    def _lost_place(self) -> str:
        """Why this broker is displaced, with a chance to register again; empty: it is not."""
        if self._is_unregistered or self._is_disk_replaced or self._stop_us is not None:
            return ""
        return REPLACED if self._is_replaced else HELD if self._is_held else ""

    def may_lead(self, now: Now) -> bool:
        """Return whether no other broker can have been elected for what this one leads.

        False as soon as the controller was out of reach for a session.
        """
        assert now.mono_us >= 0
        if self._is_alone():
            return True
        if self._is_fenced or self._is_replaced or self._is_unregistered:
            return False
        if self._led != self._link.leads or now.mono_us >= self._lease_us:
            self._follow_leadership(now)
        return now.mono_us < self._lease_us

    def report_version(self) -> None:
        self._awaited_version = self._metadata.image.version

    def known_us(self, now: Now) -> int:
        """Return a moment up to which every decision is applied here."""
        if self._versions is not None and self._versions[0] <= self._metadata.image.version:
            self._known_us = max(self._known_us, self._versions[1])
            self._versions = None
        if self._link.leads and (confirmed_us := self._link.majority_confirmed_us) is not None:
            self._known_us = max(self._known_us, min(confirmed_us, now.mono_us))
        return self._known_us

    @property
    def why_fenced(self) -> str:
        """Why the cluster gives this broker no partitions to lead; empty where it does."""
        if self._is_unregistered:
            return f"fenced: {_UNREGISTERED}"
        if self._is_replaced:
            how = DISK_REPLACED if self._is_disk_replaced else REPLACED
            return f"fenced: {how}, at {self._place.other_address}"
        if self._is_held:
            return f"fenced: {HELD}"
        if self._is_fenced and not self._is_alone():
            return "fenced: the controller does not count on this broker"
        return ""

    def metadata_age_ms(self, now: Now) -> int:
        """Return the age of this broker's metadata; -1: there was no controller yet."""
        if self._is_alone():
            return 0
        known_us = self.known_us(now)
        return -1 if not known_us else max(0, now.mono_us - known_us) // 1_000

    @property
    def lease_ends_us(self) -> int | None:
        """When `may_lead` becomes False without contact to the controller; None: not by time."""
        if self._is_alone() or self._is_fenced or self._is_replaced or self._is_unregistered:
            return None
        return self._lease_us

    # --- when ----------------------------------------------------------------------------------
    @property
    def _is_quiet(self) -> bool:
        """True when the controller needs no heartbeat: it is this node."""
        if self._is_fenced or self._stop_us is not None:
            return False
        return (self._link.leads and self._led) or self._is_alone()

    def next_us(self) -> int | None:
        if self._next_us is None or self._in_flight or self._is_unregistered:
            return self._stop_us
        if self._lost_place:
            sends_heartbeats = self._is_held and not self._is_quiet
            due_us = self._place.due_us or 0
            return min(due_us, self._next_us) if sends_heartbeats else due_us
        if self._is_quiet or self._is_replaced:
            return self._stop_us
        if self._epoch >= 0 and not self._serves:
            return None
        return 0 if self._has_news else self._next_us

    @property
    def _has_news(self) -> bool:
        """True when the controller waits for an applied version, or the disk's fullness has
        changed.
        """
        # A fenced broker leads nothing, and may have to hold its heartbeats back.
        if self._epoch < 0 or self._is_fenced:
            return False
        return (
            self._reported_version < self._awaited_version
            or self._is_disk_full() != self._reported_full
        )

    def tick(self, now: Now) -> None:
        if self._next_us is None:
            return
        self._follow_leadership(now)
        if not self._serves:
            self.changed()
            if self._epoch >= 0:
                return
        self._place.look(self._lost_place, self._session_us, now.mono_us)
        if self._place.is_due(now.mono_us) and not self._in_flight:
            self._place.asked(now.mono_us)
            self._send(now, registers=True)
            return
        due = (now.mono_us >= self._next_us or self._has_news) and not self._in_flight
        if due and self._serves and self._is_fenced and self._epoch >= 0 and self._holds_back():
            self._next_us = now.mono_us + BROKER_RETRY_MS * 1000
        elif due and not (self._is_quiet or self._is_replaced or self._is_unregistered):
            self._send(now, registers=self._epoch < 0)

    def _follow_leadership(self, now: Now) -> None:
        """Renew the lease of a broker that is the controller."""
        leads = self._link.leads
        confirmed_us = self._link.majority_confirmed_us if leads else None
        assert self._session_us > 0
        # A session from a majority's contact: another controller waits that long before it elects
        # other leaders.
        if confirmed_us is not None:
            # Not later than now, where no other node has a vote: one may get it.
            confirmed_us = min(confirmed_us, now.mono_us)
            self._lease_us = max(self._lease_us, confirmed_us + self._session_us)
        if self._led and not leads:
            self._next_us = now.mono_us
        self._led = leads

    # --- asking --------------------------------------------------------------------------------
    def _send(self, now: Now, *, registers: bool) -> None:
        assert not self._in_flight, "one request at a time"
        self._in_flight = True
        then = partial(self._answered, self._link.controller_id, now.mono_us)
        timeout_ms = max(1, self._session_us // 2000)
        if registers:
            self._link.ask(self._registering(), then, now, timeout_ms=timeout_ms)
            return
        self._reported_full = self._is_disk_full()
        self._reported_version = self._metadata.image.version
        second_node_id, second_at = self._broker_addresses.refused_here(now)
        beat = BrokerHeartbeatRequest(
            cluster_id=self._directory().cluster_id,
            node_id=self._config.node_id,
            broker_epoch=self._epoch,
            metadata_version=self._reported_version,
            wants_to_stop=self._stop_us is not None,
            is_disk_full=self._reported_full,
            second_node_id=second_node_id,
            second_at=second_at,
            faulted_count=self._faulted(),
        )
        self._link.ask(beat, then, now, timeout_ms=timeout_ms)

    def _registering(self) -> RegisterBrokerRequest:
        config, directory = self._config, self._directory()
        return RegisterBrokerRequest(
            cluster_id=directory.cluster_id,
            node_id=config.node_id,
            incarnation=directory.incarnation,
            directory_id=directory.directory_id,
            clean_incarnation=directory.clean_incarnation,
            host=config.advertised_host,
            port=config.advertised_port,
            rack=config.rack,
            listeners=[RegisteredListener(*one) for one in config.endpoints],
            wants_vote=wants_vote(config),
            takes_partitions=ROLE_BROKER in config.roles,
            feature_level_min=FEATURE_LEVEL_MIN,
            feature_level_max=config.feature_level_max,
        )

    def _answered(
        self, asked: int, sent_us: int, answer: object, error: BaseException | None, now: Now
    ) -> None:
        assert self._in_flight
        self._in_flight = False
        if error is not None:
            self._next_us = now.mono_us + BROKER_RETRY_MS * 1000
            if isinstance(error, DuplicateNodeId):
                self._place.refused(self._session_us, now.mono_us)
            self._log_refusal(error)
            return
        self._logged = ""
        if asked not in (-1, self._config.node_id):
            self.controller_contact_us = {asked: now.mono_us}
        assert isinstance(answer, BrokerHeartbeatResponse | RegisterBrokerResponse)
        if answer.session_ms:
            self._session_us = answer.session_ms * 1000
        self._next_us = sent_us + self._session_us // BROKER_HEARTBEATS_PER_SESSION
        if isinstance(answer, BrokerHeartbeatResponse):
            if answer.second_at:
                node_id, at = self._config.node_id, str(self._config.endpoint)
                self._broker_addresses.second_seen(node_id, answer.second_at, at, now)
            # This session begins when the heartbeat is sent, the controller's when it arrives: the
            # leader stops first.
            begin_us = sent_us - answer.confirmed_ms * 1000
            if answer.metadata_version >= 0 and self._versions is None:
                self._versions = (answer.metadata_version, begin_us)
            if answer.is_caught_up:
                self._lease_us = max(self._lease_us, begin_us + self._session_us)
            self.may_stop = self._stop_us is not None and answer.may_stop
        if self._epoch < 0 or self._is_fenced or self._stop_us is not None:
            # What it waits for comes with the metadata, in a moment.
            self._next_us = min(self._next_us, now.mono_us + BROKER_RETRY_MS * 1000)

    def _log_refusal(self, error: BaseException) -> None:
        text = str(error)
        if isinstance(error, _OFTEN) or text == self._logged:
            return
        self._logged = text
        level = "warning" if isinstance(error, QuiverlogError) else "error"
        self._outbox.log(level, "the controller does not take this broker", why=text)

    # --- leaving -------------------------------------------------------------------------------
    def leave(self, now: Now) -> bool:
        """Ask to stop. False: this broker is alone, does not serve yet, or has asked before."""
        others = [
            one
            for one in self._metadata.image.live_brokers()
            if one.node_id != self._config.node_id
        ]
        if not others or not self._serves or self._epoch < 0 or self._stop_us is not None:
            return False
        self._give_up_us = now.mono_us + self._session_us
        self._stop_us = now.mono_us + BROKER_STOP_MS_MAX * 1000
        self._next_us = now.mono_us
        self._outbox.log("info", "handing over", others=len(others))
        return True

    @property
    def asks_to_stop(self) -> bool:
        """True while the controller is asked to elect others: it may have done so already."""
        return self._stop_us is not None

    def has_left(self, now: Now) -> bool:
        """Return True once, when the broker may stop or has waited long enough."""
        if self._stop_us is None:
            return False
        is_cut_off = not self._link.leads and now.mono_us >= max(self._lease_us, self._give_up_us)
        if not (self.may_stop or is_cut_off or now.mono_us >= self._stop_us):
            return False
        if not self.may_stop:
            self._outbox.log("warning", "stopping without having handed over")
        assert self._serves, "only a serving broker leaves"
        self._stop_us, self._next_us, self.may_stop = None, None, False
        return True


class Registered:
    """Registrations in the metadata, for leaderships (`Brokers`) and fetches of followers."""

    __slots__ = ("_incarnation", "_metadata", "_node_id")

    def __init__(
        self, node_id: int, metadata: MetadataView, incarnation: Callable[[], bytes]
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._incarnation = incarnation

    def fit_epoch(self, broker_id: int) -> int | None:
        return fit_epoch(self._metadata.image, broker_id)

    def check_life(self, broker_id: int, broker_epoch: int) -> None:
        """Check the broker epoch of a request, as far as the metadata here have it.

        Raises:
            StaleBrokerEpoch: the metadata here have no such registration yet.
        """
        broker = self._metadata.image.brokers.get(broker_id)
        # An epoch that was never assigned would count as a later start, and the broker itself would
        # be refused as long as this one leads. An unregistered broker holds no partition.
        if broker is not None and broker.broker_epoch < broker_epoch:
            raise StaleBrokerEpoch(
                f"a registration of broker {broker_id} under {broker_epoch} is not known here yet."
            )

    def own_epoch(self) -> int:
        """The broker epoch of this start; negative while it is not registered."""
        broker = self._metadata.image.brokers.get(self._node_id)
        if broker is None or broker.incarnation != self._incarnation():
            return -1
        return broker.broker_epoch
