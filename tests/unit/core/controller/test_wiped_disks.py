"""A broker that comes back with another disk has no row: what it counts for from then on."""

from __future__ import annotations

from quiverlog.core.controller.elections import broker_unfenced
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    NO_LEADER,
    BrokerChangeRecord,
    BrokerRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from quiverlog.core.controller.registrations import Registrations
from quiverlog.core.controller.topic_image import PartitionImage

SESSION_US = 2_000_000
TOPIC = b"t" * 16
LATER_US = 10 * SESSION_US


def _cluster(in_sync: tuple[int, ...], eligible: tuple[int, ...] = ()) -> Image:
    """Brokers 0 to 2, all with contact, and one partition."""
    image = Image({})
    setup: list[Record] = [
        BrokerRecord(n, b"first %d" % n, "host", 1, directory_id=f"disk {n}", broker_epoch=1)
        for n in range(3)
    ]
    setup.append(TopicRecord(TOPIC, "t", 0, 1))
    setup.append(
        PartitionRecord(TOPIC, 0, (0, 1, 2), in_sync, in_sync[0], eligible_leader_replicas=eligible)
    )
    image.replay_entry(setup, version=1)
    return image


def _comes_back(image: Image, node_id: int, disk: str) -> PartitionImage:
    """The partition, after a broker registered another start and sent a heartbeat."""
    machine = Registrations(9, b"controller", SESSION_US)
    machine.begin(image, 0, {})
    version = image.version + 1
    newcomer = BrokerRecord(node_id, b"second", "host", 1, directory_id=disk)
    image.replay_entry(machine.register(image, newcomer, b"", LATER_US), version=version)
    unfenced = BrokerChangeRecord(node_id, version, fenced=False)
    image.replay_entry([unfenced, *broker_unfenced(image, node_id)], version=version + 1)
    return image.topics_by_id[TOPIC].partitions[0]


def test_the_last_one_in_sync_leads_nothing_with_another_disk() -> None:
    partition = _comes_back(_cluster((1,)), 1, "another disk")
    assert partition.leader_id == NO_LEADER
    assert partition.eligible_leader_replicas == ()


def test_the_last_one_in_sync_reports_its_log_with_the_disk_that_it_had() -> None:
    """Others may have flushed rows that this one has lost (docs/adr/0037)."""
    partition = _comes_back(_cluster((1,)), 1, "disk 1")
    assert partition.awaits_logs
    assert (partition.last_trusted, partition.replaced_disks) == (1, ())


def test_others_lead_when_a_disk_is_another_one() -> None:
    partition = _comes_back(_cluster((1, 2)), 1, "another disk")
    assert partition.leader_id == 2
    assert partition.in_sync_replicas == (2,)


def test_an_eligible_replica_leads_when_the_disk_of_the_last_leader_is_another_one() -> None:
    partition = _comes_back(_cluster((1,), eligible=(0,)), 1, "another disk")
    assert partition.leader_id == 0
