"""Replicas here that must not count: reported to the controller until the metadata show it.

They are offline after a failed write or fsync, a log that could not be opened, or damaged rows. A
replica with damaged rows is reported with the leader epoch of the finding, until a later one holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quiverlog.core.controller.alter_partition import find_partition
from quiverlog.errors import QuiverlogError
from quiverlog.limits import ALTER_PARTITION_ENTRIES_MAX, BROKER_RETRY_MS
from quiverlog.node.runtime.jobs import Then
from quiverlog.node.runtime.metadata_view import MetadataView
from quiverlog.node.runtime.outbox import Outbox
from quiverlog.types import NO_EPOCH, Now
from quiverlog.wire.replica_messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    OfflineReplica,
)

__all__ = ["OfflineReplicas"]

Key = tuple[bytes, int]
_RETRY_US: Final = 2_000_000
_ALWAYS_US: Final = -(2**62)


class OfflineReplicas:
    __slots__ = (
        "_ask",
        "_broker_epoch",
        "_in_flight",
        "_keys",
        "_metadata",
        "_node_id",
        "_outbox",
        "_try_us",
        "_unreported"
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        metadata: MetadataView,
        ask: Callable[[AlterPartitionRequest, Then, Now], None],
        outbox: Outbox,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._metadata = metadata
        self._ask = ask
        self._outbox = outbox
        # With the leader epoch that must be over; NO_EPOCH: none.
        self._keys: dict[Key, int] = {}
        self._unreported: set[Key] = set()
        self._in_flight: object = None
        self._try_us = _ALWAYS_US

    @property
    def is_needed(self) -> bool:
        return bool(self._keys)

    @property
    def has_unreported(self) -> bool:
        """True while a report is missing, and the controller could elect such a replica."""
        left = [(key, self._keys[key]) for key in self._unreported]
        return any(self._is_counted_on(*one) and self._is_to_report(*one) for one in left)

    def changed(self, key: Key, *, is_offline: bool, leader_epoch: int = NO_EPOCH) -> None:
        """Note a replica as offline until it is opened again, or as open again.

        Args:
            leader_epoch: the last under which it may have counted, if it is to be replaced.
        """
        self._unreported.discard(key)
        if not is_offline:
            self._keys.pop(key, None)
        elif self._is_counted_on(key, leader_epoch):
            self._keys[key] = leader_epoch
            self._unreported.add(key)
            self._try_us = _ALWAYS_US

    def next_us(self) -> int | None:
        if not self._keys or self._in_flight is not None:
            return None
        return max(self._try_us, 0)

    def _is_counted_on(self, key: Key, leader_epoch: int) -> bool:
        """True if the metadata still count on this replica, and others could hold the partition."""
        try:
            _, partition = find_partition(self._metadata.image, *key)
        except QuiverlogError:
            return False
        assert partition.partition == key[1]
        counted = (*partition.in_sync_replicas, *partition.eligible_leader_replicas)
        is_anew = leader_epoch != NO_EPOCH
        is_known = is_anew and partition.leader_epoch <= leader_epoch
        # While all logs are asked for, its log counts until its disk is noted as replaced.
        is_known = is_known or (is_anew and self._node_id not in partition.replaced_disks)
        # An only replica keeps serving what can be read.
        return len(partition.replicas) > 1 and (is_known or self._node_id in counted)

    def _is_to_report(self, key: Key, leader_epoch: int) -> bool:
        _, partition = find_partition(self._metadata.image, *key)
        assert len(partition.replicas) > 1
        is_alone = partition.in_sync_replicas == (self._node_id,)
        if leader_epoch == NO_EPOCH:
            return True
        # A damaged leader without another in-sync replica keeps leading: none could take over
        # without loss. While logs are awaited, the report of logs covers this replica.
        return not partition.awaits_logs and (partition.leader_id != self._node_id or not is_alone)

    def run(self, now: Now) -> None:
        if self._in_flight is not None or now.mono_us < self._try_us:
            return
        counted = {k: epoch for k, epoch in self._keys.items() if self._is_counted_on(k, epoch)}
        self._keys = counted
        self._unreported &= counted.keys()
        keys = [key for key, epoch in counted.items() if self._is_to_report(key, epoch)]
        if not counted:
            return
        if self._broker_epoch() < 0:
            self._try_us = now.mono_us + BROKER_RETRY_MS * 1000
            return
        self._try_us = now.mono_us + _RETRY_US
        if keys:
            self._report(keys[:ALTER_PARTITION_ENTRIES_MAX], now)

    def _report(self, keys: list[Key], now: Now) -> None:
        assert self._in_flight is None, "one request at a time"
        request = AlterPartitionRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        request.offline = [OfflineReplica(*key, self._keys[key]) for key in keys]
        asked = self._in_flight = object()
        assert self._try_us > now.mono_us, "the controller is not asked without a pause"

        def then(answer: object, error: BaseException | None, _now: Now) -> None:
            if self._in_flight is asked:
                self._in_flight = None
                if isinstance(answer, AlterPartitionResponse) and not answer.error_code:
                    self._unreported.difference_update(keys)
                if error is not None:
                    self._outbox.log(
                        "warning", "controller refused offline replicas", why=str(error)
                    )

        try:
            self._ask(request, then, now)
        except QuiverlogError as error:
            then(None, error, now)
