"""What is measured beside Kafka, and how: one row of the table has one figure a round of each side.

Sides are quiverlog, and Kafka with its own defaults and tuned. They take turns within each round,
and each round begins with another side. What a part measures must not depend on the other parts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.kafka.brokers import DEFAULT, TUNED, Cluster
from benchmarks.kafka.report import OURS

__all__ = ["OURS", "Plan", "Row", "both_clusters", "in_turns"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure. `quick` is for trying the benchmark out, never for a claim."""

    quick: bool = False
    rounds: int = 3

    def scaled(self, count: int, *, at_least: int = 1) -> int:
        """`count` for a real run, an eighth of it for a quick one."""
        return max(at_least, count // 8) if self.quick else count


@dataclass(frozen=True, slots=True)
class Row:
    """`figures`: of quiverlog and of each set of Kafka's settings, one a round."""

    what: str
    unit: str
    figures: Mapping[str, Sequence[float]] = field(default_factory=dict)
    bigger_is_better: bool = True


def in_turns(
    rounds: int, sides: Mapping[str, Callable[[], float]], *, warmups: int = 1
) -> dict[str, list[float]]:
    """Run the sides in turns; those of the first `warmups` rounds are thrown away."""
    names = list(sides)
    figures: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warmups, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            figure = sides[name]()
            if number >= 0:
                figures[name].append(figure)
        if number >= 0:
            shown = ", ".join(f"{n} {statistics.median(f):,.4g}" for n, f in figures.items())
            print(f"  round {number + 1} of {rounds}: {shown}", flush=True)
    return figures


@contextmanager
def both_clusters(count: int) -> Iterator[dict[str, Cluster]]:
    """Kafka with its defaults, and tuned, each `count` brokers, by the name of the settings."""
    with Cluster(count, DEFAULT) as default, Cluster(count, TUNED) as tuned:
        yield {cluster.tuning.name: cluster for cluster in (default, tuned)}
