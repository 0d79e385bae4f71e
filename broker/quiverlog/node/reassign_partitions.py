"""REASSIGN_PARTITIONS: which brokers hold the partitions of a topic, because somebody asks for it.

Owns the order of the request: all partitions are decided together, and the answer says who holds
them when that begins to hold. How a move goes on is `core.controller.reassignment`'s.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from quiverlog.core.controller.image import Image
from quiverlog.core.controller.reassignment import cancel, reassign
from quiverlog.core.controller.records import Record
from quiverlog.core.controller.replication_factor import check_factor
from quiverlog.core.controller.topic_image import PartitionImage, TopicImage
from quiverlog.core.controller.topics import find_topic
from quiverlog.errors import InvalidRequest, UnknownPartition
from quiverlog.node.broker import Broker
from quiverlog.node.deciding import check_decides, decided
from quiverlog.node.paging import Making, by_name
from quiverlog.node.tasks import Call, Steps
from quiverlog.wire.reassignment_messages import (
    PartitionReplicas,
    PartitionTarget,
    ReassignPartitionsRequest,
    ReassignPartitionsResponse,
    TopicMoves,
)

__all__ = ["handle_reassign_partitions"]

_PARTITIONS_PER_STEP: Final = 64


def handle_reassign_partitions(broker: Broker, call: Call) -> Steps:
    """The whole request or nothing."""
    request = call.request
    assert isinstance(request, ReassignPartitionsRequest)
    if not request.name:
        return _all_moves(broker, call, request)
    return _reassign(broker, call, request)


def _reassign(broker: Broker, call: Call, request: ReassignPartitionsRequest) -> Steps:
    named = [one.partition for one in request.partitions]
    if len(set(named)) != len(named):
        raise InvalidRequest("a partition is named twice.")
    if request.move_bytes_per_s < 0:
        raise InvalidRequest(f"{request.move_bytes_per_s} bytes in a second are no bound.")
    changes = yield from decided(broker, call, partial(_decide, broker, request))
    if changes and not request.validate_only:
        yield broker.metadata.proposal(changes, call.now)
        broker.outbox.log("info", "partitions reassigned", topic=request.name, count=len(changes))
    topic = find_topic(broker.metadata.image, request.name)
    assert all(number < len(topic.partitions) for number in named), "partitions only grow"
    return ReassignPartitionsResponse(
        moves=[
            _held_by(one)
            for one in topic.partitions
            if (one.partition in named if named else one.moves)
        ]
    )


def _held_by(one: PartitionImage) -> PartitionReplicas:
    return PartitionReplicas(
        one.partition,
        list(one.replicas),
        list(one.in_sync_replicas),
        [n for n in one.adding_replicas if n not in one.removing_replicas],
        list(one.removing_replicas),
        one.move_bytes_per_s,
    )


def _all_moves(broker: Broker, call: Call, request: ReassignPartitionsRequest) -> Steps:
    """Of all topics, as the node that decides knows them."""
    if request.partitions:
        raise InvalidRequest("partitions of which topic, is not said.")
    check_decides(broker, call.connection_id)
    topics = broker.metadata.image.topics
    found, next_name = yield from by_name(
        list(topics),
        request.first_name,
        lambda name: _moves_of(topics.get(name), name),
        lambda _name: 0,
    )
    return ReassignPartitionsResponse(
        topics=[one for one in found if one.moves], next_name=next_name
    )


def _moves_of(topic: TopicImage | None, name: str) -> Making[TopicMoves]:
    moves: list[PartitionReplicas] = []
    for number, one in enumerate(topic.partitions if topic is not None else ()):
        if number % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
            yield
        if one.moves:
            moves.append(_held_by(one))
    return TopicMoves(name, moves)


def _decide(broker: Broker, request: ReassignPartitionsRequest) -> list[Record]:
    pending = broker.metadata.pending
    topic = find_topic(pending, request.name)
    changes: list[Record] = []
    for target in request.partitions:
        changes += _decide_one(pending, topic, target, request)
    assert len(changes) <= len(request.partitions), "one change of each at most"
    return changes


def _decide_one(
    pending: Image, topic: TopicImage, target: PartitionTarget, request: ReassignPartitionsRequest
) -> list[Record]:
    """Raises UnknownPartition, and as `reassign`, `cancel` and `check_factor` do."""
    if not 0 <= target.partition < len(topic.partitions):
        raise UnknownPartition(f"topic {topic.name!r} has no partition {target.partition}.")
    partition = topic.partitions[target.partition]
    if not target.replicas:
        return cancel(topic, partition)
    changes = reassign(
        pending,
        topic,
        partition,
        target.replicas,
        changes_count=request.changes_count,
        bytes_per_s=request.move_bytes_per_s,
    )
    if request.changes_count:
        check_factor(pending, topic, len(target.replicas))
    return changes
