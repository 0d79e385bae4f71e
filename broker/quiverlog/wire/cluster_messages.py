"""DESCRIBE_CLUSTER: brokers, quorum and the state of partitions; UPDATE_FEATURES: the level."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from quiverlog.limits import BROKERS_MAX, QUORUM_REPLICAS_SHOWN_MAX

from .messages import (
    Api,
    BrokerEndpoint,
    Int64,
    Known,
    NodeId,
    Part,
    Port,
    Request,
    Response,
    UInt31,
    UInt63,
)
from .quorum_messages import Endpoint
from .voters_messages import QuorumReplica

__all__ = [
    "BrokerFeatures",
    "ClusterBroker",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "UpdateFeaturesRequest",
    "UpdateFeaturesResponse",
]


class DescribeClusterRequest(Request, array_like=True, gc=False):
    """Every broker answers from its own metadata; only the controller reports the lag of the
    quorum's replicas."""

    API: ClassVar[Api] = Api.DESCRIBE_CLUSTER


class ClusterBroker(Part, array_like=True, gc=False):
    """One registered broker, alive or not. `faulted_count`: from the controller; 0 elsewhere."""

    node_id: NodeId = -1
    broker_epoch: Int64 = -1
    host: str = ""
    port: Port = 0
    rack: str = ""
    is_fenced: bool = False
    in_shutdown: bool = False
    leader_count: UInt63 = 0
    replica_count: UInt63 = 0
    out_of_sync_count: UInt63 = 0
    needed_count: UInt63 = 0
    moving_count: UInt63 = 0
    takes_partitions: bool = True
    metadata_lag: Known = -1
    is_disk_full: bool = False
    is_decommissioning: bool = False
    second_at: Endpoint = ""
    faulted_count: UInt63 = 0


class DescribeClusterResponse(Response, array_like=True, gc=False):
    """The cluster as of the metadata of broker `node_id`. Partitions are counted while changes go
    on: the counts may be of slightly different moments."""

    API: ClassVar[Api] = Api.DESCRIBE_CLUSTER
    cluster_id: str = ""
    node_id: NodeId = -1
    metadata_version: Int64 = 0
    controller_id: NodeId = -1
    controller_epoch: UInt63 = 0
    brokers: Annotated[list[ClusterBroker], Meta(max_length=BROKERS_MAX)] = []
    quorum: Annotated[list[QuorumReplica], Meta(max_length=QUORUM_REPLICAS_SHOWN_MAX)] = []
    topic_count: UInt63 = 0
    partition_count: UInt63 = 0
    under_replicated_count: UInt63 = 0
    under_min_in_sync_count: UInt63 = 0
    offline_count: UInt63 = 0
    moving_count: UInt63 = 0
    is_behind: bool = False
    heard_ms: Known = -1
    room_bytes: Known = -1
    load_permille: Known = -1
    received_bytes_per_s: Known = -1
    sent_bytes_per_s: Known = -1


class UpdateFeaturesRequest(Request, array_like=True, gc=False):
    """Finalises a feature level, or asks for the present one. The controller decides; every broker
    answers questions from its metadata."""

    API: ClassVar[Api] = Api.UPDATE_FEATURES
    level: UInt31 = 0
    validate_only: bool = False

    @property
    def only_asks(self) -> bool:
        return self.level == 0


class BrokerFeatures(Part, array_like=True, gc=False):
    """The feature levels that a registered broker supports."""

    node_id: NodeId = -1
    level_min: UInt31 = 1
    level_max: UInt31 = 1


class UpdateFeaturesResponse(Response, array_like=True, gc=False):
    """The cluster's level now, and the highest that all brokers support."""

    API: ClassVar[Api] = Api.UPDATE_FEATURES
    level: UInt31 = 0
    level_max: UInt31 = 0
    brokers: Annotated[list[BrokerFeatures], Meta(max_length=BROKERS_MAX)] = []
    controller: BrokerEndpoint | None = None
