"""`python -m tests.sim --seed N` replays one run; `--seeds N` runs many; `--bugs` plants bugs."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from .bugs import BUGS, hunt
from .checker import Violation
from .run import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one run")
    parser.add_argument("--seeds", type=int, help="how many runs (from --first)")
    parser.add_argument("--first", type=int, default=0, help="first seed of many")
    parser.add_argument("--duration-ms", type=int, help="simulated work per run")
    parser.add_argument("--bugs", action="store_true", help="plant each bug and show who finds it")
    options = parser.parse_args()
    options.seeds = options.seeds or (60 if options.bugs else 20)
    options.duration_ms = options.duration_ms or (4_000 if options.bugs else 20_000)
    if options.bugs:
        return _bugs(options.seeds, options.duration_ms)
    first = options.first if options.seed is None else options.seed
    count = options.seeds if options.seed is None else 1
    failed = 0
    simulated_s = 0.0
    for seed in range(first, first + count):
        began = time.perf_counter()
        try:
            result = simulate(seed, duration_ms=options.duration_ms)
        except Violation as violation:
            failed += 1
            print(f"FAILED {violation}")
            if options.seed is not None:
                traceback.print_exception(violation)
            continue
        simulated_s += result.simulated_s
        took = time.perf_counter() - began
        print(
            f"seed {seed:5d}: {result.rows_acknowledged:6d} rows acknowledged,"
            f" {result.rows_seen:7d} read, {result.lives:3d} lives,"
            f" {result.power_losses:3d} power losses, {result.simulated_s:6.1f} s in {took:4.1f} s"
        )
    hours = simulated_s / 3600
    print(f"{count - failed} of {count} runs kept every promise, {hours:.1f} simulated hours")
    return 1 if failed else 0


def _bugs(seeds: int, duration_ms: int) -> int:
    print(f"{'planted bug':49} {'caught by seed':>14}  what the checker said")
    missed = 0
    for bug in BUGS:
        seed, said = hunt(bug, seeds=seeds, duration_ms=duration_ms)
        if seed is None:
            missed += 1
        where = "MISSED" if seed is None else str(seed)
        print(f"{bug.name:49} {where:>14}  {said[:70]}")
    print(f"{len(BUGS) - missed} of {len(BUGS)} planted bugs caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
