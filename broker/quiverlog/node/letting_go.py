"""A replica is not here any more: all that knew of it hear of that.

Owns the order. Its files are the business of whoever lets go: they are removed, or set aside.
"""

from __future__ import annotations

from quiverlog.errors import QuiverlogError
from quiverlog.node.flushes import Flushes
from quiverlog.node.in_sync_changes import InSyncChanges
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.replica import Replica
from quiverlog.node.replication import Replication
from quiverlog.node.wakeups import Wakeups

__all__ = ["LettingGo"]


class LettingGo:
    """See the module docstring."""

    __slots__ = ("_flushes", "_in_sync_changes", "_metrics", "_replication", "_wakeups")

    def __init__(
        self,
        replication: Replication,
        flushes: Flushes,
        in_sync_changes: InSyncChanges,
        wakeups: Wakeups,
        metrics: NodeMetrics,
    ) -> None:
        self._replication = replication
        self._flushes = flushes
        self._in_sync_changes = in_sync_changes
        self._wakeups = wakeups
        self._metrics = metrics

    def let_go(self, replica: Replica, error: QuiverlogError) -> None:
        """Nothing begins with its log any more; those who wait for it get `error`, or look anew."""
        assert not replica.deleted, "it goes once"
        replica.deleted = True
        self._replication.leave((replica.topic.topic_id, replica.name.partition))
        self._flushes.forget(replica)
        self._in_sync_changes.forget(replica)
        self._metrics.partitions_with_faults -= replica.fault is not None
        assert self._metrics.partitions_with_faults >= 0
        replica.answers.fail(error)
        self._wakeups.changed(replica)
