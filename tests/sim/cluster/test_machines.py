"""What goes wrong with single machines happens, and a cluster keeps its promises all the same."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from .fault_plan import KINDS, FaultPlan
from .run import simulate
from .tempo import SHIPPED

_DURATION_MS = 3_000
_SEEDS_MAX = 8
_FIRST_SEEDS: Final = {
    "bit flips": 101,
    "failing disks": 101,
    "no descriptors": 101,
    "old disks": 101,
    "pages out of order": 109,
    "voters": 101,
}
"""Of kinds of which seed 100 shows a part only."""
_OF_MANY: Final = ("wiped disks", "voters", "late brokers")
"""A quorum of three has none to spare."""
_HAPPENS: Final[dict[str, tuple[str, ...]]] = {
    "wiped disks": ("disk wiped",),
    "old disks": ("old disk",),
    "voters": ("voter added", "voter removed"),
    "grown from one": ("a quorum grew",),
    "late brokers": ("a broker joins late",),
    "failing disks": ("writes fail for a while", "EIO append", "restarted by hand"),
    "no descriptors": ("EMFILE",),
    "full disks": ("full disk",),
    "stalling disks": ("stalled disk",),
    "pages out of order": ("pages out of order",),
    "bad links": ("bad links", "overtaken by a later connection"),
    "long pauses": ("pause longer than a session",),
    "clocks": ("clock jump ahead", "clock jump back"),
    "bit flips": ("bit flipped", "damaged replica set aside"),
}


def test_every_kind_is_looked_for() -> None:
    assert set(_HAPPENS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_fault_happens_and_costs_nothing_that_was_promised(kind: str) -> None:
    """By a few seeds: they go on until all of it has been seen."""
    seen = Counter[str]()
    first = _FIRST_SEEDS.get(kind, 100)
    for seed in range(first, first + _SEEDS_MAX):
        nodes = 5 if kind in _OF_MANY else 3
        shape = {"plan": FaultPlan.of(kind), "tempo": SHIPPED, "nodes": nodes}
        result = simulate(seed, duration_ms=_DURATION_MS, shape=shape)
        seen.update(result.faults)
        seen.update(result.events)
        if all(seen[what] for what in _HAPPENS[kind]):
            return
    missing = [what for what in _HAPPENS[kind] if not seen[what]]
    raise AssertionError(f"{missing} did not happen in {_SEEDS_MAX} runs: {dict(seen)}")


def test_plans_differ_and_are_those_of_their_seeds() -> None:
    plans = [FaultPlan.draw(seed) for seed in range(40)]
    assert plans == [FaultPlan.draw(seed) for seed in range(40)]
    assert len(set(plans)) > len(KINDS)
    assert FaultPlan() in plans
