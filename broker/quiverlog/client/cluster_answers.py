"""What an answer about the cluster must satisfy before any operation looks at it; see `answers`."""

from __future__ import annotations

from quiverlog.errors import InvalidResponse
from quiverlog.wire.cluster_messages import DescribeClusterResponse

__all__ = ["check_describe_cluster"]


def check_describe_cluster(_request: object, response: DescribeClusterResponse, _: int) -> None:
    """Raises InvalidResponse."""
    nodes = [one.node_id for one in response.brokers]
    if len(nodes) != len(set(nodes)) or min([response.node_id, *nodes]) < 0:
        raise InvalidResponse(f"DESCRIBE_CLUSTER names the brokers {nodes[:10]}.")
    for one in response.brokers:
        if not one.host or not 0 < one.port < 65_536:
            raise InvalidResponse(
                f"DESCRIBE_CLUSTER: broker {one.node_id} at {one.host!r}, port {one.port}."
            )
        if min(one.leader_count, one.replica_count) < 0:
            raise InvalidResponse(
                f"DESCRIBE_CLUSTER: broker {one.node_id} leads {one.leader_count} partitions of "
                f"{one.replica_count}."
            )
    partitions = response.partition_count
    some = (
        response.under_replicated_count,
        response.under_min_in_sync_count,
        response.offline_count,
    )
    if response.topic_count < 0 or not 0 <= min(some) <= max(some) <= partitions:
        raise InvalidResponse(f"DESCRIBE_CLUSTER: {some} of {partitions} partitions.")
