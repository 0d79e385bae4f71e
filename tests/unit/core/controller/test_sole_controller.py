"""A broker that decides alone and restarts uncleanly may lack rows that other brokers have."""

from __future__ import annotations

from quiverlog.core.controller.elections import restarted_alone
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    NO_LEADER,
    BrokerRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from quiverlog.core.controller.topic_image import PartitionImage

TOPIC = b"t" * 16


def _restarted(
    replicas: tuple[int, ...],
    in_sync: tuple[int, ...],
    leader_id: int,
    *,
    eligible: tuple[int, ...] = (),
    fenced: tuple[int, ...] = (),
) -> PartitionImage:
    """The partition when broker 0 has decided what follows from its restart."""
    image = Image({})
    setup: list[Record] = [
        BrokerRecord(n, b"life", "host", 1, broker_epoch=1, fenced=n in fenced) for n in range(3)
    ]
    setup.append(TopicRecord(TOPIC, "t", 0, 1))
    setup.append(
        PartitionRecord(
            TOPIC, 0, replicas, in_sync, leader_id,
            leader_epoch=4, eligible_leader_replicas=eligible,
        )
    )  # fmt: skip
    image.replay_entry(setup, version=1)
    image.replay_entry(restarted_alone(image, 0), version=2)
    return image.topics_by_id[TOPIC].partitions[0]


def test_a_broker_with_all_rows_leads_what_it_led() -> None:
    partition = _restarted((0, 1, 2), (0, 1, 2), 0)
    assert partition.leader_id == 1
    assert partition.leader_epoch == 5
    assert partition.in_sync_replicas == (1, 2)


def test_it_is_in_sync_nowhere_where_others_are() -> None:
    partition = _restarted((1, 0), (1, 0), 1)
    assert (partition.leader_id, partition.leader_epoch) == (1, 4)
    assert partition.in_sync_replicas == (1,)


def test_others_are_waited_for_where_they_are_eligible() -> None:
    partition = _restarted((0, 1), (0,), 0, eligible=(1,), fenced=(1,))
    assert partition.leader_id == NO_LEADER
    assert partition.eligible_leader_replicas == (1,)


def test_what_no_other_broker_has_it_leads_under_a_new_epoch() -> None:
    partition = _restarted((0,), (0,), 0)
    assert (partition.leader_id, partition.leader_epoch) == (0, 5)
    assert partition.in_sync_replicas == (0,)


def test_where_others_hold_copies_the_logs_are_asked() -> None:
    """Others may have flushed rows that it has lost (docs/adr/0037)."""
    partition = _restarted((0, 1, 2), (0,), 0)
    assert partition.awaits_logs
    assert (partition.last_trusted, partition.leader_epoch) == (0, 5)
