"""The sums of long runs: what is counted, and apart from what."""

from __future__ import annotations

from .run import simulate
from .soak import Sums
from .tempo import Tempo


def test_hours_at_the_shipped_timing_are_counted_apart() -> None:
    fast = simulate(0, duration_ms=500, shape={"tempo": Tempo()})
    slow = simulate(0, duration_ms=500, shape={"tempo": Tempo(scale=3)})
    sums = Sums()
    sums.add(fast)
    sums.add(slow)
    sums.add("seed 7: a promise was broken")
    assert (sums.shipped.runs, sums.slow.runs, sums.failed) == (1, 1, 1)
    assert sums.simulated_s == fast.simulated_s + slow.simulated_s
    assert sums.slow.timers_s == slow.simulated_s / 3
    assert sums.shipped.moments == fast.moments > 100
    assert "of 10 hours: 2 of 3 runs" in sums.so_far(10, last_seed=8)
    summary = sums.summary(took_s=2.0)
    assert "2 of 3 runs kept every promise" in summary
    assert "at the shipped timing: 0.0" in summary
    assert "rows acknowledged" in summary


def test_nothing_was_run() -> None:
    sums = Sums()
    assert "slower: none" in sums.summary(took_s=1.0)
    assert sums.simulated_s == 0
