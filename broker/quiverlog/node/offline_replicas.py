"""Replicas here that take no writes: the controller is told, and others hold their partitions.

Owns which these are, and asking for as long as the metadata count on them: a failed write or fsync,
a log that could not be opened, damage below what was flushed. Only where a partition has more than
one replica: with one, the leader goes on serving what can be read.

Must not know: what failed, who leads next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quiverlog.core.controller.alter_partition import find_partition
from quiverlog.core.controller.image import Image
from quiverlog.errors import QuiverlogError
from quiverlog.limits import ALTER_PARTITION_ENTRIES_MAX
from quiverlog.node.jobs import Then
from quiverlog.node.outbox import Outbox
from quiverlog.types import Now
from quiverlog.wire.replica_messages import AlterPartitionRequest, PartitionKey

__all__ = ["OfflineReplicas"]

Key = tuple[bytes, int]
_RETRY_US: Final = 2_000_000
_ALWAYS_US: Final = -(2**62)


class OfflineReplicas:
    """See the module docstring.

    Args:
        node_id: this broker.
        broker_epoch: under which it is registered now; negative: it is not.
        image: what holds now.
        ask: has the controller decide.
    """

    __slots__ = (
        "_ask", "_broker_epoch", "_image", "_in_flight", "_keys", "_node_id", "_outbox", "_try_us"
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        image: Callable[[], Image],
        ask: Callable[[AlterPartitionRequest, Then, Now], None],
        outbox: Outbox,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._image = image
        self._ask = ask
        self._outbox = outbox
        self._keys: dict[Key, None] = {}
        self._in_flight: object = None
        self._try_us = _ALWAYS_US

    @property
    def is_needed(self) -> bool:
        """True while the controller is to be told of a replica."""
        return bool(self._keys)

    def changed(self, key: Key, *, is_offline: bool) -> None:
        """This replica takes no writes until it is opened again; or it is open again."""
        if not is_offline:
            self._keys.pop(key, None)
        elif self._is_counted_on(key):
            self._keys[key] = None
            self._try_us = _ALWAYS_US

    def next_us(self) -> int | None:
        """When `run` is to be called at the latest; None: when something happens."""
        if not self._keys or self._in_flight is not None:
            return None
        return max(self._try_us, 0)

    def _is_counted_on(self, key: Key) -> bool:
        """True when others could hold the partition, and the metadata still count on this one."""
        try:
            _, partition = find_partition(self._image(), *key)
        except QuiverlogError:
            return False
        assert partition.partition == key[1]
        counted = (*partition.in_sync_replicas, *partition.eligible_leader_replicas)
        return len(partition.replicas) > 1 and self._node_id in counted

    def run(self, now: Now) -> None:
        """Tell the controller, if it is time."""
        if self._in_flight is not None or now.mono_us < self._try_us:
            return
        self._keys = {key: None for key in self._keys if self._is_counted_on(key)}
        keys = list(self._keys)[:ALTER_PARTITION_ENTRIES_MAX]
        if not keys:
            return
        assert len(keys) <= len(self._keys)
        self._try_us = now.mono_us + _RETRY_US
        request = AlterPartitionRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        request.offline = [PartitionKey(*key) for key in keys]
        asked = self._in_flight = object()
        assert self._try_us > now.mono_us, "the controller is not asked without a pause"

        def then(_answer: object, error: BaseException | None, _now: Now) -> None:
            if self._in_flight is asked:
                self._in_flight = None
                if error is not None:
                    self._outbox.log("warning", "controller not told", why=str(error))

        try:
            self._ask(request, then, now)
        except QuiverlogError as error:
            then(None, error, now)
