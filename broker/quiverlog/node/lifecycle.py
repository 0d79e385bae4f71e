"""Starting, finished flushes, and stopping.

Start: take the data directory, replay the metadata log, remove what no topic owns, recover every
partition's log, then (after an unclean stop) begin a new leader epoch everywhere.

Stop: CLOSING refuses new requests, answers the long polls with what there is and flushes every
log that has unflushed rows; when the last flush is back, logs are closed and the clean mark is
written: the next start trusts the files without a scan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiverlog.core.controller import topics as decide
from quiverlog.core.controller.records import BrokerRecord, Record, decode_entry
from quiverlog.errors import CorruptLog, QuiverlogError
from quiverlog.node import logs
from quiverlog.node.broker import Phase
from quiverlog.node.effects import ShutdownComplete
from quiverlog.node.produce import ProduceWaiter
from quiverlog.storage.data_directory import DataDirectory
from quiverlog.storage.metadata_log import MetadataLog
from quiverlog.types import Now

if TYPE_CHECKING:
    from quiverlog.node.broker import Broker

__all__ = ["finish_if_drained", "shut_down", "start"]


def start(broker: Broker, now: Now) -> None:
    """See the module docstring. Raises what `Node.start` says."""
    config = broker.config
    directory = broker.directory = DataDirectory.open(
        broker.disk,
        config.data_dir,
        node_id=config.node_id,
        cluster_id=config.cluster_id,
        entropy=broker.entropy,
    )
    broker.cluster_id = directory.cluster_id
    try:
        broker.metadata_log = MetadataLog.open(
            broker.disk,
            directory.metadata_path,
            create=not directory.partitions(),
            bytes_min=directory.metadata_bytes,
        )
    except CorruptLog:
        # Nothing was touched: what the clean mark knew must help the next start too.
        directory.close(clean=directory.clean, metadata_bytes=directory.metadata_bytes)
        raise
    for entry in broker.metadata_log.records():
        broker.image.replay_entry(decode_entry(entry))
    broker.producer_id_next = broker.producer_id_end = broker.image.next_producer_id
    records: list[Record] = [
        BrokerRecord(
            config.node_id,
            directory.incarnation,
            config.advertised_host,
            config.advertised_port,
            config.rack,
        )
    ]
    if not directory.clean:
        broker.metrics.unclean_starts += 1
        records.extend(decide.bump_leader_epochs(broker.image, config.node_id))
    # Logged before any log is opened: an epoch that was begun must never be begun again.
    broker.commit(records)
    logs.remove_leftovers(broker)
    for topic in broker.image.topics.values():
        for partition in topic.partitions:
            logs.open_replica(broker, topic, partition.partition, now, clean=directory.clean)
    broker.disk_space(broker.disk.free_bytes(config.data_dir))
    broker.phase = Phase.RUNNING
    broker.log(
        "info",
        "started",
        cluster_id=broker.cluster_id,
        clean=directory.clean,
        topics=len(broker.image.topics),
        partitions=len(broker.replicas),
    )


def shut_down(broker: Broker, now: Now) -> None:
    """Begin to stop; a second call changes nothing."""
    if broker.phase is not Phase.RUNNING:
        return
    broker.phase = Phase.CLOSING
    broker.log("info", "stopping", partitions=len(broker.replicas))
    for waiter in broker.purgatory.all_live():
        if not isinstance(waiter, ProduceWaiter):
            waiter.expire(broker, now)
    for replica in broker.replicas.values():
        if replica.dirty:
            broker.want_sync(replica)


def finish_if_drained(broker: Broker, now: Now) -> None:
    """Close all when the last flush is back."""
    if broker.jobs.running or broker.sync_queue:
        return
    assert not broker.purgatory.live, "every produce has heard of its flush"
    clean = True
    for replica in broker.replicas.values():
        clean = logs.close(broker, replica) and clean
    broker.removal.close()
    broker.metadata_log.close()
    try:
        broker.directory.close(clean=clean, metadata_bytes=broker.metadata_log.size_bytes)
    except (OSError, QuiverlogError) as error:
        # Say, a full disk. Nothing is lost: the next start scans as after a crash.
        clean = False
        broker.log("error", "clean mark not written", why=str(error))
    broker.phase = Phase.CLOSED
    broker.log("info", "stopped", clean=clean)
    broker.effects.append(ShutdownComplete())
