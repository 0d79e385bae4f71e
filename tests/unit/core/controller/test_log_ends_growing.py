"""Which logs count of a partition that is about to get more replicas (adr/0037)."""

from __future__ import annotations

from quiverlog.core.controller.eligible import logs_needed
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.log_ends import LogEnd
from quiverlog.core.controller.records import (
    LEADER_GONE,
    NO_LEADER,
    BrokerRecord,
    PartitionChangeRecord,
)
from tests.unit.core.controller.test_log_ends import EPOCH, TOPIC, cluster, elected, partition


def test_an_added_replica_that_was_never_in_sync_does_not_count() -> None:
    """Two replicas that were to become four: rows were promised to lie on disks of the two."""
    image = cluster((0, 1), min_in_sync=2)
    image.replay_entry([BrokerRecord(n, b"i", broker_epoch=20 + n) for n in (2, 3)])
    grown = PartitionChangeRecord(
        TOPIC, 0, 0, EPOCH + 1, in_sync_replicas=(0,), replicas=(0, 1, 2, 3), adding_replicas=(2, 3)
    )
    image.replay_entry([grown])
    assert partition(image).never_in_sync == (2, 3), "1 may have been in sync before"
    gone = PartitionChangeRecord(TOPIC, 0, LEADER_GONE, EPOCH + 2, in_sync_replicas=())
    image.replay_entry([gone])
    again = Image({})
    again.replay_entry(image.snapshot_records())
    assert partition(again).record(TOPIC) == partition(image).record(TOPIC)
    assert logs_needed(again.topics["t"], partition(again)) == 1
    longer = {2: LogEnd(3, 100), 3: LogEnd(3, 90)}
    assert elected(again, longer, 2, 3) == NO_LEADER, "rows may be there that these lack"
    assert elected(again, {**longer, 1: LogEnd(3, 80)}, 2, 3) == 1


def test_an_added_replica_counts_once_it_is_in_sync() -> None:
    image = cluster((0, 1), min_in_sync=2)
    image.replay_entry([BrokerRecord(2, b"i", broker_epoch=22)])
    led = {"leader_id": 0, "in_sync_replicas": (0, 1)}
    grown = PartitionChangeRecord(
        TOPIC, 0, leader_epoch=EPOCH + 1, replicas=(0, 1, 2), adding_replicas=(2,), **led
    )
    image.replay_entry([grown])
    assert logs_needed(image.topics["t"], partition(image)) == 1
    image.replay_entry([PartitionChangeRecord(TOPIC, 0, in_sync_replicas=(0, 1, 2))])
    image.replay_entry([PartitionChangeRecord(TOPIC, 0, in_sync_replicas=(0, 1))])
    assert partition(image).never_in_sync == ()
    assert logs_needed(image.topics["t"], partition(image)) == 2, "a row may lie on 0 and 2"
