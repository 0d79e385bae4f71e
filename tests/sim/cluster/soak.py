"""Long runs: seeds that nobody has run, on all cores, until so many hours were simulated.

Owns the choice of seeds (from one that is printed, upwards) and the sum of what happened. Hours of
runs that failed are not counted; those at the shipped timing are told apart from those of slow runs
(see `tempo`), in which fewer things happen in an hour.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

from tests.sim.checker import Violation
from tests.sim.stats import report

from .run import ClusterResult, simulate

__all__ = ["soak"]

_PROCESSES = 2
_DURATION_MS = 20_000


def _one(seed: int, duration_ms: int) -> ClusterResult | str:
    try:
        return simulate(seed, duration_ms=duration_ms)
    except Violation as violation:
        return str(violation)


def soak(hours: float, *, first: int | None = None, duration_ms: int = _DURATION_MS) -> int:
    """Returns how many runs broke a promise; each is printed with the command that shows it."""
    seed = random.SystemRandom().randrange(10**6, 10**9) if first is None else first
    print(f"seeds from {seed} on, {duration_ms / 1000:.0f} s of work at the shipped timing each")
    began, simulated_s, shipped_s, failed, count = time.monotonic(), 0.0, 0.0, 0, 0
    timers_s = 0.0
    totals: Counter[str] = Counter()
    with ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool:
        running: set[Future[ClusterResult | str]] = set()
        while simulated_s < hours * 3600 or running:
            while len(running) < 2 * _PROCESSES and simulated_s < hours * 3600:
                running.add(pool.submit(_one, seed, duration_ms))
                seed += 1
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                count += 1
                if isinstance(result, str):
                    failed += 1
                    print(f"FAILED {result}", flush=True)
                    continue
                simulated_s += result.simulated_s
                timers_s += result.simulated_s / result.tempo.scale
                shipped_s += result.simulated_s if result.tempo.is_shipped else 0.0
                totals.update(result.faults)
                totals.update(result.events)
                totals["rows acknowledged"] += result.rows_acknowledged
                totals["elections"] += result.elections
                totals["batches compared"] += result.compared
    print(report(totals))
    took_s = time.monotonic() - began
    print(
        f"{count - failed} of {count} runs kept every promise: {simulated_s / 3600:.2f} simulated"
        f" hours in {took_s / 60:.1f} minutes, {simulated_s / took_s:.0f} seconds per second"
    )
    print(
        f"of these {shipped_s / 3600:.2f} hours at the shipped timing; counted in heartbeats, all"
        f" runs are {timers_s / 3600:.2f} hours of it"
    )
    return failed
