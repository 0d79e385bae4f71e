"""The questions that move partitions to other brokers, and what is made of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quiverlog.errors import InvalidArgument
from quiverlog.wire.reassignment_messages import (
    PartitionReplicas,
    PartitionTarget,
    ReassignPartitionsRequest,
    ReassignPartitionsResponse,
)

from .answers import about
from .commands import Operation
from .results import PartitionMove
from .routing import Cluster

__all__ = ["list_moves", "reassign_partitions"]


def reassign_partitions(
    cluster: Cluster,
    name: str,
    targets: Mapping[int, Sequence[int] | None],
    *,
    throttle: int = 0,
    change_count: bool = False,
    validate_only: bool = False,
) -> Operation[dict[int, PartitionMove]]:
    """Say who is to hold partitions; returns who holds them, or which move if none were named."""
    if not 0 <= throttle < 2**63:
        raise InvalidArgument(f"throttle={throttle}: give bytes in a second, or 0.")
    request = ReassignPartitionsRequest(
        name=name,
        partitions=[PartitionTarget(one, list(brokers or ())) for one, brokers in targets.items()],
        move_bytes_per_s=throttle,
        changes_count=change_count,
        validate_only=validate_only,
    )

    def attempt() -> Operation[dict[int, PartitionMove]]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, ReassignPartitionsResponse)
        cluster.forget_topics()
        return {one.partition: _move(one) for one in reply.response.moves}

    return (yield from about(name, cluster.retrying(attempt)))


def list_moves(cluster: Cluster) -> Operation[dict[str, dict[int, PartitionMove]]]:
    """The partitions that move, of all topics."""

    def attempt() -> Operation[dict[str, dict[int, PartitionMove]]]:
        found: dict[str, dict[int, PartitionMove]] = {}
        first_name = ""
        while True:
            request = ReassignPartitionsRequest(first_name=first_name)
            reply = yield from cluster.call_controller(request)
            response = reply.response
            assert isinstance(response, ReassignPartitionsResponse)
            for topic in response.topics:
                found[topic.name] = {one.partition: _move(one) for one in topic.moves}
            first_name = response.next_name
            if not first_name:
                return found

    return (yield from cluster.retrying(attempt))


def _move(one: PartitionReplicas) -> PartitionMove:
    return PartitionMove(
        tuple(one.replicas),
        tuple(one.in_sync_replicas),
        tuple(one.adding_replicas),
        tuple(one.removing_replicas),
        one.move_bytes_per_s,
    )
