"""Bugs on the way of clients, each a changed line of the client's or the node's code.

Owns the list of those that the simple clients, which never change a topic, cannot meet. One of the
client's is there for the whole run: programs run outside of all nodes.
"""

from __future__ import annotations

from typing import Final

from tests.sim.bug import Bug, make_bug

from .aimed import AimPlan
from .client_plan import ClientPlan
from .fault_plan import CALM
from .scenario import ClusterTopic
from .tempo import SHIPPED

__all__ = ["CLIENT_BUGS"]


def _topic(level: str) -> tuple[ClusterTopic, ...]:
    configs = {
        "segment.bytes": "65536",
        "segment.ms": "604800000",
        "index.interval.bytes": "1024",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "durability": level,
        "min.insync.replicas": "2",
    }
    return (ClusterTopic("topic0", 1, 3, tuple(configs.items())),)


_PROGRAMS: Final[dict[str, object]] = {
    "tempo": SHIPPED,
    "nodes": 3,
    "topics": _topic("memory"),
    "clients": ClientPlan(producers=2, consumers=2, administrators=1),
    "producers": 1,
    "readers": 1,
    "rows_max": 8,
    "loss": 0.0,
    "half_open": 0.0,
    "slow_network": 0.1,
    "slow_job": 0.0,
    "death_in_job": 0.0,
    "kill_interval_ms": 1_500,
    "stop_interval_ms": 0,
    "power_interval_ms": 0,
    "all_power_interval_ms": 0,
    "pause_interval_ms": 0,
    "partition_interval_ms": 0,
    "clock_jump_interval_ms": 0,
    "newborn_faults": 0.0,
    "leader_faults": 0.7,
    "down_ms": 500,
    "buggy_everywhere": True,
    "plan": CALM,
}
"""Leaders are lost while programs work."""
_CLIENT: Final = {**_PROGRAMS, "buggy_clients": True}
_KEPT: Final = {
    **_CLIENT,
    "kill_interval_ms": 0,
    "leader_faults": 0.0,
    "topics": _topic("replicated"),
    "clients": ClientPlan(producers=3, hasty=True),
    "aims": AimPlan(course="kept requests"),
}
"""Requests come behind those that were sent later, when their rows were given up."""
_STRANGE: Final = {
    **_PROGRAMS,
    "clients": ClientPlan(producers=1, consumers=1, repeaters=1, strangers=2),
}
"""Clients ask for odd things all the time."""

CLIENT_BUGS: Final[tuple[Bug, ...]] = (
    make_bug(
        "a client does not look for another leader",
        "client.cluster.routing:Cluster._retrying",
        "if error.refresh_metadata:",
        "if False:",
        shape=_CLIENT,
        also=(
            (
                "client.producer.sender:Sender.failed_try",
                "queue.awaits_metadata = queue.awaits_metadata or error.refresh_metadata",
                "pass",
            ),
            # Its metadata get old by themselves, too, for partitions that were added.
            (
                "client.producer.core:ProducerCore.poll",
                "if calls and self._is_metadata_old(now):",
                "if False:",
            ),
        ),
    ),
    make_bug(
        "a client believes any broker that there is no topic of a name",
        "client.cluster.routing:Cluster.refresh",
        "if missing and not found.is_from_controller:",
        "if False:",
        seed=4,
        shape={
            **_CLIENT,
            "nodes": 4,
            "kill_interval_ms": 0,
            "slow_network": 0.0,
            "rows_max": 1,
            "duration_ms": 3_000,
            "clients": ClientPlan(producers=3, administrators=1),
            "aims": AimPlan(course="late news"),
        },
    ),
    make_bug(
        "a producer takes a new id after a lost answer",
        "client.producer.runner:ProducerRunner._renew",
        "new_identity(self._cluster, self._core.identity)",
        "new_identity(self._cluster)",
        shape=_KEPT,
    ),
    make_bug(
        "out of order is taken for never stored",
        "client.producer.sender:Sender._resolve_hole",
        "numbering.wants_epoch = numbering.identity == self.identity",
        "batch.maybe_stored = False",
        shape=_KEPT,
        also=(
            (
                "client.producer.runner:ProducerRunner._renew",
                "new_identity(self._cluster, self._core.identity)",
                "new_identity(self._cluster)",
            ),
        ),
    ),
    make_bug(
        "an epoch is answered before the one before is over",
        "node.controller.registrar:Registrar.everywhere",
        "elif machine.applied_everywhere(image) >= image.version:",
        "elif True:",
        seed=2,
        shape={
            **_PROGRAMS,
            "kill_interval_ms": 0,
            "leader_faults": 0.0,
            "clients": ClientPlan(successors=3),
        },
    ),
    make_bug(
        "a reader does not name the epoch of its last row",
        "client.consumer.fetches:Fetches._request",
        "position.last_epoch,",
        "-1,",
        seed=11,
        shape={**_CLIENT, "all_power_interval_ms": 1_500},
    ),
    make_bug(
        "an unclean election that was never allowed",
        "core.controller.elections:_settle",
        "config.unclean_leader_election or unclean_ends is not None",
        "True",
        seed=2,
        shape={**_PROGRAMS, "kill_interval_ms": 600, "down_ms": 2_000},
    ),
    make_bug(
        "the leader epoch that a reader names is not looked at",
        "core.partition.partition:PartitionState.check_leader_epoch",
        "if epoch in (self.leader_epoch, NO_EPOCH):",
        "if True:",
        shape=_STRANGE,
    ),
    make_bug(
        "a heartbeat of any broker epoch counts",
        "core.controller.registrations:Registrations._registered_as",
        "if broker is None or broker_epoch < 0 or broker.broker_epoch != broker_epoch:",
        "if broker is None:",
        seed=1,
        shape=_STRANGE,
    ),
)
