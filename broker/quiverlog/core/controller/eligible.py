"""Which replicas have all that was ever readable, although they are out of sync (KIP-966); and
how many logs are enough to know it where none does for sure.

While fewer than the minimum are in sync no more rows become readable, so whoever leaves the in-sync
replicas then, or is the last of them, has all that are: it may lead, should nobody in sync live.
With enough in sync again that is over, and nobody is eligible.

Must not know: who lives, who leads.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiverlog.core.controller.configs import TopicConfig
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage

__all__ = ["eligible_after", "logs_needed", "min_in_sync"]


def min_in_sync(config: TopicConfig, partition: PartitionImage) -> int:
    """With so many in sync rows become readable."""
    found = min(config.min_in_sync_replicas, len(partition.replicas))
    assert found >= 1
    return found


def eligible_after(
    config: TopicConfig, partition: PartitionImage, in_sync: Sequence[int]
) -> tuple[int, ...]:
    """Who is eligible when these are in sync: out of those that are either now."""
    assert set(in_sync) <= set(partition.replicas)
    if len(in_sync) >= min_in_sync(config, partition):
        return ()
    before = (*partition.eligible_leader_replicas, *partition.in_sync_replicas)
    found = tuple(member for member in dict.fromkeys(before) if member not in in_sync)
    assert set(found) <= set(partition.replicas)
    return found


def logs_needed(topic: TopicImage, partition: PartitionImage) -> int:
    """Among so many logs at least one has each row that was acknowledged on enough disks.

    Such a row lies on the disks of as many *replicas* as the minimum said then, and the smallest
    minimum that the topic has had says no more. Of replicas in sync fewer would do if the set had
    never shrunk: who had the row on its disk may have left it since. Who was added and has not been
    in sync has none of these disks.
    """
    count = len(partition.counted)
    least = min(topic.min_in_sync_least, count)
    assert 1 <= least <= count
    return count - least + 1
