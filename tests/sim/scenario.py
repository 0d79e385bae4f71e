"""What one seed decides: the probabilities of faults and the shape of the work.

Drawn once per run so that runs differ in kind, not only in order: some have a calm network and a
murderous disk, some the other way round (TigerBeetle's and FoundationDB's swarm testing).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .gates import CLOSED, check_names

__all__ = ["Scenario", "TopicPlan", "draw_configs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic as it is asked for."""

    name: str
    partitions: int
    configs: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Probabilities are per opportunity; times are simulated."""

    seed: int
    duration_ms: int
    opened: frozenset[str]
    """Gates that are open although `gates.CLOSED` names them."""
    nodes: int
    producers: int
    readers: int
    trimmers: int
    followers: int
    admins: int
    client_producers: int
    """Of the shipped client; so are the consumers."""
    client_consumers: int
    topics: tuple[TopicPlan, ...]
    loss: float
    half_open: float
    """Chance that the broker learns late of a broken connection, and of requests sent over it."""
    slow_network: float
    cut_up: float
    cut_interval_ms: int
    death_in_call: float
    death_in_job: float
    slow_job: float
    failed_sync: float
    failed_trim: float
    """The same for the first fsync of a trim alone."""
    sync_errors: float
    read_errors: float
    write_errors: float
    evictions: float
    death_interval_ms: int
    """Mean time between deaths from outside (power, kill, clean stop)."""
    full_disk_interval_ms: int
    full_segments: float
    """Chance that a new segment finds no room for its first rows."""
    emfile_interval_ms: int
    clock_jump_interval_ms: int
    bit_flip: float
    """Chance that a power loss also flips a bit of what was durable."""
    page_order: bool
    retention_check_ms: int
    rows_max: int
    entries_max: int
    payload_batches: float
    """Share of batches of which the payload holds the bytes of another batch."""
    header_flips: float
    """Chance that a power loss also flips a bit in the header of a batch."""
    entry_flips: float
    """Chance that any end of a process flips one in a batch to which an index leads."""
    segment_gone: float
    """Chance that a power loss takes the oldest file of a log along."""
    newest_gone: float
    """Chance that a clean stop is followed by the loss of the newest file of a log."""
    log_start_damaged: float
    snapshots_exchanged: float
    """Chance that any end of a process puts another's in place of all producer snapshots."""
    naps: float
    """Chance that a follower of a log pauses for long enough that other rows take its place."""
    trim_interval_ms: int
    """Longest time between two trims of one trimmer."""
    death_after_trim: float
    """Chance that the machine or the process dies within a moment of a confirmed trim."""
    hasty: float
    """Share of produces whose time is up before a slow flush is back."""
    stronger_again: float
    """Share of produces that ask for `flushed` only when they are sent again."""
    anonymous: int
    """Producers without an identity, which send several batches in one entry."""
    strangers: int
    """Clients that ask for odd things, and send what must be refused."""
    kills_only: bool
    """Deaths from outside spare what was written, durable or not."""
    last_power_loss: bool
    """Does the power fail at the end of the faults? If not, it does half a minute later only."""

    def gate(self, name: str) -> bool:
        """Is this gate open?"""
        check_names(frozenset((name,)))
        return name not in CLOSED or name in self.opened

    @classmethod
    def draw(
        cls, seed: int, *, duration_ms: int = 20_000, opened: frozenset[str] = frozenset()
    ) -> Scenario:
        """The scenario of a seed."""
        check_names(opened)
        rng = random.Random(f"scenario-{seed}")
        faulty_network = rng.random() < 0.6
        faulty_disk = rng.random() < 0.3

        def allowed(gate: str) -> bool:
            return gate not in CLOSED or gate in opened

        def gated(gate: str, *choices: float) -> float:
            value = rng.choice(choices)  # Drawn in any case: a gate must not change the rest.
            return value if allowed(gate) else 0.0

        return cls(
            seed=seed,
            duration_ms=duration_ms,
            opened=opened,
            nodes=1,
            producers=rng.randint(1, 2),
            readers=rng.randint(1, 2),
            trimmers=rng.randint(0, 1),
            followers=rng.randint(0, 2),
            admins=int(gated("topic-changes", 0, 1, 1, 2)),
            client_producers=rng.randint(0, 1),
            client_consumers=rng.randint(0, 1),
            topics=tuple(_topic(rng, i) for i in range(rng.randint(1, 3))),
            loss=rng.choice((0.01, 0.05)) if faulty_network else 0.0,
            half_open=rng.choice((0.0, 0.5)),
            slow_network=rng.choice((0.0, 0.0, 0.05)),
            cut_up=rng.choice((0.0, 0.1, 0.5)),
            cut_interval_ms=int(gated("cuts", 0, 0, 2_000)),
            death_in_call=rng.choice((0.0, 0.002, 0.01)),
            death_in_job=rng.choice((0.0, 0.01, 0.05)),
            slow_job=rng.choice((0.0, 0.1, 0.5)),
            failed_sync=rng.choice((0.002, 0.01)) if faulty_disk else 0.0,
            sync_errors=gated("sync-errors", 0.0, 0.002) if faulty_disk else 0.0,
            read_errors=gated("read-errors", 0.0, 0.0, 0.002) if faulty_disk else 0.0,
            write_errors=gated("write-errors", 0.0, 0.002) if faulty_disk else 0.0,
            evictions=gated("evictions", 0.0, 0.0, 0.1),
            death_interval_ms=rng.choice((400, 1_000, 4_000)),
            full_disk_interval_ms=rng.choice((0, 0, 5_000)),
            emfile_interval_ms=int(gated("emfile", 0, 0, 2_000)),
            clock_jump_interval_ms=int(gated("clock-jump", 0, 0, 3_000)),
            bit_flip=rng.choice((0.0, 1.0)),
            page_order=bool(gated("page-order", 0, 0, 1)),
            retention_check_ms=rng.choice((200, 1_000)),
            rows_max=rng.choice((1, 8, 24)),
            entries_max=rng.choice((1, 1, 3)),
            payload_batches=gated("payload-batches", 0.0, 0.0, 0.2),
            header_flips=rng.choice((0.0, 0.0, 0.5)),
            segment_gone=gated("segment-gone", 0.0, 0.0, 0.3),
            log_start_damaged=gated("log-start-damaged", 0.0, 0.0, 0.3),
            snapshots_exchanged=0.0,  # In the shape of a planted bug only.
            naps=rng.choice((0.0, 0.05)),
            trim_interval_ms=rng.choice((300, 3_000, 3_000)),
            death_after_trim=rng.choice((0.0, 0.0, 0.3)),
            hasty=rng.choice((0.0, 0.25)),
            failed_trim=rng.choice((0.0, 0.1)) if faulty_disk else 0.0,
            full_segments=rng.choice((0.0, 0.0, 0.0, 0.1)),
            stronger_again=rng.choice((0.0, 0.5)),
            anonymous=rng.choice((0, 0, 1)),
            strangers=rng.choice((0, 0, 1)),
            kills_only=rng.random() < 0.1,
            last_power_loss=rng.random() < 0.8,
            newest_gone=gated("segment-gone", 0.0, 0.0, 0.3),
            entry_flips=rng.choice((0.0, 0.0, 0.5)),
        )


def draw_configs(rng: random.Random) -> dict[str, str]:
    """A topic's settings."""
    return {
        "segment.bytes": str(rng.choice((65_536, 131_072))),
        "segment.ms": str(rng.choice((1_000, 604_800_000))),
        "index.interval.bytes": str(rng.choice((1_024, 4_096))),
        "retention.ms": str(rng.choice((-1, -1, 2_000, 6_000))),
        "retention.bytes": str(rng.choice((-1, -1, -1, 65_536, 400_000))),
        "durability": rng.choice(("flushed", "flushed", "flushed", "memory")),
    }


def _topic(rng: random.Random, index: int) -> TopicPlan:
    return TopicPlan(name=f"topic{index}", partitions=rng.randint(1, 2), configs=draw_configs(rng))
