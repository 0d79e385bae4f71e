"""The topic that a producer or a reader was opened for, by name and id.

Only by the controller's answer is a topic gone or replaced: others may have old metadata.
"""

from __future__ import annotations

import math

from quiverlog.client.base.commands import Operation
from quiverlog.client.base.results import TopicInfo
from quiverlog.errors import UnknownTopic, UnknownTopicId

from .routing import Cluster

__all__ = ["topic_with_id"]


def topic_with_id(
    cluster: Cluster,
    name: str,
    topic_id: bytes,
    *,
    fresh: bool = False,
    from_controller: bool = False,
    age_max_s: float = math.inf,
) -> Operation[TopicInfo]:
    """Return the topic, as `Cluster.topic` does. No retry.

    Args:
        from_controller: ask the controller at once, after another broker's UnknownTopicId.

    Raises:
        UnknownTopicId: it was deleted, or another one has its name.
    """
    if not from_controller:
        try:
            topic = yield from cluster.topic(name, fresh=fresh, age_max_s=age_max_s)
        except UnknownTopic as error:
            raise UnknownTopicId(f"Topic {name!r} is gone.", topic=name) from error
        if topic.topic_id == topic_id:
            return topic
    current = (yield from cluster.refresh([name], from_controller=True)).topics.get(name)
    if current is None:
        raise UnknownTopicId(f"Topic {name!r} is gone.", topic=name)
    if current.topic_id != topic_id:
        raise UnknownTopicId(f"Topic {name!r} was deleted and created again.", topic=name)
    return current
