"""How long writes pause when their leader is killed: a distribution over many kills.

Three brokers with default timeouts, one producer of the level `replicated` that sends all the time
(`tests.chaos.failover`, which also checks that no acknowledged row is gone). The bound is in the
baseline's place. All but some tenths of a second is the session timeout, 2 s.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import Final

import uvloop

from benchmarks.harness import Comparison, Settings
from tests.chaos.failover import failover

KILLS: Final = 30
FAILOVER_S_MAX: Final = 3.0


def run(settings: Settings) -> list[Comparison]:
    kills = settings.scaled(KILLS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(failover(kills, 0, lambda _text: None))
    assert not found.problems, found.problems
    ordered = sorted(found.writes_s)
    p90 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    what = f"leader killed {kills} times, until the next acknowledged write"
    figures = (("median", statistics.median(ordered)), ("p90", p90), ("max", ordered[-1]))
    return [
        Comparison(
            f"{what}: {part}",
            "s",
            [figure],
            [FAILOVER_S_MAX],
            budget=1.0,
            bigger_is_better=False,
        )
        for part, figure in figures
    ]
