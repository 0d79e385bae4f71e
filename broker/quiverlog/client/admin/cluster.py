"""The cluster: description, voters, feature level, decommissioning, reassignments.

A description comes from any broker, and then from the controller that it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from quiverlog.client.base.commands import Operation
from quiverlog.client.base.results import (
    Address,
    BrokerDetail,
    ClusterDetail,
    PartitionMove,
    QuorumReplicaDetail,
)
from quiverlog.client.cluster.answers import about
from quiverlog.client.cluster.metadata import check
from quiverlog.client.cluster.routing import Cluster
from quiverlog.errors import (
    BrokerShuttingDown,
    ConnectionClosed,
    ConnectionFailed,
    InvalidArgument,
    InvalidVoterChange,
    NotController,
    OutcomeUnknown,
    QuiverlogError,
    RequestTimedOut,
    error_from_code,
)
from quiverlog.wire.cluster_messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from quiverlog.wire.decommission_messages import (
    DecommissionBrokerRequest,
    DecommissionBrokerResponse,
    DecommissionStep,
)
from quiverlog.wire.messages import Response
from quiverlog.wire.reassignment_messages import (
    PartitionReplicas,
    PartitionTarget,
    ReassignPartitionsRequest,
    ReassignPartitionsResponse,
)
from quiverlog.wire.voters_messages import ChangeVotersRequest, ChangeVotersResponse, VoterChange

__all__ = [
    "ClusterFeatures",
    "change_voters",
    "decommission_broker",
    "describe_cluster",
    "describe_cluster_at",
    "list_moves",
    "reassign_partitions",
    "update_features",
]


# Bounds the wait for the controller, which may be what is broken.
_CONTROLLER_S_MAX: Final = 2.0


def describe_cluster(cluster: Cluster) -> Operation[ClusterDetail]:
    def attempt() -> Operation[ClusterDetail]:
        reply = yield from cluster.call_any(DescribeClusterRequest())
        found = reply.response
        assert isinstance(found, DescribeClusterResponse)
        if found.controller_id != found.node_id:
            found = yield from _of_controller(cluster, found)
        return _detail(found)

    return (yield from cluster.retrying(attempt))


def describe_cluster_at(cluster: Cluster, address: Address) -> Operation[ClusterDetail]:
    reply = yield cluster.call(address, DescribeClusterRequest())
    check(reply.response)
    assert isinstance(reply.response, DescribeClusterResponse)
    return _detail(reply.response)


def _of_controller(
    cluster: Cluster, found: DescribeClusterResponse
) -> Operation[DescribeClusterResponse]:
    there = [Address(b.host, b.port) for b in found.brokers if b.node_id == found.controller_id]
    if not there:
        return found
    timeout_s = min(_CONTROLLER_S_MAX, cluster.settings.request_timeout_s / 2)
    try:
        reply = yield cluster.call(there[0], DescribeClusterRequest(), timeout_s=timeout_s)
        check(reply.response)
    except QuiverlogError:
        return found
    newest = reply.response
    assert isinstance(newest, DescribeClusterResponse)
    # A broker that is no longer the controller may have older metadata.
    return newest if newest.metadata_version >= found.metadata_version else found


def _detail(found: DescribeClusterResponse) -> ClusterDetail:
    return ClusterDetail(
        cluster_id=found.cluster_id,
        reported_by=found.node_id,
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
        room_bytes=_known(found.room_bytes),
        load=None if found.load_permille < 0 else found.load_permille / 1_000,
        received_bytes_per_s=_known(found.received_bytes_per_s),
        sent_bytes_per_s=_known(found.sent_bytes_per_s),
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


# Voters of the metadata quorum.
def change_voters(
    cluster: Cluster, request: ChangeVotersRequest
) -> Operation[ChangeVotersResponse]:
    """Change the quorum, or only ask."""
    is_unanswered = False

    def attempt() -> Operation[ChangeVotersResponse]:
        nonlocal is_unanswered
        last: QuiverlogError = NotController()
        best: ChangeVotersResponse | None = None
        addresses = cluster.addresses()
        for number, address in enumerate(addresses, start=1):
            is_read = not request.change
            patience_s = cluster.patience_of(
                address,
                has_others=is_read and number < len(addresses),
                has_answer=is_read and best is not None,
            )
            try:
                reply = yield cluster.call(address, request, timeout_s=patience_s)
                found = _checked(reply.response)
            except (ConnectionClosed, RequestTimedOut, OutcomeUnknown) as error:
                if request.change:
                    is_unanswered = True
                    raise
                cluster.suspect(address)
                last = error
                continue
            except (ConnectionFailed, NotController, BrokerShuttingDown) as error:
                # The last of these is also the answer of a broker without metadata.
                last = error
                continue
            except InvalidVoterChange:
                if not is_unanswered:
                    raise
                # An earlier try, whose answer was lost, may have made the change.
                reply = yield cluster.call(address, ChangeVotersRequest())
                found = _checked(reply.response)
                if not _holds(request, found):
                    raise
            if request.change:
                return found
            if best is None or _knowledge(found) > _knowledge(best):
                best = found
        if best is None:
            raise last
        return best

    return (yield from cluster.retrying(attempt))


def _holds(request: ChangeVotersRequest, found: ChangeVotersResponse) -> bool:
    wanted = request.change == VoterChange.ADD
    matching = [
        one
        for one in found.replicas
        if one.node_id == request.node_id
        and request.directory_id in ("", one.directory_id)
        and one.is_voter
    ]
    return bool(matching) == wanted


def _checked(response: Response) -> ChangeVotersResponse:
    assert isinstance(response, ChangeVotersResponse)
    if response.error_code:
        raise error_from_code(response.error_code, response.error_message)
    return response


def _knowledge(found: ChangeVotersResponse) -> tuple[int, int]:
    # The leader of the newest term has the newest quorum.
    return found.term, sum(one.last_index >= 0 for one in found.replicas)


# The cluster's feature level.
@dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """The finalised feature level, the highest that all brokers support, and by node id the lowest
    and highest supported ones."""

    level: int
    level_max: int
    brokers: dict[int, tuple[int, int]]


def update_features(
    cluster: Cluster, level: int = 0, *, validate_only: bool = False
) -> Operation[ClusterFeatures]:
    request = UpdateFeaturesRequest(level=level, validate_only=validate_only)

    def attempt() -> Operation[ClusterFeatures]:
        reply = yield from cluster.call_controller(request)
        found = reply.response
        assert isinstance(found, UpdateFeaturesResponse)
        brokers = {one.node_id: (one.level_min, one.level_max) for one in found.brokers}
        return ClusterFeatures(found.level, found.level_max, brokers)

    return (yield from cluster.retrying(attempt))


# Decommissioning.
def decommission_broker(
    cluster: Cluster, node_id: int, step: DecommissionStep
) -> Operation[DecommissionBrokerResponse]:
    """Raises UnknownBroker also where an earlier try, whose answer was lost, unregistered it."""
    request = DecommissionBrokerRequest(step=step, node_id=node_id)

    def attempt() -> Operation[DecommissionBrokerResponse]:
        reply = yield from cluster.call_controller(request)
        assert isinstance(reply.response, DecommissionBrokerResponse)
        return reply.response

    return (yield from cluster.retrying(attempt))


# Moves of partitions to other brokers.
def reassign_partitions(
    cluster: Cluster,
    name: str,
    targets: Mapping[int, Sequence[int] | None],
    *,
    throttle: int = 0,
    change_count: bool = False,
    validate_only: bool = False,
) -> Operation[dict[int, PartitionMove]]:
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
        cluster.invalidate_topics()
        return {one.partition: _move(one) for one in reply.response.moves}

    return (yield from about(name, cluster.retrying(attempt)))


def list_moves(cluster: Cluster) -> Operation[dict[str, dict[int, PartitionMove]]]:
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
