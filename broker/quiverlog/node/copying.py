"""The turn of all that copies, in a call of the node: both ends of it.

Owns nothing: what follows others (replication.py) and what keeps count of those that follow
(in_sync_changes.py, copied_starts.py, offline_replicas.py) are asked as one.
"""

from __future__ import annotations

from quiverlog.node.copied_starts import CopiedStarts
from quiverlog.node.in_sync_changes import InSyncChanges
from quiverlog.node.offline_replicas import OfflineReplicas
from quiverlog.node.replication import Replication
from quiverlog.types import Now

__all__ = ["Copying"]


class Copying:
    """See the module docstring."""

    __slots__ = ("_copied_starts", "_in_sync_changes", "_offline_replicas", "_replication")

    def __init__(
        self,
        replication: Replication,
        in_sync_changes: InSyncChanges,
        copied_starts: CopiedStarts,
        offline_replicas: OfflineReplicas,
    ) -> None:
        self._replication = replication
        self._in_sync_changes = in_sync_changes
        self._copied_starts = copied_starts
        self._offline_replicas = offline_replicas

    @property
    def is_needed(self) -> bool:
        """True when `run` may find something to do; never where every partition has one replica."""
        return (
            self._replication.is_needed
            or self._in_sync_changes.is_needed
            or self._copied_starts.is_needed
            or self._offline_replicas.is_needed
        )

    def next_us(self) -> int | None:
        """When `run` is to be called at the latest; None: when something happens."""
        earliest = self._replication.next_us()
        others = (self._in_sync_changes, self._copied_starts, self._offline_replicas)
        for due_us in [part.next_us() for part in others if part.is_needed]:
            if due_us is not None and (earliest is None or due_us < earliest):
                earliest = due_us
        return earliest

    def run(self, now: Now) -> None:
        """Ask leaders for rows, and the controller for changes of who is in sync."""
        try:
            self._replication.run(now)
        finally:
            self._in_sync_changes.run(now)
            if self._copied_starts.is_needed:
                self._copied_starts.run(now)
            if self._offline_replicas.is_needed:
                self._offline_replicas.run(now)
