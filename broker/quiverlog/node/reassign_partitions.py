"""REASSIGN_PARTITIONS: which brokers hold the partitions of a topic, because somebody asks for it.

Owns the order of the request: all partitions are decided together, and the answer says who holds
them when that begins to hold. How a move goes on is `core.controller.reassignment`'s.
"""

from __future__ import annotations

from functools import partial

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.reassignment import cancel, reassign
from quiverlog.core.controller.records import Record
from quiverlog.core.controller.topic_image import TopicImage
from quiverlog.core.controller.topics import find_topic
from quiverlog.errors import InvalidRequest, UnknownPartition
from quiverlog.node.broker import Broker
from quiverlog.node.deciding import decided
from quiverlog.node.tasks import Call, Steps
from quiverlog.wire.reassignment_messages import (
    PartitionReplicas,
    PartitionTarget,
    ReassignPartitionsRequest,
    ReassignPartitionsResponse,
)

__all__ = ["handle_reassign_partitions"]


def handle_reassign_partitions(broker: Broker, call: Call) -> Steps:
    """The whole request or nothing."""
    request = call.request
    assert isinstance(request, ReassignPartitionsRequest)
    return _reassign(broker, call, request)


def _reassign(broker: Broker, call: Call, request: ReassignPartitionsRequest) -> Steps:
    named = [one.partition for one in request.partitions]
    if len(set(named)) != len(named):
        raise InvalidRequest("a partition is named twice.")
    changes = yield from decided(broker, call, partial(_decide, broker, request))
    if changes:
        yield broker.metadata.proposal(changes, call.now)
        broker.outbox.log("info", "partitions reassigned", topic=request.name, count=len(changes))
    topic = find_topic(broker.metadata.image, request.name)
    assert all(number < len(topic.partitions) for number in named), "partitions only grow"
    return ReassignPartitionsResponse(
        moves=[
            PartitionReplicas(
                one.partition,
                list(one.replicas),
                list(one.in_sync_replicas),
                [n for n in one.adding_replicas if n not in one.removing_replicas],
                list(one.removing_replicas),
            )
            for one in topic.partitions
            if (one.partition in named if named else one.moves)
        ]
    )


def _decide(broker: Broker, request: ReassignPartitionsRequest) -> list[Record]:
    pending = broker.metadata.pending
    topic = find_topic(pending, request.name)
    changes: list[Record] = []
    for target in request.partitions:
        changes += _decide_one(pending, topic, target)
    assert len(changes) <= len(request.partitions), "one change of each at most"
    return changes


def _decide_one(pending: Image, topic: TopicImage, target: PartitionTarget) -> list[Record]:
    """Raises UnknownPartition, and as `reassign` and `cancel` do."""
    if not 0 <= target.partition < len(topic.partitions):
        raise UnknownPartition(f"topic {topic.name!r} has no partition {target.partition}.")
    partition = topic.partitions[target.partition]
    if not target.replicas:
        return cancel(topic, partition)
    return reassign(pending, topic, partition, target.replicas)
