"""What the handlers share: the parts of one broker, and the few moves that touch several of them.

Owns: the metadata image and its log, the replicas, the purgatory, the effects being gathered, the
queue of logs that want a flush, and the two states that refuse work (disk full, closing).

Invariants:
- Metadata changes by `commit` alone: logged and fsynced, then replayed, then answered.
- A log has at most one sync in flight, the broker at most `syncs_in_flight_max`; everything that
  is appended meanwhile shares the next one (group commit).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from functools import partial

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import Record, encode_entry
from quiverlog.errors import (
    BrokerShuttingDown,
    CorruptLog,
    DiskFull,
    QuiverlogError,
    StorageFault,
    UnknownPartition,
    UnknownTopicId,
)
from quiverlog.node.config import NodeConfig
from quiverlog.node.effects import Effect, LogLine, Respond
from quiverlog.node.events import RequestReceived
from quiverlog.node.jobs import Jobs, TicketJob
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.purgatory import Purgatory, Waiter
from quiverlog.node.removal import Removal
from quiverlog.node.replica import Replica
from quiverlog.storage.data_directory import DataDirectory
from quiverlog.storage.disk import Disk
from quiverlog.storage.log import SyncTicket
from quiverlog.storage.metadata_log import MetadataLog
from quiverlog.types import Now
from quiverlog.wire import messages as m

__all__ = ["AdmittedProduce", "Broker", "Phase"]

AdmittedProduce = tuple[
    RequestReceived, m.ProduceResponse, list[tuple[Replica, int, m.ProducePartitionResult]]
]
"""A produce between its two steps: per admitted entry the replica, the offset after it, the result
to be."""


class Phase(enum.Enum):
    """NEW -> RUNNING -> CLOSING -> CLOSED, and never back."""

    NEW = "new"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


class Broker:
    """See the module docstring."""

    __slots__ = (
        "admitted_bytes",
        "appending",
        "cluster_id",
        "config",
        "connections",
        "directory",
        "disk",
        "disk_full",
        "effects",
        "entropy",
        "image",
        "jobs",
        "metadata_cache",
        "metadata_log",
        "metadata_waiters",
        "metrics",
        "moved",
        "phase",
        "producer_id_end",
        "producer_id_next",
        "produces",
        "purgatory",
        "removal",
        "replicas",
        "sync_queue",
    )

    directory: DataDirectory
    metadata_log: MetadataLog

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        entropy: Callable[[int], bytes],
        metrics: NodeMetrics,
    ) -> None:
        self.config = config
        self.disk = disk
        self.entropy = entropy
        self.metrics = metrics
        self.phase = Phase.NEW
        self.cluster_id = config.cluster_id
        self.image = Image(config.topic_defaults)
        self.replicas: dict[tuple[bytes, int], Replica] = {}
        self.purgatory = Purgatory()
        self.effects: list[Effect] = []
        self.jobs = Jobs(self.emit)
        # Connections that have said HELLO, with the name they gave.
        self.connections: dict[int, str] = {}
        # Replicas whose readers may see something new since the last `settle`.
        self.moved: dict[Replica, None] = {}
        # Produces that were admitted and not appended, and the replicas that have admitted them.
        self.produces: list[AdmittedProduce] = []
        self.admitted_bytes = 0
        self.appending: list[Replica] = []
        self.metadata_waiters: dict[Waiter, None] = {}
        self.metadata_cache: dict[str, m.TopicMetadata] = {}
        self.removal = Removal(self)
        self.sync_queue: deque[Replica] = deque()
        self.disk_full = False
        self.producer_id_next = 0
        self.producer_id_end = 0

    # --- looking up ----------------------------------------------------------------------------
    def replica(self, topic_id: bytes, partition: int) -> Replica:
        """Raises UnknownTopicId or UnknownPartition."""
        replica = self.replicas.get((topic_id, partition))
        if replica is None:
            topic = self.image.topics_by_id.get(topic_id)
            if topic is None:
                raise UnknownTopicId(f"there is no topic with id {topic_id[:16].hex()}.")
            raise UnknownPartition(
                f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1},"
                f" not {partition}."
            )
        return replica

    def check_writable(self) -> None:
        """Raises BrokerShuttingDown or DiskFull."""
        if self.phase is not Phase.RUNNING:
            raise BrokerShuttingDown
        if self.disk_full:
            raise DiskFull("the broker has too little room to write.")

    def emit(self, effect: Effect) -> None:
        """Ask the shell for something."""
        self.effects.append(effect)

    # --- saying --------------------------------------------------------------------------------
    def respond(self, connection_id: int, correlation_id: int, response: m.Response) -> None:
        """Answer without a body."""
        self.effects.append(Respond(connection_id, response, correlation_id))

    def log(self, level: str, event: str, **fields: object) -> None:
        """A line for the broker's log."""
        self.effects.append(LogLine(level, event, fields))

    def corrupt_read(self, replica: Replica | None, error: CorruptLog) -> None:
        """Stored bytes are bad: the asker gets the error, the operator a counter and one line."""
        self.metrics.corrupt_reads += 1
        if replica is not None and not replica.corrupt:
            replica.corrupt = True
            self.log("error", "corrupt log", partition=str(replica.name), why=error.message)

    # --- metadata ------------------------------------------------------------------------------
    def commit(self, records: list[Record]) -> None:
        """Make a decision of the controller durable, then true.

        Raises:
            DiskFull, StorageFault: not durable, nothing changed.
        """
        try:
            self.metadata_log.append([encode_entry(records)])
        except DiskFull:
            self.disk_filled()
            raise
        except OSError as error:
            raise StorageFault(f"the metadata log cannot be written: {error}.") from error
        self.image.replay_entry(records)
        self.metadata_cache.clear()
        if self.metadata_log.wants_compaction:
            self._compact_metadata()

    def _compact_metadata(self) -> None:
        """Replace the log's history by what it adds up to. Failing does no harm: it is kept."""
        try:
            self.metadata_log.compact([encode_entry(self.image.snapshot_records())])
        except (OSError, QuiverlogError) as error:
            self.log("warning", "metadata log not compacted", why=str(error))

    def metadata_changed(self, now: Now) -> None:
        """Wake those who wait for another metadata version."""
        for waiter in list(self.metadata_waiters):
            if not waiter.done:
                waiter.wake(self, -1, now)

    # --- the disk ------------------------------------------------------------------------------
    def disk_filled(self) -> None:
        """A write found no room: refuse all until a DiskSpace event shows some."""
        if not self.disk_full:
            self.disk_full = True
            self.metrics.disk_full = 1
            self.log("error", "disk full: writes are refused until there is room")

    def disk_space(self, free_bytes: int) -> None:
        """The shell measured: enter or leave the state that refuses writes."""
        reserve = self.config.disk_reserve_bytes
        if free_bytes < reserve:
            if not self.disk_full:
                self.log("error", "disk below its reserve", free=free_bytes, reserve=reserve)
            self.disk_filled()
        elif self.disk_full:
            self.disk_full = False
            self.metrics.disk_full = 0
            self.log("info", "disk has room again: writes are taken", free=free_bytes)

    def declare_fault(self, replica: Replica, why: str) -> None:
        """Writing to the replica's log failed: see `Replica`. Those who wait are told."""
        if not replica.fault:
            replica.fault = why
            self.metrics.partitions_with_faults += 1
            self.log("error", "partition fault", partition=str(replica.name), why=why)
        error = StorageFault(f"{replica.name}: {why}.")
        self.fail_acks(replica, error)

    def fail_acks(self, replica: Replica, error: QuiverlogError) -> None:
        """All acknowledgements that wait for the replica's disk become errors."""
        acks, replica.acks = replica.acks, type(replica.acks)()
        for _, waiter, result in acks:
            waiter.failed(self, result, error)

    def want_sync(self, replica: Replica) -> None:
        """Flush soon. Costs nothing when a flush is on its way to being asked for."""
        if not replica.sync_queued and not replica.fault:
            replica.sync_queued = True
            if not replica.sync_in_flight:
                self.sync_queue.append(replica)

    def start_syncs(self) -> None:
        """Start what the bound allows."""
        while self.sync_queue and self.jobs.running < self.config.syncs_in_flight_max:
            replica = self.sync_queue.popleft()
            replica.sync_queued = False
            if replica.deleted or replica.fault:
                continue
            ticket = replica.log.begin_sync()
            replica.sync_in_flight = True
            job = TicketJob(replica.log.directory, ticket)
            self.jobs.start(job, partial(self._flushed, replica, ticket))

    def _flushed(
        self,
        replica: Replica,
        ticket: SyncTicket,
        _result: object,
        error: BaseException | None,
        now: Now,
    ) -> None:
        """A flush is back: acknowledge what it covers; begin the next if rows came meanwhile."""
        replica.sync_in_flight = False
        if replica.deleted:
            self.removal.flushing.discard(str(replica.name))
            self.removal.add([replica], now)
            return
        if error is None:
            try:
                flushed_offset = replica.log.complete_sync(ticket)
            except (OSError, QuiverlogError) as failure:
                self.declare_fault(replica, f"flush failed: {failure}")
                return
            self.metrics.syncs_completed += 1
            if replica.state.flushed(flushed_offset):
                self.moved[replica] = None
            acks = replica.acks
            while acks and acks[0][0] <= flushed_offset:
                _, waiter, result = acks.popleft()
                waiter.flushed(self, result)
            if replica.sync_queued:
                self.sync_queue.append(replica)
            return
        # The kernel may have thrown away the pages that it could not write: a second fsync that
        # succeeds would prove nothing. Only recovery from the disk tells what is there.
        self.metrics.sync_failures += 1
        self.declare_fault(replica, f"flush failed: {error}")

    def settle(self, now: Now) -> None:
        """After the events of one call, with no produce pending: wake readers, start flushes."""
        if self.moved:
            moved, self.moved = self.moved, {}
            for replica in moved:
                if replica.waiters:
                    for waiter, index in list(replica.waiters.items()):
                        if not waiter.done:
                            waiter.wake(self, index, now)
        if self.sync_queue:
            self.start_syncs()
