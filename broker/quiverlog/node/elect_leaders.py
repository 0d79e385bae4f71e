"""ELECT_LEADERS: who leads the partitions of a topic, because somebody asks for it.

Owns the order of the request: all partitions are decided together, and the answer says who leads
when that holds.
"""

from __future__ import annotations

from functools import partial

from quiverlog.core.controller.elections import unclean_leader
from quiverlog.core.controller.handovers import preferred_leader
from quiverlog.core.controller.records import PartitionChangeRecord, Record
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.controller.topics import find_topic
from quiverlog.errors import UnknownPartition
from quiverlog.node.broker import Broker
from quiverlog.node.deciding import decided
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
    return _elect_leaders(broker, call, request)


def _elect_leaders(broker: Broker, call: Call, request: ElectLeadersRequest) -> Steps:
    changes = yield from decided(broker, call, partial(_decide, broker, request))
    if changes:
        yield broker.metadata.proposal(changes, call.now)
        broker.outbox.log(
            "info",
            "leaders elected",
            topic=request.name,
            count=len(changes),
            unclean=request.unclean,
        )
    topic = find_topic(broker.metadata.image, request.name)
    numbers = _numbers(topic, request)
    elected = {one.partition for one in changes if isinstance(one, PartitionChangeRecord)}
    assert len(elected) == len(changes), "one change of each"
    return ElectLeadersResponse(
        leaders=[
            PartitionLeader(number, one.leader_id, one.leader_epoch, number in elected)
            for number, one in enumerate(topic.partitions)
            if number in numbers
        ]
    )


def _decide(broker: Broker, request: ElectLeadersRequest) -> list[Record]:
    """One change of each partition that gets another leader."""
    pending = broker.metadata.pending
    topic = find_topic(pending, request.name)
    known = broker.membership.log_end_decisions
    some = pending.leaderless if request.unclean else pending.unpreferred
    changes: list[Record] = []
    for number in _numbers(topic, request):
        # Most partitions are led as they should be.
        if (topic.topic_id, number) in some:
            key = (topic.topic_id, number)
            if request.unclean:
                changes += unclean_leader(pending, *key, known.of(pending, *key))
            else:
                changes += preferred_leader(pending, *key, broker.membership.full_disks)
    return changes


def _numbers(topic: TopicImage, request: ElectLeadersRequest) -> set[int]:
    """Raises UnknownPartition."""
    numbers = set(range(len(topic.partitions)))
    if request.partitions is None:
        return numbers
    unknown = set(request.partitions) - numbers
    if unknown:
        raise UnknownPartition(f"topic {topic.name!r} has no partition {min(unknown)}.")
    return set(request.partitions)
