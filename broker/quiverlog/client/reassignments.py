"""The question that moves partitions to other brokers, and what is made of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

__all__ = ["reassign_partitions"]


def reassign_partitions(
    cluster: Cluster, name: str, targets: Mapping[int, Sequence[int] | None]
) -> Operation[dict[int, PartitionMove]]:
    """Say who is to hold partitions; returns who holds them, or which move if none were named."""
    request = ReassignPartitionsRequest(
        name=name,
        partitions=[PartitionTarget(one, list(brokers or ())) for one, brokers in targets.items()],
    )

    def attempt() -> Operation[dict[int, PartitionMove]]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, ReassignPartitionsResponse)
        cluster.forget_topics()
        return {one.partition: _move(one) for one in reply.response.moves}

    return (yield from about(name, cluster.retrying(attempt)))


def _move(one: PartitionReplicas) -> PartitionMove:
    return PartitionMove(
        tuple(one.replicas),
        tuple(one.in_sync_replicas),
        tuple(one.adding_replicas),
        tuple(one.removing_replicas),
    )
