"""A topic and its partitions, as the metadata records add up to them.

Only the image changes them (image.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiverlog.core.controller.configs import TopicConfig
from quiverlog.core.controller.internal_topics import is_internal
from quiverlog.core.controller.records import (
    NO_LEADER,
    PartitionRecord,
    SchemaRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PartitionImage", "TopicImage"]


class PartitionImage:
    """In-sync replicas are neither eligible nor have replaced disks. `partition_epoch` counts
    changes."""

    __slots__ = (
        "adding_replicas",
        "begins_anew",
        "eligible_leader_replicas",
        "in_sync_replicas",
        "last_trusted",
        "leader_epoch",
        "leader_id",
        "move_bytes_per_s",
        "never_in_sync",
        "partition",
        "partition_epoch",
        "removing_replicas",
        "replaced_disks",
        "replicas",
    )

    def __init__(self, record: PartitionRecord) -> None:
        assert record.replicas, "a partition has replicas"
        assert record.leader_epoch >= 0
        self.partition = record.partition
        self.replicas = record.replicas
        self.in_sync_replicas = record.in_sync_replicas
        self.leader_id = record.leader_id
        self.leader_epoch = record.leader_epoch
        self.partition_epoch = record.partition_epoch
        self.eligible_leader_replicas = record.eligible_leader_replicas
        self.adding_replicas = record.adding_replicas
        self.removing_replicas = record.removing_replicas
        self.replaced_disks = record.replaced_disks
        self.last_trusted = record.last_trusted
        self.begins_anew = record.begins_anew
        self.move_bytes_per_s = record.move_bytes_per_s
        self.never_in_sync = record.never_in_sync

    def hold(self, replicas: tuple[int, ...]) -> None:
        """Set the replicas. New ones have not been in sync."""
        assert replicas, "a partition has replicas"
        added = tuple(n for n in replicas if n not in self.replicas)
        self.replicas = replicas
        self.never_in_sync = (*self.never_in_sync, *added)

    def note_out_of_sync(
        self, eligible: tuple[int, ...] | None, replaced: tuple[int, ...] | None
    ) -> None:
        """Set what is known of replicas out of sync (None: as before), without those in sync or
        removed."""
        if eligible is None:
            eligible = self.eligible_leader_replicas
        self.eligible_leader_replicas = self._out_of_sync(eligible)
        self.replaced_disks = self._out_of_sync(
            self.replaced_disks if replaced is None else replaced
        )
        self.never_in_sync = self._out_of_sync(self.never_in_sync)

    def _out_of_sync(self, node_ids: tuple[int, ...]) -> tuple[int, ...]:
        in_sync, replicas = self.in_sync_replicas, self.replicas
        return tuple(n for n in node_ids if n in replicas and n not in in_sync)

    @property
    def counted(self) -> tuple[int, ...]:
        """The replicas on whose disks acknowledged rows may be: all but those added and not in sync
        since."""
        assert not set(self.never_in_sync) & set(self.in_sync_replicas)
        return tuple(n for n in self.replicas if n not in self.never_in_sync)

    @property
    def relied_on(self) -> tuple[int, ...]:
        assert not set(self.eligible_leader_replicas) & set(self.in_sync_replicas)
        return (*self.in_sync_replicas, *self.eligible_leader_replicas)

    @property
    def awaits_logs(self) -> bool:
        """True when no replica is trusted to have all rows: the logs themselves decide the next
        leader."""
        assert not set(self.replaced_disks) & set(self.in_sync_replicas)
        return self.leader_id == NO_LEADER and not self.relied_on

    def record(self, topic_id: bytes) -> PartitionRecord:
        assert self.leader_id in (NO_LEADER, *self.replicas), "one of the replicas leads"
        assert not set(self.eligible_leader_replicas) & set(self.in_sync_replicas)
        return PartitionRecord(
            topic_id,
            self.partition,
            self.replicas,
            self.in_sync_replicas,
            self.leader_id,
            self.leader_epoch,
            self.partition_epoch,
            self.eligible_leader_replicas,
            self.adding_replicas,
            self.removing_replicas,
            self.replaced_disks,
            self.last_trusted,
            self.begins_anew,
            self.move_bytes_per_s,
            self.never_in_sync,
        )

    @property
    def moves(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)


class TopicImage:
    """`config` is derived from `configs` and the broker's defaults.

    `min_in_sync_least`: the smallest minimum under which its rows may have been acknowledged.
    """

    __slots__ = (
        "config",
        "configs",
        "created_us",
        "is_internal",
        "key_columns",
        "min_in_sync_least",
        "name",
        "partitions",
        "replication_factor",
        "schema_records",
        "schemas",
        "topic_id",
    )

    def __init__(self, record: TopicRecord, config: TopicConfig) -> None:
        assert record.topic_id
        assert record.replication_factor >= 1
        self.topic_id = record.topic_id
        self.name = record.name
        self.is_internal = is_internal(record.name)
        self.created_us = record.created_us
        self.replication_factor = record.replication_factor
        self.key_columns = record.key_columns
        self.configs: dict[str, str] = {}
        self.config = config
        self.min_in_sync_least = record.min_in_sync_least
        self.partitions: list[PartitionImage] = []
        self.schema_records: list[SchemaRecord] = []
        self.schemas: dict[int, pa.Schema] = {}

    def record(self) -> TopicRecord:
        assert 1 <= self.min_in_sync_least <= self.replication_factor or not self.partitions
        return TopicRecord(
            self.topic_id,
            self.name,
            self.created_us,
            self.replication_factor,
            self.key_columns,
            self.min_in_sync_least,
        )

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        if self.partitions:
            # Rows that were acknowledged under a smaller minimum lie on as few disks.
            least = min(self.min_in_sync_least, config.min_in_sync_replicas)
            self.min_in_sync_least = least
            assert least >= 1

    def rows_lie_on(self, replica_count: int) -> None:
        """Record that a partition's rows are on no more disks than this, whatever the topic
        configures."""
        assert replica_count >= 1
        self.min_in_sync_least = min(self.min_in_sync_least, replica_count)

    def add_partition(self, record: PartitionRecord) -> PartitionImage:
        assert record.partition == len(self.partitions)
        # Rows may exist from the first partition on, under the present minimum.
        self.min_in_sync_least = self.min_in_sync_least or self.config.min_in_sync_replicas
        self.rows_lie_on(len(record.replicas))
        self.partitions.append(PartitionImage(record))
        assert self.min_in_sync_least >= 1
        return self.partitions[-1]

    def copy(self) -> TopicImage:
        topic = TopicImage(self.record(), self.config)
        topic.configs = dict(self.configs)
        topic.partitions = [PartitionImage(one.record(self.topic_id)) for one in self.partitions]
        topic.schema_records = list(self.schema_records)
        topic.schemas = dict(self.schemas)
        assert len(topic.schemas) == len(topic.schema_records)
        assert not topic.schema_records or topic.schema_id == len(topic.schemas)
        return topic

    @property
    def schema_id(self) -> int:
        return self.schema_records[-1].schema_id

    @property
    def schema(self) -> pa.Schema:
        return self.schemas[self.schema_id]
