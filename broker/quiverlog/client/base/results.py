"""The client's results: frozen values, made from wire messages.

Imports Arrow lazily: the command line's admin calls do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from quiverlog.addresses import Address
from quiverlog.types import NO_EPOCH, Compression, Durability
from quiverlog.wire import messages as m

from .arguments import ROWS_SHOWN_MAX, counted, html_table, names

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Address",
    "BrokerDetail",
    "ClusterDetail",
    "ClusterMetadata",
    "ConfigValue",
    "FetchedPartition",
    "OffsetAndEpoch",
    "PartitionDetail",
    "PartitionInfo",
    "Produced",
    "QuorumReplicaDetail",
    "RangeSize",
    "SchemaInfo",
    "TopicDetail",
    "TopicInfo",
]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`leader` is a node id, -1 when there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: bytes
    schema_id: int
    key_columns: tuple[str, ...]
    durability: Durability
    batch_bytes_max: int
    compression: Compression
    partitions: tuple[PartitionInfo, ...]
    is_internal: bool = False

    @property
    def replicas(self) -> int:
        """Replicas of the partition that has the fewest."""
        return min((len(one.replicas) for one in self.partitions), default=0)

    def __repr__(self) -> str:
        key = f"key ({names(self.key_columns)}), " if self.key_columns else ""
        return (
            f"TopicInfo({self.name!r}, {counted(len(self.partitions), 'partition', 'partitions')}, "
            f"replicas {self.replicas}, {key}schema {self.schema_id}, id {self.topic_id.hex()})"
        )

    def _repr_html_(self) -> str:
        return html_table(
            repr(self),
            ("partition", "leader", "leader epoch", "replicas", "in sync"),
            (
                (p.partition, p.leader, p.leader_epoch, p.replicas, p.in_sync_replicas)
                for p in self.partitions[:ROWS_SHOWN_MAX]
            ),
            left_out=max(0, len(self.partitions) - ROWS_SHOWN_MAX),
        )


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A snapshot of the cluster. `metadata_version` grows with every change."""

    cluster_id: str
    controller_id: int
    metadata_version: int
    brokers: Mapping[int, Address]
    racks: Mapping[int, str]
    topics: Mapping[str, TopicInfo]

    def __repr__(self) -> str:
        brokers = names([f"{node_id} at {where}" for node_id, where in self.brokers.items()])
        return (
            f"ClusterMetadata({self.cluster_id!r}, version {self.metadata_version}, "
            f"brokers {brokers}; topics {names(list(self.topics)) or 'none'})"
        )

    def is_led_elsewhere(self, info: PartitionInfo, address: Address) -> bool:
        """Return True if the leader is known, and is not the broker at `address`."""
        led_at = self.brokers.get(info.leader)
        return led_at is not None and led_at != address


@dataclass(frozen=True, slots=True)
class BrokerDetail:
    """One registered broker. A fenced one leads nothing."""

    node_id: int
    broker_epoch: int
    host: str
    port: int
    rack: str
    fenced: bool
    in_shutdown: bool
    leaders: int
    """Partitions that it leads."""
    replicas: int
    """Partitions that it holds."""
    out_of_sync: int = 0
    """Of these, those whose copy here is not in sync; copies that a move adds do not count."""
    needed: int = 0
    """Of these, those that would have fewer in sync than `min.insync.replicas` without it."""
    moving: int = 0
    """Of these, those that are on their way to other brokers."""
    takes_partitions: bool = True
    """False: only a controller, which gets no replicas."""
    metadata_lag: int | None = None
    """Metadata entries that it had not applied at its last heartbeat; None: not reported by the
    controller, or no heartbeat yet."""
    disk_full: bool = False
    """The broker reported a full disk: others lead what they can."""
    decommissioning: bool = False
    """To leave the cluster: it gets no more replicas."""
    second_at: str = ""
    """Where a second process under this node id was just refused; empty: nowhere."""
    faulted: int = 0
    """Partitions there that accept no writes until it restarts: a write or fsync has failed."""


@dataclass(frozen=True, slots=True)
class QuorumReplicaDetail:
    """One replica of the metadata log. None: not known to the broker that was asked."""

    node_id: int
    directory_id: str
    endpoint: str
    is_voter: bool
    last_index: int | None
    """The last entry of the controller's log that is on its disk."""
    lag: int | None
    """Entries that it lacks."""
    silent_s: float | None
    """Seconds since the controller's last contact with it."""


@dataclass(frozen=True, slots=True)
class ClusterDetail:
    """The cluster by one broker's metadata.

    `controller` is a node id, None while none is known. `reported_by` is the node id of the broker
    that answered; only the controller has the others' `lag`.
    """

    cluster_id: str
    reported_by: int
    metadata_version: int
    controller: int | None
    controller_epoch: int
    brokers: tuple[BrokerDetail, ...]
    quorum: tuple[QuorumReplicaDetail, ...]
    topics: int
    partitions: int
    under_replicated: int
    """Partitions with fewer replicas in sync than they have."""
    under_min_in_sync: int
    """Partitions with fewer in sync than `min.insync.replicas`: nothing more becomes readable."""
    offline: int
    """Partitions without a leader."""
    moving: int = 0
    """Partitions on their way to other brokers."""
    is_behind: bool = False
    """The broker has reached no controller for a session: all of it may be old."""
    age_s: float | None = None
    """Seconds since the broker's last contact with the quorum's leader; None: not reported."""
    room_bytes: int | None = None
    """Bytes that may still be written on the disk of the broker that answered; None: not known, as
    in the next three."""
    load: float | None = None
    """Processor cores that it used in the last ten seconds."""
    received_bytes_per_s: int | None = None
    """What its connections received."""
    sent_bytes_per_s: int | None = None

    @property
    def is_current(self) -> bool:
        """True if the controller answered, and a majority of the quorum follows it."""
        return self.reported_by == self.controller and not self.is_behind

    @property
    def voters(self) -> tuple[QuorumReplicaDetail, ...]:
        return tuple(one for one in self.quorum if one.is_voter)


class ConfigValue(NamedTuple):
    """A topic's setting. `source` is `topic` when it was set there, `default` otherwise."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    schema_id: int
    created: datetime
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class PartitionDetail:
    """One partition, from its leader; offsets are -1 while that does not answer or has not opened
    it."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    flushed_offset: int
    size_bytes: int
    segments: int

    @property
    def is_known(self) -> bool:
        """True if the leader answered."""
        return self.log_end_offset >= 0


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """The replicas of a partition; while it moves, the brokers that it adds and removes."""

    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    throttle: int = 0
    """Bound on the bytes a second that a broker copies of it; 0: none of this move."""

    @property
    def target(self) -> tuple[int, ...]:
        """The brokers that hold it after the move."""
        return tuple(n for n in self.replicas if n not in self.removing)

    @property
    def is_over(self) -> bool:
        """True if no replica is being added or removed."""
        return not self.adding and not self.removing


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """The result of `describe_topic`."""

    name: str
    topic_id: bytes
    created: datetime
    key_columns: tuple[str, ...]
    replication_factor: int
    configs: Mapping[str, ConfigValue]
    schemas: tuple[SchemaInfo, ...]
    partitions: tuple[PartitionDetail, ...]
    is_internal: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The newest schema."""
        return self.schemas[-1].schema

    @property
    def rows(self) -> int:
        """Rows that can be read now, in partitions whose leaders answered."""
        return sum(p.high_watermark - p.log_start_offset for p in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Stored bytes, of partitions whose leaders answered."""
        return sum(p.size_bytes for p in self.partitions)

    def sum_shown(self, total: str, *, unknown: str = "unknown") -> str:
        """Return a sum over the partitions, marked where leaders have not answered."""
        known = sum(p.is_known for p in self.partitions)
        if known == len(self.partitions):
            return total
        return f"at least {total}" if known else unknown

    def __repr__(self) -> str:
        from quiverlog.batch.schema_text import format_schema

        rows = self.sum_shown(counted(self.rows, "row", "rows"), unknown="unknown rows")
        return (
            f"TopicDetail({self.name!r}, {rows} in "
            f"{counted(len(self.partitions), 'partition', 'partitions')}, "
            f"{format_schema(self.schema)}; id {self.topic_id.hex()})"
        )

    def _repr_html_(self) -> str:
        return html_table(
            repr(self),
            ("partition", "leader", "first offset", "end", "bytes", "replicas", "in sync"),
            (
                (
                    p.partition,
                    p.leader,
                    p.log_start_offset if p.is_known else "?",
                    p.high_watermark if p.is_known else "?",
                    f"{p.size_bytes:,}" if p.is_known else "?",
                    p.replicas,
                    p.in_sync_replicas,
                )
                for p in self.partitions[:ROWS_SHOWN_MAX]
            ),
            left_out=max(0, len(self.partitions) - ROWS_SHOWN_MAX),
        )


class Produced(NamedTuple):
    """Acknowledged rows of one partition: from `base_offset` on, without a gap, at this
    `durability`."""

    partition: int
    base_offset: int
    rows: int
    durability: Durability
    duplicate: bool = False

    @property
    def next_offset(self) -> int:
        """The offset after the last of these rows."""
        return self.base_offset + self.rows


class OffsetAndEpoch(NamedTuple):
    """An answer of the low-level offset query, valid where `error_code` is 0.

    `offset` is -1 where no row is that young; `leader_epoch` is that of the row before it.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    timestamp_us: int = -1
    error_code: int = 0
    error_message: str = ""


class RangeSize(NamedTuple):
    """The end of a range within a bound of bytes, and the stored bytes in it.

    `first_row_us`: the timestamp of its first row; -1 where there is none, or an older broker
    answers.
    """

    end_offset: int
    byte_count: int
    first_row_us: int = -1


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """A low-level fetch's result for one partition; `body` holds whole stored batches."""

    topic_id: bytes
    partition: int
    body: memoryview
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    error_code: int = 0
    error_message: str = ""
    diverging_epoch: int = NO_EPOCH
    diverging_end_offset: int = -1
    damage_start_offset: int = -1
    damage_end_offset: int = -1
    """With CorruptLog: the next offset with readable rows; -1 when the broker has not found it."""

    def __repr__(self) -> str:
        return (
            f"FetchedPartition({self.topic_id.hex()}-{self.partition}, {len(self.body):,} bytes, "
            f"rows [{self.log_start_offset}, {self.high_watermark}), error {self.error_code})"
        )


def moment(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def topic_info(topic: m.TopicMetadata) -> TopicInfo:
    assert topic.error_code == 0
    partitions = sorted(topic.partitions, key=lambda p: p.partition)
    return TopicInfo(
        name=topic.name,
        topic_id=topic.topic_id,
        schema_id=topic.schema_id,
        key_columns=tuple(topic.key_columns),
        durability=Durability(topic.durability),
        batch_bytes_max=topic.batch_bytes_max,
        compression=Compression(topic.compression),
        partitions=tuple(
            PartitionInfo(
                p.partition,
                p.leader_id,
                p.leader_epoch,
                tuple(p.replicas),
                tuple(p.in_sync_replicas),
            )
            for p in partitions
        ),
        is_internal=topic.is_internal,
    )
