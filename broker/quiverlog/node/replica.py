"""A partition on this node: its log, its rules and those who wait for it, side by side.

Owns the way from validated batches to appended rows, and the queue of acknowledgements that wait
for the disk. Invariant: an acknowledgement leaves `acks` only when the flushed offset has reached
its own; a repetition's offset may be lower than its neighbours', which only makes it wait longer.

A failed write or fsync makes the replica `fault`y: the kernel may have dropped the pages that the
failed fsync stood for, so nothing may be acknowledged on top of them until a restart has recovered
the log from what the disk really holds.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quiverlog.batch.header import BatchHeader
from quiverlog.core.controller.configs import TopicConfig
from quiverlog.core.controller.image import TopicImage
from quiverlog.core.partition.partition import PartitionState
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import DiskFull, QuiverlogError, StorageFault
from quiverlog.node.metrics import TopicCounters
from quiverlog.node.purgatory import Waiter
from quiverlog.storage.log import Log, LogConfig
from quiverlog.types import Now, TopicPartition
from quiverlog.wire import messages as m

if TYPE_CHECKING:
    from quiverlog.node.produce import ProduceWaiter

__all__ = ["Replica", "log_config"]


def log_config(config: TopicConfig) -> LogConfig:
    """The part of a topic's configuration that its logs need."""
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
    )


class Replica:
    """See the module docstring. `waiters`: long polls that look here, with their entry's index."""

    __slots__ = (
        "acks",
        "admitted",
        "admitted_bytes",
        "admitted_rows",
        "corrupt",
        "counters",
        "deleted",
        "fault",
        "log",
        "name",
        "producers",
        "state",
        "sync_in_flight",
        "sync_queued",
        "topic",
        "waiters",
    )

    def __init__(
        self,
        topic: TopicImage,
        name: TopicPartition,
        log: Log,
        producers: ProducerStates,
        leader_epoch: int,
        counters: TopicCounters,
    ) -> None:
        self.topic = topic
        self.name = name
        self.log = log
        self.producers = producers
        self.counters = counters
        self.state = PartitionState(
            name,
            leader_epoch=leader_epoch,
            durability=topic.config.durability,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
        )
        self.waiters: dict[Waiter, int] = {}
        self.acks: deque[tuple[int, ProduceWaiter, m.ProducePartitionResult]] = deque()
        self.admitted: list[tuple[BatchHeader, memoryview]] = []
        self.admitted_rows = 0
        self.admitted_bytes = 0
        self.sync_in_flight = False
        self.sync_queued = False
        self.deleted = False
        # Bad bytes were found (and logged once); see `Broker.corrupt_read`.
        self.corrupt = False
        self.fault = ""

    @property
    def dirty(self) -> bool:
        """Are there rows that the disk may not have?"""
        return self.state.flushed_offset < self.state.log_end_offset

    def admit(self, batches: list[tuple[BatchHeader, memoryview]], now: Now) -> int:
        """Take validated, checked batches into the next `append`. Returns their base offset to be.

        The views must stay valid until then.
        """
        base_offset = offset = self.state.log_end_offset + self.admitted_rows
        for header, view in batches:
            self.producers.stage(header, offset, now.wall_us)
            offset += header.row_count
            self.admitted_bytes += len(view)
        self.admitted_rows = offset - self.state.log_end_offset
        self.admitted.extend(batches)
        return base_offset

    def append(self, now: Now) -> bool:
        """Append what was admitted, together. True when readers may see more.

        Raises:
            DiskFull: nothing was stored.
            StorageFault: the disk failed; the caller must declare the fault.
        """
        batches, self.admitted = self.admitted, []
        rows, self.admitted_rows = self.admitted_rows, 0
        byte_count, self.admitted_bytes = self.admitted_bytes, 0
        state = self.state
        try:
            base_offset = self.log.append(batches, state.leader_epoch, now)
        except (OSError, QuiverlogError) as error:
            self.producers.drop_staged()
            if isinstance(error, DiskFull):
                raise
            raise StorageFault(f"{self.name}: append failed: {error}.") from error
        assert base_offset == state.log_end_offset
        self.producers.commit_staged()
        counters = self.counters
        counters.bytes_in += byte_count
        counters.rows_in += rows
        counters.batches_in += len(batches)
        return state.appended(base_offset + rows)

    def check_fault(self) -> None:
        """Raises StorageFault when an earlier write or fsync failed."""
        if self.fault:
            raise StorageFault(f"{self.name} takes no writes: {self.fault}.")
