"""This node among the brokers: controller link, registrations, log ends, voters."""

from __future__ import annotations

from collections.abc import Callable

from quiverlog.node.controller.controller_link import ControllerLink
from quiverlog.node.controller.in_sync_decisions import InSyncDecisions
from quiverlog.node.controller.log_ends import Copies, LogEndDecisions, LogEndReports
from quiverlog.node.controller.registrar import Registrar
from quiverlog.node.controller.registration import Registration
from quiverlog.node.metadata.metadata import Metadata
from quiverlog.node.metadata.quorum import Quorum
from quiverlog.node.metadata.reach import Reach
from quiverlog.node.metadata.voters import VoterChanges
from quiverlog.node.runtime.config import NodeConfig
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.node.runtime.peers import BrokerAddresses, Peers
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.types import Now
from quiverlog.wire.broker_messages import BrokerHeartbeatRequest, RegisterBrokerRequest
from quiverlog.wire.replica_messages import AlterPartitionRequest, ReportLogEndsRequest

__all__ = ["Membership"]


class Membership:
    """Puts the parts together; arguments as in `Registration` and `LogEndReports`."""

    __slots__ = (
        "_is_active", "controller", "log_end_decisions", "log_end_reports", "reach", "registrar",
        "registration", "voter_changes",
    )  # fmt: skip

    def __init__(
        self,
        config: NodeConfig,
        quorum: Quorum,
        metadata: Metadata,
        view: MetadataView,
        peers: Peers,
        outbox: Outbox,
        directory: Callable[[], DataDirectory],
        copies: Copies,
        controller: ControllerLink,
        in_sync_decisions: InSyncDecisions,
        holds_back: Callable[[], bool],
        is_disk_full: Callable[[], bool],
        faulted: Callable[[], int],
        deleted: Callable[[tuple[bytes, int], int, Now], None],
        broker_addresses: BrokerAddresses,
        proves: Callable[[], bool],
    ) -> None:
        self._is_active = False
        self.reach = Reach(config, peers, broker_addresses, directory, proves)
        self.registrar = Registrar(
            config,
            quorum,
            metadata,
            outbox,
            lambda: directory().incarnation,
            # Made below; each answer of a controller replaces this dict.
            lambda: self.registration.controller_contact_us,
            is_disk_full,
            faulted,
            broker_addresses,
            self.reach.check_newcomer,
        )
        self.log_end_decisions = LogEndDecisions(
            quorum, metadata, outbox, self.registrar.has_session
        )
        self.controller = controller
        controller.set_local_handlers(
            {
                AlterPartitionRequest: in_sync_decisions.decide,
                RegisterBrokerRequest: self.registrar.register,
                BrokerHeartbeatRequest: self.registrar.heartbeat,
                ReportLogEndsRequest: self.log_end_decisions.decide,
            }
        )
        self.registration = Registration(
            config,
            self.controller,
            outbox,
            view,
            directory,
            lambda: quorum.decides_alone,
            holds_back,
            is_disk_full,
            faulted,
            broker_addresses,
        )
        self.log_end_reports = LogEndReports(
            config.node_id,
            view,
            copies,
            lambda: self.registration.epoch,
            self.controller.ask,
            deleted,
            outbox,
        )

        self.voter_changes = VoterChanges(config, quorum, metadata, outbox, self.reach)

    @property
    def full_disks(self) -> frozenset[int]:
        return self.registrar.full_disks

    def begin(self, now: Now) -> None:
        self._is_active = True
        self.registration.begin(now)

    def serve(self, now: Now) -> None:
        self._is_active = True
        self.registration.serve(now)

    def next_us(self) -> int | None:
        if not self._is_active:
            return None
        earliest = self.registration.next_us()
        due_us = self.registrar.next_us()
        if due_us is not None and (earliest is None or due_us < earliest):
            earliest = due_us
        due_us = self.voter_changes.next_us()
        if due_us is not None and (earliest is None or due_us < earliest):
            earliest = due_us
        due_us = self.log_end_reports.next_us()
        if due_us is not None and (earliest is None or due_us < earliest):
            earliest = due_us
        return earliest

    def changed(self) -> None:
        self.registration.changed()
        self.voter_changes.changed()

    def stop(self, now: Now) -> None:
        self._is_active = False
        self.registrar.stop(now)

    @property
    def is_active(self) -> bool:
        """True while other brokers get answers."""
        return self._is_active

    def tick(self, now: Now) -> None:
        if not self._is_active:
            return
        self.registrar.tick(now)
        self.registration.tick(now)
        self.voter_changes.tick(now)
        self.log_end_reports.run(now)
