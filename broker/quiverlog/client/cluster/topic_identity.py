"""The topic that a producer or a reader was opened for, by its name and its id.

Owns when a name counts as another topic's: a broker that hears of topics late may still name the
one that had the name before, so the broker that decides is asked first.

Must not know: what is done with the topic.
"""

from __future__ import annotations

import math

from quiverlog.client.base.commands import Operation
from quiverlog.client.base.results import TopicInfo
from quiverlog.errors import UnknownTopic, UnknownTopicId

from .routing import Cluster

__all__ = ["meant_topic"]


def meant_topic(
    cluster: Cluster,
    name: str,
    topic_id: bytes,
    *,
    fresh: bool = False,
    decided: bool = False,
    age_max_s: float = math.inf,
) -> Operation[TopicInfo]:
    """The topic, from the cache (unless that is older) or asked for. No retry.

    Args:
        decided: ask the broker that decides at once: another one has said that it knows no such id.

    Raises:
        UnknownTopicId: it is gone, or another one has its name.
    """
    if not decided:
        try:
            topic = yield from cluster.topic(name, fresh=fresh, age_max_s=age_max_s)
        except UnknownTopic as error:
            raise UnknownTopicId(f"Topic {name!r} is gone.", topic=name) from error
        if topic.topic_id == topic_id:
            return topic
    told = (yield from cluster.refresh([name], decided=True)).topics.get(name)
    if told is None:
        raise UnknownTopicId(f"Topic {name!r} is gone.", topic=name)
    if told.topic_id != topic_id:
        raise UnknownTopicId(f"Topic {name!r} was deleted and created again.", topic=name)
    return told
