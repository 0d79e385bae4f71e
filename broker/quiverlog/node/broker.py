"""The parts of one broker, wired together, and the ways to find a partition.

Each part owns its state (see its module); this class owns none. Handlers get
it and use the parts; parts do not know each other beyond what their constructors take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from quiverlog.core.controller.records import (
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdBlockRecord,
    Record,
    TopicRecord,
    topic_of,
)
from quiverlog.errors import (
    CorruptLog,
    NotLeader,
    QuiverlogError,
    ThrottledBroker,
    UnknownPartition,
    UnknownTopicId,
)
from quiverlog.node.admission import Admission
from quiverlog.node.assignment import Assignment
from quiverlog.node.checking import HeldProduces
from quiverlog.node.clients import Clients
from quiverlog.node.clock import Clock
from quiverlog.node.config import NodeConfig
from quiverlog.node.directory_jobs import CreateDirectoriesJob
from quiverlog.node.effects import Job
from quiverlog.node.flushes import Flushes
from quiverlog.node.jobs import Jobs, Then
from quiverlog.node.metadata import Metadata
from quiverlog.node.metrics import NodeMetrics
from quiverlog.node.outbox import Outbox
from quiverlog.node.producer_ids import ProducerIds
from quiverlog.node.purgatory import Purgatory
from quiverlog.node.removal import Removal
from quiverlog.node.replica import Replica
from quiverlog.node.retention import Retention
from quiverlog.node.staging import Staging
from quiverlog.node.tasks import Tasks
from quiverlog.node.topic_order import TopicOrder
from quiverlog.node.trims import Trims
from quiverlog.node.wakeups import Wakeups
from quiverlog.storage.data_directory import DataDirectory
from quiverlog.storage.disk import Disk
from quiverlog.types import Now, TopicPartition
from quiverlog.wire import messages as m
from quiverlog.wire.registry import APIS

__all__ = ["Broker"]


class Broker:
    """See the module docstring."""

    __slots__ = (
        "admission",
        "assignment",
        "clients",
        "clock",
        "config",
        "directory",
        "disk",
        "entropy",
        "flushes",
        "held_produces",
        "jobs",
        "metadata",
        "metrics",
        "outbox",
        "producer_ids",
        "purgatory",
        "removal",
        "replicas",
        "retention",
        "staging",
        "tasks",
        "topic_order",
        "trims",
        "wakeups",
    )

    directory: DataDirectory

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
        self.clients = clients = Clients()
        self.outbox = outbox = Outbox(metrics)
        self.jobs = jobs = Jobs(outbox)
        self.tasks = Tasks(outbox, self.fail)
        self.topic_order = TopicOrder()
        self.purgatory = purgatory = Purgatory(
            outbox, clients, config.parked_requests_max, config.parked_entries_max
        )
        self.wakeups = wakeups = Wakeups(purgatory)
        self.admission = admission = Admission(
            outbox, metrics, reserve_bytes=config.disk_reserve_bytes
        )
        self.flushes = flushes = Flushes(
            jobs, wakeups, outbox, metrics, in_flight_max=config.flushes_in_flight_max
        )
        self.staging = Staging(flushes, wakeups, purgatory, admission, outbox, metrics)
        self.held_produces = HeldProduces()
        self.removal = removal = Removal(jobs, outbox)
        self.assignment = Assignment(config, disk, jobs, flushes, removal, wakeups, outbox, metrics)
        self.metadata = Metadata(
            jobs,
            wakeups,
            admission,
            outbox,
            topic_defaults=config.topic_defaults,
            make_directories=self._make_directories,
            on_applied=self._applied,
        )
        self.producer_ids = ProducerIds(self.metadata)
        self.trims = Trims(jobs, wakeups, flushes, admission, outbox)
        self.clock = Clock(jobs, outbox)
        self.retention = Retention(
            self.assignment,
            self.trims,
            flushes,
            jobs,
            self.clock,
            outbox,
            metrics,
            period_ms=config.retention_check_ms,
        )
        self.replicas = self.assignment.replicas

    def _make_directories(self, owners: Mapping[str, bytes]) -> Job:
        return CreateDirectoriesJob(self.directory, owners)

    def _applied(self, records: Sequence[Record], made: Set[str], now: Now) -> None:
        """Decisions have become true: bring what is here to what they say."""
        for record in records:
            if isinstance(record, ProducerIdBlockRecord):
                self.producer_ids.block_added(record)
        topic_ids = dict.fromkeys(topic_id for record in records if (topic_id := topic_of(record)))
        if topic_ids:
            self.assignment.reconcile(self.metadata.image, topic_ids, now, made=made)

    def propose(self, records: list[Record], now: Now, then: Then) -> None:
        """`Metadata.propose`, with the directories of the partitions that are to be here.

        Raises:
            ThrottledBroker: the name of one of them is not free yet.
        """
        pending = self.metadata.pending
        names: dict[bytes, str] = {}  # Of topics that these records create.
        directories: dict[str, bytes] = {}
        topic_names: set[str] = set()
        for record in records:
            if isinstance(record, TopicRecord):
                names[record.topic_id] = record.name
            elif isinstance(record, PartitionRecord | PartitionChangeRecord):
                topic = pending.topics_by_id.get(record.topic_id)
                if self.config.node_id not in (record.replicas or ()):
                    continue
                is_new = topic is None or record.partition >= len(topic.partitions)
                if not is_new and topic is not None:
                    if self.config.node_id in topic.partitions[record.partition].replicas:
                        continue  # It is here: a directory that is missing is a loss.
                    self.assignment.check_left((record.topic_id, record.partition))
                name = names[record.topic_id] if topic is None else topic.name
                directories[str(TopicPartition(name, record.partition))] = record.topic_id
                topic_names.add(name)
        self.assignment.check_free(directories, topic_names)
        self.metadata.propose(records, now, then, directories)

    # --- looking up ----------------------------------------------------------------------------
    def replica(self, topic_id: bytes, partition: int) -> Replica:
        """The partition, if it is led here and open.

        Raises:
            UnknownTopicId, UnknownPartition, NotLeader
            CorruptLog, StorageFault, DiskFull: it cannot be opened.
            ThrottledBroker: it is being opened.
        """
        replica = self.replicas.get((topic_id, partition))
        if replica is None:
            raise self._why_not(topic_id, partition)
        return replica

    def _why_not(self, topic_id: bytes, partition: int) -> QuiverlogError:
        topic = self.metadata.image.topics_by_id.get(topic_id)
        if topic is None:
            return UnknownTopicId(f"there is no topic with id {topic_id[:16].hex()}.")
        name = f"{topic.name}-{partition}"
        if not 0 <= partition < len(topic.partitions):
            return UnknownPartition(
                f"topic {topic.name!r} has partitions 0 to {len(topic.partitions) - 1},"
                f" not {partition}."
            )
        offline = self.assignment.offline.get((topic_id, partition))
        if offline is not None:
            return type(offline.error)(offline.error.message)
        leader_id = topic.partitions[partition].leader_id
        if leader_id < 0:
            return NotLeader(f"{name} has no leader now.")
        if leader_id != self.config.node_id:
            return NotLeader(f"{name} is led by broker {leader_id}.")
        return ThrottledBroker(f"{name} is being opened.")

    # --- failing -------------------------------------------------------------------------------
    def fail(self, connection_id: int, request: m.Request, error: QuiverlogError) -> None:
        """The request as a whole becomes an error."""
        response = APIS[request.API].response(error_code=error.code, error_message=error.message)
        self.outbox.respond(connection_id, request.correlation_id, response)

    def corrupt_read(self, replica: Replica | None, error: CorruptLog) -> None:
        """Stored bytes are bad: the asker gets the error, the operator a counter and one line."""
        self.metrics.corrupt_reads += 1
        if replica is not None and not replica.corrupt:
            replica.corrupt = True
            self.outbox.log("error", "corrupt log", partition=str(replica.name), why=error.message)
