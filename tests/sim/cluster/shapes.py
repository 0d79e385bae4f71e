"""Scenarios in which planted bugs are met soon: same simulation, other probabilities.

Owns the shapes that bugs share. Each is quiet but for what its bugs need.
"""

from __future__ import annotations

from typing import Any, Final

from .aimed import AimPlan
from .client_plan import NO_CLIENTS, ClientPlan
from .fault_plan import CALM, FaultPlan
from .scenario import ClusterTopic
from .tempo import SHIPPED

__all__ = [
    "ALL_POWER",
    "ASKED",
    "CAROUSEL",
    "DIVERGING",
    "FLUSHED",
    "HANDED",
    "JOINING",
    "LEAN",
    "LONG",
    "MANAGED",
    "MOVING",
    "NEWBORN",
    "NO_CONTROLLER",
    "ONE_SEED",
    "POWER",
    "PROVED",
    "QUIET",
    "ROBBED",
    "ROTTEN",
    "SPLIT",
    "STOPPED",
    "STRANDED",
    "STRICT",
    "WIPED",
    "course",
    "topics",
]  # fmt: skip


def topics(
    level: str, *, min_in_sync: int = 2, partitions: int = 2, replicas: int = 3, **configs: str
) -> tuple[ClusterTopic, ...]:
    """One topic of this level."""
    all_configs = {
        "segment.bytes": "65536",
        "segment.ms": "604800000",
        "index.interval.bytes": "1024",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "durability": level,
        "min.insync.replicas": str(min_in_sync),
        **{name.replace("_", "."): value for name, value in configs.items()},
    }
    return (ClusterTopic("topic0", partitions, replicas, tuple(all_configs.items())),)


QUIET: Final[dict[str, object]] = {
    "tempo": SHIPPED,
    "clients": NO_CLIENTS,
    "nodes": 3,
    "topics": topics("replicated"),
    "producers": 4,
    "readers": 2,
    "operators": 0,
    "watched": False,
    "rows_max": 8,
    "loss": 0.0,
    "half_open": 0.0,
    "slow_network": 0.0,
    "slow_job": 0.0,
    "death_in_job": 0.0,
    "kill_interval_ms": 0,
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
    "heal_ms": 10_000,
}
LONG: Final[dict[str, Any]] = {"duration_ms": 6_000}
"""Beside a shape: most bugs are met in half the time."""
POWER: Final = {
    **QUIET,
    "power_interval_ms": 700,
    "slow_network": 0.2,
    "newborn_faults": 0.3,
}
"""Machines lose rows that they had not flushed, one at a time."""
SPLIT: Final = {
    **QUIET,
    "nodes": 5,
    "partition_interval_ms": 2_000,
    "partition_ms": 4_000,
    "kill_interval_ms": 1_500,
    "down_ms": 4_000,
}
"""A leader is left alone with the controller, and then lost."""
CAROUSEL: Final = {
    **QUIET,
    "topics": topics("memory"),
    "kill_interval_ms": 2_000,
    "partition_interval_ms": 2_500,
    "partition_ms": 2_500,
    "newborn_faults": 0.5,
    "slow_network": 0.1,
}
"""One leader after the other is lost as soon as it leads."""
DIVERGING: Final = {
    **QUIET,
    "topics": topics("memory"),
    "kill_interval_ms": 2_500,
    "pause_interval_ms": 3_000,
    "pause_ms": 3_000,
    "partition_interval_ms": 2_500,
    "partition_ms": 3_000,
    "slow_network": 0.1,
}
"""Leaders are lost with rows that no other replica has."""
ASKED: Final = {
    **QUIET,
    "watched": True,
    "slow_network": 0.1,
    "newborn_faults": 0.3,
    "kill_interval_ms": 2_500,
    "partition_interval_ms": 3_000,
    "partition_ms": 4_000,
    "pause_interval_ms": 3_000,
    "pause_ms": 4_000,
    "leader_faults": 1.0,
}
"""Many ask where rows end, while one leader after the other is lost or cut off."""
MANAGED: Final = {**SPLIT, "nodes": 3, "operators": 3, "producers": 1, "readers": 1}
"""Topics come and go, while the controller is lost or cut off."""
STRANDED: Final = {
    **QUIET,
    "topics": topics("memory"),
    "aims": AimPlan(stranded_interval_ms=700),
}
"""Leaders come back with rows that no other replica has."""
FLUSHED: Final = {
    **STRANDED,
    "topics": topics("flushed"),
    "power_interval_ms": 1_000_000,
    "aims": AimPlan(stranded_interval_ms=500, unflushed=0.7),
}
"""These rows are on their disks; when they are cut, the machine loses its power soon."""
NEWBORN: Final = {
    **QUIET,
    "topics": topics("memory"),
    "kill_interval_ms": 1_500,
    "aims": AimPlan(stranded_newborn=0.5),
}
"""All rows of an epoch are such rows."""
LEAN: Final = {**QUIET, "topics": topics("memory"), "aims": AimPlan(lean_interval_ms=300)}
"""Copies end at different places when their leader dies."""
HANDED: Final = {
    **QUIET,
    "topics": topics("memory", partitions=1),
    "rows_max": 1,
    "buggy_everywhere": False,
    "aims": AimPlan(handovers_interval_ms=400),
}
"""Two brokers lead by turns without hearing each other: their logs part more than once."""
JOINING: Final = {
    **QUIET,
    "nodes": 5,
    "kill_interval_ms": 1_500,
    "down_ms": 300,
    "power_interval_ms": 1_000_000,
    "aims": AimPlan(joiner=0.7),
}
"""A replica about to join the in-sync set loses its power."""
NO_CONTROLLER: Final = {**QUIET, "nodes": 5, "aims": AimPlan(no_controller_interval_ms=500)}
"""Brokers are cut off from the controller, and from no other node."""
STOPPED: Final = {
    **QUIET,
    "topics": topics("memory", min_in_sync=3),
    "stop_interval_ms": 1_500,
}
"""Too few are in sync while brokers are away that stay eligible."""
ALL_POWER: Final = {
    **QUIET,
    "topics": topics("replicated_flushed"),
    "all_power_interval_ms": 2_000,
    "kill_interval_ms": 1_500,
}
"""All machines lose their power, also while not all copies are in sync."""
MOVING: Final = {
    **QUIET,
    "nodes": 5,
    "kill_interval_ms": 4_000,
    "aims": AimPlan(moves_interval_ms=400),
}
"""Partitions move while clients work."""
WIPED: Final = {**QUIET, "nodes": 5, "plan": FaultPlan.of("wiped disks")}
"""Machines come back with empty disks."""
ONE_SEED: Final = {**WIPED, "plan": FaultPlan.of("wiped disks", seeds=1)}
"""The same, and each has one other broker in its configuration."""
PROVED: Final = {**QUIET, "proofs": True, "rotate_interval_ms": 100}
"""Brokers prove that they are peers, and their secret is replaced again and again."""
ROBBED: Final = {**QUIET, "clients": ClientPlan(thieves=1), "heal_ms": 30_000}
"""A client takes the places of brokers, and announces their stops in their names."""
ROTTEN: Final = {
    **QUIET,
    "topics": topics("replicated", segment_ms="1000"),
    "duration_ms": 4_000,
    "plan": FaultPlan.of("bit flips"),
}
"""Bits turn on the disk of one machine while it is down."""
STRICT: Final = {**POWER, "topics": topics("replicated", min_in_sync=3)}
"""One that leaves the in-sync replicas is eligible at once."""


def course(name: str, level: str = "memory", **fields: object) -> dict[str, object]:
    """One partition on three of four brokers, with the fourth as the controller."""
    return {
        **QUIET,
        "nodes": 4,
        "topics": topics(level, partitions=1),
        "aims": AimPlan(course=name),
        **fields,
    }
