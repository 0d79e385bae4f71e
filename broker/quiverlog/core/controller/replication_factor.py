"""Changes of a topic's replication factor, by moves of each partition on its own.

The topic's factor, used for new partitions and defaults, follows when the last of them has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quiverlog.core.controller import elections
from quiverlog.core.controller.configs import TAKEN_AT_CREATION, topic_config
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.records import (
    ConfigRecord,
    PartitionChangeRecord,
    Record,
    TopicChangeRecord,
)
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.errors import InvalidConfig

__all__ = ["check_factor", "factors_follow"]


def check_factor(image: Image, topic: TopicImage, factor: int) -> None:
    assert factor >= 1
    if factor == topic.replication_factor:
        return
    topic_config(_configs(image, topic, factor), image.defaults, factor)


def factors_follow(image: Image, changes: Sequence[Record]) -> list[Record]:
    """Return the records that follow when these changes end moves, for the same entry, after
    them."""
    by_topic: dict[bytes, dict[int, int]] = {}
    changed: set[tuple[object, object]] = set()
    for one in changes:
        if isinstance(one, PartitionChangeRecord):
            changed.add((one.topic_id, one.partition))
            if one.replicas and not one.adding_replicas and not one.removing_replicas:
                by_topic.setdefault(one.topic_id, {})[one.partition] = len(one.replicas)
    found: list[Record] = []
    for topic_id, ended in by_topic.items():
        # Partitions that change already have their own records.
        found += [
            record
            for record in _follows(image, image.topics_by_id[topic_id], ended)
            if (topic_id, getattr(record, "partition", None)) not in changed
        ]
    return found


def _follows(image: Image, topic: TopicImage, ended: Mapping[int, int]) -> list[Record]:
    count = next(iter(ended.values()))
    if count == topic.replication_factor:
        return []
    # Until the last has arrived `min.insync.replicas` is that of the old factor: no write is
    # refused while replicas copy.
    for partition in topic.partitions:
        now = 0 if partition.moves else len(partition.replicas)
        if ended.get(partition.partition, now) != count:
            return []
    configs = _configs(image, topic, count)
    try:
        config = topic_config(configs, image.defaults, count)
    except InvalidConfig:
        return []  # Reconfigured meanwhile: only its partitions have fewer.
    taken = {key: value for key, value in configs.items() if topic.configs.get(key) != value}
    return [
        *(ConfigRecord(topic.topic_id, key, value) for key, value in taken.items()),
        TopicChangeRecord(topic.topic_id, count),
        *elections.settings_changed(image, topic, config),
    ]


def _configs(image: Image, topic: TopicImage, factor: int) -> dict[str, str]:
    if factor == 1:
        return dict(topic.configs)
    kept: dict[str, str] = {k: image.defaults[k] for k in TAKEN_AT_CREATION if k in image.defaults}
    return {**kept, **topic.configs}
