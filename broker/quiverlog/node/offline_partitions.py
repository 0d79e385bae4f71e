"""Partitions of this broker that could not be opened: why, and when each is tried again.

Owns these tables, what is logged of them, and their number.

Must not know: how a partition is opened.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from quiverlog.core.controller.image import Image
from quiverlog.errors import QuiverlogError
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.offline import Key, Offline, Opening, may_be_made, offline_reason
from quiverlog.node.outbox import Outbox
from quiverlog.types import Now

__all__ = ["OfflinePartitions"]

_RETRY_US: Final = 5_000_000


class OfflinePartitions:
    """See the module docstring. `by_key` is for looking only."""

    __slots__ = ("_metrics", "_node_id", "_outbox", "_retry", "by_key")

    def __init__(self, node_id: int, outbox: Outbox, metrics: NodeMetrics) -> None:
        self._node_id = node_id
        self._outbox = outbox
        self._metrics = metrics
        self.by_key: dict[Key, Offline] = {}
        # When they are opened again, in this order.
        self._retry: OrderedDict[Key, int] = OrderedDict()

    def next_us(self) -> int | None:
        """When the next one is tried again; None: none is."""
        return next(iter(self._retry.values()), None)

    def failed(self, key: Key, opening: Opening, error: BaseException, now: Now) -> None:
        """Take in that a partition cannot be opened: say why once, and try again if it may help."""
        name = opening.name
        reason, passing = offline_reason(name, error)
        # What cannot be made holds nothing; what is lost may be out of sync one day.
        lost = isinstance(error, FileNotFoundError)
        passing = passing or opening.unmade or lost
        if not isinstance(error, OSError | QuiverlogError):
            self._outbox.internal_error("opening a log", error)
        if key not in self.by_key:
            self._outbox.log(
                "error", "partition offline", partition=str(name), why=reason.message, retry=passing
            )
        self.by_key[key] = Offline(reason, opening, lost)
        self._metrics.partitions_offline = len(self.by_key)
        if passing:
            self._retry[key] = now.mono_us + _RETRY_US

    def forget(self, key: Key) -> Offline | None:
        """Nothing is known against it any more: it is open, or goes. Returns what was."""
        self._retry.pop(key, None)
        found = self.by_key.pop(key, None)
        self._metrics.partitions_offline = len(self.by_key)
        assert len(self._retry) <= len(self.by_key), "only what is offline is tried again"
        return found

    def look_at(self, key: Key, image: Image) -> None:
        """A copy that is lost may be made now, so it is: at once, for it may be about to lead."""
        if key in self._retry and self.by_key[key].lost and may_be_made(image, key, self._node_id):
            self._retry[key] = 0
            self._retry.move_to_end(key, last=False)

    def take_due(self, now: Now, image: Image) -> list[tuple[Key, Opening]]:
        """Those that are to be tried now, and how."""
        due: list[tuple[Key, Opening]] = []
        while self._retry:
            key, due_us = next(iter(self._retry.items()))
            if due_us > now.mono_us:
                break
            del self._retry[key]
            assert key in self.by_key, "only what is offline is tried again"
            _, opening, lost = self.by_key[key]
            unmade = opening.unmade or (lost and may_be_made(image, key, self._node_id))
            due.append((key, Opening(opening.name, opening.clean, unmade=unmade)))
        return due
