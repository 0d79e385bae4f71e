"""What a planted bug is, and the scenarios that bugs share.

Owns `Bug`: one or two changed lines, and the kind of run that meets them. The lists are in
`storage_bugs` and `node_bugs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from .mutations import Mutation, planted
from .scenario import TopicPlan

__all__ = [
    "AGING_TOPIC",
    "CHANGING",
    "DAMAGED",
    "KILLS_ONLY",
    "LOSSY_TOPIC",
    "ONE_TOPIC",
    "OVERTAKING",
    "QUIET",
    "SHORT_SEGMENTS",
    "STRANGE",
    "TINY_SEGMENTS",
    "TRIMMED",
    "TWO_PARTITIONS",
    "Bug",
    "make_bug",
]


@dataclass(frozen=True, slots=True)
class Bug:
    """One changed line, or two where each alone is covered by the other."""

    name: str
    changes: tuple[Mutation, ...]
    issue: str = ""
    seed: int = 0
    opened: frozenset[str] = frozenset()
    """Gates that the bug needs open."""
    shape: tuple[tuple[str, object], ...] = ()
    """Fields of the scenario that the bug needs, so that few runs meet it."""

    def plant(self) -> AbstractContextManager[None]:
        """The bug is there for the length of the `with`."""
        return planted(self.changes)


def make_bug(
    name: str,
    where: str,
    before: str,
    after: str,
    *,
    issue: str = "",
    seed: int = 0,
    opened: tuple[str, ...] = (),
    shape: Mapping[str, object] | None = None,
    also: tuple[tuple[str, str, str], ...] = (),
) -> Bug:
    shapes = tuple((shape or {}).items())
    changes = (Mutation(where, before, after), *(Mutation(*change) for change in also))
    return Bug(name, changes, issue, seed, frozenset(opened), shapes)


ONE_TOPIC = (
    TopicPlan(
        name="topic0",
        partitions=1,
        configs={
            "segment.bytes": "65536",
            "segment.ms": "604800000",
            "index.interval.bytes": "1024",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "durability": "flushed",
        },
    ),
)
TINY_SEGMENTS = (
    # Files have an eighth of the bound.
    replace(
        ONE_TOPIC[0],
        configs={**ONE_TOPIC[0].configs, "retention.bytes": "65536", "segment.ms": "1000"},
    ),
)
SHORT_SEGMENTS = (replace(ONE_TOPIC[0], configs={**ONE_TOPIC[0].configs, "segment.ms": "1000"}),)
LOSSY_TOPIC = (replace(ONE_TOPIC[0], configs={**ONE_TOPIC[0].configs, "durability": "memory"}),)
AGING_TOPIC = (replace(ONE_TOPIC[0], configs={**ONE_TOPIC[0].configs, "retention.ms": "6000"}),)
TWO_PARTITIONS = (replace(ONE_TOPIC[0], partitions=2),)
QUIET: dict[str, object] = {
    "topics": ONE_TOPIC,
    "producers": 2,
    "readers": 1,
    "trimmers": 0,
    "followers": 0,
    "admins": 0,
    "client_producers": 0,
    "client_consumers": 0,
    "anonymous": 0,
    "strangers": 0,
    "bit_flip": 0.0,
    "header_flips": 0.0,
    "entry_flips": 0.0,
    "payload_batches": 0.0,
    "page_order": False,
    "segment_gone": 0.0,
    "newest_gone": 0.0,
    "log_start_damaged": 0.0,
    "snapshots_exchanged": 0.0,
    "failed_sync": 0.0,
    "sync_errors": 0.0,
    "read_errors": 0.0,
    "write_errors": 0.0,
    "evictions": 0.0,
    "emfile_interval_ms": 0,
    "clock_jump_interval_ms": 0,
    "cut_interval_ms": 0,
    "naps": 0.0,
    "hasty": 0.0,
    "stronger_again": 0.0,
    "full_segments": 0.0,
    "failed_trim": 0.0,
    "trim_interval_ms": 3_000,
    "death_after_trim": 0.0,
    "death_interval_ms": 400,
    "full_disk_interval_ms": 0,
    "kills_only": False,
    "last_power_loss": True,
}
"""One small topic, deaths and nothing else: what a bug needs is added."""


KILLS_ONLY: dict[str, object] = {"kills_only": True, "death_in_job": 0.0, "death_in_call": 0.0}
"""Processes end, machines go on: all that was written is still there."""

OVERTAKING = {
    **QUIET,
    "topics": TWO_PARTITIONS,
    "entries_max": 3,
    "slow_job": 0.5,
    "hasty": 0.25,
}

DAMAGED: dict[str, object] = {
    **QUIET,
    "producers": 4,
    "readers": 2,
    "followers": 2,
    "rows_max": 8,
    "header_flips": 1.0,
    "death_interval_ms": 500,
}
"""Headers of batches are damaged that an index has entries for."""

STRANGE: dict[str, object] = {**QUIET, "strangers": 2, "death_interval_ms": 4_000}
"""A client sends odd requests all the time."""

CHANGING: dict[str, object] = {
    **QUIET,
    "entries_max": 3,
    "admins": 2,
    "death_interval_ms": 100_000,
}

TRIMMED: dict[str, object] = {
    **QUIET,
    "topics": TINY_SEGMENTS,
    "producers": 3,
    "trimmers": 2,
    "rows_max": 24,
    "trim_interval_ms": 200,
    "slow_job": 0.5,
    "death_interval_ms": 1_000,
}
"""Files come and go, and several jobs of one log are under way."""
