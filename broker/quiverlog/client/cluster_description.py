"""The cluster as a whole, as an operation.

Owns whom to believe: any broker answers, and the controller, which knows most, is asked as well
where it is another one. A controller that does not answer leaves what the first broker has said.
"""

from __future__ import annotations

from typing import Final

from quiverlog.errors import QuiverlogError
from quiverlog.wire.cluster_messages import DescribeClusterRequest, DescribeClusterResponse

from .commands import Operation
from .results import Address, BrokerDetail, ClusterDetail, QuorumReplicaDetail
from .routing import Cluster, check

__all__ = ["describe_cluster", "told_at"]

_CONTROLLER_S_MAX: Final = 2.0
"""The controller may be what is broken: what is known of it without its help comes soon."""


def describe_cluster(cluster: Cluster) -> Operation[ClusterDetail]:
    """Brokers, quorum, and how many partitions are not as they should be."""

    def attempt() -> Operation[ClusterDetail]:
        reply = yield from cluster.call_any(DescribeClusterRequest())
        found = reply.response
        assert isinstance(found, DescribeClusterResponse)
        if found.controller_id != found.node_id:
            found = yield from _told_by_controller(cluster, found)
        return _detail(found)

    return (yield from cluster.retrying(attempt))


def told_at(cluster: Cluster, address: Address) -> Operation[ClusterDetail]:
    """What the broker at this address says, and no other."""
    reply = yield cluster.call(address, DescribeClusterRequest())
    check(reply.response)
    assert isinstance(reply.response, DescribeClusterResponse)
    return _detail(reply.response)


def _told_by_controller(
    cluster: Cluster, found: DescribeClusterResponse
) -> Operation[DescribeClusterResponse]:
    """What the controller knows, or else what is known already."""
    there = [Address(b.host, b.port) for b in found.brokers if b.node_id == found.controller_id]
    if not there:
        return found
    timeout_s = min(_CONTROLLER_S_MAX, cluster.settings.request_timeout_s / 2)
    try:
        reply = yield cluster.call(there[0], DescribeClusterRequest(), timeout_s=timeout_s)
        check(reply.response)
    except QuiverlogError:
        return found
    told = reply.response
    assert isinstance(told, DescribeClusterResponse)
    # Somebody who has lost its place meanwhile may know less.
    return told if told.metadata_version >= found.metadata_version else found


def _detail(found: DescribeClusterResponse) -> ClusterDetail:
    return ClusterDetail(
        cluster_id=found.cluster_id,
        told_by=found.node_id,
        metadata_version=found.metadata_version,
        controller=None if found.controller_id < 0 else found.controller_id,
        controller_epoch=found.controller_epoch,
        brokers=tuple(
            BrokerDetail(
                one.node_id,
                one.broker_epoch,
                one.host,
                one.port,
                one.rack,
                fenced=one.is_fenced,
                in_shutdown=one.in_shutdown,
                leaders=one.leader_count,
                replicas=one.replica_count,
                out_of_sync=one.out_of_sync_count,
                needed=one.needed_count,
                moving=one.moving_count,
                decommissioning=one.is_decommissioning,
                takes_partitions=one.takes_partitions,
                metadata_lag=_known(one.metadata_lag),
                disk_full=one.is_disk_full,
                second_at=one.second_at,
                faulted=one.faulted_count,
            )
            for one in found.brokers
        ),
        quorum=tuple(
            QuorumReplicaDetail(
                one.node_id,
                one.directory_id,
                one.endpoint,
                one.is_voter,
                last_index=_known(one.last_index),
                lag=_known(one.lag),
                silent_s=None if one.silent_ms < 0 else one.silent_ms / 1_000,
            )
            for one in found.quorum
        ),
        topics=found.topic_count,
        partitions=found.partition_count,
        under_replicated=found.under_replicated_count,
        under_min_in_sync=found.under_min_in_sync_count,
        offline=found.offline_count,
        moving=found.moving_count,
        is_behind=found.is_behind,
        age_s=None if found.heard_ms < 0 else found.heard_ms / 1_000,
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number
