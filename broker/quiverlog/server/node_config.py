"""From a broker's configuration to what its node is told at its making."""

from __future__ import annotations

from collections.abc import Mapping

from quiverlog.addresses import Address
from quiverlog.node.runtime.config import LISTENER_DEFAULT, NodeConfig
from quiverlog.server.config import BrokerConfig
from quiverlog.version import VERSION

__all__ = ["node_config"]


def node_config(config: BrokerConfig, advertised: Mapping[str, Address]) -> NodeConfig:
    """The node's part of the configuration.

    Args:
        advertised: what those who ask at each listener are told to connect to.
    """
    host, port = advertised[LISTENER_DEFAULT]
    return NodeConfig(
        data_dir=config.data_dir,
        node_id=config.node_id,
        cluster_id=config.cluster_id,
        advertised_host=host,
        advertised_port=port,
        listeners=dict(advertised),
        listeners_without_administration=config.listeners_without_administration,
        inter_broker_listener=config.inter_broker_listener,
        rack=config.rack,
        roles=config.process_roles,
        controllers=dict(config.controller_quorum_bootstrap_servers),
        moved_controllers=dict(config.controller_quorum_moved_servers),
        joins_quorum=config.controller_quorum_auto_join == "true",
        broker_session_ms=config.broker_session_ms,
        software_version=VERSION,
        topic_defaults=dict(config.topic_defaults),
        disk_reserve_bytes=config.disk_reserve_bytes,
        frame_bytes_max=config.frame_bytes_max,
        # No more than run at once: what waits, waits where askers take turns.
        flushes_in_flight_max=config.fsync_threads,
        damaged_replicas_kept=config.damaged_replicas_kept,
        leader_balance_period_ms=config.leader_balance_period_ms,
        leader_balance_moves_max=config.leader_balance_moves_max,
        move_bytes_per_s=config.partition_move_bytes_per_second,
        feature_level_max=config.feature_level_max,
        given=dict(config.given),
    )
