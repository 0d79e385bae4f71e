"""The question about the cluster's feature level, and what is made of its answer."""

from __future__ import annotations

from dataclasses import dataclass

from quiverlog.wire.feature_messages import UpdateFeaturesRequest, UpdateFeaturesResponse

from .commands import Operation
from .routing import Cluster

__all__ = ["ClusterFeatures", "update_features"]


@dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """The finalised feature level, the highest that all brokers support, and by node id the lowest
    and highest that each does."""

    level: int
    level_max: int
    brokers: dict[int, tuple[int, int]]


def update_features(
    cluster: Cluster, level: int = 0, *, validate_only: bool = False
) -> Operation[ClusterFeatures]:
    """Finalise a level (0: only ask)."""
    request = UpdateFeaturesRequest(level=level, validate_only=validate_only)

    def attempt() -> Operation[ClusterFeatures]:
        reply = yield from cluster.call_controller(request)
        found = reply.response
        assert isinstance(found, UpdateFeaturesResponse)
        brokers = {one.node_id: (one.level_min, one.level_max) for one in found.brokers}
        return ClusterFeatures(found.level, found.level_max, brokers)

    return (yield from cluster.retrying(attempt))
