"""Replicas out of sync that have all readable rows (KIP-966), and how many logs prove it.

Such a replica may lead if no in-sync replica is alive.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.core.controller.configs import TopicConfig
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage

__all__ = ["eligible_after", "logs_needed", "min_in_sync"]


def min_in_sync(config: TopicConfig, partition: PartitionImage) -> int:
    found = min(config.min_in_sync_replicas, len(partition.replicas))
    assert found >= 1
    return found


def eligible_after(
    config: TopicConfig, partition: PartitionImage, in_sync: Sequence[int]
) -> tuple[int, ...]:
    assert set(in_sync) <= set(partition.replicas)
    if len(in_sync) >= min_in_sync(config, partition):
        return ()
    # With fewer than the minimum in sync, no more rows become readable: a replica that leaves then,
    # or is the last one, has all readable rows.
    before = (*partition.eligible_leader_replicas, *partition.in_sync_replicas)
    found = tuple(member for member in dict.fromkeys(before) if member not in in_sync)
    assert set(found) <= set(partition.replicas)
    return found


def logs_needed(topic: TopicImage, partition: PartitionImage) -> int:
    """Return how many logs surely include one with every row that was acknowledged on enough
    disks."""
    # Such a row is on the disks of as many replicas as the minimum was then. The in-sync set may
    # have shrunk since, so all counted replicas are candidates, not only the last members.
    count = len(partition.counted)
    least = min(topic.min_in_sync_least, count)
    assert 1 <= least <= count
    return count - least + 1
