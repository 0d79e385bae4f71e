"""What goes wrong and when: a schedule drawn from a seed, before anything runs.

Owns the kinds of faults, how often each is drawn, and how long it lasts. Targets that depend on the
run (the leader) are drawn by their part and looked up when the fault begins, so the schedule of a
seed is the same in every run.

Not here: how a fault is made to happen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["KINDS", "LANES", "NODE_IDS", "Fault", "draw"]

NODE_IDS: Final = (1, 2, 3)
SETTLE_S: Final = 3.0
"""Nothing goes wrong before: producers get their first rows through."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: from `at_s` after the begin on, for `lasts_s`.

    `target`: "leader" (of the partition that `choice` picks), "controller", or a node id.
    `other`: the second broker of a fault of two; `amount`: seconds of delay, or bytes per second.
    """

    at_s: float
    lasts_s: float
    kind: str
    target: str
    other: int
    choice: int
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.at_s:6.1f} s  {self.kind} of {self.target} for {self.lasts_s:.1f} s"


PROCESS: Final = {
    "kill": (6, 0.0, 6.0),
    "kill two": (1, 0.0, 4.0),
    "kill all": (1, 0.0, 2.0),
    "pause": (5, 0.3, 9.0),
    "stop": (2, 0.0, 3.0),
}
"""kind -> weight, shortest and longest in seconds."""
NETWORK: Final = {
    "cut": (2, 0.0, 0.2),
    "cut for long": (2, 1.0, 8.0),
    "isolate": (2, 1.0, 10.0),
    "isolate from brokers": (3, 1.0, 10.0),
    "isolate from clients": (1, 1.0, 6.0),
    "receive nothing": (2, 1.0, 9.0),
    "send nothing": (2, 1.0, 9.0),
    "blackhole": (2, 1.0, 10.0),
    "delay": (3, 1.0, 8.0),
    "throttle": (2, 2.0, 8.0),
}
DISK: Final = {
    "little room": (2, 2.0, 6.0),
    "full disk": (2, 2.0, 6.0),
}
TRANSACTIONS: Final = {"die in a transaction": (1, 3.0, 6.0)}
LANES: Final = {
    "process": (PROCESS, 1.0, 7.0),
    "network": (NETWORK, 0.5, 6.0),
    "disk": (DISK, 8.0, 25.0),
    "transactions": (TRANSACTIONS, 1.0, 8.0),
}
"""Lanes run side by side; in each, one fault after the other with a pause between: (kinds,
shortest and longest pause)."""
KINDS: Final = tuple(kind for kinds, _, _ in LANES.values() for kind in kinds)


def draw(seed: int, duration_s: float) -> list[Fault]:
    """The faults of a run, in the order in which they begin; the last end with `duration_s`."""
    assert duration_s > 0
    found: list[Fault] = []
    for name in LANES:
        found += _lane(random.Random(f"{seed}/{name}"), name, duration_s)
    return sorted(found, key=lambda fault: (fault.at_s, fault.kind))


def _lane(rng: random.Random, name: str, duration_s: float) -> Iterator[Fault]:
    kinds, pause_min_s, pause_max_s = LANES[name]
    weights = [weight for weight, _, _ in kinds.values()]
    at_s = SETTLE_S
    while True:
        at_s += rng.uniform(pause_min_s, pause_max_s)
        kind = rng.choices(list(kinds), weights)[0]
        _, shortest_s, longest_s = kinds[kind]
        lasts_s = rng.uniform(shortest_s, longest_s)
        target = rng.choice(("leader", "leader", "controller", *map(str, NODE_IDS)))
        other, choice = rng.choice(NODE_IDS), rng.randrange(1 << 16)
        amount = rng.uniform(0.002, 0.4) if kind == "delay" else 10 ** rng.uniform(3.7, 5.7)
        if at_s + lasts_s > duration_s:
            return
        yield Fault(
            round(at_s, 3), round(lasts_s, 3), kind, target, other, choice, round(amount, 3)
        )
        at_s += lasts_s
