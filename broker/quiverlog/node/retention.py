"""When retention looks at which log.

Owns the round: every partition once per `retention_check_ms`, a slice at a time, so that thousands
of partitions neither stall the loop nor wait longer than the round. What is too old or too much is
the log's to decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quiverlog.errors import QuiverlogError
from quiverlog.node.replica import Replica
from quiverlog.types import Now

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = ["Retention"]

_SLICE: Final = 256
"""Partitions looked at in one go."""


class Retention:
    """See the module docstring."""

    __slots__ = ("_broker", "_period_us", "_todo", "next_us")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._period_us = broker.config.retention_check_ms * 1000
        self._todo: list[Replica] = []
        self.next_us = 0

    def start(self, now: Now) -> None:
        """Look for the first time one period from now."""
        self.next_us = now.mono_us + self._period_us

    def run(self, now: Now) -> None:
        """Look at the next slice if it is time."""
        if now.mono_us < self.next_us:
            return
        if not self._todo:
            self._todo = list(self._broker.replicas.values())
        slices = max(1, -(-len(self._broker.replicas) // _SLICE))
        self.next_us = now.mono_us + self._period_us // slices
        todo, self._todo = self._todo[:_SLICE], self._todo[_SLICE:]
        for replica in todo:
            if not replica.deleted:
                self._look(replica, now)

    def _look(self, replica: Replica, now: Now) -> None:
        broker = self._broker
        log = replica.log
        log_start_offset = log.log_start_offset
        replica.producers.expire(now.wall_us)
        try:
            result = log.apply_retention(now, replica.state.high_watermark)
        except (OSError, QuiverlogError) as error:
            broker.log("error", "retention failed", partition=str(replica.name), why=str(error))
            return
        if log.log_start_offset != log_start_offset:
            broker.moved[replica] = None  # Those who wait below the new start must be told.
        if result.segments_deleted:
            broker.metrics.retention_segments_deleted += result.segments_deleted
            broker.metrics.retention_bytes_deleted += result.bytes_deleted
