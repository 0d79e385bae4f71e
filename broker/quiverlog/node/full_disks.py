"""Brokers whose disks are full lead no partition that another one in sync, with room, could lead.

Owns when the controller looks for such partitions: at once when it hears of a full disk, and again
for as long as one is full, because brokers come back and elections ask nobody about room. Where
nobody has room the leader stays: it serves readers, and tells producers that its disk is full.

Must not know: how a broker says so (registration.py, registrar.py), what a full disk is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quiverlog.core.controller.handovers import away_from
from quiverlog.core.controller.records import Record
from quiverlog.errors import QuiverlogError
from quiverlog.node.metadata import Metadata
from quiverlog.node.outbox import Outbox
from quiverlog.types import Now

__all__ = ["FullDisks"]

_AGAIN_US: Final = 2_000_000
_NEXT_US: Final = 100_000
_MOVES_MAX: Final = 500
"""Partitions that get another leader in one decision; the next ones follow after a tenth."""


class FullDisks:
    """See the module docstring.

    Args:
        full: the brokers whose disks are full, where this node decides; else nobody.
    """

    __slots__ = ("_due_us", "_full", "_known", "_metadata", "_outbox")

    def __init__(
        self, metadata: Metadata, outbox: Outbox, full: Callable[[], frozenset[int]]
    ) -> None:
        self._metadata = metadata
        self._outbox = outbox
        self._full = full
        self._known: frozenset[int] = frozenset()
        self._due_us = 0

    @property
    def brokers(self) -> frozenset[int]:
        """Those without room for rows."""
        return self._full()

    def next_us(self) -> int | None:
        """When `run` is to be called; 0: at once; None: no disk is full."""
        full = self._full()
        if not full:
            return None
        return self._due_us if full <= self._known else 0

    def run(self, now: Now) -> None:
        """Have others lead, if it is time."""
        full = self._full()
        is_news = not full <= self._known
        self._known = full
        if not full or (now.mono_us < self._due_us and not is_news):
            return
        changes = self._changes(full)
        assert len(changes) <= _MOVES_MAX
        self._due_us = now.mono_us + (_NEXT_US if len(changes) == _MOVES_MAX else _AGAIN_US)
        assert self._due_us > now.mono_us, "the controller looks again after a pause"
        if not changes:
            return
        self._outbox.log(
            "warning", "leaders moved from full disks", brokers=sorted(full), count=len(changes)
        )
        try:
            self._metadata.propose(changes, now, _nobody_waits)
        except QuiverlogError as error:
            self._outbox.log("warning", "leaders not moved", why=str(error))

    def _changes(self, full: frozenset[int]) -> list[Record]:
        image = self._metadata.pending
        changes: list[Record] = []
        for topic in image.topics.values():
            for partition in topic.partitions:
                if partition.leader_id in full:
                    changes += away_from(image, topic.topic_id, partition.partition, full)
                if len(changes) == _MOVES_MAX:
                    return changes
        return changes


def _nobody_waits(_result: object, _error: BaseException | None, _now: Now) -> None:
    """What failed is looked at again as long as the disk is full."""
