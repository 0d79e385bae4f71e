"""The partitions' logs on this node: making, opening, closing and removing them.

Owns which directory belongs to which partition: `data/<topic>-<partition>`. A directory carries
its topic's id, so that what a deleted topic left behind is never taken for the new topic of the
same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quiverlog.core.controller.image import TopicImage
from quiverlog.core.controller.records import PartitionRecord
from quiverlog.core.partition.producers import ProducerStates
from quiverlog.errors import DiskFull, QuiverlogError, StorageFault, UnknownTopicId
from quiverlog.node.replica import Replica, log_config
from quiverlog.storage.log import Log
from quiverlog.types import Now, TopicPartition

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = [
    "close",
    "create_directories",
    "drop_topic",
    "open_replica",
    "remove_directories",
    "remove_leftovers",
]


def create_directories(broker: Broker, topic: str, records: Sequence[PartitionRecord]) -> list[str]:
    """Directories for new partitions; all of them or none.

    Raises:
        DiskFull, StorageFault, ThrottledBroker
    """
    names = [str(TopicPartition(topic, record.partition)) for record in records]
    broker.removal.make_way(names)
    made: list[str] = []
    try:
        for name, record in zip(names, records, strict=True):
            made.append(name)
            broker.directory.create_partition(name, record.topic_id)
        broker.directory.sync_partitions()
    except (OSError, QuiverlogError) as error:
        remove_directories(broker, made)
        if isinstance(error, DiskFull):
            broker.disk_filled()
            raise
        raise StorageFault(f"directories of {topic!r} cannot be made: {error}.") from error
    return made


def remove_directories(broker: Broker, names: Sequence[str]) -> None:
    """Take back what `create_directories` made; what resists is left for the next start."""
    for name in names:
        try:
            broker.directory.remove_partition(name)
        except OSError as error:
            broker.log("warning", "directory not removed", name=name, why=str(error))


def remove_leftovers(broker: Broker) -> None:
    """Clear away the directories that no topic owns: of deleted topics, of creations that failed.

    Rows of a topic that the metadata log never heard of are set aside, not removed: then it is the
    metadata log that is wrong (restored from an old backup, say).
    """
    owners = {
        str(TopicPartition(topic.name, partition.partition)): topic.topic_id
        for topic in broker.image.topics.values()
        for partition in topic.partitions
    }
    gone, aside = broker.directory.remove_leftovers(owners, broker.image.removed_topic_ids)
    for name in gone:
        broker.log("info", "leftover directory removed", name=name)
    for name in aside:
        broker.log("error", "rows of an unknown topic set aside", name=name)


def open_replica(
    broker: Broker, topic: TopicImage, partition: int, now: Now, *, clean: bool
) -> None:
    """Recover a partition's log and lead it under the image's epoch."""
    name = TopicPartition(topic.name, partition)
    producers = ProducerStates(
        now.wall_us,
        producers_max=broker.config.producers_per_partition_max,
        expiry_us=broker.config.producer_expiry_ms * 1000,
    )
    log = Log.open(
        broker.disk,
        broker.directory.partition_path(str(name)),
        config=log_config(topic.config),
        clean=clean,
        now=now,
        producers=producers,
    )
    if log.flushed_offset < log.log_end_offset:
        # Before anybody is served: rows that were visible before a crash must be so at once after.
        ticket = log.begin_sync()
        ticket.run()
        log.complete_sync(ticket)
    leader_epoch = topic.partitions[partition].leader_epoch
    # On becoming leader, not with the first row: a reader that asks where the epoch before ended
    # must be answered even when nothing was written since (KAFKA-10706).
    log.epochs.assign(leader_epoch, log.log_end_offset)
    replica = Replica(topic, name, log, producers, leader_epoch, broker.metrics.topic(topic.name))
    broker.replicas[topic.topic_id, partition] = replica
    broker.metrics.partitions_led += 1
    _report_recovery(broker, replica)


def _report_recovery(broker: Broker, replica: Replica) -> None:
    report = replica.log.recovery
    if report.bytes_scanned:
        broker.metrics.recovery_partitions_scanned += 1
    if report.bytes_truncated:
        broker.metrics.recovery_bytes_truncated += report.bytes_truncated
        broker.log(
            "warning",
            "torn tail cut",
            partition=str(replica.name),
            bytes=report.bytes_truncated,
            log_end_offset=replica.log.log_end_offset,
        )
    if report.damages:
        broker.log(
            "warning",
            "damaged rows found",
            partition=str(replica.name),
            places=len(report.damages),
            first=report.damages[0],
        )


def drop_topic(broker: Broker, topic: TopicImage, now: Now) -> None:
    """The topic is gone from the image: answer those who wait, then let go of its files."""
    gone = UnknownTopicId(f"topic {topic.name!r} was deleted.")
    idle: list[Replica] = []
    for partition in topic.partitions:
        replica = broker.replicas.pop((topic.topic_id, partition.partition))
        replica.deleted = True
        broker.metrics.partitions_led -= 1
        broker.metrics.partitions_with_faults -= bool(replica.fault)
        broker.fail_acks(replica, gone)
        for waiter, index in list(replica.waiters.items()):
            if not waiter.done:
                waiter.wake(broker, index, now)
        broker.moved.pop(replica, None)
        if replica.sync_in_flight:  # in another thread, which knows the files by name
            broker.removal.flushing.add(str(replica.name))
        else:
            idle.append(replica)
    broker.removal.add(idle, now)
    broker.metrics.topics.pop(topic.name, None)


def close(broker: Broker, replica: Replica) -> bool:
    """Close a log for good. False when it cannot be called clean."""
    try:
        replica.log.close(clean=not replica.fault)
    except (OSError, QuiverlogError) as error:
        broker.log("error", "log not closed", partition=str(replica.name), why=str(error))
        return False
    return not replica.fault
