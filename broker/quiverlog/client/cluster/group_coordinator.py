"""One question for the coordinator of a group: the leader of partition `crc32c(group) % partitions`
of `__groups`.

Not here: when it is asked again.
"""

from __future__ import annotations

from typing import TypeVar

from quiverlog.batch.checksum import crc32c
from quiverlog.client.base.commands import Call, Operation
from quiverlog.errors import QuiverlogError, UnknownTopic
from quiverlog.types import GROUPS_TOPIC, TopicPartition
from quiverlog.wire import messages as m

from .metadata import check
from .routing import Cluster, answers_of_leaders

__all__ = ["ask_once"]

T = TypeVar("T", bound=m.Response)


def ask_once(
    cluster: Cluster,
    group: str,
    request: m.Request,
    kind: type[T],
    *,
    makes: bool = True,
    held_s: float = 0.0,
    channel: str = "",
) -> Operation[T]:
    """Ask, without a retry.

    Args:
        makes: where there is no `__groups`, ask the controller, which makes it; else raises
            UnknownTopic.
        held_s: for which the answer may be held back.
        channel: see `Call`.
    """
    try:
        topic = yield from cluster.topic(GROUPS_TOPIC)
    except UnknownTopic:
        if not makes:
            raise
        reply = yield from cluster.call_controller(request)
        # Made meanwhile: the next try looks for it.
        cluster.invalidate_topics()
        assert isinstance(reply.response, kind)
        return reply.response
    place = TopicPartition(GROUPS_TOPIC, crc32c(group.encode()) % len(topic.partitions))
    address = cluster.leader_address(topic, place.partition)
    timeout_s = cluster.settings.request_timeout_s + held_s
    call = Call(address, request, timeout_s, channel=channel)
    (answer,) = yield from answers_of_leaders(cluster, [(call, [place])], held_s)
    if isinstance(answer, QuiverlogError):
        raise answer
    check(answer.response)
    assert isinstance(answer.response, kind)
    return answer.response
