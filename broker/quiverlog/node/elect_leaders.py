"""ELECT_LEADERS: who leads the partitions of a topic, because somebody asks for it.

Owns the order of the request: all partitions are decided together, and the answer says who leads
when that holds.
"""

from __future__ import annotations

from quiverlog.core.controller.elections import unclean_leader
from quiverlog.core.controller.handovers import preferred_leader
from quiverlog.core.controller.records import Record
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.controller.topics import find_topic
from quiverlog.errors import UnknownPartition
from quiverlog.node.broker import Broker
from quiverlog.node.deciding import check_decides
from quiverlog.node.tasks import Call, Steps
from quiverlog.wire.election_messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionLeader,
)

__all__ = ["handle_elect_leaders"]


def handle_elect_leaders(broker: Broker, call: Call) -> Steps:
    """The whole request or nothing."""
    request = call.request
    assert isinstance(request, ElectLeadersRequest)
    check_decides(broker, call.connection_id)
    return _elect_leaders(broker, call, request)


def _elect_leaders(broker: Broker, call: Call, request: ElectLeadersRequest) -> Steps:
    pending = broker.metadata.pending
    topic = find_topic(pending, request.name)
    numbers = _numbers(topic, request)
    known = broker.membership.log_end_decisions
    some = pending.leaderless if request.unclean else pending.unpreferred
    changes: list[Record] = []
    elected: set[int] = set()
    for number in numbers:
        # Most partitions are led as they should be.
        if (topic.topic_id, number) in some:
            key = (topic.topic_id, number)
            if request.unclean:
                change = unclean_leader(pending, *key, known.of(pending, *key))
            else:
                change = preferred_leader(pending, *key)
            changes += change
            elected.update([number] if change else [])
    assert len(changes) == len(elected)
    if changes:
        yield broker.metadata.proposal(changes, call.now)
        broker.outbox.log(
            "info", "leaders elected", topic=topic.name, count=len(changes), unclean=request.unclean
        )
    topic = find_topic(broker.metadata.image, request.name)
    return ElectLeadersResponse(
        leaders=[
            PartitionLeader(number, one.leader_id, one.leader_epoch, number in elected)
            for number, one in enumerate(topic.partitions)
            if number in numbers
        ]
    )


def _numbers(topic: TopicImage, request: ElectLeadersRequest) -> set[int]:
    """Raises UnknownPartition."""
    numbers = set(range(len(topic.partitions)))
    if request.partitions is None:
        return numbers
    unknown = set(request.partitions) - numbers
    if unknown:
        raise UnknownPartition(f"topic {topic.name!r} has no partition {min(unknown)}.")
    return set(request.partitions)
