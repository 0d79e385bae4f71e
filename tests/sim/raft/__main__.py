"""`python -m tests.sim.raft --seed N` replays a run; `--seeds N` runs many; `--bugs` plants."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from pathlib import Path

from tests.sim.bugs import hunt, print_table, write_table
from tests.sim.checker import Violation
from tests.sim.stats import report

from .planted import BUGS, UNPROVEN
from .run import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.raft", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one run")
    parser.add_argument("--seeds", type=int, default=40, help="how many runs (from --first)")
    parser.add_argument("--first", type=int, default=0, help="first seed of many")
    parser.add_argument("--duration-ms", type=int, default=8_000, help="simulated work per run")
    parser.add_argument("--stats", action="store_true", help="count what happened in all runs")
    parser.add_argument("--bugs", action="store_true", help="plant each bug and show its seed")
    parser.add_argument("--table", type=Path, help="write what was found into this page, too")
    parser.add_argument("--bug", help="plant the bugs with this text in their name")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if options.bugs or options.bug is not None:
        chosen = [bug for bug in BUGS if (options.bug or "") in bug.name]
        found = (
            hunt(bug, seeds=seeds, duration_ms=options.duration_ms, run=simulate) for bug in chosen
        )
        caught = list(found)
        if options.table is not None:
            write_table(caught, options.table, seeds=len(seeds), part="Raft")
        return 1 if print_table(caught) > sum(bug.name in UNPROVEN for bug in chosen) else 0
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    failed = 0
    simulated_s = 0.0
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            result = simulate(seed, duration_ms=options.duration_ms)
        except Violation as violation:
            failed += 1
            print(f"FAILED {violation}", flush=True)
            if options.seed is not None:
                traceback.print_exception(violation)
            continue
        simulated_s += result.simulated_s
        counts.update(result.counts)
        print(f"seed {seed:6d}: {result.acknowledged:5d} acknowledged, trace {result.trace}")
    if options.stats:
        print(report(counts))
    hours = simulated_s / 3600
    print(f"{len(seeds) - failed} of {len(seeds)} runs kept every promise, {hours:.2f} hours")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
