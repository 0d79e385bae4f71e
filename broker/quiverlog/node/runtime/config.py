"""What a node is told once, at its making. The server's configuration table fills it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quiverlog.addresses import Address
from quiverlog.limits import (
    BROKER_SESSION_MS_DEFAULT,
    DAMAGED_REPLICAS_KEPT,
    DISK_RESERVE_BYTES_DEFAULT,
    FEATURE_LEVEL_MAX,
    FEATURE_LEVEL_MIN,
    FETCH_BYTES_DEFAULT,
    FRAME_BYTES_MAX,
    LEADER_BALANCE_MOVES_MAX,
    LEADER_BALANCE_PERIOD_MS,
    PARKED_ENTRIES_MAX,
    PRODUCER_EXPIRY_MS,
    PRODUCERS_PER_PARTITION_MAX,
    RETENTION_CHECK_MS,
)
from quiverlog.roles import ROLE_BROKER, ROLE_CONTROLLER

__all__ = ["LISTENER_DEFAULT", "Given", "NodeConfig"]

LISTENER_DEFAULT: Final = "default"
"""The listener that there always is."""


class Given(NamedTuple):
    """A value as the process was given it, as text, and by what (a `ConfigSource`)."""

    value: str
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """See the fields.

    `cluster_id` empty: take the data directory's, or make one up in a new directory.
    """

    data_dir: str
    node_id: int = 0
    cluster_id: str = ""
    advertised_host: str = "127.0.0.1"
    advertised_port: int = 9292
    listeners: Mapping[str, Address] = field(default_factory=dict)
    """What those who ask at a listener are told to connect to, if it is not the address above."""
    listeners_without_administration: frozenset[str] = frozenset()
    """Those that refuse `wire.registry.ADMINISTRATION`."""
    inter_broker_listener: str = LISTENER_DEFAULT
    """Where brokers speak among themselves: no other listener serves the APIs between brokers."""
    rack: str = ""
    broker_session_ms: int = BROKER_SESSION_MS_DEFAULT
    """A broker that was silent for so long is fenced; the controller's counts."""
    roles: tuple[str, ...] = (ROLE_BROKER, ROLE_CONTROLLER)
    controllers: Mapping[int, Address] = field(default_factory=dict)
    """Whom to ask for the metadata, by node id. A new data directory of a broker that knows any
    joins their quorum; that of one that knows none becomes a quorum of one."""
    moved_controllers: Mapping[int, Address] = field(default_factory=dict)
    """Where controllers are now, whatever the metadata say: all addresses may have changed."""
    joins_quorum: bool = False
    """A controller that becomes a voter without anybody's asking (`voter_changes`)."""
    software_version: str = ""
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults of topic configuration that differ from the table's (`core.controller.configs`)."""
    partitions_default: int = 1
    disk_reserve_bytes: int = DISK_RESERVE_BYTES_DEFAULT
    flushes_in_flight_max: int = 4
    """Logs that are flushed at the same time: more only queue up in the disk."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """What HELLO tells clients; the server refuses larger frames."""
    fetch_bytes_default: int = FETCH_BYTES_DEFAULT
    retention_check_ms: int = RETENTION_CHECK_MS
    producers_per_partition_max: int = PRODUCERS_PER_PARTITION_MAX
    producer_expiry_ms: int = PRODUCER_EXPIRY_MS
    parked_requests_max: int = 100_000
    """Long polls that wait at once; beyond, they are answered with what there is."""

    parked_entries_max: int = PARKED_ENTRIES_MAX
    """Partitions that these ask for together; beyond, they are answered with what there is."""

    leader_balance_period_ms: int = LEADER_BALANCE_PERIOD_MS
    """Between rounds in which partitions get their preferred leaders; 0: never by itself."""
    leader_balance_moves_max: int = LEADER_BALANCE_MOVES_MAX
    """Partitions that get another leader in one round."""

    damaged_replicas_kept: int = DAMAGED_REPLICAS_KEPT
    """Replicas whose rows were damaged, and are copied again: so many stay on the disk."""

    move_bytes_per_s: int = 0
    """What is copied in a second of partitions that move here; 0: as fast as it goes."""

    requests_waiting_max: int = 200_000
    """Long polls and unflushed produces together; beyond, a produce gets ThrottledBroker."""

    feature_level_max: int = FEATURE_LEVEL_MAX
    """The newest feature level that this broker says it supports."""

    given: Mapping[str, Given] = field(default_factory=dict)
    """All that the process was given, by key: what others are told of it."""

    @property
    def lets_others_join(self) -> bool:
        """True when the configuration says that this broker is, or is to be, one of several: whom
        to ask, which cluster, or where brokers meet. One that is told nothing of it may stand in
        any network, and whoever reaches it is a client."""
        return bool(
            self.cluster_id
            or self.controllers
            or self.moved_controllers
            or self.inter_broker_listener != LISTENER_DEFAULT
        )

    @property
    def endpoints(self) -> tuple[tuple[str, str, int], ...]:
        """Name, host and port of each listener, as others are told to connect to it."""
        told = {LISTENER_DEFAULT: Address(self.advertised_host, self.advertised_port)}
        told.update(self.listeners)
        return tuple((name, *address) for name, address in told.items())

    @property
    def endpoint(self) -> Address:
        """Where other brokers reach this one."""
        default = Address(self.advertised_host, self.advertised_port)
        return self.listeners.get(self.inter_broker_listener, default)

    def __post_init__(self) -> None:
        assert self.node_id >= 0
        assert FEATURE_LEVEL_MIN <= self.feature_level_max <= FEATURE_LEVEL_MAX
        assert self.roles
        assert self.partitions_default >= 1
        assert self.flushes_in_flight_max >= 1
        assert self.retention_check_ms >= 1
        assert self.damaged_replicas_kept >= 0
        assert self.leader_balance_period_ms >= 0
        assert self.leader_balance_moves_max >= 1
        assert self.move_bytes_per_s >= 0
        assert self.parked_requests_max <= self.requests_waiting_max
