"""Which requests the broker accepts.

Reads go on when nothing can be written; a broker that stops refuses the requests of clients.
"""

from __future__ import annotations

import enum
from typing import Final

from quiverlog.errors import BrokerShuttingDown, DiskFull, StorageFault
from quiverlog.node.runtime.events import Load
from quiverlog.node.runtime.metrics import NodeMetrics
from quiverlog.node.runtime.outbox import Outbox

__all__ = ["Admission", "Phase"]


class Phase(enum.Enum):
    """NEW -> STARTING -> RUNNING -> CLOSING -> CLOSED, and never back.

    JOINING comes first where other brokers have the metadata. A stop may interrupt the start.
    """

    NEW = "new"
    JOINING = "joining"
    STARTING = "starting"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


_AFTER: Final = {
    Phase.NEW: (Phase.JOINING, Phase.STARTING),
    Phase.JOINING: (Phase.STARTING, Phase.CLOSING),
    Phase.STARTING: (Phase.RUNNING, Phase.CLOSING),
    Phase.RUNNING: (Phase.CLOSING,),
    Phase.CLOSING: (Phase.CLOSED,),
    Phase.CLOSED: (),
}

_DOES: Final = {
    Phase.NEW: "starts",
    Phase.JOINING: "starts, and waits for the metadata of the cluster",
    Phase.STARTING: "starts: its partitions are being opened",
    Phase.CLOSING: "stops",
    Phase.CLOSED: "has stopped",
}
"""Why a phase accepts no requests of clients."""


class Admission:
    __slots__ = (
        "_lost",
        "_metrics",
        "_outbox",
        "_reserve_bytes",
        "disk_full",
        "load",
        "phase",
        "room_bytes",
    )

    def __init__(self, outbox: Outbox, metrics: NodeMetrics, *, reserve_bytes: int) -> None:
        self._outbox = outbox
        self._metrics = metrics
        self._reserve_bytes = reserve_bytes
        self.phase = Phase.NEW
        self.disk_full = False
        # Left until writes are refused; -1: not measured yet.
        self.room_bytes = -1
        self.load = Load()
        self._lost = False

    def enter(self, phase: Phase) -> None:
        assert phase in _AFTER[self.phase], f"{phase} cannot follow {self.phase}"
        self.phase = phase

    def check_writable(self) -> None:
        """Raises BrokerShuttingDown, DiskFull or StorageFault."""
        self.check_running()
        self.check_room()

    def check_running(self) -> None:
        if self.phase is not Phase.RUNNING:
            raise BrokerShuttingDown(f"the broker {_DOES[self.phase]}.")

    def check_room(self) -> None:
        """Check for a request accepted before the stop. Raises DiskFull or StorageFault."""
        if self._lost:
            raise StorageFault("the broker's data directory was replaced, or taken by another one.")
        if self.disk_full:
            raise DiskFull("the broker has too little room to write.")

    def disk_filled(self) -> None:
        if not self.disk_full:
            self.disk_full = True
            self._metrics.disk_full = 1
            self._outbox.log("error", "disk full: writes are refused until there is room")

    def directory_lost(self) -> None:
        if not self._lost:
            self._lost = True
            self._outbox.log("error", "data directory lost: it was replaced, or taken")

    def directory_held(self) -> None:
        if self._lost:
            self._lost = False
            self._outbox.log("warning", "data directory is back")

    def measured(self, load: Load) -> None:
        self.load = load

    def disk_space(self, free_bytes: int) -> None:
        assert self._metrics.disk_full == int(self.disk_full), "the gauge has the state"
        self.room_bytes = max(0, free_bytes - self._reserve_bytes)
        if free_bytes < self._reserve_bytes:
            if not self.disk_full:
                self._outbox.log(
                    "error", "disk below its reserve", free=free_bytes, reserve=self._reserve_bytes
                )
            self.disk_filled()
        elif self.disk_full:
            self.disk_full = False
            self._metrics.disk_full = 0
            self._outbox.log("info", "disk has room again: writes are taken", free=free_bytes)
