"""Long runs: seeds that no run has had, on all cores, until the asked hours were simulated.

Owns the choice of seeds (from one that is printed, upwards) and the sum of what happened. Hours of
runs that failed are not counted; those at the shipped timing are counted apart from those of slow
runs (see `tempo`), in which fewer things happen in an hour: what an hour of either kind held is
printed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.sim.checker import Violation
from tests.sim.stats import report

from .run import ClusterResult, simulate

__all__ = ["Hours", "Sums", "soak"]

_PROCESSES = 2
_DURATION_MS = 20_000
_RUNS_PER_LINE = 20
"""A line reports the progress after this many runs: a long run may be ended before its end."""


@dataclass(slots=True)
class Hours:
    """What runs of one kind amounted to."""

    runs: int = 0
    simulated_s: float = 0.0
    timers_s: float = 0.0
    """Counted in heartbeats of the shipped timing."""
    moments: int = 0
    faults: int = 0
    rows: int = 0

    def add(self, result: ClusterResult) -> None:
        """One more run has kept every promise."""
        self.runs += 1
        self.simulated_s += result.simulated_s
        self.timers_s += result.simulated_s / result.tempo.scale
        self.moments += result.moments
        self.faults += sum(result.faults.values())
        self.rows += result.rows_acknowledged

    def summary(self, kind: str) -> str:
        """How long, and what an hour held."""
        hours = self.simulated_s / 3600
        if not hours:
            return f"{kind}: none"
        return (
            f"{kind}: {hours:.2f} hours in {self.runs} runs ({self.timers_s / 3600:.2f} counted in"
            f" heartbeats); an hour held {self.moments / hours:,.0f} events,"
            f" {self.faults / hours:,.0f} faults and {self.rows / hours:,.0f} rows acknowledged"
        )


@dataclass(slots=True)
class Sums:
    """What many runs amounted to. `failed`: how many broke a promise."""

    failed: int = 0
    shipped: Hours = field(default_factory=Hours)
    slow: Hours = field(default_factory=Hours)
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)

    @property
    def simulated_s(self) -> float:
        """Of all runs that kept every promise."""
        return self.shipped.simulated_s + self.slow.simulated_s

    def add(self, result: ClusterResult | str) -> None:
        """A run is over; a text names the promise that it broke."""
        if isinstance(result, str):
            self.failed += 1
            return
        (self.shipped if result.tempo.is_shipped else self.slow).add(result)
        self.faults.update(result.faults)
        self.events.update(result.events)
        self.events["rows acknowledged"] += result.rows_acknowledged
        self.events["elections"] += result.elections
        self.events["batches compared"] += result.compared
        self.events["windows of histories judged"] += result.judged

    def so_far(self, hours: float, *, last_seed: int) -> str:
        """One line for a run that goes on. Seeds up to the last one are over, or under way."""
        count = self.shipped.runs + self.slow.runs
        return (
            f"{self.simulated_s / 3600:.2f} of {hours:g} hours: {count} of {count + self.failed}"
            f" runs kept every promise, seeds up to {last_seed}"
        )

    def summary(self, took_s: float) -> str:
        """Everything that happened, faults by kind, and hours."""
        count = self.shipped.runs + self.slow.runs
        return "\n".join((
            "what happened",
            report(self.events),
            "faults",
            report(self.faults),
            self.shipped.summary("at the shipped timing"),
            self.slow.summary("slower"),
            f"{count} of {count + self.failed} runs kept every promise:"
            f" {self.simulated_s / 3600:.2f} simulated hours in {took_s / 60:.1f} minutes,"
            f" {self.simulated_s / took_s:.0f} seconds per second",
        ))  # fmt: skip


def _one(seed: int, duration_ms: int) -> ClusterResult | str:
    try:
        return simulate(seed, duration_ms=duration_ms)
    except Violation as violation:
        return str(violation)


def soak(hours: float, *, first: int | None = None, duration_ms: int = _DURATION_MS) -> int:
    """Returns how many runs broke a promise; each is printed with the command that shows it."""
    seed = random.SystemRandom().randrange(10**6, 10**9) if first is None else first
    print(f"seeds from {seed} on, {duration_ms / 1000:.0f} s of work at the shipped timing each")
    began, sums = time.monotonic(), Sums()
    with ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool:
        running: set[Future[ClusterResult | str]] = set()
        while sums.simulated_s < hours * 3600 or running:
            while len(running) < 2 * _PROCESSES and sums.simulated_s < hours * 3600:
                running.add(pool.submit(_one, seed, duration_ms))
                seed += 1
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                sums.add(result)
                if isinstance(result, str):
                    print(f"FAILED {result}", flush=True)
                if (sums.shipped.runs + sums.slow.runs + sums.failed) % _RUNS_PER_LINE == 0:
                    print(sums.so_far(hours, last_seed=seed - 1), flush=True)
    print(sums.summary(time.monotonic() - began))
    return sums.failed
