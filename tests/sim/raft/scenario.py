"""What kind of run a seed makes: how many replicas, and how bad their world is."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass

from quiverlog.core.raft.messages import RaftConfig

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Probabilities are per message or per job, intervals means between two events (0: never)."""

    seed: int
    duration_ms: int
    nodes: int
    voters: int
    loss: float
    duplication: float
    reorder: float
    """Messages that take up to ten times as long as others."""
    delay_us: int
    slow_write: float
    write_us: int
    slow_write_us: int
    crash_interval_ms: int
    down_ms: int
    newborn_faults: float
    """How often a leader dies, or is cut off instead of the last one, soon after its election."""
    pause_interval_ms: int
    partition_interval_ms: int
    partition_ms: int
    one_way: float
    leader_faults: float
    """How often a crash or a partition picks the leader, not any replica."""
    wipe_interval_ms: int
    admin_interval_ms: int
    two_changes: float
    proposal_interval_ms: int
    snapshot_interval_ms: int
    snapshot_bytes_max: int
    buggy_everywhere: bool = False
    """A planted bug that needs two sides is in all replicas, otherwise in some only."""
    apart: bool = False
    """Two sets of voters that need not overlap: see `apart`."""
    check_promises: bool = True
    """Look also whether what a message promises is on the plate when it is sent."""
    config: RaftConfig = RaftConfig(  # noqa: RUF009  frozen
        election_timeout_us=300_000,
        heartbeat_us=50_000,
        append_bytes_max=400,
        inflight_messages_max=4,
        inflight_bytes_max=1_200,
        uncommitted_bytes_max=40_000,
        chunk_bytes_max=100,
        apply_bytes_max=300,
        catch_up_entries_max=8,
    )

    @classmethod
    def draw(
        cls, seed: int, *, duration_ms: int, shape: Mapping[str, object] | None = None
    ) -> Scenario:
        """The scenario of a seed, with some fields set by force."""
        rng = random.Random(f"scenario-{seed}")
        nodes = rng.choice((1, 2, 3, 3, 4, 5, 5, 6, 7))
        rough = rng.random()
        drawn = cls(
            seed=seed,
            duration_ms=duration_ms,
            nodes=nodes,
            voters=rng.randint(1, min(nodes, 5)),
            loss=rng.choice((0.0, 0.01, 0.1)) * rough,
            duplication=rng.choice((0.0, 0.05, 0.2)),
            reorder=rng.choice((0.0, 0.1, 0.3)),
            delay_us=rng.choice((1_000, 5_000, 20_000)),
            slow_write=rng.choice((0.0, 0.05, 0.3)),
            write_us=rng.choice((200, 5_000)),
            slow_write_us=rng.choice((50_000, 400_000)),
            crash_interval_ms=rng.choice((0, 400, 1_500)),
            down_ms=rng.choice((50, 500, 2_000)),
            newborn_faults=rng.choice((0.0, 0.3)),
            pause_interval_ms=rng.choice((0, 0, 2_000)),
            partition_interval_ms=rng.choice((0, 600, 2_000)),
            partition_ms=rng.choice((200, 1_500)),
            one_way=rng.choice((0.0, 0.3)),
            leader_faults=rng.choice((0.0, 0.5)),
            wipe_interval_ms=rng.choice((0, 0, 3_000)),
            admin_interval_ms=rng.choice((0, 150, 1_000)),
            two_changes=rng.choice((0.0, 0.3)),
            proposal_interval_ms=rng.choice((5, 30, 200)),
            snapshot_interval_ms=rng.choice((0, 100, 700)),
            snapshot_bytes_max=rng.choice((50, 600)),
        )
        return dataclasses.replace(drawn, **dict(shape or {}))  # type: ignore[arg-type]
