"""A node's configuration, filled from the server's configuration table."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quiverlog.addresses import Address
from quiverlog.core.controller.records import UserRecord
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
    OFFSETS_RETENTION_MS_DEFAULT,
    PARKED_ENTRIES_MAX,
    PRODUCER_EXPIRY_MS,
    PRODUCERS_PER_PARTITION_MAX,
    RETENTION_CHECK_MS,
    STAGED_PARTITIONS_MAX,
    STAGED_PARTITIONS_MIN,
    TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT,
)
from quiverlog.roles import ROLE_BROKER, ROLE_CONTROLLER
from quiverlog.wire.peer_proof import NO_SECRETS, ClusterSecrets

__all__ = ["LISTENER_DEFAULT", "Asked", "Authentication", "Given", "NodeConfig"]

LISTENER_DEFAULT: Final = "default"


class Asked(enum.StrEnum):
    """NONE -> WANTED -> REQUIRED is the way of a running cluster to users."""

    NONE = "none"
    WANTED = "wanted"
    """Connections may also stay anonymous: they are counted."""
    REQUIRED = "required"


class Authentication(NamedTuple):
    """What a listener asks of its clients."""

    asked: Asked = Asked.NONE
    mechanisms: tuple[str, ...] = ()
    """That it takes, the best first."""


class Given(NamedTuple):
    """`source`: a `ConfigSource`."""

    value: str
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """`cluster_id` empty: take the data directory's, or generate one for a new directory."""

    data_dir: str
    node_id: int = 0
    cluster_id: str = ""
    advertised_host: str = "127.0.0.1"
    advertised_port: int = 9292
    listeners: Mapping[str, Address] = field(default_factory=dict)
    """What clients of a listener connect to, where it is not the advertised address."""
    listeners_without_administration: frozenset[str] = frozenset()
    """Listeners that refuse `wire.registry.ADMINISTRATION`."""
    authentication: Mapping[str, Authentication] = field(default_factory=dict)
    """Of the listeners that ask for it, by name."""
    super_users: tuple[str, ...] = ()
    """Names of users that may do everything, whatever the metadata contain."""
    first_user: UserRecord | None = None
    """For a cluster without users, at the start of a quorum of one."""
    inter_broker_listener: str = LISTENER_DEFAULT
    """The only listener that serves the APIs between brokers."""
    cluster_secrets: ClusterSecrets = NO_SECRETS
    """By which brokers prove that they are peers; they change while the node runs."""
    proof_required: bool | None = None
    """Whether other brokers must prove that they have the secret; None: as the directory has it,
    and with a new directory where there is a secret."""
    audit_wanted: bool = False
    """Also where no listener authenticates."""
    audit_topics: tuple[str, ...] = ()
    """Names, and beginnings with a `*`, of topics whose reads and writes are audited."""
    local_reads_authenticated: bool = False
    """`local.reads` is `true` by name: also where clients authenticate."""
    brokers_have_certificates: bool = False
    """Brokers meet by TLS: what one sends counts only with the certificate of that broker."""
    rack: str = ""
    broker_session_ms: int = BROKER_SESSION_MS_DEFAULT
    """A broker silent for this long is fenced; the controller's value counts."""
    roles: tuple[str, ...] = (ROLE_BROKER, ROLE_CONTROLLER)
    controllers: Mapping[int, Address] = field(default_factory=dict)
    """By node id. A new data directory joins their quorum; without any it becomes a quorum of one.
    """
    moved_controllers: Mapping[int, Address] = field(default_factory=dict)
    """Where controllers are now, whatever the metadata contain: all addresses may have changed."""
    joins_quorum: bool = False
    """A controller that becomes a voter without a request of the operator (`voter_changes`)."""
    software_version: str = ""
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults of topic keys that differ from those in `core.controller.configs`."""
    partitions_default: int = 1
    staged_partitions: int = 0
    """With which the controller makes `__staged`; 0: by the number of live brokers."""
    transactional_id_expiry_ms: int = TRANSACTIONAL_ID_EXPIRY_MS_DEFAULT
    offsets_retention_ms: int = OFFSETS_RETENTION_MS_DEFAULT
    staged_bytes_max: int = 0
    """Rows of transactions that are not published; 0: by the size of the disk."""
    disk_bytes: int = 0
    """The size of the disk; 0: unknown."""
    disk_reserve_bytes: int = DISK_RESERVE_BYTES_DEFAULT
    flushes_in_flight_max: int = 4
    """More would only queue up in the disk."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """The limit in HELLO's response; the server refuses larger frames."""
    fetch_bytes_default: int = FETCH_BYTES_DEFAULT
    retention_check_ms: int = RETENTION_CHECK_MS
    producers_per_partition_max: int = PRODUCERS_PER_PARTITION_MAX
    producer_expiry_ms: int = PRODUCER_EXPIRY_MS
    parked_requests_max: int = 100_000
    """Long polls; beyond, they are answered with what there is."""

    parked_entries_max: int = PARKED_ENTRIES_MAX
    """The same for the partitions of all long polls."""

    leader_balance_period_ms: int = LEADER_BALANCE_PERIOD_MS
    """Between rounds of preferred leaders; 0: never by itself."""
    leader_balance_moves_max: int = LEADER_BALANCE_MOVES_MAX
    """Partitions that get another leader in one round."""

    damaged_replicas_kept: int = DAMAGED_REPLICAS_KEPT
    """Damaged replicas that stay on the disk after they were copied again."""

    move_bytes_per_s: int = 0
    """Copied for partitions that move here; 0: without limit."""

    requests_waiting_max: int = 200_000
    """Long polls and unflushed produces; beyond, a produce gets ThrottledBroker."""

    feature_level_max: int = FEATURE_LEVEL_MAX

    given: Mapping[str, Given] = field(default_factory=dict)

    @property
    def authorises(self) -> bool:
        """True where any listener authenticates: then requests need rights, at each of them."""
        return bool(self.authentication)

    @property
    def lets_others_join(self) -> bool:
        """True when the configuration makes this broker one of several. One that is alone may be in
        an open network: it serves the APIs between brokers to none.
        """
        return bool(
            self.cluster_id
            or self.controllers
            or self.moved_controllers
            or self.inter_broker_listener != LISTENER_DEFAULT
        )

    @property
    def endpoints(self) -> tuple[tuple[str, str, int], ...]:
        """As clients and brokers connect to each listener."""
        listeners = {LISTENER_DEFAULT: Address(self.advertised_host, self.advertised_port)}
        listeners.update(self.listeners)
        return tuple((name, *address) for name, address in listeners.items())

    @property
    def endpoint(self) -> Address:
        default = Address(self.advertised_host, self.advertised_port)
        return self.listeners.get(self.inter_broker_listener, default)

    def __post_init__(self) -> None:
        assert self.node_id >= 0
        assert FEATURE_LEVEL_MIN <= self.feature_level_max <= FEATURE_LEVEL_MAX
        assert self.roles
        assert all(one.asked is not Asked.NONE for one in self.authentication.values())
        assert self.partitions_default >= 1
        assert self.staged_partitions == 0 or (
            STAGED_PARTITIONS_MIN <= self.staged_partitions <= STAGED_PARTITIONS_MAX
        )
        assert self.staged_bytes_max >= 0
        assert self.transactional_id_expiry_ms >= 1
        assert self.offsets_retention_ms >= 1
        assert self.flushes_in_flight_max >= 1
        assert self.retention_check_ms >= 1
        assert self.damaged_replicas_kept >= 0
        assert self.leader_balance_period_ms >= 0
        assert self.leader_balance_moves_max >= 1
        assert self.move_bytes_per_s >= 0
        assert self.parked_requests_max <= self.requests_waiting_max
