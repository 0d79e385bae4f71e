"""`python -m tests.sim --seed N` replays one run; `--seeds N` runs many; `--bugs` plants bugs.

With `--cluster` the runs are those of several nodes (`tests.sim.cluster`).
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from .bugs import Caught, hunt, hunt_all, print_table, write_table
from .checker import Violation
from .cluster import __main__ as cluster
from .planted import BUGS
from .run import simulate
from .stats import report


def main() -> int:
    if "--cluster" in sys.argv:
        return cluster.main()
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one run")
    parser.add_argument("--seeds", type=int, help="how many runs (from --first)")
    parser.add_argument("--first", type=int, default=0, help="first seed of many")
    parser.add_argument("--duration-ms", type=int, help="simulated work per run")
    parser.add_argument("--open", action="append", default=[], help="open a gate (gates.py)")
    parser.add_argument("--stats", action="store_true", help="count what happened in all runs")
    parser.add_argument("--bugs", action="store_true", help="plant each bug and show its seed")
    parser.add_argument("--bug", help="plant the bugs with this text in their name")
    parser.add_argument("--table", type=Path, help="with --bugs: write the table to this file, too")
    options = parser.parse_args()
    wants_bugs = options.bugs or options.bug is not None
    options.seeds = options.seeds or (60 if wants_bugs else 20)
    options.duration_ms = options.duration_ms or (4_000 if wants_bugs else 20_000)
    if wants_bugs:
        return _bugs(options)
    first = options.first if options.seed is None else options.seed
    count = options.seeds if options.seed is None else 1
    failed = 0
    simulated_s = 0.0
    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        began = time.process_time()
        try:
            result = simulate(seed, duration_ms=options.duration_ms, opened=frozenset(options.open))
        except Violation as violation:
            failed += 1
            print(f"FAILED {violation}", flush=True)
            if options.seed is not None:
                traceback.print_exception(violation)
            continue
        simulated_s += result.simulated_s
        counts.update(result.faults)
        counts.update(result.events)
        took = time.process_time() - began
        print(
            f"seed {seed:5d}: {result.rows_acknowledged:6d} rows acknowledged,"
            f" {result.rows_seen:7d} read, {result.lives:3d} lives,"
            f" {result.power_losses:3d} power losses, {result.simulated_s:6.1f} s in {took:4.1f} s"
        )
    if options.stats:
        print(report(counts))
    hours = simulated_s / 3600
    print(f"{count - failed} of {count} runs kept every promise, {hours:.1f} simulated hours")
    return 1 if failed else 0


def _bugs(options: argparse.Namespace) -> int:
    seeds, duration_ms = options.seeds, options.duration_ms
    if options.bug is None:
        caught = hunt_all(seeds=seeds, duration_ms=duration_ms)
    else:
        chosen = [bug for bug in BUGS if options.bug in bug.name]
        caught = (hunt(bug, seeds=range(seeds), duration_ms=duration_ms) for bug in chosen)
    found: list[Caught] = []
    missed = print_table(_kept(caught, found))
    if options.table is not None and options.bug is None:
        write_table(found, options.table, seeds=seeds)
    return 1 if missed else 0


def _kept(caught: Iterable[Caught], found: list[Caught]) -> Iterator[Caught]:
    for one in caught:
        found.append(one)
        yield one


if __name__ == "__main__":
    sys.exit(main())
