"""Changes of a topic's replication factor, by moves of each partition on its own.

The topic's factor, used for new partitions and defaults, follows when the last of them has arrived.
The controller raises that of internal topics as the cluster grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quiverlog.core.controller import elections
from quiverlog.core.controller.configs import TAKEN_AT_CREATION, topic_config
from quiverlog.core.controller.image import Image
from quiverlog.core.controller.internal_topics import INTERNAL_TOPICS
from quiverlog.core.controller.reassignment import reassign
from quiverlog.core.controller.records import (
    NO_LEADER,
    ConfigRecord,
    PartitionChangeRecord,
    Record,
    TopicChangeRecord,
)
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.controller.topics import internal_factor, takers
from quiverlog.core.placement.moves import (
    Layout,
    PlanBroker,
    PlanPartition,
    even_leaders,
    with_replication_factor,
)
from quiverlog.errors import InvalidConfig

__all__ = ["check_factor", "factors_follow", "internal_few", "raise_internal"]


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
    taken: list[Record] = [
        ConfigRecord(topic.topic_id, key, value)
        for key, value in configs.items()
        if topic.configs.get(key) != value
    ]
    factor = TopicChangeRecord(topic.topic_id, count)
    # Each record is replayed on its own: one replica never has a level of several.
    is_raise = count > topic.replication_factor
    ordered = [factor, *taken] if is_raise else [*taken, factor]
    return [*ordered, *elections.settings_changed(image, topic, config)]


# --- internal topics -----------------------------------------------------------------------------
def internal_few(image: Image) -> list[TopicImage]:
    there = [image.topics[name] for name in INTERNAL_TOPICS if name in image.topics]
    return [one for one in there if one.replication_factor < internal_factor(image)]


def raise_internal(image: Image) -> list[Record]:
    """Return the moves that give them more replicas; none while too few brokers are live, and none
    of a topic that moves. Raises PolicyViolation: a broker is full."""
    live, factor = {one.node_id for one in takers(image)}, internal_factor(image)
    if len(live) < factor:
        return []
    brokers = [
        PlanBroker(one.node_id, one.rack, one.host, takes=one.node_id in live)
        for one in image.brokers.values()
    ]
    changes: list[Record] = []
    for topic in internal_few(image):
        if any(one.moves for one in topic.partitions):
            continue
        # Those with more, by request, keep them.
        few = [one for one in topic.partitions if len(one.replicas) < factor]
        assert few, "the factor of a topic is that of its partitions, or of fewer"
        plan = [PlanPartition(topic.name, one.partition, one.replicas) for one in few]
        raised = with_replication_factor(brokers, plan, topic.name, factor)
        after = {one.partition: one.after for one in raised}
        # The first broker of a cluster would go on to lead all of them.
        layout = Layout(brokers, [one._replace(replicas=after[one.partition]) for one in plan])
        even_leaders(layout)
        for one, target in zip(few, layout.replicas, strict=True):
            assert len(target) == factor
            assert live.union(one.replicas).issuperset(target), "only live brokers are given more"
            if one.leader_id != NO_LEADER:
                changes += reassign(image, topic, one, target, changes_count=True)
    return changes


# --- parts ---------------------------------------------------------------------------------------
def _configs(image: Image, topic: TopicImage, factor: int) -> dict[str, str]:
    if topic.name in INTERNAL_TOPICS:
        return INTERNAL_TOPICS[topic.name].configs(factor)
    if factor == 1:
        return dict(topic.configs)
    kept: dict[str, str] = {k: image.defaults[k] for k in TAKEN_AT_CREATION if k in image.defaults}
    return {**kept, **topic.configs}
