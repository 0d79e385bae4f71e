"""The turn of all that copies, in a call of the node: both ends of it.

Owns how its parts are put together. What follows others (replication.py), what keeps count of those
that follow (in_sync_changes.py, copied_starts.py, offline_replicas.py), and what copies again
(repairs.py), are asked as one.
"""

from __future__ import annotations

from typing import Protocol

from quiverlog.node.assignment import Assignment
from quiverlog.node.config import NodeConfig
from quiverlog.node.copied_starts import CopiedStarts
from quiverlog.node.in_sync_changes import InSyncChanges
from quiverlog.node.jobs import Jobs
from quiverlog.node.membership import Membership
from quiverlog.node.metadata import Metadata
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.offline_replicas import OfflineReplicas
from quiverlog.node.outbox import Outbox
from quiverlog.node.registered import Registered
from quiverlog.node.repairs import Repairs
from quiverlog.node.replication import Replication
from quiverlog.node.wakeups import Wakeups
from quiverlog.storage.directory.data_directory import DataDirectory
from quiverlog.storage.disk.disk import Disk
from quiverlog.types import Now

__all__ = ["Copying", "make_copying"]


class Making(Protocol):
    """The parts of a broker that is being made which these need, at once or later."""

    @property
    def assignment(self) -> Assignment: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def directory(self) -> DataDirectory: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def jobs(self) -> Jobs: ...

    @property
    def membership(self) -> Membership: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def metrics(self) -> NodeMetrics: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def registered(self) -> Registered: ...

    @property
    def replication(self) -> Replication: ...

    @property
    def wakeups(self) -> Wakeups: ...


def make_copying(broker: Making) -> Copying:
    """The parts, in a broker that is being made: they find the others when they need them."""
    offline_replicas = OfflineReplicas(
        broker.config.node_id,
        lambda: broker.registered.own_epoch,
        lambda: broker.metadata.image,
        lambda request, then, now: broker.membership.controller.ask(request, then, now),
        broker.outbox,
    )
    return Copying(
        broker.replication,
        InSyncChanges(
            broker.config.node_id,
            lambda: broker.registered.own_epoch,
            broker.registered,
            lambda request, then, now: broker.membership.controller.ask(request, then, now),
            broker.wakeups,
            broker.outbox,
            broker.metrics,
        ),
        CopiedStarts(broker.registered, broker.outbox),
        offline_replicas,
        Repairs(
            broker.config,
            broker.disk,
            broker.jobs,
            broker.outbox,
            broker.metrics,
            lambda: broker.metadata.image,
            lambda: broker.directory,
            lambda: broker.assignment,
            offline_replicas,
            broker.replication.went_offline,
        ),
    )


class Copying:
    """See the module docstring."""

    __slots__ = (
        "_replication", "copied_starts", "in_sync_changes", "offline_replicas", "repairs"
    )  # fmt: skip

    def __init__(
        self,
        replication: Replication,
        in_sync_changes: InSyncChanges,
        copied_starts: CopiedStarts,
        offline_replicas: OfflineReplicas,
        repairs: Repairs,
    ) -> None:
        self._replication = replication
        self.in_sync_changes = in_sync_changes
        self.copied_starts = copied_starts
        self.offline_replicas = offline_replicas
        self.repairs = repairs

    @property
    def is_needed(self) -> bool:
        """True when `run` may find something to do; never where every partition has one replica."""
        return (
            self._replication.is_needed
            or self.in_sync_changes.is_needed
            or self.copied_starts.is_needed
            or self.offline_replicas.is_needed
            or self.repairs.is_needed
        )

    def next_us(self) -> int | None:
        """When `run` is to be called at the latest; None: when something happens."""
        earliest = self._replication.next_us()
        others = (
            self.in_sync_changes, self.copied_starts, self.offline_replicas, self.repairs
        )  # fmt: skip
        for due_us in [part.next_us() for part in others if part.is_needed]:
            if due_us is not None and (earliest is None or due_us < earliest):
                earliest = due_us
        return earliest

    def run(self, now: Now) -> None:
        """Ask leaders for rows, and the controller for changes of who is in sync."""
        try:
            self._replication.run(now)
        finally:
            self.in_sync_changes.run(now)
            if self.copied_starts.is_needed:
                self.copied_starts.run(now)
            if self.offline_replicas.is_needed:
                self.offline_replicas.run(now)
            if self.repairs.is_needed:
                self.repairs.run(now)
