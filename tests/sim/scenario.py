"""What one seed decides: the probabilities of faults and the shape of the work.

Drawn once per run so that runs differ in kind, not only in order: some have a calm network and a
murderous disk, some the other way round (TigerBeetle's and FoundationDB's swarm testing).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Scenario", "TopicPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic of the run and what the checker must know of it."""

    name: str
    partitions: int
    durability: str
    configs: dict[str, str]
    retention_ms: int = -1
    retention_bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Probabilities are per opportunity; times are simulated."""

    seed: int
    duration_ms: int
    producers: int
    readers: int
    trimmers: int
    followers: int
    topics: tuple[TopicPlan, ...]
    lost_request: float
    lost_response: float
    half_open: float
    """Chance that the broker hears late of a broken connection, and of requests sent over it."""
    slow_network: float
    power_loss_in_call: float
    slow_sync: float
    failed_sync: float
    death_interval_ms: int
    """Mean time between deaths from outside (power, kill, clean stop)."""
    full_disk_interval_ms: int
    bit_flip: float
    """Chance that a power loss also flips a bit of what was durable."""
    retention_check_ms: int
    rows_max: int

    @classmethod
    def draw(cls, seed: int, *, duration_ms: int = 20_000) -> Scenario:
        """The scenario of a seed."""
        rng = random.Random(f"scenario-{seed}")
        faulty_network = rng.random() < 0.6
        faulty_disk = rng.random() < 0.3
        return cls(
            seed=seed,
            duration_ms=duration_ms,
            producers=rng.randint(1, 3),
            readers=rng.randint(1, 2),
            trimmers=rng.randint(0, 1),
            followers=rng.randint(0, 2),
            topics=tuple(_topic(rng, i) for i in range(rng.randint(1, 3))),
            lost_request=rng.choice((0.01, 0.05)) if faulty_network else 0.0,
            lost_response=rng.choice((0.01, 0.05)) if faulty_network else 0.0,
            half_open=rng.choice((0.0, 0.5)),
            slow_network=rng.choice((0.0, 0.0, 0.05)),
            power_loss_in_call=rng.choice((0.0, 0.002, 0.01)),
            slow_sync=rng.choice((0.0, 0.1, 0.5)),
            failed_sync=rng.choice((0.002, 0.01)) if faulty_disk else 0.0,
            death_interval_ms=rng.choice((400, 1_000, 4_000)),
            full_disk_interval_ms=rng.choice((0, 0, 5_000)),
            bit_flip=rng.choice((0.0, 1.0)),
            retention_check_ms=rng.choice((200, 1_000)),
            rows_max=rng.choice((1, 8, 64)),
        )


def _topic(rng: random.Random, index: int) -> TopicPlan:
    configs = {
        "segment.bytes": str(rng.choice((65_536, 131_072))),
        "index.interval.bytes": str(rng.choice((1_024, 4_096))),
    }
    retention_ms = rng.choice((-1, -1, 2_000, 6_000))
    retention_bytes = rng.choice((-1, -1, -1, 400_000))
    configs["retention.ms"] = str(retention_ms)
    configs["retention.bytes"] = str(retention_bytes)
    durability = rng.choice(("flushed", "flushed", "flushed", "memory"))
    configs["durability"] = durability
    return TopicPlan(
        name=f"topic{index}",
        partitions=rng.randint(1, 2),
        durability=durability,
        configs=configs,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
    )
