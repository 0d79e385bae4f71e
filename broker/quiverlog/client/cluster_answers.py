"""What an answer about the cluster must satisfy before any operation looks at it; see `answers`."""

from __future__ import annotations

from quiverlog.errors import InvalidResponse
from quiverlog.wire.cluster_messages import DescribeClusterResponse
from quiverlog.wire.config_messages import (
    AlterConfigsResponse,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from quiverlog.wire.decommission_messages import DecommissionBrokerResponse
from quiverlog.wire.election_messages import ElectLeadersRequest, ElectLeadersResponse
from quiverlog.wire.feature_messages import UpdateFeaturesResponse
from quiverlog.wire.placement_messages import DescribeReplicasRequest, DescribeReplicasResponse
from quiverlog.wire.reassignment_messages import (
    ReassignPartitionsRequest,
    ReassignPartitionsResponse,
)

__all__ = [
    "check_alter_configs",
    "check_decommission_broker",
    "check_describe_cluster",
    "check_describe_configs",
    "check_describe_replicas",
    "check_elect_leaders",
    "check_reassign_partitions",
    "check_update_features",
]


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
        counts = (
            one.leader_count,
            one.replica_count,
            one.out_of_sync_count,
            one.needed_count,
            one.moving_count,
            one.faulted_count,
        )
        if min(counts) < 0:
            raise InvalidResponse(f"DESCRIBE_CLUSTER: broker {one.node_id} counts {counts}.")
        if one.metadata_lag < -1:
            raise InvalidResponse(
                f"DESCRIBE_CLUSTER: broker {one.node_id} lacks {one.metadata_lag} entries."
            )
    if response.heard_ms < -1:
        raise InvalidResponse(f"DESCRIBE_CLUSTER is {response.heard_ms} ms old.")
    partitions = response.partition_count
    some = (
        response.under_replicated_count,
        response.under_min_in_sync_count,
        response.offline_count,
        response.moving_count,
    )
    if response.topic_count < 0 or not 0 <= min(some) <= max(some) <= partitions:
        raise InvalidResponse(f"DESCRIBE_CLUSTER: {some} of {partitions} partitions.")


def check_alter_configs(_request: object, response: AlterConfigsResponse, _: int) -> None:
    """Raises InvalidResponse."""
    if response.metadata_version < 0:
        raise InvalidResponse(f"ALTER_CONFIGS: metadata version {response.metadata_version}.")


def check_describe_configs(
    request: DescribeConfigsRequest, response: DescribeConfigsResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    if min(response.node_id, response.metadata_version) < 0:
        raise InvalidResponse(f"DESCRIBE_CONFIGS: broker {response.node_id}.")
    found = [one.key for one in response.configs]
    wanted = list(dict.fromkeys(request.keys))
    if len(set(found)) != len(found) or (wanted and wanted != found):
        raise InvalidResponse(f"Keys {wanted[:10]} were asked for; {found[:10]} came.")
    for one in response.configs:
        if one.source not in set(ConfigSource):
            raise InvalidResponse(f"{one.key[:100]!r} comes from {one.source}.")


def check_update_features(_request: object, response: UpdateFeaturesResponse, _: int) -> None:
    """Raises InvalidResponse."""
    nodes = [one.node_id for one in response.brokers]
    if len(nodes) != len(set(nodes)) or min(nodes, default=0) < 0 or response.level < 1:
        raise InvalidResponse(f"UPDATE_FEATURES: level {response.level}, brokers {nodes[:10]}.")


def check_decommission_broker(
    _request: object, response: DecommissionBrokerResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    if response.replica_count < 0:
        raise InvalidResponse(f"DECOMMISSION_BROKER: {response.replica_count} replicas are left.")


def check_elect_leaders(
    request: ElectLeadersRequest, response: ElectLeadersResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    found = [one.partition for one in response.leaders]
    wanted = range(len(found)) if request.partitions is None else sorted(set(request.partitions))
    if found != list(wanted):
        raise InvalidResponse(f"Leaders of {list(wanted)[:10]} were asked for; {found[:10]} came.")
    for one in response.leaders:
        if one.leader_id < -1 or one.leader_epoch < 0:
            raise InvalidResponse(
                f"Partition {one.partition} is led by {one.leader_id} in epoch {one.leader_epoch}."
            )


def check_reassign_partitions(
    request: ReassignPartitionsRequest, response: ReassignPartitionsResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    found = [one.partition for one in response.moves]
    wanted = {one.partition for one in request.partitions}
    if len(set(found)) != len(found) or (wanted and wanted != set(found)):
        raise InvalidResponse(f"Partitions {sorted(wanted)[:10]} were named; {found[:10]} came.")
    names = [topic.name for topic in response.topics]
    if names != sorted(set(names)) or (request.name and names):
        raise InvalidResponse(f"Moves of {request.name!r} were asked for; {names[:10]} came.")
    if response.next_name and response.next_name <= request.first_name:
        raise InvalidResponse("A page of moves is followed by itself.")
    for one in (*response.moves, *(move for topic in response.topics for move in topic.moves)):
        if one.partition < 0 or not one.replicas or one.move_bytes_per_s < 0:
            raise InvalidResponse(f"Partition {one.partition} is held by {one.replicas}.")


def check_describe_replicas(
    request: DescribeReplicasRequest, response: DescribeReplicasResponse, _: int
) -> None:
    """Raises InvalidResponse."""
    names = [topic.name for topic in response.topics]
    if names != sorted(set(names)):
        raise InvalidResponse(f"Topics come as {names[:10]}.")
    if response.next_name and response.next_name <= request.first_name:
        raise InvalidResponse("A page of replicas is followed by itself.")
    for topic in response.topics:
        for one in topic.replicas:
            if one.partition < 0 or one.size_bytes < -1:
                raise InvalidResponse(f"{topic.name}-{one.partition} has {one.size_bytes} bytes.")
