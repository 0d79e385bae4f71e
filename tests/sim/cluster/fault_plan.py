"""What one seed decides about machines: their disks, their links, and the members of the cluster.

Owns the kinds of faults beside deaths, pauses and partitions (which `scenario` draws), each with an
intensity. A run has none to three of them, so that each run is bad in a way of its own.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Final

__all__ = ["CALM", "KINDS", "FaultPlan"]

_STRONG: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "wiped disks": {"wipe_interval_ms": (500, 2_000)},
    "old disks": {"old_disk_interval_ms": (500, 2_000)},
    "voters": {"voters_interval_ms": (200, 1_000)},
    "grown from one": {"first_voters": (1,)},
    "late brokers": {"late": (1, 2), "late_ms": (300, 2_000)},
    "failing disks": {"disk_error_interval_ms": (400, 1_500)},
    "no descriptors": {"emfile_interval_ms": (300, 1_000)},
    "full disks": {"full_interval_ms": (500, 1_500)},
    "stalling disks": {"stall_interval_ms": (500, 1_500)},
    "pages out of order": {"page_order": (1,), "lonely_power_interval_ms": (400,)},
    "bad links": {"link_interval_ms": (200, 600)},
    "long pauses": {"long_pause_interval_ms": (1_000, 3_000)},
    "clocks": {"clock_interval_ms": (200, 600)},
    "bit flips": {"flip_interval_ms": (300, 1_000)},
}
KINDS: Final = tuple(_STRONG)
"""Kinds of faults that a run may have."""
_MORE: Final = (0, 0, 0, 1, 2)
_WITHOUT: Final = 4
"""The number of seeds without a kind of their own, behind one of each kind."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Intervals are means between two events of the whole cluster, in simulated time (0: never)."""

    wipe_interval_ms: int = 0
    old_disk_interval_ms: int = 0
    seeds: int = 0
    """The number of others in each node's configuration; 0: all. The leader is often not among
    them.
    """
    first_voters: int = 0
    """The number of nodes that vote at the beginning; 0: all that are there."""
    voters_interval_ms: int = 0
    """An operator adds and removes voters."""
    late: int = 0
    """The number of nodes that join while clients work, where three others are there before."""
    late_ms: int = 0
    disk_error_interval_ms: int = 0
    emfile_interval_ms: int = 0
    full_interval_ms: int = 0
    stall_interval_ms: int = 0
    flip_interval_ms: int = 0
    page_order: int = 0
    lonely_power_interval_ms: int = 0
    link_interval_ms: int = 0
    long_pause_interval_ms: int = 0
    clock_interval_ms: int = 0

    @property
    def costs_rows(self) -> bool:
        """May a machine lack rows afterwards that it had?"""
        return bool(
            self.wipe_interval_ms or self.old_disk_interval_ms or self.disk_error_interval_ms
            or self.flip_interval_ms or self.lonely_power_interval_ms
        )  # fmt: skip

    @property
    def has_operator(self) -> bool:
        """Return whether only an operator's commands change the voters."""
        # A disk that is ever to be an old one must not be given a vote.
        return bool(
            self.voters_interval_ms or (self.wipe_interval_ms and self.old_disk_interval_ms)
        )

    @classmethod
    def draw(cls, seed: int) -> FaultPlan:
        """The plan of a seed: each kind has its turn, and others come by chance."""
        rng = random.Random(f"cluster-faults-{seed}")
        turn = seed % (len(KINDS) + _WITHOUT)
        fields: dict[str, int] = {}
        for kind in (*KINDS[turn : turn + 1], *rng.sample(KINDS, rng.choice(_MORE))):
            for name, values in _STRONG[kind].items():
                fields[name] = rng.choice(values)
        return cls(**fields)

    @classmethod
    def of(cls, *kinds: str, **fields: int) -> FaultPlan:
        """A plan with these kinds, each as strong as it gets, and some fields set."""
        chosen: dict[str, int] = {}
        for kind in kinds:
            chosen.update({name: values[0] for name, values in _STRONG[kind].items()})
        return dataclasses.replace(cls(**chosen), **fields)


CALM: Final = FaultPlan()
